//! The embedded data, by theme: what the logs of dying runs print, and examples of it.
//!
//! `data/signatures/README.md` explains the rows. If a line is a sign of two classes, the earlier theme comes first.

/// Classes of one theme, and examples of each.
pub struct Theme {
    pub signatures: &'static str,
    pub examples: &'static str,
}

macro_rules! theme {
    ($name:literal) => {
        Theme {
            signatures: include_str!(concat!("../../data/signatures/", $name, ".toml")),
            examples: include_str!(concat!("../../data/examples/", $name, ".txt")),
        }
    };
}

pub const THEMES: [Theme; 15] = [
    theme!("host"),
    theme!("storage"),
    theme!("limits"),
    theme!("nccl"),
    theme!("cluster"),
    theme!("worker"),
    theme!("engine"),
    theme!("gpu"),
    theme!("setup"),
    theme!("service"),
    theme!("run"),
    theme!("program"),
    theme!("place"),
    theme!("start"),
    theme!("general"),
];
/// Says what messages mean, whatever their words.
pub const INTENTS: &str = include_str!("../../data/signatures/intents.toml");
/// Lines of no class: judgements, marks, frameworks, and others that look like faults.
pub const LINES: &str = include_str!("../../data/signatures/lines.toml");
