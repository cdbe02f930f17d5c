//! Episodes of agents that take several steps. Their agents live on between two steps, each with a request that is
//! held; a resumed run begins the episodes again, and gives the recorded answers to the agents that play them.

use super::agents::told;
use super::carried::{EpisodeSoFar, Events};
use super::episode::EpisodesRequest;
use super::fault::Fault;
use super::round::Episodes;
use super::turn::{CarriedTurn, FirstRequest};
use crate::roles::Trainer;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_rollout::{Finish, GroupTimes, RolloutStats, Turn};
use plimsoll_serve::episodes::{CarriedRound, EpisodeOfStep, Had, Progress, SampledResponse};
use plimsoll_textenv::Start;

/// An agent's episode as far as it has come.
pub(crate) struct AgentEpisode<'s> {
    /// The sample that its first response is drawn as.
    pub sample_id: u64,
    pub of: EpisodeSoFar<'s>,
    /// Its tokens after the prompt, and their log-probabilities.
    pub ids: &'s [u32],
    pub logprobs: &'s [f32],
}

/// What a step adds to an agent's episode.
#[derive(Default)]
pub(crate) struct NewTurns {
    pub asked: Option<FirstRequest>,
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub turns: Vec<CarriedTurn>,
    /// How it ended, if it did.
    pub finish: Option<Finish>,
    pub reward: Option<f64>,
    pub has_fault: bool,
}

/// What agents played in a step.
pub(crate) struct PlayedOn {
    /// By episode.
    pub new: Vec<NewTurns>,
    pub events: Events,
    /// With the ticks of groups that ended.
    pub times: GroupTimes,
    pub stats: RolloutStats,
}

impl Episodes {
    /// Lets agents go on with episodes, by group and age, until the groups of `times` that a step trains have ended.
    ///
    /// Errors: `agent-missing`, `agent-failing`; those of the device.
    pub(crate) fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        asked: &EpisodesRequest<'_>,
        so_far: &[AgentEpisode<'_>],
        times: GroupTimes,
    ) -> Result<PlayedOn> {
        let mut agents = self.agents.take().expect("agents play");
        let begun = so_far.iter().enumerate().map(|(slot, of)| {
            let start = Start::train(self.seed, of.of.position);
            EpisodeOfStep {
                sample_id: of.sample_id,
                start: told(&start, asked.group_size, slot % asked.group_size),
                has_ended: of.of.has_ended,
                had: if agents.is_under_way(of.sample_id) { Vec::new() } else { of.had() },
            }
        });
        let round =
            CarriedRound { begun: begun.collect(), size: asked.group_size, times, sampling: asked.sampling };
        let played = agents.play_on(trainer, asked, round);
        self.agents = Some(agents);
        let (progress, times, stats) = played?;
        let (version, mut events) = (trainer.updates(), Events::default());
        let new =
            so_far.iter().zip(progress).map(|(of, to)| of.new_turns(to, version, &mut events)).collect();
        Ok(PlayedOn { new, events, times, stats })
    }
}

impl AgentEpisode<'_> {
    /// Returns the responses that it has had, none of an episode that has ended.
    fn had(&self) -> Vec<Had> {
        let (Some(asked), false) = (self.of.asked, self.of.has_ended) else { return Vec::new() };
        let had = |of: &CarriedTurn| {
            let tokens = of.turn.tokens();
            Had {
                prompt: [&asked.prompt, &self.ids[..tokens.start]].concat(),
                drawn: SampledResponse {
                    ids: self.ids[tokens.clone()].to_vec(),
                    logprobs: self.logprobs[tokens].to_vec(),
                    finish: of.turn.finish,
                    text: of.response.clone(),
                },
            }
        };
        self.of.turns.iter().map(had).collect()
    }

    /// Returns what is new, drawn by the weights of `version`, and counts in `events` how it ended.
    fn new_turns(&self, to: Progress, version: u64, events: &mut Events) -> NewTurns {
        let Progress { sequence, said, outcome, was_limited } = to;
        let known = self.of.turns.len();
        let mut new = NewTurns::default();
        // One that is begun again may end before it has come as far as it was.
        if let Some(mut sequence) = sequence.filter(|sequence| sequence.turns.len() > known) {
            let turns = sequence.turns.iter().zip(&sequence.responses).skip(known);
            let turn = |(turn, number): (&Turn, &usize)| CarriedTurn {
                turn: *turn,
                response: said[*number].1.clone(),
                reward: 0f64.to_bits(),
                said: said.get(number + 1).map(|(heard, _)| heard.clone()).unwrap_or_default(),
                version,
            };
            new.turns = turns.map(turn).collect();
            new.ids = sequence.ids.split_off(self.ids.len());
            new.logprobs = sequence.logprobs.split_off(self.ids.len());
            let messages = said.into_iter().next().unwrap_or_default().0;
            new.asked = Some(FirstRequest { prompt: sequence.prompt, messages });
        }
        let Some(outcome) = outcome else { return new };
        let last = new.turns.last().or(self.of.turns.last());
        new.finish = Some(last.map_or(Finish::Stop, |last| last.turn.finish));
        events.tally.truncated += u64::from(was_limited);
        match outcome {
            Ok(reward) => new.reward = Some(reward),
            Err(fault) => {
                new.has_fault = true;
                events.tally.aborted += 1;
                events.tally.count(&fault);
                events.fault = events.fault.take().or(Some(Fault::of(&fault)));
            }
        }
        new
    }
}
