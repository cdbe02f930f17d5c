//! Errors of methods' formulas against what OpenRLHF and Open-Reasoner-Zero compute for the same inputs or, where those
//! have no numbers, a twin in f64 with the standard library's `exp`. Computed each time, from the method's own row.
//!
//! N tokens in four sequences of four; groups of two.

use plimsoll_algo::GOLDEN;
use plimsoll_algo::advantage::{self, Gae};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::labelled::{Kto, batch_kl, kto_loss};
use plimsoll_algo::method::{AdvantageKind, SamplingSpec};
use plimsoll_algo::optimal_token::subtract_optimal;
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};
use plimsoll_algo::preference::{PairBatch, PreferenceLoss, preference_loss, reward_model_loss};
use plimsoll_algo::shaping::{GroupShaping, Shaping, decoupled, shape_rewards, subtract_greedy};
use plimsoll_algo::value_loss::{ValueBatch, value_loss};
use plimsoll_base::Result;
use serde_json::Value;

const TOKENS: usize = 16;
const OFFSETS: [usize; 5] = [0, 4, 8, 12, 16];
/// The group normalisation of the reference numbers adds this to the deviation.
const GOLDEN_EPS: f64 = 1e-9;
/// Smaller reference numbers count as this large: f32 leaves no more digits of a difference near 1.
const FLOOR: f64 = 0.01;
/// Step of the twin's derivatives: f64 leaves ten digits.
const STEP: f64 = 1e-5;

/// The largest error of a method, and its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MethodError {
    /// Largest |ours - theirs| / (|theirs| + 0.01) of any advantage, loss or gradient.
    pub largest: f64,
    /// `golden`, or `golden and twin` where some of its parts have no golden numbers, or `twin`.
    pub against: &'static str,
}

/// Compares a method's advantages, policy loss and its gradient, and a critic's value loss with the references.
///
/// Errors: never `group-too-small`, since groups have two members.
pub(crate) fn method_error(spec: &SamplingSpec, loss: PolicyLoss) -> Result<MethodError> {
    let golden: Value = serde_json::from_str(GOLDEN).expect("the golden file is JSON");
    let inputs = Inputs::read(&golden);
    let mut largest = advantage_error(spec, &golden, &inputs)?;
    let (error, against) = loss_error(loss, spec.aggregation, &golden, &inputs);
    largest = largest.max(error);
    if spec.advantage == AdvantageKind::Gae {
        largest = largest.max(value_error(&golden, &inputs));
    }
    Ok(MethodError { largest, against })
}

/// Compares a loss of pairs without a reference with TRL's: loss, rewards and the gradient of each token.
pub(crate) fn pairs_error(key: &str, loss: PreferenceLoss) -> MethodError {
    let kin: Value = serde_json::from_str(plimsoll_algo::KIN).expect("the golden file is JSON");
    let (theirs, pairs) = (&kin["preference"][key], &kin["preference"]["pairs"]);
    let rows =
        |side: &str| -> Vec<Vec<f32>> { pairs[side].as_array().expect("pairs").iter().map(flat).collect() };
    let sides = ["chosen", "rejected"].map(rows);
    let sum = |rows: &Vec<Vec<f32>>| -> Vec<f32> {
        rows.iter().map(|row| row.iter().map(|&l| f64::from(l)).sum::<f64>() as f32).collect()
    };
    let [chosen, rejected] = [sum(&sides[0]), sum(&sides[1])];
    let tokens = sides.each_ref().map(|rows| rows.iter().map(|row| row.len() as f32).collect::<Vec<f32>>());
    let zeros = vec![0.0; chosen.len()];
    let batch = PairBatch {
        chosen: &chosen,
        rejected: &rejected,
        ref_chosen: &zeros,
        ref_rejected: &zeros,
        tokens: [&tokens[0], &tokens[1]],
        chosen_tokens: tokens[0].iter().map(|&n| f64::from(n)).sum(),
    };
    let mut slopes = [zeros.clone(), zeros.clone()];
    let [d_chosen, d_rejected] = &mut slopes;
    let sums = preference_loss(loss, &batch, chosen.len() as f64, d_chosen, d_rejected);
    let number = |value: &Value| value.as_f64().expect("a number");
    let mut largest = error_of(sums.loss, number(&theirs["loss"]))
        .max(error_of(sums.reward_chosen, number(&theirs["rewards"][0])))
        .max(error_of(sums.reward_rejected, number(&theirs["rewards"][1])));
    for (side, (slopes, rows)) in slopes.iter().zip(&sides).enumerate() {
        let each: Vec<f32> = slopes.iter().zip(rows).flat_map(|(d, row)| vec![*d; row.len()]).collect();
        let theirs = wide(flat(&theirs["grads"][side]));
        largest = largest.max(self::largest(&vec![1.0; each.len()], &each, &theirs));
    }
    MethodError { largest, against: "golden" }
}

