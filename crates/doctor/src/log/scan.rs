//! Reads streams in windows and finds the lines that matter. The automaton over all literals reads each byte
//! once; a line that holds a literal is cut out, cleaned and tried against the rules of that literal.
//!
//! Memory does not depend on the input: one window, a bounded number of events, one state a file. A line without an end is
//! read in pieces.

use super::diagnosis::Evidence;
use super::event::{BACK, Event, Moment, Verdict, piece_around};
use super::input::Source;
use super::judge;
use super::signatures::{About, Judge, Mark, Signatures};
use super::state::FileState;
use super::text::{message, shown};
use super::time::Stamp;
use memchr::memchr;
use plimsoll_base::Result;
use std::io::ErrorKind;

/// Bytes after a line that are read with it.
const AHEAD: usize = 16 << 10;
/// Bytes read at once.
const CHUNK: usize = 2 << 20;
/// Events of a rule kept a file; further ones are only counted.
const EVENTS_A_RULE: u64 = 8;
/// Suspicious lines of each rank kept a file: the first may be harmless.
const SUSPICIONS_A_FILE: u64 = 8;
/// Lines of a file on which a rule that reads the lines before is tried: a log that repeats one message must not make
/// reading slow.
const CLOSE_LOOKS_A_RULE: u64 = 512;
/// Events kept over all files.
const EVENTS_MAX: usize = 8192;

#[derive(Clone, Debug)]
pub struct Suspicion {
    /// 0 fault, 1 complaint.
    pub rank: usize,
    pub stamp: Option<Stamp>,
    pub at: Evidence,
}

#[derive(Debug, Default)]
pub struct Found {
    pub files: Vec<String>,
    pub events: Vec<Event>,
    /// Matching lines of each class.
    pub counts: Vec<u64>,
    pub suspicions: Vec<Suspicion>,
    pub bytes: u64,
    pub not_read: Vec<String>,
    /// True if there were more than `EVENTS_MAX` events.
    pub is_cut: bool,
}

pub struct Scanner<'s> {
    signatures: &'s Signatures,
    window: Vec<u8>,
    pub found: Found,
}

impl<'s> Scanner<'s> {
    pub fn new(signatures: &'s Signatures) -> Scanner<'s> {
        let found = Found { counts: vec![0; signatures.classes.len()], ..Found::default() };
        Scanner { signatures, window: vec![0; BACK + CHUNK + AHEAD], found }
    }

    /// Reads one source to its end. If it breaks off, what was read is judged.
    pub fn read(&mut self, mut source: Source) -> Result<()> {
        if let Some(why) = source.refused {
            self.found.not_read.push(format!("{}: {why}", source.name));
            return Ok(());
        }
        self.found.files.push(source.name.clone());
        let mut state = FileState::new(self.signatures);
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

    /// Tries the rules of literals that begin in `from..to`.
    fn scan(&mut self, bytes: &[u8], from: usize, to: usize, state: &mut FileState) {
        let signatures = self.signatures;
        let end = bytes.len().min(to + signatures.literal_bytes_max);
        // The current piece of a line, and the rules to try on it.
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
            // One try a line, because a progress bar repeats its states; none for a closed rule.
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
            About::Judge(judge) => !judge.sums_up(),
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
                // After that many, lines that hold the words are only counted.
                if state.matches[index] >= EVENTS_A_RULE || moment.matches(rule) {
                    self.count(index, class, moment, Verdict::default(), state);
                }
            }
            About::Judge(judge) => {
                // Judgements of tracebacks stop after some events; those that sum up see every line.
                if !judge.sums_up() && state.matches[index] >= EVENTS_A_RULE {
                    return self.close(index, state);
                }
                if moment.matches(rule)
                    && let Some(verdict) = judge::judge(judge, moment, state)
                {
                    self.count(index, self.signatures.class(verdict.slug), moment, verdict, state);
                }
            }
        }
    }

    /// Ends a rule for this file. Literals that no open rule uses are skipped from then on.
    fn close(&self, rule: usize, state: &mut FileState) {
        state.matches[rule] = u64::MAX;
        for (literal, rules) in self.signatures.rules_of.iter().enumerate() {
            if rules.contains(&rule) && rules.iter().all(|&other| state.matches[other] == u64::MAX) {
                state.active[literal] = false;
            }
        }
        state.tried_at[rule] = u64::MAX;
    }

    fn count(&mut self, rule: usize, class: usize, moment: &Moment, verdict: Verdict, state: &mut FileState) {
        state.matches[rule] += 1;
        self.found.counts[class] += 1;
        if state.matches[rule] <= EVENTS_A_RULE {
            let (file, text, stamp) = (self.found.files.len() - 1, shown(&moment.text), moment.stamp());
            self.keep(Event { class, file, line: moment.line, text, stamp, verdict });
        }
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

/// Removes colours and other escape sequences, also where one is split between two reads.
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
    /// Moves the text to the front. Returns its length.
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
}
