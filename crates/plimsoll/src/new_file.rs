//! Writes run files that commands make, but never over an existing file.

use plimsoll_base::{Error, Result};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Writes a new file.
///
/// Errors: `run-file-exists`, `write-failed`.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |err: io::Error| match err.kind() {
        ErrorKind::AlreadyExists => {
            Error::usage("run-file-exists", format!("{} is there already", path.display()))
                .hint("choose another --output, or remove it")
        }
        _ => {
            Error::io("write-failed", path, &err).hint("give --output a name in a folder that can be written")
        }
    };
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
