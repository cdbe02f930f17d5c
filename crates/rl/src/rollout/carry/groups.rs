//! The groups under way, as they are between two steps and in a checkpoint: the tokens of each response, with the
//! log-probability and the version of the weights that drew each.

use plimsoll_base::{Error, Result};
use plimsoll_files::{FileRecord, write_new_lines};
use plimsoll_infer::text::Item;
use plimsoll_rollout::{Finish, SoFar};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A response as far as it has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Response {
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

    /// Returns the versions that drew its tokens, and how many tokens each drew.
    pub(crate) fn runs(&self) -> Vec<(u64, u32)> {
        self.versions.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u32)).collect()
    }

    /// Returns where it goes on.
    pub(crate) fn begun(&self) -> SoFar<'_> {
        match self.finish {
            Some(_) => SoFar::Ended,
            None => SoFar::Tokens { ids: &self.ids, logprobs: &self.logprobs },
        }
    }
}

/// A prompt with its responses.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Position of the prompt in the data: its age too, since prompts begin in their order.
    pub position: u64,
    pub first_sample_id: u64,
    pub item: Item,
    pub responses: Vec<Response>,
}

impl Group {
    /// Begins `size` responses to a prompt.
    pub(crate) fn begun(position: u64, first_sample_id: u64, item: Item, size: usize) -> Group {
        Group { position, first_sample_id, item, responses: vec![Response::default(); size] }
    }

    pub(crate) fn has_ended(&self) -> bool {
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
    pub(crate) groups: Vec<Group>,
    /// Those after the step that is being made.
    pub(crate) next: Option<Vec<Group>>,
}

/// A group as a line of the checkpoint's file. Log-probabilities are stored as their bits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    position: u64,
    first_sample_id: u64,
    responses: Vec<LineResponse>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineResponse {
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    /// Updates of the weights that drew tokens, and how many tokens they drew.
    versions: Vec<(u64, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finish: Option<Finish>,
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

    /// Writes a checkpoint's file.
    ///
    /// Errors: those of writing.
    pub(crate) fn write(&self, path: &Path) -> Result<FileRecord> {
        let line = |group: &Group| {
            let responses = group.responses.iter().map(LineResponse::of).collect();
            let Group { position, first_sample_id, .. } = *group;
            serde_json::to_string(&Line { position, first_sample_id, responses })
                .expect("a line is plain data")
        };
        write_new_lines(path, self.groups.iter().map(line))
    }

    /// Reads a checkpoint's file of `count` groups of `size` responses of at most `most` tokens. `item` returns the
    /// prompt at a position of the data.
    ///
    /// Errors: `checkpoint-damaged`; those of `item`.
    pub(crate) fn read(
        path: &Path,
        count: u64,
        (size, most): (usize, usize),
        item: &mut dyn FnMut(u64) -> Result<Item>,
    ) -> Result<Carried> {
        let bad = |what: String| {
            Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
                .hint("--resume=previous-good resumes from the previous checkpoint")
        };
        let file = File::open(path).map_err(|err| bad(err.to_string()))?;
        let mut groups = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line.map_err(|err| bad(err.to_string()))?;
            let line: Line = serde_json::from_str(&line).map_err(|err| bad(err.to_string()))?;
            if line.responses.len() != size {
                return Err(bad(format!(
                    "a group of {} responses, the run has {size}",
                    line.responses.len()
                )));
            }
            let whole = |response: LineResponse| response.whole(most).map_err(bad);
            let responses: Vec<Response> = line.responses.into_iter().map(whole).collect::<Result<_>>()?;
            let (position, first_sample_id) = (line.position, line.first_sample_id);
            groups.push(Group { position, first_sample_id, item: item(position)?, responses });
        }
        if groups.len() as u64 != count {
            return Err(bad(format!("{} groups, state.json says {count}", groups.len())));
        }
        Ok(Carried { groups, next: None })
    }
}

impl LineResponse {
    fn of(response: &Response) -> LineResponse {
        LineResponse {
            ids: response.ids.clone(),
            logprobs: response.logprobs.iter().map(|logprob| logprob.to_bits()).collect(),
            versions: response.runs(),
            finish: response.finish,
        }
    }

    fn whole(self, most: usize) -> std::result::Result<Response, String> {
        let LineResponse { ids, logprobs, versions, finish } = self;
        let drawn: u64 = versions.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        if ids.len() != logprobs.len() || ids.len() as u64 != drawn || ids.len() > most {
            return Err(format!(
                "a response of {} tokens, {} log-probs and {drawn} versions",
                ids.len(),
                logprobs.len()
            ));
        }
        if finish.is_none() && ids.len() == most {
            return Err(format!("a response of {most} tokens goes on"));
        }
        Ok(Response {
            ids,
            logprobs: logprobs.into_iter().map(f32::from_bits).collect(),
            versions: versions.into_iter().flat_map(|(at, tokens)| vec![at; tokens as usize]).collect(),
            finish,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(tokens: &[(u32, u64)], finish: Option<Finish>) -> Response {
        let mut response = Response { finish, ..Response::default() };
        tokens.iter().for_each(|&(id, version)| response.add(&[id], &[-1.0 / (id as f32 + 3.0)], version));
        response
    }

    fn group(position: u64) -> Group {
        let responses = vec![
            response(&[(7, 2), (9, 2), (9, 5)], None),
            response(&[], None),
            response(&[(1, 2), (2, 3)], Some(Finish::Eos)),
        ];
        Group { position, first_sample_id: 3 * position, item: Item::default(), responses }
    }

    #[test]
    fn groups_come_back_with_their_bits_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        let carried = Carried { groups: vec![group(4), group(9)], next: None };
        assert_eq!(carried.count(), Some(2));
        carried.write(&path).expect("written");
        let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
        let back = Carried::read(&path, 2, (3, 8), &mut item).expect("whole");
        for (a, b) in back.groups.iter().zip(&carried.groups) {
            assert_eq!(
                (a.position, a.first_sample_id, &a.responses),
                (b.position, b.first_sample_id, &b.responses)
            );
            assert_eq!(a.item.text, b.position.to_string());
        }
        for (count, size, what) in [
            (3, (3, 8), "2 groups, state.json says 3"),
            (2, (2, 8), "a group of 3 responses"),
            (2, (3, 2), "a response of 3 tokens, 3 log-probs and 3 versions"),
            (2, (3, 3), "a response of 3 tokens goes on"),
        ] {
            let error = Carried::read(&path, count, size, &mut item).expect_err(what);
            assert!(error.slug == "checkpoint-damaged" && error.message.contains(what), "{error}");
        }
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
