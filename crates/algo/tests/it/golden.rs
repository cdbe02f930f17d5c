//! Values and gradients against OpenRLHF 0.11.2 and Open-Reasoner-Zero (`golden/rl_formulas.json`, f32 on a CPU).
//!
//! Tolerance: 2e-5 relative, which is what f32 arithmetic of the references leaves, plus 2e-7 absolute where a value is
//! the difference of numbers near 1 (3 units in the last place of f32).
//!
//! `SKIPPED` lists what is not covered, each with its reason; a key that no test knows fails
//! `every_key_of_the_file_is_covered_or_skipped`.
//! Whitened advantages are compared on trained tokens only: the references shift masked positions too, ours are 0.

use plimsoll_algo::advantage::{self, Gae, KlReward, MaskHole, Whiten};
use plimsoll_algo::aggregation::{Aggregation, AggregationKind};
use plimsoll_algo::correction::{Correction, SequenceRatio, correction_weights};
use plimsoll_algo::kl::{self, KlController, KlEstimator, KlLoss};
use plimsoll_algo::packed::Packed;
use plimsoll_algo::policy_loss::{PolicyBatch, PolicyLoss, policy_loss};
use plimsoll_algo::preference::{PairBatch, PreferenceLoss, preference_loss};
use plimsoll_algo::shaping::{self, GroupShaping, Overlong, Shaping};
use plimsoll_algo::value_loss::{ValueBatch, value_loss};
use serde_json::Value;

const OFFSETS: [usize; 5] = [0, 4, 8, 12, 16];

fn golden() -> Value {
    serde_json::from_str(plimsoll_algo::GOLDEN).expect("the golden file is JSON")
}

/// All numbers of a nested list, in order.
fn flat(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        other => vec![other.as_f64().expect("a number") as f32],
    }
}

fn close(what: &str, ours: f64, reference: f64) {
    let bound = 2e-5 * reference.abs() + 2e-7;
    assert!((ours - reference).abs() <= bound, "{what}: ours {ours:e}, reference {reference:e}");
}

fn all_close(what: &str, ours: &[f32], reference: &Value) {
    let reference = flat(reference);
    assert_eq!(ours.len(), reference.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(&reference).enumerate() {
        close(&format!("{what}[{i}]"), f64::from(*a), f64::from(*b));
    }
}

fn trained_close(what: &str, mask: &[f32], ours: &[f32], reference: &Value) {
    let reference = flat(reference);
    for i in (0..mask.len()).filter(|&i| mask[i] != 0.0) {
        close(&format!("{what}[{i}]"), f64::from(ours[i]), f64::from(reference[i]));
    }
}

struct Inputs {
    logp: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    rollout: Vec<f32>,
    mask: Vec<f32>,
    advantages: Vec<f32>,
}

impl Inputs {
    fn read(golden: &Value) -> Inputs {
        let row = |name: &str| flat(&golden["inputs"][name]);
        Inputs {
            logp: row("log_probs"),
            old: row("old_log_probs"),
            reference: row("ref_log_probs"),
            rollout: row("rollout_log_probs"),
            mask: row("action_mask"),
            advantages: row("advantages"),
        }
    }

    fn packed(&self) -> Packed<'_> {
        Packed { mask: &self.mask, seq_offsets: &OFFSETS }
    }
}

#[test]
fn kl_estimators_and_gradients() {
    let golden = golden();
    let inputs = Inputs::read(&golden);
    let all = [1.0f32; 16]; // the golden values are not masked
    let packed = Packed { mask: &all, seq_offsets: &OFFSETS };
    let agg = Aggregation::of_batch(AggregationKind::TokenSum, packed, 1.0);
    for (name, estimator) in [("k1", KlEstimator::K1), ("k2", KlEstimator::K2), ("k3", KlEstimator::K3)] {
        let values: Vec<f32> =
            (0..16).map(|i| kl::kl_value(estimator, inputs.logp[i], inputs.reference[i])).collect();
        all_close(name, &values, &golden["kl"][name]);
        for (suffix, unbiased) in [("grad", false), ("unbiased_grad", true)] {
            let options = KlLoss { estimator, coef: 1.0, unbiased };
            let mut d_logp = [0.0; 16];
            let sums = kl::add_kl_loss(
                &options,
                packed,
                &inputs.logp,
                &inputs.old,
                &inputs.reference,
                &agg,
                &mut d_logp,
            );
            let key = format!("{name}_{suffix}");
            all_close(&key, &d_logp, &golden["kl"][&key]);
            close(&key, sums.loss, values.iter().map(|&v| f64::from(v)).sum());
        }
        if estimator == KlEstimator::K3 {
            all_close("orz.kl_k3", &values, &golden["orz"]["kl_k3"]);
        }
    }
}

