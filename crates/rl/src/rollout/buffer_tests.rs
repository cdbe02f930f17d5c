//! Groups that wait for their steps: each is trained on once, in order, with the sequences that are its own.

use super::*;
use crate::rollout::group::Branch;
use plimsoll_reward::Scored;

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

#[test]
fn steps_take_every_group_once_and_in_order() {
    for count in 0..9_u64 {
        for prompts in 1..6 {
            let mut buffer = RolloutBuffer::default();
            buffer.begin(3, 12);
            (0..count).for_each(|position| buffer.push(group(position, None)));
            let mut taken = Vec::new();
            loop {
                let next = buffer.next(prompts);
                if next.is_empty() {
                    break;
                }
                let waiting = buffer.state().map_or(0, |state| state.groups as usize);
                assert!(taken.is_empty() || waiting == count as usize - taken.len(), "{waiting}");
                assert_eq!(buffer.sequences(next.clone()), 2 * next.start..2 * next.end);
                taken.extend(next.clone());
                buffer.done(next.clone());
                assert_eq!(buffer.last(), next);
            }
            assert_eq!(taken, (0..count as usize).collect::<Vec<_>>(), "{count} in steps of {prompts}");
            assert_eq!(buffer.state(), None, "nothing waits");
        }
    }
}

#[test]
fn a_sample_may_have_several_sequences_or_none() {
    let mut buffer = RolloutBuffer::default();
    buffer.begin(1, 0);
    buffer.push(group(5, Some(&[0, 0, 1])));
    buffer.push(group(6, Some(&[])));
    buffer.push(group(7, None));
    buffer.push(group(8, Some(&[1])));
    let each: Vec<Range<usize>> = (0..4).map(|g| buffer.sequences(g..g + 1)).collect();
    assert_eq!(each, [0..3, 3..3, 3..5, 5..6]);
    assert_eq!(buffer.sequences(0..4), 0..6);
    let of = |g: usize, index: usize| buffer.groups()[g].sequence(index);
    assert_eq!((of(0, 1), of(0, 2)), ((0, &[5, 0][..]), (1, &[5, 1][..])));
    // Otherwise each sample has one sequence, after the prompt of the group.
    assert_eq!((of(2, 0), of(2, 1)), ((0, &[7][..]), (1, &[7][..])));
}

#[test]
fn a_file_of_samples_that_was_damaged_is_refused() {
    let (folder, state) =
        (tempfile::tempdir().expect("a folder"), BufferState { step: 1, policy_version: 1, groups: 1 });
    let path = folder.path().join("samples.jsonl");
    let good =
        r#"{"position":4,"samples":[{"ids":[1,2],"logprobs":[0,0],"finish":"eos","total":null,"parts":[]}]}"#;
    let read = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        let mut item = |_| Ok(Item::default());
        RolloutBuffer::read(&path, state, 1, &mut Samples::with_capacity(1, 4), &mut item, &|_, _| {
            String::new()
        })
    };
    assert_eq!(read(good).expect("it is whole").groups().len(), 1);
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
