//! The schedule: which sequences run, which rows the next pass computes, and which sequence is preempted.
//!
//! A sequence shares the full blocks of its group's prompt and owns the blocks after them; the prompt's last, partial
//! block is copied into the first own one. A preempted sequence keeps its tokens and recomputes their keys. Nothing
//! here depends on time, so a request is scheduled alike on every machine.
//!
//! A sequence whose turn has ended is paused: it leaves the passes and keeps its blocks until it continues with the
//! answer, whose rows are computed after them like those of a prompt. It can be preempted like others.
//!
//! `Cache` decides how many units a prompt and a response hold, and until when; the schedule treats all caches alike.

mod hashes;
mod held;
mod kept;
mod kept_states;
mod prefixes;
mod room;
mod runs;
mod scored;
pub(crate) mod slots;

use crate::limits::Count;
use crate::{EngineLimits, OnFull, Samples};
use hashes::Prefixes;
use held::{Pools, SequenceUnits, Span};
use plimsoll_arch::{Cache, Extent};
use plimsoll_device::{KV_BLOCK, NO_PARENT, NO_STATE};
use plimsoll_model::{PassIndex, TextPlaces};
use std::ops::Range;

/// A prompt and the blocks of its keys.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) prompt_tokens: usize,
    /// Longest response of its sequences.
    new_tokens: usize,
    /// Rows whose keys are in `held`.
    computed: usize,
    held: SequenceUnits,
    /// True if only one sequence has this prompt.
    is_alone: bool,
    /// The first place that one of its sequences still needs, in the cache being processed.
    needed_from: usize,
    /// Number of its sequences that have not ended.
    live: usize,
    running: usize,
}

impl Group {
    /// Returns the extent of its sequences, as caches need it.
    fn extent(&self, limits: &EngineLimits) -> Extent {
        limits.extent(self.prompt_tokens, self.is_alone)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// Its turn has ended, and its answer has not come.
    Paused,
    /// It continues as soon as there is room.
    Ready,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Pass,
    /// All sequences that have not ended wait for an answer.
    Answer,
    /// Every sequence has ended.
    Nothing,
}

/// A row of a prompt in a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoredRow {
    pub(crate) row: u32,
    /// A sequence of its group.
    pub(crate) sample: usize,
    /// The row's position.
    pub(crate) position: usize,
    /// The prompt's token after the row.
    pub(crate) next: u32,
}

#[derive(Debug)]
struct Sequence {
    state: State,
    group: usize,
    /// Sequences are served in order of tickets.
    ticket: u64,
    /// Own tokens whose keys are in `held`.
    computed: usize,
    held: SequenceUnits,
    /// True once the prompt's partial block is copied into the first own block.
    has_tail: bool,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    limits: EngineLimits,
    on_full: OnFull,
    pools: Pools,
    groups: Vec<Group>,
    sequences: Vec<Sequence>,
    num_groups: usize,
    /// The sequences being served, in order of tickets.
    line: Vec<usize>,
    /// Running sequences, in order of tickets.
    running: Vec<usize>,
    num_paused: usize,
    num_ready: usize,
    /// Units promised to running sequences under `OnFull::WorstCase`.
    promised: Count,
    pub(crate) preemptions: u64,
    /// Sample of each head row of the current pass.
    pub(crate) head_samples: Vec<usize>,
    /// Further head rows of the current pass: rows of prompts whose next token has its log-probability computed.
    pub(crate) scored: Vec<ScoredRow>,
    /// By group the position from which on its prompt's rows are scored; empty without clients.
    scored_from: Vec<usize>,
    /// Places of each group's rows, if images may be among them; else empty.
    pub(crate) places: Vec<TextPlaces>,
    /// Places of a sequence's rows in place of its group's, where answers have images; empty as `places` is.
    pub(crate) own_places: Vec<Option<TextPlaces>>,
    /// The slot of each group's adapter, if rows choose among several; else empty.
    pub(crate) adapters: Vec<u32>,
    /// Running sequences in the order of their rows.
    order: Vec<usize>,
    /// The blocks that prompts share, if some are kept for that.
    prefixes: Option<Prefixes>,
}

