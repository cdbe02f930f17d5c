//! `[distill]`: what it takes, what it refuses, and what follows for rewards.

use super::*;
use plimsoll_algo::advantage::Advantage;
use plimsoll_algo::divergence::Divergence;

const DISTILL: &str = r#"method = "distill"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
max_new_tokens = 5
[distill]
teacher = "runs/out/first/checkpoints/latest"
[train]
steps = 60
learning_rate = 1e-4
"#;

fn spec(sets: &[&str]) -> RunSpec {
    RunSpec::new(&load_text(DISTILL, sets, &[]).unwrap_or_else(|error| panic!("{sets:?}: {error}")).run)
}

#[test]
fn a_teacher_needs_no_rewards_and_no_group() {
    let run = spec(&["rollout.group_size=1"]);
    let distill = run.distill().expect("a teacher");
    assert_eq!((distill.coef, distill.reward_coef), (1.0, 0.0));
    assert!(!run.has_rewards() && !run.has_reference());
    let advantage = |sets: &[&str]| load_text(DISTILL, sets, &[]).unwrap().run.loss.baseline();
    assert_eq!(advantage(&[]), Advantage::None);
    assert_eq!(advantage(&["reward.0.kind=exact"]), Advantage::None, "rewards are only reported");
    let counts = ["reward.0.kind=exact", "distill.reward_coef=0.5"];
    assert_eq!(advantage(&counts), Advantage::GroupNorm);
    assert_eq!(spec(&counts).distill().map(|distill| distill.reward_coef), Some(0.5));
    assert!(spec(&["loss.kl_coef=0.01"]).has_reference(), "a reference is next to the teacher");
    // What the planner writes is read again.
    let run = load_text(DISTILL, &["distill.coef=2"], &[]).unwrap().run;
    assert_eq!(load_text(&run.to_toml(), &[], &[]).unwrap().run, run);
    // Of another method there is none.
    assert_eq!(RunSpec::new(&load_text(GOOD, &[], &[]).unwrap().run).distill(), None);
}

