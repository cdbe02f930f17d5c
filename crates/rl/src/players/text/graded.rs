//! The run's rewards for episodes whose environment gives none: functions of no class as tools. They grade the finished
//! conversation: a function in the form of TRL reads its messages, a verifier the text of its last turn.

use super::environment::TextPlayer;
use super::glue::Glue;
use crate::players::episodes::EpisodesRequest;
use crate::players::groups::Group;
use crate::players::player::Play;
use crate::players::turn::PlayedTurn;
use crate::roles::Trainer;
use crate::rollout::counted::Counted;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use crate::supply::gathered::Gathered;
use plimsoll_base::Result;
use plimsoll_infer::album::Album;
use plimsoll_infer::sample_images::sample_images;
use plimsoll_infer::text::Item;
use plimsoll_reward::{Case, Prompt, Rewards, Scored};
use plimsoll_rollout::{Finish, Samples};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// What one rank graded.
#[derive(Serialize, Deserialize)]
struct ScoredEpisodes {
    scored: Vec<Scored>,
    counted: Counted,
}

impl TextPlayer {
    /// Grades the episodes of the last rollout, `samples`, with the run's rewards. `items`: the prompt of each start.
    /// Episodes that a fault ended are not graded.
    ///
    /// Errors: those of the rewards.
    pub(super) fn grade_all(
        &mut self,
        rewards: &mut Rewards,
        items: &[Item],
        samples: &Samples,
        asked: &EpisodesRequest<'_>,
    ) -> Result<()> {
        let all: Vec<usize> = (0..self.episodes.played.len()).collect();
        let items: Vec<&Item> = items.iter().collect();
        let scored = self.scores_of(rewards, &all, (&items, samples), asked)?;
        self.set_scored(&all, scored);
        Ok(())
    }

    /// Grades the episodes of groups with the run's rewards: of several ranks each its part.
    ///
    /// Errors: those of the rewards; `rank-lost` where another rank has one.
    pub(super) fn grade_groups(
        &mut self,
        trainer: &Trainer<'_>,
        play: &mut Play<'_>,
        groups: &[Group],
        gathered: &mut Gathered,
    ) -> Result<()> {
        let asked = EpisodesRequest::of_step(play, &[], 0);
        let (rank, ranks, size) = (trainer.group.rank(), trainer.group.ranks(), asked.group_size);
        let slots = |of: usize| -> Vec<usize> {
            (of..groups.len()).step_by(ranks).flat_map(|g| g * size..(g + 1) * size).collect()
        };
        let items: Vec<&Item> = groups.iter().map(|group| &group.item).collect();
        let scored = self.scores_of(play.rewards, &slots(rank), (&items, &trainer.sampler.samples), &asked);
        let own = scored.map(|scored| ScoredEpisodes { scored, counted: Counted::of(play.rewards) });
        let mut counted = Vec::with_capacity(ranks);
        for (of, part) in exchange(trainer.group, Kind::Graded, own)?.into_iter().enumerate() {
            self.set_scored(&slots(of), part.scored);
            counted.push(part.counted);
        }
        gathered.add_counted(Counted::sum(counted));
        Ok(())
    }

    /// Returns the run's scores of the episodes `slots`, of whole groups, without those that a fault ended. `items`:
    /// the prompt of each group.
    ///
    /// Errors: those of the rewards.
    fn scores_of(
        &self,
        rewards: &mut Rewards,
        slots: &[usize],
        (items, samples): (&[&Item], &Samples),
        asked: &EpisodesRequest<'_>,
    ) -> Result<Vec<Scored>> {
        let whole: Vec<usize> = self.whole(slots).collect();
        // Batches follow groups where these are whole.
        let group = if whole.len() == slots.len() { asked.group_size } else { 1 };
        rewards.begin(whole.len(), group, asked.steps);
        let prompts: Vec<Arc<Prompt>> = items.iter().map(|item| Arc::new(prompt(item, asked))).collect();
        for (index, slot) in whole.into_iter().enumerate() {
            rewards.submit(index, self.case(slot, &prompts[slot / asked.group_size], samples, asked));
        }
        rewards.finish()
    }

    /// Takes over the scores of the episodes `slots`, in the order of `scores_of`.
    fn set_scored(&mut self, slots: &[usize], scored: Vec<Scored>) {
        let whole: Vec<usize> = self.whole(slots).collect();
        for (slot, scored) in whole.into_iter().zip(scored) {
            let episode = &mut self.episodes.played[slot];
            if let (Some(turn), Some(total)) = (episode.turns.last_mut(), scored.total) {
                turn.reward = f64::from(total);
            }
            episode.scored = Some(scored);
        }
    }

    fn whole(&self, slots: &[usize]) -> impl Iterator<Item = usize> {
        let is_whole = |slot: &usize| {
            !self.episodes.played[*slot].has_fault && !self.episodes.played[*slot].turns.is_empty()
        };
        slots.iter().copied().filter(is_whole)
    }

    fn case(
        &self,
        slot: usize,
        prompt: &Arc<Prompt>,
        samples: &Samples,
        asked: &EpisodesRequest<'_>,
    ) -> Case {
        let episode = &self.episodes.played[slot];
        let glue = self.glue(asked.text);
        let last = episode.turns.last().expect("a turn was played");
        Case {
            prompt: prompt.clone(),
            response: last.response.clone(),
            completion: Some(episode.turns.iter().flat_map(|turn| said_in(glue, turn)).collect()),
            response_ids: with_placeholders(samples.ids(slot), asked.text.album.as_deref()),
            max_new_tokens: self.response_tokens,
            ended: samples.finish(slot) != Finish::Length
                && glue.words_and_calls(&last.response).1.is_empty(),
        }
    }
}

/// Returns tokens with placeholders where they are numbers of images.
fn with_placeholders(ids: &[u32], album: Option<&Album>) -> Vec<u32> {
    let token =
        |id: &u32| album.filter(|album| *id >= album.vocab()).map_or(*id, |album| album.sight.image_token);
    ids.iter().map(token).collect()
}

fn prompt(item: &Item, asked: &EpisodesRequest<'_>) -> Prompt {
    Prompt {
        text: item.text.clone(),
        rendered: asked.text.tokenizer.decode(&item.ids, false),
        messages: item.messages.clone(),
        columns: item.columns.clone(),
        images: sample_images(item),
    }
}

/// Returns the messages of a turn and of the results of its calls, in the form that TRL's reward functions read.
fn said_in(glue: Glue<'_>, turn: &PlayedTurn) -> Vec<Value> {
    let (words, calls) = glue.words_and_calls(&turn.response);
    let mut message = json!({ "role": "assistant", "content": words });
    if !calls.is_empty() {
        let call = |call: &Value| json!({ "type": "function", "function": call });
        message["tool_calls"] = calls.iter().map(call).collect();
    }
    let result = |(number, said): (usize, &plimsoll_text::Message)| {
        let mut message = json!({ "role": said.role, "content": said.content });
        if let Some(call) = calls.get(number) {
            message["name"] = call["name"].clone();
        }
        message
    };
    std::iter::once(message).chain(turn.said.iter().enumerate().map(result)).collect()
}
