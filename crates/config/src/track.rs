//! Checks of `[track]`.

use super::limits::bad_value;
use super::provenance::Provenance;
use super::sections::Track;
use plimsoll_base::Result;

/// Longest name of a project or run.
const NAME_BYTES_MAX: usize = 128;

pub(super) fn check(track: &Track, at: &Provenance) -> Result<()> {
    for (index, tracker) in track.to.iter().enumerate() {
        if track.to[..index].contains(tracker) {
            let message = format!("`track.to` names `{}` twice", tracker.name());
            return Err(at.error("bad-value", "track.to", &message).hint("name it once"));
        }
    }
    for (key, name) in [("track.project", Some(&track.project)), ("track.name", track.name.as_ref())] {
        let Some(name) = name else { continue };
        let is_path = name.contains(['/', '\\']) || name.starts_with('.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || is_path || name.chars().any(char::is_control) {
            let takes = format!("up to {NAME_BYTES_MAX} characters that make no path");
            return Err(bad_value(at, key, format!("{name:?}"), &takes));
        }
    }
    let host = track.uri.as_deref().and_then(|uri| uri.split("://").nth(1)?.split('/').next());
    if host.is_some_and(|host| host.contains('@')) {
        // The run file is copied into the run directory.
        let message =
            "`track.uri` has a name or a password in it, which would be written into the run directory";
        return Err(at
            .error("bad-value", "track.uri", message)
            .hint("set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"));
    }
    Ok(())
}
