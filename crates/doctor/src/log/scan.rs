//! Reads streams in windows and finds the lines that matter. A line with one of the literals is cut out, cleaned and
//! tried against that literal's rules; other lines are never decoded.
//!
//! Memory does not depend on the input: one window, a bounded number of events, one state per file, lines in pieces.

use super::collective::Collectives;
use super::colours::Colours;
use super::diagnosis::Evidence;
use super::event::{BACK, Event, Moment, Survived, Verdict, piece_around};
use super::general::{place, reading};
use super::input::Source;
use super::judge;
use super::junk::Text;
use super::levels::is_loud_throughout;
use super::limits::Budget;
use super::memo::{Memo, shape};
use super::progress::{OUTLIVED, SURVIVED, is_step};
use super::ranks::{RankForm, Wrote};
use super::record;
use super::signatures::{About, Judge, Level, Mark, Rule, Signatures};
use super::state::{FileState, PutOff, Suspicion};
use super::text::shown;
use std::io::ErrorKind;

/// Bytes to read after a line.
const AHEAD: usize = 16 << 10;
const CHUNK: usize = 2 << 20;
/// Most events kept per rule and file; more are only counted.
const EVENTS_A_RULE: u64 = 8;
/// Most suspicious lines of each rank kept per file: the first may be harmless.
const SUSPICIONS_A_FILE: u64 = 8;
/// Lines of a file on which a rule that reads earlier lines is tried: a log that repeats itself must not be slow.
const CLOSE_LOOKS_A_RULE: u64 = 512;
/// Most lines put off until the run goes on or ends; the first ones suffice.
const PUT_OFF_MAX: usize = 64;
/// Lines of a rule that a run must survive before more of them are put off, whatever their text.
const SURVIVED_A_RULE: u64 = 16;
/// Most events kept over all files.
const EVENTS_MAX: usize = 8192;
/// Lines within which a program says that it tries again what failed.
const RECOVER_LINES: u64 = 40;
/// Most survived failures to tell of.
const SURVIVED_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct Found {
    pub files: Vec<String>,
    pub events: Vec<Event>,
    /// Failures that end runs, and after which these went on.
    pub survived: Vec<Survived>,
    /// Matching lines of each class.
    pub counts: Vec<u64>,
    pub suspicions: Vec<Suspicion>,
    /// Matching lines of each rule.
    pub uses: Vec<u64>,
    /// True for each framework that is named.
    pub frameworks: Vec<bool>,
    /// Line of each file's successful end.
    pub finished: Vec<Option<u64>>,
    /// True for each file that ends while it counts.
    pub open: Vec<bool>,
    pub collectives: Collectives,
    /// Ranks that have a line in any log.
    pub wrote: Wrote,
    pub bytes: u64,
    pub not_read: Vec<String>,
    /// Files read in part.
    pub parts: Vec<String>,
    /// True if there were more than `EVENTS_MAX` events.
    pub is_cut: bool,
}

/// The place of a line, and facts about its shape.
struct Here {
    piece: (usize, usize),
    line: u64,
    shape: u64,
    slot: usize,
}

pub struct Scanner<'s> {
    pub signatures: &'s Signatures,
    window: Vec<u8>,
    memo: Memo,
    pub found: Found,
}

