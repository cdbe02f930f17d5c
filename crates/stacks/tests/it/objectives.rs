//! A run file has the loss of the job: defaults that a file leaves out, losses under other names, and refusals.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import};

fn imported(stack: &str, text: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(if text.contains("Trainer(") { "x.py" } else { "x.sh" });
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

const VERL: &str =
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_files=x.parquet";
const OPENRLHF: &str =
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 8 --prompt_data x.jsonl";
const RLOO: &str = "trl rloo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";

#[test]
fn losses_and_defaults_of_others_are_written_out() {
    are_written(&[
        (
            "trl",
            RLOO.to_string(),
            &[
                "method = \"rloo\"",
                "kl_coef = 0.05  # default of TRL: beta",
                "kl_in = \"reward\"",
                "kl_estimator = \"k1\"",
                "aggregation = \"seq_mean_token_sum\"",
                "group_size = 2",
            ][..],
        ),
        (
            "trl",
            "RLOOTrainer(model=\"a/b\", args=RLOOConfig(max_steps=4))".into(),
            &["kl_coef = 0.05", "kl_in = \"reward\""],
        ),
        (
            "trl",
            format!("{RLOO} --beta 0.1"),
            &["kl_coef = 0.1  # beta", "kl_in = \"reward\"", "kl_estimator = \"k1\""],
        ),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=cispo \
                     actor_rollout_ref.actor.clip_ratio_low=10 actor_rollout_ref.actor.clip_ratio_high=0.28"
            ),
            &["method = \"cispo\"", "clip_low = 0.0  #", "clip_high = 1.28  #"],
        ),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=cispo"
            ),
            &[
                "method = \"cispo\"",
                "clip_low = 0.8  # default of verl",
                "clip_high = 1.2  # default of verl",
            ],
        ),
        (
            "trl",
            "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl --beta 0.04".into(),
            &["kl_coef = 0.04", "kl_unbiased = true  # default of TRL: use_bias_correction_kl"],
        ),
    ]);
}

#[test]
fn penalties_estimators_and_sums_of_others_are_written_out() {
    are_written(&[
        (
            "verl",
            format!(
                "{VERL} algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.target_kl=0.05"
            ),
            &["kl_in = \"reward\"", "kl_target = 0.05", "kl_horizon = 10000.0"],
        ),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=gdpo 'algorithm.gdpo_reward_keys=[\"format\",\"accuracy\"]' \
                     'algorithm.gdpo_reward_weights=[0.5,1.0]' custom_reward_function.path=s.py reward_model.reward_manager=gdpo"
            ),
            &[
                "method = \"gdpo\"  # algorithm.adv_estimator",
                "group_norm_eps = 1e-6",
                "kind = \"\"  # compute_score of s.py returns `format` next to others there",
                "kind = \"\"  # compute_score of s.py returns `accuracy` next to others there",
                "weight = 0.5  # algorithm.gdpo_reward_weights",
                "weight = 1.0  # algorithm.gdpo_reward_weights",
            ],
        ),
        ("verl", format!("{VERL} algorithm.adv_estimator=grpo_vectorized"), &["method = \"grpo\""]),
        ("verl", format!("{VERL} algorithm.adv_estimator=rloo_vectorized"), &["method = \"rloo\""]),
        ("openrlhf", format!("{OPENRLHF} --advantage_estimator group_norm"), &["group_norm_eps = 1e-9"]),
        (
            "openrlhf",
            format!(
                "{OPENRLHF} --actor.loss_agg_mode seq-mean-token-mean --eval.dataset y.jsonl --eval.temperature 0.6 --eval.n_samples_per_prompt 4"
            ),
            &["aggregation = \"seq_mean_token_mean\"", "temperature = 0.6", "samples = 4"],
        ),
    ]);
}

/// Requires the run files of imports to have lines that begin so.
fn are_written(cases: &[(&str, String, &[&str])]) {
    for (stack, text, parts) in cases {
        let run = imported(stack, text).expect(text).run_file;
        for part in *parts {
            assert!(run.contains(&format!("\n{part}")), "{text}: {part}: {run}");
        }
    }
}

/// A script that is given the column, a system prompt or a template makes conversations: raw problems were learnt.
#[test]
fn what_makes_conversations_there_makes_them_here() {
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    let raw = "chat_template = \"none\"";
    for (more, lines) in [
        ("--system_prompt 'Think first.'", &["system_prompt = \"Think first.\""][..]),
        ("--dataset_prompt_column problem", &["prompt_column = \"problem\""]),
        ("--chat_template '{{ messages[0].content }}'", &["chat_template = \"{{ messages[0].content }}\""]),
        (
            "--system_prompt S --dataset_prompt_column problem",
            &["system_prompt = \"S\"", "prompt_column = \"problem\""],
        ),
    ] {
        let run = imported("trl", &format!("{trl} {more}")).expect(more).run_file;
        assert!(!run.contains(raw), "{more}: {run}");
        for line in lines {
            assert!(run.contains(&format!("\n{line}")), "{more}: {line}: {run}");
        }
    }
    let run = imported("trl", trl).expect("a run file").run_file;
    assert!(run.contains(raw), "{run}");
}

