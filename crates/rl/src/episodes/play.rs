//! Plays episodes. Each rank plays its part with its own environments; then every rank gets all episodes, in order: an
//! episode depends only on its start and on the ids of its samples.

use super::agents;
use super::episode::{Episode, EpisodesRequest, PlayedTurn};
use super::fault::Fault;
use super::round::Episodes;
use crate::roles::Trainer;
use crate::rollout::counted::{Counted, CountedByAll};
use crate::rollout::exchange::{Deal, SentResponse, exchange};
use crate::rollout::message::{Kind, as_json};
use crate::supply::group::Branch;
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::text::Item;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Lengths, Request, RolloutStats, Samples};
use plimsoll_serve::episodes::Played as OfAgent;
use plimsoll_text::Message;
use plimsoll_textenv::{EnvironmentTally, Start};
use serde::{Deserialize, Serialize};

/// What was played. The samples are in `trainer.sampler.samples`, and the rest of the episodes in `Episodes`.
pub(crate) struct Played {
    /// The prompt of each start.
    pub items: Vec<Item>,
    pub stats: RolloutStats,
    /// The sequences of the samples of each start, where a sample may have several.
    pub branches: Option<Vec<Vec<Branch>>>,
    /// Counts of the run's rewards, if they grade episodes.
    pub counted: CountedByAll,
}

/// One rank's episodes.
#[derive(Serialize, Deserialize)]
struct Part {
    groups: Vec<SentGroup>,
    stats: RolloutStats,
    tally: EnvironmentTally,
    fault: Option<Fault>,
    counted: Counted,
}

#[derive(Serialize, Deserialize)]
struct SentGroup {
    prompt: Vec<u32>,
    /// The first messages; empty if texts are not kept.
    #[serde(with = "as_json")]
    first: Vec<Message>,
    episodes: Vec<SentEpisode>,
}

#[derive(Serialize, Deserialize)]
struct SentEpisode {
    sample: SentResponse,
    turns: Vec<SentTurn>,
    has_fault: bool,
    /// The total score and its parts; empty if the run's rewards do not grade it.
    scored: Option<Scored>,
}

/// A turn as sent between ranks. Its texts are empty if they are not kept.
#[derive(Serialize, Deserialize)]
struct SentTurn {
    reward: f64,
    response: String,
    #[serde(with = "as_json")]
    said: Vec<Message>,
}

/// Plays the episodes of all starts.
///
/// Errors: those of sampling, of the environment and of the rewards; `agent-failing` and `text-environment-failing` if
/// no episode is left; `rank-lost` where another rank has one.
pub(crate) fn play(
    trainer: &mut Trainer<'_>,
    episodes: &mut Episodes,
    rewards: &mut Rewards,
    asked: &EpisodesRequest<'_>,
) -> Result<Played> {
    let played = if episodes.agents.is_some() {
        play_agents(trainer, episodes, asked)?
    } else {
        play_text(trainer, episodes, rewards, asked)?
    };
    // An evaluation's rollout may be of one episode.
    if trainer.sampler.samples.is_empty() || asked.steps[0] > 0 {
        episodes.check_left(&trainer.sampler.samples)?;
    }
    Ok(played)
}

/// Lets an environment's workers play the episodes of all starts.
fn play_text(
    trainer: &mut Trainer<'_>,
    episodes: &mut Episodes,
    rewards: &mut Rewards,
    asked: &EpisodesRequest<'_>,
) -> Result<Played> {
    let group = trainer.group;
    let keys = asked.starts.iter().map(|start| (Lengths::key(&(start.index, start.held_out)), 0));
    let deal = Deal::new(group, &trainer.lengths, keys);
    let own = deal.own(group);
    let played = play_part(trainer, episodes, rewards, asked, &own);
    if group.is_alone() {
        return played.map(|(played, counted)| Played { counted: Counted::sum([counted]), ..played });
    }
    let played =
        played.map(|(played, counted)| Part { counted, ..Part::of(trainer, episodes, played, &own, asked) });
    let all = exchange(group, Kind::Episodes, played)?;
    let whole = take(trainer, episodes, all, asked, &deal)?;
    deal.learn(&mut trainer.lengths, &trainer.sampler.samples, asked.group_size);
    Ok(whole)
}

/// Lets agents play the episodes of all starts.
///
/// Errors: `agent-missing`, `agent-failing`, `text-environment-failing`; those of the device.
fn play_agents(
    trainer: &mut Trainer<'_>,
    episodes: &mut Episodes,
    asked: &EpisodesRequest<'_>,
) -> Result<Played> {
    let mut agents = episodes.agents.take().expect("agents play");
    let played = agents.play(trainer, asked);
    episodes.agents = Some(agents);
    let (played, stats) = played?;
    episodes.policy_version = trainer.updates();
    episodes.begin_round(played.len());
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    let mut branches: Vec<Vec<Branch>> = asked.starts.iter().map(|_| Vec::new()).collect();
    let mut items: Vec<Item> = Vec::with_capacity(asked.starts.len());
    for (e, of_agent) in played.into_iter().enumerate() {
        let (group, member) = (e / asked.group_size, e % asked.group_size);
        let start = asked.starts[group];
        let first = samples.len();
        let OfAgent { outcome, sequences, said, was_limited } = of_agent;
        let is_played = outcome.is_ok();
        let mut episode = agents::episode(start, &sequences, said, outcome.as_ref().ok().copied());
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
        episodes.tally.truncated += u64::from(was_limited);
        if let Err(fault) = outcome {
            episodes.fail(e, Some(fault))?;
        }
    }
    Ok(Played { items, stats, branches: Some(branches), counted: CountedByAll::default() })
}

