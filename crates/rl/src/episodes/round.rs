//! The episodes of one rollout: their messages, their rewards, and the engine's questions about their turns.

use super::agents::AgentPlay;
use super::episode::{Episode, PlayedTurn};
use super::fault::Fault;
use super::glue::{Glue, TurnEnd, after_turn};
use crate::arrays::TokenArrays;
use crate::data::dataset::forgetting;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::{Credit, Environment, Overlong, Rollout, RunSpec};
use plimsoll_infer::responses::{TextStop, response_text};
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_rollout::{Finish, Samples, StopCondition, Turn};
use plimsoll_run::under_way;
use plimsoll_text::Message;
use plimsoll_textenv::{About, EnvironmentTally, Hosts, Job, Kind, Reply, Said, Start};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Bounds of a turn's reward where it is credited to its turn: those of a shaped reward.
const REWARD_CLIP: f64 = 10.0;

/// The environments of a run and the episodes of its last rollout.
pub struct Episodes {
    /// Holds no host if agents play.
    pub(super) hosts: Hosts,
    pub(super) agents: Option<AgentPlay>,
    section: Environment,
    /// True if each turn's reward is placed on its last token as it is.
    pays_turns: bool,
    overlong: Overlong,
    prompt_tokens: usize,
    /// Most tokens of an episode after its prompt.
    pub(super) response_tokens: usize,
    pub(super) seed: u64,
    pub(super) played: Vec<Episode>,
    pub(super) policy_version: u64,
    /// The version that drew each turn of each episode; empty where it is `policy_version`.
    pub(super) versions: Vec<Vec<u64>>,
    pub(super) tally: EnvironmentTally,
    pub(super) first_fault: Option<Fault>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    pub turns_mean: f64,
    /// Mean sum of rewards, over episodes without a fault.
    pub return_mean: f64,
    /// For each turn: the share of episodes that have it, and their mean reward in it.
    pub by_turn: Vec<(f64, f64)>,
    /// Counts of faults and of truncations.
    pub tally: EnvironmentTally,
    pub fault: Option<String>,
}

impl Episodes {
    /// Starts the environment of a run file; `None` where it has none. `prompt_tokens`: the longest prompt of the plan.
    ///
    /// Errors: `text-environment-missing`, `thread-not-started`; those of reading its rows.
    pub fn open(run: &RunSpec, prompt_tokens: usize) -> Result<Option<Episodes>> {
        let Some(section) = run.environment() else { return Ok(None) };
        let kind = Kind::parse(&section.env)?;
        let agents =
            if kind.is_agents() { Some(AgentPlay::open(run, section, prompt_tokens)?) } else { None };
        Ok(Some(Episodes {
            hosts: Hosts::start(&kind, &section.host_settings(&run.data))?,
            agents,
            section: section.clone(),
            pays_turns: section.credit == Credit::Turn && run.turn_credit().is_none(),
            overlong: run.data.overlong,
            prompt_tokens,
            response_tokens: run.response_tokens_max(),
            seed: run.episode_seed(),
            played: Vec::new(),
            policy_version: 0,
            versions: Vec::new(),
            tally: EnvironmentTally::default(),
            first_fault: None,
        }))
    }

    /// Writes the agents' output and address to the run directory, if agents play.
    ///
    /// Errors: `run-dir-unwritable`.
    pub(crate) fn write_to(&mut self, dir: &Path) -> Result<()> {
        self.agents.as_mut().map_or(Ok(()), |agents| agents.write_to(dir))
    }

    /// Returns a line for people about who plays.
    pub(crate) fn words(&self, dir: &Path) -> Option<String> {
        self.agents.as_ref().map(|agents| agents.words(dir))
    }

    /// Takes the lines that players printed up to the end of step 1.
    pub(crate) fn first_lines(&self) -> Vec<String> {
        self.agents.as_ref().map_or(Vec::new(), AgentPlay::first_lines)
    }

    /// Returns the number of episodes of the last rollout.
    pub(crate) fn num_played(&self) -> usize {
        self.played.len()
    }

    /// True if the run's rewards grade the episodes.
    pub(super) fn is_graded(&self) -> bool {
        self.section.is_graded()
    }

    /// Returns the environment's description of itself.
    pub(super) fn about(&self) -> &About {
        self.hosts.about()
    }

    /// Returns the most sequences of an episode.
    pub(super) fn branches_max(&self) -> usize {
        self.section.branches_max.max(1) as usize
    }

