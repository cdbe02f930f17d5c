//! Rollouts that wait: their order, their ages, what a failed step leaves, and their files.

use super::*;
use crate::supply::group::{Runs, SampleGroup};
use plimsoll_config::{Method, RunFile, RunSpec, Train};
use plimsoll_infer::text::Item;
use plimsoll_reward::Scored;
use plimsoll_rollout::Finish;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::progress::Progress;

/// A rollout of one group of two samples, of three tokens and one, drawn by the weights of `version`.
fn drawn(step: u32, version: u64, versions: Vec<Runs>) -> Rollout {
    let mut samples = Samples::with_capacity(2, 4);
    samples.clear();
    samples.push_response(&[step, 5, 6], &[-0.5, -0.25, -1.0 / 3.0], Finish::Eos);
    samples.push_response(&[9], &[-2.5e-7], Finish::Length);
    let group = SampleGroup {
        position: u64::from(step),
        item: Item::default(),
        scored: vec![Scored::default(); 2],
        texts: vec![String::new(); 2],
        branches: None,
        greedy: None,
    };
    let of = BufferState { step, policy_version: version, groups: 0 };
    Rollout { of, groups: vec![group], samples: Arc::new(samples), versions }
}

/// A queue in which the rollouts of `steps` wait.
fn waiting(steps: &[u32]) -> RolloutQueue {
    let waiting = steps.iter().map(|step| Arc::new(drawn(*step, u64::from(*step), Vec::new())));
    RolloutQueue { waiting: waiting.collect(), drawn: Vec::new() }
}

fn steps(queue: &RolloutQueue) -> Vec<u32> {
    queue.states().iter().map(|state| state.step).collect()
}

#[test]
fn a_step_takes_the_oldest_and_what_it_drew_waits() {
    let mut queue = waiting(&[1, 2]);
    queue.begin();
    queue.push(drawn(3, 3, Vec::new()));
    assert_eq!((queue.num_waiting(), queue.num_there()), (2, 3));
    assert_eq!(queue.first(3).0.rollout.of.step, 1);
    queue.keep();
    assert_eq!((steps(&queue), queue.num_there()), (vec![2, 3], 2));
}

#[test]
fn the_first_step_takes_what_it_drew_itself() {
    let mut queue = RolloutQueue::default();
    (1..=3).for_each(|step| queue.push(drawn(step, 0, Vec::new())));
    assert_eq!(queue.first(0).0.rollout.of.step, 1);
    queue.keep();
    assert_eq!(steps(&queue), [2, 3]);
}

#[test]
fn what_a_failed_step_drew_is_drawn_again() {
    let mut queue = waiting(&[1, 2]);
    queue.push(drawn(3, 3, Vec::new()));
    // It is never kept, and made again.
    assert_eq!(steps(&queue), [1, 2], "a checkpoint has what waited before it");
    queue.begin();
    queue.push(drawn(3, 3, Vec::new()));
    queue.keep();
    assert_eq!(steps(&queue), [2, 3]);
}

#[test]
fn tokens_are_as_old_as_the_weights_that_drew_them() {
    let ages = |rollout: Rollout, version| Rollout::whole(Arc::new(rollout), version).1;
    let of = |rollout, version| Rollout::whole(Arc::new(rollout), version).0.stale;
    // All of one version: of this one, and of two updates before.
    assert_eq!(ages(drawn(1, 7, Vec::new()), 7), Ages { tokens: 4, stale: 0, sum: 0 });
    assert_eq!(ages(drawn(1, 5, Vec::new()), 7), Ages { tokens: 4, stale: 4, sum: 8 });
    assert_eq!(of(drawn(1, 7, Vec::new()), 7), [0; 0], "nothing is old, and nothing is listed");
    assert_eq!(of(drawn(1, 5, Vec::new()), 7), [3, 1]);
    // The first response's two first tokens are of two versions before its last.
    let mixed = || vec![vec![(4, 1), (6, 1), (7, 1)], vec![(7, 1)]];
    assert_eq!(ages(drawn(1, 7, mixed()), 7), Ages { tokens: 4, stale: 2, sum: 4 });
    assert_eq!(of(drawn(1, 7, mixed()), 7), [2, 0]);
}

#[test]
fn means_and_shares_of_ages_are_over_tokens() {
    let ages = Ages { tokens: 8, stale: 2, sum: 6 };
    assert_eq!((ages.mean(), ages.stale_share()), (0.75, 0.25));
    assert_eq!((Ages::default().mean(), Ages::default().stale_share()), (0.0, 0.0), "no token has no age");
    let metrics = metrics_of(&ages);
    assert_eq!((metrics["rollout/staleness"], metrics["rollout/stale_share"]), (0.75, 0.25));
}

#[test]
fn rollouts_come_back_from_a_checkpoint_with_versions_and_bits() {
    let mixed = vec![vec![(4, 1), (6, 2)], vec![(6, 1)]];
    let mut queue = waiting(&[2]);
    queue.push(drawn(3, 6, mixed.clone()));
    queue.push(drawn(4, 7, Vec::new()));
    queue.keep();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("state")).expect("made");
    let names: Vec<String> =
        queue.write(folder.path()).expect("written").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [ahead_file(0), ahead_file(1)]);
    let mut file = RunFile::of(Method::Grpo, "builtin:nano", Train::new(9, 1e-6));
    (file.rollout.group_size, file.rollout.prompts_per_step, file.rollout.max_new_tokens) = (2, 1, 4);
    let run = RunSpec::new(&file);
    let state = RunState { ahead: queue.states(), ..RunState::blank(Progress::default()) };
    let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
    let (item, text) = (&mut item, &|ids: &[u32], _| ids.len().to_string());
    let mut from = Restored {
        folder: folder.path(),
        state: &state,
        run: &run,
        vocab: 15,
        limits: Default::default(),
        item,
        text,
    };
    let back = RolloutQueue::read(&mut from).expect("whole");
    assert_eq!(back.states(), queue.states());
    for (back, whole) in back.waiting.iter().zip(&queue.waiting) {
        assert_eq!(back.versions, whole.versions);
        assert_eq!(back.groups[0].item.text, whole.groups[0].position.to_string());
        for s in 0..2 {
            assert_eq!(back.samples.ids(s), whole.samples.ids(s));
            assert_eq!(back.samples.logprobs(s), whole.samples.logprobs(s));
        }
    }
    assert_eq!(back.waiting[0].versions, mixed);
    // A file that is cut is refused by its name.
    let path = folder.path().join(ahead_file(1));
    let good = std::fs::read_to_string(&path).expect("lines");
    std::fs::write(&path, &good[..good.len() / 2]).expect("written");
    let error = RolloutQueue::read(&mut from).expect_err("half a line");
    assert!(error.slug == "checkpoint-damaged" && error.message.contains(&ahead_file(1)), "{error}");
}

#[test]
fn a_step_knows_its_sequences_and_those_that_were_cut() {
    let (samples, _) = Rollout::whole(Arc::new(drawn(1, 0, Vec::new())), 0);
    assert_eq!((samples.sequences(), samples.num_cut(), samples.groups().len()), (0..2, 1, 1));
    assert!(samples.is_recorded);
    let none = StepSamples { groups: 1..1, ..samples };
    assert_eq!((none.sequences(), none.num_cut(), none.groups().len()), (2..2, 0, 0));
}