/// Compares KTO with TRL's: loss, rewards, the KL and the slope of each answer.
pub(crate) fn kto_error() -> MethodError {
    let golden: Value = serde_json::from_str(plimsoll_algo::KTO).expect("the golden file is JSON");
    let inputs = &golden["inputs"];
    let row = |value: &Value| flat(value);
    let labels: Vec<bool> = inputs["labels"].as_array().into_iter().flatten().map(|v| *v == true).collect();
    let (policy, reference) = (row(&inputs["policy"]), row(&inputs["reference"]));
    let mut most = 0.0f64;
    for case in golden["cases"].as_array().into_iter().flatten() {
        let number = |value: &Value| value.as_f64().expect("a number");
        let kl = batch_kl(&row(&case["kl_policy"]), &row(&inputs["kl_reference"]));
        let [desirable, undesirable] = [0, 1].map(|n| number(&case["weights"][n]));
        let kto = Kto { beta: number(&case["beta"]), desirable, undesirable };
        let mut slopes = vec![0f32; labels.len()];
        let of = (kl, labels.len() as f64);
        let sums = kto_loss(kto, [&policy, &reference], &labels, of, &mut slopes);
        most = most.max(error_of(kl, number(&case["kl"]))).max(error_of(sums.loss, number(&case["loss"])));
        for (ours, n) in [(sums.rewards[1], 0), (sums.rewards[0], 1)] {
            most = most.max(error_of(ours, number(&case["rewards"][n])));
        }
        most = most.max(largest(&vec![1.0; slopes.len()], &slopes, &wide(row(&case["slopes"]))));
    }
    MethodError { largest: most, against: "golden" }
}

/// Compares DPO (beta 0.1): loss and rewards with the reference, gradients with a twin.
pub(crate) fn dpo_error() -> MethodError {
    const BETA: f64 = 0.1;
    let golden: Value = serde_json::from_str(GOLDEN).expect("the golden file is JSON");
    let row = |name: &str| flat(&golden["preference"]["inputs"][name]);
    let (chosen, rejected, ref_chosen, ref_rejected) = (row("pi_c"), row("pi_r"), row("ref_c"), row("ref_r"));
    let ones = vec![1.0; chosen.len()];
    let batch = PairBatch {
        chosen: &chosen,
        rejected: &rejected,
        ref_chosen: &ref_chosen,
        ref_rejected: &ref_rejected,
        tokens: [&ones, &ones],
        chosen_tokens: 1.0,
    };
    let pairs = chosen.len();
    let (mut d_chosen, mut d_rejected) = (vec![0f32; pairs], vec![0f32; pairs]);
    let how = PreferenceLoss::Dpo { beta: BETA, label_smoothing: 0.0 };
    let sums = preference_loss(how, &batch, pairs as f64, &mut d_chosen, &mut d_rejected);
    let theirs = &golden["preference"]["dpo_b0.1"];
    let sum = |value: &Value| wide(flat(value)).iter().sum::<f64>();
    let mut largest = error_of(sums.loss, theirs[0].as_f64().expect("a number"))
        .max(error_of(sums.reward_chosen, sum(&theirs[1])))
        .max(error_of(sums.reward_rejected, sum(&theirs[2])));
    for p in 0..pairs {
        let gap = |row: &[f32], other: &[f32]| f64::from(row[p]) - f64::from(other[p]);
        let h = gap(&chosen, &rejected) - gap(&ref_chosen, &ref_rejected);
        let slope = -BETA / (1.0 + (BETA * h).exp()) / pairs as f64;
        largest = largest.max(error_of(f64::from(d_chosen[p]), slope));
        largest = largest.max(error_of(f64::from(d_rejected[p]), -slope));
    }
    MethodError { largest, against: "golden and twin" }
}

