//! Follows what a log counts: `Epoch 3/10`, `Episode [2/20]`, and bars. An end is one only if no counter around it is
//! open.
//!
//! Reads bytes and no expressions, because most lines of many logs count something. It never decides that a run ended;
//! it only refuses ends: a bar of one epoch, words of one stage, and all after which something was counted on.

use super::bars::{is_foreign_bar, is_whole};
use super::event::piece_around;
use super::text::{clean, message, regex};
use memchr::{memchr, memmem};
use regex::Regex;
use std::sync::LazyLock;

/// Most counters of a file: names times processes.
const COUNTERS_MAX: usize = 256;
/// Most names of bars whose kind is remembered.
const NAMES_MAX: usize = 64;
/// Most bytes between a counter's word and its number.
const GAP: usize = 12;
/// Most digits of a number.
const DIGITS: usize = 12;
/// Bytes of a line that may name its process.
const PROCESS_BYTES: usize = 64;

/// Lists what is counted around steps, without the first letter, which may be large.
const OUTER: [&[u8]; 7] = [b"poch", b"pisode", b"ound ", b"tage ", b"hase ", b"old ", b"ycle "];
/// Names of bars that count what is around steps: one that is open refuses words of an end too.
static OUTER_BAR: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(?:epochs|episodes|rounds|stages)\b"));
/// The bar of one epoch among an unknown number.
static PART_BAR: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?i)\b(?:epoch|episode|round|stage|phase|fold)\b[ :#(]{0,3}\d{1,6}(?:[^\d/]|$)")
});

/// The kind of evidence that a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sort {
    /// A process ended well, or stopped early on purpose: counters may be open.
    Firm,
    /// All members of a list ended well.
    Members,
    /// Words that programs also print at the end of an epoch or of a stage; `is_repeated` if this one has.
    Words { is_repeated: bool },
    /// A full bar; `is_whole` if its name says that it counts all of the run.
    Bar { is_whole: bool },
    /// A line with the last number of a counter.
    Counter,
    /// Words that failed runs print too.
    Goodbye,
}

/// An end, and how much was counted before it.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub line: u64,
    pub sort: Sort,
    tick: u64,
}

#[derive(Debug)]
struct Counter {
    key: u64,
    total: f64,
    done: f64,
    /// True if it counts what is around steps.
    is_outer: bool,
    is_bar: bool,
    /// Counted from 0, the last number is one less than the total.
    is_from_zero: bool,
    /// When its number last changed.
    moved: u64,
}

impl Counter {
    fn is_full(&self) -> bool {
        self.done >= self.total
    }

    fn is_at_last(&self) -> bool {
        self.is_full() || self.is_from_zero && self.done + 1.0 >= self.total
    }
}

/// The kind of a bar, by its name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// It counts prompts, files or tokens.
    Foreign,
    Inner,
    Outer,
}

#[derive(Debug, Default)]
pub struct OpenCounters {
    counters: Vec<Counter>,
    kinds: Vec<(u64, Kind)>,
    tick: u64,
    /// An epoch's number without a total was seen, so bars and steps may be those of one epoch.
    has_parts: bool,
    /// The number of epochs that the configuration names.
    epochs: Option<u64>,
    /// (line, done, total) of the last step that the last lines name.
    last_step: Option<(u64, f64, f64)>,
}

impl OpenCounters {
    pub fn end(&self, line: u64, sort: Sort) -> Ended {
        Ended { line, sort, tick: self.tick }
    }

    /// Returns true if no counter refuses the end.
    pub fn allow(&self, end: Ended) -> bool {
        // The heading of the last epoch may be all that follows.
        let is_further = |counter: &Counter| {
            counter.moved > end.tick && (counter.is_outer && !counter.is_bar || !counter.is_at_last())
        };
        let goes_on = self.counters.iter().any(is_further)
            || self.last_step.is_some_and(|(line, done, total)| line > end.line && done < total);
        let all = |what: fn(&Counter) -> bool| self.counters.iter().all(what);
        !goes_on
            && match end.sort {
                Sort::Firm | Sort::Members => true,
                Sort::Words { is_repeated } => {
                    all(|counter| !counter.is_outer || counter.is_at_last())
                        && (!is_repeated || self.counters.iter().any(|counter| counter.is_outer))
                }
                Sort::Bar { is_whole: true } => all(|counter| !counter.is_outer || counter.is_full()),
                Sort::Bar { .. } | Sort::Counter => {
                    !self.has_parts && !self.is_step_open() && all(Counter::is_full)
                }
                Sort::Goodbye => !self.is_step_open() && all(Counter::is_at_last),
            }
    }

