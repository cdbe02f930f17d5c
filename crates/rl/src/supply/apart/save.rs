//! A checkpoint of ranks that train and ranks that sample: the first write it.

use super::place::ApartRanks;
use crate::roles::Trainer;
use crate::save::{prepare, save_of_ranks};
use crate::supply::source::Supply;
use plimsoll_base::Result;
use plimsoll_files::OpenModel;
use plimsoll_run::lead::{Savers, Saving};
use std::path::PathBuf;

/// Saves a checkpoint. Every rank calls it, but for one that saves alone.
///
/// Errors: as `save_of_ranks`.
pub(crate) fn save(
    trainer: &mut Trainer<'_>,
    ApartRanks { all, apart }: ApartRanks<'_>,
    model: &OpenModel,
    supply: &dyn Supply,
    saving: Saving<'_>,
) -> Result<PathBuf> {
    let (path, is_alone) = (saving.store.path(saving.step), saving.savers == Savers::ThisRank);
    let saved = if !apart.trains() {
        path
    } else if apart.own().is_alone() {
        prepare(trainer, model, supply, saving)?.run()?
    } else {
        save_of_ranks(trainer, apart.own(), model, supply, saving)?
    };
    // No rank reports the save, or ends, before the checkpoint has its name.
    if is_alone { Ok(saved) } else { all.barrier().map(|()| saved) }
}
