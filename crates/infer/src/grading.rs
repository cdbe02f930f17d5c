//! Grading while the rollout runs: a response that has ended is decoded and passed to the rewards at once.

use crate::responses::{TextStop, response_text};
use crate::sample_images::sample_images;
use crate::text::{Item, TextModel};
use plimsoll_base::Result;
use plimsoll_config::Rollout;
use plimsoll_reward::{Case, Prompt, Rewards};
use plimsoll_rollout::{Finish, Request, StopCondition};
use plimsoll_run::under_way;
use std::sync::Arc;

/// Prompts, and how responses to them are sampled and graded.
#[derive(Clone, Copy)]
pub struct GradedRequest<'q> {
    /// On several ranks all of theirs.
    pub request: Request<'q>,
    pub items: &'q [Item],
    pub text: &'q TextModel,
    pub rollout: &'q Rollout,
    /// The step and the total number of steps.
    pub steps: [u32; 2],
}

/// The stop condition of a rollout whose responses are graded as they end.
pub struct Grading<'s> {
    stop: TextStop<'s>,
    text: &'s TextModel,
    rollout: &'s Rollout,
    rewards: &'s mut Rewards,
    /// One entry per group.
    prompts: Vec<Arc<Prompt>>,
    group: usize,
    texts: Vec<String>,
}

impl<'s> Grading<'s> {
    /// Begins a round of `rewards` over the responses to some items of a request: this rank's.
    ///
    /// Errors: `stop-string-invalid`.
    pub fn begin<'i>(
        rewards: &'s mut Rewards,
        of: &GradedRequest<'s>,
        items: impl ExactSizeIterator<Item = &'i Item>,
    ) -> Result<Grading<'s>> {
        let (GradedRequest { text, rollout, steps, .. }, group) = (*of, of.request.group_size);
        let samples = items.len() * group;
        rewards.begin(samples, group, steps);
        under_way::expect(samples);
        Ok(Grading {
            stop: TextStop::new(text, &rollout.stop, samples)?,
            text,
            rollout,
            rewards,
            prompts: items.map(|item| prompt(text, item)).collect(),
            group,
            texts: vec![String::new(); samples],
        })
    }

    /// Takes a response that has ended; one that was graded ahead has a key.
    pub fn take(&mut self, sample: usize, response: &[u32], finish: Finish, key: Option<u64>) {
        let case =
            case((self.text, self.rollout), self.prompts[sample / self.group].clone(), response, finish);
        self.texts[sample].clone_from(&case.response);
        match key {
            Some(key) => self.rewards.submit_graded(sample, case, key),
            None => self.rewards.submit(sample, case),
        }
        under_way::ended();
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

    fn has_masks(&self) -> bool {
        self.stop.has_masks()
    }

    fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<bool> {
        self.stop.mask(sample, so_far, words)
    }

    fn ended(&mut self, sample: usize, response: &[u32], finish: Finish) {
        self.take(sample, response, finish, None);
    }
}

/// Gives some responses to an item to the rewards ahead of their round, each with its key.
pub fn grade_ahead<'r>(
    rewards: &mut Rewards,
    (text, rollout): (&TextModel, &Rollout),
    item: &Item,
    responses: impl Iterator<Item = (u64, &'r [u32], Finish)>,
    steps: [u32; 2],
) {
    let prompt = prompt(text, item);
    for (key, response, finish) in responses {
        rewards.submit_ahead(key, case((text, rollout), prompt.clone(), response, finish), steps);
    }
}

fn prompt(text: &TextModel, item: &Item) -> Arc<Prompt> {
    Arc::new(Prompt {
        text: item.text.clone(),
        rendered: text.tokenizer.decode(&item.ids, false),
        messages: item.messages.clone(),
        columns: item.columns.clone(),
        images: sample_images(item),
    })
}

fn case(
    (text, rollout): (&TextModel, &Rollout),
    prompt: Arc<Prompt>,
    response: &[u32],
    finish: Finish,
) -> Case {
    Case {
        prompt,
        response: response_text(text, response, finish, &rollout.stop, rollout.keep_stop),
        completion: None,
        response_ids: response.to_vec(),
        max_new_tokens: rollout.max_new_tokens as usize,
        ended: finish != Finish::Length,
    }
}
