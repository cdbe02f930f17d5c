//! Reads whole files, such as other people's settings, up to a limit, without waiting for a pipe that has no writer.

use crate::NamedFile;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Returns the bytes of a file, or of a pipe that is being written.
///
/// Errors: those of the system; `FileTooLarge` beyond `bytes_max`; `InvalidInput` for a pipe without a writer,
/// `TimedOut` if its writer is silent.
pub fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The limit bounds a device too.
    NamedFile::open_any(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it has more than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Returns the text of a file, or of a pipe that is being written.
///
/// Errors: those of `read_small`; `InvalidData` for bytes that are not UTF-8.
pub fn read_small_text(path: &Path, bytes_max: u64) -> Result<String> {
    let bytes = read_small(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|err| {
        let what = format!("it is not UTF-8 text: byte {}", err.utf8_error().valid_up_to());
        Error::new(ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_a_pipe_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("plimsoll-small-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, pipe) = (folder.join("file"), folder.join("pipe"));
        std::fs::write(&file, "12345").unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let kind = |path: &Path, most| read_small(path, most).map_err(|err| err.kind());
        assert_eq!(kind(&file, 5), Ok(b"12345".to_vec()));
        assert_eq!(kind(&file, 4), Err(ErrorKind::FileTooLarge));
        assert_eq!(kind(Path::new("/dev/zero"), 1000), Err(ErrorKind::FileTooLarge));
        assert_eq!(kind(Path::new("/dev/null"), 1000), Ok(Vec::new()));
        assert_eq!(kind(&folder, 1000), Err(ErrorKind::IsADirectory));
        assert_eq!(kind(&folder.join("none"), 1000), Err(ErrorKind::NotFound));
        assert_eq!(kind(&pipe, 1000), Err(ErrorKind::InvalidInput));
        std::fs::write(&file, b"ab\xff").unwrap();
        let error = read_small_text(&file, 9).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("byte 2")), (ErrorKind::InvalidData, true));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
