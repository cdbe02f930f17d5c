//! The schedule: which sequences run, which rows the next pass computes, and who gives blocks back.
//!
//! A sequence shares the full blocks of its group's prompt and owns the blocks after them; the prompt's last,
//! partial block is copied into the first own one. A preempted sequence keeps its tokens and computes their keys
//! again. Nothing here depends on time, so a request schedules alike on every machine.
//!
//! A sequence whose turn has ended is paused: it leaves the passes and keeps its blocks until it goes on with the
//! answer, whose rows are computed after them like those of a prompt. It may be preempted as others may.

pub(crate) mod slots;

use crate::limits::own_blocks;
use crate::{BlockPool, EngineLimits, OnFull, Samples};
use plimsoll_device::{ATTENTION_CHUNK, KV_BLOCK, NO_PARENT};
use plimsoll_model::PassIndex;

/// A prompt and the blocks of its keys.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) prompt_tokens: usize,
    /// Longest response of its sequences.
    new_tokens: usize,
    /// Rows whose keys are in `blocks`.
    computed: usize,
    blocks: Vec<u32>,
    /// Its sequences that have not ended.
    live: usize,
    /// Its sequences that run.
    running: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    /// A turn has ended, and its answer has not come.
    Paused,
    /// It goes on as soon as there is room.
    Ready,
    Done,
}

/// What `next_pass` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Pass,
    /// Everyone who has not ended waits for an answer.
    Answer,
    /// Every sequence has ended.
    Nothing,
}

#[derive(Debug)]
struct Sequence {
    state: State,
    /// Its group's index.
    group: usize,
    /// Sequences are served in this order.
    ticket: u64,
    /// Own tokens whose keys are in `blocks`.
    computed: usize,
    blocks: Vec<u32>,
    /// True once the prompt's partial block is in the first own block.
    has_tail: bool,
}

#[derive(Debug)]
pub(crate) struct Schedule {
    limits: EngineLimits,
    on_full: OnFull,
    pool: BlockPool,
    groups: Vec<Group>,
    sequences: Vec<Sequence>,
    num_groups: usize,
    /// The sequences that are served, in the order of their tickets.
    line: Vec<usize>,
    /// Running sequences, in the order of their tickets.
    running: Vec<usize>,
    num_paused: usize,
    num_ready: usize,
    /// Blocks promised to running sequences under `OnFull::WorstCase`.
    promised: usize,
    pub(crate) preemptions: u64,
    /// Sample of each head row of the pass under way.
    pub(crate) head_samples: Vec<usize>,
}

impl Schedule {
    pub(crate) fn new(limits: EngineLimits, on_full: OnFull) -> Schedule {
        let per_prompt = limits.prompt_tokens.div_ceil(KV_BLOCK);
        let own = own_blocks(KV_BLOCK - 1, limits.new_tokens);
        let group = || Group { blocks: Vec::with_capacity(per_prompt), ..Group::default() };
        let sequence = || Sequence {
            state: State::Done,
            group: 0,
            ticket: 0,
            computed: 0,
            blocks: Vec::with_capacity(own),
            has_tail: false,
        };
        Schedule {
            limits,
            on_full,
            pool: BlockPool::new(limits.blocks),
            groups: (0..limits.samples).map(|_| group()).collect(),
            sequences: (0..limits.samples).map(|_| sequence()).collect(),
            num_groups: 0,
            line: Vec::with_capacity(limits.samples),
            running: Vec::with_capacity(limits.sequences + 1),
            num_paused: 0,
            num_ready: 0,
            promised: 0,
            preemptions: 0,
            head_samples: Vec::with_capacity(limits.sequences),
        }
    }