    /// Returns true if something was counted and not to its end.
    pub fn is_open(&self) -> bool {
        self.is_step_open() || self.counters.iter().any(|counter| !counter.is_at_last())
    }

    /// Returns true if the configuration names more epochs than `epoch`.
    pub fn has_more_epochs(&self, epoch: u64) -> bool {
        self.epochs.is_some_and(|epochs| epoch < epochs)
    }

    /// Reads what is counted at `at`, where a literal of counters begins.
    pub fn see(&mut self, bytes: &[u8], at: usize) {
        let rest = &bytes[at..];
        if rest.starts_with(b"it/s") || rest.starts_with(b"s/it") {
            return self.see_bar(bytes, piece_around(bytes, at));
        }
        // The literals of epochs and episodes have no first letter.
        let at = if rest.starts_with(b"po") || rest.starts_with(b"pi") { at } else { at + 1 };
        let rest = &bytes[at..];
        let Some((name, word)) = OUTER.iter().enumerate().find(|(_, word)| rest.starts_with(word)) else {
            return;
        };
        // `background` counts nothing.
        if at >= 2 && bytes[at - 2].is_ascii_alphabetic() {
            return;
        }
        let rest = &rest[word.trim_ascii_end().len()..];
        let is_plural = rest.first() == Some(&b's');
        let rest = &rest[usize::from(is_plural)..];
        if is_plural && name == 0 {
            self.epochs = configured(rest).or(self.epochs);
        }
        let Some((gap, done, rest)) = next_number(rest) else { return };
        match total(rest) {
            Some(total) if total >= done => {
                let key = key(name as u64, process(bytes, at));
                self.count(key, done as f64, total as f64, true, false);
            }
            _ if !is_plural && name == 0 && is_heading(bytes, at, gap, rest) => self.has_parts = true,
            _ => {}
        }
    }

    fn see_bar(&mut self, bytes: &[u8], (start, end): (usize, usize)) {
        let piece = &bytes[start..end];
        let Some((name, done, total)) = bar(piece) else { return };
        // The percentage is a part of it, and its padding.
        let hash = name
            .iter()
            .filter(|byte| !byte.is_ascii_digit() && **byte != b' ')
            .fold(7, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let kind = self.kind_of(hash, piece);
        if kind == Kind::Foreign {
            return;
        }
        let key = key(hash ^ total.to_bits().rotate_left(17), process(bytes, start));
        self.count(key, done, total, kind == Kind::Outer, true);
    }

    fn kind_of(&mut self, hash: u64, piece: &[u8]) -> Kind {
        if let Some((_, kind)) = self.kinds.iter().find(|(known, _)| *known == hash) {
            return *kind;
        }
        let text = clean(piece);
        let text = message(&text);
        let kind = match text.split_once("%|") {
            _ if is_foreign_bar(text) => Kind::Foreign,
            Some((name, _)) if OUTER_BAR.is_match(name) => Kind::Outer,
            _ => Kind::Inner,
        };
        if self.kinds.len() < NAMES_MAX {
            self.kinds.push((hash, kind));
        }
        kind
    }

    fn count(&mut self, key: u64, done: f64, total: f64, is_outer: bool, is_bar: bool) {
        self.tick += 1;
        let moved = self.tick;
        if let Some(known) = self.counters.iter_mut().find(|counter| counter.key == key) {
            let begins = done < known.done || total != known.total;
            known.is_from_zero = !is_bar && (done == 0.0 || known.is_from_zero && !begins);
            if (known.done, known.total) != (done, total) {
                (known.done, known.total, known.moved) = (done, total, moved);
            }
            return;
        }
        if self.counters.len() == COUNTERS_MAX {
            let full = self.counters.iter().position(Counter::is_full);
            self.counters.swap_remove(full.unwrap_or(0));
        }
        let is_from_zero = !is_bar && done == 0.0;
        self.counters.push(Counter { key, total, done, is_outer, is_bar, is_from_zero, moved });
    }

    /// Sets the last step that the last lines name.
    pub fn last_step(&mut self, line: u64, done: u64, total: u64) {
        self.last_step = Some((line, done as f64, total as f64));
    }

    /// Returns true if the last step was not the last one planned. One of as many steps as a bar is that bar.
    fn is_step_open(&self) -> bool {
        let is_drawn =
            |total: f64| self.counters.iter().any(|counter| counter.is_bar && counter.total == total);
        self.last_step.is_some_and(|(_, done, total)| done < total && !is_drawn(total))
    }
}

/// Returns the sort of a full bar, or `None` if it is that of one epoch among an unknown number.
pub fn bar_sort(text: &str) -> Option<Sort> {
    let name = text.split_once("%|").map_or("", |(name, _)| name);
    (!PART_BAR.is_match(name)).then(|| Sort::Bar { is_whole: is_whole(name) || OUTER_BAR.is_match(name) })
}

/// Returns (name, done, total) of a bar.
fn bar(piece: &[u8]) -> Option<(&[u8], f64, f64)> {
    let at = memmem::find(piece, b"%|")?;
    let numbers = &piece[at + 2..];
    let numbers = &numbers[memchr(b'|', numbers)? + 1..];
    let numbers = &numbers[..memchr(b'[', numbers)?];
    let slash = memchr(b'/', numbers)?;
    Some((&piece[..at], number(&numbers[..slash])?, number(&numbers[slash + 1..])?))
}

/// Returns the value of `12`, `1,200`, `1.50k` or `3M`.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    let (text, unit) = match text.last()? {
        b'k' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        b'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let text = str::from_utf8(text).ok()?;
    let value: f64 = if text.contains(',') { text.replace(',', "").parse() } else { text.parse() }.ok()?;
    Some(value * unit)
}