    /// Clears the last rollout, to begin one of `episodes` episodes.
    pub(super) fn begin_round(&mut self, episodes: usize) {
        self.tally = EnvironmentTally { episodes: episodes as u64, ..Default::default() };
        self.first_fault = None;
        self.played.clear();
        self.versions.clear();
    }

    /// Returns the starts of `groups` groups of training episodes from episode `first` on: those of the run's seed.
    pub fn starts(&self, first: u64, groups: usize) -> Vec<Start> {
        (first..first + groups as u64).map(|i| Start::train(self.seed, i)).collect()
    }

    /// Begins the `group` episodes of each start, and returns the prompt of each start.
    ///
    /// Errors: an environment whose reset fails twice; those of the template and the tokenizer; `prompt-too-long`.
    pub(super) fn begin(&mut self, text: &TextModel, starts: &[Start], group: usize) -> Result<Vec<Item>> {
        self.hosts.drain();
        self.begin_round(starts.len() * group);
        self.reset(starts, group)?;
        for (g, episodes) in self.played.chunks(group).enumerate() {
            if episodes.iter().any(|episode| episode.messages != episodes[0].messages) {
                return Err(self.begins_differently(g * group));
            }
        }
        let glue = Glue { text, tools: &self.hosts.about().tools };
        glue.check()?;
        let firsts: Vec<&[Message]> = self.played.chunks(group).map(|e| e[0].messages.as_slice()).collect();
        let items: Result<Vec<Item>> = forgetting(|| firsts.iter().map(|first| item(glue, first)).collect());
        let mut items = items?;
        let too_long = items.iter().position(|item| item.ids.len() > self.prompt_tokens);
        if let Some(g) = too_long.filter(|_| self.overlong != Overlong::TruncateLeft) {
            return Err(self.begins_too_long(starts[g].index, items[g].ids.len()));
        }
        for (item, episodes) in items.iter_mut().zip(self.played.chunks_mut(group)) {
            episodes[1..].iter_mut().for_each(|episode| episode.columns.clear());
            item.columns = std::mem::take(&mut episodes[0].columns).into();
            item.ids.drain(..item.ids.len().saturating_sub(self.prompt_tokens));
        }
        Ok(items)
    }

    /// Makes the error of an episode that does not begin as another of its seed.
    pub(super) fn begins_differently(&self, slot: usize) -> Error {
        let message = format!("{}: reset begins two episodes of one seed differently", self.section.env);
        Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
            .fact(format!("it is episode {}", self.played[slot].start.index))
            .hint("derive all randomness from the seed that reset is given")
    }

    /// Makes the error of a prompt beyond the plan's. No episode is left out: which there are follows from the seed.
    fn begins_too_long(&self, episode: u64, tokens: usize) -> Error {
        let (env, most) = (&self.section.env, self.prompt_tokens);
        let begins = format!("{env}: episode {episode} begins with {tokens} tokens, the limit is {most}");
        Error::new("prompt-too-long", begins)
            .hint("raise data.prompt_tokens_max, or set data.overlong = \"truncate-left\"")
    }

    fn reset(&mut self, starts: &[Start], group: usize) -> Result<()> {
        let count = starts.len() * group;
        let begin = |slot: usize| Episode {
            start: starts[slot / group],
            messages: Vec::new(),
            num_first: 0,
            turns: Vec::new(),
            columns: Default::default(),
            scored: None,
            sequences: slot..slot + 1,
            has_fault: false,
            goes_on: false,
        };
        self.played = (0..count).map(begin).collect();
        for (slot, episode) in self.played.iter().enumerate() {
            self.hosts.ask(slot, Job::Reset(episode.start));
        }
        let (mut left, mut tried) = (count, vec![false; count]);
        while left > 0 {
            let reply = self.hosts.take(true).expect("every reset has a reply");
            let episode = &mut self.played[reply.slot];
            match reply.outcome {
                Ok(said) => {
                    let said = said.unwrap_or_default();
                    (episode.messages, episode.columns) = (said.messages, said.columns);
                    episode.num_first = episode.messages.len();
                    left -= 1;
                }
                Err(error) if tried[reply.slot] => return Err(error.fact("its reset was tried twice")),
                Err(error) => {
                    // A worker is started again, and an object that raised is recreated.
                    self.tally.count(&error);
                    tried[reply.slot] = true;
                    self.hosts.ask(reply.slot, Job::Reset(episode.start));
                }
            }
        }
        Ok(())
    }

