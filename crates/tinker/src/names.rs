//! Names: ids of models and samplers, and the paths of what was saved. A name never becomes a path of a file here.

use crate::job::SaveKind;
use crate::limits::NAME_BYTES_MAX;
use plimsoll_base::{Error, Result, shown};

const SCHEME: &str = "tinker://";

/// Returns the id of a session's nth model, which clients assume.
pub fn model_id(session: &str, seq: i64) -> String {
    format!("{session}:train:{seq}")
}

/// Returns the id of a session's nth sampler.
pub fn sampler_id(session: &str, seq: i64) -> String {
    format!("{session}:sample:{seq}")
}

/// Returns the middle part of a path.
pub fn folder(kind: SaveKind) -> &'static str {
    match kind {
        SaveKind::Training => "weights",
        SaveKind::Sampler => "sampler_weights",
        SaveKind::External => "external_weights",
    }
}

/// Returns what clients call a kind in lists.
pub fn kind_name(kind: SaveKind) -> &'static str {
    match kind {
        SaveKind::Training => "training",
        SaveKind::Sampler => "sampler",
        SaveKind::External => "external",
    }
}

pub fn path_of(model: &str, kind: SaveKind, name: &str) -> String {
    format!("{SCHEME}{model}/{}/{name}", folder(kind))
}

/// Checks the name under which something is to be saved.
///
/// Errors: `tinker-bad-request`.
pub fn checked_name(name: &str) -> Result<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.bytes().all(is_plain)
    {
        let message = format!("the name {:?} cannot be that of saved weights", shown(name));
        return Err(Error::new("tinker-bad-request", message).hint(format!(
            "a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, and begins with no `.`"
        )));
    }
    Ok(name)
}

/// Takes a path apart: model, kind and name.
///
/// Errors: `tinker-bad-request`.
pub fn parts(path: &str) -> Result<(&str, SaveKind, &str)> {
    let bad = || {
        Error::new("tinker-bad-request", format!("{:?} is no path of saved weights", shown(path)))
            .hint("it has the form tinker://MODEL/weights/NAME, or sampler_weights or external_weights in the middle")
    };
    let mut parts = path.strip_prefix(SCHEME).ok_or_else(bad)?.split('/');
    let (Some(model), Some(folder), Some(name), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(bad());
    };
    let kinds = [SaveKind::Training, SaveKind::Sampler, SaveKind::External];
    let kind = kinds.into_iter().find(|kind| self::folder(*kind) == folder).ok_or_else(bad)?;
    if model.is_empty() || model.len() > 2 * NAME_BYTES_MAX {
        return Err(bad());
    }
    Ok((model, kind, checked_name(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_three_parts_and_names_no_tricks() {
        assert_eq!(
            parts("tinker://s-1:train:0/weights/a.b-1").unwrap(),
            ("s-1:train:0", SaveKind::Training, "a.b-1")
        );
        for path in [
            "",
            "tinker://",
            "tinker://m/weights",
            "tinker://m/weights/",
            "tinker://m/weights/a/b",
            "tinker://m/w/a",
            "file:///etc/passwd",
            "tinker://m/weights/..",
            "tinker:///weights/a",
            "tinker://m/weights/a%2f",
        ] {
            assert_eq!(parts(path).unwrap_err().slug, "tinker-bad-request", "{path}");
        }
        for name in ["", ".", "..", "../x", "a/b", "a\\b", "a b", "ä", "a\0", &"x".repeat(129), "/etc"] {
            assert!(checked_name(name).is_err(), "{name}");
        }
    }
}
