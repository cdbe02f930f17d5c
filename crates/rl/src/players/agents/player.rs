//! The player whose episodes agents play. In a step that others go on with, nothing is drawn beyond its tick: a request
//! waits until the step is certain to go on beyond its own (`plimsoll_serve::episodes`).

use super::carried::{NewTurns, had, new_turns};
use super::server::{AgentPlay, told};
use crate::players::chunk::ResponseChunk;
use crate::players::episodes::{
    self, Episode, Episodes, EpisodesPlayer, EpisodesRequest, Events, KeptEpisode, Played,
};
use crate::players::groups::{Group, Response};
use crate::players::player::{Answered, Grades, Play, PlayLimits, Player, Prompts};
use crate::players::step_rollout::{StepRollout, take};
use crate::players::turn::PlayedTurn;
use crate::roles::Trainer;
use crate::rollout::counted::CountedByAll;
use crate::supply::gathered::Gathered;
use crate::supply::group::Branch;
use plimsoll_base::{Error, Result};
use plimsoll_config::{Environment, RunSpec};
use plimsoll_infer::eval::EvalHow;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::Rewards;
use plimsoll_rollout::{GroupTimes, Samples, Turn};
use plimsoll_run::carry::CarryCounts;
use plimsoll_run::scores::EvalReport;
use plimsoll_serve::episodes::{AgentSequence, CarriedRound, EpisodeOfStep, Played as OfAgent};
use plimsoll_text::Message;
use plimsoll_textenv::Start;
use std::path::Path;

/// Lets agents play episodes.
pub(in crate::players) struct AgentPlayer {
    server: AgentPlay,
    episodes: Episodes,
}

impl AgentPlayer {
    /// Takes the port at which agents will find the model. `prompt_tokens`: the longest prompt of the plan.
    ///
    /// Errors: `address-refused`, `io-error`.
    pub(in crate::players) fn open(
        run: &RunSpec,
        section: &Environment,
        prompt_tokens: usize,
    ) -> Result<AgentPlayer> {
        let server = AgentPlay::open(run, section, prompt_tokens)?;
        Ok(AgentPlayer { server, episodes: Episodes::new(run, section) })
    }
}

impl Player for AgentPlayer {
    /// Returns empty prompts: an agent makes its own.
    fn prompts(&mut self, _: &TextModel, _: Prompts<'_>, _: u64, count: usize) -> Result<Vec<Item>> {
        Ok(vec![Item::default(); count])
    }

    fn play(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        count: usize,
        gathered: &mut Gathered,
    ) -> Result<Answered> {
        episodes::play(self, trainer, play, count, gathered)
    }

    fn play_on(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        groups: &mut [Group],
        times: GroupTimes,
    ) -> Result<StepRollout> {
        let mut begun = Vec::with_capacity(groups.len() * play.size());
        for group in groups.iter() {
            let start = Start::train(self.episodes.seed, group.position);
            for (member, episode) in group.responses.iter().enumerate() {
                let sample_id = group.sample_id(member);
                begun.push(EpisodeOfStep {
                    sample_id,
                    start: told(&start, play.size(), member),
                    has_ended: episode.finish.is_some(),
                    had: if self.server.is_under_way(sample_id) { Vec::new() } else { had(episode) },
                });
            }
        }
        let asked = EpisodesRequest::of_step(play, &[], 0);
        let round = CarriedRound { begun, size: asked.group_size, times, sampling: asked.sampling };
        let (progress, times, stats) = self.server.play_on(trainer, &asked, round)?;
        let (mut counts, mut events) = (CarryCounts::default(), Events::default());
        let (mut pieces, mut rewards) = (Vec::new(), Vec::new());
        let episodes = groups.iter_mut().flat_map(|group| &mut group.responses);
        for (episode, to) in episodes.zip(progress) {
            let NewTurns { asked, piece, reward } = new_turns(episode, to, trainer.updates(), &mut events);
            episode.asked = episode.asked.take().or(asked);
            count_rows(&mut counts, episode, &piece);
            pieces.push(piece);
            rewards.push(reward);
        }
        let gathered = take((trainer, play.step), groups, pieces, stats, (&mut counts, times.bound()));
        let episodes = groups.iter_mut().flat_map(|group| &mut group.responses);
        for (episode, reward) in episodes.zip(rewards) {
            if let (Some(last), Some(reward)) = (episode.turns.last_mut(), reward) {
                last.reward = reward;
            }
        }
        Ok(StepRollout { chosen: times.chosen(), gathered, events: vec![events], counts, tail_tick_s: None })
    }

    fn grade(
        &mut self,
        trainer: &mut Trainer<'_>,
        play: &mut Play<'_>,
        taken: &[Group],
        events: Vec<Events>,
        gathered: &mut Gathered,
    ) -> Result<Grades> {
        episodes::hand_over(self, trainer, play, taken, events, gathered)
    }

    /// Returns the sequences of a group's episodes; those that a fault ended have none.
    fn branches(&self, group: &Group) -> Option<Vec<Branch>> {
        let one = |(sample, response): (usize, &Response)| {
            let asked = response.asked.as_ref().filter(|_| !response.has_fault)?;
            Some(Branch { sample, prompt: asked.prompt.clone() })
        };
        Some(group.responses.iter().enumerate().filter_map(one).collect())
    }

