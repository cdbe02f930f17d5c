//! Memory readings in a log: whether the card's memory grows at each save, whether the host's stays up after a wake-up;
//! rows of a card's process table; a container's count of kills. The state of a file is bounded.

use super::event::{Event, Verdict};
use super::signatures::Level;
use super::text::{regex, shown};
use regex::Regex;
use std::sync::LazyLock;

/// Most series of readings, by label.
const SERIES_MAX: usize = 16;
/// Most saves that a series remembers.
const SAVES_MAX: usize = 64;
/// Lines read for numbers from the start; later only one in `LINES_SAMPLED`. Runs that print memory in every line would
/// make reading slow, and samples show a rise too.
const LINES_ALL: u64 = 2_000;
const LINES_SAMPLED: u64 = 256;
/// Least growth at each save, and overall, in GiB, to call it a leak.
const LEAK_STEP_GIB: f64 = 0.25;
const LEAK_GIB: f64 = 1.0;
/// Least growth of host memory across a sleep, in GiB, to call it a copy.
const COPY_GIB: f64 = 1.0;
/// Largest MiB of a process with a bare context; this many of them on one card are workers.
const CONTEXT_MIB: f64 = 700.0;
const CONTEXTS_MIN: usize = 8;

static CARD: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    [
        regex(r"()(\d+(?:\.\d+)?)\s*(MiB)\s*/\s*\d+\s*MiB"),
        regex(
            r"(?i)(gpu mem\w*|vram|memory_allocated|max_memory_allocated|allocated memory|reserved memory|memory/[\w()]+|device_mem\w*)[^0-9\n]{0,48}?([\d.]+)\s?(GiB|GB|MiB|MB|bytes)?",
        ),
    ]
});
static HOST: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    [
        regex(
            r"(?i)\b(rss|cpu mem\w*|cpu virtual memory|host mem\w*|process memory|ram used|system memory)\b[^0-9\n]{0,48}?([\d.]+)\s?(GiB|GB|MiB|MB|bytes)?",
        ),
        regex(r"^()Mem:\s+\S+\s+([\d.]+)(Gi|G|Mi|M)?\s"),
    ]
});
static BEFORE_SLEEP: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)before (the )?(first )?sleep"));
static AFTER_WAKE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)after (the )?(first )?(wake|waking)"));
static CARD_ROW: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^\|\s+(\d+)\s+(?:N/A\s+N/A\s+)?\d+\s+C(?:\+G)?\s+(\S.*?)\s+(\d+)MiB \|"));
static COUNTER: LazyLock<Regex> = LazyLock::new(|| regex(r"\boom_kill (\d+)"));

#[derive(Debug, Default)]
pub struct Readings {
    card: Vec<Series>,
    host_before: Option<(f64, u64)>,
    host_after: Option<(f64, u64, String)>,
    has_slept: bool,
    has_woken: bool,
    contexts: Vec<(u32, usize)>,
    oom_kills: Option<u64>,
    lines: u64,
}

/// The highest readings under one label between two saves.
#[derive(Debug)]
struct Series {
    label: String,
    /// (GiB, line) of each span between two saves.
    spans: Vec<(f64, u64)>,
    now: Option<(f64, u64)>,
}

impl Readings {
    /// Counts a line with a reading. Returns true if it should be read.
    pub fn wants_more(&mut self) -> bool {
        self.lines += 1;
        self.lines <= LINES_ALL || self.lines.is_multiple_of(LINES_SAMPLED)
    }

    pub fn read(&mut self, text: &str, line: u64) {
        if let Some((label, gib)) = reading(&*CARD, text) {
            self.read_card(label, gib, line);
        }
        if let Some((_, gib)) = reading(&*HOST, text) {
            let (before, after) = (BEFORE_SLEEP.is_match(text), AFTER_WAKE.is_match(text));
            if before || !self.has_slept && !after {
                self.host_before = Some((gib, line));
            } else if after || self.has_woken {
                self.host_after = Some((gib, line, shown(text)));
            }
        }
    }

    fn read_card(&mut self, label: String, gib: f64, line: u64) {
        let index = self.card.iter().position(|series| series.label == label);
        let index = match index {
            Some(index) => index,
            None if self.card.len() < SERIES_MAX => {
                self.card.push(Series { label, spans: Vec::new(), now: None });
                self.card.len() - 1
            }
            None => return,
        };
        let series = &mut self.card[index];
        if series.now.is_none_or(|(highest, _)| gib > highest) {
            series.now = Some((gib, line));
        }
    }

