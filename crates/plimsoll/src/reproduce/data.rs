//! The data of a reproduction: fetched before anything is trained, and compared with what it should be.

use super::book::sha256;
use super::record::FolderState;
use plimsoll_base::{Error, Result};
use plimsoll_config::{DataSets, Reproduction, RunFile, VerbFile};
use plimsoll_infer::hub::{HELD_OUT, find};
use std::collections::BTreeMap;
use std::path::Path;

const TRAINING: &str = "train";
/// A set that is no file.
const NO_EVAL: &str = "none";

/// Returns the names of data files in run files, each with the split that it means if it names none.
pub fn names(runs: &[RunFile], evaluated: Option<&VerbFile>) -> BTreeMap<String, &'static str> {
    let mut names = BTreeMap::new();
    let mut add = |sets: Option<&DataSets>, split| {
        let sets = sets.map_or(&[][..], |sets| sets.sets()).iter().map(|set| &set.path);
        let files = sets.filter(|path| !path.starts_with("builtin:") && *path != NO_EVAL);
        files.for_each(|path| {
            names.insert(path.clone(), split);
        });
    };
    for run in runs {
        add(run.data.prompts.as_ref(), TRAINING);
        add(run.data.eval.as_ref(), HELD_OUT);
    }
    add(evaluated.and_then(|verb| verb.data.eval.as_ref()), HELD_OUT);
    for section in runs.iter().filter_map(|run| run.environment.as_ref()) {
        for (rows, split) in [(&section.rows, TRAINING), (&section.eval_rows, HELD_OUT)] {
            rows.iter().for_each(|path| {
                names.insert(path.clone(), split);
            });
        }
    }
    names
}

/// Fetches what `names` names and nothing else, and requires that it is the data of the reproduction: by the hash in
/// its file, else by the one that was recorded when this folder fetched it first.
///
/// Errors: `reproduction-data-changed`, `bad-value`; those of fetching.
pub fn fetch(
    what: &Reproduction,
    names: &BTreeMap<String, &'static str>,
    state: &mut FolderState,
    say: &dyn Fn(&str),
) -> Result<()> {
    if let Some(name) = what.sha256.keys().find(|name| !names.contains_key(*name)) {
        return Err(Error::usage("bad-value", format!("[sha256] names {name}, which no stage reads"))
            .hint(format!("its stages read {}", names.keys().cloned().collect::<Vec<_>>().join(", "))));
    }
    for (name, split) in names {
        let found = find(name, split, true)?;
        let file = found.map_or_else(|| name.clone(), |found| found.file);
        let hash = sha256(Path::new(&file))?;
        let (wanted, whose) = match (what.sha256.get(name), state.data.get(name)) {
            (Some(hash), _) => (Some(hash), "the reproduction names"),
            (None, first) => (first, "it was when this folder began"),
        };
        if let Some(wanted) = wanted.filter(|wanted| **wanted != hash) {
            return Err(changed(name, &hash, wanted, whose));
        }
        if wanted.is_none() {
            say(&format!("{name}: sha256 {hash}, recorded"));
        }
        state.data.insert(name.clone(), hash);
    }
    Ok(())
}

fn changed(name: &str, hash: &str, wanted: &str, whose: &str) -> Error {
    let message = format!("{name} is not the data that the number is of");
    let error = Error::new("reproduction-data-changed", message)
        .fact(format!("sha256 {hash}"))
        .fact(format!("{whose} {wanted}"));
    if name.starts_with("hf:") {
        error.hint("name the commit that had it: hf:org/name@COMMIT, in a copy of the reproduction")
    } else {
        error.hint("put the file back as it was")
    }
    .hint("for a result on other data copy the reproduction, change [sha256], and run FILE.toml")
}
