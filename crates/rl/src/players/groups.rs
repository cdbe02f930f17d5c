//! The groups under way, as they are between two steps: the tokens of each response, with the log-probability and the
//! version of the weights that drew each.

use super::turn::{FirstRequest, PlayedTurn};
use crate::rollout::message::as_json;
use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, Lengths, SoFar};
use serde::{Deserialize, Serialize};

/// A response as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Response {
    pub ids: Vec<u32>,
    /// A log-probability for each token, of the weights that drew it.
    pub logprobs: Vec<f32>,
    /// The updates that those weights had seen.
    pub versions: Vec<u64>,
    /// How it ended, if it has.
    pub finish: Option<Finish>,
    /// The step in which it ended, if it has.
    pub ended_in: u32,
    /// The first request of an agent, once a turn of its episode was drawn.
    #[serde(with = "as_json")]
    pub asked: Option<FirstRequest>,
    /// The turns of an episode.
    #[serde(with = "as_json")]
    pub turns: Vec<PlayedTurn>,
    /// True of an episode that a fault ended.
    pub has_fault: bool,
}

impl Response {
    /// Notes that it has ended in a step.
    pub(super) fn end(&mut self, finish: Finish, step: u32) {
        (self.finish, self.ended_in) = (Some(finish), step);
    }

    /// Adds tokens that the weights after `version` updates drew.
    pub(super) fn add(&mut self, ids: &[u32], logprobs: &[f32], version: u64) {
        self.ids.extend_from_slice(ids);
        self.logprobs.extend_from_slice(logprobs);
        self.versions.resize(self.ids.len(), version);
    }

    /// Returns the versions of the weights that drew its tokens; an environment's have none.
    pub(crate) fn drawn(&self) -> impl Iterator<Item = u64> + '_ {
        let whole = if self.turns.is_empty() { 0..self.ids.len() } else { 0..0 };
        let tokens = self.turns.iter().map(|of| of.turn.tokens()).chain([whole]);
        tokens.flatten().map(|token| self.versions[token])
    }

    /// Returns which weights its tokens are of, an environment's too: their updates and how many tokens, in order.
    pub(crate) fn runs(&self) -> Vec<(u64, u32)> {
        self.versions.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
    }

    /// Returns the number of its tokens whose keys a step has computed: not of an answer that it is yet to hear.
    pub(super) fn computed(&self) -> usize {
        self.turns.last().map_or(self.ids.len(), |last| last.turn.end as usize)
    }

    /// Returns where it goes on.
    pub(crate) fn begun(&self) -> SoFar<'_> {
        match self.finish {
            Some(_) => SoFar::Ended,
            None => SoFar::Tokens { ids: &self.ids, logprobs: &self.logprobs },
        }
    }

    /// Returns where an episode goes on: with a turn.
    pub(super) fn turns_begun(&self) -> SoFar<'_> {
        match self.finish {
            Some(_) => SoFar::Ended,
            None => SoFar::Turns { ids: &self.ids, logprobs: &self.logprobs },
        }
    }
}

/// A prompt with its responses.
#[derive(Clone, Debug)]
pub struct Group {
    /// Position of the prompt in the data: its age too, since prompts begin in their order.
    pub position: u64,
    pub first_sample_id: u64,
    pub item: Item,
    pub responses: Vec<Response>,
}

impl Group {
    /// Returns the number of a response in the run.
    pub(super) fn sample_id(&self, response: usize) -> u64 {
        self.first_sample_id + response as u64
    }

    /// Returns under what the lengths of its responses are learned: the key and the data set.
    pub(crate) fn key(&self) -> (u64, usize) {
        (Lengths::key(&self.item.ids), self.item.set)
    }

    /// Returns the lengths of its prompts: one, or those of agents, who bring their own.
    pub(super) fn prompt_lengths(&self) -> impl Iterator<Item = usize> {
        let own = self.responses.iter().filter_map(|response| Some(response.asked.as_ref()?.prompt.len()));
        own.chain(Some(self.item.ids.len()))
    }

