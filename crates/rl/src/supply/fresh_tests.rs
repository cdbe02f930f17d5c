//! Groups that wait for their steps: each is trained on once, in order, with the sequences that are its own.

use super::*;
use crate::supply::group::{Branch, SampleGroup};
use plimsoll_config::{Method, RunFile, RunSpec, Train};
use plimsoll_infer::text::Item;
use plimsoll_reward::{RewardStep, Scored};
use plimsoll_rollout::Finish;
use plimsoll_run::progress::Progress;

fn group(position: u64, branches: Option<&[usize]>) -> SampleGroup {
    let branch = |&sample: &usize| Branch { sample, prompt: vec![position as u32, sample as u32] };
    SampleGroup {
        greedy: None,
        position,
        item: Item { ids: vec![position as u32], ..Item::default() },
        scored: vec![Scored::default(); 2],
        texts: Vec::new(),
        branches: branches.map(|samples| samples.iter().map(branch).collect()),
    }
}

fn rollout(groups: Vec<SampleGroup>) -> Rollout {
    let of = BufferState { step: 7, policy_version: 41, groups: 0 };
    Rollout { of, groups, samples: Arc::new(Samples::with_capacity(6, 3)), versions: Vec::new() }
}

/// Makes a step of `prompts` prompts. Returns its groups.
fn made(supply: &mut FreshSupply, prompts: usize) -> Range<usize> {
    let groups = supply.left(prompts);
    supply.used_after = groups.end;
    supply.keep();
    groups
}

fn state(supply: &FreshSupply) -> Option<BufferState> {
    let mut state = RunState::blank(Progress::default());
    supply.state(&mut state);
    state.held
}

#[test]
fn steps_take_every_group_once_and_in_order() {
    for count in 0..9_u64 {
        for prompts in 1..6 {
            let mut supply = FreshSupply::default();
            supply.put(rollout((0..count).map(|position| group(position, None)).collect()));
            let mut taken = Vec::new();
            while !supply.left(prompts).is_empty() {
                let waiting = state(&supply).map_or(0, |state| state.groups as usize);
                assert!(taken.is_empty() || waiting == count as usize - taken.len(), "{waiting}");
                taken.extend(made(&mut supply, prompts));
            }
            assert_eq!(taken, (0..count as usize).collect::<Vec<_>>(), "{count} in steps of {prompts}");
            assert_eq!(state(&supply), None, "nothing waits");
        }
    }
}

#[test]
fn a_step_that_fails_leaves_its_groups() {
    let mut supply = FreshSupply::default();
    supply.put(rollout((0..3).map(|position| group(position, None)).collect()));
    assert_eq!(state(&supply), None, "no step is done: the rollout is made again");
    assert_eq!(made(&mut supply, 1), 0..1);
    // The next step takes its groups, and is never kept.
    supply.used_after = supply.left(1).end;
    assert_eq!(state(&supply), Some(BufferState { step: 7, policy_version: 41, groups: 2 }));
    assert_eq!(made(&mut supply, 1), 1..2);
}

#[test]
fn a_sample_may_have_several_sequences_or_none() {
    let of = [Some(&[0, 0, 1][..]), Some(&[]), None, Some(&[1])];
    let rollout = rollout((5..).zip(of).map(|(position, branches)| group(position, branches)).collect());
    let each: Vec<Range<usize>> = (0..4).map(|g| rollout.sequences(g..g + 1)).collect();
    assert_eq!(each, [0..3, 3..3, 3..5, 5..6]);
    assert_eq!(rollout.sequences(0..4), 0..6);
    let of = |g: usize, index: usize| rollout.groups[g].sequence(index);
    assert_eq!((of(0, 1), of(0, 2)), ((0, &[5, 0][..]), (1, &[5, 1][..])));
    // Otherwise each sample has one sequence, after the prompt of the group.
    assert_eq!((of(2, 0), of(2, 1)), ((0, &[7][..]), (1, &[7][..])));
}

fn run(size: u32) -> RunSpec {
    let mut run = RunFile::of(Method::Grpo, "builtin:nano", Train::new(1, 1e-6));
    run.rollout.group_size = size;
    RunSpec::new(&run)
}

