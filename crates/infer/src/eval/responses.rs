//! `eval --output`: every response of an evaluation, as JSON lines.

use crate::responses::KeptSample;
use plimsoll_base::Result;
use plimsoll_files::output_error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The file, which is made when the model is ready: an evaluation that is refused leaves an earlier file as it is.
pub(super) struct Responses {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Responses {
    /// Errors: `output-unwritable`, `disk-full`.
    pub fn create(path: &Path) -> Result<Responses> {
        let file = File::create(path).map_err(|err| output_error(path, &err))?;
        Ok(Responses { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    pub fn write(&mut self, row: &KeptSample) -> Result<()> {
        let mut line = serde_json::to_vec(row).expect("samples are plain data");
        line.push(b'\n');
        self.file.write_all(&line).map_err(|err| output_error(&self.path, &err))
    }

    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|err| output_error(&self.path, &err))
    }
}
