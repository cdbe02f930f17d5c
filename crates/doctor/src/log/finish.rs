//! Judges what only a whole file shows: whether the run ended well, what it survived, the last words of a log without a
//! known line, and values that were not numbers at the end.

use super::choice::is_open;
use super::diagnosis::Evidence;
use super::event::{Event, Verdict};
use super::last_counter::{last_counter, last_step};
use super::last_words::{last_words, raised_by};
use super::progress::{OUTLIVED, Progress, SURVIVED};
use super::scan::Scanner;
use super::signatures::{About, Level, Pattern};
use super::state::{FileState, LAST_WORDS, Suspicion};
use super::text::{message, shown};
use super::time::stamp;

/// NCCL's watchdog about a rank that ended before this one.
const PEER_GONE: &str = "NCCL error: remote process exited";

impl Scanner<'_> {
    /// Adds what only the whole file shows.
    pub fn finish(&mut self, mut state: FileState, tail: &[u8]) {
        let file = self.found.files.len() - 1;
        let last_words = self.last_words(file, &state, tail);
        let lines = state.lines + u64::from(!tail.ends_with(b"\n"));
        if let Some((after, done, total)) = last_step(tail) {
            state.progress.counters.last_step(lines.saturating_sub(after as u64), done, total);
        }
        let mut finished = state.progress.finish(state.lines + 1);
        if let Some(end) = finished {
            let goes = |suspicion: &Suspicion| {
                let text = &suspicion.at.text;
                suspicion.at.line > end && (is_open(text) || text.contains(PEER_GONE))
            };
            state
                .suspicions
                .retain(|suspicion| !suspicion.is_farewell() && !suspicion.is_in_thread && !goes(suspicion));
            self.forget_farewells(file, end, state.progress.steps);
        } else if state.suspicions.iter().all(|suspicion| suspicion.rank > 0) {
            self.forget_outlived(file, state.progress.steps);
        }
        self.add_nan(file, &state.progress);
        for (slug, event) in state.readings.finish() {
            let class = self.signatures.class(slug);
            self.keep(Event { class, file, level: self.signatures.classes[class].level, ..event });
        }
        let is_told = self.found.events.iter().any(|event| event.file == file && event.level != Level::Note);
        if finished.is_none()
            && state.suspicions.iter().all(Suspicion::is_head)
            && !is_told
            && let Some(words) = last_words
            && !self.found.events.iter().any(|event| event.file == file && event.line == words.at.line)
        {
            match self.class_of_code(&words.at.text) {
                Some(class) => {
                    self.found.counts[class] += 1;
                    let (line, text, stamp, steps) = (words.at.line, words.at.text, words.stamp, words.steps);
                    let (verdict, level) = (Verdict::default(), Level::Survivable);
                    self.keep(Event { class, file, line, text, stamp, level, steps, shape: 0, verdict });
                }
                None => state.suspicions.push(words),
            }
        }
        // A warning kills nothing, so the run may have ended well all the same.
        let is_failure = |event: &Event| !matches!(event.level, Level::Note | Level::Warning);
        let is_dead = self.found.events.iter().any(|event| event.file == file && is_failure(event));
        let is_quiet = || state.suspicions.iter().all(|suspicion| suspicion.is_in_thread) && !is_dead;
        if finished.is_none() && is_quiet() {
            let counters = &state.progress.counters;
            let at_end = || {
                let (after, sort) = last_counter(tail)?;
                let line = lines.saturating_sub(after as u64);
                counters.allow(counters.end(line, sort)).then_some(line)
            };
            finished = state.progress.said_goodbye(state.lines + 1).or_else(at_end);
            if finished.is_some() {
                state.suspicions.clear();
            }
        }
        self.found.suspicions.extend(state.suspicions);
        self.found.finished.push(finished);
        self.found.open.push(finished.is_none() && state.progress.counters.is_open());
        self.found.collectives.add(state.collectives);
    }

    /// Drops failures of a run that went on and ended well: what it printed before, and peers leaving after the end.
    fn forget_farewells(&mut self, file: usize, end: u64, steps: u64) {
        let classes = &self.signatures.classes;
        let is_warning =
            |event: &Event| event.level == Level::Survivable && classes[event.class].level == Level::Cause;
        // The peers of a group, its store, and Ray's workers leave one after the other.
        let is_farewell = |event: &Event| {
            let slug = classes[event.class].slug.as_str();
            let is_peer = ["network-failed", "rendezvous-timeout", "ray-node-dead"].contains(&slug);
            let is_worker = slug == "worker-sigkill-unknown" && is_open(&event.text);
            let is_left = slug == "nccl-failed" && event.text.contains(PEER_GONE);
            event.line > end && (is_peer && !event.text.contains("Error: ") || is_worker || is_left)
        };
        let goes = |event: &mut Event| {
            event.file == file
                && (event.steps.saturating_add(SURVIVED) <= steps || is_warning(event) || is_farewell(event))
        };
        let gone: Vec<Event> = self.found.events.extract_if(.., goes).collect();
        let gone: Vec<Event> =
            gone.into_iter().filter(|event| event.level != Level::Note && !is_farewell(event)).collect();
        self.tell_survived(&gone);
    }

    /// Reports a value of the last steps that was not a number, and its cause if a line shows it.
    fn add_nan(&mut self, file: usize, progress: &Progress) {
        let class = self.signatures.class("nan-not-memory");
        if let Some((line, text, reason)) = progress.nan_at_end() {
            self.found.counts[class] += 1;
            let (verdict, level, steps) = (Verdict::default().because(reason), Level::Survivable, u64::MAX);
            self.keep(Event { class, file, line, text, stamp: None, level, steps, shape: 0, verdict });
        }
        let Some(line) = progress.lone_group() else { return };
        let own = |event: &&mut Event| event.file == file && event.class == class;
        for event in self.found.events.iter_mut().filter(own) {
            event.verdict.reasons.push(format!(
                "the deviation of the rewards of a group is not a number in line {line}: a group of one sample has none"
            ));
            let step = "sample two or more responses for each prompt (`num_generations`, `rollout.n`, `n_samples_per_prompt`), or do not divide by the deviation";
            event.verdict.first_steps.push(step.into());
        }
    }

    /// Returns the line at the end of a log that reports a failure.
    fn last_words(&self, file: usize, state: &FileState, tail: &[u8]) -> Option<Suspicion> {
        let (after, text) = last_words(tail, state.has_levels)?;
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
            is_in_thread: false,
            shape: 0,
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
        let says = |regex: &Option<Pattern>| regex.as_ref().is_some_and(|regex| regex.is_match(&raised));
        let rules = self.signatures.rules.iter().filter(|rule| rule.needs.is_none() && !says(&rule.unless));
        rules.filter(|rule| says(&rule.regex)).find_map(|rule| match rule.about {
            About::Class(class) => Some(class),
            _ => None,
        })
    }

    /// Drops the deaths if the run outlived all of them by many steps: a sample, a sandbox or a test printed them.
    fn forget_outlived(&mut self, file: usize, steps: u64) {
        let is_death =
            |event: &Event| event.file == file && matches!(event.level, Level::Cause | Level::Secondary);
        let is_outlived = |event: &Event| event.steps.saturating_add(OUTLIVED) <= steps;
        if self.found.events.iter().filter(|event| is_death(event)).all(is_outlived) {
            let gone: Vec<Event> = self.found.events.extract_if(.., |event| is_death(event)).collect();
            self.tell_survived(&gone);
        }
    }
}
