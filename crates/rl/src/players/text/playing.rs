//! A step's rollout of episodes that others go on with. An episode goes on to its next turn if fewer ticks than the
//! step's have passed, and a tick is a token that it draws: what environments say costs none.
//!
//! A turn is never split: an episode whose turn is under way at the step's tick ends this turn, hears the answer and
//! then stops. Turns that began at that tick or later are dropped, whatever the environment said to them.

use super::environment::TextPlayer;
use super::talk::{Heard, Talk};
use crate::players::chunk::{RankChunks, ResponseChunk};
use crate::players::dealt::OwnPart;
use crate::players::drawing::{Done, Drawing};
use crate::players::episodes::Events;
use crate::players::player::Play;
use crate::roles::Trainer;
use plimsoll_base::{Error, Result};
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::{Finish, Samples, SoFar, StopCondition};
use plimsoll_run::under_way;
use std::collections::VecDeque;

/// A turn of this step.
struct NewTurn {
    /// Ticks before it.
    start: u64,
    is_cut: bool,
    end: Option<End>,
}

/// Why an episode goes no further.
enum End {
    Done,
    /// A limit on turns or tokens.
    Limit,
    Fault(Option<Error>),
}

/// What this step adds to one of this rank's episodes.
#[derive(Default)]
struct Addition {
    /// Ticks before its turn.
    ticks: u64,
    turns: Vec<NewTurn>,
    /// The answer after which it stops.
    held: Vec<u32>,
}

impl Addition {
    fn last(&mut self) -> &mut NewTurn {
        self.turns.last_mut().expect("a turn was played")
    }
}

struct Playing<'d> {
    talk: Talk<'d>,
    drawing: Drawing<'d>,
    new: Vec<Addition>,
    /// Most tokens of a sequence.
    tokens_max: usize,
    /// Episodes whose turn began too late: it is dropped, and has no answer.
    late: VecDeque<usize>,
}

impl StopCondition for Playing<'_> {
    fn stops(&mut self, sample: usize, turn: &[u32]) -> bool {
        let has_stopped = self.talk.stops(sample, turn);
        let before = self.new[sample].ticks;
        self.drawing.drew(sample, before + turn.len() as u64);
        has_stopped || before >= self.drawing.bound()
    }

    fn has_turns(&self) -> bool {
        true
    }

    fn turn_ended(&mut self, sample: usize, turn: &[u32], finish: Finish) {
        let new = &mut self.new[sample];
        let start = new.ticks;
        new.ticks += turn.len() as u64;
        if start >= self.drawing.bound() {
            return self.late.push_back(sample);
        }
        self.drawing.drew(sample, new.ticks);
        self.talk.turn_ended(sample, turn, finish);
        new.turns.push(NewTurn { start, is_cut: false, end: None });
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        if let Some(sample) = self.late.pop_front() {
            self.drawing.cut(sample);
            return Ok(Some(sample));
        }
        let Some(reply) = self.talk.take_reply(wait) else { return Ok(None) };
        let (sample, new) = (reply.slot, &mut self.new[reply.slot]);
        let mut is_cut = false;
        let end = match reply.outcome {
            Ok(Some(said)) => match self.talk.follow(sample, said, tokens)? {
                Heard::Done => Some(End::Done),
                Heard::Full => Some(End::Limit),
                Heard::Words { is_cut: has_less } => {
                    is_cut = has_less;
                    None
                }
                Heard::Fault(fault) => Some(End::Fault(Some(fault))),
            },
            Ok(None) => Some(End::Fault(None)),
            Err(fault) => Some(End::Fault(Some(fault))),
        };
        (new.last().end, new.last().is_cut) = (end, is_cut);
        let has_room = self.talk.tokens(sample) < self.tokens_max;
        if !tokens.is_empty() && has_room && new.ticks >= self.drawing.bound() {
            new.held.append(tokens);
            self.drawing.cut(sample);
        }
        Ok(Some(sample))
    }

    fn ended(&mut self, sample: usize, _response: &[u32], finish: Finish) {
        under_way::ended();
        let new = &mut self.new[sample];
        self.drawing.tail.ended(new.ticks);
        if self.drawing.drawn[sample].is_over() {
            return;
        }
        // An answer had no room.
        if self.talk.forget_answer(sample) {
            new.last().end = Some(End::Limit);
        }
        self.drawing.end(sample, new.ticks, finish);
    }
}

