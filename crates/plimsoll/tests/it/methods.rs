//! The methods from outside: parts combine freely, dynamic sampling is bounded, samples of older versions are
//! corrected, and every key of `[loss]` reaches the loop.

use crate::common::every_nth;
use crate::run::{Run, number, region};
use serde_json::Value;

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-4
"#;

fn saved_state(folder: &Run, dir: &str) -> Value {
    folder.read_json(&format!("{dir}/checkpoints/latest/state/state.json"))
}

/// Each policy loss with each advantage; the other parts take turns, so that each meets many.
#[test]
fn the_parts_of_a_method_combine_freely() {
    let folder = Run::new(RUN);
    let policies = ["ppo", "gspo", "cispo", "sapo", "reinforce", "gmpo", "dppo_tv", "dppo_kl", "vespo"];
    let advantages = [
        "group_norm",
        "mean_baseline",
        "rloo",
        "none",
        "gae",
        "length_weighted",
        "gpg",
        "lead",
        "decoupled",
        "greedy",
        "optimal_token",
    ];
    let aggregations =
        ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "token_sum"];
    let whitens = ["off", "full", "no_std"];
    let kls: [&[&str]; 4] = [
        &[],
        &["loss.kl_coef=0.01", "loss.kl_estimator=k1", "loss.kl_in=reward"],
        &["loss.kl_coef=0.01", "loss.kl_estimator=k2", "loss.kl_target=0.1"],
        &["loss.kl_coef=0.01", "loss.kl_unbiased=true"],
    ];
    let others: [&[&str]; 4] = [
        &["train.mini_batch=8", "loss.overlong_buffer=2"],
        &["async.reuse=1", "loss.correction=icepop"],
        &["loss.dynamic_sampling=true", "train.epochs_per_rollout=2"],
        &["loss.entropy_coef=0.01", "async.reuse=1"],
    ];
    let pairs = (0..policies.len()).flat_map(|p| (0..advantages.len()).map(move |a| (p, a)));
    // The later rows meet each other once or twice.
    let pairs = pairs.filter(|(p, a)| (*p < 5 && *a < 5) || (p + a) % 4 == 1);
    for (_, (p, a)) in every_nth(4, pairs) {
        let (policy, advantage) = (policies[p], advantages[a]);
        let turn = p + 2 * a;
        let method = if advantage == "gae" { "method=ppo" } else { "method=grpo" };
        let parts = [
            format!("loss.policy={policy}"),
            format!("loss.advantage={advantage}"),
            format!("loss.aggregation={}", aggregations[turn % 5]),
            format!("loss.whiten={}", whitens[turn % 3]),
        ];
        let mut sets = vec![method, "train.learning_rate=1e-5"];
        sets.extend(parts.iter().map(String::as_str));
        // Rewards that are compared as they are have no length penalty.
        let other = others[if matches!(advantage, "decoupled" | "greedy") { 1 + turn % 3 } else { turn % 4 }];
        sets.extend(kls[(p + a) % 4].iter().chain(other));
        let dir = format!("{policy}-{advantage}");
        folder.train(&dir, &sets);
        let metrics = folder.metrics(&dir);
        assert_eq!(metrics.len(), 2, "{sets:?}");
        for step in &metrics {
            assert_eq!(number(step, "rollout/logprob_mismatch_max"), 0.0, "{sets:?}");
            assert!(
                number(step, "grad_norm").is_finite() && number(step, "loss/policy").is_finite(),
                "{sets:?}"
            );
        }
    }
}

