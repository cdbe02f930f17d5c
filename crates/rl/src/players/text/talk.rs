//! The engine's questions about the turns of episodes, and what environments answer.

use super::environment::TextPlayer;
use super::glue::{Answer, Glue, TurnEnd, after_turn};
use crate::data::dataset::forgetting;
use crate::players::turn::PlayedTurn;
use plimsoll_base::{Error, Result};
use plimsoll_config::Rollout;
use plimsoll_infer::album::RowImage;
use plimsoll_infer::responses::{TextStop, response_text};
use plimsoll_infer::text::TextModel;
use plimsoll_rollout::{Finish, StopCondition, Turn};
use plimsoll_run::under_way;
use plimsoll_text::Message;
use plimsoll_textenv::{EnvironmentTally, Job, Reply, Said};
use std::sync::Arc;

/// What an environment's answer means.
pub(super) enum Heard {
    /// The episode is over.
    Done,
    /// It has as many turns as it may.
    Full,
    Words {
        is_cut: bool,
    },
    /// It cannot go on.
    Fault(Error),
}

/// How far an episode has come in its tokens.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Tokens of its sequence before its turn.
    tokens: usize,
    /// The last tokens of its last turn.
    end: TurnEnd,
    /// True from an answer until the next turn ends.
    goes_on: bool,
}

/// A rollout's side of the episodes.
pub(super) struct Talk<'s> {
    pub player: &'s mut TextPlayer,
    text: &'s TextModel,
    rollout: &'s Rollout,
    stop: TextStop<'s>,
    /// The updates of the weights that play.
    version: u64,
    places: Vec<Place>,
}

impl<'s> Talk<'s> {
    /// Begins to talk about the player's episodes, of which `tokens` says how many tokens each has after its prompt.
    ///
    /// Errors: `stop-string-invalid`.
    pub(super) fn new(
        player: &'s mut TextPlayer,
        (text, rollout): (&'s TextModel, &'s Rollout),
        version: u64,
        tokens: impl Iterator<Item = usize>,
    ) -> Result<Talk<'s>> {
        let places: Vec<Place> = tokens.map(|tokens| Place { tokens, ..Place::default() }).collect();
        let stop = TextStop::new(text, &rollout.stop, places.len())?;
        Ok(Talk { player, text, rollout, stop, version, places })
    }

    /// Returns how many tokens an episode has after its prompt.
    pub(super) fn tokens(&self, slot: usize) -> usize {
        self.places[slot].tokens
    }

    /// Returns the turns of an episode.
    pub(super) fn turns(&self, slot: usize) -> &[PlayedTurn] {
        &self.player.episodes.played[slot].turns
    }

    /// Takes the next reply, if one has come; with `wait` one must come.
    pub(super) fn take_reply(&mut self, wait: bool) -> Option<Reply> {
        self.player.hosts.take(wait)
    }

    /// Records an environment's answer; returns the tokens that follow, none where the episode is over.
    fn hear(&mut self, slot: usize, said: Said, tokens: &mut Vec<u32>) -> Result<()> {
        let tally = match self.follow(slot, said, tokens)? {
            Heard::Done => return Ok(()),
            Heard::Full => EnvironmentTally { truncated: 1, ..Default::default() },
            Heard::Words { is_cut } => EnvironmentTally { cut: is_cut.into(), ..Default::default() },
            Heard::Fault(fault) => return self.fail(slot, Some(fault)),
        };
        self.player.episodes.events.tally.add(&tally);
        Ok(())
    }

    /// Takes back the answer to the last turn if no turn came after it. True if there was one.
    pub(super) fn forget_answer(&mut self, slot: usize) -> bool {
        let goes_on = self.places[slot].goes_on;
        if let Some(turn) = self.player.episodes.played[slot].turns.last_mut().filter(|_| goes_on) {
            turn.said.clear();
        }
        goes_on
    }

    /// Takes the images of an environment's answer.
    ///
    /// Errors: `image-count` for more than an episode may have; those of reading and decoding them.
    fn take_images(&mut self, slot: usize, images: Vec<Vec<u8>>) -> Result<Vec<Arc<RowImage>>> {
        let Some(album) = &self.text.album else { return Ok(Vec::new()) };
        let (section, episode) = (&self.player.episodes.section, &self.player.episodes.played[slot]);
        let (count, most) = (episode.images.len() + images.len(), section.images_max as usize);
        let place = format!("{}: episode {}", section.env, episode.start.index);
        if count > most {
            let message = format!("{place} has {count} images of tools, environment.images_max is {most}");
            return Err(Error::new("image-count", message).hint("raise environment.images_max"));
        }
        let first = episode.images.len() + 1;
        let numbered = images.into_iter().zip(first..);
        numbered
            .map(|(image, n)| album.take_answer(image, &format!("{place}: image {n} of its tools")))
            .collect()
    }

    /// Adds what an environment said to its episode, without counting it.
    pub(super) fn follow(&mut self, slot: usize, said: Said, tokens: &mut Vec<u32>) -> Result<Heard> {
        let images = match self.take_images(slot, said.images) {
            Ok(images) => images,
            Err(fault) => return Ok(Heard::Fault(fault)),
        };
        let TextPlayer { hosts, episodes, .. } = &mut *self.player;
        let (section, episode) = (&episodes.section, &mut episodes.played[slot]);
        let (num_turns, place) = (episode.turns.len(), &mut self.places[slot]);
        let turn = episode.turns.last_mut().expect("a turn was played");
        turn.reward = said.reward;
        if said.done {
            return Ok(Heard::Done);
        }
        if num_turns == section.turns_max as usize {
            return Ok(Heard::Full);
        }
        let most = section.turn_tokens_max as usize;
        let glue = Glue { text: self.text, tools: &hosts.about().tools };
        let before = &episode.messages;
        let answer = Answer { messages: &said.messages, images: &images };
        let after = forgetting(|| after_turn(glue, before, &turn.response, answer, &place.end, most));
        let after = match after {
            // It is the image that has no room, or that its tool's words have no place for.
            Err(fault) if !images.is_empty() => return Ok(Heard::Fault(fault)),
            after => after?,
        };
        episode.images.extend(images);
        let is_cut = after.is_cut || said.is_cut;
        episode.messages.push(Message::new("assistant", turn.response.clone()));
        episode.messages.extend_from_slice(&said.messages);
        turn.said = said.messages;
        (place.goes_on, place.tokens) = (true, place.tokens + after.ids.len());
        tokens.extend(after.ids);
        Ok(Heard::Words { is_cut })
    }

    /// Records a fault that ended an episode.
    ///
    /// Errors: `text-environment-failing`.
    fn fail(&mut self, slot: usize, fault: Option<Error>) -> Result<()> {
        self.player.episodes.fail(slot, fault)
    }
}