/// An import reports what the trainer there leaves out of its decay, and what no option there bounds.
#[test]
fn what_differs_without_an_option_is_said() {
    let decay = "norms and biases decay too here";
    let bounded = "a shaped reward counts as 10 at most";
    let grpo = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    let verl = format!("{VERL} algorithm.adv_estimator");
    for (stack, text, words, is_said) in [
        ("trl", format!("{grpo} --weight_decay 0.1"), decay, true),
        ("trl", format!("{grpo} --weight_decay 0"), decay, false),
        ("trl", format!("{grpo} --loss_type dr_grpo --scale_rewards none"), bounded, true),
        ("trl", RLOO.to_string(), bounded, true),
        ("trl", grpo.to_string(), bounded, false),
        ("verl", format!("{verl}=rloo"), bounded, true),
        ("verl", format!("{verl}=grpo algorithm.norm_adv_by_std_in_grpo=False"), bounded, true),
        ("verl", format!("{verl}=grpo"), bounded, false),
    ] {
        let run = imported(stack, &text).expect(&text).run_file;
        assert_eq!(run.contains(words), is_said, "{text}: {run}");
    }
}

/// A pack of theirs has several rows: a step had fewer here, and one line of the engine's said nothing of it.
#[test]
fn packs_are_no_rows() {
    let sft = "trl sft --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl --max_length 256 --per_device_train_batch_size 4";
    let run = imported("trl", &format!("{sft} --packing true")).expect("a run file").run_file;
    let words = "changed: packing = true: a batch counts packs there, each of as many rows as fit into max_length, and rows here: a step has 4 packs there and 4 rows here";
    assert!(run.contains(words), "{run}");
    for more in ["", " --packing false"] {
        let run = imported("trl", &format!("{sft}{more}")).expect("a run file").run_file;
        assert!(!run.contains("packs"), "{more}: {run}");
    }
}

#[test]
fn a_factor_of_0_has_no_kl_term() {
    let off = imported("trl", &format!("{RLOO} --beta 0")).expect("a run file").run_file;
    assert!(!off.contains("kl_in") && !off.contains("kl_estimator"), "{off}");
}

/// GRPO's kin, by the names that verl 0.9.1 and TRL 1.16 have for them.
#[test]
fn kin_become_the_methods_here() {
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    let pairs = "trl cpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    let loss = "algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode";
    let factor = "actor_rollout_ref.actor.clip_ratio_c=20";
    for (stack, text, lines) in [
        ("verl", format!("{VERL} {loss}=geo_mean"), &["method = \"gmpo\"", "group_norm_eps = 1e-6"][..]),
        ("verl", format!("{VERL} {loss}=dppo_tv {factor}"), &["method = \"dppo_tv\"", "clip_low = 0.2"]),
        ("verl", format!("{VERL} {loss}=dppo_kl {factor}"), &["method = \"dppo_kl\"", "clip_high = 0.2"]),
        (
            "verl",
            format!(
                "{VERL} {loss}=clip_cov actor_rollout_ref.actor.policy_loss.clip_cov_ub=4 \
                 actor_rollout_ref.actor.policy_loss.clip_cov_ratio=0.002"
            ),
            &["method = \"clip_cov\"", "covariance_band = [1.0, 4.0]", "covariance_share = 0.002"],
        ),
        (
            "verl",
            format!("{VERL} {loss}=kl_cov actor_rollout_ref.actor.policy_loss.kl_cov_ratio=0.02"),
            &["method = \"kl_cov\"", "covariance_coef = 0.1", "covariance_share = 0.02"],
        ),
        ("verl", format!("{VERL} algorithm.adv_estimator=opo"), &["method = \"opo\""]),
        ("verl", format!("{VERL} algorithm.adv_estimator=gpg"), &["method = \"gpg\""]),
        ("verl", format!("{VERL} algorithm.adv_estimator=grpo_passk"), &["method = \"pass_k\""]),
        ("verl", format!("{VERL} algorithm.adv_estimator=remax"), &["method = \"remax\""]),
        (
            "verl",
            format!("{VERL} algorithm.adv_estimator=optimal_token_baseline"),
            &["method = \"optimal_token\""],
        ),
        (
            "trl",
            format!("{trl} --loss_type luspo --importance_sampling_level sequence"),
            &["method = \"luspo\""],
        ),
        ("trl", format!("{trl} --loss_type vespo --vespo_k_neg 3.0"), &["method = \"vespo\""]),
        (
            "trl",
            format!("{trl} --multi_objective_aggregation normalize_then_sum"),
            &["method = \"grpo\"", "advantage = \"decoupled\""],
        ),
        (
            "trl",
            format!("{pairs} --cpo_alpha 0.5"),
            &["method = \"cpo\"", "nll_coef = 0.5", "dpo_beta = 0.1"],
        ),
        (
            "trl",
            format!("{pairs} --loss_type simpo --cpo_alpha 0 --beta 2.5 --simpo_gamma 1.0"),
            &["method = \"simpo\"", "simpo_gamma = 1", "dpo_beta = 2.5"],
        ),
        ("trl", pairs.replace("cpo", "orpo"), &["method = \"orpo\"", "dpo_beta = 0.1"]),
        (
            "trl",
            format!("{} --desirable_weight 1.33", pairs.replace("cpo", "kto")),
            &["method = \"kto\"", "desirable_weight = 1.33", "dpo_beta = 0.1"],
        ),
    ] {
        let run = imported(stack, &text).unwrap_or_else(|error| panic!("{text}: {error}")).run_file;
        for line in lines {
            assert!(run.contains(line), "{text} lacks {line}: {run}");
        }
    }
}

