//! Opens logs: files, folders (including Ray session folders), pipes, standard input; plain, gzipped or UTF-16.
//!
//! Follows no links in a folder. Refuses files that are not logs (weights, other archives), devices and kernel files.

use super::limits::Limits;
use super::unpack::Unpacked;
use super::utf16::{block, text_of};
use super::waiting::{Waiting, pipe};
use plimsoll_base::{Bytes, Error, Result, shown_path};
use std::fs::{self, File, FileType};
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most files read from folders; a Ray session of a week has some thousands.
const FILES_MAX: usize = 10_000;
/// Deepest nesting of folders.
const DEPTH_MAX: usize = 8;
/// Most entries of folders to list.
const ENTRIES_MAX: usize = 1_000_000;
/// Kernel file systems, whose files have no end or no log: procfs, sysfs, debugfs, tracefs.
const OF_THE_KERNEL: [u64; 4] = [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163];

pub enum Input {
    Path(PathBuf),
    Stdin,
    Stream(String, Box<dyn Read>),
}

pub struct Source {
    pub name: String,
    /// UTF-8, unless the file is broken.
    pub read: Box<dyn Read>,
    /// Why it is not read at all.
    pub refused: Option<String>,
    /// Which part of it is not read.
    pub cut: Option<String>,
    /// True if its end is unknown.
    pub is_endless: bool,
}

/// Returns the streams of `inputs`; a folder gives the files in it, by name.
///
/// Errors: `log-missing`, `log-unreadable`.
pub fn expand(inputs: Vec<Input>, limits: Limits) -> Result<impl ExactSizeIterator<Item = Source>> {
    let mut sources: Vec<Box<dyn FnOnce() -> Source>> = Vec::new();
    for input in inputs {
        match input {
            Input::Stream(name, read) => sources.push(Box::new(move || Source::new(name, Ok(read), true))),
            Input::Stdin => sources.push(Box::new(move || Source::new("-".into(), stdin(limits), true))),
            Input::Path(path) => {
                let metadata = fs::metadata(&path).map_err(|err| not_opened(&path, &err))?;
                if let Some(why) = refused(&path, metadata.file_type()) {
                    return Err(Error::usage("log-unreadable", format!("{}: {why}", path.display())).hint(
                        "name log files or folders; the kernel's messages are `dmesg -T | plimsoll doctor --log -`",
                    ));
                }
                if metadata.is_dir() {
                    let mut walk = Walk { files: Vec::new(), entries: 0 };
                    walk.folder(&path, 0)?;
                    walk.files.sort();
                    walk.files.into_iter().for_each(|file| push(file, limits, &mut sources));
                } else {
                    if metadata.is_file() {
                        // A named file must exist; a file in a folder may vanish while the folder is read.
                        File::open(&path).map_err(|err| not_opened(&path, &err))?;
                    }
                    push(path, limits, &mut sources);
                }
            }
        }
    }
    Ok(sources.into_iter().map(|source| source()))
}

/// Adds a file, or its beginning and end if it is larger than the limit.
fn push(path: PathBuf, limits: Limits, sources: &mut Vec<Box<dyn FnOnce() -> Source>>) {
    let found = fs::metadata(&path).ok().filter(fs::Metadata::is_file).map_or(0, |found| found.len());
    let is_packed = path.extension().is_some_and(|end| end == "gz");
    if found <= limits.bytes || is_packed {
        sources.push(Box::new(move || open(path, limits)));
        return;
    }
    let (head, tail) = (limits.bytes - limits.tail_bytes(), limits.tail_bytes());
    let (name, whole) = (path.display().to_string(), path.clone());
    let middle = Bytes(found - head - tail);
    sources.push(Box::new(move || {
        let cut = format!("{} in the middle were not read (--bytes-max)", middle);
        let mut source = Source::new(name, part(&whole, 0, head), false);
        source.cut = Some(cut);
        source
    }));
    let name = format!("{}, its last {}", path.display(), Bytes(tail));
    sources.push(Box::new(move || Source::new(name, part(&path, found - tail, tail), false)));
}

/// Reads `bytes` of a file from `begin` on.
fn part(path: &Path, begin: u64, bytes: u64) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(begin))?;
    Ok(Box::new(file.take(bytes)))
}

/// Returns why a file or folder is not read: it has no end, or contains no log.
fn refused(path: &Path, kind: FileType) -> Option<&'static str> {
    if kind.is_char_device() || kind.is_block_device() {
        return Some("a device, not a log");
    }
    if kind.is_socket() {
        return Some("a socket, not a log");
    }
    let of_the_kernel = !kind.is_fifo() && is_of_the_kernel(path);
    of_the_kernel.then_some("part of a file system of the kernel, not a log")
}

fn is_of_the_kernel(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| OF_THE_KERNEL.contains(&(found.f_type as u64)))
}

