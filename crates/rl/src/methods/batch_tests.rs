//! Which sequences share a prompt, whose they are, and which were cut.

use super::*;
use crate::supply::group::Branch;
use crate::supply::rollout::Rollout;
use plimsoll_config::{Method, RunFile, Train};
use plimsoll_infer::text::Item;
use plimsoll_reward::Scored;
use plimsoll_run::checkpoint::BufferState;
use std::sync::Arc;

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
    // An agent's episodes: the first has two sequences after one prompt, the second none, the third another prompt.
    let of_agent = group(&[3], 3, Some(vec![branch(0, &[3]), branch(0, &[3]), branch(2, &[3, 4])]));
    let groups = vec![group(&[9], 2, None), group(&[1, 2], 2, None), of_agent];
    let mut samples = Samples::with_capacity(7, 4);
    samples.clear();
    for s in 0..7 {
        let finish = if s % 3 == 0 { Finish::Length } else { Finish::Eos };
        samples.push_response(&[s, s], &[-0.1, -0.2], finish);
    }
    let of = BufferState { step: 4, policy_version: 30, groups: 0 };
    let rollout = Arc::new(Rollout { of, groups, samples: Arc::new(samples), versions: Vec::new() });
    let of = StepSamples { rollout, groups: 1..3, stale: Vec::new(), is_recorded: true };
    let batch = Batch::new(&run(), &of, 6);
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
    assert_eq!((batch.lag, batch.inv_temperature), (2, 2.0));
}
