//! Losses that are sums against torch's autograd in f64 (`golden/sum_loss.json`, which `sum_loss.py` writes).

use crate::kin::{all_close, narrow, read};
use plimsoll_algo::sum_loss::{SumBatch, SumLoss, sum_loss};

const GOLDEN: &str = include_str!("../golden/sum_loss.json");

#[test]
fn sums_and_gradients_are_those_of_autograd() {
    let golden = read(GOLDEN);
    let row = |name: &str| narrow(&golden[name]);
    let offsets: Vec<usize> = row("offsets").into_iter().map(|x| x as usize).collect();
    let (logp, old, advantages) = (row("logp"), row("old_logp"), row("advantages"));
    let (weights, mask) = (row("weights"), row("ratio_mask"));
    let batch = SumBatch {
        logp: &logp,
        weights: &weights,
        old_logp: &old,
        advantages: &advantages,
        ratio_mask: &mask,
        seq_offsets: &offsets,
    };
    let usual = [0.8, 1.2];
    for (name, loss) in [
        ("cross_entropy", SumLoss::CrossEntropy),
        ("importance_sampling", SumLoss::ImportanceSampling),
        ("ppo", SumLoss::Ppo { clip: usual }),
        ("ppo_wide", SumLoss::Ppo { clip: [0.5, 1.05] }),
        ("cispo", SumLoss::Cispo { clip: usual }),
        ("dro", SumLoss::Dro { beta: 0.05 }),
        ("gspo", SumLoss::Gspo { clip: usual }),
        ("gspo_narrow", SumLoss::Gspo { clip: [0.99, 1.01] }),
    ] {
        let mut d_logp = vec![f32::NAN; logp.len()];
        let totals = sum_loss(&loss, &batch, &mut d_logp);
        let expect = &golden["losses"][name];
        all_close(name, &d_logp, &expect["d_logp"]);
        let value = expect["loss"].as_f64().unwrap();
        assert!(
            (totals.loss - value).abs() <= 1e-12 * value.abs().max(1.0),
            "{name}: {} {value}",
            totals.loss
        );
        assert!(totals.tokens == 16.0 - 2.0 * f64::from(u8::from(name != "cross_entropy")), "{name}");
    }
}

#[test]
fn a_token_without_weight_or_advantage_adds_nothing_even_if_it_is_impossible() {
    let (logp, zero, mask) = ([f32::NEG_INFINITY, -1.0], [0.0f32, 0.0], [0.0f32, 1.0]);
    let batch = SumBatch {
        logp: &logp,
        weights: &zero,
        old_logp: &[-1.0, -1.0],
        advantages: &zero,
        ratio_mask: &mask,
        seq_offsets: &[0, 2],
    };
    for loss in [
        SumLoss::CrossEntropy,
        SumLoss::ImportanceSampling,
        SumLoss::Ppo { clip: [0.8, 1.2] },
        SumLoss::Cispo { clip: [0.8, 1.2] },
        SumLoss::Gspo { clip: [0.8, 1.2] },
    ] {
        let mut d_logp = [f32::NAN; 2];
        let totals = sum_loss(&loss, &batch, &mut d_logp);
        assert_eq!((totals.loss, totals.tokens, d_logp), (0.0, 0.0, [0.0; 2]), "{loss:?}");
    }
}