    /// Heap bytes for limits: what the vectors above hold.
    pub(crate) fn bytes(limits: &EngineLimits) -> u64 {
        let per_prompt = limits.prompt_tokens.div_ceil(KV_BLOCK) * 4;
        let own = own_blocks(KV_BLOCK - 1, limits.new_tokens) * 4;
        let each = size_of::<Group>() + size_of::<Sequence>() + per_prompt + own + 40;
        (limits.samples * each + limits.blocks * 4 + limits.sequences * 16) as u64
    }

    /// Begins a request; every block is free again.
    pub(crate) fn begin(&mut self, prompt_lens: impl ExactSizeIterator<Item = usize>, group_size: usize) {
        self.num_groups = prompt_lens.len();
        (self.promised, self.preemptions) = (0, 0);
        (self.num_paused, self.num_ready) = (0, 0);
        self.running.clear();
        // A request that ended with an error may have left blocks in use.
        for group in &mut self.groups {
            self.pool.give_back(&mut group.blocks);
        }
        for sequence in &mut self.sequences {
            self.pool.give_back(&mut sequence.blocks);
            sequence.state = State::Done;
        }
        for (group, prompt_tokens) in self.groups.iter_mut().zip(prompt_lens) {
            (group.prompt_tokens, group.new_tokens) = (prompt_tokens, self.limits.new_tokens);
            (group.computed, group.live, group.running) = (0, group_size, 0);
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
        index.clear();
        self.head_samples.clear();
        self.admit(samples);
        if self.running.is_empty() {
            let done = |s: &Sequence| s.state == State::Done || s.state == State::Paused;
            assert!(
                self.num_paused > 0 || self.line.iter().all(|&s| done(&self.sequences[s])),
                "nothing can run"
            );
            return if self.num_paused > 0 { Next::Answer } else { Next::Nothing };
        }
        self.grow(samples);
        let mut at = 0;
        while at < self.running.len() && index.ids.len() < self.limits.rows {
            let s = self.running[at];
            let g = self.sequences[s].group;
            if samples.ids(s).is_empty() {
                at += self.push_first_tokens(at, prompt(g), samples, index);
            } else if self.groups[g].computed < self.groups[g].prompt_tokens {
                // The prompt was given up (see `make_room`): its keys first, the sequences in the next pass.
                self.push_prompt(g, prompt(g), index);
                let of_group = |&&s: &&usize| self.sequences[s].group == g;
                at += self.running[at..].iter().take_while(of_group).count();
            } else {
                self.push_sequence(s, samples.ids(s), index);
                at += 1;
            }
        }
        Next::Pass
    }

    /// Fills `index` with the rows of a run of decode passes and gives their blocks out. Returns the number of passes, or
    /// 0 if something else is to be done first.
    ///
    /// The index holds one row for each running sequence, in a bucket filled up with copies of the first.
    pub(crate) fn next_run(
        &mut self,
        samples: &Samples,
        max_new_tokens: usize,
        most: usize,
        index: &mut PassIndex,
    ) -> usize {
        index.clear();
        self.head_samples.clear();
        self.admit(samples);
        if self.running.is_empty() || !self.running.iter().all(|&s| self.only_decodes(s, samples)) {
            return 0;
        }
        let tokens = |s: &usize| samples.ids(*s).len();
        let position = |s: &usize| self.group_of(*s).prompt_tokens + tokens(s) - 1;
        let longest = self.running.iter().map(position).max().expect("someone runs");
        let left = self.running.iter().map(|s| max_new_tokens - tokens(s)).max().expect("someone runs");
        let rotary = self.limits.prompt_tokens + self.limits.new_tokens - longest;
        let mut passes = most.min(left).min(rotary);
        while passes > 0 && self.blocks_missing(samples, max_new_tokens, passes) > self.pool.free() {
            passes /= 2;
        }
        if passes == 0 {
            return 0;
        }
        self.take_blocks(samples, max_new_tokens, passes);
        self.push_run(samples, index);
        index.keys_max = keys_bucket(longest + passes + 1);
        passes
    }

    /// True if all that a sequence needs next is one row.
    fn only_decodes(&self, s: usize, samples: &Samples) -> bool {
        let (group, sequence) = (self.group_of(s), &self.sequences[s]);
        let tokens = samples.ids(s).len();
        let copied = sequence.has_tail || group.prompt_tokens.is_multiple_of(KV_BLOCK);
        tokens > 0 && sequence.computed + 1 == tokens && group.computed == group.prompt_tokens && copied
    }

    /// Own blocks of a sequence after some decode passes.
    fn blocks_after(&self, s: usize, samples: &Samples, max_new_tokens: usize, passes: usize) -> usize {
        let prompt = self.group_of(s).prompt_tokens;
        let tokens = (samples.ids(s).len() + passes - 1).min(max_new_tokens - 1);
        (prompt % KV_BLOCK + tokens).div_ceil(KV_BLOCK)
    }

    fn blocks_missing(&self, samples: &Samples, max_new_tokens: usize, passes: usize) -> usize {
        let missing = |&s: &usize| {
            self.blocks_after(s, samples, max_new_tokens, passes)
                .saturating_sub(self.sequences[s].blocks.len())
        };
        self.running.iter().map(missing).sum()
    }

    fn take_blocks(&mut self, samples: &Samples, max_new_tokens: usize, passes: usize) {
        for at in 0..self.running.len() {
            let s = self.running[at];
            let wanted = self.blocks_after(s, samples, max_new_tokens, passes);
            while self.sequences[s].blocks.len() < wanted {
                let block = self.pool.take().expect("the room was counted");
                self.sequences[s].blocks.push(block);
            }
        }
    }

    fn push_run(&mut self, samples: &Samples, index: &mut PassIndex) {
        let stride = self.limits.table_stride();
        for at in 0..crate::limits::bucket(self.running.len()) {
            let filler = at >= self.running.len();
            let s = self.running[if filler { 0 } else { at }];
            let (group, sequence) = (self.group_of(s), &self.sequences[s]);
            let tokens = samples.ids(s);
            let position = group.prompt_tokens + tokens.len() - 1;
            let shared = group.prompt_tokens / KV_BLOCK;
            let first = index.tables.len();
            index.tables.extend_from_slice(&group.blocks[..shared]);
            index.tables.extend_from_slice(&sequence.blocks);
            let block = index.tables[first + position / KV_BLOCK];
            index.tables.resize(first + stride, self.limits.spare_block());
            index.ids.push(tokens[tokens.len() - 1]);
            index.positions.push(position as u32);
            index.slots.push(block * KV_BLOCK as u32 + (position % KV_BLOCK) as u32);
            index.segments.extend_from_slice(&[at as u32, 1, position as u32, first as u32, NO_PARENT]);
            index.head_rows.push(at as u32);
            if !filler {
                self.head_samples.push(s);
            }
        }
    }

    /// After a run of decode passes: every token but the last of those that still run has its key.
    pub(crate) fn end_run(&mut self, samples: &Samples) {
        for &s in &self.running {
            self.sequences[s].computed = samples.ids(s).len() - 1;
        }
    }

    /// True if a sequence waits for its start.
    pub(crate) fn someone_waits(&self) -> bool {
        self.line.iter().any(|&s| self.sequences[s].state == State::Waiting)
    }

    /// A sequence has ended: its blocks are free, and its prompt's when it was the last of its group.
    pub(crate) fn end(&mut self, s: usize) {
        self.leave(s, State::Done);
        self.leave_group(self.sequences[s].group);
    }

    fn leave_group(&mut self, g: usize) {
        self.groups[g].live -= 1;
        if self.groups[g].live > 0 || self.groups[g].blocks.is_empty() {
            return;
        }
        self.pool.give_back(&mut self.groups[g].blocks);
        if self.on_full == OnFull::WorstCase {
            self.promised -= self.prompt_blocks(g);
        }
    }

    fn group_of(&self, s: usize) -> &Group {
        &self.groups[self.sequences[s].group]
    }

    /// A running sequence waits for an answer; its blocks stay.
    pub(crate) fn pause(&mut self, s: usize) {
        self.stop_running(s);
        self.sequences[s].state = State::Paused;
        self.num_paused += 1;
    }

    /// A paused sequence has more tokens and goes on.
    pub(crate) fn go_on(&mut self, s: usize) {
        assert_eq!(self.sequences[s].state, State::Paused, "only a paused sequence goes on");
        self.sequences[s].state = State::Ready;
        self.num_paused -= 1;
        self.num_ready += 1;
    }

    /// Starts sequences in order while there is room: those that go on, then those that have not begun.
    fn admit(&mut self, samples: &Samples) {
        if self.num_ready > 0 && !self.admit_all(State::Ready, samples) {
            return;
        }
        self.admit_all(State::Waiting, samples);
    }

    /// False if one of them has no room.
    fn admit_all(&mut self, state: State, samples: &Samples) -> bool {
        for at in 0..self.line.len() {
            let s = self.line[at];
            if self.running.len() == self.limits.sequences {
                return false;
            }
            if self.sequences[s].state != state {
                continue;
            }
            while !self.has_room_for(s, samples) {
                // With no sequence running, prompts of idle groups and paused sequences may hold the blocks.
                let none = self.running.is_empty();
                if !none || !(self.give_up_idle_prompt(self.sequences[s].group) || self.give_up_paused(s)) {
                    return false;
                }
            }
            self.start(s);
        }
        true
    }

    fn start(&mut self, s: usize) {
        let g = self.sequences[s].group;
        if self.sequences[s].state == State::Ready {
            self.num_ready -= 1; // What was promised to it before its pause still is.
        } else if self.on_full == OnFull::WorstCase {
            self.promised += self.own_blocks_max(g) + self.prompt_blocks_to_promise(g);
        }
        self.take_prompt_blocks(g);
        self.sequences[s].state = State::Running;
        self.groups[g].running += 1;
        let place = self.place_of(s);
        self.running.insert(place, s);
    }

    fn has_room_for(&self, s: usize, samples: &Samples) -> bool {
        let g = self.sequences[s].group;
        let goes_on = self.sequences[s].state == State::Ready;
        match self.on_full {
            OnFull::WorstCase if goes_on => true,
            OnFull::WorstCase => {
                let wanted = self.own_blocks_max(g) + self.prompt_blocks_to_promise(g);
                self.promised + wanted <= self.pool.total()
            }
            // One block for the next token of everyone who runs, so that a newcomer does not preempt at once.
            OnFull::Preempt => {
                let prompt = if self.groups[g].blocks.is_empty() { self.prompt_blocks(g) } else { 0 };
                let own = match goes_on {
                    true => self.wanted_blocks(s, samples).saturating_sub(self.sequences[s].blocks.len()),
                    false => 1,
                };
                prompt + own + self.running.len() <= self.pool.free()
            }
        }
    }

    /// The prompt's blocks are promised with the first sequence of the group that starts.
    fn prompt_blocks_to_promise(&self, g: usize) -> usize {
        if self.groups[g].blocks.is_empty() { self.prompt_blocks(g) } else { 0 }
    }

    fn prompt_blocks(&self, g: usize) -> usize {
        self.groups[g].prompt_tokens.div_ceil(KV_BLOCK)
    }

    fn own_blocks_max(&self, g: usize) -> usize {
        own_blocks(self.groups[g].prompt_tokens, self.groups[g].new_tokens)
    }

    fn take_prompt_blocks(&mut self, g: usize) {
        if self.groups[g].blocks.is_empty() {
            for _ in 0..self.prompt_blocks(g) {
                let block = self.pool.take().expect("admission checked the room");
                self.groups[g].blocks.push(block);
            }
        }
    }

    /// Gives every running sequence the blocks of its tokens, preempting the youngest where none is left.
    fn grow(&mut self, samples: &Samples) {
        let mut at = 0;
        while at < self.running.len() {
            let s = self.running[at];
            let wanted = self.wanted_blocks(s, samples);
            while self.sequences[s].blocks.len() < wanted && self.sequences[s].state == State::Running {
                match self.pool.take() {
                    Some(block) => self.sequences[s].blocks.push(block),
                    None => self.make_room(),
                }
            }
            at += usize::from(self.running.get(at) == Some(&s));
        }
    }

    /// Own blocks for the tokens that a sequence has.
    fn wanted_blocks(&self, s: usize, samples: &Samples) -> usize {
        let prompt = self.group_of(s).prompt_tokens;
        let tokens = samples.ids(s).len();
        if tokens == 0 { 0 } else { (prompt % KV_BLOCK + tokens).div_ceil(KV_BLOCK) }
    }

    /// Frees at least one block: prompts of groups that do not run first, then who waits for an answer, else the
    /// youngest sequence.
    fn make_room(&mut self) {
        if self.give_up_idle_prompt(usize::MAX) || self.give_up_paused(usize::MAX) {
            return;
        }
        assert!(self.running.len() > 1, "{} blocks do not hold one sequence", self.pool.total());
        let youngest = *self.running.last().expect("someone runs");
        self.leave(youngest, State::Waiting);
        self.preemptions += 1;
    }

    /// Frees the blocks of the last group that does not run, `keep` aside. False if there is none.
    fn give_up_idle_prompt(&mut self, keep: usize) -> bool {
        if self.on_full == OnFull::WorstCase {
            return false; // What is promised stays.
        }
        let idle = |&g: &usize| g != keep && self.groups[g].running == 0 && !self.groups[g].blocks.is_empty();
        let Some(g) = (0..self.num_groups).rev().find(idle) else { return false };
        self.pool.give_back(&mut self.groups[g].blocks);
        self.groups[g].computed = 0;
        true
    }

    /// Frees the own blocks of the youngest sequence that does not run, `keep` aside. False if there is none.
    fn give_up_paused(&mut self, keep: usize) -> bool {
        if self.on_full == OnFull::WorstCase || self.num_paused + self.num_ready == 0 {
            return false;
        }
        let rests = |s: &Sequence| matches!(s.state, State::Paused | State::Ready) && !s.blocks.is_empty();
        let found = |&s: &usize| s != keep && rests(&self.sequences[s]);
        let Some(s) = self.line.iter().rev().copied().find(found) else { return false };
        self.forget_keys(s);
        self.preemptions += 1;
        true
    }

    fn stop_running(&mut self, s: usize) {
        let place = self.place_of(s);
        assert_eq!(self.running.get(place), Some(&s), "a running sequence is among them");
        self.running.remove(place);
        self.groups[self.sequences[s].group].running -= 1;
    }

    /// Returns the place of a sequence among those that run, or where it would be.
    fn place_of(&self, s: usize) -> usize {
        self.running.partition_point(|&r| self.sequences[r].ticket < self.sequences[s].ticket)
    }

    /// Takes a sequence out of the passes, or out of its pause, without its blocks.
    fn leave(&mut self, s: usize, state: State) {
        match self.sequences[s].state {
            State::Paused => self.num_paused -= 1,
            _ => self.stop_running(s),
        }
        if self.on_full == OnFull::WorstCase {
            self.promised -= self.own_blocks_max(self.sequences[s].group);
        }
        self.forget_keys(s);
        self.sequences[s].state = state;
    }

    fn forget_keys(&mut self, s: usize) {
        let sequence = &mut self.sequences[s];
        self.pool.give_back(&mut sequence.blocks);
        (sequence.computed, sequence.has_tail) = (0, false);
    }

    /// Rows of a group's prompt for its sequences without a token, which are together from `running[at]` on: they
    /// are the youngest of their group. When the prompt's last row is reached, each of them draws its first token.
    ///
    /// Returns how many they are.
    fn push_first_tokens(
        &mut self,
        at: usize,
        prompt: &[u32],
        samples: &Samples,
        index: &mut PassIndex,
    ) -> usize {
        let g = self.sequences[self.running[at]].group;
        let fresh = |&&s: &&usize| self.sequences[s].group == g && samples.ids(s).is_empty();
        let count = self.running[at..].iter().take_while(fresh).count();
        if self.push_prompt(g, prompt, index) {
            let row = index.ids.len() as u32 - 1;
            for &s in &self.running[at..at + count] {
                index.head_rows.push(row);
                self.head_samples.push(s);
            }
        }
        count
    }

    /// Rows of a prompt whose keys are missing, at least its last. True when that one is reached.
    fn push_prompt(&mut self, g: usize, prompt: &[u32], index: &mut PassIndex) -> bool {
        let group = &mut self.groups[g];
        // A sequence that starts after its prompt was computed needs the last row's output again.
        let first = group.computed.min(prompt.len() - 1);
        let rows = (prompt.len() - first).min(self.limits.rows - index.ids.len());
        let segment = Segment { first_position: first, tokens: &prompt[first..first + rows] };
        segment.push(index, |position| group.blocks[position / KV_BLOCK]);
        index.tables.extend_from_slice(&group.blocks);
        group.computed = group.computed.max(first + rows);
        first + rows == prompt.len()
    }

    /// Rows of a sequence's own tokens whose keys are missing: one in decode, all of them after a preemption.
    fn push_sequence(&mut self, s: usize, tokens: &[u32], index: &mut PassIndex) {
        let group = &self.groups[self.sequences[s].group];
        let (shared, tail) = (group.prompt_tokens / KV_BLOCK, group.prompt_tokens % KV_BLOCK);
        let sequence = &mut self.sequences[s];
        if tail > 0 && !sequence.has_tail {
            index.copies.extend_from_slice(&[group.blocks[shared], sequence.blocks[0], tail as u32]);
            sequence.has_tail = true;
        }
        let first = sequence.computed;
        let rows = (tokens.len() - first).min(self.limits.rows - index.ids.len());
        let segment =
            Segment { first_position: group.prompt_tokens + first, tokens: &tokens[first..first + rows] };
        let blocks = &sequence.blocks;
        segment.push(index, |position| blocks[position / KV_BLOCK - shared]);
        index.tables.extend_from_slice(&group.blocks[..shared]);
        index.tables.extend_from_slice(blocks);
        sequence.computed = first + rows;
        if first + rows == tokens.len() {
            index.head_rows.push(index.ids.len() as u32 - 1);
            self.head_samples.push(s);
        }
    }
}

/// A bound on keys for passes that are recorded: chunks of attention in powers of two, so that there are few.
pub(crate) fn keys_bucket(keys: usize) -> usize {
    keys.div_ceil(ATTENTION_CHUNK).next_power_of_two() * ATTENTION_CHUNK
}

/// Consecutive tokens of one sequence.
struct Segment<'a> {
    first_position: usize,
    tokens: &'a [u32],
}

impl Segment<'_> {
    /// Adds the rows and the segment's record; the caller adds the block table after it.
    fn push(&self, index: &mut PassIndex, block_of: impl Fn(usize) -> u32) {
        let first_row = index.ids.len() as u32;
        for (i, &token) in self.tokens.iter().enumerate() {
            let position = self.first_position + i;
            index.ids.push(token);
            index.positions.push(position as u32);
            index.slots.push(block_of(position) * KV_BLOCK as u32 + (position % KV_BLOCK) as u32);
        }
        let (rows, table) = (self.tokens.len() as u32, index.tables.len() as u32);
        index.segments.extend_from_slice(&[first_row, rows, self.first_position as u32, table, NO_PARENT]);
    }
}
