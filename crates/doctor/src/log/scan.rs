//! Reads streams in windows and finds the lines that matter. Most bytes are looked at once, by the automaton over all
//! literals; a line that holds a literal is cut out, cleaned and tried against the rules of that literal.
//!
//! Memory does not depend on the input: one window, a bounded number of events, a state a file. A line without an end is
//! looked at piece by piece.

use super::diagnosis::Evidence;
use super::input::Source;
use super::judge::{self, Verdict};
use super::readings::Readings;
use super::signatures::{About, Judge, MARKS, Mark, Rule, Signatures};
use super::text::{clean, message, shown, tag};
use super::time::{Stamp, stamp};
use memchr::{memchr, memchr_iter, memchr2, memrchr, memrchr2};
use plimsoll_base::Result;
use std::cell::OnceCell;
use std::io::ErrorKind;

/// Bytes before a line that its traceback may span.
const BACK: usize = 64 << 10;
/// Bytes after a line that are looked at with it.
const AHEAD: usize = 16 << 10;
/// Bytes read at once.
const CHUNK: usize = 2 << 20;
/// Bytes of a line before and after a literal that are cut out of it.
const PIECE_BEFORE: usize = 1 << 10;
const PIECE_AFTER: usize = 4 << 10;
/// Lines of a traceback that are looked at.
const LINES_BEFORE: usize = 240;
/// Lines that are taken where there is no traceback.
const LINES_WITHOUT_TRACEBACK: usize = 40;
/// Lines after the first that a message may be wrapped over.
const LINES_AFTER: usize = 3;
/// Events of a rule that are kept a file; further ones are counted.
const EVENTS_A_RULE: u64 = 8;
/// Lines of each rank that look like a fault and are kept a file: the first may be harmless.
const SUSPICIONS_A_FILE: u64 = 8;
/// Lines of a file on which a rule is tried that looks at what stands before: a log that repeats one message for ever
/// must not make reading slow.
const CLOSE_LOOKS_A_RULE: u64 = 512;
/// Events that are kept of all files.
const EVENTS_MAX: usize = 8192;

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// Index of its class.
    pub class: usize,
    /// Index of its file.
    pub file: usize,
    /// Line, from 1.
    pub line: u64,
    /// The line.
    pub text: String,
    /// When, by the clock of the file.
    pub stamp: Option<Stamp>,
    /// What numbers and frames say.
    pub verdict: Verdict,
}

/// A suspicious line: the stronger kind first.
#[derive(Clone, Debug)]
pub struct Suspicion {
    /// 0 fault, 1 complaint.
    pub rank: usize,
    /// When.
    pub stamp: Option<Stamp>,
    /// Where.
    pub at: Evidence,
}

/// All that was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Names of files.
    pub files: Vec<String>,
    /// Events, by file and line.
    pub events: Vec<Event>,
    /// Count of lines of a class.
    pub counts: Vec<u64>,
    /// The first ones of each rank in each file.
    pub suspicions: Vec<Suspicion>,
    /// Bytes read.
    pub bytes: u64,
    /// What was not read.
    pub not_read: Vec<String>,
    /// More events than are kept.
    pub is_cut: bool,
}

/// Where a file stands.
#[derive(Debug)]
pub struct FileState {
    /// Line of the last mark of each kind.
    marks: [Option<u64>; MARKS],
    /// How often each mark was seen.
    mark_counts: [u64; MARKS],
    /// Readings of memory.
    pub readings: Readings,
    /// Matches of each rule, and the line of its last try.
    matches: Vec<u64>,
    close_looks: Vec<u64>,
    tried_at: Vec<u64>,
    /// Literals of which some rule is still of interest.
    active: Vec<bool>,
    /// Newlines before `counted_to`.
    lines: u64,
    counted_to: usize,
}

impl FileState {
    /// The line of the last mark of a kind.
    pub fn mark(&self, mark: Mark) -> Option<u64> {
        self.marks[mark as usize]
    }

    /// How many marks of a kind there were.
    pub fn mark_count(&self, mark: Mark) -> u64 {
        self.mark_counts[mark as usize]
    }
}