/// Shows that what a key changes is seen in the weights after two steps; a key that the loop ignores leaves them as
/// they are.
#[test]
fn every_key_of_the_loss_reaches_the_loop() {
    let folder = Run::new(RUN);
    let mut runs = 0;
    let mut differs = |common: &[&str], sets: &[&str]| {
        runs += 1;
        let (without, with) = (format!("without-{}", common.join("-")), runs.to_string());
        if !folder.path(&without).join("summary.json").exists() {
            folder.train(&without, common);
        }
        folder.train(&with, &[common, sets].concat());
        let weights = |dir: &str| folder.weights(dir);
        assert!(weights(&without) != weights(&with), "{common:?}: {sets:?} changes nothing");
        (saved_state(&folder, &without), saved_state(&folder, &with))
    };
    let updates = |state: &Value| state["policy_version"].as_u64();
    let (one, many) = differs(&[], &["train.mini_batch=4"]);
    assert_eq!((updates(&one), updates(&many)), (Some(2), Some(8)));
    let (one, many) = differs(&[], &["train.epochs_per_rollout=3"]);
    assert_eq!((updates(&one), updates(&many)), (Some(2), Some(6)));
    differs(&[], &["loss.entropy_coef=0.1"]);
    differs(&[], &["loss.overlong_buffer=3"]);
    differs(&[], &["loss.group_norm_eps=1.0"]);
    // After the first updates ratios are far from 1, on both sides.
    let moved = ["train.mini_batch=8", "train.learning_rate=3e-4", "train.epochs_per_rollout=3"];
    differs(&moved, &["loss.dual_clip=1.001"]);
    differs(&moved, &["loss.clip_low=0.01"]);
    differs(&moved, &["loss.clip_high=0.01"]);
    differs(&moved, &["loss.policy=sapo"]);
    let kl = ["loss.kl_coef=1.0", "train.steps=3"];
    differs(&kl, &["loss.kl_unbiased=true", "train.mini_batch=8"]);
    differs(&kl, &["loss.kl_estimator=k2"]);
    let (fixed, adaptive) = differs(&kl, &["loss.kl_target=1e-9", "loss.kl_horizon=20.0"]);
    let coef = |state: &Value| state["kl_coef"].as_str().map(|coef| coef.parse::<f64>().expect("a number"));
    // Three steps of 16 samples whose KL is far above the target: 0.2 x 16 / 20 more each; the first KL is exactly 0.
    assert_eq!(coef(&fixed), None);
    let factor = 1.0 + 0.2 * 16.0 / 20.0;
    let expect = (1.0 - 0.2 * 16.0 / 20.0) * factor * factor;
    assert!((coef(&adaptive).expect("it moved") - expect).abs() < 1e-12, "{adaptive}");
    let lag = ["async.reuse=1", "train.learning_rate=1e-2"];
    for correction in ["tis", "icepop", "sequence_mask", "sequence_mask_sum"] {
        differs(&lag, &[&format!("loss.correction={correction}"), "loss.correction_band=[0.9, 1.1]"]);
    }
}

/// The log-probs at half the temperature are of the weights that the step begins with, on any number of ranks.
#[test]
fn a_baseline_of_each_token_is_the_same_on_any_number_of_ranks_and_after_a_resume() {
    let folder = Run::new(RUN);
    let sets = ["method=optimal_token", "async.reuse=1", "train.steps=4", "train.cut_multiple=4"];
    folder.train("one", &sets);
    assert!(folder.metrics("one").iter().any(|step| number(step, "grad_norm") > 0.0));
    folder.train("two", &[&sets[..], &["--ranks=2"]].concat());
    assert_eq!(folder.result("two"), folder.result("one"));
    folder.train("part", &[&sets[..], &["train.steps=1"]].concat());
    folder.train("part", &[&sets[..], &["--resume"]].concat());
    assert_eq!(folder.result("part"), folder.result("one"));
    // A mean of the group is another baseline.
    folder.train("mean", &[&sets[..], &["loss.advantage=mean_baseline"]].concat());
    assert_ne!(folder.result("mean"), folder.result("one"));
    folder.plan_refused(&["method=optimal_token", "rollout.group_size=1"], 2, &["group-too-small"]);
    let games = Run::new(crate::turns::RUN);
    let second_try = "environment.env=text:second-try";
    games.plan_refused(&["method=optimal_token", second_try], 2, &["contradictory-keys", "common tokens"]);
}