    /// Returns the engine's side of the begun episodes. `policy_version`: the version of the weights that play.
    ///
    /// Errors: `stop-string-invalid`.
    pub(crate) fn talk<'s>(
        &'s mut self,
        text: &'s TextModel,
        rollout: &'s Rollout,
        policy_version: u64,
    ) -> Result<Talk<'s>> {
        self.policy_version = policy_version;
        let stop = TextStop::new(text, &rollout.stop, self.played.len())?;
        Ok(Talk { episodes: self, text, rollout, stop })
    }

    /// Asks an environment that scores whole episodes for their rewards, which go to the last turns. Episodes cut by
    /// their number of turns or their length are scored too.
    ///
    /// Errors: `text-environment-failing`.
    pub(super) fn settle(&mut self) -> Result<()> {
        if !self.hosts.about().scores_at_end {
            for slot in 0..self.played.len() {
                if let Some(fault) = self.sum_fault(slot).filter(|_| !self.played[slot].has_fault) {
                    self.fail(slot, Some(fault))?;
                }
            }
            return Ok(());
        }
        let whole = |episode: &Episode| !episode.has_fault && !episode.turns.is_empty();
        let asked: Vec<usize> = (0..self.played.len()).filter(|&slot| whole(&self.played[slot])).collect();
        asked.iter().for_each(|&slot| self.hosts.ask(slot, Job::End));
        for _ in asked {
            let reply = self.hosts.take(true).expect("every end has a reply");
            match reply.outcome {
                Ok(Some(said)) => {
                    let turn = self.played[reply.slot].turns.last_mut().expect("a turn was played");
                    turn.reward = said.reward;
                }
                Ok(None) => self.fail(reply.slot, None)?,
                Err(fault) => self.fail(reply.slot, Some(fault))?,
            }
        }
        Ok(())
    }

    /// Returns the fault of an episode whose rewards add up to no number of 32 bits.
    pub(super) fn sum_fault(&self, slot: usize) -> Option<Error> {
        let sum: f64 = self.played[slot].turns.iter().map(|turn| turn.reward).sum();
        let message =
            format!("{}: the rewards of an episode add up to {sum:e}, beyond 32 bits", self.section.env);
        (!(sum as f32).is_finite()).then(|| {
            Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message).hint("let rewards be of a few units")
        })
    }

    /// Returns the return of each episode; `None` where a fault ended it.
    pub fn returns(&self) -> Vec<Option<f32>> {
        self.sums(|turns| turns)
    }

    /// Returns the reward at the end of each episode: its return, or, where turns are paid, the last turn's reward.
    pub fn outcomes(&self) -> Vec<Option<f32>> {
        if self.pays_turns {
            self.sums(|turns| &turns[turns.len().saturating_sub(1)..])
        } else {
            self.returns()
        }
    }

    /// Returns the rewards of each episode's turns; `None` of an episode without a return.
    pub(crate) fn turn_rewards(&self) -> impl Iterator<Item = Option<Vec<f64>>> {
        let of = |(episode, total): (&Episode, Option<f32>)| {
            total.map(|_| episode.turns.iter().map(|turn| turn.reward).collect())
        };
        self.played.iter().zip(self.returns()).map(of)
    }

    fn sums(&self, which: impl Fn(&[PlayedTurn]) -> &[PlayedTurn]) -> Vec<Option<f32>> {
        let sum =
            |episode: &Episode| which(&episode.turns).iter().map(|turn| turn.reward).sum::<f64>() as f32;
        let one = |episode: &Episode| match (&episode.scored, episode.has_fault) {
            (_, true) => None,
            (Some(scored), false) => scored.total,
            (None, false) => Some(sum(episode)),
        };
        self.played.iter().map(one).collect()
    }

    /// Adds the rewards of turns before the last to the rewards of their last tokens, if turns are paid.
    pub(crate) fn credit_turns(&self, samples: &Samples, buffers: &mut TokenArrays) {
        if !self.pays_turns {
            return;
        }
        for (s, episode) in self.played.iter().enumerate().filter(|(_, episode)| !episode.has_fault) {
            let rewards: Vec<f64> = episode.turns.iter().map(|turn| turn.reward).collect();
            let tokens = buffers.offsets[s]..buffers.offsets[s + 1];
            credit_earlier(samples.turns(s), &rewards, &mut buffers.token_rewards[tokens]);
        }
    }

    pub fn report(&self) -> RoundReport {
        let whole: Vec<&Episode> = self.played.iter().filter(|episode| !episode.has_fault).collect();
        let share = |part: f64| part / whole.len().max(1) as f64;
        let longest = whole.iter().map(|episode| episode.turns.len()).max().unwrap_or(0);
        let by_turn = (0..longest).map(|t| {
            let rewards: Vec<f64> =
                whole.iter().filter_map(|e| e.turns.get(t)).map(|turn| turn.reward).collect();
            (share(rewards.len() as f64), rewards.iter().sum::<f64>() / rewards.len() as f64)
        });
        let returns = self.returns().into_iter().flatten().map(f64::from).sum();
        RoundReport {
            turns_mean: share(whole.iter().map(|episode| episode.turns.len() as f64).sum()),
            return_mean: share(returns),
            by_turn: by_turn.collect(),
            tally: self.tally,
            fault: self.first_fault.as_ref().map(|fault| fault.message.clone()),
        }
    }

    /// Records a fault that ended an episode; more than `restarts_max` in a round end the run.
    pub(super) fn fail(&mut self, slot: usize, fault: Option<Error>) -> Result<()> {
        self.played[slot].has_fault = true;
        self.tally.aborted += 1;
        let Some(fault) = fault else { return Ok(()) };
        self.tally.count(&fault);
        self.first_fault.get_or_insert_with(|| Fault::of(&fault));
        self.check_faults()
    }

    /// Refuses a rollout that leaves nothing to train on.
    ///
    /// Errors: `agent-failing`, `text-environment-failing`.
    pub(crate) fn check_left(&self, samples: &Samples) -> Result<()> {
        let (all, failed) = (self.played.len(), self.played.iter().filter(|of| of.has_fault).count());
        // A worker that dies is one fault and takes many along, so they count.
        let may_fail = self.agents.is_none() && failed <= self.section.restarts_max as usize;
        if !samples.is_empty() && (failed < all || may_fail) {
            return Ok(());
        }
        let error = match self.agents {
            Some(_) => {
                let what = "no episode of this rollout has a response and a reward";
                Error::new("agent-failing", format!("{what}: of {all} episodes {failed} failed"))
            }
            None => {
                let message = format!("{}: all {all} episodes of one rollout failed", self.section.env);
                Error::new("text-environment-failing", message)
            }
        };
        Err(match &self.first_fault {
            Some(first) => first.as_cause_of(error),
            None => error.hint("let an agent ask the model before it reports the reward of its episode"),
        })
    }

    /// Refuses more faults than a round may have.
    ///
    /// Errors: `text-environment-failing`.
    pub(super) fn check_faults(&self) -> Result<()> {
        let (most, faults) = (self.section.restarts_max, self.tally.faults());
        match &self.first_fault {
            Some(first) if faults > u64::from(most) => Err(first.too_many(&self.section.env, faults, most)),
            _ => Ok(()),
        }
    }
}