/// Compares a reward model: loss and gradients with a twin, with and without margins.
pub(crate) fn reward_model_error() -> MethodError {
    let (chosen, rejected, margins) = ([1.5f32, -0.25, 0.75], [0.5f32, 0.5, -2.0], [0.5f32, 0.0, 0.25]);
    let mut largest = 0.0f64;
    for margins in [None, Some(&margins[..])] {
        let (mut d_chosen, mut d_rejected) = ([0f32; 3], [0f32; 3]);
        let sums = reward_model_loss(&chosen, &rejected, margins, 3.0, &mut d_chosen, &mut d_rejected);
        let mut loss = 0.0;
        for p in 0..3 {
            let margin = margins.map_or(0.0, |margins| f64::from(margins[p]));
            let gap = f64::from(chosen[p]) - f64::from(rejected[p]) - margin;
            loss += (-gap).exp().ln_1p() / 3.0;
            let slope = -1.0 / (1.0 + gap.exp()) / 3.0;
            largest = largest.max(error_of(f64::from(d_chosen[p]), slope));
            largest = largest.max(error_of(f64::from(d_rejected[p]), -slope));
        }
        largest = largest.max(error_of(sums.loss, loss));
    }
    MethodError { largest, against: "twin" }
}

struct Inputs {
    logp: Vec<f32>,
    old: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<f32>,
}

impl Inputs {
    fn read(golden: &Value) -> Inputs {
        let row = |name: &str| flat(&golden["inputs"][name]);
        Inputs {
            logp: row("log_probs"),
            old: row("old_log_probs"),
            advantages: row("advantages"),
            mask: row("action_mask"),
        }
    }

    fn packed(&self) -> Packed<'_> {
        Packed { mask: &self.mask, seq_offsets: &OFFSETS }
    }
}

/// Returns all numbers of a nested list, in order.
fn flat(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().expect("a number") as f32],
    }
}

fn error_of(ours: f64, theirs: f64) -> f64 {
    (ours - theirs).abs() / (theirs.abs() + FLOOR)
}

/// Returns the largest error where `mask` is not 0.
fn largest(mask: &[f32], ours: &[f32], theirs: &[f64]) -> f64 {
    let pairs = mask.iter().zip(ours.iter().zip(theirs)).filter(|(m, _)| **m != 0.0);
    pairs.map(|(_, (a, b))| error_of(f64::from(*a), *b)).fold(0.0, f64::max)
}

fn wide(row: Vec<f32>) -> Vec<f64> {
    row.into_iter().map(f64::from).collect()
}

/// Compares advantages with the reference's pipeline of the same parts.
fn advantage_error(spec: &SamplingSpec, golden: &Value, inputs: &Inputs) -> Result<f64> {
    if spec.shaping == GroupShaping::OptimalToken {
        return optimal_token_error();
    }
    if matches!(
        spec.shaping,
        GroupShaping::LengthWeighted
            | GroupShaping::Gpg
            | GroupShaping::Greedy
            | GroupShaping::Lead { .. }
            | GroupShaping::Decoupled { .. }
    ) {
        return kin_error(spec.shaping);
    }
    let given = &golden["advantage_pipeline"]["inputs"];
    let rewards: Vec<Option<f32>> = flat(&given["rewards"]).into_iter().map(Some).collect();
    let (key, group) = match (spec.advantage, spec.shaping) {
        (AdvantageKind::Gae, shaping) => ("gae", shaping),
        (_, GroupShaping::None) => ("reinforce", spec.shaping),
        (_, GroupShaping::Rloo) => ("rloo", spec.shaping),
        (_, GroupShaping::GroupNorm { .. }) => ("group_norm", GroupShaping::GroupNorm { eps: GOLDEN_EPS }),
        (_, GroupShaping::MeanBaseline) if spec.whiten == Default::default() => ("dr_grpo", spec.shaping),
        _ => ("reinforce_baseline", spec.shaping),
    };
    let mut shaped = [0f32; 4];
    let shaping = Shaping { overlong: None, group, clip: [-10.0, 10.0] };
    shape_rewards(&shaping, &rewards, &[4; 4], 2, &mut shaped)?;
    let (packed, mut token_rewards) = (inputs.packed(), [0f32; TOKENS]);
    advantage::token_rewards(packed, &shaped, None, &mut token_rewards);
    let (mut ours, mut returns) = ([0f32; TOKENS], [0f32; TOKENS]);
    match spec.advantage {
        AdvantageKind::Gae => {
            let values = flat(&given["values"]);
            advantage::gae(&Gae::default(), packed, &token_rewards, &values, &[], &mut ours, &mut returns);
        }
        AdvantageKind::Returns { .. } => {
            advantage::discounted_returns(1.0, packed, &token_rewards, &mut ours)
        }
    }
    advantage::whiten(spec.whiten, &inputs.mask, &mut ours);
    let theirs = wide(flat(&golden["advantage_pipeline"][key]["advantages"]));
    Ok(largest(&inputs.mask, &ours, &theirs))
}