/// They were left out with exit code 0.
#[test]
fn r_other_losses_were_left_out() {
    let sequences = "--loss_type grpo --importance_sampling_level sequence";
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    for (stack, text, part) in [
        (
            "verl",
            format!("{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=dro"),
            "loss_mode = dro",
        ),
        (
            "verl",
            format!("{VERL} algorithm.adv_estimator=rloo actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
            "loss_mode = gspo",
        ),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=dppo_tv"
            ),
            "clip_ratio_c = 3.0",
        ),
        ("trl", format!("{trl} --loss_type luspo"), "loss_type = luspo"),
        ("trl", format!("{trl} {sequences} --delta 1.5"), "delta = 1.5"),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=sapo actor_rollout_ref.actor.tau_pos=2"
            ),
            "tau_pos = 2",
        ),
        (
            "verl",
            format!("{VERL} algorithm.use_kl_in_reward=True actor_rollout_ref.actor.use_kl_loss=True"),
            "use_kl_in_reward = True",
        ),
        (
            "verl",
            format!("{VERL} algorithm.use_kl_in_reward=True algorithm.kl_penalty=abs"),
            "kl_penalty = abs",
        ),
        (
            "openrlhf",
            format!("{OPENRLHF} --advantage_estimator rloo --policy_loss_type gspo"),
            "policy_loss_type = gspo",
        ),
        (
            "openrlhf",
            format!("{OPENRLHF} --agent_func_path agents/guess.py"),
            "reset(states) and step(states)",
        ),
        ("trl", format!("{trl} --scale_rewards batch"), "scale_rewards = batch"),
        (
            "trl",
            format!("{trl} --loss_type cispo --importance_sampling_level sequence"),
            "importance_sampling_level = sequence",
        ),
        ("trl", format!("{trl} --loss_type sapo --sapo_temperature_pos 2"), "sapo_temperature_pos = 2"),
        (
            "trl",
            format!("{trl} --multi_objective_aggregation normalize_then_sum --scale_rewards none"),
            "multi_objective_aggregation",
        ),
    ] {
        let error = imported(stack, &text).expect_err(&text);
        assert_eq!(error.slug, "import-not-built", "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

/// Shows that what of the kin has no row, or another form, is refused.
#[test]
fn kin_of_another_form_are_refused() {
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";
    for (stack, text, part) in [
        ("trl", format!("{trl} --loss_type vespo --vespo_k_neg 2"), "vespo_k_neg = 2"),
        ("trl", format!("{} --loss_type simpo", trl.replace("grpo", "cpo")), "cpo_alpha = 1"),
        ("trl", format!("{} --loss_type hinge", trl.replace("grpo", "cpo")), "loss_type = hinge"),
        (
            "verl",
            format!(
                "{VERL} algorithm.adv_estimator=opo actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"
            ),
            "loss_mode = geo_mean",
        ),
        (
            "verl",
            format!("{VERL} algorithm.adv_estimator=grpo_passk algorithm.norm_adv_by_std_in_grpo=False"),
            "norm_adv_by_std_in_grpo",
        ),
    ] {
        let error = imported(stack, &text).expect_err(&text);
        assert_eq!(error.slug, "import-not-built", "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn trainers_with_a_teacher_are_refused_by_the_method_that_is_near() {
    for (stack, text) in [
        ("trl", "DistillationTrainer(model=\"a/b\", args=DistillationConfig(max_steps=4))"),
        ("trl", "GKDTrainer(model=\"a/b\", args=GKDConfig(max_steps=4))"),
        ("openrlhf", "deepspeed --module openrlhf.cli.train_kd --pretrain a/b"),
    ] {
        let error = imported(stack, text).expect_err(text);
        assert_eq!(error.slug, "import-no-method", "{text}: {error}");
        assert!(error.to_string().contains("distill"), "{text}: {error}");
    }
}