impl Schedule {
    pub(crate) fn new(limits: EngineLimits, on_full: OnFull) -> Schedule {
        let [per_prompt, own] = held_most(&limits);
        let group = || Group { held: SequenceUnits::with_capacity(per_prompt), ..Group::default() };
        let sequence = || Sequence {
            state: State::Done,
            group: 0,
            ticket: 0,
            computed: 0,
            held: SequenceUnits::with_capacity(own),
            has_tail: false,
        };
        Schedule {
            limits,
            on_full,
            pools: Pools::new(limits.count(|cache| limits.caches.units(cache.index()))),
            groups: (0..limits.samples).map(|_| group()).collect(),
            sequences: (0..limits.samples).map(|_| sequence()).collect(),
            num_groups: 0,
            line: Vec::with_capacity(limits.samples),
            running: Vec::with_capacity(limits.sequences + 1),
            num_paused: 0,
            num_ready: 0,
            promised: Count::default(),
            preemptions: 0,
            head_samples: Vec::with_capacity(limits.decode_rows()),
            scored: Vec::new(),
            scored_from: Vec::new(),
            places: Vec::new(),
            own_places: Vec::new(),
            adapters: Vec::new(),
            order: Vec::with_capacity(limits.sequences + 1),
            prefixes: None,
        }
    }

    /// Returns the heap bytes of a schedule with these limits.
    pub(crate) fn bytes(limits: &EngineLimits) -> u64 {
        let [per_prompt, own] = held_most(limits).map(|most| 4 * limits.blocks(most));
        let each = size_of::<Group>() + size_of::<Sequence>() + per_prompt + own + LINE_AND_UNITS;
        let units: usize = limits.caches.each().map(|cache| limits.caches.units(cache.index())).sum();
        let of_running = limits.sequences * 16 + limits.decode_rows() * size_of::<usize>();
        (limits.samples * each + units * 4 + of_running + 8) as u64
    }

    /// Starts a request; every block is free again, and none is kept for a later prompt.
    pub(crate) fn begin(&mut self, prompt_lens: impl ExactSizeIterator<Item = usize>, group_size: usize) {
        self.num_groups = prompt_lens.len();
        (self.promised, self.preemptions) = (Count::default(), 0);
        (self.num_paused, self.num_ready) = (0, 0);
        self.running.clear();
        // A request that ended with an error may have left blocks in use.
        for group in &mut self.groups {
            group.held.give_back(&mut self.pools);
        }
        for sequence in &mut self.sequences {
            sequence.held.give_back(&mut self.pools);
            sequence.state = State::Done;
        }
        self.forget_prefixes();
        self.scored_from.clear();
        self.scored.clear();
        for (group, prompt_tokens) in self.groups.iter_mut().zip(prompt_lens) {
            (group.prompt_tokens, group.new_tokens) = (prompt_tokens, self.limits.new_tokens);
            (group.computed, group.live, group.running) = (0, group_size, 0);
            group.is_alone = group_size == 1;
        }
        self.line.clear();
        self.line.extend(0..self.num_groups * group_size);
        for (s, sequence) in self.sequences[..self.line.len()].iter_mut().enumerate() {
            (sequence.group, sequence.ticket) = (s / group_size, s as u64);
            (sequence.state, sequence.computed, sequence.has_tail) = (State::Waiting, 0, false);
        }
    }