/// Compares a baseline of each token with verl's.
fn optimal_token_error() -> Result<f64> {
    let kin: Value = serde_json::from_str(plimsoll_algo::KIN).expect("the golden file is JSON");
    let of = |name: &str| flat(&kin["optimal_token"][name]);
    let whole = |name: &str| of(name).into_iter().map(|x| x as usize).collect::<Vec<_>>();
    let (mask, logp, mut sharp, mut ours) = (of("mask"), of("logp"), of("sharp_logp"), of("returns"));
    let packed = Packed { mask: &mask, seq_offsets: &whole("offsets") };
    subtract_optimal(packed, &whole("prompts"), &logp, &mut sharp, &mut ours);
    Ok(largest(&mask, &ours, &wide(of("advantages"))))
}

/// Compares shaped rewards with those of verl and TRL.
fn kin_error(shaping: GroupShaping) -> Result<f64> {
    let kin: Value = serde_json::from_str(plimsoll_algo::KIN).expect("the golden file is JSON");
    let of = |name: &str| flat(&kin["groups"][name]);
    let rewards: Vec<Option<f32>> = of("rewards").into_iter().map(Some).collect();
    let lengths: Vec<usize> = of("lengths").into_iter().map(|length| length as usize).collect();
    let group = kin["groups"]["group_size"].as_u64().expect("a number") as usize;
    let mut shaped = vec![0f32; rewards.len()];
    let key = match shaping {
        GroupShaping::LengthWeighted => "opo",
        GroupShaping::Gpg => "gpg",
        GroupShaping::Greedy => "remax",
        GroupShaping::Lead { .. } => "pass_k",
        _ => "gdpo",
    };
    if let GroupShaping::Decoupled { eps } = shaping {
        let parts: Vec<[Option<f32>; 2]> =
            rewards.iter().zip(of("second")).map(|(first, second)| [*first, Some(second)]).collect();
        let parts: Vec<&[Option<f32>]> = parts.iter().map(|parts| &parts[..]).collect();
        decoupled(&parts, &wide(of("weights")), group, eps, &mut shaped);
    } else {
        let shaping = Shaping { overlong: None, group: shaping, clip: [-10.0, 10.0] };
        shape_rewards(&shaping, &rewards, &lengths, group, &mut shaped)?;
    }
    if shaping == GroupShaping::Greedy {
        let greedy: Vec<Option<f32>> = of("greedy").into_iter().map(Some).collect();
        subtract_greedy(&greedy, group, &mut shaped);
    }
    Ok(largest(&vec![1.0; shaped.len()], &shaped, &wide(flat(&kin["shaped"][key]))))
}

/// Returns the key of a loss among those of verl and TRL.
fn kin_of(loss: PolicyLoss, kind: AggregationKind) -> Option<&'static str> {
    match (loss, kind) {
        (PolicyLoss::Gspo { clip_low: 3e-4, .. }, AggregationKind::SeqMeanTokenSum) => Some("luspo"),
        (PolicyLoss::Gmpo { clip_low: 0.4, .. }, AggregationKind::SeqMeanTokenMean) => Some("gmpo_0.4"),
        (PolicyLoss::DppoTv { clip_low: 0.15, .. }, AggregationKind::TokenMean) => Some("dppo_tv_0.15"),
        (PolicyLoss::DppoKl { clip_low: 0.05, .. }, AggregationKind::TokenMean) => Some("dppo_kl_0.05"),
        (PolicyLoss::Vespo { .. }, AggregationKind::TokenMean) => Some("vespo"),
        _ => None,
    }
}

