//! Tests what a launch file trains without a word on clips, aggregation or the estimator of the KL: the objective that
//! its stack's code computes. A case for each loss and each estimator that the stacks have.

use crate::common::every_nth;
use plimsoll_config::{KlTerm, RunSpec, load_text};
use plimsoll_stacks::{Wishes, find, import};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The losses and estimators of each stack, which `bench/import_defaults.py` reads from their packages.
const TABLE: &str = include_str!("../../../stacks/src/defaults.json");

/// Values of a run file that only its user knows.
const STAND_INS: [&str; 4] =
    ["model=builtin:nano", "data.prompts=builtin:addition", "data.eval=none", "reward.0.kind=hash"];

fn launch(stack: &str, words: &str) -> String {
    match stack {
        "verl" => format!(
            "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_files=x.parquet \
             trainer.total_training_steps=4 actor_rollout_ref.rollout.n=4 {words}"
        ),
        "openrlhf" => format!(
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 4096 --prompt_data x.jsonl \
             --n_samples_per_prompt 4 {words}"
        ),
        _ => format!("trl {words} --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl"),
    }
}

/// Returns the objective of a launch file, as it is once the run file's defaults are filled in, or why it is refused.
fn resolved(stack: &str, words: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.sh");
    std::fs::write(&path, launch(stack, words)).expect("a file");
    let made = import(find(stack).expect("a stack"), &path, &Wishes::default());
    let run_file = made.map_err(|error| error.to_string())?.run_file;
    let sets = STAND_INS.map(String::from);
    let loaded = load_text(run_file.clone(), Path::new("x.toml"), &sets, std::iter::empty());
    let run = loaded.unwrap_or_else(|error| panic!("{stack} {words}: {error}: {run_file}")).run;
    let objective = RunSpec::new(&run).objective().expect("a run that samples");
    let kl = match objective.kl {
        None => "no KL".to_string(),
        Some(KlTerm { estimator, in_reward, unbiased, controller }) => {
            let place = if in_reward { "reward" } else { "loss" };
            let coef = controller.coef();
            format!("{estimator:?} {coef:?} in the {place}{}", if unbiased { ", unbiased" } else { "" })
        }
    };
    Ok(format!("{} {:?} {:?} {kl}", run.method.name(), objective.loss, objective.aggregation))
}

const GRPO: &str = "algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode=";
/// verl's loss unless a file names another.
const VANILLA: &str = "Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(3.0) } TokenMean no KL";
/// OpenRLHF's and TRL's.
const PPO: &str = "Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None }";

/// (entry of the table, words of a launch file, the objective, or what a refusal names)
type Case = (&'static str, &'static str, String, Result<String, &'static str>);

fn cases() -> Vec<Case> {
    [estimators_of_verl(), losses_of_verl(), options_of_verl(), of_trl(), of_openrlhf()].concat()
}

fn estimators_of_verl() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (estimator, method) in [
        ("gae", "ppo"),
        ("grpo", "grpo"),
        ("rloo", "rloo"),
        ("opo", "opo"),
        ("remax", "remax"),
        ("grpo_passk", "pass_k"),
        ("reinforce_plus_plus", "reinforce"),
        ("reinforce_plus_plus_baseline", "reinforce_baseline"),
        ("gpg", "gpg"),
        ("optimal_token_baseline", "optimal_token"),
        ("grpo_vectorized", "grpo"),
        ("rloo_vectorized", "rloo"),
        ("gdpo", "gdpo"),
    ] {
        let words = format!("algorithm.adv_estimator={estimator}");
        cases.push(("verl", "estimator", words, Ok(format!("{method} {VANILLA}"))));
    }
    let words = "algorithm.adv_estimator=tir_optimal_token_baseline".into();
    cases.push(("verl", "estimator", words, Err("tir_optimal_token_baseline")));
    cases
}

