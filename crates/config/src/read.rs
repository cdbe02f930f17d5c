//! Reading the text of a run file or an environment file, and the origins of its values.

use super::provenance::{Provenance, Source};
use super::tree;
use plimsoll_base::{Error, Result, read_small, shown_path};
use std::io::ErrorKind;
use std::path::Path;

/// Largest run file; a larger file is something else.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the origin of each value of a tree.
pub(super) fn provenance_of(root: &tree::Table, source: Source) -> Provenance {
    let mut provenance = Provenance { source, ..Provenance::default() };
    for (key, node) in &root.0 {
        // Sections are included: messages point at `[critic]` as a whole.
        provenance.origins.insert(key.clone(), node.origin.clone());
    }
    root.leaves("", &mut |path, node| {
        provenance.origins.insert(path.to_string(), node.origin.clone());
    });
    provenance
}

/// Reads a file of a bounded size.
///
/// Errors: `run-file-missing`, `run-file-unreadable`, `run-file-syntax`.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let unreadable = |err: &std::io::Error| {
        let (error, own) = (
            Error::usage("run-file-unreadable", format!("{}: {err}", path.display())),
            path.join("run.toml"),
        );
        if own.is_file() {
            error.hint(format!("the run file of this run is {}", own.display()))
        } else {
            error.hint("give the path of a readable TOML file")
        }
    };
    let bytes = read_small(path, RUN_FILE_BYTES_MAX).map_err(|err| match err.kind() {
        ErrorKind::NotFound => missing_file(path),
        ErrorKind::FileTooLarge => {
            Error::usage("run-file-unreadable", format!("{} is larger than 1 MiB", path.display()))
                .hint("give a run file, not a data or model file")
        }
        _ => unreadable(&err),
    })?;
    String::from_utf8(bytes).map_err(|err| {
        let message =
            format!("{} is not UTF-8 text: byte {}", path.display(), err.utf8_error().valid_up_to());
        Error::usage("run-file-syntax", message).hint("run files are TOML in UTF-8")
    })
}

fn missing_file(path: &Path) -> Error {
    let error = Error::usage("run-file-missing", format!("there is no file {}", shown_path(path))).near(path);
    if error.hints.is_empty() {
        error.hint("give the path of a run file, for example runs/first.toml")
    } else {
        error
    }
}