/// Compares the policy loss and its gradient.
fn loss_error(
    loss: PolicyLoss,
    kind: AggregationKind,
    golden: &Value,
    inputs: &Inputs,
) -> (f64, &'static str) {
    let packed = inputs.packed();
    let aggregation = Aggregation::of_batch(kind, packed, 4.0);
    let batch = PolicyBatch {
        packed,
        logp: &inputs.logp,
        old_logp: &inputs.old,
        advantages: &inputs.advantages,
        weights: None,
    };
    let mut gradient = [0f32; TOKENS];
    let ours = policy_loss(&loss, &batch, &aggregation, &mut gradient).loss;
    let ppo = |low, high| PolicyLoss::Ppo { clip_low: low, clip_high: high, dual_clip: None };
    let key = match kind {
        AggregationKind::TokenMean if loss == ppo(0.2, 0.2) => Some("ppo_0.2"),
        AggregationKind::TokenMean if loss == ppo(0.2, 0.28) => Some("ppo_low0.2_high0.28"),
        AggregationKind::SeqMeanTokenMean
            if loss == (PolicyLoss::Gspo { clip_low: 3e-4, clip_high: 4e-4 }) =>
        {
            Some("gspo_low3e-4_high4e-4")
        }
        _ => None,
    };
    let kin: Value = serde_json::from_str(plimsoll_algo::KIN).expect("the golden file is JSON");
    let theirs = key.map(|key| &golden["policy_loss"][key]);
    let theirs = theirs.or_else(|| Some(&kin["loss"][kin_of(loss, kind)?]));
    let (value, slopes, against) = match theirs {
        Some(theirs) => {
            let value = theirs["loss"].as_f64().expect("a number");
            (value, wide(flat(&theirs["grad_log_probs"])), "golden")
        }
        None => {
            let at = wide(inputs.logp.clone());
            let moved = |t: usize, by: f64| {
                let mut logp = at.clone();
                logp[t] += by;
                twin(loss, kind, inputs, &logp)
            };
            let slope = |t| (moved(t, STEP) - moved(t, -STEP)) / (2.0 * STEP);
            (twin(loss, kind, inputs, &at), (0..TOKENS).map(slope).collect(), "golden and twin")
        }
    };
    (error_of(ours, value).max(largest(&inputs.mask, &gradient, &slopes)), against)
}

/// Returns the loss at `logp`, written from the formulas. Whatever has no gradient is evaluated at the inputs.
fn twin(loss: PolicyLoss, kind: AggregationKind, inputs: &Inputs, logp: &[f64]) -> f64 {
    let Inputs { logp: at, old, advantages, mask } = inputs;
    let trained = |s: usize| (4 * s..4 * s + 4).filter(|&t| mask[t] != 0.0);
    let sequences = (0..4).filter(|&s| trained(s).count() > 0).count() as f64;
    let tokens = (0..TOKENS).filter(|&t| mask[t] != 0.0).count() as f64;
    let mut sum = 0.0;
    for s in 0..4 {
        let length = trained(s).count() as f64;
        let mean = trained(s).map(|t| logp[t] - f64::from(old[t])).sum::<f64>() / length;
        for t in trained(s) {
            let (a, ratio) = (f64::from(advantages[t]), (logp[t] - f64::from(old[t])).exp());
            let clipped = |ratio: f64, low: f64, high: f64| {
                -f64::min(ratio * a, ratio.clamp(1.0 - low, 1.0 + high) * a)
            };
            let value = match loss {
                PolicyLoss::Ppo { clip_low, clip_high, dual_clip } => {
                    let value = clipped(ratio, clip_low, clip_high);
                    dual_clip.filter(|_| a < 0.0).map_or(value, |c| value.min(-c * a))
                }
                PolicyLoss::Gspo { clip_low, clip_high } => clipped(mean.exp(), clip_low, clip_high),
                PolicyLoss::Cispo { clip_low, clip_high } => {
                    let held = f64::from(at[t] - old[t]).exp().clamp(clip_low, clip_high);
                    -held * a * logp[t]
                }
                PolicyLoss::Sapo { tau_positive, tau_negative } => {
                    let tau = if a > 0.0 { tau_positive } else { tau_negative };
                    -a * 4.0 / tau / (1.0 + (-tau * (ratio - 1.0)).exp())
                }
                PolicyLoss::Reinforce => -a * logp[t],
                PolicyLoss::Gmpo { .. }
                | PolicyLoss::DppoTv { .. }
                | PolicyLoss::DppoKl { .. }
                | PolicyLoss::Vespo { .. } => unreachable!("compared with golden values"),
            };
            sum += match kind {
                AggregationKind::TokenMean => value / tokens,
                AggregationKind::SeqMeanTokenMean => value / length / sequences,
                AggregationKind::SeqMeanTokenSum => value / sequences,
                AggregationKind::SeqMeanTokenSumNorm => value / sequences / 4.0,
                AggregationKind::TokenSum => value,
            };
        }
    }
    sum
}