/// Adds the reward of each turn but the last to its last token's.
fn credit_earlier(turns: &[Turn], rewards: &[f64], token_rewards: &mut [f32]) {
    let earlier = rewards.len().saturating_sub(1);
    for (turn, reward) in turns.iter().zip(rewards).take(earlier) {
        token_rewards[turn.end as usize - 1] += reward.clamp(-REWARD_CLIP, REWARD_CLIP) as f32;
    }
}

fn item(glue: Glue<'_>, first: &[Message]) -> Result<Item> {
    let (_, ids) = glue.prompt(first)?;
    if ids.is_empty() {
        return Err(Error::new("prompt-empty", "an environment begins an episode without a token")
            .hint("let reset return some text"));
    }
    let shown = first.last().map(|message| message.content.clone()).unwrap_or_default();
    let message = |message: &Message| json!({ "role": message.role, "content": message.content });
    let messages = Some(Arc::new(first.iter().map(message).collect()));
    Ok(Item { ids, text: shown, messages, ..Item::default() })
}

/// What an environment's answer means.
pub(super) enum Heard {
    /// The episode is over.
    Done,
    /// It has as many turns as it may.
    Full,
    Words {
        is_cut: bool,
    },
}

/// A rollout's side of the episodes.
pub(crate) struct Talk<'s> {
    episodes: &'s mut Episodes,
    text: &'s TextModel,
    rollout: &'s Rollout,
    stop: TextStop<'s>,
}

