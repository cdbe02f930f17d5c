//! Import turns what another stack is started with into a run file, and lists everything that it could not carry over.
//!
//! A file is read as text and never run: shell variables that it sets itself are filled in, literals are taken, and
//! every other expression is listed. Each stack has one file with one table (its names, our key, the conversion).

mod draft;
mod openrlhf;
mod orz;
mod read;
mod settings;
mod trl;
mod verl;

pub use settings::{Reader, Setting, settings};

use draft::Draft;
use plimsoll_base::{Error, Result};
use std::io::Read;
use std::path::Path;

/// Longest file that is imported; a larger one is no command line and no configuration.
const IMPORT_BYTES_MAX: u64 = 1 << 20;
/// Most keys of one file, for the same reason.
const KEYS_MAX: usize = 4096;

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// `python3 -m openrlhf.cli.train_ppo_ray --flag value ...`.
    OpenRlhf,
    /// `python3 -m verl.trainer.main_ppo key=value ...`.
    Verl,
    /// `trl grpo --flag value ...`, its YAML or JSON, or `GRPOConfig(...)` in Python.
    Trl,
    /// A configuration class of Open-Reasoner-Zero.
    Orz,
}

impl Stack {
    /// The name that the command line and the messages use.
    pub const fn name(self) -> &'static str {
        match self {
            Stack::OpenRlhf => "openrlhf",
            Stack::Verl => "verl",
            Stack::Trl => "trl",
            Stack::Orz => "orz",
        }
    }

    /// What a file of this stack holds.
    const fn looked_for(self) -> &'static str {
        match self {
            Stack::OpenRlhf => "a command `... openrlhf.cli.train_ppo_ray --flag value ...`",
            Stack::Verl => "a command `... verl.trainer.main_ppo key=value ...`",
            Stack::Trl => {
                "`trl grpo --flag value ...`, YAML or JSON with the keys of GRPOConfig, or a literal `GRPOConfig(...)`"
            }
            Stack::Orz => "a class with lines `key: type = value`",
        }
    }

    fn table(self) -> &'static draft::Names {
        match self {
            Stack::OpenRlhf => &openrlhf::NAMES,
            Stack::Verl => &verl::NAMES,
            Stack::Trl => &trl::NAMES,
            Stack::Orz => &orz::NAMES,
        }
    }
}

/// A run file made from another stack's file.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The run file, with the remarks as comments at its end.
    pub run_file: String,
    /// What was changed, chosen or left out, one line each.
    pub remarks: Vec<String>,
}

/// Reads the file at `path` as `stack` would, up to 1 MiB.
///
/// Errors, exit code 2: `import-unreadable`, `import-nothing-found`, `import-no-method`.
pub fn import(stack: Stack, path: &Path) -> Result<Imported> {
    let text = read_text(path)?;
    let nothing = || {
        nothing_found(path, stack.name(), stack.looked_for())
            .hint("plimsoll import --help shows which file each stack takes")
    };
    let given = (stack.table().read)(&text);
    if given.len() > KEYS_MAX {
        return Err(too_large(path, &format!("has {} keys, more than {KEYS_MAX}", given.len())));
    }
    let mut draft = Draft::new(stack.table(), given);
    if !draft.knows_any() {
        return Err(nothing());
    }
    draft.translate()?;
    Ok(draft.finish(&path.file_name().unwrap_or_default().to_string_lossy()))
}

fn nothing_found(path: &Path, name: &str, looked_for: &str) -> Error {
    Error::usage("import-nothing-found", format!("{} holds no {name} settings", path.display()))
        .fact(format!("looked for {looked_for}"))
}

fn read_text(path: &Path) -> Result<String> {
    let unreadable = |err: &std::io::Error| {
        Error::usage("import-unreadable", format!("{}: {err}", path.display()))
            .hint("give the path of a readable script or configuration")
    };
    let file = std::fs::File::open(path).map_err(|err| unreadable(&err))?;
    let mut bytes = Vec::new();
    file.take(IMPORT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|err| unreadable(&err))?;
    if bytes.len() as u64 > IMPORT_BYTES_MAX {
        return Err(too_large(path, "is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|err| {
        let at = err.utf8_error().valid_up_to();
        Error::usage("import-unreadable", format!("{} is not UTF-8 text: byte {at}", path.display()))
            .hint("give a script or a configuration, not a model or data file")
    })
}

fn too_large(path: &Path, what: &str) -> Error {
    Error::usage("import-unreadable", format!("{} {what}", path.display()))
        .hint("give a script or a configuration, not a model or data file")
}
