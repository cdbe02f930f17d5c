//! The scanner's state for a file.

use super::collective::Collectives;
use super::diagnosis::Evidence;
use super::progress::Progress;
use super::readings::Readings;
use super::signatures::{MARKS, Mark, Signatures};
use super::time::Stamp;
use memchr::memchr_iter;

/// The rank of a line that only its place at the end of a log makes suspicious.
pub const LAST_WORDS: usize = 2;

/// A line of no class that looks like a failure.
#[derive(Clone, Debug)]
pub struct Suspicion {
    /// 0 fault, 1 complaint, `LAST_WORDS`.
    pub rank: usize,
    pub file: usize,
    /// Steps of the file counted before it.
    pub steps: u64,
    pub stamp: Option<Stamp>,
    /// True if its traceback follows from another exception.
    pub is_chained: bool,
    /// True if it ended a thread but not the program.
    pub is_in_thread: bool,
    /// Shape of its line, or 0.
    pub shape: u64,
    pub at: Evidence,
    /// Its message and the lines after it, bounded.
    pub near: String,
    /// Bytes of the message in `near`.
    pub message_bytes: usize,
    /// The place in its traceback where it was raised.
    pub place: Option<String>,
}

/// Most bytes kept of the lines around a suspicious one.
const NEAR_BYTES: usize = 4 << 10;

impl Suspicion {
    /// Returns true for the head of a traceback, which means nothing by itself.
    pub fn is_head(&self) -> bool {
        self.near.starts_with("Traceback (most recent call last)")
    }

    /// Returns true for the traceback of a process ended by a signal.
    pub fn is_farewell(&self) -> bool {
        self.is_head() && self.near.lines().any(|line| super::text::message(line).trim() == "SystemExit")
    }

    /// Replaces itself by the exception that its traceback raises, `down` lines after its head.
    pub fn raising(mut self, down: u64, raised: &str) -> Suspicion {
        self.at.line += down;
        self.at.text = super::text::shown(raised);
        self.place = None;
        self.saying(raised)
    }

    /// Sets its message, with the lines after it.
    pub fn saying(mut self, near: &str) -> Suspicion {
        let end = near.floor_char_boundary(NEAR_BYTES);
        self.near = near[..end].to_string();
        self.message_bytes = self.near.find('\n').unwrap_or(self.near.len());
        self
    }
}

/// A line that is read only if the run does not go on after it.
#[derive(Debug)]
pub struct PutOff {
    /// Its range in the window.
    pub piece: (usize, usize),
    pub line: u64,
    pub steps: u64,
    pub shape: u64,
    pub rules: Vec<usize>,
}

#[derive(Debug)]
pub struct FileState {
    /// Line of the last mark of each kind.
    pub marks: [Option<u64>; MARKS],
    pub mark_counts: [u64; MARKS],
    pub readings: Readings,
    pub progress: Progress,
    pub collectives: Collectives,
    /// Number and time of the last line whose time was queried.
    pub clock: (u64, Option<Stamp>),
    /// Lines of shapes, or of rules, that the run often survived.
    pub put_off: Vec<PutOff>,
    /// Number of them per rule.
    pub waiting: Vec<u64>,
    /// Lines of each rule that the run survived.
    pub survived: Vec<u64>,
    /// The last line of each rule whose lines are only counted, in the window.
    pub last: Vec<Option<PutOff>>,
    pub closed: Vec<usize>,
    /// Suspicions that the run has not survived so far.
    pub suspicions: Vec<Suspicion>,
    /// Number of kept events that the run may survive.
    pub survivable: u64,
    /// Line of the last kept event that ends runs.
    pub cause: Option<u64>,
    /// Matches of each rule; `u64::MAX` once it is closed.
    pub matches: Vec<u64>,
    pub close_looks: Vec<u64>,
    /// The line of each rule's last try.
    pub tried_at: Vec<u64>,
    /// True for each literal with an open rule.
    pub active: Vec<bool>,
    /// False if the log calls all its lines errors.
    pub has_levels: bool,
    /// Newlines before `counted_to`.
    pub lines: u64,
    pub counted_to: usize,
}

impl FileState {
    pub fn new(signatures: &Signatures) -> FileState {
        let rules = signatures.rules.len();
        FileState {
            marks: [None; MARKS],
            mark_counts: [0; MARKS],
            readings: Readings::default(),
            progress: Progress::default(),
            collectives: Collectives::default(),
            clock: (0, None),
            put_off: Vec::new(),
            waiting: vec![0; rules],
            survived: vec![0; rules],
            last: std::iter::repeat_with(|| None).take(rules).collect(),
            closed: Vec::new(),
            suspicions: Vec::new(),
            survivable: 0,
            cause: None,
            matches: vec![0; rules],
            close_looks: vec![0; rules],
            tried_at: vec![0; rules],
            active: vec![true; signatures.rules_of.len()],
            has_levels: true,
            lines: 0,
            counted_to: 0,
        }
    }

    pub fn mark(&self, mark: Mark) -> Option<u64> {
        self.marks[mark as usize]
    }

    pub fn mark_count(&self, mark: Mark) -> u64 {
        self.mark_counts[mark as usize]
    }

    /// Returns the line, from 1, that begins at `at`, which may be a little before what was counted.
    pub fn line_of(&self, bytes: &[u8], at: usize) -> u64 {
        let counted = bytes.get(at..self.counted_to).unwrap_or_default();
        self.lines + 1 - (memchr_iter(b'\n', counted).count() as u64).min(self.lines)
    }

    pub fn count_to(&mut self, bytes: &[u8], to: usize) {
        if to > self.counted_to {
            self.lines += memchr_iter(b'\n', &bytes[self.counted_to..to]).count() as u64;
            self.counted_to = to;
        }
    }
}