/// Reads a file of samples back as one with `groups` groups of `size`, into room for `tokens` tokens a response.
fn read(folder: &Path, of: BufferState, size: u32, tokens: usize) -> Result<FreshSupply> {
    let mut supply = FreshSupply::new(Some(Arc::new(Samples::with_capacity(4, tokens))));
    let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
    let state = RunState { held: Some(of), ..RunState::blank(Progress::default()) };
    let (run, item, text) = (&run(size), &mut item, &|ids: &[u32], _| ids.len().to_string());
    supply.restore(&mut Restored {
        folder,
        state: &state,
        run,
        vocab: 15,
        limits: Default::default(),
        item,
        text,
    })?;
    Ok(supply)
}

#[test]
fn what_waits_comes_back_with_its_bits() {
    let steps = vec![RewardStep { end: 3, reward: -0.1 }, RewardStep { end: 7, reward: 1.0 / 3.0 }];
    let mut samples = Samples::with_capacity(6, 3);
    samples.clear();
    let mut groups = Vec::new();
    for (position, total) in [(30, Some(1.0)), (31, None), (34, Some(-0.3))] {
        let parts = vec![Some(0.1), None];
        let scored = vec![Scored { total, parts, failed: false, steps: steps.clone() }, Scored::default()];
        groups.push(SampleGroup {
            scored,
            texts: vec![String::new(); 2],
            greedy: total,
            ..group(position, None)
        });
        samples.push_response(&[position as u32, 5], &[-0.1, -2.5e-7], Finish::Eos);
        samples.push_response(&[9], &[-1.0 / 3.0], Finish::Length);
    }
    let mut supply = FreshSupply::default();
    supply.put(Rollout { samples: Arc::new(samples), ..rollout(groups) });
    made(&mut supply, 1);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(HELD).parent().expect("a folder")).expect("made");
    let of = state(&supply).expect("two groups wait");
    assert_eq!(of, BufferState { step: 7, policy_version: 41, groups: 2 });
    assert_eq!(supply.write(folder.path()).expect("written")[0].0, HELD);

    let read = |of, size, tokens| read(folder.path(), of, size, tokens);
    let back = read(of, 2, 3).expect("whole");
    assert_eq!((state(&back), back.left(9)), (Some(of), 0..2));
    let (back, whole) = (back.rollout.expect("read"), supply.rollout.expect("it waits"));
    assert_eq!(back.groups[1].item.text, "34");
    assert_eq!(back.groups[1].texts, ["2", "1"]);
    for (g, before) in back.groups.iter().zip(&whole.groups[1..]) {
        assert_eq!((g.position, &g.scored, g.greedy), (before.position, &before.scored, before.greedy));
    }
    for s in 0..4 {
        assert_eq!(back.samples.ids(s), whole.samples.ids(s + 2));
        assert_eq!(back.samples.logprobs(s), whole.samples.logprobs(s + 2));
        assert_eq!(back.samples.finish(s), whole.samples.finish(s + 2));
    }
    for (of, size, tokens, what) in [
        (BufferState { groups: 3, ..of }, 2, 3, "state.json says 3"),
        (of, 3, 3, "a group of 2 samples"),
        (of, 2, 1, "a response of 2 tokens"),
    ] {
        let error = read(of, size, tokens).expect_err(what);
        assert!(error.slug == "checkpoint-damaged" && error.message.contains(what), "{error}");
    }
}

#[test]
fn a_file_of_samples_that_was_damaged_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = BufferState { step: 1, policy_version: 1, groups: 1 };
    std::fs::create_dir(folder.path().join(HELD).parent().expect("a folder")).expect("made");
    let good =
        r#"{"position":4,"samples":[{"ids":[1,2],"logprobs":[0,0],"finish":"eos","total":null,"parts":[]}]}"#;
    let read = |text: &str| {
        std::fs::write(folder.path().join(HELD), text).expect("a file");
        read(folder.path(), of, 1, 4)
    };
    assert_eq!(read(good).expect("it is whole").left(9), 0..1);
    for bad in [
        &good[..40],
        &good.replace("[0,0]", "[0]"),
        &good.replace("\"position\":4,", ""),
        &good.replace("\"position\"", "\"place\""),
        &good.replace("eos", "bored"),
        &good.replace("[1,2]", "[1,2,3,4,5]").replace("[0,0]", "[0,0,0,0,0]"),
        &format!("{good}\n{good}"),
        "",
    ] {
        let error = read(bad).map(|_| ()).expect_err(bad);
        assert_eq!(error.slug, "checkpoint-damaged", "{bad}");
        assert!(error.hints[0].contains("--resume=previous-good"), "{error}");
    }
}