impl StopCondition for Talk<'_> {
    fn stops(&mut self, sample: usize, turn: &[u32]) -> bool {
        self.stop.stops(sample, turn)
    }

    fn has_turns(&self) -> bool {
        true
    }

    fn turn_ended(&mut self, sample: usize, turn: &[u32], finish: Finish) {
        let response = response_text(self.text, turn, finish, &self.rollout.stop, self.rollout.keep_stop);
        let place = &mut self.places[sample];
        let start = place.tokens as u32;
        let drawn = Turn { start, end: start + turn.len() as u32, finish };
        let end = TurnEnd::of(turn, finish == Finish::Eos);
        *place = Place { tokens: drawn.end as usize, end, goes_on: false };
        let (_, calls) = self.player.glue(self.text).words_and_calls(&response);
        let (said, version) = (Vec::new(), self.version);
        let played = PlayedTurn { turn: drawn, response: response.clone(), reward: 0.0, said, version };
        self.player.episodes.played[sample].turns.push(played);
        self.player.hosts.ask(sample, Job::Step(response, calls));
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        let Some(reply) = self.take_reply(wait) else { return Ok(None) };
        match reply.outcome {
            Ok(Some(said)) => self.hear(reply.slot, said, tokens)?,
            Ok(None) => self.fail(reply.slot, None)?,
            Err(fault) => self.fail(reply.slot, Some(fault))?,
        }
        Ok(Some(reply.slot))
    }

    fn ended(&mut self, sample: usize, _response: &[u32], _finish: Finish) {
        under_way::ended();
        // An answer that had no room in the episode is not part of it.
        let is_cut = self.forget_answer(sample);
        self.player.episodes.events.tally.truncated += u64::from(is_cut);
    }
}
