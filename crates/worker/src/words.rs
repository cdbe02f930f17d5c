//! Output of workers: a log of lines with step and worker name, and the lines of the first step for the terminal.

use plimsoll_base::visible;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest log of a run.
pub const WORDS_BYTES_MAX: u64 = 16 << 20;
/// A link put in place of the log since the start is not followed.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
/// Bytes kept until there is a file.
const WAITING_BYTES_MAX: u64 = 1 << 20;
/// Longer lines are cut into pieces of this length.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Lines of the first step that a terminal shows.
const SHOWN_LINES_MAX: usize = 20;

/// Where lines go; clones share it.
#[derive(Clone, Debug)]
pub struct Words(Arc<Mutex<Heard>>);

#[derive(Debug)]
struct Heard {
    place: Place,
    /// Bytes written, or waiting.
    bytes: u64,
    when: When,
    /// Name of the log file.
    file: String,
    shown: Vec<String>,
    /// Lines of the first step beyond those shown.
    more: usize,
}

#[derive(Debug)]
enum Place {
    Waiting(Vec<u8>),
    /// The file is created with the first line.
    Path(PathBuf),
    File(File),
    Stderr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Start,
    Evaluation,
    Step(u32),
}

/// The last bytes of a worker that are not a whole line yet.
#[derive(Debug, Default)]
pub(crate) struct Unfinished(Vec<u8>);

impl Words {
    /// Keeps lines until `write_to`.
    pub fn of_run() -> Words {
        Words::to(Place::Waiting(Vec::new()))
    }

    /// Prints lines as they arrive.
    pub fn to_stderr() -> Words {
        Words::to(Place::Stderr)
    }

    fn to(place: Place) -> Words {
        let heard =
            Heard { place, bytes: 0, when: When::Start, file: String::new(), shown: Vec::new(), more: 0 };
        Words(Arc::new(Mutex::new(heard)))
    }

    /// Appends to the file at `path` from now on; it is created with the first line.
    pub fn write_to(&self, path: &Path) {
        let mut heard = self.heard();
        let waiting = std::mem::replace(&mut heard.place, Place::Path(path.to_path_buf()));
        heard.file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        heard.bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        if let Place::Waiting(lines) = waiting
            && !lines.is_empty()
        {
            heard.write(&lines);
        }
    }

    /// Sets what the next lines belong to: a step, or with 0 an evaluation.
    pub fn begin(&self, step: u32) {
        self.heard().when = if step == 0 { When::Evaluation } else { When::Step(step) };
    }

    /// Takes the lines printed up to the end of step 1 that were not taken yet.
    pub fn first_lines(&self) -> Vec<String> {
        let mut heard = self.heard();
        let mut lines = std::mem::take(&mut heard.shown);
        if let more @ 1.. = std::mem::take(&mut heard.more) {
            lines.push(format!("and {more} more lines in {}", heard.file));
        }
        lines
    }

    /// Records output of worker `who`.
    pub(crate) fn hear(&self, who: &str, unfinished: &mut Unfinished, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            unfinished.0.extend_from_slice(piece);
            if piece.ends_with(b"\n") || unfinished.0.len() >= LINE_BYTES_MAX {
                self.end_line(who, unfinished);
            }
        }
    }

    /// Records what an ended worker left without a line feed.
    pub(crate) fn end_line(&self, who: &str, unfinished: &mut Unfinished) {
        let bytes = std::mem::take(&mut unfinished.0);
        for piece in bytes.chunks(LINE_BYTES_MAX) {
            let text = String::from_utf8_lossy(piece);
            let text = text.trim_end_matches(['\n', '\r']);
            if !text.trim().is_empty() {
                self.heard().line(who, text);
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    fn line(&mut self, who: &str, text: &str) {
        // It may contain a policy's response: the log and the terminal get no escape sequences.
        let shown = format!("{who}: {}", visible(text));
        if matches!(self.when, When::Start | When::Step(1)) && !matches!(self.place, Place::Stderr) {
            if self.shown.len() < SHOWN_LINES_MAX { self.shown.push(shown.clone()) } else { self.more += 1 }
        }
        let when = match self.when {
            When::Start => "start".to_string(),
            When::Evaluation => "evaluation".to_string(),
            When::Step(step) => format!("step {step}"),
        };
        match self.place {
            Place::Stderr => self.write(format!("{shown}\n").as_bytes()),
            _ => self.write(format!("{when} {shown}\n").as_bytes()),
        }
    }

    /// Writes to the log. A full log or disk does not end a run.
    fn write(&mut self, lines: &[u8]) {
        if let Place::Path(path) = &self.place {
            let Ok(file) = OpenOptions::new().create(true).append(true).custom_flags(NO_LINK).open(path)
            else {
                return;
            };
            self.place = Place::File(file);
        }
        let room = match &self.place {
            Place::Waiting(_) => WAITING_BYTES_MAX,
            Place::Stderr => u64::MAX,
            _ => WORDS_BYTES_MAX,
        };
        if self.bytes + lines.len() as u64 <= room {
            self.bytes += lines.len() as u64;
            let _ = match &mut self.place {
                Place::Waiting(waiting) => waiting.write_all(lines),
                Place::File(file) => file.write_all(lines),
                Place::Stderr => std::io::stderr().write_all(lines),
                Place::Path(_) => Ok(()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_step_and_the_first_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rewards.log");
        let (words, mut one, mut other) = (Words::of_run(), Unfinished::default(), Unfinished::default());
        words.hear("f", &mut one, b"loads\n\n");
        words.begin(0);
        words.hear("f", &mut one, b"evaluates\n");
        words.write_to(&path);
        words.begin(1);
        words.hear("f", &mut one, b"half of");
        words.hear("g", &mut other, b"\xff \x1b[2J\xc2\x9b whole\r\n");
        words.hear("f", &mut one, b" a line\n");
        let many = "x\n".repeat(SHOWN_LINES_MAX);
        words.hear("f", &mut one, many.as_bytes());
        let shown = words.first_lines();
        assert_eq!(&shown[..3], ["f: loads", "g: \u{fffd} \\u{1b}[2J\\u{9b} whole", "f: half of a line"]);
        assert_eq!((shown.len(), shown[20].as_str()), (21, "and 3 more lines in rewards.log"));
        words.begin(2);
        words.hear("f", &mut one, &[b'y'; LINE_BYTES_MAX + 1]);
        words.end_line("f", &mut one);
        assert!(words.first_lines().is_empty());
        let text = std::fs::read_to_string(&path).unwrap();
        let start = "start f: loads\nevaluation f: evaluates\nstep 1 g: \u{fffd} \\u{1b}[2J\\u{9b} whole\nstep 1 f: half of a line\nstep 1 f: x\n";
        assert!(text.starts_with(start), "{text:.200}");
        assert!(text.lines().skip(4 + SHOWN_LINES_MAX).all(|line| line.starts_with("step 2 f: y")));
    }

    #[test]
    fn a_log_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rewards.log");
        let (words, mut line) = (Words::of_run(), Unfinished::default());
        words.write_to(&path);
        words.begin(2);
        let chunk = "z".repeat(1000) + "\n";
        for _ in 0..WORDS_BYTES_MAX / 500 {
            words.hear("f", &mut line, chunk.as_bytes());
        }
        let length = std::fs::metadata(&path).unwrap().len();
        assert!((WORDS_BYTES_MAX - 2000..=WORDS_BYTES_MAX).contains(&length), "{length}");
        assert!(words.first_lines().is_empty());
    }
}
