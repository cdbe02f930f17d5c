//! The last counter of a log: whether its last lines name the last step of all, or one word that says that it is done.
//!
//! On a line the outermost counter decides: `Epoch [2/10], Step [50/50]` is no end, and neither is a heading whose bar
//! is not full. What `counters` has seen before decides too.

use super::bars::is_foreign_bar;
use super::counters::Sort;
use super::last_words::TAIL;
use super::progress::is_step;
use super::text::{clean, metrics, regex};
use regex::Regex;
use std::sync::LazyLock;

/// Lines at the end of a log to read for its last counter.
const COUNTED_LINES: usize = 80;
/// Smallest total of a counter: below, it counts ranks or parts.
const TOTAL_MIN: u64 = 3;

/// The number of a step and the total: `Epoch [50/50]`, `step 100 of 100`, `Learning iteration 1499/1500`.
static COUNTED: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)(?P<what>epochs?|steps?|iter(?:ation)?s?|updates?|episodes?|rounds?)\b[^\d\n]{0,12}?(?P<done>\d{1,12})\s?(?:/|\bof\b)\s?(?P<all>\d{1,12})\b",
    )
});
/// A counter without a word: in brackets, or before a bar of Keras.
static BARE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\[ *(?P<done>\d{1,12}) ?/ ?(?P<all>\d{1,12})\]|^ *(?P<bar>\d{1,12})/(?P<parts>\d{1,12}) (?:\[[=>.]*\]|━+)",
    )
});
/// An epoch of an unknown number of epochs: what else the line counts is a part of it.
static PART: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\bepoch\b[ :#\[(]{0,3}\d{1,9}\b(?: ?[^\d /.]|\s+[^\s/o]|$)"));
/// The time that is left of one epoch, as DETR and its kin print it.
static TIME_OF_PART: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\bepoch: \[\d+\]"));
/// A step with no time left.
static NO_TIME_LEFT: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\beta:? *(?:0 days?,? *)?0?0:00(?::00)?(?:\.0+)?(?:s\b|\s|,|$)"));
/// A program's last line.
static DONE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^\W*(?:all )?(?:done|finished|completed?|success(?:fully)?|training (?:done|finished|completed?)|bye|goodbye)\W*$",
    )
});
/// A program's last line that also tells what it did: `Done. Trained 3 epochs`, `done, model is in ./out`.
static CLOSING: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^\W*(?:all )?(?:done|finished|completed?)(?:[.,:;!]| -)+ +\S|^\W*(?:successfully )?trained (?:for )?[\d,]+ (?:epochs?|steps?|iter(?:ation)?s?|updates?|episodes?|rounds?)\b|^\W*all (?:\w+ )?(?:stages|phases|epochs|steps|episodes|rounds|folds|jobs|runs|tasks) (?:are |were |have )?(?:done|finished|completed?)\W*$",
    )
});
/// The heading of a stage, after which its own steps come.
static STAGE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)^\W*(?:stage|phase|fold|cycle)\b[ :#]{0,3}\d{1,6} ?(?:/|of) ?\d{1,6}\b"));
static OVER: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(?:done|finished|completed?|ended|took)\b"));
/// Words of one part among others, and of what comes next.
static PARTIAL: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)\b(?:so far|next|now|remain\w*|left|continu\w*|resum\w*|warm-?up|wait|will)\b|\b\d+ ?(?:/|of) ?\d+\b|\b(?:epoch|step|iteration|episode|round|stage|phase|fold|part|shard|batch|file|sample|prompt|request|task|rollout|eval\w*)s? ?#?\d|\b\d[\d,]* (?:part|shard|batche?|file|sample|prompt|request|task|rollout|row|token)s?\b",
    )
});

/// Holds what a line counts.
struct Counted {
    /// (done, total) of each counter with a word.
    named: Vec<(u64, u64)>,
    /// Those without one.
    bare: Vec<(u64, u64)>,
    /// True if nothing else is on the line: a heading comes before what it counts.
    is_heading: bool,
}