    fn limits(&self, run: &RunSpec) -> PlayLimits {
        PlayLimits { turns: run.turns_max(), prompt: run.data.prompt_tokens_max.unwrap_or(0) as usize }
    }

    fn episodes(&self) -> Option<&Episodes> {
        Some(&self.episodes)
    }

    fn evaluate(
        &mut self,
        trainer: &mut Trainer<'_>,
        how: &EvalHow<'_>,
        rewards: &mut Rewards,
        count: usize,
    ) -> Result<Option<(EvalReport, Vec<KeptEpisode>)>> {
        episodes::evaluate(self, trainer, how, rewards, count)
    }

    fn announce(&mut self, dir: &Path) -> Result<Option<String>> {
        self.server.write_to(dir)?;
        Ok(Some(self.server.words(dir)))
    }

    fn first_lines(&self) -> Vec<String> {
        self.server.first_lines()
    }
}

impl EpisodesPlayer for AgentPlayer {
    fn record(&mut self) -> &mut Episodes {
        &mut self.episodes
    }

    /// Lets agents play the episodes of all starts.
    ///
    /// Errors: `agent-missing`, `agent-failing`, `text-environment-failing`; those of the device.
    fn play_starts(
        &mut self,
        trainer: &mut Trainer<'_>,
        _: &mut Rewards,
        asked: &EpisodesRequest<'_>,
    ) -> Result<Played> {
        let (played, stats) = self.server.play(trainer, asked)?;
        let (episodes, version) = (&mut self.episodes, trainer.updates());
        episodes.begin_round(played.len());
        let samples = Samples::to_write(&mut trainer.sampler.samples);
        samples.clear();
        let mut branches: Vec<Vec<Branch>> = asked.starts.iter().map(|_| Vec::new()).collect();
        let mut items: Vec<Item> = Vec::with_capacity(asked.starts.len());
        for (e, of_agent) in played.into_iter().enumerate() {
            let (group, member) = (e / asked.group_size, e % asked.group_size);
            let first = samples.len();
            let OfAgent { outcome, sequences, said, was_limited } = of_agent;
            let is_played = outcome.is_ok();
            let mut episode = record(asked.starts[group], &sequences, said, version);
            if let (Some(last), Ok(reward)) = (episode.turns.last_mut(), &outcome) {
                last.reward = *reward;
            }
            for sequence in sequences.into_iter().filter(|_| is_played) {
                samples.push_turns(&sequence.ids, &sequence.logprobs, &sequence.turns);
                branches[group].push(Branch { sample: member, prompt: sequence.prompt });
            }
            episode.sequences = first..samples.len();
            if member == 0 {
                let text = episode.messages.last().map(|message| message.content.clone()).unwrap_or_default();
                items.push(Item { text, ..Item::default() });
            }
            episodes.played.push(episode);
            episodes.events.tally.truncated += u64::from(was_limited);
            if let Err(fault) = outcome {
                episodes.fail(e, Some(fault))?;
            }
        }
        Ok(Played { items, stats, branches: Some(branches), counted: CountedByAll::default() })
    }

    fn check_left(&self, samples: &Samples) -> Result<()> {
        let (all, failed) = self.episodes.num_failed();
        if !samples.is_empty() && failed < all {
            return Ok(());
        }
        let what = "no episode of this rollout has a response and a reward";
        let error = Error::new("agent-failing", format!("{what}: of {all} episodes {failed} failed"));
        Err(self.episodes.with_first_fault(error))
    }
}

/// Returns the record of an episode without its reward. `said`: by response what was said before it, and the response.
fn record(
    start: Start,
    sequences: &[AgentSequence],
    mut said: Vec<(Vec<Message>, String)>,
    version: u64,
) -> Episode {
    let order: Vec<(usize, Turn)> = sequences
        .iter()
        .flat_map(|sequence| sequence.responses.iter().copied().zip(sequence.turns.iter().copied()))
        .collect();
    let messages = order.first().map(|(first, _)| std::mem::take(&mut said[*first].0)).unwrap_or_default();
    let mut turns: Vec<PlayedTurn> = Vec::with_capacity(order.len());
    for (number, turn) in order {
        let (heard, response) = std::mem::take(&mut said[number]);
        if let Some(before) = turns.last_mut() {
            before.said = heard;
        }
        turns.push(PlayedTurn { turn, response, reward: 0.0, said: Vec::new(), version });
    }
    Episode::new(start, messages, turns, 0..0)
}

/// Counts the rows of prompts: each request of an episode after the first computes again what came before.
fn count_rows(counts: &mut CarryCounts, response: &Response, piece: &ResponseChunk) {
    let prompt = response.asked.as_ref().map_or(0, |asked| asked.prompt.len()) as u64;
    let mut before = response.turns.last().map(|last| last.turn.end);
    for of in &piece.turns {
        match before {
            None => counts.prompt_rows += prompt,
            Some(end) => counts.recomputed_rows += prompt + u64::from(end),
        }
        before = Some(of.turn.end);
    }
}
