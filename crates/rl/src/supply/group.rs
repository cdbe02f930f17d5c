//! A prompt with its graded samples, in memory and as a line of a checkpoint. Tokens and log-probs are the responses of
//! a `Samples`, group by group.

use plimsoll_base::{Error, Result, open_regular};
use plimsoll_infer::text::Item;
use plimsoll_reward::{RewardStep, Scored};
use plimsoll_rollout::{Finish, Samples};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

/// One prompt with its samples.
#[derive(Clone, Debug)]
pub struct SampleGroup {
    /// Position of the prompt in the data.
    pub position: u64,
    pub item: Item,
    /// One entry per sample.
    pub scored: Vec<Scored>,
    /// The responses as text, one entry per sample; empty for episodes.
    pub texts: Vec<String>,
    /// The samples' sequences, if a sample may have any number; otherwise each has one, after the item's prompt.
    pub branches: Option<Vec<Branch>>,
    /// The reward of the greedy answer, where samples are compared with it.
    pub greedy: Option<f32>,
}

/// A sequence of a sample, with a prompt of its own.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Index of the sample in the group.
    pub sample: usize,
    pub prompt: Vec<u32>,
}

impl SampleGroup {
    pub fn num_sequences(&self) -> usize {
        self.branches.as_ref().map_or(self.scored.len(), Vec::len)
    }

    /// Returns the sample and the prompt of sequence `index`.
    pub fn sequence(&self, index: usize) -> (usize, &[u32]) {
        match &self.branches {
            Some(branches) => (branches[index].sample, &branches[index].prompt),
            None => (index, &self.item.ids),
        }
    }
}

/// A group as a line of the checkpoint's file. Floating-point numbers are stored as their bits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    position: u64,
    samples: Vec<LineSample>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    greedy: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineSample {
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    finish: Finish,
    total: Option<u32>,
    parts: Vec<Option<u32>>,
    /// End and reward of each step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<(u32, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    versions: Runs,
}

/// The versions that drew a sample's tokens, ascending, and how many each drew.
pub(crate) type Runs = Vec<(u64, u32)>;

/// Returns the lines of some groups, whose responses are those of `samples` in the order of all.
pub(crate) fn lines<'h>(
    all: &'h [SampleGroup],
    which: Range<usize>,
    samples: &'h Samples,
    versions: &'h [Runs],
) -> impl Iterator<Item = String> + 'h {
    let bits = |score: Option<f32>| score.map(f32::to_bits);
    which.map(move |g| {
        let group = &all[g];
        let size = group.scored.len();
        let sample = |(s, scored): (usize, &Scored)| LineSample {
            ids: samples.ids(s).to_vec(),
            logprobs: samples.logprobs(s).iter().map(|logprob| logprob.to_bits()).collect(),
            finish: samples.finish(s),
            total: bits(scored.total),
            parts: scored.parts.iter().map(|&part| bits(part)).collect(),
            versions: versions.get(s).cloned().unwrap_or_default(),
            steps: scored.steps.iter().map(|step| (step.end, step.reward.to_bits())).collect(),
        };
        let samples = (g * size..).zip(&group.scored).map(sample).collect();
        let greedy = bits(group.greedy);
        serde_json::to_string(&Line { position: group.position, samples, greedy })
            .expect("a line is plain data")
    })
}

/// Reads `count` groups of `size` samples back, their responses into `samples`. `item` returns the prompt at a position
/// of the data, `text` the text of a response.
///
/// Errors: `checkpoint-damaged`; those of `item`.
pub(crate) fn read_lines(
    path: &Path,
    count: u64,
    size: usize,
    samples: &mut Samples,
    item: &mut dyn FnMut(u64) -> Result<Item>,
    text: &dyn Fn(&[u32], Finish) -> String,
) -> Result<(Vec<SampleGroup>, Vec<Runs>)> {
    let bad = |what: String| {
        Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
            .hint("--resume=previous-good resumes from the previous checkpoint")
    };
    let number = |bits: Option<u32>| bits.map(f32::from_bits);
    let (mut groups, mut versions) = (Vec::new(), Vec::new());
    samples.clear();
    let file = open_regular(path).map_err(|err| bad(err.to_string()))?;
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|err| bad(err.to_string()))?;
        let line: Line = serde_json::from_str(&line).map_err(|err| bad(err.to_string()))?;
        if line.samples.len() != size {
            return Err(bad(format!("a group of {} samples, the run has {size}", line.samples.len())));
        }
        let (mut scored, mut texts) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for sample in line.samples {
            let logprobs: Vec<f32> = sample.logprobs.into_iter().map(f32::from_bits).collect();
            if sample.ids.len() != logprobs.len() || !samples.has_room(sample.ids.len()) {
                let found = (sample.ids.len(), logprobs.len());
                return Err(bad(format!("a response of {} tokens and {} log-probs", found.0, found.1)));
            }
            samples.push_response(&sample.ids, &logprobs, sample.finish);
            versions.push(sample.versions);
            texts.push(text(&sample.ids, sample.finish));
            let parts = sample.parts.into_iter().map(number).collect();
            let step = |(end, bits)| RewardStep { end, reward: f64::from_bits(bits) };
            let steps = sample.steps.into_iter().map(step).collect();
            scored.push(Scored { total: number(sample.total), parts, failed: false, steps });
        }
        let (item, greedy) = (item(line.position)?, number(line.greedy));
        groups.push(SampleGroup { position: line.position, item, scored, texts, branches: None, greedy });
    }
    if groups.len() as u64 != count {
        return Err(bad(format!("{} groups, state.json says {count}", groups.len())));
    }
    if versions.iter().all(Vec::is_empty) {
        versions.clear();
    }
    Ok((groups, versions))
}