/// A line with what stands around it.
pub struct Moment<'w> {
    /// Bytes of the window.
    bytes: &'w [u8],
    /// The piece of the line in it.
    range: (usize, usize),
    /// Line, from 1.
    pub line: u64,
    /// The line, cleaned.
    pub text: String,
    near: OnceCell<String>,
    before: OnceCell<Vec<String>>,
}

/// Reads sources one after the other.
pub struct Scanner<'s> {
    signatures: &'s Signatures,
    window: Vec<u8>,
    found: Found,
}

impl<'s> Scanner<'s> {
    /// With nothing read.
    pub fn new(signatures: &'s Signatures) -> Scanner<'s> {
        let found = Found { counts: vec![0; signatures.classes.len()], ..Found::default() };
        Scanner { signatures, window: vec![0; BACK + CHUNK + AHEAD], found }
    }

    /// Reads one source to its end. One that breaks off is judged by what was read.
    pub fn read(&mut self, mut source: Source) -> Result<()> {
        if let Some(why) = source.refused {
            self.found.not_read.push(format!("{}: {why}", source.name));
            return Ok(());
        }
        self.found.files.push(source.name.clone());
        let mut state = self.new_state();
        let mut colours = Colours::default();
        let mut window = std::mem::take(&mut self.window);
        let (mut length, mut from, mut is_end) = (0, 0, false);
        while !is_end {
            while length < window.len() {
                match source.read.read(&mut window[length..]) {
                    Ok(0) => is_end = true,
                    Ok(count) => {
                        self.found.bytes += count as u64;
                        length += colours.strip(&mut window[length..length + count]);
                    }
                    Err(err) if err.kind() == ErrorKind::Interrupted => {}
                    Err(err) => {
                        self.found.not_read.push(format!("{}: breaks off: {err}", source.name));
                        is_end = true;
                    }
                }
                if is_end {
                    break;
                }
            }
            let to = if is_end { length } else { length - AHEAD };
            self.scan(&window[..length], from, to, &mut state);
            state.count_to(&window[..length], to);
            let keep = to.saturating_sub(BACK);
            window.copy_within(keep..length, 0);
            state.counted_to -= keep;
            (length, from) = (length - keep, to - keep);
        }
        self.window = window;
        let file = self.found.files.len() - 1;
        for (slug, event) in state.readings.finish() {
            self.keep(Event { class: self.signatures.class(slug), file, ..event });
        }
        Ok(())
    }

    /// All that was found.
    pub fn finish(self) -> Found {
        self.found
    }

    fn new_state(&self) -> FileState {
        FileState {
            marks: [None; MARKS],
            mark_counts: [0; MARKS],
            readings: Readings::default(),
            matches: vec![0; self.signatures.rules.len()],
            close_looks: vec![0; self.signatures.rules.len()],
            tried_at: vec![0; self.signatures.rules.len()],
            active: vec![true; self.signatures.rules_of.len()],
            lines: 0,
            counted_to: 0,
        }
    }

    /// Looks at literals that begin in `from..to`.
    fn scan(&mut self, bytes: &[u8], from: usize, to: usize, state: &mut FileState) {
        let signatures = self.signatures;
        let end = bytes.len().min(to + signatures.literal_bytes_max);
        // The piece of a line under way, and the rules to try on it.
        let (mut piece, mut pending): ((usize, usize), Vec<usize>) = ((0, 0), Vec::new());
        for found in signatures.automaton.find_overlapping_iter(&bytes[from..end]) {
            let (literal, at) = (found.pattern().as_usize(), from + found.start());
            if !state.active[literal] || at >= to {
                continue;
            }
            if at >= piece.1 {
                self.try_piece(bytes, piece, &mut pending, state);
                piece = piece_around(bytes, at);
            }
            for &rule in &signatures.rules_of[literal] {
                if signatures.rules[rule].about == About::Judge(Judge::Reading)
                    && !state.readings.wants_more()
                {
                    continue;
                }
                if !pending.contains(&rule) {
                    pending.push(rule);
                }
            }
        }
        self.try_piece(bytes, piece, &mut pending, state);
    }

    fn try_piece(
        &mut self,
        bytes: &[u8],
        piece: (usize, usize),
        pending: &mut Vec<usize>,
        state: &mut FileState,
    ) {
        if pending.is_empty() {
            return;
        }
        state.count_to(bytes, piece.0);
        let line = state.lines + 1;
        let moment = Moment::new(bytes, piece, line);
        pending.sort_unstable();
        for rule in pending.drain(..) {
            // One try a line: a progress bar repeats its states; a closed rule has none.
            if state.tried_at[rule] < line {
                state.tried_at[rule] = line;
                self.try_rule(rule, &moment, state);
            }
        }
    }

    fn try_rule(&mut self, index: usize, moment: &Moment, state: &mut FileState) {
        let rule = &self.signatures.rules[index];
        let looks_closely = match rule.about {
            About::Class(_) => rule.needs.is_some() || rule.unless_before.is_some(),
            About::Judge(judge) => !matches!(judge, Judge::Reading | Judge::SharedCard | Judge::OomCounter),
            About::Mark(_) | About::Suspicious(_) => false,
        };
        if looks_closely {
            state.close_looks[index] += 1;
            if state.close_looks[index] > CLOSE_LOOKS_A_RULE {
                return self.close(index, state);
            }
        }
        match rule.about {
            About::Mark(mark) => {
                state.mark_counts[mark as usize] += 1;
                state.marks[mark as usize] = Some(moment.line);
                match mark {
                    Mark::Save => state.readings.saved(),
                    Mark::Sleep => state.readings.slept(),
                    Mark::Wake => state.readings.woke(),
                    _ => {}
                }
                if matches!(mark, Mark::Rollout | Mark::Expandable) {
                    self.close(index, state);
                }
            }
            About::Suspicious(rank) => {
                let text = if rank == 0 { message(&moment.text) } else { &moment.text };
                if rule.regex.as_ref().is_some_and(|regex| regex.is_match(text)) {
                    let at = self.evidence(moment);
                    self.found.suspicions.push(Suspicion { rank, stamp: moment.stamp(), at });
                    state.matches[index] += 1;
                    if state.matches[index] == SUSPICIONS_A_FILE {
                        self.close(index, state);
                    }
                }
            }
            About::Class(class) => {
                // Once there are enough, lines that hold the words are only counted.
                if state.matches[index] >= EVENTS_A_RULE || moment.matches(rule) {
                    state.matches[index] += 1;
                    self.found.counts[class] += 1;
                    if state.matches[index] <= EVENTS_A_RULE {
                        self.keep(self.event(class, moment, Verdict::default()));
                    }
                }
            }
            About::Judge(judge) => {
                // Those that look at tracebacks say no more after some events; those that sum up see every line.
                let sums_up = matches!(judge, Judge::Reading | Judge::SharedCard | Judge::OomCounter);
                if !sums_up && state.matches[index] >= EVENTS_A_RULE {
                    self.close(index, state);
                    return;
                }
                if moment.matches(rule)
                    && let Some(verdict) = judge::judge(judge, moment, state)
                {
                    let class = self.signatures.class(verdict.slug);
                    state.matches[index] += 1;
                    self.found.counts[class] += 1;
                    if state.matches[index] <= EVENTS_A_RULE {
                        self.keep(self.event(class, moment, verdict));
                    }
                }
            }
        }
    }

    /// A rule that has said all it will say: its literals are passed over where no other rule wants them.
    fn close(&self, rule: usize, state: &mut FileState) {
        state.matches[rule] = u64::MAX;
        for (literal, rules) in self.signatures.rules_of.iter().enumerate() {
            if rules.contains(&rule) && rules.iter().all(|&other| state.matches[other] == u64::MAX) {
                state.active[literal] = false;
            }
        }
        state.tried_at[rule] = u64::MAX;
    }

    fn event(&self, class: usize, moment: &Moment, verdict: Verdict) -> Event {
        let file = self.found.files.len() - 1;
        Event { class, file, line: moment.line, text: shown(&moment.text), stamp: moment.stamp(), verdict }
    }

    fn evidence(&self, moment: &Moment) -> Evidence {
        let file = self.found.files.last().cloned().unwrap_or_default();
        Evidence { file, line: moment.line, text: shown(&moment.text) }
    }

    fn keep(&mut self, event: Event) {
        match self.found.events.len() < EVENTS_MAX {
            true => self.found.events.push(event),
            false => self.found.is_cut = true,
        }
    }
}

impl FileState {
    fn count_to(&mut self, bytes: &[u8], to: usize) {
        if to > self.counted_to {
            self.lines += memchr_iter(b'\n', &bytes[self.counted_to..to]).count() as u64;
            self.counted_to = to;
        }
    }
}

/// The line around `at`, or the part of it that is near. A carriage return ends a line as far as its text goes: progress
/// bars write hundreds of states into one.
fn piece_around(bytes: &[u8], at: usize) -> (usize, usize) {
    let first = at.saturating_sub(PIECE_BEFORE);
    let start = memrchr2(b'\n', b'\r', &bytes[first..at]).map_or(first, |found| first + found + 1);
    let last = bytes.len().min(at + PIECE_AFTER);
    let end = memchr2(b'\n', b'\r', &bytes[at..last]).map_or(last, |found| at + found);
    (start, end.max(at + 1))
}

impl<'w> Moment<'w> {
    fn new(bytes: &'w [u8], range: (usize, usize), line: u64) -> Moment<'w> {
        let text = clean(&bytes[range.0..range.1]);
        Moment { bytes, range, line, text, near: OnceCell::new(), before: OnceCell::new() }
    }

    /// The message and up to three lines after it, of the same process.
    pub fn near(&self) -> &str {
        self.near.get_or_init(|| {
            let mut near = message(&self.text).to_string();
            let mut at = self.range.1;
            let own = tag(&self.text);
            for _ in 0..LINES_AFTER {
                let Some(newline) = memchr(b'\n', &self.bytes[at..]) else { break };
                let start = at + newline + 1;
                let rest = &self.bytes[start..self.bytes.len().min(start + PIECE_AFTER)];
                let line = clean(&rest[..memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())]);
                at = start;
                if own.is_none() || tag(&line) == own {
                    near.push('\n');
                    near.push_str(message(&line).trim_end());
                }
            }
            near
        })
    }

