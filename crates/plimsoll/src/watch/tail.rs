//! Follows an event log by byte offset. It owns the position read up to, and checks that the log before is unchanged.
//!
//! A line is passed on once its newline is there, so a torn last line waits for its end. A log that became shorter, was
//! replaced, or has other bytes where reading stopped is reread from the beginning. Memory is one buffer.

use plimsoll_base::open_regular;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Longest line read; an event has a few kilobytes. Also the size of one read.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes before the offset compared to detect a log that was cut and grew again.
const RECENT_BYTES: usize = 128;

/// Change of the file since the last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Gone,
    /// Replaced or cut: reading starts again at the first byte.
    Restarted,
    Grown,
    Same,
}

/// A log and the position up to which it was read.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// Device and inode, length and modification time at the last look.
    seen: Option<(u64, u64, u64, Option<SystemTime>)>,
    /// End of the last line passed on.
    pub offset: u64,
    /// The bytes before `offset`.
    recent: Vec<u8>,
    /// Inside a line that is too long.
    skipping: bool,
    /// Lines skipped because they are longer than `LINE_BYTES_MAX`.
    pub too_long: u64,
    buffer: Vec<u8>,
}

impl Tail {
    /// Reads nothing before the first look.
    pub fn new(path: &Path) -> Tail {
        Tail {
            path: path.to_path_buf(),
            file: None,
            seen: None,
            offset: 0,
            recent: Vec::with_capacity(RECENT_BYTES),
            skipping: false,
            too_long: 0,
            buffer: Vec::new(),
        }
    }

    /// Continues at `offset`, the start of a line from an earlier read.
    pub fn start_at(&mut self, offset: u64) {
        self.offset = offset;
        self.recent.clear();
    }

    pub fn length(&self) -> u64 {
        self.seen.map_or(0, |(_, _, length, _)| length)
    }

    pub fn look(&mut self) -> Look {
        // Not through a link, and never a pipe: opening one would block until there is a writer.
        let Some(meta) = fs::symlink_metadata(&self.path).ok().filter(|meta| meta.is_file()) else {
            self.forget();
            return Look::Gone;
        };
        let now = (meta.dev(), meta.ino(), meta.len(), meta.modified().ok());
        let was = self.seen.replace(now);
        if was == Some(now) {
            return if self.has_more() { Look::Grown } else { Look::Same };
        }
        let replaced = was.is_none_or(|was| (was.0, was.1) != (now.0, now.1));
        if replaced || now.2 < self.offset || self.file.is_none() || !self.still_stands() {
            self.forget();
            let Ok(file) = open_regular(&self.path) else { return Look::Gone };
            self.file = Some(file);
            self.seen = Some(now);
            return Look::Restarted;
        }
        if self.has_more() { Look::Grown } else { Look::Same }
    }

    /// Passes on whole lines with offsets, up to `budget_bytes` or one buffer more. Returns the bytes; 0: a torn line,
    /// or a log that was cut since the look, which the next look says.
    pub fn read(&mut self, budget_bytes: u64, mut line: impl FnMut(u64, &[u8])) -> io::Result<u64> {
        let begun = self.offset;
        self.buffer.resize(RECENT_BYTES + LINE_BYTES_MAX, 0);
        while self.offset - begun < budget_bytes {
            let Some(file) = &mut self.file else { break };
            let recent = self.recent.len();
            file.seek(SeekFrom::Start(self.offset - recent as u64))?;
            let filled = fill(file, &mut self.buffer[..recent + LINE_BYTES_MAX])?;
            if filled < recent || self.buffer[..recent] != self.recent {
                self.forget();
                return Ok(0);
            }
            let bytes = &self.buffer[recent..filled];
            let Some(end) = bytes.iter().rposition(|&b| b == b'\n').map(|at| at + 1) else {
                if bytes.len() < LINE_BYTES_MAX {
                    break;
                }
                self.too_long += u64::from(!self.skipping);
                self.skipping = true;
                self.offset += bytes.len() as u64;
                remember(&mut self.recent, bytes);
                continue;
            };
            let mut start = self.offset;
            for part in bytes[..end].split_inclusive(|&b| b == b'\n') {
                if !std::mem::take(&mut self.skipping) {
                    line(start, &part[..part.len() - 1]);
                }
                start += part.len() as u64;
            }
            self.offset = start;
            remember(&mut self.recent, &bytes[..end]);
        }
        // Idle logs hold no buffer.
        self.buffer = Vec::new();
        Ok(self.offset - begun)
    }

    fn has_more(&self) -> bool {
        self.length() > self.offset
    }

    fn still_stands(&mut self) -> bool {
        let Some(file) = &mut self.file else { return false };
        let mut now = vec![0; self.recent.len()];
        let at = self.offset - self.recent.len() as u64;
        file.seek(SeekFrom::Start(at)).is_ok()
            && fill(file, &mut now).is_ok_and(|filled| filled == now.len())
            && now == self.recent
    }

    fn forget(&mut self) {
        *self = Tail::new(&self.path);
    }
}

/// Reads until `buffer` is full or the file ends.
pub fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(filled)
}