impl Talk<'_> {
    /// Records an environment's answer; returns the tokens that follow, none where the episode is over.
    fn hear(&mut self, slot: usize, said: Said, tokens: &mut Vec<u32>) -> Result<()> {
        let tally = match self.follow(slot, said, tokens)? {
            Heard::Done => return Ok(()),
            Heard::Full => EnvironmentTally { truncated: 1, ..Default::default() },
            Heard::Words { is_cut } => EnvironmentTally { cut: is_cut.into(), ..Default::default() },
        };
        self.episodes.tally.add(&tally);
        Ok(())
    }

    /// Takes the next reply, if one has come; with `wait` one must come.
    pub(super) fn take_reply(&mut self, wait: bool) -> Option<Reply> {
        self.episodes.hosts.take(wait)
    }

    /// Returns an episode, and the version of the weights that play.
    pub(super) fn episode(&self, slot: usize) -> (&Episode, u64) {
        (&self.episodes.played[slot], self.episodes.policy_version)
    }

    /// Asks for the rewards of whole episodes, if the environment gives them, which go to the last turns. Returns the
    /// episodes with their failures.
    pub(super) fn rewards_of(
        &mut self,
        ended: &[usize],
    ) -> Vec<(usize, std::result::Result<(), Option<Error>>)> {
        let episodes = &mut *self.episodes;
        if !episodes.hosts.about().scores_at_end {
            let fault = |slot: &usize| Some((*slot, Err(Some(episodes.sum_fault(*slot)?))));
            return ended.iter().filter_map(fault).collect();
        }
        ended.iter().for_each(|slot| episodes.hosts.ask(*slot, Job::End));
        let mut rewarded = Vec::with_capacity(ended.len());
        for _ in ended {
            let reply = episodes.hosts.take(true).expect("every end has a reply");
            rewarded.push((
                reply.slot,
                match reply.outcome {
                    Ok(Some(said)) => {
                        let turn = episodes.played[reply.slot].turns.last_mut().expect("a turn was played");
                        turn.reward = said.reward;
                        Ok(())
                    }
                    Ok(None) => Err(None),
                    Err(fault) => Err(Some(fault)),
                },
            ));
        }
        rewarded
    }

    /// Takes back the answer to the last turn if no turn came after it. True if there was one.
    pub(super) fn forget_answer(&mut self, slot: usize) -> bool {
        let episode = &mut self.episodes.played[slot];
        if let Some(turn) = episode.turns.last_mut().filter(|_| episode.goes_on) {
            turn.said.clear();
        }
        episode.goes_on
    }

    /// Adds what an environment said to its episode, without counting it.
    pub(super) fn follow(&mut self, slot: usize, said: Said, tokens: &mut Vec<u32>) -> Result<Heard> {
        let section = &self.episodes.section;
        let episode = &mut self.episodes.played[slot];
        let num_turns = episode.turns.len();
        let turn = episode.turns.last_mut().expect("a turn was played");
        turn.reward = said.reward;
        if said.done {
            return Ok(Heard::Done);
        }
        if num_turns == section.turns_max as usize {
            return Ok(Heard::Full);
        }
        let most = section.turn_tokens_max as usize;
        let glue = Glue { text: self.text, tools: &self.episodes.hosts.about().tools };
        let before = &episode.messages;
        let after = forgetting(|| after_turn(glue, before, &said.messages, &turn.end, most))?;
        let is_cut = after.is_cut || said.is_cut;
        episode.messages.push(Message::new("assistant", turn.response.clone()));
        episode.messages.extend_from_slice(&said.messages);
        turn.said = said.messages;
        episode.goes_on = true;
        tokens.extend(after.ids);
        Ok(Heard::Words { is_cut })
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
        let end = TurnEnd::of(turn, finish == Finish::Eos);
        let episode = &mut self.episodes.played[sample];
        episode.goes_on = false;
        let glue = Glue { text: self.text, tools: &self.episodes.hosts.about().tools };
        let (_, calls) = glue.words_and_calls(&response);
        episode.turns.push(PlayedTurn { response: response.clone(), end, reward: 0.0, said: Vec::new() });
        self.episodes.hosts.ask(sample, Job::Step(response, calls));
    }

    fn answer(&mut self, wait: bool, tokens: &mut Vec<u32>) -> Result<Option<usize>> {
        let Some(reply) = self.episodes.hosts.take(wait) else { return Ok(None) };
        match reply.outcome {
            Ok(Some(said)) => self.hear(reply.slot, said, tokens)?,
            Ok(None) => self.episodes.fail(reply.slot, None)?,
            Err(fault) => self.episodes.fail(reply.slot, Some(fault))?,
        }
        Ok(Some(reply.slot))
    }

    fn ended(&mut self, sample: usize, _response: &[u32], _finish: Finish) {
        under_way::ended();
        // An answer that had no room in the episode is not part of it.
        self.episodes.tally.truncated += u64::from(self.forget_answer(sample));
    }
}

#[cfg(test)]
#[path = "credit_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "round_tests.rs"]
mod more_tests;
