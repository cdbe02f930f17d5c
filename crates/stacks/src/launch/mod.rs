//! Launch files: shell scripts, YAML, JSON and Python as settings with their lines. A file is read as text and never run.

pub(crate) mod arithmetic;
pub(crate) mod config;
pub(crate) mod python;
pub(crate) mod shell;
pub(crate) mod source;
pub(crate) mod surroundings;

use crate::{secret::withhold, setting::Setting, stack::Stack};
use plimsoll_base::{Error, Result};
use std::io::Read;
use std::path::Path;

/// Longest file that is read; a larger one is no command line and no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most keys of one file, for the same reason.
pub(crate) const KEYS_MAX: usize = 4096;

/// Reads the settings of the file at `path`, up to 1 MiB, with what it says of its surroundings before them, and this machine's home
/// where the file has `$HOME`.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`.
pub fn settings(stack: &Stack, path: &Path) -> Result<Vec<Setting>> {
    let (text, settings) = read(stack, path)?;
    if settings.is_empty() {
        return Err(nothing_found(stack, path, "doctor"));
    }
    let surroundings = surroundings::surroundings(&text).into_iter();
    let mut given = withhold(stack.table, surroundings.chain(settings).collect());
    // The doctor looks at a model's folder on this machine.
    if let Some(home) = std::env::var("HOME").ok().filter(|home| !home.is_empty()) {
        given.iter_mut().for_each(|one| one.value = one.value.replace(source::HOME, &home));
    }
    Ok(given)
}

/// Returns the text of a file, and the stack's settings in it, keys and passwords included.
pub(crate) fn read(stack: &Stack, path: &Path) -> Result<(String, Vec<Setting>)> {
    let text = read_text(path)?;
    let settings = (stack.read)(&source::Source { path: &path.to_string_lossy(), text: &text });
    match settings.len() {
        0..=KEYS_MAX => Ok((text, settings)),
        count => Err(other_file(path, &format!("has {count} keys, more than {KEYS_MAX}"))),
    }
}

pub(crate) fn nothing_found(stack: &Stack, path: &Path, command: &str) -> Error {
    Error::usage("import-nothing-found", format!("{} holds no {} settings", path.display(), stack.name))
        .fact(format!("looked for {}", stack.looked_for))
        .hint(format!("plimsoll {command} --help shows which file each stack takes"))
}

fn read_text(path: &Path) -> Result<String> {
    let unreadable = |err: &std::io::Error| {
        Error::usage("import-unreadable", format!("{}: {err}", path.display()))
            .hint("give the path of a readable script or configuration")
    };
    let file = std::fs::File::open(path).map_err(|err| unreadable(&err))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|err| unreadable(&err))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(other_file(path, "is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|err| {
        other_file(path, &format!("is not UTF-8 text: byte {}", err.utf8_error().valid_up_to()))
    })
}

fn other_file(path: &Path, what: &str) -> Error {
    Error::usage("import-unreadable", format!("{} {what}", path.display()))
        .hint("give a script or a configuration, not a model or data file")
}