    /// The traceback before the line, oldest frame first, or the last lines where there is none; of the same process where
    /// lines say whose they are.
    pub fn before(&self) -> &[String] {
        self.before.get_or_init(|| {
            let own = tag(&self.text);
            let mut lines = Vec::new();
            let (mut end, mut has_traceback) = (self.range.0.saturating_sub(1), false);
            let floor = self.range.0.saturating_sub(BACK);
            while end > floor && lines.len() < LINES_BEFORE {
                let start = memrchr(b'\n', &self.bytes[floor..end]).map_or(floor, |found| floor + found + 1);
                let raw = &self.bytes[start..end];
                let line = clean(&raw[..raw.len().min(PIECE_AFTER)]);
                end = start.saturating_sub(1);
                if own.is_some() && tag(&line) != own {
                    continue;
                }
                let is_top = line.contains("Traceback (most recent call last)");
                lines.push(message(&line).to_string());
                if is_top {
                    has_traceback = true;
                    break;
                }
            }
            if !has_traceback {
                lines.truncate(LINES_WITHOUT_TRACEBACK);
            }
            lines.reverse();
            lines
        })
    }

    /// The last `count` lines of `before`, joined: the innermost frames.
    pub fn innermost(&self, count: usize) -> String {
        let before = self.before();
        before[before.len().saturating_sub(count)..].join("\n")
    }

