//! KTO against the lines of TRL 1.16, in f64 (`golden/kto.json`). Tolerance: as in `kin.rs`.

use crate::kin::{all_close, flat, narrow, read};
use plimsoll_algo::labelled::{Kto, batch_kl, kto_loss};

const TOLERANCE: f64 = 2e-7;

#[test]
fn loss_slopes_rewards_and_kl_are_those_of_trl() {
    let golden = read(plimsoll_algo::KTO);
    let inputs = &golden["inputs"];
    let [policy, reference] = ["policy", "reference"].map(|name| narrow(&inputs[name]));
    let labels: Vec<bool> =
        inputs["labels"].as_array().unwrap().iter().map(|v| v.as_bool().unwrap()).collect();
    for case in golden["cases"].as_array().expect("a list") {
        let kl = batch_kl(&narrow(&case["kl_policy"]), &narrow(&inputs["kl_reference"]));
        let weights = flat(&case["weights"]);
        let kto =
            Kto { beta: case["beta"].as_f64().unwrap(), desirable: weights[0], undesirable: weights[1] };
        let mut slopes = vec![0f32; labels.len()];
        let answers = labels.len() as f64;
        let sums = kto_loss(kto, [&policy, &reference], &labels, (kl, answers), &mut slopes);
        let close = |what: &str, ours: f64, theirs: &serde_json::Value| {
            let theirs = theirs.as_f64().unwrap();
            assert!((ours - theirs).abs() <= TOLERANCE * theirs.abs().max(1.0), "{what}: {ours} {theirs}");
        };
        close("kl", kl, &case["kl"]);
        close("loss", sums.loss, &case["loss"]);
        close("desirable", sums.rewards[1], &case["rewards"][0]);
        close("undesirable", sums.rewards[0], &case["rewards"][1]);
        all_close("slopes", &slopes, &case["slopes"]);
        assert_eq!(sums.counts, [4.0, 3.0]);
    }
}

#[test]
fn a_loss_in_parts_is_the_loss_of_the_whole() {
    let (policy, reference) = ([-1.0, -3.0, -2.5, -0.5], [-1.5, -2.0, -2.5, -1.0]);
    let labels = [true, false, false, true];
    let kto = Kto { beta: 0.2, desirable: 1.0, undesirable: 2.0 };
    let mut whole = [0f32; 4];
    let all = kto_loss(kto, [&policy, &reference], &labels, (0.3, 4.0), &mut whole);
    let mut parts = [0f32; 4];
    let mut sums = plimsoll_algo::labelled::LabelSums::default();
    for half in [0..1, 1..4] {
        let of = [&policy[half.clone()], &reference[half.clone()]];
        sums.merge(kto_loss(kto, of, &labels[half.clone()], (0.3, 4.0), &mut parts[half]));
    }
    assert_eq!(parts, whole);
    assert!((sums.loss - all.loss).abs() < 1e-15 && sums.counts == all.counts && sums.correct == all.correct);
}
