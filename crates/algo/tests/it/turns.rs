//! Advantages of turns against numpy in f64 (`golden/turns.json`).
//!
//! Tolerance: a return-to-go is rounded to f32 before it is compared (6e-8 of it), returns are up to 50 and deviations
//! about as large as their returns, and an advantage of `process` is a sum of up to eight rounded numbers: 1e-6.

use crate::kin::{flat, read};
use plimsoll_algo::shaping::{GroupShaping, Shaping};
use plimsoll_algo::turns::{TurnCredit, Turns, compare_turns};

const GOLDEN: &str = include_str!("../golden/turns.json");
const TOLERANCE: f64 = 1e-6;

#[test]
fn advantages_of_turns_are_those_of_numpy() {
    let golden = read(GOLDEN);
    let eps = golden["eps"].as_f64().expect("a number");
    let group_size = golden["group_size"].as_u64().expect("a number") as usize;
    let (rewards, tokens) = (flat(&golden["rewards"]), flat(&golden["tokens"]));
    let tokens: Vec<usize> = tokens.into_iter().map(|n| n as usize).collect();
    let mut offsets = vec![0];
    for episode in golden["rewards"].as_array().expect("a list") {
        offsets.push(offsets[offsets.len() - 1] + episode.as_array().expect("a list").len());
    }
    let mut compared = 0;
    for (how, key) in [(TurnCredit::Returns, "returns"), (TurnCredit::Process, "process")] {
        for (name, expect) in golden[key].as_object().expect("one list for each shaping") {
            let group = match name.as_str() {
                "group_norm" => GroupShaping::GroupNorm { eps },
                "mean_baseline" => GroupShaping::MeanBaseline,
                "rloo" => GroupShaping::Rloo,
                "length_weighted" => GroupShaping::LengthWeighted,
                other => panic!("{other}"),
            };
            let turns = Turns { rewards: &rewards, tokens: &tokens, offsets: &offsets };
            let shaping = Shaping { overlong: None, group, clip: [-10.0, 10.0] };
            let mut ours = vec![f32::NAN; rewards.len()];
            compare_turns(how, &shaping, turns, group_size, &mut ours).expect("groups of four");
            let theirs = flat(expect);
            assert_eq!(ours.len(), theirs.len());
            for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
                let error = (f64::from(*a) - b).abs();
                assert!(error <= TOLERANCE * b.abs().max(1.0), "{key} {name} [{i}]: ours {a:e}, numpy {b:e}");
            }
            // The group before the last has equal rewards.
            let [from, to] =
                [offsets[offsets.len() - 1 - 2 * group_size], offsets[offsets.len() - 1 - group_size]];
            assert!(ours[from..to].iter().all(|&it| it == 0.0), "{key} {name}: {:?}", &ours[from..to]);
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn a_group_of_one_is_refused() {
    let turns = Turns { rewards: &[1.0], tokens: &[1], offsets: &[0, 1] };
    let shaping = Shaping { overlong: None, group: GroupShaping::Rloo, clip: [-10.0, 10.0] };
    let error = compare_turns(TurnCredit::Returns, &shaping, turns, 1, &mut [0.0]).expect_err("one episode");
    assert_eq!(error.slug, "group-too-small");
}
