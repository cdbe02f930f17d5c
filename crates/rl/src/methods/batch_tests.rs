//! Which sequences share a prompt, whose they are, and which were cut.

use super::*;
use crate::rollout::group::Branch;
use plimsoll_config::{Method, RunFile, Train};
use plimsoll_infer::text::Item;
use plimsoll_reward::Scored;

fn run() -> RunSpec {
    let mut run = RunFile::of(Method::Grpo, "builtin:nano", Train::new(1, 1e-6));
    run.rollout.temperature = 0.5;
    RunSpec::new(&run)
}

fn group(prompt: &[u32], samples: usize, branches: Option<Vec<Branch>>) -> SampleGroup {
    SampleGroup {
        greedy: None,
        position: 0,
        item: Item { ids: prompt.to_vec(), ..Item::default() },
        scored: vec![Scored::default(); samples],
        texts: Vec::new(),
        branches,
    }
}

#[test]
fn sequences_of_a_group_share_their_prompt_and_know_their_samples() {
    let branch = |sample, prompt: &[u32]| Branch { sample, prompt: prompt.to_vec() };
    let mut buffer = RolloutBuffer::default();
    buffer.begin(4, 30);
    buffer.push(group(&[9], 2, None));
    buffer.push(group(&[1, 2], 2, None));
    // An agent's episodes: the first has two sequences after one prompt, the second none, the third another prompt.
    buffer.push(group(&[3], 3, Some(vec![branch(0, &[3]), branch(0, &[3]), branch(2, &[3, 4])])));
    let mut samples = Samples::with_capacity(7, 4);
    samples.clear();
    for s in 0..7 {
        let finish = if s % 3 == 0 { Finish::Length } else { Finish::Eos };
        samples.push_response(&[s, s], &[-0.1, -0.2], finish);
    }
    let batch = Batch::new(&run(), &buffer, &samples, 1..3, 6);
    let shown: Vec<(usize, &[u32], &[u32])> =
        batch.sequences.iter().map(|s| (s.group, s.prompt, s.response)).collect();
    assert_eq!(
        shown,
        [
            (1, &[1, 2][..], &[2, 2][..]),
            (1, &[1, 2], &[3, 3]),
            (2, &[3], &[4, 4]),
            (2, &[3], &[5, 5]),
            (3, &[3, 4], &[6, 6]),
        ]
    );
    assert_eq!(batch.owners, [0, 1, 2, 2, 4], "samples of the batch, also those without a sequence");
    assert_eq!(batch.which, 2..7);
    assert_eq!(batch.cut().collect::<Vec<_>>(), [1, 4], "samples 3 and 6");
    assert_eq!((batch.lag, batch.policy_version, batch.inv_temperature), (2, 30, 2.0));
}