#[test]
fn adaptive_kl_controller() {
    let case = &golden()["adaptive_kl"];
    let number = |name: &str| case[name].as_f64().expect("a number");
    let mut controller =
        KlController::Adaptive { coef: number("init"), target: number("target"), horizon: number("horizon") };
    controller.update(number("current"), case["n_steps"].as_u64().expect("a count") as usize);
    close("coef", controller.coef(), number("new"));
}

#[test]
fn token_rewards_hold_kl_and_clipped_reward() {
    let golden = golden();
    let inputs = Inputs::read(&golden);
    let case = &golden["compute_reward"];
    let rewards: Vec<Option<f32>> = flat(&case["r"]).into_iter().map(Some).collect();
    let options = Shaping { overlong: None, group: GroupShaping::None, clip: [-10.0, 10.0] };
    let (mut shaped, mut out) = ([f32::NAN; 4], [f32::NAN; 16]);
    shaping::shape_rewards(&options, &rewards, &[], 1, &mut shaped).expect("no group needed");
    let kl = KlReward {
        estimator: KlEstimator::K1,
        coef: case["kl_coef"].as_f64().expect("a number"),
        old_logp: &inputs.logp,
        ref_logp: &inputs.reference,
    };
    advantage::token_rewards(inputs.packed(), &shaped, Some(kl), &mut out);
    all_close("out", &out, &case["out"]);
}

#[test]
fn gae_plain_and_with_holes() {
    let case = &golden()["gae"];
    let (values, rewards) = (flat(&case["values"]), flat(&case["rewards"]));
    for (name, gamma, lambda) in [("g1.0_l1.0", 1.0, 1.0), ("g0.99_l0.95", 0.99, 0.95)] {
        for (kind, mask_key) in [("plain", "mask_plain"), ("hole", "mask_hole")] {
            let mask = flat(&case[mask_key]);
            let packed = Packed { mask: &mask, seq_offsets: &OFFSETS };
            let options = Gae { gamma, lambda, mask_hole: MaskHole::ZeroValue };
            let (mut a, mut r) = ([f32::NAN; 16], [f32::NAN; 16]);
            advantage::gae(&options, packed, &rewards, &values, &[], &mut a, &mut r);
            let key = format!("{kind}_{name}");
            trained_close(&key, &mask, &a, &case[&key]["advantages"]);
            trained_close(&key, &mask, &r, &case[&key]["returns"]);
            if kind == "plain" {
                // Without a hole both readings agree.
                let (mut a2, mut r2) = ([f32::NAN; 16], [f32::NAN; 16]);
                let skip = Gae { mask_hole: MaskHole::Skip, ..options };
                advantage::gae(&skip, packed, &rewards, &values, &[], &mut a2, &mut r2);
                assert_eq!((a, r), (a2, r2), "{key}");
            }
        }
    }
}

#[test]
fn discounted_returns_match() {
    let golden = golden();
    let mask = flat(&golden["gae"]["mask_plain"]);
    let rewards = flat(&golden["gae"]["rewards"]);
    for (name, gamma) in [("g1.0", 1.0), ("g0.9", 0.9)] {
        let mut out = [f32::NAN; 16];
        advantage::discounted_returns(
            gamma,
            Packed { mask: &mask, seq_offsets: &OFFSETS },
            &rewards,
            &mut out,
        );
        all_close(name, &out, &golden["cumulative_returns"][name]);
    }
}

/// One case of `advantage_pipeline`: its key, and what differs from the plain pipeline.
struct Pipeline {
    key: &'static str,
    group: GroupShaping,
    gae: Option<(f64, f64)>,
    gamma: f64,
    whiten: Whiten,
    overlong: Option<Overlong>,
    kl_coef: f64,
}

