//! Properties that hold for any input: gradients do not depend on the cut into micro-batches, masked tokens contribute
//! exactly nothing whatever is there, and an on-policy batch has ratio exactly 1.

use plimsoll_algo::advantage::{self, Gae, MaskHole, Whiten};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::kl::{KlEstimator, KlLoss, add_kl_loss};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, PolicySums, policy_loss};
use plimsoll_algo::supervised::sft_loss;
use plimsoll_algo::value_loss::{ValueBatch, value_loss};
use proptest::prelude::*;

const LOSSES: [PolicyLoss; 6] = [
    PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.28, dual_clip: None },
    PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(3.0) },
    PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 },
    PolicyLoss::Cispo { clip_low: 0.0, clip_high: 5.0 },
    PolicyLoss::Sapo { tau_positive: 1.0, tau_negative: 1.05 },
    PolicyLoss::Reinforce,
];

/// A step's sequences, packed.
#[derive(Clone, Debug)]
struct Step {
    offsets: Vec<usize>,
    logp: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<f32>,
    /// Sequence after which a micro-batch ends.
    cuts: Vec<bool>,
}

fn steps() -> impl Strategy<Value = Step> {
    let token = (-5.0f32..0.0, -5.0f32..0.0, -5.0f32..0.0, -2.0f32..2.0, prop::bool::weighted(0.8));
    let sequence = (prop::collection::vec(token, 0..12), any::<bool>());
    prop::collection::vec(sequence, 1..9).prop_map(|sequences| {
        let mut step = Step {
            offsets: vec![0],
            logp: vec![],
            old: vec![],
            reference: vec![],
            advantages: vec![],
            mask: vec![],
            cuts: vec![],
        };
        for (tokens, cut) in sequences {
            for (logp, old, reference, advantage, trained) in tokens {
                step.logp.push(logp);
                step.old.push(old);
                step.reference.push(reference);
                step.advantages.push(advantage);
                step.mask.push(if trained { 1.0 } else { 0.0 });
            }
            step.offsets.push(step.logp.len());
            step.cuts.push(cut);
        }
        step
    })
}

/// Policy loss, KL loss, supervised and value gradients of one batch.
struct Outcome {
    policy: Vec<u32>,
    sft: Vec<u32>,
    value: Vec<u32>,
    sums: PolicySums,
}

/// The micro-batch of sequences `first..end` of a step, with the step's totals.
fn run(step: &Step, first: usize, end: usize, loss: &PolicyLoss, agg: &Aggregation) -> Outcome {
    let tokens = step.offsets[first]..step.offsets[end];
    let offsets: Vec<usize> = step.offsets[first..=end].iter().map(|o| o - step.offsets[first]).collect();
    let packed = Packed { mask: &step.mask[tokens.clone()], seq_offsets: &offsets };
    let (logp, old) = (&step.logp[tokens.clone()], &step.old[tokens.clone()]);
    let (reference, advantages) = (&step.reference[tokens.clone()], &step.advantages[tokens.clone()]);
    let mut d_policy = vec![f32::NAN; tokens.len()];
    let batch = PolicyBatch { packed, logp, old_logp: old, advantages, weights: None };
    let mut sums = policy_loss(loss, &batch, agg, &mut d_policy);
    let options = KlLoss { estimator: KlEstimator::K3, coef: 0.1, unbiased: true };
    sums.loss += add_kl_loss(&options, packed, logp, old, reference, agg, &mut d_policy).loss;
    let mut d_sft = vec![f32::NAN; tokens.len()];
    sums.loss += sft_loss(packed, logp, agg, &mut d_sft).loss;
    let mut d_value = vec![f32::NAN; tokens.len()];
    let batch = ValueBatch { packed, values: logp, old_values: old, returns: advantages };
    sums.loss += value_loss(Some(0.2), &batch, agg, &mut d_value).loss;
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    Outcome { policy: bits(d_policy), sft: bits(d_sft), value: bits(d_value), sums }
}

fn whole(step: &Step, loss: &PolicyLoss, kind: AggregationKind) -> (Outcome, Aggregation) {
    let packed = Packed { mask: &step.mask, seq_offsets: &step.offsets };
    let agg = Aggregation::of_batch(kind, packed, 12.0);
    (run(step, 0, step.cuts.len(), loss, &agg), agg)
}