    /// Fills `index` with the rows of the next pass, if there is one.
    pub(crate) fn next_pass<'p>(
        &mut self,
        prompt: impl Fn(usize) -> &'p [u32],
        samples: &Samples,
        index: &mut PassIndex,
    ) -> Next {
        self.begin_pass(samples, index);
        if self.running.is_empty() {
            let done = |s: &Sequence| s.state == State::Done || s.state == State::Paused;
            assert!(
                self.num_paused > 0 || self.line.iter().all(|&s| done(&self.sequences[s])),
                "nothing can run"
            );
            return if self.num_paused > 0 { Next::Answer } else { Next::Nothing };
        }
        self.grow(samples);
        self.push_decoding(samples, index);
        let mut at = 0;
        while at < self.running.len() && index.ids.len() < self.limits.rows {
            let s = self.running[at];
            let g = self.sequences[s].group;
            if samples.ids(s).is_empty() || self.groups[g].computed < self.groups[g].prompt_tokens {
                at += self.push_first_tokens(at, prompt(g), samples, index);
            } else {
                if self.rows_missing(s, samples) > 0 {
                    self.push_sequence(s, samples.ids(s), index);
                }
                at += 1;
            }
        }
        Next::Pass
    }

    /// Empties what the last pass left, and starts sequences while there is room.
    fn begin_pass(&mut self, samples: &Samples, index: &mut PassIndex) {
        index.clear();
        self.head_samples.clear();
        self.scored.clear();
        self.give_back_states();
        self.drop_unneeded();
        self.admit(samples);
    }

    /// Adds the rows of all sequences that only decode, one each. They come first, so that a pass has them whatever
    /// prompts it has room for; there are fewer of them than rows.
    fn push_decoding(&mut self, samples: &Samples, index: &mut PassIndex) {
        self.put_in_order(|_| ());
        for at in 0..self.order.len() {
            let s = self.order[at];
            let has_prompt = self.group_of(s).computed == self.group_of(s).prompt_tokens;
            if has_prompt && !samples.ids(s).is_empty() && self.rows_missing(s, samples) == 1 {
                self.push_sequence(s, samples.ids(s), index);
            }
        }
    }

    /// Puts the running sequences in the order of their rows: by `key`, then those of one adapter together, since tiles
    /// of few adapters are fast, then as they came.
    fn put_in_order<K: Ord>(&mut self, key: impl Fn(usize) -> K) {
        let Schedule { order, running, sequences, adapters, .. } = self;
        order.clear();
        order.extend(&*running);
        let of = |s: usize| (adapters.get(sequences[s].group), sequences[s].ticket);
        order.sort_unstable_by_key(|&s| (key(s), of(s)));
    }

    /// Returns the rows of a running sequence that are still to be computed: of its prompt, if some are missing there.
    fn rows_missing(&self, s: usize, samples: &Samples) -> usize {
        let group = self.group_of(s);
        match group.prompt_tokens - group.computed {
            0 => samples.ids(s).len() - self.sequences[s].computed,
            rows => rows,
        }
    }

    /// Returns the running sequences.
    pub(crate) fn running(&self) -> &[usize] {
        &self.running
    }

    /// True if a sequence waits to start.
    pub(crate) fn someone_waits(&self) -> bool {
        self.line.iter().any(|&s| self.sequences[s].state == State::Waiting)
    }

    /// Ends a sequence and frees its blocks, and its prompt's if it was the last of its group.
    pub(crate) fn end(&mut self, s: usize) {
        self.leave(s, State::Done);
        self.leave_group(self.sequences[s].group);
    }

    /// Ends a sequence that has not begun.
    pub(crate) fn skip(&mut self, s: usize) {
        assert_eq!(self.sequences[s].state, State::Waiting, "only a sequence that waits is skipped");
        self.sequences[s].state = State::Done;
        self.leave_group(self.sequences[s].group);
    }

    fn leave_group(&mut self, g: usize) {
        self.groups[g].live -= 1;
        if self.groups[g].live > 0 || !self.groups[g].held.has_begun() {
            return;
        }
        self.groups[g].held.give_back(&mut self.pools);
        if self.on_full == OnFull::WorstCase {
            self.promised = self.promised.less(self.of_prompt(g));
        }
    }

    fn group_of(&self, s: usize) -> &Group {
        &self.groups[self.sequences[s].group]
    }

    /// Returns the extent of a sequence, as caches need it.
    fn extent(&self, s: usize) -> Extent {
        self.group_of(s).extent(&self.limits)
    }

    /// Pauses a running sequence until its answer; its blocks stay.
    pub(crate) fn pause(&mut self, s: usize) {
        self.stop_running(s);
        self.sequences[s].state = State::Paused;
        self.num_paused += 1;
    }

    /// Makes a paused sequence with more tokens ready to continue.
    pub(crate) fn go_on(&mut self, s: usize) {
        assert_eq!(self.sequences[s].state, State::Paused, "only a paused sequence goes on");
        self.sequences[s].state = State::Ready;
        self.num_paused -= 1;
        self.num_ready += 1;
    }

    /// Adds rows of a group's prompt, for its sequences from `running[at]` on. At the prompt's last row, those without
    /// a token draw their first one; the others continue in the next pass: their prompt was freed (see `make_room`).
    ///
    /// Returns the number of these sequences.
    fn push_first_tokens(
        &mut self,
        at: usize,
        prompt: &[u32],
        samples: &Samples,
        index: &mut PassIndex,
    ) -> usize {
        let g = self.sequences[self.running[at]].group;
        let of_group = |&&s: &&usize| self.sequences[s].group == g;
        let count = self.running[at..].iter().take_while(of_group).count();
        let room = self.scored_room(g, self.prompt_room(at..at + count, samples, index));
        if room == 0 {
            return count;
        }
        let (first_row, first) = (index.ids.len(), self.groups[g].computed.min(prompt.len() - 1));
        let reaches_end = self.push_prompt(g, prompt, room, index);
        self.score_rows(self.running[at], prompt, (first_row, first), index.ids.len() - first_row);
        if reaches_end {
            let row = index.ids.len() as u32 - 1;
            for &s in self.running[at..at + count].iter().filter(|&&s| samples.ids(s).is_empty()) {
                index.head_rows.push(row);
                self.head_samples.push(s);
            }
        }
        count
    }

    /// Returns the rows that a prompt may have in a pass, whose sequences are those of `running[own]`. One that needs
    /// more
    /// than a whole pass leaves up to a half of what is left to those after it, so none of them waits for all of it.
    fn prompt_room(&self, own: Range<usize>, samples: &Samples, index: &PassIndex) -> usize {
        let left = self.rows_left(index);
        if self.rows_missing(self.running[own.start], samples) <= self.limits.rows {
            return left;
        }
        let later = self.running[own.end..].iter().map(|&s| self.rows_missing(s, samples));
        left - later.fold(0, usize::saturating_add).min(left / 2)
    }

    /// Adds up to `room` rows of a prompt whose keys are missing, at least its last. True if that one is reached.
    fn push_prompt(&mut self, g: usize, prompt: &[u32], room: usize, index: &mut PassIndex) -> bool {
        // A sequence that starts after its prompt was computed needs the last row's output again.
        let first = self.groups[g].computed.min(prompt.len() - 1);
        let rows = self.rows_to_cut(g, first, (prompt.len() - first).min(room));
        let begin = self.take_begin(g, first).or((first == 0).then_some(NO_STATE));
        let group = &mut self.groups[g];
        let segment = Segment { first_position: first, tokens: &prompt[first..first + rows] };
        segment.push(self.places.get(g), self.adapters.get(g), index);
        let end = group.held.end();
        for cache in self.limits.caches.each() {
            let (span, to) = (group.held.of_mut(cache), &mut index.caches[cache.index()]);
            if cache.has_blocks() {
                segment.push_slots(span, &mut to.slots);
                span.push_table(0..end, self.limits.spare(cache), &mut to.tables);
            } else if let Some(state) = span.first() {
                assert_eq!(first, group.computed, "a row is computed once after a state");
                to.slots.extend([begin.unwrap_or(state), state]);
            }
        }
        let computed = group.computed;
        group.computed = computed.max(first + rows);
        self.name_prompt(g, computed);
        self.keep_state(g);
        first + rows == prompt.len()
    }

    /// Returns the rows that a sequence may have in a pass.
    fn rows_left(&self, index: &PassIndex) -> usize {
        (self.limits.rows - index.ids.len()).min(self.limits.step())
    }

    /// Adds rows of a sequence's own tokens whose keys are missing: one in decode, all of them after preemption.
    fn push_sequence(&mut self, s: usize, tokens: &[u32], index: &mut PassIndex) {
        let room = self.rows_left(index);
        let sequence = &mut self.sequences[s];
        let group = &self.groups[sequence.group];
        let (shared, tail) = (group.prompt_tokens / KV_BLOCK, group.prompt_tokens % KV_BLOCK);
        let first = sequence.computed;
        let rows = (tokens.len() - first).min(room);
        let segment =
            Segment { first_position: group.prompt_tokens + first, tokens: &tokens[first..first + rows] };
        let own = self.own_places.get(s).and_then(Option::as_ref);
        let places = own.or_else(|| self.places.get(sequence.group));
        segment.push(places, self.adapters.get(sequence.group), index);
        let end = sequence.held.end();
        for cache in self.limits.caches.each() {
            let to = &mut index.caches[cache.index()];
            if !cache.has_blocks() {
                to.slots.extend(state_of(cache, group, sequence).into_iter().flatten());
                continue;
            }
            let (prompt, own) = (group.held.of(cache), sequence.held.of_mut(cache));
            if tail > 0 && !sequence.has_tail {
                to.copies.extend_from_slice(&[prompt.at(shared), own.at(shared), tail as u32]);
            }
            segment.push_slots(own, &mut to.slots);
            let filler = self.limits.spare(cache);
            prompt.push_table(0..shared, filler, &mut to.tables);
            own.push_table(shared..end, filler, &mut to.tables);
        }
        sequence.has_tail |= tail > 0;
        sequence.computed = first + rows;
        self.name_response(s, tokens);
        if first + rows == tokens.len() {
            index.head_rows.push(index.ids.len() as u32 - 1);
            self.head_samples.push(s);
        }
    }
}