impl<'s> Scanner<'s> {
    pub fn new(signatures: &'s Signatures) -> Scanner<'s> {
        let found = Found {
            counts: vec![0; signatures.classes.len()],
            frameworks: vec![false; signatures.frameworks.len()],
            uses: vec![0; signatures.rules.len()],
            ..Found::default()
        };
        let memo = Memo::new(signatures.rules.len());
        Scanner { signatures, window: vec![0; BACK + CHUNK + AHEAD], memo, found }
    }

    /// Reads one source to its end, or as far as `budget` allows. If reading fails, the part read is judged.
    pub fn read(&mut self, mut source: Source, budget: &mut Budget) {
        if let Some(why) = source.refused {
            self.found.not_read.push(format!("{}: {why}", source.name));
            return;
        }
        self.found.files.push(source.name.clone());
        self.found.parts.extend(source.cut.take().map(|cut| format!("{}: {cut}", source.name)));
        let mut state = FileState::new(self.signatures);
        let mut colours = Colours::default();
        let mut window = std::mem::take(&mut self.window);
        let (mut length, mut from, mut is_end) = (0, 0, false);
        let mut text = Text::default();
        self.found.wrote.add_file(&source.name);
        let mut form = None;
        while !is_end {
            while length < window.len() && !is_end {
                if let Some(why) = budget.spent().or_else(|| text.refuses(source.is_endless)) {
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
                        text.see(&window[length..length + count]);
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
            let lines = &window[from..to];
            if form.is_none() {
                state.has_levels = !is_loud_throughout(lines);
            }
            for form in form.get_or_insert_with(|| RankForm::learn(lines)) {
                self.found.wrote.read(form, lines);
            }
            self.scan(&window[..length], from, to, &mut state);
            self.look_again(&window[..length], &mut state);
            if is_end {
                self.look_at_last(&window[..length], &mut state);
            }
            state.last.fill_with(|| None);
            state.count_to(&window[..length], to);
            let keep = to.saturating_sub(BACK);
            window.copy_within(keep..length, 0);
            state.counted_to -= keep;
            (length, from) = (length - keep, to - keep);
        }
        if text.is_binary() {
            self.found.not_read.push(format!("{}: most of it is binary, not text", source.name));
        }
        self.finish(state, &window[..length]);
        self.window = window;
    }

    /// Tries the rules of literals that begin in `from..to`.
    fn scan(&mut self, bytes: &[u8], from: usize, to: usize, state: &mut FileState) {
        let signatures = self.signatures;
        // The current piece of a line, and the rules to try on it.
        let (mut piece, mut pending): ((usize, usize), Vec<usize>) = ((0, 0), Vec::new());
        signatures.literals.candidates(bytes, from, to, |literal, at| {
            // Whether and why this line is read may depend on the one before.
            if at >= piece.1 && !pending.is_empty() {
                self.try_piece(bytes, piece, &mut pending, state);
            }
            if signatures.is_counter[literal] && signatures.literals.holds(literal, bytes, at) {
                state.progress.counters.see(bytes, at);
            }
            let is_idle = signatures.is_of_steps[literal] && !state.progress.wants_more();
            if !state.active[literal] || is_idle || !signatures.literals.holds(literal, bytes, at) {
                return;
            }
            for &rule in &signatures.rules_of[literal] {
                let is_idle = match signatures.rules[rule].about {
                    About::Judge(Judge::Reading) => !state.readings.wants_more(),
                    About::Mark(Mark::Step) => !state.progress.wants_more(),
                    About::Mark(Mark::Recover) => state.cause.is_none(),
                    _ => false,
                };
                if is_idle {
                    continue;
                }
                if at >= piece.1 {
                    piece = record::around(bytes, piece_around(bytes, at));
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
        let line = state.line_of(bytes, piece.0);
        let shape = shape(&bytes[piece.0..piece.1]);
        let slot = self.memo.slot(shape);
        pending.sort_unstable();
        let here = Here { piece, line, shape, slot };
        pending.retain(|&rule| self.is_worth_a_try(rule, &here, state));
        self.put_off(&here, pending, state);
        if pending.is_empty() {
            return;
        }
        let mut moment = Moment::new(bytes, piece, line, state.progress.steps, shape);
        for rule in pending.drain(..) {
            self.try_rule(rule, &moment, slot, state);
            moment.steps = state.progress.steps;
        }
    }

    /// Puts off lines like those that the run has often survived: they are read if it does not go on.
    fn put_off(&mut self, here: &Here, pending: &mut Vec<usize>, state: &mut FileState) {
        let is_known = self.memo.is_survived(here.slot, self.found.files.len() - 1);
        let waits = |rule: &mut usize| {
            (is_known || state.survived[*rule] >= SURVIVED_A_RULE) && self.may_be_survived(*rule)
        };
        let mut rules: Vec<usize> = pending.extract_if(.., waits).collect();
        if rules.is_empty() {
            return;
        }
        state.progress.watch(SURVIVED);
        // Keeps no more of a rule than would be read.
        rules.retain(|&rule| state.waiting[rule] < EVENTS_A_RULE);
        if !rules.is_empty() && state.put_off.len() < PUT_OFF_MAX {
            rules.iter().for_each(|&rule| state.waiting[rule] += 1);
            let (steps, line, shape) = (state.progress.steps, here.line, here.shape);
            state.put_off.push(PutOff { piece: here.piece, line, steps, shape, rules });
        }
    }

    /// Returns false for a rule that cannot match, or whose match only needs counting, which is done here.
    fn is_worth_a_try(&mut self, index: usize, here: &Here, state: &mut FileState) -> bool {
        let (line, slot) = (here.line, here.slot);
        let about = self.signatures.rules[index].about;
        // One try per line, because a progress bar repeats its states; none for a closed rule.
        let is_step = matches!(about, About::Mark(Mark::Step | Mark::FullBar));
        if state.tried_at[index] >= line && !is_step {
            return false;
        }
        state.tried_at[index] = state.tried_at[index].max(line);
        match about {
            _ if self.memo.has_failed(slot, index) => false,
            About::Mark(Mark::Step) => state.progress.has_nan() || self.memo.is_step(slot) != Some(false),
            About::Class(class) if state.matches[index] >= EVENTS_A_RULE => {
                // From then on, lines with the words are only counted.
                state.matches[index] += 1;
                self.found.counts[class] += 1;
                let (piece, shape, steps) = (here.piece, here.shape, state.progress.steps);
                state.progress.watch(OUTLIVED);
                state.last[index] = Some(PutOff { piece, line, steps, shape, rules: Vec::new() });
                false
            }
            _ => true,
        }
    }

    /// Returns true for a rule whose lines the run may survive.
    fn may_be_survived(&self, index: usize) -> bool {
        let rule = &self.signatures.rules[index];
        matches!(rule.about, About::Suspicious(_)) || rule.level == Some(Level::Survivable)
    }

    /// Reads lines that were put off, after which the run has not gone on so far.
    fn look_again(&mut self, bytes: &[u8], state: &mut FileState) {
        state.waiting.fill(0);
        for PutOff { piece, line, steps, shape, rules } in std::mem::take(&mut state.put_off) {
            let (moment, slot) = (Moment::new(bytes, piece, line, steps, shape), self.memo.slot(shape));
            for rule in rules {
                if state.matches[rule] < EVENTS_A_RULE {
                    self.try_rule(rule, &moment, slot, state);
                }
            }
        }
    }

    /// Looks at the last line of each rule whose first lines were kept: it may be the end of a log that survived many.
    fn look_at_last(&mut self, bytes: &[u8], state: &mut FileState) {
        for index in 0..state.last.len() {
            let Some(PutOff { piece, line, steps, shape, .. }) = state.last[index].take() else { continue };
            if state.matches[index] == u64::MAX {
                continue;
            }
            let (moment, slot) = (Moment::new(bytes, piece, line, steps, shape), self.memo.slot(shape));
            state.matches[index] = EVENTS_A_RULE - 1;
            self.try_rule(index, &moment, slot, state);
        }
    }

    fn try_rule(&mut self, index: usize, moment: &Moment, slot: usize, state: &mut FileState) {
        let rule = &self.signatures.rules[index];
        if moment.fails_alone(rule) {
            return self.memo.fails(slot, index);
        }
        if rule.spans_lines {
            // The same lines are around each of them.
            let around = shape(moment.surroundings()) ^ moment.shape.rotate_left(1);
            if self.memo.has_failed_nearby(around, index) {
                return;
            }
            if moment.fails_nearby(rule) {
                return self.memo.fails_nearby(around, index);
            }
        }
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
            About::Mark(mark) if moment.matches(rule) => self.mark(index, mark, moment, slot, state),
            About::Mark(_) => {}
            About::Framework(framework) => {
                self.found.frameworks[framework] = true;
                self.close(index, state);
            }
            About::Suspicious(row) => self.suspect(index, row, moment, slot, state),
            About::Class(_) if moment.is_possibility(rule) => self.doubt(index, moment, state),
            About::Class(class) if moment.matches(rule) => {
                self.count(index, class, moment, Verdict::default(), state);
            }
            About::Class(_) => {}
            About::Judge(judge) => {
                // Judgements of tracebacks stop after some events; summing ones see every line.
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

    fn mark(&mut self, index: usize, mark: Mark, moment: &Moment, slot: usize, state: &mut FileState) {
        state.mark_counts[mark as usize] += 1;
        state.marks[mark as usize] = Some(moment.line);
        match mark {
            Mark::Save => state.readings.saved(),
            Mark::Sleep => state.readings.slept(),
            Mark::Wake => state.readings.woke(),
            Mark::Finish => state.progress.finished(moment.message(), moment.line),
            Mark::Begin => state.progress.begins(),
            Mark::Step => {
                let message = moment.metrics();
                let is_step = self.memo.is_step(slot).unwrap_or_else(|| is_step(message));
                // A bar has no metrics, and is recognized by its numbers.
                if is_step || !message.contains("%|") {
                    self.memo.set_step(slot, is_step);
                }
                if state.progress.step(message, is_step, moment.line) {
                    self.settle(state);
                }
            }
            Mark::FullBar => state.progress.full_bar(moment.message(), moment.line),
            Mark::Goodbye => state.progress.goodbye(moment.line),
            Mark::Member => state.progress.member(moment.message(), moment.line),
            Mark::Recover => self.recover(moment.line, state),
            Mark::Rollout | Mark::Expandable | Mark::DiskNearlyFull => self.close(index, state),
            Mark::Capture | Mark::CacheRelease | Mark::Load | Mark::Counter => {}
        }
    }

    /// Takes the failures that the program says it tries again as such that the run may survive.
    fn recover(&mut self, line: u64, state: &mut FileState) {
        let file = self.found.files.len() - 1;
        let is_near = |event: &&mut Event| {
            event.file == file && event.level == Level::Cause && event.line + RECOVER_LINES >= line
        };
        for event in self.found.events.iter_mut().filter(is_near) {
            event.level = Level::Survivable;
            state.survivable += 1;
        }
        state.cause = None;
    }

    /// Returns true for a failure whose own line says that it is tried again, or left out.
    fn says_it_recovers(&self, moment: &Moment) -> bool {
        let mut marks = self.signatures.rules.iter().filter(|rule| rule.about == About::Mark(Mark::Recover));
        marks.any(|rule| !moment.fails_alone(rule) && moment.matches(rule))
    }

    /// Remembers failures that end runs, and that this one survived.
    pub fn tell_survived(&mut self, gone: &[Event]) {
        let classes = &self.signatures.classes;
        let is_cause = |event: &&Event| classes[event.class].level == Level::Cause;
        let told = gone.iter().filter(is_cause);
        let told = told.map(|&Event { class, file, line, .. }| Survived { class, file, line });
        let room = SURVIVED_MAX.saturating_sub(self.found.survived.len());
        self.found.survived.extend(told.take(room));
    }

    fn suspect(&mut self, index: usize, row: usize, moment: &Moment, slot: usize, state: &mut FileState) {
        let (rule, row) = (&self.signatures.rules[index], &self.signatures.suspicious[row]);
        let is_harmless = rule.unless.as_ref().is_some_and(|regex| regex.is_match(&moment.text));
        if is_harmless || !row.at_any_level && moment.is_quiet() {
            return self.memo.fails(slot, index);
        }
        if moment.is_ignored() || moment.is_listed() {
            return;
        }
        self.keep_suspicion(row.rank, moment, state);
        state.matches[index] += 1;
        if state.matches[index] == SUSPICIONS_A_FILE {
            self.close(index, state);
        }
    }

    /// Keeps a line that only lists what may have happened: the run may have died, but of none of it for certain.
    fn doubt(&mut self, index: usize, moment: &Moment, state: &mut FileState) {
        if moment.is_quiet() || moment.is_ignored() || state.matches[index] >= EVENTS_A_RULE {
            return;
        }
        state.matches[index] += 1;
        self.keep_suspicion(1, moment, state);
    }

    fn keep_suspicion(&mut self, rank: usize, moment: &Moment, state: &mut FileState) {
        let (file, steps, shape) = (self.found.files.len() - 1, moment.steps, moment.shape);
        let (stamp, is_chained) = (moment.stamp(&mut state.clock), moment.is_chained());
        let (is_in_thread, at) = (moment.is_in_thread(), self.evidence(moment));
        let (near, message_bytes, place) = (String::new(), 0, place(moment));
        let suspicion = Suspicion {
            rank,
            file,
            steps,
            stamp,
            is_chained,
            is_in_thread,
            shape,
            at,
            near,
            message_bytes,
            place,
        };
        state.suspicions.push(match moment.raised() {
            Some((down, raised)) if raised != "SystemExit" => suspicion.raising(down, &raised),
            _ => suspicion.saying(moment.near()),
        });
        state.progress.watch(SURVIVED);
    }

    /// Drops failures that the run survived, and looks for similar ones again.
    fn settle(&mut self, state: &mut FileState) {
        let (file, steps) = (self.found.files.len() - 1, state.progress.steps);
        let is_over = |at: u64| at.saturating_add(SURVIVED) <= steps;
        let FileState { put_off, waiting, .. } = state;
        for line in put_off.extract_if(.., |line| is_over(line.steps)) {
            line.rules.iter().for_each(|&rule| waiting[rule] -= 1);
        }
        let is_survived = |suspicion: &Suspicion| {
            is_over(suspicion.steps) || suspicion.is_in_thread && suspicion.steps < steps
        };
        let survived = state.suspicions.extract_if(.., |suspicion| is_survived(suspicion));
        let before = survived.fold(0, |count, suspicion| {
            self.memo.survives(suspicion.shape, file);
            count + 1
        });
        if before > 0 {
            self.open(state, |rule| matches!(rule.about, About::Suspicious(_)));
        }
        if state.survivable > 0 {
            let goes = |event: &mut Event| {
                event.file == file && event.level == Level::Survivable && is_over(event.steps)
            };
            let gone: Vec<Event> = self.found.events.extract_if(.., goes).collect();
            gone.iter().for_each(|event| self.memo.survives(event.shape, file));
            self.tell_survived(&gone);
            state.survivable = state.survivable.saturating_sub(gone.len() as u64);
            if !gone.is_empty() {
                // What is judged may be survived too, and be the death of the run later.
                let is_judged = |rule: &Rule| matches!(rule.about, About::Judge(judge) if !judge.sums_up());
                self.open(state, |rule| rule.level == Some(Level::Survivable) || is_judged(rule));
            }
        }
    }

    fn open(&self, state: &mut FileState, which: impl Fn(&Rule) -> bool) {
        let rules = &self.signatures.rules;
        for (index, _) in rules.iter().enumerate().filter(|(_, rule)| which(rule)) {
            state.survived[index] += state.matches[index].min(EVENTS_A_RULE);
            state.matches[index] = 0;
        }
        for index in state.closed.extract_if(.., |index| which(&rules[*index])) {
            state.tried_at[index] = 0;
            rules[index].literals.iter().for_each(|&literal| state.active[literal] = true);
        }
    }

    /// Ends a rule for this file. Literals without an open rule are skipped from then on.
    fn close(&self, rule: usize, state: &mut FileState) {
        state.matches[rule] = u64::MAX;
        state.tried_at[rule] = u64::MAX;
        state.closed.push(rule);
        for &literal in &self.signatures.rules[rule].literals {
            let rules = &self.signatures.rules_of[literal];
            state.active[literal] = rules.iter().any(|&other| state.matches[other] != u64::MAX);
        }
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
        if matches!(rule.about, About::Judge(_)) && level == Level::Cause && moment.is_quiet() {
            // Its logger calls it a warning: a skipped batch, or a retry.
            level = Level::Survivable;
        }
        if level == Level::Cause && self.says_it_recovers(moment) {
            level = Level::Survivable;
        }
        state.matches[index] += 1;
        self.found.counts[class] += 1;
        self.found.uses[index] += 1;
        if state.matches[index] <= EVENTS_A_RULE {
            for read in &self.signatures.classes[class].reads {
                let found = reading(read, moment.near()).or_else(|| reading(read, moment.unwrapped()));
                let Some((reason, first)) = found else { continue };
                verdict.reasons.push(reason);
                verdict.first_steps.extend(first);
            }
            state.survivable += u64::from(level == Level::Survivable);
            state.cause = if level == Level::Cause { Some(moment.line) } else { state.cause };
            let (file, text) = (self.found.files.len() - 1, moment.shown(rule));
            let (stamp, line) = (moment.stamp(&mut state.clock), moment.line);
            let (steps, shape) = (moment.steps, moment.shape);
            state.progress.watch(if level == Level::Survivable { SURVIVED } else { OUTLIVED });
            self.keep(Event { class, file, line, text, stamp, level, steps, shape, verdict });
        }
    }

    fn evidence(&self, moment: &Moment) -> Evidence {
        let file = self.found.files.last().cloned().unwrap_or_default();
        Evidence { file, line: moment.line, text: shown(&moment.text) }
    }

    pub fn keep(&mut self, event: Event) {
        if self.found.events.len() < EVENTS_MAX {
            self.found.events.push(event)
        } else {
            self.found.is_cut = true
        }
    }
}
