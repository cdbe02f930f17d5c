//! The weights that ranks that sample copy after an update: of the memory of one that trains.

use super::place::Apart;
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_device::PORTION_BYTES;
use plimsoll_memory::Buf;
use plimsoll_ranks::Group;

/// Copies what the first role has learned, with the number of updates of every role, to the ranks that sample. All
/// ranks call it when they have met after the update, and no rank updates before the copies are made.
///
/// Errors: `rank-lost`, `ranks-unreachable`; those of the device.
pub(super) fn copy(trainer: &mut Trainer<'_>, all: &Group, apart: &Apart, updates: &[u64]) -> Result<()> {
    let (dev, role) = (trainer.sampler.dev, &trainer.roles[0]);
    let (_, learned) = role.learned();
    let (mut taken, mut given) = (Vec::new(), Vec::new());
    for (sampler, source) in apart.copies() {
        if sampler == all.rank() {
            taken.extend(pieces(learned).map(|piece| (piece.of_rank(source), piece)));
        } else if source == all.rank() {
            given.extend(pieces(learned).map(|piece| (sampler, piece)));
        }
    }
    dev.exchange(&taken, &given);
    if !apart.trains() {
        role.refresh(dev);
        trainer.set_updates(updates);
    }
    dev.sync();
    dev.check()?;
    all.barrier()
}

/// Cuts a buffer into what is read of another host at once.
fn pieces(buf: Buf<'_>) -> impl Iterator<Item = Buf<'_>> {
    let most = (PORTION_BYTES / buf.dtype().bytes()) as usize;
    (0..buf.len()).step_by(most).map(move |start| buf.slice(start, most.min(buf.len() - start)))
}