/// Compares the critic's loss and its gradient.
fn value_error(golden: &Value, inputs: &Inputs) -> f64 {
    let case = &golden["value_loss"];
    let row = |name: &str| flat(&case[name]);
    let (values, old_values, returns) = (row("values"), row("old_values"), row("returns"));
    let packed = inputs.packed();
    let batch = ValueBatch { packed, values: &values, old_values: &old_values, returns: &returns };
    let aggregation = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
    let mut gradient = [0f32; TOKENS];
    let ours = value_loss(Some(0.2), &batch, &aggregation, &mut gradient).loss;
    let theirs = &case["clip0.2"];
    let slopes = wide(flat(&theirs["grad"]));
    error_of(ours, theirs["loss"].as_f64().expect("a number")).max(largest(&inputs.mask, &gradient, &slopes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_algo::method::{METHODS, Method};

    #[test]
    fn every_method_is_within_its_bound() {
        for (method, spec) in METHODS.iter().filter_map(|row| Some((row.method, row.sampling?))) {
            let error = method_error(&spec, spec.loss).expect("groups of two");
            // Some are 0: sums of products of the inputs alone may come out the same to the last bit of f64.
            assert!(error.largest < 2e-5, "{method}: {error:?}");
        }
        let simpo = pairs_error("simpo", PreferenceLoss::SimPo { beta: 2.0, gamma: 0.5 });
        let orpo = pairs_error("orpo", PreferenceLoss::OrPo { beta: 0.1 });
        for error in [dpo_error(), kto_error(), reward_model_error(), simpo, orpo] {
            assert!(error.largest < 2e-5, "{error:?}");
        }
    }

    #[test]
    fn a_formula_that_is_wrong_is_seen() {
        // Each check must notice when one part (advantage, loss, critic) belongs to another method.
        let row = |method: Method| method.spec().sampling.expect("a method that samples");
        let grpo = row(Method::Grpo);
        let wrong = [
            SamplingSpec { whiten: advantage::Whiten::NoStd, ..row(Method::ReinforceBaseline) },
            SamplingSpec { aggregation: AggregationKind::TokenSum, ..grpo },
        ];
        let error = |spec: &SamplingSpec, loss| method_error(spec, loss).expect("groups of two").largest;
        assert!(error(&wrong[0], grpo.loss) > 1e-2, "whitening without the deviation");
        // A loss that the reference has under other clips: under the wrong key the error would be large.
        let (golden, inputs) = (serde_json::from_str(GOLDEN).unwrap(), |g: &Value| Inputs::read(g));
        let twin_at =
            |loss| twin(loss, AggregationKind::TokenMean, &inputs(&golden), &wide(inputs(&golden).logp));
        let clipped = PolicyLoss::Ppo { clip_low: 0.1, clip_high: 0.1, dual_clip: None };
        assert!(
            error_of(twin_at(clipped), golden["policy_loss"]["ppo_0.2"]["loss"].as_f64().unwrap()) > 1e-3
        );
        // And the twin agrees with the reference where both have numbers.
        let same = golden["policy_loss"]["ppo_0.2"]["loss"].as_f64().unwrap();
        assert!(error_of(twin_at(grpo.loss), same) < 2e-5);
        assert!(error(&wrong[1], grpo.loss) < 2e-5, "an aggregation of one's own has a twin");
    }
}