    /// The time of the line, or of the nearest line before it that has one.
    pub fn stamp(&self) -> Option<Stamp> {
        if let Some(stamp) = stamp(&self.text) {
            return Some(stamp);
        }
        let floor = self.range.0.saturating_sub(BACK);
        let mut end = self.range.0.saturating_sub(1);
        for _ in 0..LINES_BEFORE {
            if end <= floor {
                return None;
            }
            let start = memrchr(b'\n', &self.bytes[floor..end]).map_or(floor, |found| floor + found + 1);
            let raw = &self.bytes[start..end];
            if let Some(stamp) = stamp(&clean(&raw[..raw.len().min(512)])) {
                return Some(stamp);
            }
            end = start.saturating_sub(1);
        }
        None
    }

    fn matches(&self, rule: &Rule) -> bool {
        let is_match = match &rule.regex {
            None => true,
            Some(regex) if !rule.spans_lines => regex.is_match(message(&self.text)),
            Some(regex) => {
                let (near, own) = (self.near(), message(&self.text).len());
                regex.find(near).is_some_and(|found| found.start() <= own)
                    || rule.wraps && self.wrapped(near).is_some_and(|text| regex.is_match(&text))
            }
        };
        is_match
            && rule.needs.as_ref().is_none_or(|regex| self.around(regex))
            && rule.unless.as_ref().is_none_or(|regex| !regex.is_match(self.near()))
            && rule.unless_before.as_ref().is_none_or(|regex| !self.around(regex))
    }