#[test]
fn a_teacher_of_other_tokens_is_a_model_that_is_opened_here() {
    assert!(!spec(&[]).distill().expect("a teacher").aligns_text());
    let text = "distill.align=text";
    assert!(spec(&[text]).distill().expect("a teacher").aligns_text());
    for (sets, slug, contains) in [
        (
            &[text, "distill.divergence=forward", "distill.top_k=8"][..],
            "contradictory-keys",
            "with distill.divergence = \"forward\", which compares tokens",
        ),
        (
            &[text, "distill.teacher=self", "distill.prompt={prompt}!"],
            "contradictory-keys",
            "which has the student's tokens",
        ),
        (
            &[text, "distill.teacher=endpoint", "distill.endpoint.url=http://127.0.0.1:1/v1"],
            "contradictory-keys",
            "whose tokenizer is the server's",
        ),
        (&["distill.align=words"], "bad-value", "words"),
        (&["method=grpo", "reward.0.kind=exact", text], "contradictory-keys", "has no teacher"),
    ] {
        let error = load_text(DISTILL, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
}

#[test]
fn an_environment_has_no_spans() {
    let data = "[data]\nprompts = \"builtin:addition\"\n";
    let episodes = DISTILL.replace(data, "[environment]\nenv = \"text:guess-number\"\n");
    assert!(load_text(&episodes, &[], &[]).is_ok());
    let error = load_text(&episodes, &["distill.align=text"], &[]).expect_err("words in between");
    assert!(error.slug == "contradictory-keys" && error.message.contains("with [environment]"), "{error}");
}

#[test]
fn a_divergence_lists_tokens_and_only_jsd_has_a_mixture() {
    let of = |sets: &[&str]| {
        let of = spec(sets);
        let distill = of.distill().expect("a teacher");
        (distill.divergence(), distill.listed())
    };
    assert_eq!(of(&[]), (None, 0));
    let [reverse, forward, jsd, k] = [
        "distill.divergence=reverse",
        "distill.divergence=forward",
        "distill.divergence=jsd",
        "distill.top_k=8",
    ];
    assert_eq!(of(&[reverse, k]), (Some(Divergence::Reverse), 8));
    // Without a list the whole vocabulary is compared.
    assert_eq!(of(&[reverse]), (Some(Divergence::Reverse), 0));
    let is_whole = |sets: &[&str]| spec(sets).distill().expect("a teacher").is_whole();
    assert_eq!([is_whole(&[]), is_whole(&[reverse]), is_whole(&[reverse, k])], [false, true, false]);
    assert_eq!(of(&[forward, k]), (Some(Divergence::Forward), 8));
    assert_eq!(of(&[jsd, k]), (Some(Divergence::Jsd { beta: 0.5 }), 8));
    assert_eq!(of(&[jsd, k, "distill.jsd_beta=0.9"]), (Some(Divergence::Jsd { beta: 0.9 }), 8));
    for (sets, slug, contains) in [
        (&[reverse, "distill.top_k=0"][..], "bad-value", "`distill.top_k` is 0"),
        (&[reverse, "distill.top_k=1025"], "bad-value", "`distill.top_k` is 1025"),
        (&[k], "contradictory-keys", "distill.top_k = 8 with distill.divergence = \"sampled\""),
        (&["distill.divergence=sampled", k], "contradictory-keys", "distill.top_k = 8 with"),
        (&["distill.jsd_beta=0.5"], "contradictory-keys", "distill.jsd_beta = 0.5 with"),
        (&[forward, k, "distill.jsd_beta=0.5"], "contradictory-keys", "which has no mixture"),
        (&[jsd, k, "distill.jsd_beta=0"], "bad-value", "between 0 and 1"),
        (&[jsd, k, "distill.jsd_beta=1"], "bad-value", "between 0 and 1"),
        (&[jsd, k, "distill.jsd_beta=nan"], "bad-value", "between 0 and 1"),
        (&["distill.divergence=revers", k], "bad-value", "reverse"),
        (&["method=grpo", "reward.0.kind=exact", reverse, k], "contradictory-keys", "has no teacher"),
        (&["method=sft", reverse, k], "contradictory-keys", "has no teacher"),
    ] {
        let error = load_text(DISTILL, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
}

#[test]
fn a_teacher_whose_head_moves_within_a_step_keeps_no_rows() {
    let own = ["distill.teacher=self", "distill.prompt={ground_truth} {prompt}", "distill.divergence=jsd"];
    let with = |sets: &[&str]| load_text(DISTILL, &[&own[..], sets].concat(), &[]);
    for sets in [
        &[][..],
        &["train.mini_batch=256"],
        &["distill.top_k=8", "train.mini_batch=16"],
        &["distill.divergence=sampled", "train.epochs_per_rollout=2"],
        &["distill.teacher=initial", "train.mini_batch=16"],
        &["lora.rank=4", "train.epochs_per_rollout=2"],
    ] {
        with(sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"));
    }
    for (sets, contains) in [
        (&["train.mini_batch=16"][..], "train.mini_batch = 16"),
        (&["train.epochs_per_rollout=2"], "train.epochs_per_rollout = 2"),
        (&["train.mini_batch=16", "train.epochs_per_rollout=3"], "train.epochs_per_rollout = 3"),
    ] {
        let error = with(sets).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), ("contradictory-keys", Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
    }
}

#[test]
fn keys_without_a_teacher_or_without_an_effect_are_refused() {
    let reward = "reward.0.kind=exact";
    let counts = "distill.reward_coef=1";
    for (sets, slug, contains) in [
        (&["distill.teacher="][..], "bad-value", "`distill.teacher` is empty"),
        (&["distill.coef=0"], "bad-value", "above 0"),
        (&["distill.coef=-1"], "bad-value", "distill.coef"),
        (&["distill.coef=1e39"], "bad-value", "distill.coef"),
        (&["distill.coef=nan"], "bad-value", "distill.coef"),
        (&["distill.reward_coef=-1"], "bad-value", "not negative"),
        (&["distill.reward_coef=inf"], "bad-value", "distill.reward_coef"),
        (&[counts], "contradictory-keys", "no [[reward]]"),
        (&[counts, reward, "rollout.group_size=1"], "group-too-small", "nothing to be compared with"),
        (&["loss.advantage=rloo"], "contradictory-keys", "distill.reward_coef = 0"),
        (&[reward, "loss.advantage=group_norm"], "contradictory-keys", "distill.reward_coef = 0"),
        (
            &[reward, "loss.dynamic_sampling=true"],
            "contradictory-keys",
            "loss.dynamic_sampling = true with distill.reward_coef = 0",
        ),
        (
            &[reward, "loss.overlong_buffer=2"],
            "contradictory-keys",
            "loss.overlong_buffer = 2 with distill.reward_coef = 0",
        ),
        (&["loss.gamma=0.5"], "contradictory-keys", "loss.gamma"),
        (&["loss.advantage=gae"], "contradictory-keys", "critic"),
        (&["critic.model=actor"], "contradictory-keys", "method = \"distill\", which has no critic"),
        (&["distill.techer=x"], "unknown-key", "teacher"),
        (&["rollout.temperature=0"], "contradictory-keys", "greedy"),
        (&["method=dpo"], "contradictory-keys", "method = \"dpo\", which has no teacher"),
        (&["method=sft"], "contradictory-keys", "method = \"sft\", which has no teacher"),
        (&["method=grpo", reward], "contradictory-keys", "method = \"grpo\", which has no teacher"),
    ] {
        let error = load_text(DISTILL, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
    for without in [
        "[distill]\nteacher = \"runs/out/first/checkpoints/latest\"",
        "teacher = \"runs/out/first/checkpoints/latest\"",
    ] {
        let error = load_text(&DISTILL.replace(without, ""), &[], &[]).expect_err(without);
        assert_eq!(error.slug, "missing-key", "{error}");
        assert!(error.to_string().contains("distill.teacher"), "{error}");
    }
    let policy = [
        "method=distill",
        "model=mlp:64x64",
        "environment.env=CartPole-v1",
        "environment.total_frames=4096",
        "distill.teacher=x",
    ];
    let agent = GOOD.replace("[[reward]]\nkind = \"exact\"\n", "");
    let error = load_text(&agent, &policy, &[]).expect_err("a policy has no teacher");
    assert!(
        error.message.contains("method = \"distill\" with model = \"mlp:64x64\", an environment policy"),
        "{error}"
    );
    let error = load_text(&agent, &[&policy[1..], &["method=ppo"]].concat(), &[]).expect_err("nor here");
    assert_eq!(error.slug, "contradictory-keys", "{error}");
}

#[test]
fn a_teacher_on_a_server_has_an_address_and_says_one_number_a_token() {
    let [teacher, url] = ["distill.teacher=endpoint", "distill.endpoint.url=http://127.0.0.1:8000/v1"];
    let run = spec(&[teacher, url, "distill.endpoint.model=big", "distill.endpoint.key_env=KEY"]);
    let expect = plimsoll_reward::TeacherSpec {
        url: "http://127.0.0.1:8000/v1".into(),
        model: Some("big".into()),
        key_env: Some("KEY".into()),
        timeout_ms: 60_000,
        retries: 1,
        workers: 8,
    };
    assert_eq!((run.teacher_server(), run.teacher(), run.own_teacher()), (Some(expect), None, None));
    assert_eq!(spec(&[]).teacher_server(), None);
    let file = load_text(DISTILL, &[teacher, url], &[]).unwrap().run;
    assert_eq!(load_text(&file.to_toml(), &[], &[]).unwrap().run, file);
    for (sets, slug, contains) in [
        (&[teacher][..], "missing-key", "distill.endpoint.url"),
        (&[teacher, "distill.endpoint.model=x"], "missing-key", "distill.endpoint.url"),
        (&[url], "contradictory-keys", "[distill.endpoint] with distill.teacher = \"runs"),
        (&[teacher, "distill.endpoint.url=127.0.0.1"], "bad-value", "none of http:// or https://"),
        (&[teacher, "distill.endpoint.url=http://me:secret@h/v1"], "bad-value", "a name or a password"),
        (&[teacher, url, "distill.endpoint.key_env=sk-123"], "bad-value", "distill.endpoint.key_env"),
        (&[teacher, url, "distill.endpoint.workers=0"], "bad-value", "from 1 to 256"),
        (&[teacher, url, "distill.endpoint.timeout_ms=0"], "bad-value", "milliseconds above 0"),
        (&[teacher, url, "distill.endpoint.modle=x"], "unknown-key", "distill.endpoint.model"),
        (&[teacher, url, "rollout.temperature=0.7"], "contradictory-keys", "at temperature 1"),
        (&[teacher, url, "distill.quantize=nf4"], "contradictory-keys", "the server's"),
        (
            &[teacher, url, "distill.divergence=forward", "distill.top_k=8"],
            "contradictory-keys",
            "distill.divergence = \"forward\" with distill.teacher = \"endpoint\"",
        ),
    ] {
        let error = load_text(DISTILL, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
}