    /// Ends the span before a save.
    pub fn saved(&mut self) {
        for series in &mut self.card {
            if series.spans.len() < SAVES_MAX {
                series.spans.extend(series.now.take());
            }
        }
    }

    pub fn slept(&mut self) {
        self.has_slept = true;
    }

    pub fn woke(&mut self) {
        self.has_woken = self.has_slept;
    }

    /// Returns true if the card's memory rose at each save so far.
    pub fn grows_at_saves(&self) -> bool {
        self.card.iter().any(|series| series.growth().is_some())
    }

    /// Reads a row of a card's process table.
    pub fn card_row(&mut self, text: &str) -> Option<Verdict> {
        let found = CARD_ROW.captures(text)?;
        let (card, mib): (u32, f64) = (found[1].parse().ok()?, found[3].parse().ok()?);
        if mib > CONTEXT_MIB || !found[2].contains("python") && !found[2].contains("ray") {
            return None;
        }
        let index = self.contexts.iter().position(|(known, _)| *known == card).unwrap_or_else(|| {
            self.contexts.push((card, 0));
            self.contexts.len() - 1
        });
        let count = &mut self.contexts[index].1;
        *count += 1;
        (*count == CONTEXTS_MIN).then(|| {
            Verdict::of("cuda-context-per-worker")
                .because(format!("{CONTEXTS_MIN} or more processes on card {card} hold at most {CONTEXT_MIB} MiB each, a bare context"))
        })
    }

    /// Reads a count of kills. A rise is proof; a count alone may predate this run.
    pub fn oom_counter(&mut self, text: &str) -> Option<Verdict> {
        let count: u64 = COUNTER.captures(text)?[1].parse().ok()?;
        let before = self.oom_kills.replace(count);
        match (before, count) {
            (Some(before), count) if count > before => Some(
                Verdict::of("cgroup-oom-kill")
                    .because(format!("the container's oom_kill rose from {before} to {count}")),
            ),
            (None, 1..) => {
                Some(Verdict::of("worker-sigkill-unknown").because(format!(
                    "the container counts {count} kills for lack of memory since it was made"
                )))
            }
            _ => None,
        }
    }

    /// Returns the events that a whole file's readings show, each with its class's slug.
    pub fn finish(mut self) -> Vec<(&'static str, Event)> {
        self.saved();
        let mut events = Vec::new();
        if let Some((from, to, line, saves)) = self.card.iter().find_map(Series::growth) {
            let reason =
                format!("the card's memory rose at each of {saves} saves, from {from:.1} to {to:.1} GiB");
            events.push(event("gpu-leak-at-checkpoint", line, reason.clone(), reason));
        }
        if let (Some((before, _)), Some((after, line, text))) = (self.host_before, self.host_after)
            && after >= before * 1.1 + COPY_GIB
        {
            let reason = format!(
                "the host held {before:.1} GiB before the engine slept and {after:.1} GiB after it woke"
            );
            events.push(event("sleep-host-copy", line, text, reason));
        }
        events
    }
}

impl Series {
    /// Returns (first, last, line of the second, saves) if every span exceeds the one before.
    fn growth(&self) -> Option<(f64, f64, u64, usize)> {
        let (first, last) = (self.spans.first()?, self.spans.last()?);
        let rises = self.spans.windows(2).all(|pair| pair[1].0 >= pair[0].0 + LEAK_STEP_GIB);
        (self.spans.len() >= 3 && rises && last.0 - first.0 >= LEAK_GIB)
            .then(|| (first.0, last.0, self.spans[1].1, self.spans.len() - 1))
    }
}

fn event(slug: &'static str, line: u64, text: String, reason: String) -> (&'static str, Event) {
    let verdict = Verdict::of(slug).because(reason);
    // The scanner sets class, file and level.
    let (level, steps) = (Level::Cause, u64::MAX);
    (slug, Event { class: 0, file: 0, line, text, stamp: None, level, steps, shape: 0, verdict })
}

/// Returns (label, GiB) of a line.
fn reading(patterns: &[Regex], text: &str) -> Option<(String, f64)> {
    let found = patterns.iter().find_map(|pattern| pattern.captures(text))?;
    let label = found[1].to_ascii_lowercase();
    let number: f64 = found[2].parse().ok()?;
    let unit = found.get(3).map_or("", |unit| unit.as_str());
    let gib = match unit.to_ascii_uppercase().chars().next() {
        Some('M') => number / 1024.0,
        Some('B') => number / (1u64 << 30) as f64,
        Some(_) => number,
        // Without a unit, large numbers are bytes.
        None if number > 1e7 => number / (1u64 << 30) as f64,
        None => number,
    };
    Some((label, gib))
}