proptest! {
    /// The same bits for every token's gradient, however the step is cut; the loss sums to the same number.
    #[test]
    fn gradients_do_not_depend_on_the_cut(step in steps()) {
        for loss in &LOSSES {
            for kind in AggregationKind::ALL {
                let (reference, agg) = whole(&step, loss, kind);
                let (mut policy, mut sft, mut value) = (vec![], vec![], vec![]);
                let (mut sums, mut first) = (PolicySums::default(), 0);
                for end in 1..=step.cuts.len() {
                    if step.cuts[end - 1] || end == step.cuts.len() {
                        let part = run(&step, first, end, loss, &agg);
                        policy.extend(part.policy);
                        sft.extend(part.sft);
                        value.extend(part.value);
                        sums.merge(part.sums);
                        first = end;
                    }
                }
                prop_assert_eq!(&policy, &reference.policy);
                prop_assert_eq!(&sft, &reference.sft);
                prop_assert_eq!(&value, &reference.value);
                prop_assert_eq!(sums.clip_ratio(), reference.sums.clip_ratio());
                prop_assert_eq!((sums.ratio_min, sums.ratio_max), (reference.sums.ratio_min, reference.sums.ratio_max));
                let bound = 1e-12 * (1.0 + reference.sums.loss.abs());
                prop_assert!((sums.loss - reference.sums.loss).abs() <= bound);
            }
        }
    }

    /// NaN at every masked position changes no bit of any loss, sum or gradient, and the gradient there is +0.
    #[test]
    fn masked_tokens_contribute_exactly_nothing(step in steps()) {
        let mut poisoned = step.clone();
        for t in (0..step.mask.len()).filter(|&t| step.mask[t] == 0.0) {
            for row in [&mut poisoned.logp, &mut poisoned.old, &mut poisoned.reference, &mut poisoned.advantages] {
                row[t] = f32::NAN;
            }
        }
        for loss in &LOSSES {
            for kind in AggregationKind::ALL {
                let (clean, _) = whole(&step, loss, kind);
                let (dirty, _) = whole(&poisoned, loss, kind);
                prop_assert_eq!(clean.sums, dirty.sums);
                for (a, b) in [(&clean.policy, &dirty.policy), (&clean.sft, &dirty.sft), (&clean.value, &dirty.value)] {
                    prop_assert_eq!(a, b);
                    prop_assert!((0..a.len()).all(|t| step.mask[t] != 0.0 || a[t] == 0));
                }
            }
        }
    }

    /// With l = l_old every loss has REINFORCE's gradient, -A w, to the bit; the ratio is exactly 1, nothing clips.
    #[test]
    fn on_policy_gradients_are_those_of_reinforce(mut step in steps()) {
        step.old = step.logp.clone();
        for kind in AggregationKind::ALL {
            let packed = Packed { mask: &step.mask, seq_offsets: &step.offsets };
            let agg = Aggregation::of_batch(kind, packed, 12.0);
            let gradient = |loss: &PolicyLoss| {
                let batch = PolicyBatch {
                    packed, logp: &step.logp, old_logp: &step.old, advantages: &step.advantages, weights: None,
                };
                let mut d_logp = vec![f32::NAN; step.mask.len()];
                let sums = policy_loss(loss, &batch, &agg, &mut d_logp);
                (d_logp, sums)
            };
            let (reinforce, _) = gradient(&PolicyLoss::Reinforce);
            for loss in LOSSES.iter().filter(|loss| !matches!(loss, PolicyLoss::Gspo { .. })) {
                let (d_logp, sums) = gradient(loss);
                prop_assert_eq!(&d_logp, &reinforce);
                prop_assert_eq!(sums.clip_ratio(), 0.0);
                if sums.tokens > 0.0 {
                    prop_assert_eq!((sums.ratio_min, sums.ratio_max), (1.0, 1.0));
                }
            }
        }
    }

    /// GAE that skips holes is GAE of the sequence without them; whitened advantages have mean 0 and variance 1.
    #[test]
    fn gae_skips_holes_and_whitening_normalises(step in steps(), gamma in 0.5f64..1.0, lambda in 0.0f64..1.0) {
        let options = Gae { gamma, lambda, mask_hole: MaskHole::Skip };
        let run = |mask: &[f32], offsets: &[usize], rewards: &[f32], values: &[f32]| {
            let (mut a, mut r) = (vec![f32::NAN; mask.len()], vec![f32::NAN; mask.len()]);
            advantage::gae(&options, Packed { mask, seq_offsets: offsets }, rewards, values, &[], &mut a, &mut r);
            (a, r)
        };
        let (mut a, _) = run(&step.mask, &step.offsets, &step.advantages, &step.logp);
        let kept = |row: &[f32]| -> Vec<f32> {
            (0..row.len()).filter(|&t| step.mask[t] != 0.0).map(|t| row[t]).collect()
        };
        let offsets: Vec<usize> =
            step.offsets.iter().map(|&o| step.mask[..o].iter().filter(|&&m| m != 0.0).count()).collect();
        let ones = vec![1.0; *offsets.last().expect("offsets begin with 0")];
        let (b, _) = run(&ones, &offsets, &kept(&step.advantages), &kept(&step.logp));
        prop_assert_eq!(kept(&a), b);

        let (_, std) = advantage::whiten(Whiten::Full, &step.mask, &mut a);
        let mut again = a.clone();
        let (mean, std_after) = advantage::whiten(Whiten::Off, &step.mask, &mut again);
        prop_assert_eq!(&again, &a);
        if std > 1e-3 {
            prop_assert!(mean.abs() < 1e-5 && (std_after - 1.0).abs() < 1e-5, "mean {} std {}", mean, std_after);
        }
    }
}
