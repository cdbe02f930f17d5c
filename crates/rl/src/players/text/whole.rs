//! Plays episodes. Each rank plays its part with its own environments; then every rank gets all episodes, in order: an
//! episode depends only on its start and on the ids of its samples.

use super::environment::TextPlayer;
use super::talk::Talk;
use crate::players::episodes::{Episode, EpisodesRequest, Events, Played};
use crate::players::turn::PlayedTurn;
use crate::roles::Trainer;
use crate::rollout::counted::{Counted, CountedByAll};
use crate::rollout::exchange::{Deal, SentResponse, exchange};
use crate::rollout::message::{Kind, as_json};
use plimsoll_base::Result;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::text::Item;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Lengths, Request, RolloutStats, Samples, Turn};
use plimsoll_text::Message;
use plimsoll_textenv::Start;
use serde::{Deserialize, Serialize};

/// One rank's episodes.
#[derive(Serialize, Deserialize)]
struct Part {
    groups: Vec<SentGroup>,
    stats: RolloutStats,
    events: Events,
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

/// What a turn has besides its tokens, which are its sample's. Its texts are empty if they are not kept.
#[derive(Serialize, Deserialize)]
struct SentTurn {
    reward: f64,
    response: String,
    #[serde(with = "as_json")]
    said: Vec<Message>,
}

/// Lets an environment's workers play the episodes of all starts.
///
/// Errors: those of sampling, of the environment and of the rewards; `rank-lost` where another rank has one.
pub(super) fn play_text(
    trainer: &mut Trainer<'_>,
    player: &mut TextPlayer,
    rewards: &mut Rewards,
    asked: &EpisodesRequest<'_>,
) -> Result<Played> {
    let group = trainer.group;
    let keys = asked.starts.iter().map(|start| (Lengths::key(&(start.index, start.held_out)), 0));
    let deal = Deal::new(group, &trainer.lengths, keys);
    let own = deal.own(group);
    let played = play_part(trainer, player, rewards, asked, &own);
    if group.is_alone() {
        let (mut played, counted) = played?;
        // The images of answers are needed as long as the groups are trained.
        let episodes = player.episodes.played.chunks(asked.group_size);
        for (item, episodes) in played.items.iter_mut().zip(episodes) {
            item.images.extend(episodes.iter().flat_map(|episode| episode.images.iter().cloned()));
        }
        return Ok(Played { counted: Counted::sum([counted]), ..played });
    }
    let played = played.map(|played| Part::of(trainer, player, played, &own, asked));
    let all = exchange(group, Kind::Episodes, played)?;
    let whole = take(trainer, player, all, asked, &deal)?;
    deal.learn(&mut trainer.lengths, &trainer.sampler.samples, asked.group_size);
    Ok(whole)
}

/// Plays the episodes of the starts with these numbers, here.
fn play_part(
    trainer: &mut Trainer<'_>,
    player: &mut TextPlayer,
    rewards: &mut Rewards,
    asked: &EpisodesRequest<'_>,
    numbers: &[usize],
) -> Result<(Played, Counted)> {
    let starts: Vec<Start> = numbers.iter().map(|number| asked.starts[*number]).collect();
    let items = player.begin(asked.text, &starts, asked.group_size)?;
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
    let tokens = std::iter::repeat_n(0, player.episodes.played.len());
    let mut talk = Talk::new(player, (asked.text, asked.rollout), trainer.updates(), tokens)?;
    let stats = trainer.rollout(&request, &mut talk)?;
    player.settle()?;
    let mut counted = Counted::default();
    if player.episodes.section.is_graded() {
        player.grade_all(rewards, &items, &trainer.sampler.samples, asked)?;
        counted = Counted::of(rewards);
    }
    Ok((Played { items, stats, branches: None, counted: CountedByAll::default() }, counted))
}

impl Part {
    /// Returns this rank's episodes: those of the starts with these `numbers`.
    fn of(
        trainer: &Trainer<'_>,
        player: &TextPlayer,
        (played, counted): (Played, Counted),
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
            let episode = &player.episodes.played[index];
            SentEpisode {
                sample: SentResponse::of(&trainer.sampler.samples, index),
                turns: episode.turns.iter().map(|it| turn(it, kept(index))).collect(),
                has_fault: episode.has_fault,
                scored: episode.scored.clone(),
            }
        };
        let group = |(g, item): (usize, Item)| {
            let own = g * size..(g + 1) * size;
            let begun = &player.episodes.played[own.start];
            let first = if kept(own.start) { begun.messages[..begun.num_first].to_vec() } else { Vec::new() };
            SentGroup { prompt: item.ids, first, episodes: own.map(episode).collect() }
        };
        Part {
            groups: played.items.into_iter().enumerate().map(group).collect(),
            stats: played.stats,
            events: player.episodes.events.clone(),
            counted,
        }
    }
}

/// Replaces this rank's episodes with those of all ranks.
///
/// Errors: `text-environment-failing`, on all ranks, if more episodes failed on all of them together than may.
fn take(
    trainer: &mut Trainer<'_>,
    player: &mut TextPlayer,
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
    let (mut counted, version) = (Vec::with_capacity(all.len()), trainer.updates());
    let images: Vec<_> = asked.starts.iter().map(|start| player.images_of_row(*start).to_vec()).collect();
    let samples = Samples::to_write(&mut trainer.sampler.samples);
    samples.clear();
    let episodes = &mut player.episodes;
    (episodes.events, episodes.played) = (Events::default(), Vec::with_capacity(asked.starts.len()));
    let groups = all.iter_mut().map(|part| std::mem::take(&mut part.groups)).collect();
    for ((start, group), images) in asked.starts.iter().zip(deal.in_order(groups, 1)).zip(images) {
        for episode in group.episodes {
            episode.sample.push_to(samples);
            let at = episodes.played.len();
            episodes.played.push(episode.played(*start, &group.first, at, version));
        }
        whole.items.push(Item { ids: group.prompt, images, ..Item::default() });
    }
    let mut events = Vec::with_capacity(all.len());
    for part in all {
        whole.stats.add_counts(&part.stats);
        counted.push(part.counted);
        events.push(part.events);
    }
    whole.counted = Counted::sum(counted);
    episodes.add_events(events)?;
    Ok(whole)
}

impl SentEpisode {
    /// Returns the episode, which weights after `version` updates have played. Its sequence is the sample `at`.
    fn played(self, start: Start, first: &[Message], at: usize, version: u64) -> Episode {
        let turn = |(of, turn): (SentTurn, &Turn)| PlayedTurn {
            turn: *turn,
            response: of.response,
            reward: of.reward,
            said: of.said,
            version,
        };
        let turns = self.turns.into_iter().zip(self.sample.turns()).map(turn).collect();
        let episode = Episode::new(start, first.to_vec(), turns, at..at + 1);
        Episode { scored: self.scored, has_fault: self.has_fault, ..episode }
    }
}