fn pipelines() -> Vec<Pipeline> {
    let plain = |key, group, whiten| Pipeline {
        key,
        group,
        whiten,
        gae: None,
        gamma: 1.0,
        overlong: None,
        kl_coef: if key.ends_with("klcoef0.05") { 0.05 } else { 0.0 },
    };
    let (none, mean) = (GroupShaping::None, GroupShaping::MeanBaseline);
    let norm = GroupShaping::GroupNorm { eps: 1e-9 };
    let mut cases = vec![
        Pipeline { gae: Some((1.0, 1.0)), ..plain("gae", none, Whiten::Full) },
        Pipeline { gae: Some((1.0, 1.0)), ..plain("gae_klcoef0.05", none, Whiten::Full) },
        Pipeline { gae: Some((0.99, 0.95)), ..plain("gae_g0.99_l0.95_klcoef0.05", none, Whiten::Full) },
        Pipeline { gamma: 0.9, ..plain("reinforce_gamma0.9", none, Whiten::Full) },
        plain("reinforce_baseline_no_std", mean, Whiten::NoStd),
    ];
    for (key, key_kl, group, whiten) in [
        ("reinforce", "reinforce_klcoef0.05", none, Whiten::Full),
        ("rloo", "rloo_klcoef0.05", GroupShaping::Rloo, Whiten::Off),
        ("reinforce_baseline", "reinforce_baseline_klcoef0.05", mean, Whiten::Full),
        ("group_norm", "group_norm_klcoef0.05", norm, Whiten::Off),
        ("dr_grpo", "dr_grpo_klcoef0.05", mean, Whiten::Off),
    ] {
        cases.push(plain(key, group, whiten));
        cases.push(plain(key_kl, group, whiten));
    }
    let overlong = Some(Overlong { max_new_tokens: 4, buffer: 2, factor: 1.0 });
    cases.push(Pipeline { overlong, ..plain("dr_grpo_overlong2_factor1", mean, Whiten::Off) });
    cases
}

#[test]
fn advantage_pipeline() {
    let golden = golden();
    for case in pipelines() {
        check_pipeline(&golden, &case);
    }
}

fn check_pipeline(golden: &Value, case: &Pipeline) {
    let inputs = Inputs::read(golden);
    let expect = &golden["advantage_pipeline"][case.key];
    assert!(expect.is_object(), "{} is in the golden file", case.key);
    let given = &golden["advantage_pipeline"]["inputs"];
    let rewards: Vec<Option<f32>> = flat(&given["rewards"]).into_iter().map(Some).collect();
    let values = flat(&given["values"]);
    let lengths: Vec<usize> = inputs.mask.chunks(4).map(|m| m.iter().sum::<f32>() as usize).collect();
    let options = Shaping { overlong: case.overlong, group: case.group, clip: [-10.0, 10.0] };
    let mut shaped = [f32::NAN; 4];
    let metrics =
        shaping::shape_rewards(&options, &rewards, &lengths, 2, &mut shaped).expect("groups of two");
    let stds = flat(&expect["group_reward_std"]);
    close("reward_std", metrics.reward_std, f64::from(stds[0] + stds[2]) / 2.0);
    let penalised = flat(&expect["rewards_after_penalty"]);
    close("reward", metrics.reward, f64::from(penalised.iter().sum::<f32>()) / 4.0);

    let packed = inputs.packed();
    let mut token_rewards = [f32::NAN; 16];
    let kl = KlReward {
        estimator: KlEstimator::K1,
        coef: case.kl_coef,
        old_logp: &inputs.logp,
        ref_logp: &inputs.reference,
    };
    advantage::token_rewards(packed, &shaped, Some(kl), &mut token_rewards);
    let info: Vec<f32> = token_rewards.chunks(4).map(|r| r.iter().sum()).collect();
    all_close(case.key, &info, &expect["info_return"]);

    let (mut advantages, mut returns) = ([f32::NAN; 16], [f32::NAN; 16]);
    match case.gae {
        Some((gamma, lambda)) => {
            let options = Gae { gamma, lambda, mask_hole: MaskHole::Skip };
            advantage::gae(&options, packed, &token_rewards, &values, &[], &mut advantages, &mut returns);
        }
        None => {
            advantage::discounted_returns(case.gamma, packed, &token_rewards, &mut returns);
            advantages = returns;
        }
    }
    advantage::whiten(case.whiten, &inputs.mask, &mut advantages);
    trained_close(case.key, &inputs.mask, &advantages, &expect["advantages"]);
    trained_close(case.key, &inputs.mask, &returns, &expect["returns"]);
}

