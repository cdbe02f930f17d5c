//! The weights that ranks that sample copy after an update: of the memory of one that trains.

use super::place::Apart;
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_ranks::Group;

/// Copies what the first role has learned, with the number of updates of every role, to the ranks that sample. All
/// ranks call it when they have met, and no rank updates before the copies are made.
///
/// Errors: `rank-lost`.
pub(super) fn copy(trainer: &mut Trainer<'_>, all: &Group, apart: &Apart, updates: &[u64]) -> Result<()> {
    if !apart.trains() {
        let dev = trainer.sampler.dev;
        let role = &trainer.roles[0];
        let (_, learned) = role.learned();
        dev.exchange(&[(learned.of_rank(apart.source()), learned)], &[]);
        role.merge(dev);
        dev.sync();
        dev.check()?;
        trainer.set_updates(updates);
    }
    all.barrier()
}