fn losses_of_verl() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (loss, more, objective) in [
        ("vanilla", "", Ok(format!("grpo {VANILLA}"))),
        // The option counts, since 0.9.
        ("gspo", "", Ok("gspo Gspo { clip_low: 0.2, clip_high: 0.2 } TokenMean no KL".into())),
        ("sapo", "", Ok("sapo Sapo { tau_positive: 1.0, tau_negative: 1.05 } SeqMeanTokenMean no KL".into())),
        (
            "sapo",
            " actor_rollout_ref.actor.loss_agg_mode=token-mean",
            Ok("sapo Sapo { tau_positive: 1.0, tau_negative: 1.05 } SeqMeanTokenMean no KL".into()),
        ),
        ("geo_mean", "", Ok("gmpo Gmpo { clip_low: 0.2, clip_high: 0.2 } SeqMeanTokenMean no KL".into())),
        ("cispo", "", Ok("cispo Cispo { clip_low: 0.8, clip_high: 1.2 } TokenMean no KL".into())),
        ("dppo_tv", "", Err("clip_ratio_c")),
        (
            "dppo_tv",
            " actor_rollout_ref.actor.clip_ratio_c=20",
            Ok("dppo_tv DppoTv { clip_low: 0.2, clip_high: 0.2 } TokenMean no KL".into()),
        ),
        (
            "dppo_kl",
            " actor_rollout_ref.actor.clip_ratio_c=20 actor_rollout_ref.actor.clip_ratio_high=0.05",
            Ok("dppo_kl DppoKl { clip_low: 0.2, clip_high: 0.05 } TokenMean no KL".into()),
        ),
        (
            "clip_cov",
            "",
            Ok("clip_cov Ppo { clip_low: 0.2, clip_high: 0.2, dual_clip: None } TokenMean no KL".into()),
        ),
        (
            "kl_cov",
            "",
            Ok("kl_cov Ppo { clip_low: 1.0, clip_high: 1000000000.0, dual_clip: None } TokenMean no KL"
                .into()),
        ),
        ("dro", "", Err("dro")),
        ("bypass_mode", "", Err("bypass_mode")),
        ("gpg", "", Err("gpg")),
    ] {
        cases.push(("verl", "loss", format!("{GRPO}{loss}{more}"), objective));
    }
    let gpg = "algorithm.adv_estimator=gpg actor_rollout_ref.actor.policy_loss.loss_mode=gpg".into();
    cases.push(("verl", "loss", gpg, Ok("gpg Reinforce TokenMean no KL".into())));
    cases
}

fn options_of_verl() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let with_kl = |place: &str| VANILLA.replace("no KL", place);
    for (words, objective) in [
        // The one alone moves nothing: each of the two others has its own value.
        ("algorithm.adv_estimator=grpo actor_rollout_ref.actor.clip_ratio=0.1", format!("grpo {VANILLA}")),
        (
            "algorithm.adv_estimator=grpo actor_rollout_ref.actor.clip_ratio=0.1 actor_rollout_ref.actor.clip_ratio_high=0.3",
            format!("grpo {}", VANILLA.replace("clip_high: 0.2", "clip_high: 0.3")),
        ),
        (
            "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True",
            format!("grpo {}", with_kl("K3 0.001 in the loss")),
        ),
        (
            "algorithm.adv_estimator=gae algorithm.use_kl_in_reward=True",
            format!("ppo {}", with_kl("K1 0.001 in the reward")),
        ),
    ] {
        cases.push(("verl", "", words.into(), Ok(objective)));
    }
    cases
}

fn of_trl() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (loss, words, objective) in [
        ("dapo", "", Ok(format!("grpo {PPO} TokenMean no KL"))),
        ("bnpo", "", Ok(format!("grpo {PPO} TokenMean no KL"))),
        ("grpo", "", Ok(format!("grpo {PPO} SeqMeanTokenMean no KL"))),
        ("dr_grpo", "", Ok(format!("grpo {PPO} SeqMeanTokenSumNorm no KL"))),
        ("grpo", " --beta 0.04", Ok(format!("grpo {PPO} SeqMeanTokenMean K3 0.04 in the loss, unbiased"))),
        ("cispo", "", Ok("cispo Cispo { clip_low: 0.0, clip_high: 0.2 } TokenMean no KL".into())),
        ("sapo", "", Ok("sapo Sapo { tau_positive: 1.0, tau_negative: 1.05 } SeqMeanTokenMean no KL".into())),
        ("luspo", "", Err("luspo")),
        (
            "luspo",
            " --importance_sampling_level sequence",
            Ok("luspo Gspo { clip_low: 0.2, clip_high: 0.2 } SeqMeanTokenSum no KL".into()),
        ),
        (
            "grpo",
            " --importance_sampling_level sequence",
            Ok("gspo Gspo { clip_low: 0.2, clip_high: 0.2 } SeqMeanTokenMean no KL".into()),
        ),
        (
            "dapo",
            " --importance_sampling_level sequence --epsilon_high 0.28",
            Ok("gspo Gspo { clip_low: 0.2, clip_high: 0.28 } TokenMean no KL".into()),
        ),
    ] {
        cases.push(("trl", "loss", format!("grpo --loss_type {loss}{words}"), objective));
    }
    let vespo = resolved("trl", "grpo --loss_type vespo").expect("a run file");
    assert!(vespo.starts_with("vespo Vespo {") && vespo.ends_with("} TokenMean no KL"), "{vespo}");
    cases.push(("trl", "loss", "grpo --loss_type vespo".into(), Ok(vespo)));
    cases.push(("trl", "", "rloo".into(), Ok(format!("rloo {PPO} SeqMeanTokenSum K1 0.05 in the reward"))));
    cases
}

