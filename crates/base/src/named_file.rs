//! The one way to open what a user names, for reading: no pipe without a writer is waited for, and no device is read.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// `O_NONBLOCK` of Linux on x86-64 and arm64: opening a pipe does not wait for a writer.
const NONBLOCK: i32 = 0o4000;
/// The number of `/dev/null`, the one device that is an empty file.
const NULL_DEVICE: u64 = 0x103;
/// Longest wait for the next bytes of a pipe.
const PIPE_WAIT: Duration = Duration::from_secs(10);
const PIPE_LOOK: Duration = Duration::from_millis(5);

/// A file, or a pipe that is being written, such as a shell's `<(...)`.
///
/// Reading gives the errors of the system; of a pipe `InvalidInput` if it has no writer, and `TimedOut` if its writer
/// is silent for 10 s.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    is_pipe: bool,
    has_begun: bool,
}

impl NamedFile {
    /// Opens a file or a pipe.
    ///
    /// Errors: those of the system; `IsADirectory`; `InvalidInput` for a device or a socket.
    pub fn open(path: &Path) -> Result<NamedFile> {
        let named = NamedFile::open_any(path)?;
        let meta = named.file.metadata()?;
        let kind = meta.file_type();
        if (kind.is_char_device() && meta.rdev() != NULL_DEVICE) || kind.is_block_device() {
            return Err(Error::new(ErrorKind::InvalidInput, "it is a device, not a file"));
        }
        Ok(named)
    }

    /// Opens anything but a directory. A reader with a limit may read a device.
    pub(crate) fn open_any(path: &Path) -> Result<NamedFile> {
        let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path).map_err(|err| {
            let is_socket = std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
            if is_socket { Error::new(ErrorKind::InvalidInput, "it is a socket, not a file") } else { err }
        })?;
        let kind = file.metadata()?.file_type();
        if kind.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok(NamedFile { file, is_pipe: kind.is_fifo(), has_begun: false })
    }
}

impl Read for NamedFile {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let until = Instant::now() + PIPE_WAIT;
        loop {
            match self.file.read(buffer) {
                Ok(0) if self.is_pipe && !self.has_begun && !buffer.is_empty() => {
                    return Err(Error::new(ErrorKind::InvalidInput, "it is a pipe without a writer"));
                }
                Err(err) if err.kind() == ErrorKind::WouldBlock && Instant::now() > until => {
                    let what = format!("nothing came through this pipe for {} s", PIPE_WAIT.as_secs());
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
                // It has a writer, who may also end without a word.
                Err(err) if err.kind() == ErrorKind::WouldBlock => {
                    self.has_begun = true;
                    std::thread::sleep(PIPE_LOOK);
                }
                done => {
                    self.has_begun |= done.is_ok();
                    return done;
                }
            }
        }
    }
}

/// Opens a regular file. Nothing else is waited for or read.
///
/// Errors: those of the system; `IsADirectory`; `InvalidInput` for a pipe, a device or a socket.
pub fn open_regular(path: &Path) -> Result<File> {
    let named = NamedFile::open_any(path)?;
    if named.file.metadata()?.is_file() {
        Ok(named.file)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

/// Opens a folder, to lock it or to make the names in it durable. Nothing else is waited for.
///
/// Errors: those of the system; `NotADirectory`.
pub fn open_folder(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)?;
    if file.metadata()?.is_dir() { Ok(file) } else { Err(ErrorKind::NotADirectory.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn what_is_no_file_is_named_and_never_waited_for() {
        let folder = std::env::temp_dir().join(format!("plimsoll-named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        std::fs::write(at("file"), "12345").unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let _listener = UnixListener::bind(at("socket")).unwrap();
        let read = |path: &Path| {
            let mut text = String::new();
            let read = NamedFile::open(path).and_then(|mut file| file.read_to_string(&mut text));
            read.map(|_| text).map_err(|err| (err.kind(), err.to_string()))
        };
        let refused = |path: &Path, kind: ErrorKind, words: &str| {
            let (is, said) = read(path).unwrap_err();
            assert!(is == kind && said.contains(words), "{}: {is} {said}", path.display());
        };
        assert_eq!(read(&at("file")), Ok("12345".into()));
        assert_eq!(read(Path::new("/dev/null")), Ok(String::new()));
        refused(&folder, ErrorKind::IsADirectory, "directory");
        assert!(open_folder(&folder).is_ok());
        for no_folder in ["file", "pipe"] {
            assert_eq!(
                open_folder(&at(no_folder)).map_err(|err| err.kind()).err(),
                Some(ErrorKind::NotADirectory)
            );
        }
        refused(&at("none"), ErrorKind::NotFound, "No such file");
        refused(&at("pipe"), ErrorKind::InvalidInput, "a pipe without a writer");
        refused(&at("socket"), ErrorKind::InvalidInput, "a socket");
        refused(Path::new("/dev/zero"), ErrorKind::InvalidInput, "a device");
        let regular = |path: &Path| open_regular(path).map(drop).map_err(|err| err.kind());
        assert_eq!(regular(&at("file")), Ok(()));
        assert_eq!(regular(&folder), Err(ErrorKind::IsADirectory));
        for path in [at("pipe"), at("socket"), "/dev/null".into(), "/dev/zero".into()] {
            assert_eq!(regular(&path), Err(ErrorKind::InvalidInput), "{}", path.display());
        }
        // As a shell's `<(...)`: the writer is there, and takes its time.
        let keep = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(at("pipe")).unwrap();
        for text in ["late", ""] {
            let mut writer = OpenOptions::new().write(true).open(at("pipe")).unwrap();
            let path = at("pipe");
            let writing = std::thread::spawn(move || {
                std::thread::sleep(10 * PIPE_LOOK);
                writer.write_all(text.as_bytes()).unwrap();
            });
            assert_eq!(read(&path), Ok(text.to_string()));
            writing.join().unwrap();
        }
        drop(keep);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
