//! Launch files: reads shell scripts, YAML, JSON and Python as text, into settings with their lines. Never runs one.

pub(crate) mod arithmetic;
pub(crate) mod config;
pub(crate) mod notebook;
pub(crate) mod python;
pub(crate) mod shell;
pub(crate) mod source;
pub(crate) mod surroundings;

use crate::{secret::withhold, setting::Setting, stack::Stack};
use plimsoll_base::{Error, Result, read_small};
use source::{Choice, Source};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Longest file; a larger one is neither a command line nor a configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most keys of a file, for the same reason.
pub(crate) const KEYS_MAX: usize = 4096;

/// Reads the settings of the file at `path`, up to 1 MiB, its surroundings first, with `$HOME` expanded.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`.
pub fn settings(stack: &Stack, path: &Path) -> Result<Vec<Setting>> {
    let Launch { surroundings, settings, .. } = read(stack, path, Choice::default())?;
    if settings.is_empty() {
        return Err(nothing_found(stack, path, "doctor"));
    }
    let mut given = withhold(stack.table, surroundings.into_iter().chain(settings).collect());
    // The doctor looks at a model's folder on this machine.
    if let Some(home) = std::env::var("HOME").ok().filter(|home| !home.is_empty()) {
        given.iter_mut().for_each(|one| one.value = one.value.replace(source::HOME, &home));
    }
    Ok(given)
}

/// The contents of a launch file, including keys and passwords.
pub(crate) struct Launch {
    pub surroundings: Vec<Setting>,
    /// The stack's own settings.
    pub settings: Vec<Setting>,
    /// The file next to a notebook where a run looks for its functions and classes, if settings name some.
    pub functions: Option<PathBuf>,
}

pub(crate) fn read(stack: &Stack, path: &Path, choice: Choice<'_>) -> Result<Launch> {
    let text = read_text(path)?;
    let is_notebook = path.to_string_lossy().to_ascii_lowercase().ends_with(notebook::ENDING);
    if !is_notebook {
        return Ok(Launch {
            functions: None,
            ..found(stack, Source { path: &path.to_string_lossy(), text: &text, choice, notebook: None })?
        });
    }
    let notebook = notebook::notebook(&text).map_err(|what| {
        other_file(path, &what).hint("open it in Jupyter and save it, which writes nbformat 4")
    })?;
    // Python cannot load a function from a notebook.
    let file = path.with_extension("py");
    let Launch { surroundings, settings, .. } = found(
        stack,
        Source { path: &file.to_string_lossy(), text: &notebook.script, choice, notebook: Some(&notebook) },
    )?;
    let place = format!("python:{}:", file.display());
    let is_own = settings.iter().any(|one| one.value.contains(&place));
    let placed = |given: Vec<Setting>| given.into_iter().map(|one| notebook.place(one)).collect();
    Ok(Launch {
        surroundings: placed(surroundings),
        settings: placed(settings),
        functions: (is_own && !file.exists()).then_some(file),
    })
}

fn found(stack: &Stack, source: Source<'_>) -> Result<Launch> {
    let settings = (stack.read)(&source)?;
    match settings.len() {
        0..=KEYS_MAX => {
            let surroundings = surroundings::surroundings(source.text);
            Ok(Launch { surroundings, settings, functions: None })
        }
        count => Err(other_file(Path::new(source.path), &format!("has {count} keys, more than {KEYS_MAX}"))
            .hint("give a script or a configuration, not a model or data file")),
    }
}

pub(crate) fn nothing_found(stack: &Stack, path: &Path, command: &str) -> Error {
    Error::usage("import-nothing-found", format!("{} holds no {} settings", path.display(), stack.name))
        .fact(format!("looked for {}", stack.looked_for))
        .hint(format!("plimsoll {command} --help shows which file each stack takes"))
}

pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = read_small(path, FILE_BYTES_MAX).map_err(|err| match err.kind() {
        ErrorKind::FileTooLarge => other_file(path, "is larger than 1 MiB").hint(
            "give a script or a configuration, not a model or data file; a notebook without its outputs",
        ),
        _ => Error::usage("import-unreadable", format!("{}: {err}", path.display()))
            .hint("give the path of a readable script or configuration"),
    })?;
    String::from_utf8(bytes).map_err(|err| {
        other_file(path, &format!("is not UTF-8 text: byte {}", err.utf8_error().valid_up_to()))
            .hint("give a script or a configuration, not a model or data file")
    })
}

fn other_file(path: &Path, what: &str) -> Error {
    Error::usage("import-unreadable", format!("{} {what}", path.display()))
}