fn of_openrlhf() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (estimator, method) in [
        ("gae", "ppo"),
        ("reinforce", "reinforce"),
        ("reinforce_baseline", "reinforce_baseline"),
        ("rloo", "rloo"),
        ("group_norm", "grpo"),
        ("dr_grpo", "dr_grpo"),
    ] {
        let words = format!("--algo.advantage.estimator {estimator}");
        cases.push((
            "openrlhf",
            "estimator",
            words,
            Ok(format!("{method} {PPO} TokenMean K1 0.01 in the reward")),
        ));
    }
    let flash = "--algo.advantage.estimator flash_reinforce".into();
    cases.push(("openrlhf", "estimator", flash, Err("flash_reinforce")));
    let ppo = "--algo.advantage.estimator group_norm --actor.policy_loss_type ppo --algo.kl.use_loss".into();
    cases.push(("openrlhf", "loss", ppo, Ok(format!("grpo {PPO} TokenMean K1 0.01 in the loss"))));
    let gspo = "--algo.advantage.estimator group_norm --algo.kl.init_coef 0 --actor.policy_loss_type gspo";
    for more in ["", " --actor.loss_agg_mode token-mean"] {
        let objective = "gspo Gspo { clip_low: 0.2, clip_high: 0.2 } SeqMeanTokenMean no KL";
        cases.push(("openrlhf", "loss", format!("{gspo}{more}"), Ok(objective.into())));
    }
    cases
}