impl Counted {
    fn of(text: &str) -> Counted {
        let number = |found: &regex::Captures, name: &str| {
            found.name(name).and_then(|text| text.as_str().parse().ok())
        };
        let pair =
            |found: &regex::Captures, done: &str, all: &str| number(found, done).zip(number(found, all));
        // Counted from 0, as rsl_rl does.
        let from_zero = u64::from(text.to_ascii_lowercase().contains("learning iteration"));
        let named = COUNTED.captures_iter(text).filter_map(|found| pair(&found, "done", "all"));
        let named: Vec<(u64, u64)> = named.map(|(done, all): (u64, u64)| (done + from_zero, all)).collect();
        let bare = BARE.captures_iter(text);
        let bare =
            bare.filter_map(|found| pair(&found, "done", "all").or_else(|| pair(&found, "bar", "parts")));
        let counted = COUNTED.find_iter(text).map(|found| found.len()).sum::<usize>();
        let is_heading = text.trim_matches(|c: char| !c.is_alphanumeric()).chars().count() <= counted + 3;
        Counted { bare: bare.collect(), named, is_heading: is_heading && from_zero == 0 }
    }

    fn is_open(&self) -> bool {
        self.named.iter().chain(&self.bare).any(|(done, all)| done < all)
    }

    fn is_full(&self) -> bool {
        !self.is_open() && self.named.iter().any(|(_, all)| *all >= TOTAL_MIN)
    }
}

/// Returns the number of lines after a log's last step, if it was the last one planned, or after a line of success, and
/// the sort of evidence.
pub fn last_counter(tail: &[u8]) -> Option<(usize, Sort)> {
    let lines = || last_lines(tail).take(COUNTED_LINES);
    let is_done = |(_, text): &(usize, String)| DONE.is_match(text) || closes(text);
    // A program that says so of each part says nothing by it.
    let is_of_parts = || lines().skip_while(|(_, text)| !is_step(text)).any(|line| is_done(&line));
    if let Some((after, _)) = lines().next().filter(is_done)
        && !is_of_parts()
    {
        return Some((after, Sort::Goodbye));
    }
    let mut has_full_bar = false;
    for (after, text) in lines() {
        let counted = Counted::of(&text);
        let is_part = PART.is_match(&text);
        if counted.is_open() || STAGE.is_match(&text) && !OVER.is_match(&text) {
            return None;
        }
        if NO_TIME_LEFT.is_match(&text) && is_step(&text) {
            return (!TIME_OF_PART.is_match(&text)).then_some((after, Sort::Goodbye));
        }
        if counted.named.is_empty() {
            let is_full = !counted.bare.is_empty() || text.contains("100%|") && !is_foreign_bar(&text);
            has_full_bar |= is_full;
            if is_step(&text) && !is_full {
                return None;
            }
            continue;
        }
        let is_over = counted.is_full() && !is_part && (!counted.is_heading || has_full_bar);
        return is_over.then_some((after, Sort::Counter));
    }
    None
}

/// Returns true for a sentence that closes a run, and begins nothing.
fn closes(text: &str) -> bool {
    // `Done. Loading the next model` is the begin of something.
    let begins = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphabetic()).to_ascii_lowercase();
        word.len() > 4 && word.ends_with("ing") && word != "training"
    };
    CLOSING.is_match(text) && !PARTIAL.is_match(text) && !text.split(' ').any(begins)
}

/// Returns (lines after it, done, total) of the last step, iteration or update that a log counts.
pub fn last_step(tail: &[u8]) -> Option<(usize, u64, u64)> {
    last_lines(tail).find_map(|(after, text)| {
        let is_step = |found: &regex::Captures| {
            ["step", "iter", "upda"].iter().any(|word| found["what"].to_ascii_lowercase().starts_with(word))
        };
        let found = COUNTED.captures_iter(&text).filter(is_step).last()?;
        let from_zero = u64::from(text.to_ascii_lowercase().contains("learning iteration"));
        let (done, all): (u64, u64) = (found["done"].parse().ok()?, found["all"].parse().ok()?);
        (done <= all && all >= TOTAL_MIN).then_some((after, done + from_zero, all))
    })
}

/// Returns the lines of a log's end that are not empty, the last one first, with the number of lines after each. Of a
/// line that was drawn again and again the last state counts.
fn last_lines(tail: &[u8]) -> impl Iterator<Item = (usize, String)> {
    let tail = &tail[tail.len().saturating_sub(TAIL)..];
    let tail = tail.strip_suffix(b"\n").unwrap_or(tail);
    tail.rsplit(|byte| *byte == b'\n').enumerate().filter_map(|(after, bytes)| {
        let is_told = |part: &&[u8]| !part.trim_ascii().is_empty();
        let bytes = bytes.rsplit(|byte| matches!(*byte, b'\r' | 8)).find(is_told)?;
        let text = clean(bytes);
        let message = metrics(&text).trim().to_string();
        (!message.is_empty()).then_some((after, message))
    })
}
