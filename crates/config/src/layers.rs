//! The layers of a run file: the file, the environment, `--set`; later ones win, key by key.

use super::aliases::{self, Seen};
use super::provenance::{Origin, Source};
use super::tree::{Table, parse_value, set_path};
use plimsoll_base::{Error, Result};

/// Prefix of environment variables for the run file; `__` separates section and key.
const ENVIRONMENT_PREFIX: &str = "PLIMSOLL__";

/// Adds the variables `PLIMSOLL__SECTION__KEY`; `wanted` selects the top-level names.
pub(super) fn add_environment(
    root: &mut Table,
    env: impl Iterator<Item = (String, String)>,
    wanted: impl Fn(&str) -> bool,
    source: &Source,
    seen: &mut Seen,
) -> Result<()> {
    let mut ours: Vec<(String, String)> =
        env.filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX)).collect();
    // The system's order is arbitrary; `REWARD__0` must come before `REWARD__1`.
    ours.sort();
    for (name, text) in ours {
        let key = name[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase().replace("__", ".");
        let top = key.split('.').next().unwrap_or_default();
        if !wanted(top) {
            continue;
        }
        let origin = Origin::Environment { name: name.clone(), text: text.clone() };
        add(root, &key, &text, origin, source, seen)?;
    }
    Ok(())
}

/// Adds `section.key=value` texts in their order.
pub(super) fn add_sets(root: &mut Table, sets: &[String], source: &Source, seen: &mut Seen) -> Result<()> {
    for set in sets {
        let Some((key, text)) = set.split_once('=') else {
            return Err(Error::usage("bad-set", format!("--set {set}: there is no `=`"))
                .hint("write --set section.key=value, for example --set rollout.group_size=4"));
        };
        let (key, text) = (key.trim(), text.trim());
        let origin = Origin::Set { key: key.to_string(), text: text.to_string() };
        add(root, key, text, origin, source, seen)?;
    }
    Ok(())
}

fn add(
    root: &mut Table,
    key: &str,
    text: &str,
    origin: Origin,
    source: &Source,
    seen: &mut Seen,
) -> Result<()> {
    let parts: Vec<&str> = key.split('.').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(source
            .error("bad-set", &origin, &format!("`{key}` is not a key"))
            .hint("write section.key=value, for example rollout.group_size=4"));
    }
    let node = parse_value(text, &origin);
    match aliases::rename_one(key, &node, source, seen)? {
        Some(pairs) => pairs
            .into_iter()
            .try_for_each(|(path, node)| set_path(root, &path.split('.').collect::<Vec<_>>(), node, source)),
        None => set_path(root, &parts, node, source),
    }
}
