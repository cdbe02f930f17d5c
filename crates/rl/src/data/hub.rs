//! Data sets of the hub: `hf:` names become files of the hub's cache before anything is read. The run directory keeps
//! the commit, so that a resumed run reads the same rows.

use plimsoll_base::Result;
use plimsoll_config::{DataSets, RunFile, RunSpec};
use plimsoll_infer::hub::{HELD_OUT, find, localise_sets};

/// The split of a name that says none.
const TRAINING: &str = "train";
/// The error for what is not on this machine.
const NOT_LOCAL: &str = "data-not-local";

/// Names of a run file, each with the same name at the commit that it was.
pub(crate) type Pins = Vec<(String, String)>;

/// Replaces the `hf:` names of a run by files, fetching them if `allow_download` says so.
///
/// Errors: `data-hub-name`; those of `hub_file`.
pub(crate) fn localise(run: &mut RunSpec, allow_download: bool) -> Result<Pins> {
    let mut pins = Pins::new();
    let data = &mut run.data;
    for (sets, split) in [(&mut data.prompts, TRAINING), (&mut data.eval, HELD_OUT)] {
        let Some(sets) = sets else { continue };
        let is_one = sets.is_one();
        for set in sets.each_mut() {
            let Some(found) = find(&set.path, split, allow_download)? else { continue };
            pins.push((set.path.clone(), found.pinned));
            if is_one {
                set.name.get_or_insert(found.shown);
            }
            set.path = found.file;
        }
    }
    if let Some(section) = run.environment_mut() {
        for (rows, split) in [(&mut section.rows, TRAINING), (&mut section.eval_rows, HELD_OUT)] {
            let Some(path) = rows else { continue };
            let Some(found) = find(path, split, allow_download)? else { continue };
            pins.push((std::mem::replace(path, found.file), found.pinned));
        }
    }
    localise_sets(&mut run.eval_sets, allow_download)?;
    Ok(pins)
}

/// Returns `run` for a plan, with local files for its `hf:` names; nothing is fetched. If one is not on this machine,
/// all names stay, or the plan is refused if it `needs_rows`.
///
/// Errors: `data-hub-name`; `data-not-local`.
pub(crate) fn localised(run: &RunSpec, needs_rows: bool) -> Result<RunSpec> {
    let mut local = run.clone();
    match localise(&mut local, false) {
        Ok(_) => Ok(local),
        Err(error) if error.slug != NOT_LOCAL => Err(error),
        Err(_) if !needs_rows => Ok(run.clone()),
        // A method that samples is planned from a bound as well.
        Err(error) if run.objective().is_some() => {
            let hint = "or set data.prompt_tokens_max, which bounds the prompts: then the plan needs no data";
            Err(error.hint(hint))
        }
        Err(error) => Err(error),
    }
}

/// Writes the commits into the run file that the run directory keeps.
pub(crate) fn pin(run: &mut RunFile, pins: &Pins) {
    let sets = [&mut run.data.prompts, &mut run.data.eval].into_iter().flatten();
    let sets = sets.flat_map(DataSets::each_mut).map(|set| &mut set.path);
    let rows = run.environment.iter_mut().flat_map(|section| [&mut section.rows, &mut section.eval_rows]);
    for path in sets.chain(rows.flatten()) {
        if let Some((_, pinned)) = pins.iter().find(|(name, _)| name == path) {
            path.clone_from(pinned);
        }
    }
}
