//! Distillation by divergences through the logits, from outside: they are of most of the mass, with the same bits on
//! any number of ranks and after a resume, and every list is in the plan.

use crate::common::{in_turn, turn};
use crate::ranks::left;
use crate::run::{number, region};
use crate::taught::taught;

const FORWARD: [&str; 2] = ["distill.divergence=forward", "distill.top_k=8"];

#[test]
fn each_divergence_is_of_most_of_the_mass_and_of_nothing_where_both_are_one() {
    let folder = taught();
    let sets = ["train.steps=2", "checkpoint.every=100"];
    for divergence in ["reverse", "forward", "jsd"] {
        let how = format!("distill.divergence={divergence}");
        folder.train(divergence, &[&sets[..], &[&how, "distill.top_k=8"]].concat());
        let metrics = folder.metrics(divergence);
        for step in &metrics {
            assert!(number(step, "distill/divergence") > 0.0 && number(step, "grad_norm") > 0.0, "{step}");
            let mass = number(step, "distill/top_k_mass");
            assert!(mass > 0.5 && mass <= 1.0 + 1e-5, "{step}");
            assert_eq!(number(step, "rollout/logprob_mismatch_max"), 0.0, "{step}");
        }
    }
    // A student that is its teacher: no divergence, no gradient, and said to be so.
    let of_itself = [&*format!("model={}", folder.text_path("teacher/checkpoints/latest")), "train.steps=3"];
    let said = folder.train("same", &[&of_itself[..], &FORWARD].concat());
    assert!(said.contains("warning[no-gradient]") && said.contains("its teacher's probabilities"), "{said}");
    assert_eq!(number(&folder.metrics("same")[0], "distill/divergence"), 0.0, "one engine: the same bits");
}

#[test]
fn a_divergences_loss_is_the_mean_over_the_updates_of_a_step() {
    let folder = taught();
    let loss = |dir: &str, sets: &[&str]| {
        let sets = [&FORWARD[..], &["train.learning_rate=0.0", "train.steps=1"], sets].concat();
        folder.train(dir, &sets);
        number(&folder.metrics(dir)[0], "loss/divergence")
    };
    let one = loss("one", &[]);
    assert!(one > 0.0, "{one}");
    assert_eq!(loss("two", &["train.epochs_per_rollout=2"]), one);
}

#[test]
fn a_divergence_has_the_same_bits_on_any_number_of_ranks_and_after_a_resume() {
    let folder = taught();
    let sets = [&FORWARD[..], &["train.cut_multiple=4", "train.steps=3", "train.mini_batch=4"]].concat();
    let mut one = None;
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
}

#[test]
fn teachers_of_every_kind_list_tokens() {
    let folder = taught();
    let jsd = ["distill.divergence=jsd", "distill.jsd_beta=0.3", "distill.top_k=4", "train.steps=2"];
    let by = |dir: &str, sets: &[&str]| {
        folder.train(dir, &[&jsd[..], sets].concat());
        let metrics = folder.metrics(dir);
        assert!(metrics.iter().all(|step| number(step, "distill/divergence") > 0.0), "{dir}: {metrics:?}");
    };
    by("plain", &[]);
    let plain = folder.weights("plain");
    for (dir, sets) in [
        ("rewarded", &["reward.0.kind=hash", "distill.reward_coef=0.5"][..]),
        ("coef", &["distill.coef=0.5", "train.grad_clip=0"]),
        ("entropy", &["loss.entropy_coef=0.1"]),
        ("beta", &["distill.jsd_beta=0.7"]),
        ("more", &["distill.top_k=8"]),
        ("all", &["distill.top_k=15"]),
    ] {
        by(dir, sets);
        assert!(folder.weights(dir) != plain, "{sets:?} changes nothing");
    }
    by("codes", &["distill.quantize=nf4"]);
    by("lora", &["lora.rank=4"]);
    by("lag", &["async.reuse=1", "train.mini_batch=4", "train.epochs_per_rollout=2"]);
    by("kl", &["loss.kl_coef=0.1"]);
    for teacher in ["distill.teacher=self", "distill.teacher=initial"] {
        let hinted = "distill.prompt=\"{ground_truth} {prompt}\"";
        by(teacher, &[teacher, hinted]);
        by(&format!("{teacher}-lora"), &[teacher, hinted, "lora.rank=4", "loss.kl_coef=0.1"]);
    }
}

#[test]
fn lists_are_in_the_plan_and_as_long_as_the_vocabulary_at_most() {
    let folder = taught();
    let bytes = |sets: &[&str], name: &str| region(&folder.plan(sets), name).map(|row| row["bytes"].as_u64());
    let less = [FORWARD[0], "distill.top_k=4"];
    for name in ["teacher.head.ids", "teacher.head.listed", "update.head.ids", "update.head.slopes"] {
        assert!(bytes(&[], name).is_none(), "{name} without a divergence");
        let (eight, four) = (bytes(&FORWARD, name).flatten(), bytes(&less, name).flatten());
        assert_eq!(eight, four.map(|bytes| 2 * bytes), "{name}");
        assert!(eight.is_some(), "{name}");
    }
    assert!(bytes(&FORWARD, "rl.step") > bytes(&[], "rl.step"));
    let long = [FORWARD[0], "distill.top_k=1000"];
    folder.plan_refused(&long, 2, &["error[bad-value]", "distill.top_k = 1000, and the vocabulary has"]);
    folder.train_refused("out", &long, 2, &["error[bad-value]", "distill.top_k = 1000"]);
}