/// A policy-loss case: (key, loss, aggregation, global totals, correction).
type PolicyCase = (&'static str, PolicyLoss, AggregationKind, Option<(f64, f64)>, Option<Correction>);

fn policy_cases() -> Vec<PolicyCase> {
    let ppo = |low, high, dual_clip| PolicyLoss::Ppo { clip_low: low, clip_high: high, dual_clip };
    let plain = ppo(0.2, 0.2, None);
    let gspo = |clip_low, clip_high| PolicyLoss::Gspo { clip_low, clip_high };
    let (token, seq) = (AggregationKind::TokenMean, AggregationKind::SeqMeanTokenMean);
    let band = (0.5, 5.0);
    let mean = SequenceRatio::GeometricMean;
    vec![
        ("ppo_0.2", plain, token, None, None),
        ("ppo_low0.2_high0.28", ppo(0.2, 0.28, None), token, None, None),
        ("ppo_dual_clip_1.5", ppo(0.2, 0.2, Some(1.5)), token, None, None),
        ("ppo_dual_clip_1.2", ppo(0.2, 0.2, Some(1.2)), token, None, None),
        ("ppo_seq_mean_token_mean", plain, seq, None, None),
        // Two ranks, 20 tokens or 8 sequences in all: the reference multiplies by 2 what its ranks then average.
        ("ppo_token_dp2_ntok20", plain, token, Some((20.0 / 2.0, 1.0)), None),
        ("ppo_seq_dp2_gbs8", plain, seq, Some((1.0, 8.0 / 2.0)), None),
        ("gspo", gspo(0.2, 0.2), seq, None, None),
        ("gspo_low3e-4_high4e-4", gspo(3e-4, 4e-4), seq, None, None),
        (
            "tis_token_clip_0.5_5",
            plain,
            token,
            None,
            Some(Correction::Truncate { low: band.0, high: band.1 }),
        ),
        ("icepop_token_mask_0.5_5", plain, token, None, Some(Correction::Drop { low: band.0, high: band.1 })),
        (
            "seqmask_tis_0.9_1.1",
            plain,
            token,
            None,
            Some(Correction::DropSequence { statistic: mean, low: 0.9, high: 1.1 }),
        ),
    ]
}

#[test]
fn policy_losses_and_gradients() {
    let golden = golden();
    let inputs = Inputs::read(&golden);
    for (key, loss, kind, totals, correction) in policy_cases() {
        let expect = &golden["policy_loss"][key];
        let packed = inputs.packed();
        let mut agg = Aggregation::of_batch(kind, packed, 1.0);
        if let Some((tokens, sequences)) = totals {
            (agg.total_tokens, agg.total_sequences) = (tokens, sequences);
        }
        let mut weights = [f32::NAN; 16];
        let corrected =
            correction.map(|c| correction_weights(c, packed, &inputs.old, &inputs.rollout, &mut weights));
        if let Some(sums) = corrected {
            close(key, sums.outside_ratio(), expect["is_filter_ratio"].as_f64().expect("a number"));
            close(key, sums.kl_to_rollout / sums.tokens, expect["vllm_kl"].as_f64().expect("a number"));
        }
        check_policy(key, &loss, &inputs, &inputs.old, corrected.map(|_| &weights[..]), &agg, expect);
    }
    // GSPO against the rollout's log-probs is GSPO with those instead of the old ones. The reference still
    // measures its KL to the old policy, so that is not compared.
    let mut expect = golden["policy_loss"]["gspo_is_token"].clone();
    expect["ppo_kl"] = Value::Null;
    let agg = Aggregation::of_batch(AggregationKind::SeqMeanTokenMean, inputs.packed(), 1.0);
    let loss = PolicyLoss::Gspo { clip_low: 0.2, clip_high: 0.2 };
    check_policy("gspo_is_token", &loss, &inputs, &inputs.rollout, None, &agg, &expect);
}

fn check_policy(
    key: &str,
    loss: &PolicyLoss,
    inputs: &Inputs,
    old_logp: &[f32],
    weights: Option<&[f32]>,
    agg: &Aggregation,
    expect: &Value,
) {
    let batch = PolicyBatch {
        packed: inputs.packed(),
        logp: &inputs.logp,
        old_logp,
        advantages: &inputs.advantages,
        weights,
    };
    let mut d_logp = [f32::NAN; 16];
    let sums = policy_loss(loss, &batch, agg, &mut d_logp);
    close(key, sums.loss, expect["loss"].as_f64().expect("a number"));
    close(key, sums.clip_ratio(), expect["clip_ratio"].as_f64().expect("a number"));
    if let Some(kl) = expect["ppo_kl"].as_f64() {
        close(key, sums.mean_kl_to_old(), kl);
    }
    all_close(key, &d_logp, &expect["grad_log_probs"]);
}

#[test]
fn value_losses_and_gradients() {
    let golden = golden();
    let inputs = Inputs::read(&golden);
    let case = &golden["value_loss"];
    let row = |name: &str| flat(&case[name]);
    let (values, old_values, returns) = (row("values"), row("old_values"), row("returns"));
    for (key, clip) in [("clip0.5", Some(0.5)), ("clip0.2", Some(0.2)), ("noclip", None)] {
        let packed = inputs.packed();
        let batch = ValueBatch { packed, values: &values, old_values: &old_values, returns: &returns };
        let agg = Aggregation::of_batch(AggregationKind::TokenMean, packed, 1.0);
        let mut d_values = [f32::NAN; 16];
        let sums = value_loss(clip, &batch, &agg, &mut d_values);
        close(key, sums.loss, case[key]["loss"].as_f64().expect("a number"));
        all_close(key, &d_values, &case[key]["grad"]);
    }
}

#[test]
fn preference_losses() {
    let golden = golden();
    let case = &golden["preference"];
    let row = |name: &str| flat(&case["inputs"][name]);
    let (chosen, rejected, ref_chosen, ref_rejected) = (row("pi_c"), row("pi_r"), row("ref_c"), row("ref_r"));
    let batch = PairBatch {
        chosen: &chosen,
        rejected: &rejected,
        ref_chosen: &ref_chosen,
        ref_rejected: &ref_rejected,
        tokens: [&vec![1.0; chosen.len()], &vec![1.0; chosen.len()]],
        chosen_tokens: 1.0,
    };
    for (key, loss) in [
        ("dpo_b0.1", PreferenceLoss::Dpo { beta: 0.1, label_smoothing: 0.0 }),
        ("cdpo_b0.1_ls0.1", PreferenceLoss::Dpo { beta: 0.1, label_smoothing: 0.1 }),
        ("ipo_b0.1", PreferenceLoss::Ipo { beta: 0.1 }),
    ] {
        let (mut d_chosen, mut d_rejected) = ([f32::NAN; 3], [f32::NAN; 3]);
        let sums = preference_loss(loss, &batch, 3.0, &mut d_chosen, &mut d_rejected);
        close(key, sums.loss, case[key][0].as_f64().expect("a number"));
        let sum = |value: &Value| f64::from(flat(value).iter().sum::<f32>());
        close(key, sums.reward_chosen, sum(&case[key][1]));
        close(key, sums.reward_rejected, sum(&case[key][2]));
    }
}

#[test]
fn open_reasoner_zero_packs() {
    let case = &golden()["orz"];
    let values = flat(&case["values"]);
    let rewards = flat(&case["reward"]);
    let mask = [1.0f32; 9];
    let packed = Packed { mask: &mask, seq_offsets: &[0, 3, 5, 9] };
    for (key, gamma, lambda) in [("g1.0_l1.0", 1.0, 1.0), ("g0.99_l0.95", 0.99, 0.95)] {
        let options = Gae { gamma, lambda, mask_hole: MaskHole::Skip };
        let (mut a, mut r) = ([f32::NAN; 9], [f32::NAN; 9]);
        advantage::gae(&options, packed, &rewards, &values, &[], &mut a, &mut r);
        all_close(key, &a, &case[key]["advantages"]);
        all_close(key, &r, &case[key]["returns"]);
    }
    let mut returns = [f32::NAN; 9];
    advantage::discounted_returns(1.0, packed, &rewards, &mut returns);
    all_close("grpo_no_critic", &returns, &case["grpo_no_critic"]);
}

/// Keys of the file that nothing here is held against, with the reason.
const SKIPPED: [(&str, &str); 13] = [
    ("provenance", "words"),
    ("policy_loss/binary_kl_token_0.003", "a trust region on a divergence, which is not built"),
    ("policy_loss/binary_kl_seq_0.003", "a trust region on a divergence, which is not built"),
    ("policy_loss/tv_token_0.05", "a trust region on a divergence, which is not built"),
    ("advantage_pipeline/flash_reinforce", "an estimator that our algorithms do not have"),
    ("advantage_pipeline/flash_reinforce_klcoef0.05", "an estimator that our algorithms do not have"),
    (
        "advantage_pipeline/dr_grpo_stop_0.3_trunc_rows_0_2",
        "ProRL's penalty of cut responses, which is not built",
    ),
    (
        "advantage_pipeline/dr_grpo_stop_-0.5_trunc_rows_0_2",
        "ProRL's penalty of cut responses, which is not built",
    ),
    (
        "preference/rm_sigmoid",
        "the file does not hold its rewards; `finite_difference.rs` has a twin of that loss",
    ),
    ("preference/rm_sigmoid_margin0.5", "the file does not hold its rewards; the same twin"),
    ("preference/rm_logexp", "the file does not hold its rewards; the same twin"),
    ("orz/normalized_bf16", "whitening rounded to bf16, a fault of the reference"),
    ("orz_grader", "a grader, tested where graders are"),
];

#[test]
fn every_key_of_the_file_is_covered_or_skipped() {
    let mut covered: Vec<String> = Vec::new();
    let mut of = |section: &str, keys: &[&str]| {
        covered.extend(keys.iter().map(|key| format!("{section}/{key}")));
    };
    of(
        "inputs",
        &["log_probs", "old_log_probs", "ref_log_probs", "rollout_log_probs", "action_mask", "advantages"],
    );
    for k in ["k1", "k2", "k3"] {
        of("kl", &[k, &format!("{k}_grad"), &format!("{k}_unbiased_grad")]);
    }
    of("compute_reward", &["r", "kl_coef", "clip", "note", "out"]);
    of("gae", &["values", "rewards", "mask_plain", "mask_hole"]);
    of("gae", &["plain_g1.0_l1.0", "plain_g0.99_l0.95", "hole_g1.0_l1.0", "hole_g0.99_l0.95"]);
    of("cumulative_returns", &["g1.0", "g0.9"]);
    of("advantage_pipeline", &["inputs"]);
    of("advantage_pipeline", &pipelines().iter().map(|case| case.key).collect::<Vec<_>>());
    of("policy_loss", &policy_cases().iter().map(|case| case.0).collect::<Vec<_>>());
    of("policy_loss", &["gspo_is_token"]);
    of("value_loss", &["values", "old_values", "returns", "clip0.5", "clip0.2", "noclip"]);
    of("preference", &["inputs", "dpo_b0.1", "cdpo_b0.1_ls0.1", "ipo_b0.1"]);
    of("adaptive_kl", &["init", "target", "horizon", "current", "n_steps", "new"]);
    of("orz", &["num_actions", "values", "custom_rewards", "reward", "g1.0_l1.0", "g0.99_l0.95"]);
    of("orz", &["grpo_no_critic", "kl_k3"]);
    covered.extend(SKIPPED.iter().map(|(key, _)| key.to_string()));
    covered.sort();

    let golden = golden();
    let sections = golden.as_object().expect("sections").iter();
    let mut keys: Vec<String> = sections
        .flat_map(|(section, value)| match value.as_object() {
            None => vec![section.clone()],
            Some(entries) => entries.keys().map(|key| format!("{section}/{key}")).collect(),
        })
        .collect();
    keys.sort();
    assert_eq!(keys, covered);
}