/// Shows what is chosen follows from the step alone: ranks and a resume choose the same tokens.
#[test]
fn tokens_of_high_covariance_learn_less_on_any_number_of_ranks_and_after_a_resume() {
    let folder = Run::new(RUN);
    let methods = [("clip_cov", "loss.covariance_band=[0.01, 9.0]"), ("kl_cov", "train.mini_batch=4")];
    for (_, (method, set)) in every_nth(2, methods) {
        let method = format!("method={method}");
        let name = |what: &str| format!("{what}-{method}");
        let sets = [method.as_str(), set, "loss.covariance_share=0.2", "train.cut_multiple=4"];
        folder.train(&name("one"), &sets);
        let chosen: Vec<f64> =
            folder.metrics(&name("one")).iter().map(|step| number(step, "covariance/chosen_share")).collect();
        assert!(chosen.iter().any(|share| *share > 0.0), "{method}: {chosen:?}");
        folder.train(&name("two"), &[&sets[..], &["--ranks=2"]].concat());
        assert_eq!(folder.result(&name("two")), folder.result(&name("one")), "{method}");
        folder.train(&name("part"), &[&sets[..], &["train.steps=1"]].concat());
        folder.train(&name("part"), &[&sets[..], &["--resume"]].concat());
        assert_eq!(folder.result(&name("part")), folder.result(&name("one")), "{method}");
        // A token more or less is another run.
        folder.train(&name("more"), &[&sets[..], &["loss.covariance_share=0.9"]].concat());
        assert_ne!(folder.result(&name("more")), folder.result(&name("one")), "{method}");
    }
    folder.plan_refused(
        &["loss.covariance_coef=0.5"],
        2,
        &["contradictory-keys", "no loss.covariance = \"kl\""],
    );
    folder.plan_refused(
        &["method=clip_cov", "loss.covariance_band=[5.0, 1.0]"],
        2,
        &["bad-value", "the lower first"],
    );
}

/// A group of one has its baseline; a checkpoint keeps it for the steps that wait.
#[test]
fn a_greedy_answer_is_the_baseline_on_any_number_of_ranks_and_after_a_resume() {
    let folder = Run::new(RUN);
    let sets = ["method=remax", "rollout.group_size=1", "rollout.prompts_per_step=8", "train.cut_multiple=4"];
    folder.train("one", &sets);
    assert!(folder.metrics("one").iter().any(|step| number(step, "grad_norm") > 0.0));
    folder.train("two", &[&sets[..], &["--ranks=2"]].concat());
    assert_eq!(folder.result("two"), folder.result("one"));
    let lag = [&sets[..], &["async.reuse=1", "train.steps=4"]].concat();
    folder.train("whole", &lag);
    folder.train("part", &[&sets[..], &["async.reuse=1", "train.steps=1"]].concat());
    folder.train("part", &[&lag[..], &["--resume"]].concat());
    assert_eq!(folder.result("part"), folder.result("whole"));
    folder.plan_refused(&["method=remax", "loss.overlong_buffer=2"], 2, &["loss.overlong_buffer", "greedy"]);
    let games = Run::new(crate::turns::RUN);
    let second_try = "environment.env=text:second-try";
    games.plan_refused(&["method=remax", second_try], 2, &["contradictory-keys", "greedy answer"]);
}

#[test]
fn groups_that_are_not_kept_are_replaced_in_bounded_rounds() {
    let folder = Run::new(RUN);
    let sets = ["loss.dynamic_sampling=true", "train.steps=4"];
    folder.train("out", &sets);
    let metrics = folder.metrics("out");
    assert!(metrics.iter().any(|m| number(m, "dynamic_sampling/rounds") > 1.0), "{metrics:?}");
    for m in &metrics {
        assert_eq!(number(m, "dynamic_sampling/missing"), 0.0, "{m}");
        assert_eq!(number(m, "frac_reward_zero_std"), 0.0, "a group without variance was trained: {m}");
        let share = number(m, "dynamic_sampling/kept_share");
        assert!(share > 0.0 && share <= 1.0, "{m}");
    }
    // The counters of the data are ahead of steps x prompts, by what was sampled and not kept.
    let state = saved_state(&folder, "out");
    let position = state["data_position"].as_u64().expect("a position");
    assert!(position > 16 && state["next_sample_id"].as_u64() == Some(4 * position), "{state}");
    // Without retries a step trains on the groups that there are, and counts the others.
    folder.train("short", &[&sets[..], &["loss.dynamic_sampling_retries=0", "train.mini_batch=8"]].concat());
    let metrics = folder.metrics("short");
    assert!(metrics.iter().any(|m| number(m, "dynamic_sampling/missing") > 0.0), "{metrics:?}");
    assert!(metrics.iter().all(|m| number(m, "dynamic_sampling/rounds") == 1.0), "{metrics:?}");
    // What is kept has a row of the plan.
    let plan = folder.plan(&["loss.dynamic_sampling=true"]);
    let row = region(&plan, "rl.held");
    // Sixteen responses of five tokens (id, log-prob, whether trained), and the record of each one's only turn.
    assert_eq!(row.expect("a row")["bytes"], 16 * (5 * 8 + 5 + 20));
}

