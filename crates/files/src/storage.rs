//! Bytes of a model file by position, from a file or from the binary itself. Opens regular files only: a directory, a
//! pipe or a loop of links is a named error, never a wait.

use plimsoll_base::{Error, Result, open_regular};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One readable model file.
#[derive(Debug)]
pub(crate) enum Storage {
    /// A file on disk, with its length when it was opened.
    File { file: File, path: PathBuf, bytes: u64 },
    /// A file embedded in the binary.
    Memory { name: &'static str, data: &'static [u8] },
}

impl Storage {
    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> Result<Storage> {
        let meta = std::fs::metadata(path).map_err(|e| open_error(path, &e))?;
        if !meta.is_file() {
            return Err(not_a_file(path));
        }
        let file = open_regular(path).map_err(|e| open_error(path, &e))?;
        Ok(Storage::File { file, path: path.to_path_buf(), bytes: meta.len() })
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Storage::File { bytes, .. } => *bytes,
            Storage::Memory { data, .. } => data.len() as u64,
        }
    }

    /// Returns the name for messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Storage::File { path, .. } => path.display().to_string(),
            Storage::Memory { name, .. } => (*name).to_string(),
        }
    }

    /// Fills `out` from byte `offset`.
    pub(crate) fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.bytes()) {
            return Err(self.truncated(offset, out.len() as u64));
        }
        match self {
            Storage::Memory { data, .. } => {
                let start = offset as usize;
                out.copy_from_slice(&data[start..start + out.len()]);
                Ok(())
            }
            Storage::File { file, path, .. } => file.read_exact_at(out, offset).map_err(|e| match e.kind() {
                // The file was long enough when it was opened, and was cut since.
                ErrorKind::UnexpectedEof => self.truncated(offset, out.len() as u64),
                _ => Error::io("model-file-unreadable", path, &e),
            }),
        }
    }

    /// Asks the system to read bytes soon. Best effort: some file systems have no page cache.
    pub(crate) fn will_read(&self, offset: u64, bytes: u64) {
        if let Storage::File { file, .. } = self {
            let _ = fadvise(file, offset, NonZeroU64::new(bytes), Advice::WillNeed);
        }
    }

    fn truncated(&self, offset: u64, wanted: u64) -> Error {
        let message = format!(
            "{}: {wanted} bytes wanted at offset {offset}, the file has {}",
            self.name(),
            self.bytes()
        );
        Error::new("model-file-truncated", message).hint("fetch or copy the file again")
    }
}

/// Reads a small file whole; refuses one larger than `limit_bytes`.
pub(crate) fn read_small(path: &Path, limit_bytes: u64) -> Result<Vec<u8>> {
    let storage = Storage::open(path)?;
    if storage.bytes() > limit_bytes {
        let message = format!("{}: {} bytes, the limit is {limit_bytes}", path.display(), storage.bytes());
        return Err(Error::new("model-file-corrupt", message));
    }
    let mut bytes = vec![0; storage.bytes() as usize];
    storage.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Reads a small file; `None` if it does not exist.
pub(crate) fn read_small_if_present(path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        _ => read_small(path, limit_bytes).map(Some),
    }
}

fn open_error(path: &Path, err: &std::io::Error) -> Error {
    match err.kind() {
        ErrorKind::NotFound => Error::new("model-file-missing", format!("{}: no such file", path.display()))
            .near(path)
            .hint("check `model` in the run file, or fetch the model again"),
        _ => Error::io("model-file-unreadable", path, err),
    }
}

fn not_a_file(path: &Path) -> Error {
    Error::new("model-file-unreadable", format!("{}: not a regular file", path.display()))
        .hint("a model file is a file or a link to one, not a directory, a pipe or a device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_a_link_loop_and_a_missing_file_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let looped = dir.path().join("loop");
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, slug) in [
            (dir.path(), "model-file-unreadable"),
            (&looped, "model-file-unreadable"),
            (&socket, "model-file-unreadable"),
            (&dir.path().join("absent"), "model-file-missing"),
        ] {
            assert_eq!(Storage::open(path).unwrap_err().slug, slug, "{}", path.display());
        }
    }

    #[test]
    fn a_read_past_the_end_is_truncated_even_if_the_sum_overflows() {
        let storage = Storage::Memory { name: "m", data: b"0123" };
        let mut out = [0; 3];
        storage.read_exact_at(&mut out, 1).unwrap();
        assert_eq!(&out, b"123");
        for offset in [2, u64::MAX] {
            assert_eq!(storage.read_exact_at(&mut out, offset).unwrap_err().slug, "model-file-truncated");
        }
    }
}
