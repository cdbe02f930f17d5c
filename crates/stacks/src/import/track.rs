//! Writes `[track]`: trackers, project and run name. Keys are not carried over: clients read them from the environment.

use super::draft::{Draft, Taken, quoted};
use crate::setting::{flag, list};

/// A common tracker: its name, and the variable of its project.
const TRACKERS: [(&str, Option<&str>); 4] = [
    ("wandb", Some("WANDB_PROJECT")),
    ("trackio", Some("TRACKIO_PROJECT")),
    ("mlflow", Some("MLFLOW_EXPERIMENT_NAME")),
    ("tensorboard", None),
];
/// Trackers of others that a run here always has: the terminal and its own log.
const IN_ANY_CASE: [&str; 4] = ["none", "console", "file", "terminal"];
/// Longest name of a project or a run here, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The source of W&B's key.
pub(crate) const WANDB_KEY: &str =
    "a key is not carried over: W&B's client takes it from WANDB_API_KEY, or from `wandb login`";
/// The reason to leave out a project or a name.
const NO_TRACKER: &str = "no tracker of [track] has it";
/// Variables with keys and passwords that a launch file may set for trackers and the hub.
const KEYS: [&str; 7] = [
    "WANDB_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HUGGINGFACE_TOKEN",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
];

/// Writes `track.to` from the setting `name`, a list of trackers.
pub(crate) fn trackers(draft: &mut Draft, name: &str) {
    let Some(taken) = draft.take_text(name) else { return };
    let given: Vec<String> = list(&taken.value).iter().map(|one| one.to_ascii_lowercase()).collect();
    let mut to: Vec<&str> = Vec::new();
    for (tracker, _) in TRACKERS {
        to.extend(given.iter().any(|one| one == tracker).then_some(tracker));
    }
    let is_other = |one: &&String| !to.contains(&one.as_str()) && !IN_ANY_CASE.contains(&one.as_str());
    let others: Vec<&str> = given.iter().filter(is_other).map(String::as_str).collect();
    let (others, is_empty) = (others.join(", "), to.is_empty());
    send_to(draft, &to, &taken);
    match others.as_str() {
        "" => {}
        "all" => draft.leave(&taken, "which trackers those are depends on what is installed there: name them as track.to = [\"wandb\"]"),
        others if is_empty => draft.leave(&taken, &format!("[track] has no {others}")),
        others => draft.change(&taken, &format!("[track] has no {others}")),
    }
}

/// Writes `track.to`, unless the file switches W&B off.
pub(crate) fn send_to(draft: &mut Draft, to: &[&str], taken: &Taken) {
    let is_off = draft.variable("WANDB_DISABLED").is_some_and(|value| flag(value) != Some(false))
        || draft.variable("WANDB_MODE") == Some("disabled");
    let kept: Vec<String> =
        to.iter().filter(|one| **one != "wandb" || !is_off).map(|one| quoted(one)).collect();
    if kept.len() < to.len() {
        draft.change(taken, "the file switches W&B off: WANDB_MODE or WANDB_DISABLED");
    }
    if !kept.is_empty() {
        draft.set_toml("track.to", format!("[{}]", kept.join(", ")), &taken.from);
    }
}

/// Writes the other keys of `[track]`: from the settings `project` and `name`, or the variables that the file sets.
pub(crate) fn names(draft: &mut Draft, project: Option<&str>, name: &str) {
    let to = list(draft.get("track.to").unwrap_or_default());
    let has = |tracker: &str| to.iter().any(|one| one == tracker);
    let projects = TRACKERS.iter().filter(|(tracker, _)| has(tracker)).filter_map(|(_, variable)| *variable);
    let projects: Vec<&str> = projects.collect();
    let names: &[&str] = if has("wandb") { &["WANDB_NAME"] } else { &[] };
    named(draft, "track.project", project, &projects, !to.is_empty());
    named(draft, "track.name", Some(name), names, !to.is_empty());
    if has("wandb") && draft.variable("WANDB_MODE") == Some("offline") {
        draft.set_text("track.mode", "offline", "WANDB_MODE");
    }
    // An address with a name or a password would be refused.
    let address = draft.variable("MLFLOW_TRACKING_URI").filter(|uri| !uri.contains('@')).map(str::to_string);
    if let Some(address) = address.filter(|_| has("mlflow")) {
        draft.set_text("track.uri", &address, "MLFLOW_TRACKING_URI");
    }
    for key in KEYS.into_iter().filter(|key| draft.variable(key).is_some()).collect::<Vec<_>>() {
        draft.remark(format!("left out: {key}: it is a secret: set it where you start `plimsoll`"));
    }
}

/// Writes `key` from a setting, else from the first variable that the file sets.
fn named(draft: &mut Draft, key: &str, setting: Option<&str>, variables: &[&str], is_tracked: bool) {
    if let Some(taken) = setting.and_then(|name| draft.take_text(name)) {
        if !is_tracked {
            return draft.leave(&taken, NO_TRACKER);
        }
        let plain = plain(&taken.value);
        draft.set_text(key, &plain, &taken.from);
        if plain != taken.value {
            draft.change(&taken, "a name is no path here");
        }
        return;
    }
    let found = variables.iter().find_map(|name| Some((name, plain(draft.variable(name)?))));
    if let Some((name, value)) = found {
        draft.set_text(key, &value, name);
    }
}

/// Returns a name without path separators, of at most 128 bytes.
fn plain(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_control() || c == '/' || c == '\\' { '-' } else { c }).collect();
    let name = name.trim_start_matches(['.', '-']);
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
    match &name[..end.unwrap_or(0)] {
        "" => "run".into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn a_name_makes_no_path() {
        for (name, expect) in [("grpo-1", "grpo-1"), ("./out/7b", "out-7b"), ("a\nb", "a-b"), ("..", "run")] {
            assert_eq!(plain(name), expect);
        }
        assert_eq!(plain(&"ö".repeat(100)).len(), 128);
    }
}