/// Plays the episodes of the starts with these numbers, here.
fn play_part(
    trainer: &mut Trainer<'_>,
    episodes: &mut Episodes,
    rewards: &mut Rewards,
    asked: &EpisodesRequest<'_>,
    numbers: &[usize],
) -> Result<(Played, Counted)> {
    let starts: Vec<Start> = numbers.iter().map(|number| asked.starts[*number]).collect();
    let items = episodes.begin(asked.text, &starts, asked.group_size)?;
    let prompts: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
    let request = Request {
        prompts: &prompts,
        group_size: asked.group_size,
        max_new_tokens: asked.rollout.max_new_tokens as usize,
        sampling: asked.sampling,
        eos: asked.eos,
        first_sample_id: asked.first_sample_id,
        numbers,
    };
    plimsoll_run::under_way::expect(numbers.len() * asked.group_size);
    let version = trainer.updates();
    let stats = trainer.rollout(&request, &mut episodes.talk(asked.text, asked.rollout, version)?)?;
    episodes.settle()?;
    episodes.grade(rewards, &items, &trainer.sampler.samples, asked)?;
    let counted = if episodes.is_graded() { Counted::of(rewards) } else { Counted::default() };
    Ok((Played { items, stats, branches: None, counted: CountedByAll::default() }, counted))
}

impl Part {
    /// Returns this rank's episodes: those of the starts with these `numbers`.
    fn of(
        trainer: &Trainer<'_>,
        episodes: &Episodes,
        played: Played,
        numbers: &[usize],
        asked: &EpisodesRequest<'_>,
    ) -> Part {
        let size = asked.group_size;
        let kept = |index: usize| numbers[index / size] * size + index % size < asked.kept;
        let turn = |turn: &PlayedTurn, is_kept: bool| SentTurn {
            reward: turn.reward,
            response: if is_kept { turn.response.clone() } else { String::new() },
            said: if is_kept { turn.said.clone() } else { Vec::new() },
        };
        let episode = |index: usize| {
            let episode = &episodes.played[index];
            SentEpisode {
                sample: SentResponse::of(&trainer.sampler.samples, index),
                turns: episode.turns.iter().map(|it| turn(it, kept(index))).collect(),
                has_fault: episode.has_fault,
                scored: episode.scored.clone(),
            }
        };
        let group = |(g, item): (usize, Item)| {
            let own = g * size..(g + 1) * size;
            let begun = &episodes.played[own.start];
            let first = if kept(own.start) { begun.messages[..begun.num_first].to_vec() } else { Vec::new() };
            SentGroup { prompt: item.ids, first, episodes: own.map(episode).collect() }
        };
        Part {
            groups: played.items.into_iter().enumerate().map(group).collect(),
            stats: played.stats,
            tally: episodes.tally,
            fault: episodes.first_fault.clone(),
            counted: Counted::default(),
        }
    }
}

/// Replaces this rank's episodes with those of all ranks.
///
/// Errors: `text-environment-failing`, on all ranks, if more episodes failed on all of them together than may.
fn take(
    trainer: &mut Trainer<'_>,
    episodes: &mut Episodes,
    mut all: Vec<Part>,
    asked: &EpisodesRequest<'_>,
    deal: &Deal,
) -> Result<Played> {
    let mut whole = Played {
        items: Vec::with_capacity(asked.starts.len()),
        stats: RolloutStats::default(),
        branches: None,
        counted: CountedByAll::default(),
    };
    let mut counted = Vec::with_capacity(all.len());
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    episodes.played.clear();
    (episodes.tally, episodes.first_fault) = (EnvironmentTally::default(), None);
    let groups = all.iter_mut().map(|part| std::mem::take(&mut part.groups)).collect();
    for (start, group) in asked.starts.iter().zip(deal.in_order(groups, 1)) {
        for episode in group.episodes {
            episode.sample.push_to(samples);
            let at = episodes.played.len();
            episodes.played.push(episode.played(*start, &group.first, at));
        }
        whole.items.push(Item { ids: group.prompt, ..Item::default() });
    }
    for (rank, part) in all.into_iter().enumerate() {
        whole.stats.add_counts(&part.stats);
        episodes.tally.add(&part.tally);
        counted.push(part.counted);
        if let (None, Some(fault)) = (&episodes.first_fault, part.fault) {
            episodes.first_fault = Some(fault.on_rank(rank));
        }
    }
    whole.counted = Counted::sum(counted);
    episodes.check_faults()?;
    Ok(whole)
}

impl SentEpisode {
    fn played(self, start: Start, first: &[Message], at: usize) -> Episode {
        let turn = |turn: SentTurn| PlayedTurn {
            response: turn.response,
            end: Default::default(),
            reward: turn.reward,
            said: turn.said,
        };
        Episode {
            start,
            messages: first.to_vec(),
            num_first: first.len(),
            turns: self.turns.into_iter().map(turn).collect(),
            columns: Default::default(),
            scored: self.scored,
            sequences: at..at + 1,
            has_fault: self.has_fault,
            goes_on: false,
        }
    }
}