    /// Adds the lengths of its responses to those that are known.
    pub(super) fn teach(&self, lengths: &mut Lengths) {
        let tokens: usize = self.responses.iter().map(|response| response.ids.len()).sum();
        let (key, set) = self.key();
        lengths.add(key, set, tokens as u64, self.responses.len() as u64);
    }

    /// Begins `size` responses to a prompt.
    pub(crate) fn begun(position: u64, first_sample_id: u64, item: Item, size: usize) -> Group {
        Group { position, first_sample_id, item, responses: vec![Response::default(); size] }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.responses.iter().all(|response| response.finish.is_some())
    }

    /// True if a response has not ended, and at least `most` of its tokens are of older weights, as all are when a step
    /// begins.
    pub(crate) fn is_due(&self, most: Option<u32>) -> bool {
        let old = |response: &Response| response.finish.is_none().then(|| response.drawn().count());
        most.is_some_and(|most| self.responses.iter().filter_map(old).any(|tokens| tokens >= most as usize))
    }
}

/// The groups that go on in the next step, by age.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupsUnderWay {
    pub groups: Vec<Group>,
    /// Those after the step that is being made.
    pub next: Option<Vec<Group>>,
}

impl GroupsUnderWay {
    /// Returns the number of groups under way, for a checkpoint; `None` without any.
    pub(crate) fn count(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.groups.len() as u64)
    }

    /// Keeps what the step that was made leaves under way.
    pub(crate) fn keep(&mut self) {
        if let Some(next) = self.next.take() {
            self.groups = next;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use plimsoll_rollout::Turn;
    use plimsoll_text::Message;

    fn response(tokens: &[(u32, u64)], finish: Option<Finish>) -> Response {
        let mut response = Response { finish, ..Response::default() };
        tokens.iter().for_each(|&(id, version)| response.add(&[id], &[-1.0 / (id as f32 + 3.0)], version));
        response
    }

    pub(crate) fn group(position: u64) -> Group {
        let responses = vec![
            response(&[(7, 2), (9, 2), (9, 5)], None),
            response(&[], None),
            Response { ended_in: 4, ..response(&[(1, 2), (2, 3)], Some(Finish::Eos)) },
        ];
        Group { position, first_sample_id: 3 * position, item: Item::default(), responses }
    }

    /// A group of one episode of two turns, which has heard the answer to the last.
    pub(crate) fn of_episode() -> Group {
        let turn = |start, end, version| PlayedTurn {
            turn: Turn { start, end, finish: Finish::Eos },
            response: "50".into(),
            reward: -0.1,
            said: vec![Message::new("user", "higher")],
            version,
        };
        let mut episode = Response { turns: vec![turn(0, 2, 4), turn(5, 6, 7)], ..Response::default() };
        episode.add(&[1, 2, 3, 3, 3], &[-0.5, -0.25, f32::NAN, f32::NAN, f32::NAN], 4);
        episode.add(&[9, 3], &[-1.0, f32::NAN], 7);
        Group { responses: vec![episode], ..group(1) }
    }

    /// The same, as an agent plays it: it is yet to ask again.
    pub(crate) fn of_agent() -> Group {
        let mut group = of_episode();
        let episode = &mut group.responses[0];
        let last = episode.ids.len() - 1;
        episode.ids.truncate(last);
        episode.logprobs.truncate(last);
        episode.versions.truncate(last);
        let messages = vec![Message::new("user", "a number?")];
        episode.asked = Some(FirstRequest { prompt: vec![5, 6], messages });
        group
    }

    #[test]
    fn an_episode_counts_what_it_drew() {
        let group = of_episode();
        let episode = &group.responses[0];
        assert_eq!(episode.drawn().collect::<Vec<_>>(), [4, 4, 7], "what was said has no version");
        assert_eq!((episode.computed(), episode.runs()), (6, vec![(4, 5), (7, 2)]));
        assert!(group.is_due(Some(3)) && !group.is_due(Some(4)), "it has drawn three");
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
        let mut carried = GroupsUnderWay { groups: vec![group(4)], next: None };
        carried.keep();
        assert_eq!(carried.groups.len(), 1);
        carried.next = Some(Vec::new());
        carried.keep();
        assert_eq!(carried.count(), None);
    }
}
