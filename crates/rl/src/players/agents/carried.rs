//! Episodes of agents that take several steps. Their agents live on between two steps, each with a request that is
//! held; a resumed run begins the episodes again, and gives the recorded answers to the agents that play them.

use crate::players::chunk::ResponseChunk;
use crate::players::episodes::Events;
use crate::players::groups::Response;
use crate::players::turn::{FirstRequest, PlayedTurn};
use plimsoll_rollout::{Finish, Turn};
use plimsoll_serve::episodes::{Had, Progress, SampledResponse};

/// What a step adds to an agent's episode.
#[derive(Default)]
pub(super) struct NewTurns {
    pub asked: Option<FirstRequest>,
    pub piece: ResponseChunk,
    /// The reward of the episode, if it ended with one.
    pub reward: Option<f64>,
}

/// Returns the responses that an episode has had, none of one that has ended.
pub(super) fn had(episode: &Response) -> Vec<Had> {
    let (Some(asked), None) = (&episode.asked, episode.finish) else { return Vec::new() };
    let had = |of: &PlayedTurn| {
        let tokens = of.turn.tokens();
        Had {
            prompt: [&asked.prompt, &episode.ids[..tokens.start]].concat(),
            drawn: SampledResponse {
                ids: episode.ids[tokens.clone()].to_vec(),
                logprobs: episode.logprobs[tokens].to_vec(),
                finish: of.turn.finish,
                text: of.response.clone(),
            },
        }
    };
    episode.turns.iter().map(had).collect()
}

/// Returns what is new in an episode, drawn by the weights of `version`, and counts in `events` how it ended.
pub(super) fn new_turns(episode: &Response, to: Progress, version: u64, events: &mut Events) -> NewTurns {
    let Progress { sequence, said, outcome, was_limited } = to;
    let (known, mut new) = (episode.turns.len(), NewTurns::default());
    // One that is begun again may end before it has come as far as it was.
    if let Some(mut sequence) = sequence.filter(|sequence| sequence.turns.len() > known) {
        let turns = sequence.turns.iter().zip(&sequence.responses).skip(known);
        let turn = |(turn, number): (&Turn, &usize)| PlayedTurn {
            turn: *turn,
            response: said[*number].1.clone(),
            reward: 0.0,
            said: said.get(number + 1).map(|(heard, _)| heard.clone()).unwrap_or_default(),
            version,
        };
        new.piece.turns = turns.map(turn).collect();
        new.piece.ids = sequence.ids.split_off(episode.ids.len());
        new.piece.logprobs = sequence.logprobs.split_off(episode.ids.len());
        let messages = said.into_iter().next().unwrap_or_default().0;
        new.asked = Some(FirstRequest { prompt: sequence.prompt, messages });
    }
    let Some(outcome) = outcome else { return new };
    let last = new.piece.turns.last().or(episode.turns.last());
    new.piece.finish = Some(last.map_or(Finish::Stop, |last| last.turn.finish));
    events.tally.truncated += u64::from(was_limited);
    match outcome {
        Ok(reward) => new.reward = Some(reward),
        Err(fault) => {
            new.piece.has_fault = true;
            events.abort(Some(&fault));
        }
    }
    new
}