#[test]
fn a_launch_file_has_the_objective_that_its_stack_computes() {
    let mut wrong = Vec::new();
    for (stack, _, words, expect) in cases() {
        match (resolved(stack, &words), expect) {
            (Ok(have), Ok(want)) if have == want => {}
            (Err(said), Err(word)) if said.contains(word) => {}
            (have, want) => wrong.push(format!("{stack} {words}: {have:?}, expected {want:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The options of published scripts, and what their stacks compute from them (`bench/import_scripts.py --lines`).
#[test]
fn published_options_have_the_objective_of_their_stack() {
    let rows: Vec<Value> =
        serde_json::from_str(include_str!("../../../../bench/import_lines.json")).expect("JSON");
    assert_eq!(rows.len(), 60);
    let text = |row: &Value, key: &str| row[key].as_str().expect("a text").to_string();
    let mut wrong = Vec::new();
    for row in &rows {
        let (path, objective) = (text(row, "path"), text(row, "objective"));
        match resolved(&text(row, "stack"), &text(row, "options")) {
            Ok(have) if have == objective => {}
            Err(_) if objective == "refused" => {}
            have => wrong.push(format!("{path}: {have:?}, expected {objective}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A loss or an estimator that a newer package has needs a case.
#[test]
fn every_loss_and_estimator_of_the_packages_has_a_case() {
    let table: Value = serde_json::from_str(TABLE).expect("JSON");
    let named = |stack: &str, kind: &str| -> BTreeSet<String> {
        let of = |words: &str| words.rsplit(['=', ' ']).next().map(String::from);
        let first = |words: &str| {
            words.split_whitespace().find_map(|word| match (stack, kind) {
                ("verl", "loss") => {
                    word.strip_prefix("actor_rollout_ref.actor.policy_loss.loss_mode=").map(String::from)
                }
                ("verl", _) => word.strip_prefix("algorithm.adv_estimator=").map(String::from),
                _ => None,
            })
        };
        let after = |words: &str, flag: &str| {
            words.split_once(flag).and_then(|(_, rest)| rest.split_whitespace().next()).map(String::from)
        };
        let name = |words: &str| match (stack, kind) {
            ("verl", _) => first(words).or_else(|| of(words)),
            ("trl", _) => after(words, "--loss_type"),
            (_, "loss") => after(words, "--actor.policy_loss_type"),
            _ => after(words, "--algo.advantage.estimator"),
        };
        let cases = cases().into_iter().filter(|(of, what, ..)| *of == stack && *what == kind);
        cases.filter_map(|(_, _, words, _)| name(&words)).collect()
    };
    let mut missing = Vec::new();
    for (stack, package) in table.as_object().expect("packages") {
        for entry in package["objectives"].as_object().expect("losses").keys() {
            let (kind, name) = entry.split_once(' ').expect("a kind and a name");
            if !named(stack, kind).contains(name) {
                missing.push(format!("{stack}: {entry}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Options whose default is not written out: what the launch files here set themselves, and what is no part of the
/// objective. The planner chooses what fits; evaluations, seeds and how many checkpoints stay are the user's here.
const OTHERS: [&str; 17] = [
    "adv_estimator",
    "advantage.estimator",
    "loss_type",
    "num_train_epochs",
    "total_training_steps",
    "max_samples",
    "num_episodes",
    "max_steps",
    "rollout.n",
    "n_samples_per_prompt",
    "max_token_len_per_gpu",
    "max_tokens_per_gpu",
    "gradient_checkpointing",
    "dtype",
    "seed",
    "image_key",
    "model_revision",
];

/// An option that is written out at its default, or left out, is one job.
#[test]
fn an_option_at_its_default_changes_nothing() {
    let table: Value = serde_json::from_str(TABLE).expect("JSON");
    let mut wrong = Vec::new();
    let trainers = [
        ("verl", "ppo", "algorithm.adv_estimator=gae"),
        ("verl", "ppo", "algorithm.adv_estimator=grpo"),
        ("openrlhf", "ppo", "--algo.advantage.estimator gae"),
        ("openrlhf", "ppo", "--algo.advantage.estimator group_norm"),
        ("trl", "grpo", "grpo"),
        ("trl", "rloo", "rloo"),
    ];
    for (_, (stack, trainer, words)) in every_nth(2, trainers) {
        let run = |more: &str| -> Result<String, String> {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("x.sh");
            std::fs::write(&path, launch(stack, &format!("{words} {more}"))).expect("a file");
            let made = import(find(stack).expect("a stack"), &path, &Wishes::default());
            let run_file = made.map_err(|error| error.to_string())?.run_file;
            let loaded =
                load_text(run_file, Path::new("x.toml"), &STAND_INS.map(String::from), std::iter::empty());
            loaded.map(|loaded| format!("{:?}", loaded.run)).map_err(|error| error.to_string())
        };
        let without = run("").expect("a run file");
        for (option, value) in table[stack]["trainers"][trainer].as_object().expect("options") {
            let value = value.as_str().expect("a text");
            let is_text = value.chars().all(|c| c.is_ascii_alphanumeric() || "._-+".contains(c));
            let is_other = OTHERS.iter().any(|name| option.ends_with(name));
            let is_of_machine = ["eval.", "ckpt."].iter().any(|start| option.starts_with(start));
            if value.is_empty() || value == "None" || !is_text || is_other || is_of_machine {
                continue;
            }
            let more = match (stack, value) {
                ("verl", _) => format!("{option}={value}"),
                ("openrlhf", "False") => continue,
                ("openrlhf", "True") => format!("--{option}"),
                _ => format!("--{option} {value}"),
            };
            match run(&more) {
                Ok(with) if with == without => {}
                Ok(with) => {
                    let at = with.bytes().zip(without.bytes()).position(|(a, b)| a != b).unwrap_or(0);
                    let part =
                        |text: &str| text[at.saturating_sub(60)..(at + 30).min(text.len())].to_string();
                    wrong.push(format!(
                        "{stack} {words}: {more}: {} and not {}",
                        part(&with),
                        part(&without)
                    ));
                }
                Err(error) => wrong.push(format!("{stack} {words}: {more}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