fn not_opened(path: &Path, err: &io::Error) -> Error {
    match err.kind() {
        io::ErrorKind::NotFound => {
            Error::usage("log-missing", format!("{}: there is no such file", shown_path(path)))
                .near(path)
                .hint("name log files or folders; `-` reads standard input")
        }
        _ => Error::io("log-unreadable", path, err).hint("check its permissions"),
    }
}

struct Walk {
    files: Vec<PathBuf>,
    entries: usize,
}

impl Walk {
    fn folder(&mut self, folder: &Path, depth: usize) -> Result<()> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(err) if depth == 0 => return Err(not_opened(folder, &err)),
            Err(_) => return Ok(()),
        };
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
        for entry in entries.flatten() {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                break;
            }
            let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
            if kind.is_dir() && depth < DEPTH_MAX {
                let is_mount = device(&path) != device(folder);
                if !(is_mount && is_of_the_kernel(&path)) {
                    self.folder(&path, depth + 1)?;
                }
            } else if kind.is_file() && is_log(&path) && self.files.len() < FILES_MAX {
                self.files.push(path);
            }
        }
        Ok(())
    }
}

/// Returns true if a file's name may be that of a log.
fn is_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').is_none_or(|(_, end)| {
        ["log", "out", "err", "txt", "stderr", "stdout", "old", "dmesg", "output"].contains(&end)
            || end.chars().all(|c| c.is_ascii_digit())
            || name.contains(".log")
    })
}

fn open(path: PathBuf, limits: Limits) -> Source {
    let name = path.display().to_string();
    let is_pipe = fs::metadata(&path).is_ok_and(|found| found.file_type().is_fifo());
    Source::new(name, stream(&path, limits), is_pipe)
}

/// Reads a file up to its current length: one that is still written to may grow faster than it is read.
fn stream(path: &Path, limits: Limits) -> io::Result<Box<dyn Read>> {
    if fs::metadata(path)?.file_type().is_fifo() {
        return Ok(Box::new(pipe(path, limits.pauses)?));
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(Box::new(file.take(length)))
}

/// Opens standard input without a buffer, which would hide input from `poll`.
fn stdin(limits: Limits) -> io::Result<Box<dyn Read>> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(Box::new(Waiting::new(file, limits.pauses)))
}

impl Source {
    fn new(name: String, read: io::Result<Box<dyn Read>>, is_endless: bool) -> Source {
        let text = |name, read| Source { name, read, refused: None, cut: None, is_endless };
        let nothing = |name, why: String| {
            let read = Box::new(io::empty());
            Source { name, read, refused: Some(why), cut: None, is_endless }
        };
        let (head, read) = match read.and_then(|mut read| Ok((block(&mut read)?, read))) {
            Ok(opened) => opened,
            Err(err) => return nothing(name, err.to_string()),
        };
        match head.get(..4).unwrap_or(&head) {
            [0x1f, 0x8b, ..] => {
                let mut unpacked = Unpacked::new(Cursor::new(head).chain(read));
                match block(&mut unpacked) {
                    Ok(head) => text(name, text_of(head, Box::new(unpacked))),
                    Err(err) => nothing(name, format!("gzip: {err}")),
                }
            }
            [0x28, 0xb5, 0x2f, 0xfd] => nothing(name, "compressed with zstd: unpack it first".into()),
            [0xfd, b'7', b'z', b'X'] => nothing(name, "compressed with xz: unpack it first".into()),
            [b'B', b'Z', b'h', _] => nothing(name, "compressed with bzip2: unpack it first".into()),
            [b'P', b'K', 3, 4] => nothing(name, "a zip archive: unpack it first".into()),
            _ => text(name, text_of(head, read)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: Vec<u8>) -> String {
        let mut text = Vec::new();
        let mut source = Source::new("x".into(), Ok(Box::new(io::Cursor::new(bytes))), false);
        assert_eq!(source.refused, None);
        source.read.read_to_end(&mut text).expect("memory can be read");
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn utf16_of_both_orders_with_and_without_a_mark() {
        let words = "CUDA out of memory \u{1f600}\r\nnext line\n";
        let units: Vec<u16> = words.encode_utf16().collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        assert_eq!(read(little.clone()), words);
        assert_eq!(read(big.clone()), words);
        assert_eq!(read([&[0xff, 0xfe], &little[..]].concat()), words);
        assert_eq!(read([&[0xfe, 0xff], &big[..]].concat()), words);
    }

    #[test]
    fn which_files_of_a_folder_are_logs() {
        for (name, expect) in [
            ("worker-01.out", true),
            ("raylet.err", true),
            ("train.log.1.gz", true),
            ("messages", true),
            ("model.safetensors", false),
            ("config.json", false),
            ("a.py", false),
        ] {
            assert_eq!(is_log(Path::new(name)), expect, "{name}");
        }
    }
}