/// Returns (bytes before it, number, the bytes after it) of the number next to a word.
fn next_number(rest: &[u8]) -> Option<(usize, u64, &[u8])> {
    let gap = rest.iter().take(GAP + 1).position(u8::is_ascii_digit)?;
    if rest[..gap].contains(&b'\n') || rest.first().is_some_and(u8::is_ascii_alphabetic) {
        return None;
    }
    let (value, rest) = digits(&rest[gap..])?;
    Some((gap, value, rest))
}

/// Returns the total after a number: `/10`, ` / 10`, ` of 10`.
fn total(rest: &[u8]) -> Option<u64> {
    let rest = rest.trim_ascii_start();
    let rest = rest.strip_prefix(b"/").or_else(|| rest.strip_prefix(b"of "))?;
    let (total, rest) = digits(rest.trim_ascii_start())?;
    // A date, or a fraction.
    let ends = !rest.first().is_some_and(|next| matches!(next, b'/' | b'_') || next.is_ascii_alphanumeric());
    ends.then_some(total)
}

/// Returns the number of epochs of a configuration: `Num Epochs = 3`, `'total_epochs': 15`, `epochs: 3`.
fn configured(rest: &[u8]) -> Option<u64> {
    let rest =
        rest.strip_prefix(b"'").or_else(|| rest.strip_prefix(b"\"")).unwrap_or(rest).trim_ascii_start();
    let rest = rest.strip_prefix(b":").or_else(|| rest.strip_prefix(b"="))?;
    let (value, rest) = digits(rest.trim_ascii_start())?;
    (!rest.starts_with(b"/") && !rest.starts_with(b".")).then_some(value)
}

fn digits(rest: &[u8]) -> Option<(u64, &[u8])> {
    let end = rest.iter().take(DIGITS + 1).position(|byte| !byte.is_ascii_digit());
    let end = end.unwrap_or(rest.len());
    let value = str::from_utf8(rest.get(..end)?).ok()?.parse().ok()?;
    Some((value, &rest[end..]))
}

/// Returns true for an epoch's number that is no metric: `Epoch: [3]`, not `training/epoch:3`, `'epoch': 3` or 0.3.
fn is_heading(bytes: &[u8], at: usize, gap: usize, rest: &[u8]) -> bool {
    // One byte before the literal is the word's first letter.
    let before = at.checked_sub(2).map(|before| bytes[before]);
    let is_word =
        before.is_none_or(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'[' | b'(' | b'|' | b'*' | b'='));
    let is_fraction = rest.first() == Some(&b'.') && rest.get(1).is_some_and(u8::is_ascii_digit);
    is_word && !is_fraction && gap <= 3
}

/// Returns the number of the process that a line of a shared log names: `[rank3]:`, `(Worker pid=71, …`.
fn process(bytes: &[u8], at: usize) -> u64 {
    let start = memchr::memrchr2(b'\n', b'\r', &bytes[at.saturating_sub(1024)..at]);
    let start = start.map_or(at.saturating_sub(1024), |found| at.saturating_sub(1024) + found + 1);
    let line = &bytes[start..bytes.len().min(start + PROCESS_BYTES)];
    let tag = |word: &[u8]| Some(memmem::find(line, word)? + word.len());
    let begin =
        tag(b"[rank").or_else(|| tag(b"[Rank ")).or_else(|| tag(b"[default")).or_else(|| tag(b"pid="));
    begin.and_then(|begin| digits(&line[begin..])).map_or(0, |(number, _)| number + 1)
}

fn key(name: u64, process: u64) -> u64 {
    (name ^ process.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd)
}
