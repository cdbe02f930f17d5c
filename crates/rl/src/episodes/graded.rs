//! The run's rewards for episodes whose environment gives none: functions of no class as tools. They grade the finished
//! conversation: a function in the form of TRL reads its messages, a verifier the text of its last turn.

use super::episode::{EpisodesRequest, PlayedTurn};
use super::glue::Glue;
use super::round::Episodes;
use plimsoll_base::Result;
use plimsoll_infer::text::Item;
use plimsoll_reward::{Case, Prompt, Rewards, Scored};
use plimsoll_rollout::{Finish, Samples};
use serde_json::{Value, json};
use std::sync::Arc;

impl Episodes {
    /// Grades the episodes of the last rollout, `samples`, with the run's rewards, if the environment gives none.
    /// `items`: the prompt of each start. Episodes that a fault ended are not graded.
    ///
    /// Errors: those of the rewards.
    pub(super) fn grade(
        &mut self,
        rewards: &mut Rewards,
        items: &[Item],
        samples: &Samples,
        asked: &EpisodesRequest<'_>,
    ) -> Result<()> {
        if !self.is_graded() {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.played.len()).collect();
        let items: Vec<&Item> = items.iter().collect();
        let scored = self.scores_of(rewards, &all, (&items, samples), asked)?;
        self.set_scored(&all, scored);
        Ok(())
    }

    /// Returns the run's scores of the episodes `slots`, of whole groups, without those that a fault ended. `items`:
    /// the prompt of each group.
    ///
    /// Errors: those of the rewards.
    pub(crate) fn scores_of(
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
    pub(crate) fn set_scored(&mut self, slots: &[usize], scored: Vec<Scored>) {
        let whole: Vec<usize> = self.whole(slots).collect();
        for (slot, scored) in whole.into_iter().zip(scored) {
            let episode = &mut self.played[slot];
            if let (Some(turn), Some(total)) = (episode.turns.last_mut(), scored.total) {
                turn.reward = f64::from(total);
            }
            episode.scored = Some(scored);
        }
    }

    fn whole(&self, slots: &[usize]) -> impl Iterator<Item = usize> {
        let is_whole = |slot: &usize| !self.played[*slot].has_fault && !self.played[*slot].turns.is_empty();
        slots.iter().copied().filter(is_whole)
    }

    /// Returns the score of each episode: by the run's rewards, or its return if its environment gives one.
    pub(crate) fn scored(&self, rewards: &Rewards) -> Vec<Scored> {
        let none = || vec![None; if self.is_graded() { rewards.names().len() } else { 0 }];
        let one = |(episode, total): (&super::episode::Episode, Option<f32>)| match &episode.scored {
            Some(scored) if !episode.has_fault => scored.clone(),
            _ => Scored { total, parts: none(), failed: episode.has_fault, ..Scored::default() },
        };
        self.played.iter().zip(self.outcomes()).map(one).collect()
    }

    fn case(
        &self,
        slot: usize,
        prompt: &Arc<Prompt>,
        samples: &Samples,
        asked: &EpisodesRequest<'_>,
    ) -> Case {
        let episode = &self.played[slot];
        let glue = Glue { text: asked.text, tools: &self.about().tools };
        let last = episode.turns.last().expect("a turn was played");
        Case {
            prompt: prompt.clone(),
            response: last.response.clone(),
            completion: Some(episode.turns.iter().flat_map(|turn| said_in(glue, turn)).collect()),
            response_ids: samples.ids(slot).to_vec(),
            max_new_tokens: self.response_tokens,
            ended: samples.finish(slot) != Finish::Length
                && glue.words_and_calls(&last.response).1.is_empty(),
        }
    }
}

fn prompt(item: &Item, asked: &EpisodesRequest<'_>) -> Prompt {
    Prompt {
        text: item.text.clone(),
        rendered: asked.text.tokenizer.decode(&item.ids, false),
        messages: item.messages.clone(),
        columns: item.columns.clone(),
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