/// Heap bytes of a sample's place in the line, 8, and of two units that are not blocks; rounded up.
const LINE_AND_UNITS: usize = 24;

/// Returns the maximum units of a prompt and of a response.
fn held_most(limits: &EngineLimits) -> [Count; 2] {
    let of = limits.extent(limits.prompt_tokens, false);
    let own = limits.count(|cache| cache.owned_most(limits.new_tokens, of.step));
    [limits.count(|cache| cache.of_prompt(of)), own]
}

/// Returns the state that a sequence reads, its own or its prompt's, and the one that it writes.
fn state_of(cache: Cache, group: &Group, sequence: &Sequence) -> Option<[u32; 2]> {
    let (prompt, own) = (group.held.of(cache).first(), sequence.held.of(cache).first());
    let from = if sequence.computed == 0 || group.is_alone { prompt } else { own }?;
    Some([from, own.unwrap_or(from)])
}

/// Consecutive tokens of one sequence.
struct Segment<'a> {
    first_position: usize,
    tokens: &'a [u32],
}

impl Segment<'_> {
    /// Adds the rows, with their places and the slot of their adapter if they have such, and the segment's record; the
    /// caller adds their places in each cache.
    fn push(&self, places: Option<&TextPlaces>, adapter: Option<&u32>, index: &mut PassIndex) {
        let rows = self.tokens.len() as u32;
        let table = index.caches[Cache::PAGED].tables.len() as u32;
        let record = [index.ids.len() as u32, rows, self.first_position as u32, table, NO_PARENT];
        index.segments.extend_from_slice(&record);
        index.ids.extend_from_slice(self.tokens);
        index.positions.extend(self.positions().map(|position| position as u32));
        if let Some(slot) = adapter {
            index.adapters.resize(index.ids.len(), *slot);
        }
        if let Some(places) = places {
            index.places.extend(self.positions().flat_map(|position| places.at(position)));
        }
    }

    fn positions(&self) -> std::ops::Range<usize> {
        self.first_position..self.first_position + self.tokens.len()
    }

    /// Slides the span over the rows, and adds their slots in its blocks.
    fn push_slots(&self, span: &mut Span, slots: &mut Vec<u32>) {
        span.slide(self.positions().end.div_ceil(KV_BLOCK));
        slots.extend(self.positions().map(|position| span.slot(position)));
    }
}
