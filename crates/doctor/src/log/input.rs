//! Where logs come from: files, folders (Ray session folders among them), standard input; plain, gzipped or UTF-16.
//!
//! It does not follow links in a folder and refuses files that are no logs (weights, other archives).

use flate2::read::MultiGzDecoder;
use plimsoll_base::{Error, Result};
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// Files read from folders; a Ray session of a week has some thousands.
const FILES_MAX: usize = 10_000;
/// Nesting of folders.
const DEPTH_MAX: usize = 8;
/// Bytes read to detect the type of a stream, or converted at once.
const BLOCK_BYTES: usize = 4096;

pub enum Input {
    Path(PathBuf),
    Stream(String, Box<dyn Read>),
}

pub struct Source {
    pub name: String,
    /// UTF-8, except where the file is broken.
    pub read: Box<dyn Read>,
    /// Why nothing of it is read.
    pub refused: Option<String>,
}

/// Returns the streams of `inputs`; a folder gives the files in it, by name.
///
/// Errors: `log-missing`, `log-unreadable`.
pub fn expand(inputs: Vec<Input>) -> Result<impl Iterator<Item = Source>> {
    let mut sources: Vec<Box<dyn FnOnce() -> Source>> = Vec::new();
    for input in inputs {
        match input {
            Input::Stream(name, read) => sources.push(Box::new(move || Source::new(name, Ok(read)))),
            Input::Path(path) if path.is_dir() => {
                let mut files = Vec::new();
                walk(&path, 0, &mut files)?;
                files.sort();
                sources.extend(
                    files.into_iter().map(|file| Box::new(|| open(file)) as Box<dyn FnOnce() -> Source>),
                );
            }
            Input::Path(path) => {
                // A named file must exist; a file of a folder may go away while the folder is read.
                File::open(&path).map_err(|err| not_opened(&path, &err))?;
                sources.push(Box::new(|| open(path)));
            }
        }
    }
    Ok(sources.into_iter().map(|source| source()))
}

fn not_opened(path: &Path, err: &io::Error) -> Error {
    match err.kind() {
        io::ErrorKind::NotFound => {
            Error::usage("log-missing", format!("{}: there is no such file", path.display()))
                .hint("name log files or folders; `-` reads standard input")
        }
        _ => Error::io("log-unreadable", path, err).hint("check its permissions"),
    }
}

fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(err) if depth == 0 => return Err(not_opened(folder, &err)),
        Err(_) => return Ok(()),
    };
    for entry in entries.flatten() {
        let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
        if kind.is_dir() && depth < DEPTH_MAX {
            walk(&path, depth + 1, files)?;
        } else if kind.is_file() && is_log(&path) && files.len() < FILES_MAX {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns whether a file of a folder may be a log, by its name.
fn is_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.rsplit_once('.').is_none_or(|(_, end)| {
        ["log", "out", "err", "txt", "stderr", "stdout", "old", "dmesg", "output"].contains(&end)
            || end.chars().all(|c| c.is_ascii_digit())
            || name.contains(".log")
    })
}

fn open(path: PathBuf) -> Source {
    let name = path.display().to_string();
    let file = File::open(&path).map(|file| Box::new(file) as Box<dyn Read>);
    Source::new(name, file)
}

impl Source {
    fn new(name: String, read: io::Result<Box<dyn Read>>) -> Source {
        let nothing = |name, why: String| Source { name, read: Box::new(io::empty()), refused: Some(why) };
        let (head, read) = match read.and_then(|mut read| Ok((block(&mut read)?, read))) {
            Ok(opened) => opened,
            Err(err) => return nothing(name, err.to_string()),
        };
        match head.get(..4).unwrap_or(&head) {
            [0x1f, 0x8b, ..] => {
                let packed = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(read));
                let mut unpacked = MultiGzDecoder::new(packed);
                match block(&mut unpacked) {
                    Ok(head) => Source { name, read: text_of(head, Box::new(unpacked)), refused: None },
                    Err(err) => nothing(name, format!("gzip: {err}")),
                }
            }
            [0x28, 0xb5, 0x2f, 0xfd] => nothing(name, "compressed with zstd: unpack it first".into()),
            [0xfd, b'7', b'z', b'X'] => nothing(name, "compressed with xz: unpack it first".into()),
            [b'B', b'Z', b'h', _] => nothing(name, "compressed with bzip2: unpack it first".into()),
            [b'P', b'K', 3, 4] => nothing(name, "a zip archive: unpack it first".into()),
            _ => Source { name, read: text_of(head, read), refused: None },
        }
    }
}

/// Reads the next `BLOCK_BYTES` of a stream; fewer only at its end.
fn block(read: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    read.take(BLOCK_BYTES as u64).read_to_end(&mut block)?;
    Ok(block)
}

/// Returns the stream as UTF-8, `head` first.
fn text_of(head: Vec<u8>, read: Box<dyn Read>) -> Box<dyn Read> {
    let order = utf16(&head);
    let whole = Cursor::new(head).chain(read);
    match order {
        Some(little) => {
            let read = BufReader::with_capacity(1 << 16, whole);
            Box::new(Utf16 { read, little, high: None, pending: Vec::new() })
        }
        None => Box::new(whole),
    }
}

/// Returns whether the text is little-endian UTF-16, by its mark or by zeros in every other byte; `None` if it is not
/// UTF-16.
fn utf16(head: &[u8]) -> Option<bool> {
    match head {
        [0xff, 0xfe, ..] => return Some(true),
        [0xfe, 0xff, ..] => return Some(false),
        _ => {}
    }
    let zeros = |odd: usize| head.iter().skip(odd).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd, pairs) = (zeros(0), zeros(1), head.len() / 2);
    let most = |count: usize| pairs >= 8 && count * 10 >= pairs * 9;
    match (most(even), most(odd)) {
        (false, true) => Some(true),
        (true, false) => Some(false),
        _ => None,
    }
}

/// Converts UTF-16 to UTF-8, unit by unit.
struct Utf16<R> {
    read: R,
    little: bool,
    high: Option<u16>,
    pending: Vec<u8>,
}

impl<R: Read> Utf16<R> {
    fn push(&mut self, unit: u16) {
        let mut put = |c: char| self.pending.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..=0xdfff) => {
                put(char::decode_utf16([high, unit]).next().and_then(|c| c.ok()).unwrap_or('\u{fffd}'));
            }
            (high, _) => {
                if high.is_some() {
                    put('\u{fffd}');
                }
                match unit {
                    0xfeff => {}
                    0xd800..=0xdbff => self.high = Some(unit),
                    _ => put(char::from_u32(u32::from(unit)).unwrap_or('\u{fffd}')),
                }
            }
        }
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.pending.is_empty() {
            let chunk = block(&mut self.read)?;
            if chunk.is_empty() {
                return Ok(0);
            }
            for pair in chunk.chunks_exact(2) {
                let pair = [pair[0], pair[1]];
                self.push(if self.little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) });
            }
        }
        let length = buffer.len().min(self.pending.len());
        buffer[..length].copy_from_slice(&self.pending[..length]);
        self.pending.drain(..length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: Vec<u8>) -> String {
        let mut text = Vec::new();
        let mut source = Source::new("x".into(), Ok(Box::new(io::Cursor::new(bytes))));
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
