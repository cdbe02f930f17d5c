//! The stop condition of a step's rollout of episodes. An episode goes on to its next turn if fewer ticks than the
//! step's have passed, and a tick is a token that it draws: what environments say costs none.

use super::chunk::{RankChunks, ResponseChunk};
use super::drawing::{Done, Drawing, Drawn};
use super::groups::{Group, Response};
use crate::context::StepContext;
use crate::episodes::{CarriedTalk, EpisodeSoFar, Events};
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::{Finish, GroupTimes, Request, Samples, SoFar, StopCondition};
use plimsoll_run::under_way;
use std::collections::VecDeque;

/// One of this rank's episodes.
#[derive(Default)]
struct Player {
    /// Tokens of its sequence before its turn.
    tokens: usize,
    /// Ticks before its turn.
    ticks: u64,
    /// The answer after which it stops.
    held: Vec<u32>,
}

struct Playing<'d> {
    talk: CarriedTalk<'d>,
    drawing: Drawing<'d>,
    players: Vec<Player>,
    /// Most tokens of a sequence.
    tokens_max: usize,
    /// Episodes whose turn began too late: it is dropped, and has no answer.
    late: VecDeque<usize>,
}

impl StopCondition for Playing<'_> {
    fn stops(&mut self, sample: usize, turn: &[u32]) -> bool {
        let has_stopped = self.talk.stops(sample, turn);
        let before = self.players[sample].ticks;
        self.drawing.drew(sample, before + turn.len() as u64);
        has_stopped || before >= self.drawing.bound()
    }

    fn has_turns(&self) -> bool {
        true
    }

    fn turn_ended(&mut self, sample: usize, turn: &[u32], finish: Finish) {
        let player = &mut self.players[sample];
        let before = player.ticks;
        player.tokens += turn.len();
        player.ticks += turn.len() as u64;
        if before >= self.drawing.bound() {
            return self.late.push_back(sample);
        }
        self.drawing.drew(sample, before + turn.len() as u64);
        self.talk.turn_ended(sample, turn, finish, before);
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        if let Some(sample) = self.late.pop_front() {
            self.drawing.cut(sample);
            return Ok(Some(sample));
        }
        let Some(sample) = self.talk.answer(wait, tokens)? else { return Ok(None) };
        let player = &mut self.players[sample];
        let has_room = player.tokens + tokens.len() < self.tokens_max;
        if !tokens.is_empty() && has_room && player.ticks >= self.drawing.bound() {
            player.held.append(tokens);
            self.drawing.cut(sample);
        }
        player.tokens += tokens.len();
        Ok(Some(sample))
    }

    fn ended(&mut self, sample: usize, _response: &[u32], finish: Finish) {
        under_way::ended();
        self.drawing.tail.ended(self.players[sample].ticks);
        if !self.drawing.drawn[sample].is_over() {
            self.talk.ended(sample);
            self.drawing.end(sample, self.players[sample].ticks, finish);
        }
    }
}

impl Playing<'_> {
    /// Returns what an episode played in the step's `ticks`, without the turns that began later.
    fn piece(
        &mut self,
        sample: usize,
        start: usize,
        samples: &Samples,
        ticks: u64,
        events: &mut Events,
    ) -> ResponseChunk {
        let turns = samples.turns(sample);
        let kept = self.talk.keep(sample, ticks, turns, events);
        let (ids, logprobs) = (samples.ids(sample), samples.logprobs(sample));
        let end = turns.get(kept.turns.len()).map_or(ids.len(), |dropped| dropped.start as usize);
        // An episode that had ended has no tokens here.
        let drawn = if turns.is_empty() { 0..0 } else { start..end };
        let mut piece = ResponseChunk {
            ids: ids[drawn.clone()].to_vec(),
            logprobs: logprobs[drawn].to_vec(),
            finish: kept.finish,
            turns: kept.turns,
            has_fault: kept.has_fault,
        };
        if piece.turns.len() == turns.len() {
            let held = &self.players[sample].held;
            piece.ids.extend_from_slice(held);
            piece.logprobs.resize(piece.ids.len(), f32::NAN);
        }
        piece
    }
}

/// Plays this rank's episodes to the step's tick.
///
/// Errors: those of sampling and of the environment; `rank-lost` where another rank has one.
pub(super) fn play(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    groups: &[&Group],
    request: &Request<'_>,
    (numbers, times): (&[usize], GroupTimes),
) -> Result<(Done, RankChunks)> {
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let responses: Vec<&Response> = groups.iter().flat_map(|group| &group.responses).collect();
    let so_far: Vec<EpisodeSoFar<'_>> = groups.iter().flat_map(|group| group.episodes()).collect();
    let begun: Vec<SoFar<'_>> = responses
        .iter()
        .map(|response| match response.finish {
            Some(_) => SoFar::Ended,
            None => SoFar::Turns { ids: &response.ids, logprobs: &response.logprobs },
        })
        .collect();
    let drawn = responses.iter().map(|response| Drawn::new(response.ids.len(), response.finish.is_some()));
    let player = |response: &&Response| Player { tokens: response.ids.len(), ..Player::default() };
    let mut drawing = Drawing::new(request.group_size, numbers, drawn.collect(), times, trainer.group);
    let talk = match episodes.take_up((cx.text, &cx.run.rollout), trainer.updates(), &so_far) {
        Ok(talk) => talk,
        // The other ranks hear of it.
        Err(error) => return Err(drawing.finish(Err(error)).expect_err("an error comes back")),
    };
    let mut playing = Playing {
        talk,
        drawing,
        players: responses.iter().map(player).collect(),
        tokens_max: trainer.sampler.shape.engine.new_tokens,
        late: VecDeque::new(),
    };
    let ran = trainer.rollout_from(request, &begun, &mut playing);
    let stats = playing.drawing.finish(ran)?;
    let (ticks, mut events) = (playing.drawing.times.bound(), Events::default());
    playing.talk.settle(ticks);
    let samples = &trainer.sampler.samples;
    let one = |(s, response): (usize, &&Response)| {
        playing.piece(s, response.ids.len(), samples, ticks, &mut events)
    };
    let pieces: Vec<ResponseChunk> = responses.iter().enumerate().map(one).collect();
    let turns = (0..responses.len()).flat_map(|s| samples.turns(s));
    let drawn: usize = turns.map(|turn| turn.tokens().len()).sum();
    let dropped = (drawn - pieces.iter().map(ResponseChunk::drawn).sum::<usize>()) as u64;
    Ok((playing.drawing.done(), RankChunks { pieces, stats, dropped, events }))
}