/// The first prompts can be solved now and then, those after them never.
#[test]
fn a_run_without_mixed_groups_ends_by_name_behind_a_checkpoint() {
    let folder = Run::new(RUN);
    let rows = |n: usize, answer: &str| -> String {
        let row = |i: usize| {
            let sum = if answer.is_empty() { (457 + i + 386).to_string() } else { answer.to_string() };
            format!("{{\"prompt\": \"{}+386=\", \"ground_truth\": \"{sum}\"}}\n", 457 + i)
        };
        (0..n).map(row).collect()
    };
    let data = folder.write("data.jsonl", &(rows(8, "") + &rows(400, "never")));
    let prompts = format!("data.prompts={data}");
    let sets = [
        &prompts,
        "data.shuffle=false",
        "rollout.prompts_per_step=2",
        "rollout.group_size=16",
        "loss.dynamic_sampling=[0.0, 1.0]",
        "loss.dynamic_sampling_retries=3",
        "train.steps=40",
    ];
    let contains = [
        "error[dynamic-sampling-exhausted]: step ",
        "none of 8 groups in 4 rounds has a mean score above 0 and below 1",
        "mean score 0 over 128 samples",
        "last good weights: ",
    ];
    folder.train_fails("out", &sets, 1, &contains);
    let state = saved_state(&folder, "out");
    let done = state["progress"]["step"].as_u64().expect("steps");
    assert!(done >= 1 && state["policy_version"].as_u64() == Some(done), "{state}");
    // The checkpoint is from before the step that failed: resumed, it fails in the same way.
    folder.train_fails("out", &[&sets[..], &["--resume"]].concat(), 1, &contains);
    assert_eq!(saved_state(&folder, "out")["data_position"], state["data_position"]);
}

#[test]
fn older_samples_are_scored_anew_and_weighted() {
    let folder = Run::new(RUN);
    let sets = ["async.reuse=2", "loss.correction=tis", "train.steps=6", "train.mini_batch=8"];
    folder.train("out", &sets);
    let metrics = folder.metrics("out");
    for (n, m) in metrics.iter().enumerate() {
        let lag = (n % 3) as f64;
        assert_eq!(number(m, "rollout/policy_lag"), lag);
        // The first mini-batch's ratio is exactly 1 at any age: l_old is of the weights that begin the step.
        assert_eq!(number(m, "rollout/logprob_mismatch_max"), 0.0);
        assert_eq!(number(m, "correction/mean") == 1.0, lag == 0.0, "{m}");
        assert_eq!(number(m, "time/rollout") > 0.0, lag == 0.0, "{m}");
    }
    let sample =
        |step: u32| -> Value { folder.read_lines(&format!("out/samples/step-{step:06}.jsonl"))[0].clone() };
    assert_eq!([1, 3, 4, 6].map(|step| sample(step)["policy_version"].as_u64()), [0, 0, 6, 6].map(Some));
    // Weights that do not move give every sample the weight 1, to the bit, however old it is.
    for correction in ["tis", "icepop", "sequence_mask", "sequence_mask_sum"] {
        let correction = format!("loss.correction={correction}");
        folder.train(&correction, &[&sets[..], &[&correction, "train.learning_rate=0.0"]].concat());
        for m in folder.metrics(&correction) {
            assert_eq!((number(&m, "correction/mean"), number(&m, "correction/outside_share")), (1.0, 0.0));
        }
    }
    // Where the policy is its own the correction changes no bit, and the run says that it does nothing.
    let own = ["train.mini_batch=8"];
    folder.train("plain", &own);
    let said = folder.train("corrected", &[&own[..], &["loss.correction=icepop"]].concat());
    assert!(said.contains("`loss.correction` changes nothing"), "{said}");
    assert!(folder.weights("plain") == folder.weights("corrected"));
}