    fn around(&self, regex: &regex::Regex) -> bool {
        regex.is_match(self.near()) || regex.is_match(&self.before().join("\n"))
    }

    /// The message with the line before it, for words that were wrapped.
    fn wrapped(&self, near: &str) -> Option<String> {
        let end = self.range.0.checked_sub(1)?;
        let floor = end.saturating_sub(PIECE_AFTER);
        let start = memrchr(b'\n', &self.bytes[floor..end]).map_or(floor, |found| floor + found + 1);
        let line = clean(&self.bytes[start..end]);
        Some(format!("{}\n{near}", message(&line).trim_end()))
    }
}

/// Takes colours and other escape sequences out of bytes, across the borders of what is read at once.
#[derive(Debug, Default)]
struct Colours {
    state: Escape,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Escape {
    #[default]
    None,
    Begun,
    Control,
    Command,
}

impl Colours {
    /// Moves what is text to the front; returns its length.
    fn strip(&mut self, bytes: &mut [u8]) -> usize {
        const ESCAPE: u8 = 0x1b;
        if self.state == Escape::None && memchr(ESCAPE, bytes).is_none() {
            return bytes.len();
        }
        let (mut kept, mut at) = (0, 0);
        while at < bytes.len() {
            if self.state == Escape::None {
                // Text up to the next sequence goes in one piece.
                let end = memchr(ESCAPE, &bytes[at..]).map_or(bytes.len(), |found| at + found);
                bytes.copy_within(at..end, kept);
                (kept, at) = (kept + end - at, end);
            }
            let Some(&byte) = bytes.get(at) else { break };
            at += 1;
            // A line's end ends any sequence: one that was cut must not swallow the rest of the log.
            self.state = match (self.state, byte) {
                (_, ESCAPE) => Escape::Begun,
                (_, b'\n' | b'\r') => {
                    bytes[kept] = byte;
                    kept += 1;
                    Escape::None
                }
                (Escape::Begun, b'[') => Escape::Control,
                (Escape::Begun, b']') => Escape::Command,
                (Escape::Begun, _) | (Escape::Control, 0x40..=0x7e) | (Escape::Command, 0x07) => Escape::None,
                (state, _) => state,
            };
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_wherever_they_are_cut() {
        let text = b"a\x1b[1;31mb\x1b[0mc\x1b]0;title\x07d\x1b[3\ne";
        for cut in 0..text.len() {
            let (mut first, mut second) = (text[..cut].to_vec(), text[cut..].to_vec());
            let mut colours = Colours::default();
            let (n, m) = (colours.strip(&mut first), colours.strip(&mut second));
            assert_eq!([&first[..n], &second[..m]].concat(), b"abcd\ne", "{cut}");
        }
    }

    #[test]
    fn a_piece_of_a_line_is_bounded() {
        let mut bytes = vec![b'x'; 100_000];
        bytes[50_000] = b'Y';
        assert_eq!(piece_around(&bytes, 50_000), (50_000 - PIECE_BEFORE, 50_000 + PIECE_AFTER));
        bytes[49_990] = b'\r';
        bytes[50_010] = b'\n';
        assert_eq!(piece_around(&bytes, 50_000), (49_991, 50_010));
    }
}