impl Playing<'_> {
    /// Asks an environment that scores whole episodes for the rewards of those that ended in turns that began before
    /// tick `ticks`.
    fn settle(&mut self, ticks: u64) {
        let is_kept = |new: &Addition| match new.turns.last() {
            Some(NewTurn { start, end: Some(End::Done | End::Limit), .. }) => *start < ticks,
            _ => false,
        };
        let ended: Vec<usize> = (0..self.new.len()).filter(|slot| is_kept(&self.new[*slot])).collect();
        for (slot, fault) in self.talk.player.reward(&ended) {
            self.new[slot].last().end = Some(End::Fault(fault));
        }
    }

    /// Returns what an episode played in the step's `ticks`, without the turns that began later. `start`: the tokens
    /// that it had.
    fn piece(
        &mut self,
        sample: usize,
        start: usize,
        samples: &Samples,
        ticks: u64,
        events: &mut Events,
    ) -> ResponseChunk {
        let mut piece = self.keep(sample, ticks, events);
        let (turns, ids, logprobs) = (samples.turns(sample), samples.ids(sample), samples.logprobs(sample));
        let end = turns.get(piece.turns.len()).map_or(ids.len(), |dropped| dropped.start as usize);
        // An episode that had ended has no tokens here.
        let drawn = if turns.is_empty() { 0..0 } else { start..end };
        (piece.ids, piece.logprobs) = (ids[drawn.clone()].to_vec(), logprobs[drawn].to_vec());
        if piece.turns.len() == turns.len() {
            piece.ids.extend_from_slice(&self.new[sample].held);
            piece.logprobs.resize(piece.ids.len(), f32::NAN);
        }
        piece
    }

    /// Returns the turns of an episode that began before tick `ticks`, of those of this step, and counts what happened
    /// in them.
    fn keep(&mut self, sample: usize, ticks: u64, events: &mut Events) -> ResponseChunk {
        let (turns, new) = (self.talk.turns(sample), &mut self.new[sample].turns);
        let before = turns.len() - new.len();
        new.truncate(new.iter().take_while(|turn| turn.start < ticks).count());
        let mut of =
            ResponseChunk { turns: turns[before..before + new.len()].to_vec(), ..ResponseChunk::default() };
        for turn in new.drain(..) {
            events.tally.cut += u64::from(turn.is_cut);
            let Some(end) = turn.end else { continue };
            of.finish = of.turns.last().map(|last| last.turn.finish);
            match end {
                End::Done => {}
                End::Limit => events.tally.truncated += 1,
                End::Fault(fault) => {
                    of.has_fault = true;
                    events.abort(fault.as_ref());
                }
            }
        }
        of
    }
}

/// Plays this rank's episodes to the step's tick.
///
/// Errors: those of sampling and of the environment; `rank-lost` where another rank has one.
pub(super) fn play_own(
    player: &mut TextPlayer,
    trainer: &mut Trainer<'_>,
    play: &mut Play<'_>,
    part: &OwnPart<'_>,
    mut drawing: Drawing<'_>,
) -> Result<(Done, RankChunks)> {
    let responses = part.responses();
    let begun: Vec<SoFar<'_>> = responses.iter().map(|response| response.turns_begun()).collect();
    let talk = match player.take_up((play.text, &play.run.rollout), trainer.updates(), &part.groups) {
        Ok(talk) => talk,
        // The other ranks hear of it.
        Err(error) => return Err(drawing.finish(Err(error)).expect_err("an error comes back")),
    };
    let new = responses.iter().map(|_| Addition::default()).collect();
    let tokens_max = trainer.sampler.shape.engine.new_tokens;
    let mut playing = Playing { talk, drawing, new, tokens_max, late: VecDeque::new() };
    let ran = trainer.rollout_from(&part.request(play.run, play.eos), &begun, &mut playing);
    let stats = playing.drawing.finish(ran)?;
    let (ticks, mut events) = (playing.drawing.times.bound(), Events::default());
    playing.settle(ticks);
    let (samples, mut pieces) = (&trainer.sampler.samples, Vec::with_capacity(responses.len()));
    for (s, response) in responses.iter().enumerate() {
        pieces.push(playing.piece(s, response.ids.len(), samples, ticks, &mut events));
    }
    let turns = (0..responses.len()).flat_map(|s| samples.turns(s));
    let drawn: usize = turns.map(|turn| turn.tokens().len()).sum();
    let dropped = (drawn - pieces.iter().map(ResponseChunk::drawn).sum::<usize>()) as u64;
    Ok((playing.drawing.done(), RankChunks { pieces, stats, dropped, events }))
}