/// A checkpoint between the steps of one rollout holds what waits, and with dynamic sampling the place in the data.
#[test]
fn a_run_resumes_bit_for_bit_in_the_middle_of_a_rollout() {
    let folder = Run::new(RUN);
    let lagged = ["async.reuse=2", "loss.correction=tis", "train.mini_batch=8", "train.learning_rate=1e-4"];
    let filtered = ["loss.dynamic_sampling=true", "loss.kl_coef=0.01", "loss.kl_target=0.01"];
    for (_, (name, sets)) in every_nth(
        2,
        [
            ("lagged", &lagged[..]),
            ("filtered", &filtered[..]),
            ("both", &[&lagged[..], &filtered].concat()),
            (
                "ppo",
                &[
                    &["method=ppo", "critic.updates_per_rollout=2"],
                    &lagged[..],
                    &["loss.dynamic_sampling=true"],
                ]
                .concat(),
            ),
        ],
    ) {
        let (long, short) = (format!("{name}-long"), format!("{name}-short"));
        folder.train(&long, &[sets, &["train.steps=6"]].concat());
        folder.train(&short, &[sets, &["train.steps=2"]].concat());
        assert_eq!(saved_state(&folder, &short)["held"].is_object(), name != "filtered", "{name}");
        folder.train(&short, &[sets, &["train.steps=5"], &["--resume"]].concat());
        folder.train(&short, &[sets, &["train.steps=6"], &["--resume"]].concat());
        for file in ["model.safetensors", "state/optimizer.safetensors"] {
            assert!(folder.saved(&long, file) == folder.saved(&short, file), "{name}: another {file}");
        }
        let metrics = |dir: &str| -> Vec<[Value; 4]> {
            let names = ["reward", "completions/mean_length", "rollout/policy_lag", "num_tokens"];
            folder.metrics(dir).iter().map(|m| names.map(|name| m[name].clone())).collect()
        };
        assert_eq!(metrics(&long), metrics(&short), "{name}");
    }
}

/// External rewards are graded while the next round runs.
#[test]
fn a_python_reward_grades_every_round() {
    let folder = Run::new(RUN);
    let file = folder.write(
        "reward.py",
        "def right(completions, ground_truth, **kwargs):\n    return [float(c == a) for c, a in zip(completions, ground_truth)]\n",
    );
    let kind = format!("reward.0.kind=python:{file}:right");
    let sets = ["loss.dynamic_sampling=true", "async.reuse=1", "train.steps=4"];
    folder.train("python", &[&sets[..], &[&kind]].concat());
    folder.train("exact", &sets);
    assert!(folder.weights("python") == folder.weights("exact"));
    let rounds = |dir: &str| -> Vec<Value> {
        folder.metrics(dir).iter().map(|m| m["dynamic_sampling/rounds"].clone()).collect()
    };
    assert_eq!(rounds("python"), rounds("exact"));
}

/// Goal: a mask that is ignored would train on responses that the limit cut.
#[test]
fn responses_that_the_limit_cut_train_nothing_where_they_are_masked() {
    let folder = Run::new(RUN);
    // No answer has room in one token, so every response is cut; a length reward makes their groups differ.
    let sets = ["rollout.max_new_tokens=1", "train.steps=1"];
    let reward = "def f(prompts, completions, **columns):\n    return [float(ord(c[0]) % 7) if c else 0.0 for c in completions]\n";
    let path = folder.write("r.py", reward);
    let kind = format!("reward.0.kind=python:{path}:f");
    let masked = "loss.mask_truncated=true";
    folder.train("all", &[sets[0], sets[1], &kind]);
    folder.train("none", &[sets[0], sets[1], &kind, masked]);
    let (all, none) = (&folder.metrics("all")[0], &folder.metrics("none")[0]);
    assert_eq!(number(all, "completions/clipped_ratio"), 1.0, "{all}");
    assert!(number(all, "grad_norm") > 0.0, "{all}");
    assert_eq!(number(none, "grad_norm"), 0.0, "{none}");
    assert_eq!(number(none, "reward"), number(all, "reward"));
    // Under the limit nothing is cut, and the key changes no bit.
    folder.train("free", &["train.steps=1"]);
    folder.train("free-masked", &["train.steps=1", masked]);
    assert_eq!(folder.weights("free"), folder.weights("free-masked"));
}
