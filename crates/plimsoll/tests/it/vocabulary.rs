//! Divergences over the whole vocabulary, from outside: what a list of all tokens is, with the same bits on any
//! number of ranks, wherever the teacher's weights are, and after a resume; and a teacher's rows are in the plan.

use crate::common::{in_turn, turn};
use crate::distill::smaller;
use crate::ranks::left;
use crate::run::{Run, number, region};
use crate::taught::taught;
use serde_json::Value;

const FORWARD: &str = "distill.divergence=forward";
const JSD: [&str; 2] = ["distill.divergence=jsd", "distill.jsd_beta=0.3"];
const HINTED: &str = "distill.prompt=\"{ground_truth} {prompt}\"";

fn divergences(folder: &Run, dir: &str) -> Vec<f64> {
    folder.metrics(dir).iter().map(|step| number(step, "distill/divergence")).collect()
}

#[test]
fn the_whole_vocabulary_is_a_list_of_all_tokens() {
    let folder = taught();
    let sets =
        ["train.steps=2", "rollout.prompts_per_step=16", "rollout.group_size=2", "checkpoint.every=100"];
    for divergence in ["reverse", "forward", "jsd"] {
        let how = format!("distill.divergence={divergence}");
        let listed = format!("{divergence}-listed");
        folder.train(divergence, &[&sets[..], &[&how]].concat());
        folder.train(&listed, &[&sets[..], &[&how, "distill.top_k=15", "train.steps=1"]].concat());
        let (whole, listed) = (divergences(&folder, divergence), divergences(&folder, &listed));
        assert!(whole[0] > 0.0 && whole[1] != whole[0], "{divergence}: {whole:?}");
        // The nano model has 15 tokens, so before the first update the sums have the same terms, rounded to f32.
        assert!((whole[0] - listed[0]).abs() < 1e-6 * (1.0 + whole[0]), "{} {}", whole[0], listed[0]);
        let grad = |dir: &str| number(&folder.metrics(dir)[0], "grad_norm");
        let (of_whole, of_list) = (grad(divergence), grad(&format!("{divergence}-listed")));
        // bf16 gradients of a tile: the last bits of a term may round another way.
        assert!((of_whole - of_list).abs() < 1e-4 * of_list, "{divergence}: {of_whole} {of_list}");
        for step in folder.metrics(divergence) {
            assert_eq!(number(&step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
            assert_eq!(step["distill/top_k_mass"], Value::Null, "{step}");
        }
    }
    // A student that is its teacher: no divergence, no gradient, and said to be so.
    let of_itself = [&*format!("model={}", folder.text_path("teacher/checkpoints/latest")), "train.steps=3"];
    let said = folder.train("same", &[&of_itself[..], &[FORWARD]].concat());
    assert!(said.contains("warning[no-gradient]") && said.contains("its teacher's probabilities"), "{said}");
    assert_eq!(divergences(&folder, "same")[0], 0.0, "one engine: the same bits");
}

#[test]
fn a_whole_vocabulary_has_the_same_bits_on_any_number_of_ranks_and_after_a_resume() {
    let folder = taught();
    let sets = [&JSD[..], &["train.cut_multiple=4", "train.steps=3", "train.mini_batch=4"]].concat();
    let mut one = None;
    // At stage 3 ranks have parts of the teacher's head too.
    for (ranks, stage) in in_turn(turn(), &[(1, 2), (2, 2), (3, 3)]) {
        let (dir, flag) = (format!("out-{ranks}"), format!("--ranks={ranks}"));
        let stage = format!("run.zero_stage={stage}");
        folder.train(&dir, &[&sets[..], &[&flag, &stage]].concat());
        let left = left(&folder, &dir);
        assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "on {ranks} ranks at {stage}");
    }
    folder.train("part", &[&sets[..], &["train.steps=2"]].concat());
    folder.train("part", &[&sets[..], &["--resume", "--ranks=2"]].concat());
    assert_eq!(folder.result("part"), folder.result("out-1"));
    // A reference in host memory lends its head to the update.
    let own = ["distill.teacher=initial", HINTED];
    folder.train("resident", &[&JSD[..], &own].concat());
    folder.train("offloaded", &[&JSD[..], &own, &["memory.offload=[\"reference\"]"]].concat());
    assert_eq!(folder.weights("resident"), folder.weights("offloaded"));
}

#[test]
fn teachers_of_every_kind_teach_their_whole_vocabulary() {
    let folder = taught();
    let by = |dir: &str, sets: &[&str]| {
        let summary = folder.summary(dir, &[&JSD[..], &["train.steps=2"], sets].concat());
        let divergences = divergences(&folder, dir);
        assert!(divergences.iter().all(|divergence| *divergence > 0.0), "{dir}: {divergences:?}");
        let bytes = |name: &str| summary[name].as_u64().expect("bytes");
        assert!(bytes("rss_peak_bytes") <= bytes("rss_planned_bytes"), "{dir}: {summary}");
    };
    by("plain", &[]);
    let plain = folder.weights("plain");
    for (dir, sets) in [
        ("rewarded", &["reward.0.kind=hash", "distill.reward_coef=0.5"][..]),
        ("coef", &["distill.coef=0.5", "train.grad_clip=0"]),
        ("entropy", &["loss.entropy_coef=0.1"]),
        ("beta", &["distill.jsd_beta=0.7"]),
        ("temperature", &["rollout.temperature=0.5"]),
        ("listed", &["distill.top_k=8"]),
    ] {
        by(dir, sets);
        assert!(folder.weights(dir) != plain, "{sets:?} changes nothing");
    }
    by("codes", &["distill.quantize=nf4"]);
    by("lora", &["lora.rank=4"]);
    by("lag", &["async.reuse=1", "train.mini_batch=4", "train.epochs_per_rollout=2"]);
    by("kl", &["loss.kl_coef=0.1"]);
    for teacher in ["distill.teacher=self", "distill.teacher=initial"] {
        by(teacher, &[teacher, HINTED]);
        // A frozen head may be read after any number of updates.
        let many = ["lora.rank=4", "loss.kl_coef=0.1", "train.mini_batch=4", "train.epochs_per_rollout=2"];
        by(&format!("{teacher}-lora"), &[&[teacher, HINTED], &many[..]].concat());
    }
    by("many", &["distill.teacher=initial", HINTED, "train.mini_batch=4"]);
    let own = [FORWARD, "distill.teacher=self", HINTED];
    for key in ["train.mini_batch=4", "train.epochs_per_rollout=2"] {
        let expect = ["error[contradictory-keys]", "changes the teacher's head", "distill.top_k = 64"];
        folder.train_refused("moved", &[&own[..], &[key]].concat(), 2, &expect);
    }
    // A teacher of another width.
    let small = smaller(&folder, &folder.text_path("teacher/checkpoints/latest"));
    by("narrow", &[&format!("distill.teacher={small}")]);
}

#[test]
fn rows_of_a_teacher_are_in_the_plan() {
    let folder = taught();
    let bytes = |sets: &[&str], name: &str| {
        let plan = folder.plan(sets);
        region(&plan, name)?["bytes"].as_u64()
    };
    let small = smaller(&folder, &folder.text_path("teacher/checkpoints/latest"));
    let small = format!("distill.teacher={small}");
    for name in ["update.head.teacher", "update.head.teacher_tile", "update.head.pull", "teacher.piece"] {
        assert!(bytes(&[], name).is_none(), "{name} without a divergence");
        assert!(bytes(&[FORWARD, "distill.top_k=8"], name).is_none(), "{name} of lists");
        assert!(bytes(&[FORWARD], name).is_some(), "{name}");
    }
    let rows = |sets: &[&str]| bytes(sets, "update.head.teacher").expect("rows");
    assert_eq!(rows(&[FORWARD]), 2 * rows(&[FORWARD, &small]), "half the width");
    // 8 samples of 5 tokens: a row of 128 elements of bf16, a divergence and a derivative each.
    let step = |sets: &[&str]| bytes(sets, "rl.step").expect("arrays");
    assert_eq!(step(&[FORWARD]) - step(&[]), 8 * 5 * (2 * 128 + 8));
    let exchange = |sets: &[&str]| bytes(&[sets, &["--ranks=2"]].concat(), "ranks.exchange").expect("bytes");
    assert!(exchange(&[FORWARD]) >= exchange(&[]) + 2 * 8 * 5 * 2 * 128);
}
