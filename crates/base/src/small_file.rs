//! Reads whole files, such as other people's settings, up to a limit, without waiting for a pipe that has no writer.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// `O_NONBLOCK` of Linux on x86-64 and arm64: opening a pipe does not wait for a writer.
const NONBLOCK: i32 = 0o4000;
/// Longest wait for the next bytes of a pipe.
const PIPE_WAIT: Duration = Duration::from_secs(10);
const PIPE_LOOK: Duration = Duration::from_millis(5);

/// Returns the bytes of a file, or of a pipe that is being written.
///
/// Errors: those of the system; `FileTooLarge` beyond `bytes_max`; `InvalidInput` for a pipe without a writer,
/// `TimedOut` if its writer is silent.
pub fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    let bytes = read(file, bytes_max)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it has more than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    if bytes.is_empty() && kind.is_fifo() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is a pipe without a writer"));
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

fn read(file: File, bytes_max: u64) -> Result<Vec<u8>> {
    let (mut file, mut bytes) = (file.take(bytes_max.saturating_add(1)), Vec::new());
    let mut until = Instant::now() + PIPE_WAIT;
    loop {
        let before = bytes.len();
        match file.read_to_end(&mut bytes) {
            Ok(_) => return Ok(bytes),
            Err(err) if err.kind() != ErrorKind::WouldBlock => return Err(err),
            Err(_) if bytes.len() > before => until = Instant::now() + PIPE_WAIT,
            Err(_) if Instant::now() > until => {
                let what = format!("nothing came through this pipe for {} s", PIPE_WAIT.as_secs());
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
            Err(_) => std::thread::sleep(PIPE_LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
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
        // As a shell's `<(...)`: the writer is there, and takes its time.
        let keep = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&pipe).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
        let writing = std::thread::spawn(move || {
            std::thread::sleep(10 * PIPE_LOOK);
            writer.write_all(b"late").unwrap();
        });
        assert_eq!(kind(&pipe, 1000), Ok(b"late".to_vec()));
        writing.join().unwrap();
        drop(keep);
        std::fs::write(&file, b"ab\xff").unwrap();
        let error = read_small_text(&file, 9).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("byte 2")), (ErrorKind::InvalidData, true));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
