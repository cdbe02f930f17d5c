//! The groups under way, as they are between two steps: the tokens of each response, with the
//! log-probability and the version of the weights that drew each.

use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, SoFar};

/// A response as far as it has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Response {
    pub ids: Vec<u32>,
    /// A log-probability for each token, of the weights that drew it.
    pub logprobs: Vec<f32>,
    /// The updates that those weights had seen.
    pub versions: Vec<u64>,
    /// How it ended, if it has.
    pub finish: Option<Finish>,
}

impl Response {
    /// Adds tokens that the weights after `version` updates drew.
    pub(super) fn add(&mut self, ids: &[u32], logprobs: &[f32], version: u64) {
        self.ids.extend_from_slice(ids);
        self.logprobs.extend_from_slice(logprobs);
        self.versions.resize(self.ids.len(), version);
    }

    /// Returns which weights drew it: their updates and how many tokens they drew, in order.
    pub(super) fn runs(&self) -> Vec<(u64, u32)> {
        self.versions.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
    }

    /// Returns where it goes on.
    pub(super) fn begun(&self) -> SoFar<'_> {
        match self.finish {
            Some(_) => SoFar::Ended,
            None => SoFar::Tokens { ids: &self.ids, logprobs: &self.logprobs },
        }
    }
}

/// A prompt with its responses.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Position of the prompt in the data: its age too, since prompts begin in their order.
    pub position: u64,
    pub first_sample_id: u64,
    pub item: Item,
    pub responses: Vec<Response>,
}

impl Group {
    pub(super) fn has_ended(&self) -> bool {
        self.responses.iter().all(|response| response.finish.is_some())
    }

    /// True if a response has not ended, and at least `most` of its tokens are of older weights, as all are when a step
    /// begins.
    pub(super) fn is_due(&self, most: Option<u32>) -> bool {
        let old = |response: &Response| response.finish.is_none().then_some(response.ids.len());
        most.is_some_and(|most| self.responses.iter().filter_map(old).any(|tokens| tokens >= most as usize))
    }
}

/// The groups that go on in the next step, by age.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    pub(super) groups: Vec<Group>,
    /// Those after the step that is being made.
    pub(super) next: Option<Vec<Group>>,
}

impl Carried {
    /// Returns the number of groups under way, for a checkpoint; `None` without any.
    pub fn count(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.groups.len() as u64)
    }

    /// Takes what the step that was made leaves under way. A step that fails leaves what it found.
    pub fn commit(&mut self) {
        if let Some(next) = self.next.take() {
            self.groups = next;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn response(tokens: &[(u32, u64)], finish: Option<Finish>) -> Response {
        let mut response = Response { finish, ..Response::default() };
        tokens.iter().for_each(|&(id, version)| response.add(&[id], &[-1.0 / (id as f32 + 3.0)], version));
        response
    }

    pub(in crate::rollout::carry) fn group(position: u64) -> Group {
        let responses = vec![
            response(&[(7, 2), (9, 2), (9, 5)], None),
            response(&[], None),
            response(&[(1, 2), (2, 3)], Some(Finish::Eos)),
        ];
        Group { position, first_sample_id: 3 * position, item: Item::default(), responses }
    }

    #[test]
    fn a_group_is_due_by_the_tokens_of_a_response_that_goes_on() {
        let mut group = group(1);
        assert!(group.is_due(Some(3)) && !group.is_due(Some(4)) && !group.is_due(None));
        group.responses[0].finish = Some(Finish::Stop);
        assert!(!group.is_due(Some(1)), "the one that goes on has no token");
    }

    #[test]
    fn a_step_that_failed_leaves_what_it_found() {
        let mut carried = Carried { groups: vec![group(4)], next: None };
        carried.commit();
        assert_eq!(carried.groups.len(), 1);
        carried.next = Some(Vec::new());
        carried.commit();
        assert_eq!(carried.count(), None);
    }
}
