//! Grading while the rollout runs: a response that has ended is decoded and passed to the rewards at once.

use crate::rollout::responses::{TextStop, response_text};
use plimsoll_base::Result;
use plimsoll_config::RolloutSpec;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_reward::{Case, Prompt, Rewards};
use plimsoll_rollout::{Finish, StopCondition};
use plimsoll_run::under_way;
use std::sync::Arc;

/// The stop condition of a rollout whose responses are graded as they end.
pub struct Grading<'s> {
    stop: TextStop<'s>,
    text: &'s TextModel,
    rollout: &'s RolloutSpec,
    rewards: &'s mut Rewards,
    /// One entry per group.
    prompts: Vec<Arc<Prompt>>,
    group: usize,
    texts: Vec<String>,
}

impl<'s> Grading<'s> {
    /// Begins a round of `rewards` over `group` responses to each item. `steps`: the step and the number of steps.
    ///
    /// Errors: `stop-string-invalid`.
    pub fn begin<'i>(
        rewards: &'s mut Rewards,
        text: &'s TextModel,
        rollout: &'s RolloutSpec,
        items: impl ExactSizeIterator<Item = &'i Item>,
        group: usize,
        steps: [u32; 2],
    ) -> Result<Grading<'s>> {
        let samples = items.len() * group;
        rewards.begin(samples, group, steps);
        under_way::expect(samples);
        let prompt = |item: &Item| {
            Arc::new(Prompt {
                text: item.text.clone(),
                rendered: text.tokenizer.decode(&item.ids, false),
                messages: item.messages.clone(),
                columns: item.columns.clone(),
            })
        };
        Ok(Grading {
            stop: TextStop::new(text, &rollout.stop, samples)?,
            text,
            rollout,
            rewards,
            prompts: items.map(prompt).collect(),
            group,
            texts: vec![String::new(); samples],
        })
    }

    /// Returns the text of every response, all of which have ended.
    pub fn texts(self) -> Vec<String> {
        self.texts
    }
}

impl StopCondition for Grading<'_> {
    fn stops(&mut self, sample: usize, response: &[u32]) -> bool {
        self.stop.stops(sample, response)
    }

    fn ended(&mut self, sample: usize, response: &[u32], finish: Finish) {
        let text = response_text(self.text, response, finish, &self.rollout.stop, self.rollout.keep_stop);
        self.texts[sample].clone_from(&text);
        let case = Case {
            prompt: self.prompts[sample / self.group].clone(),
            response: text,
            completion: None,
            response_ids: response.to_vec(),
            max_new_tokens: self.rollout.max_new_tokens as usize,
            ended: finish != Finish::Length,
        };
        self.rewards.submit(sample, case);
        under_way::ended();
    }
}
