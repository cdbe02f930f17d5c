//! Reads streams in windows and finds the lines that matter. A line that holds one of the literals is cut out,
//! cleaned and tried against the rules of that literal; other lines are never decoded.
//!
//! Memory does not depend on the input: one window, a bounded number of events, one state a file. A line without an end is
//! read in pieces.

use super::collective::Collectives;
use super::colours::Colours;
use super::diagnosis::Evidence;
use super::event::{BACK, Event, Moment, Verdict, piece_around};
use super::general::{place, reading};
use super::input::Source;
use super::judge;
use super::last_words::{last_words, raised_by};
use super::limits::Budget;
use super::progress::{OUTLIVED, SURVIVED};
use super::signatures::{About, Judge, Level, Mark, Rule, Signatures};
use super::state::{FileState, LAST_WORDS, Suspicion};
use super::text::{is_quiet, message, shown};
use super::time::stamp;
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

#[derive(Debug, Default)]
pub struct Found {
    pub files: Vec<String>,
    pub events: Vec<Event>,
    /// Matching lines of each class.
    pub counts: Vec<u64>,
    pub suspicions: Vec<Suspicion>,
    /// Whether each framework is named.
    pub frameworks: Vec<bool>,
    /// The end of each file whose run went well.
    pub finished: Vec<Option<u64>>,
    pub collectives: Collectives,
    pub bytes: u64,
    pub not_read: Vec<String>,
    /// Files that were read in part.
    pub parts: Vec<String>,
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
        let found = Found {
            counts: vec![0; signatures.classes.len()],
            frameworks: vec![false; signatures.frameworks.len()],
            ..Found::default()
        };
        Scanner { signatures, window: vec![0; BACK + CHUNK + AHEAD], found }
    }

    /// Reads one source to its end, or as far as `budget` allows. If it breaks off, what was read is judged.
    pub fn read(&mut self, mut source: Source, budget: &mut Budget) {
        if let Some(why) = source.refused {
            self.found.not_read.push(format!("{}: {why}", source.name));
            return;
        }
        self.found.files.push(source.name.clone());
        let mut state = FileState::new(self.signatures);
        let mut colours = Colours::default();
        let mut window = std::mem::take(&mut self.window);
        let (mut length, mut from, mut is_end) = (0, 0, false);
        while !is_end {
            while length < window.len() && !is_end {
                // What was read to find out its type is there even when the time is up.
                let has_begun = length > 0 || from > 0;
                if let Some(why) = budget.spent().filter(|_| has_begun) {
                    self.found.parts.push(format!("{}: {why}", source.name));
                    is_end = true;
                    break;
                }
                let room = budget.room(window.len() - length);
                match source.read.read(&mut window[length..length + room]) {
                    Ok(0) => is_end = true,
                    Ok(count) => {
                        self.found.bytes += count as u64;
                        budget.take(count);
                        length += colours.strip(&mut window[length..length + count]);
                    }
                    Err(err) if err.kind() == ErrorKind::Interrupted => {}
                    Err(err) => {
                        self.found.parts.push(format!("{}: breaks off: {err}", source.name));
                        is_end = true;
                    }
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
        self.finish(state, &window[..length]);
        self.window = window;
    }

    /// Adds what only the whole file shows.
    fn finish(&mut self, mut state: FileState, tail: &[u8]) {
        let file = self.found.files.len() - 1;
        let last_words = self.last_words(file, &state, tail);
        let finished = state.progress.finish(state.lines + 1);
        if finished.is_some() {
            state.suspicions.retain(|suspicion| !suspicion.is_farewell());
            // A run that went on and ended well survived whatever it printed before.
            let (steps, classes) = (state.progress.steps, &self.signatures.classes);
            let is_warning = |event: &Event| {
                event.level == Level::Survivable && classes[event.class].level == Level::Cause
            };
            // The peers of a group, and the store of it, go away one after the other.
            let is_farewell = |event: &Event| {
                let slug = classes[event.class].slug.as_str();
                finished.is_some_and(|end| event.line > end)
                    && ["network-failed", "rendezvous-timeout", "ray-node-dead"].contains(&slug)
                    && !event.text.contains("Error: ")
            };
            self.found.events.retain(|event| {
                event.file != file
                    || event.steps.saturating_add(SURVIVED) > steps
                        && !is_warning(event)
                        && !is_farewell(event)
            });
        } else if state.suspicions.iter().all(|suspicion| suspicion.rank > 0) {
            self.forget_outlived(file, state.progress.steps);
        }
        if let Some((line, text, reason)) = state.progress.nan_at_end() {
            let class = self.signatures.class("nan-not-memory");
            self.found.counts[class] += 1;
            let (verdict, level) = (Verdict::default().because(reason), Level::Survivable);
            self.keep(Event { class, file, line, text, stamp: None, level, steps: u64::MAX, verdict });
        }
        for (slug, event) in state.readings.finish() {
            let class = self.signatures.class(slug);
            self.keep(Event { class, file, level: self.signatures.classes[class].level, ..event });
        }
        let is_told = self.found.events.iter().any(|event| event.file == file);
        if finished.is_none()
            && state.suspicions.iter().all(Suspicion::is_head)
            && !is_told
            && let Some(words) = last_words
        {
            match self.class_of_code(&words.at.text) {
                Some(class) => {
                    self.found.counts[class] += 1;
                    let (line, text, stamp, steps) = (words.at.line, words.at.text, words.stamp, words.steps);
                    let (verdict, level) = (Verdict::default(), Level::Survivable);
                    self.keep(Event { class, file, line, text, stamp, level, steps, verdict });
                }
                None => state.suspicions.push(words),
            }
        }
        self.found.suspicions.extend(state.suspicions);
        self.found.finished.push(finished);
        self.found.collectives.add(state.collectives);
    }

    /// Returns the line at the end of a log that says that something failed.
    fn last_words(&self, file: usize, state: &FileState, tail: &[u8]) -> Option<Suspicion> {
        let (after, text) = last_words(tail)?;
        let lines = state.lines + u64::from(!tail.ends_with(b"\n"));
        let at = Evidence {
            file: self.found.files[file].clone(),
            line: lines.saturating_sub(after as u64),
            text: shown(&text),
        };
        let (stamp, steps) = (stamp(&text), state.progress.steps);
        let (near, message_bytes, place) = (String::new(), 0, None);
        let suspicion = Suspicion {
            rank: LAST_WORDS,
            file,
            steps,
            stamp,
            is_chained: false,
            at,
            near,
            message_bytes,
            place,
        };
        Some(suspicion.saying(message(&text)))
    }

    /// Returns the class of the exception that a line of code would have raised, if a log ends with that line.
    fn class_of_code(&self, line: &str) -> Option<usize> {
        let raised = raised_by(message(line))?;
        let says = |regex: &Option<regex::Regex>| regex.as_ref().is_some_and(|regex| regex.is_match(&raised));
        let rules = self.signatures.rules.iter().filter(|rule| rule.needs.is_none() && !says(&rule.unless));
        rules.filter(|rule| says(&rule.regex)).find_map(|rule| match rule.about {
            About::Class(class) => Some(class),
            _ => None,
        })
    }

    /// Drops what would have ended the run if the run went on for long and nothing else happened: a sample, a sandbox or a test
    /// printed it.
    fn forget_outlived(&mut self, file: usize, steps: u64) {
        let is_death =
            |event: &Event| event.file == file && matches!(event.level, Level::Cause | Level::Secondary);
        let is_outlived = |event: &Event| event.steps.saturating_add(OUTLIVED) <= steps;
        if self.found.events.iter().filter(|event| is_death(event)).all(is_outlived) {
            self.found.events.retain(|event| !is_death(event));
        }
    }

    /// Tries the rules of literals that begin in `from..to`.
    fn scan(&mut self, bytes: &[u8], from: usize, to: usize, state: &mut FileState) {
        let signatures = self.signatures;
        // The current piece of a line, and the rules to try on it.
        let (mut piece, mut pending): ((usize, usize), Vec<usize>) = ((0, 0), Vec::new());
        signatures.literals.candidates(bytes, from, to, |literal, at| {
            if !state.active[literal] || !signatures.literals.holds(literal, bytes, at) {
                return;
            }
            // What this line is looked at for may depend on the one before.
            if at >= piece.1 {
                self.try_piece(bytes, piece, &mut pending, state);
            }
            for &rule in &signatures.rules_of[literal] {
                let is_idle = match signatures.rules[rule].about {
                    About::Judge(Judge::Reading) => !state.readings.wants_more(),
                    About::Mark(Mark::Step) => !state.progress.wants_more(),
                    _ => false,
                };
                if is_idle {
                    continue;
                }
                if at >= piece.1 {
                    piece = piece_around(bytes, at);
                }
                if !pending.contains(&rule) {
                    pending.push(rule);
                }
            }
        });
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
            let is_step = self.signatures.rules[rule].about == About::Mark(Mark::Step);
            if state.tried_at[rule] < line || is_step {
                state.tried_at[rule] = line;
                self.try_rule(rule, &moment, state);
            }
        }
    }

    fn try_rule(&mut self, index: usize, moment: &Moment, state: &mut FileState) {
        let rule = &self.signatures.rules[index];
        let looks_closely = match rule.about {
            About::Class(_) => {
                rule.needs.is_some() || rule.unless_before.is_some() || rule.unless_after.is_some()
            }
            About::Judge(judge) => !judge.sums_up(),
            About::Mark(_) | About::Framework(_) | About::Suspicious(_) => false,
        };
        if looks_closely {
            state.close_looks[index] += 1;
            if state.close_looks[index] > CLOSE_LOOKS_A_RULE {
                return self.close(index, state);
            }
        }
        match rule.about {
            About::Mark(mark) if moment.matches(rule) => self.mark(index, mark, moment, state),
            About::Mark(_) => {}
            About::Framework(framework) => {
                self.found.frameworks[framework] = true;
                self.close(index, state);
            }
            About::Suspicious(row) => self.suspect(index, row, moment, state),
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

    fn mark(&mut self, index: usize, mark: Mark, moment: &Moment, state: &mut FileState) {
        state.mark_counts[mark as usize] += 1;
        state.marks[mark as usize] = Some(moment.line);
        match mark {
            Mark::Save => state.readings.saved(),
            Mark::Sleep => state.readings.slept(),
            Mark::Wake => state.readings.woke(),
            Mark::Finish => state.progress.finished(moment.line),
            Mark::Step => {
                if state.progress.step(message(&moment.text), moment.line) {
                    self.settle(state);
                }
            }
            Mark::Rollout | Mark::Expandable | Mark::DiskNearlyFull => self.close(index, state),
            Mark::Capture | Mark::CacheRelease | Mark::Load => {}
        }
    }

    fn suspect(&mut self, index: usize, row: usize, moment: &Moment, state: &mut FileState) {
        let (rule, row) = (&self.signatures.rules[index], &self.signatures.suspicious[row]);
        let is_quiet = !row.at_any_level && is_quiet(&moment.text);
        let matches = |regex: &regex::Regex| regex.is_match(message(&moment.text));
        let is_suspicious = rule.regex.as_ref().is_none_or(matches)
            && !rule.unless.as_ref().is_some_and(|regex| regex.is_match(&moment.text))
            && !is_quiet;
        if !is_suspicious || moment.is_ignored() || moment.is_listed() {
            return;
        }
        let (file, steps) = (self.found.files.len() - 1, state.progress.steps);
        let rank = row.rank;
        let (stamp, is_chained, at) = (moment.stamp(), moment.is_chained(), self.evidence(moment));
        let (near, message_bytes, place) = (String::new(), 0, place(moment));
        let suspicion = Suspicion { rank, file, steps, stamp, is_chained, at, near, message_bytes, place };
        state.suspicions.push(match moment.raised() {
            Some((down, raised)) if raised != "SystemExit" => suspicion.raising(down, &raised),
            _ => suspicion.saying(moment.near()),
        });
        state.progress.watch(SURVIVED);
        state.matches[index] += 1;
        if state.matches[index] == SUSPICIONS_A_FILE {
            self.close(index, state);
        }
    }

    /// Drops what the run survived, and looks for the like of it again.
    fn settle(&mut self, state: &mut FileState) {
        let (file, steps) = (self.found.files.len() - 1, state.progress.steps);
        let is_over = |at: u64| at.saturating_add(SURVIVED) <= steps;
        if state.suspicions.iter().any(|suspicion| is_over(suspicion.steps)) {
            state.suspicions.retain(|suspicion| !is_over(suspicion.steps));
            self.open(state, |rule| matches!(rule.about, About::Suspicious(_)));
        }
        if state.survivable > 0 {
            let goes = |event: &Event| {
                event.file == file && event.level == Level::Survivable && is_over(event.steps)
            };
            let before = self.found.events.len();
            self.found.events.retain(|event| !goes(event));
            let gone = (before - self.found.events.len()) as u64;
            state.survivable = state.survivable.saturating_sub(gone);
            if gone > 0 {
                self.open(state, |rule| rule.level == Some(Level::Survivable));
            }
        }
    }

    fn open(&self, state: &mut FileState, which: impl Fn(&Rule) -> bool) {
        let rules = &self.signatures.rules;
        for (index, _) in rules.iter().enumerate().filter(|(_, rule)| which(rule)) {
            state.matches[index] = 0;
            if state.tried_at[index] == u64::MAX {
                state.tried_at[index] = 0;
            }
        }
        for (literal, rules) in self.signatures.rules_of.iter().enumerate() {
            state.active[literal] |= rules.iter().any(|&rule| state.matches[rule] != u64::MAX);
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

    fn count(
        &mut self,
        index: usize,
        class: usize,
        moment: &Moment,
        mut verdict: Verdict,
        state: &mut FileState,
    ) {
        let rule = &self.signatures.rules[index];
        let mut level = rule.level.unwrap_or(self.signatures.classes[class].level);
        if matches!(rule.about, About::Judge(_)) && level == Level::Cause && is_quiet(&moment.text) {
            // Its logger calls it a warning: a batch was skipped, or an attempt made again.
            level = Level::Survivable;
        }
        state.matches[index] += 1;
        self.found.counts[class] += 1;
        if state.matches[index] <= EVENTS_A_RULE {
            for read in &self.signatures.classes[class].reads {
                let Some((reason, first)) = reading(read, moment.near()) else { continue };
                verdict.reasons.push(reason);
                verdict.first_steps.extend(first);
            }
            state.survivable += u64::from(level == Level::Survivable);
            let (file, text, stamp) = (self.found.files.len() - 1, moment.shown(rule), moment.stamp());
            let (line, steps) = (moment.line, state.progress.steps);
            state.progress.watch(if level == Level::Survivable { SURVIVED } else { OUTLIVED });
            self.keep(Event { class, file, line, text, stamp, level, steps, verdict });
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
