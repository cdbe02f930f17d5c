//! `eval --output`: every response of an evaluation, as JSON lines.

use crate::rollout::responses::KeptSample;
use plimsoll_base::{Error, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The file, which is made before the first response so that a wrong path costs nothing.
pub(super) struct Responses {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Responses {
    /// Errors: `output-unwritable`.
    pub fn create(path: &Path) -> Result<Responses> {
        let file = File::create(path).map_err(|err| unwritable(path, &err))?;
        Ok(Responses { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    pub fn write(&mut self, row: &KeptSample) -> Result<()> {
        let mut line = serde_json::to_vec(row).expect("samples are plain data");
        line.push(b'\n');
        self.file.write_all(&line).map_err(|err| unwritable(&self.path, &err))
    }

    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|err| unwritable(&self.path, &err))
    }
}

fn unwritable(path: &Path, err: &std::io::Error) -> Error {
    Error::io("output-unwritable", path, err).hint("give a file in a folder that exists and can be written")
}