fn remember(recent: &mut Vec<u8>, bytes: &[u8]) {
    recent.extend_from_slice(&bytes[bytes.len().saturating_sub(RECENT_BYTES)..]);
    let old = recent.len().saturating_sub(RECENT_BYTES);
    recent.drain(..old);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    struct Log {
        _folder: tempfile::TempDir,
        path: PathBuf,
        tail: Tail,
    }

    impl Log {
        fn new(text: &str) -> Log {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("events.jsonl");
            fs::write(&path, text).unwrap();
            Log { tail: Tail::new(&path), path, _folder: folder }
        }

        fn append(&self, text: &str) {
            OpenOptions::new().append(true).open(&self.path).unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn lines(&mut self, expect: Look) -> Vec<String> {
            assert_eq!(self.tail.look(), expect);
            let mut lines = Vec::new();
            let mut keep = |_: u64, line: &[u8]| lines.push(String::from_utf8(line.to_vec()).unwrap());
            self.tail.read(u64::MAX, &mut keep).unwrap();
            lines
        }
    }

    #[test]
    fn lines_are_handed_on_once_and_a_torn_one_waits_for_its_end() {
        let mut log = Log::new("a\nb\nhal");
        assert_eq!(log.lines(Look::Restarted), ["a", "b"]);
        assert_eq!(log.lines(Look::Grown), [""; 0]);
        log.append("f\n");
        assert_eq!(log.lines(Look::Grown), ["half"]);
        assert_eq!(log.lines(Look::Same), [""; 0]);
        log.append("\n");
        assert_eq!(log.lines(Look::Grown), [""]);
    }

    #[test]
    fn a_log_that_was_cut_is_read_again_even_if_it_grew_past_the_old_end() {
        let mut log = Log::new("1 old\n2 old\n");
        assert_eq!(log.lines(Look::Restarted), ["1 old", "2 old"]);
        fs::write(&log.path, "1 old\n").unwrap();
        assert_eq!(log.lines(Look::Restarted), ["1 old"]);
        log.append("2 old\n3 old\n");
        assert_eq!(log.lines(Look::Grown), ["2 old", "3 old"]);
        fs::write(&log.path, "1 old\n2 new\n3 new\n4 new\n5 new\n").unwrap();
        assert_eq!(log.lines(Look::Restarted), ["1 old", "2 new", "3 new", "4 new", "5 new"]);
    }

    #[test]
    fn a_log_that_is_cut_between_the_look_and_the_reading_is_read_again() {
        let mut log = Log::new("1 old\n2 old\n3 torn");
        assert_eq!(log.lines(Look::Restarted), ["1 old", "2 old"]);
        assert_eq!(log.tail.look(), Look::Grown);
        fs::write(&log.path, "1 old\n2 new\n3 new\n4 new\n").unwrap();
        let read = log.tail.read(u64::MAX, |_, line| panic!("{line:?} is of another log")).unwrap();
        assert_eq!(read, 0);
        assert_eq!(log.lines(Look::Restarted), ["1 old", "2 new", "3 new", "4 new"]);
    }

    #[test]
    fn a_log_may_vanish_come_back_and_be_replaced() {
        let mut log = Log::new("a\n");
        assert_eq!(log.lines(Look::Restarted), ["a"]);
        fs::remove_file(&log.path).unwrap();
        assert_eq!(log.lines(Look::Gone), [""; 0]);
        fs::write(&log.path, "b\n").unwrap();
        assert_eq!(log.lines(Look::Restarted), ["b"]);
        let other = log.path.with_file_name("other");
        fs::write(&other, "b\nc\n").unwrap();
        fs::rename(&other, &log.path).unwrap();
        assert_eq!(log.lines(Look::Restarted), ["b", "c"]);
        fs::remove_file(&log.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &log.path).unwrap();
        assert_eq!(log.lines(Look::Gone), [""; 0]);
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_in_bounded_memory() {
        let long = "x".repeat(3 * LINE_BYTES_MAX + 7);
        let mut log = Log::new(&format!("a\n{long}\nb\n"));
        assert_eq!(log.lines(Look::Restarted), ["a", "b"]);
        assert_eq!(log.tail.too_long, 1);
        log.append("c\n");
        assert_eq!(log.lines(Look::Grown), ["c"]);
    }

    #[test]
    fn the_budget_bounds_one_reading_and_offsets_are_those_of_the_lines() {
        let text: String = (0..400_000).map(|i| format!("{i:09}\n")).collect();
        let mut log = Log::new(&text);
        assert_eq!(log.tail.look(), Look::Restarted);
        let (mut next, mut readings) = (0u64, 0);
        loop {
            let check = |offset: u64, line: &[u8]| {
                assert_eq!(offset, next * 10);
                assert_eq!(std::str::from_utf8(line).unwrap().parse::<u64>().unwrap(), next);
                next += 1;
            };
            if log.tail.read(1 << 20, check).unwrap() == 0 {
                break;
            }
            readings += 1;
        }
        assert_eq!(next, 400_000);
        assert!(readings >= 2, "{readings}");
    }
}
