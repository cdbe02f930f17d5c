//! Limits as people write them, lengths that a model has no positions for, and sizes that no machine has.

use crate::rig::{ROOMY, case, limits, method_case, peak, played_case, row};
use plimsoll_base::Bytes;
use plimsoll_memory::{Limit, Limits, Pool};
use plimsoll_plan::{check_lengths, check_positions, limits_of, machine_limits, parse_limits};

#[test]
fn limits_are_read_as_they_are_written() {
    let read = limits("host=60GiB, device=139GiB,disk=1.5TiB,shm=512MiB");
    let bytes = |limit: &Option<Limit>| limit.as_ref().map(|limit| limit.bytes);
    assert_eq!(bytes(&read.host), Some(Bytes::mib(60 << 10)));
    assert_eq!(bytes(&read.device), Some(Bytes::mib(139 << 10)));
    assert_eq!(bytes(&read.disk), Some(Bytes::mib(3 << 19)));
    assert_eq!(bytes(&read.shm), Some(Bytes::mib(512)));
    for (text, words) in [
        ("host", "`host` is not a limit"),
        ("card=80GiB", "`card=80GiB` is not a limit"),
        ("host=8GiB,host=9GiB", "limits a pool for the second time"),
        ("", "`` is not a limit"),
        ("host=8GiB,", "`` is not a limit"),
    ] {
        let error = parse_limits(text).expect_err(text);
        assert!(error.slug == "bad-limit" && error.message.contains(words), "{text}: {error}");
    }
    for text in ["host=fast", "host=-1", "host=", "host=8XiB"] {
        assert!(parse_limits(text).is_err(), "{text}");
    }
}

#[test]
fn the_run_file_may_ask_for_less_than_the_machine_has_and_not_for_more() {
    let given = limits("host=8GiB,device=24GiB,disk=1TiB");
    let of = |sets: &[&str]| {
        let found = limits_of(&case(&[&["run.device=cuda"], sets].concat()).run, &given);
        let words = |limit: Option<Limit>| limit.map(|limit| (limit.bytes, limit.source)).expect("a limit");
        (words(found.host), words(found.device))
    };
    let (host, device) = of(&["memory.host=2GiB", "memory.device=20GiB"]);
    assert_eq!(host, (Bytes::mib(2 << 10), "memory.host of the run file".into()));
    assert_eq!(device, (Bytes::mib(20 << 10), "memory.device of the run file".into()));
    let (host, device) = of(&["memory.host=64GiB", "memory.device=80GiB"]);
    assert_eq!(host, (Bytes::mib(8 << 10), "--limit".into()));
    assert_eq!(device, (Bytes::mib(24 << 10), "--limit".into()));
    // Of another machine only what is given is known.
    let unknown = limits_of(&case(&["run.device=cpu"]).run, &limits("disk=1TiB"));
    assert!(unknown.host.is_none() && unknown.shm.is_none());
}

#[test]
fn ranks_share_the_host_evenly() {
    let case = case(&["run.device=cpu", "train.micro_batch_tokens=512"]);
    let one = case.clone().ranks(4).plan(ROOMY);
    let each = peak(&one, Pool::Host);
    let four = |bytes: u64| case.clone().ranks(4).plan(&format!("host={bytes},disk=1TiB"));
    let enough = four(4 * each);
    assert!(enough.fits, "{:?}", enough.hints);
    let source = enough.plan.limits.host.expect("a limit").source;
    assert_eq!(source, "1 of 4 parts of: --limit");
    // As many as one process needs are not enough for four.
    assert!(!four(case.clone().ranks(4).least().0 - 4096).fits);
}

#[test]
fn checkpoints_of_the_run_itself_count_as_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("checkpoints/step-2/state");
    std::fs::create_dir_all(&state).expect("folders");
    std::fs::write(state.join("adam.safetensors"), vec![0; 3 << 20]).expect("a file");
    std::fs::write(folder.path().join("notes.txt"), vec![0; 5 << 20]).expect("a file");
    let source = machine_limits(folder.path()).disk.expect("a disk").source;
    assert!(source.ends_with(", and 3.0 MiB of the run's own"), "{source}");
    let empty = tempfile::tempdir().expect("a folder");
    let source = machine_limits(empty.path()).disk.expect("a disk").source;
    assert!(!source.contains("of the run's own"), "{source}");
}

#[test]
fn sequences_beyond_the_model_s_positions_are_refused_with_their_parts() {
    let check = |prompt: usize, new: &str, more: &[&str]| {
        let mut case = case(&[&["rollout.max_new_tokens=5", new][..], more].concat());
        case.facts.prompt_tokens = prompt;
        check_positions(&case.run, &case.facts)
    };
    assert!(check(32, "rollout.max_new_tokens=32", &[]).is_ok(), "64 positions");
    let error = check(33, "rollout.max_new_tokens=32", &[]).expect_err("one more");
    assert_eq!(error.slug, "positions-beyond-model");
    assert_eq!(error.message, "sequences of up to 65 tokens, and the model has 64 positions");
    assert!(error.facts.iter().any(|fact| fact == "longest prompt 33, longest response 32"), "{error:?}");
    assert!(check(33, "rollout.max_new_tokens=32", &["model_options.positions=extend"]).is_ok());
    let lower = |error: &plimsoll_base::Error, key: &str| error.hints.iter().any(|hint| hint.contains(key));
    assert!(lower(&error, "lower rollout.max_new_tokens"), "{error:?}");
    let played = played_case("text:second-try", &[]);
    let error = check_positions(&played.run, &played.facts).expect_err("8 * 8 + 7 * 128 tokens");
    assert!(error.facts.iter().any(|fact| fact.contains("longest episode after it 960")), "{error:?}");
    assert!(lower(&error, "environment.turn_tokens_max") && !lower(&error, "max_new_tokens"), "{error:?}");
    // Of pairs and examples the longer part counts: the longest prompt need not have the longest completion.
    let mut examples = method_case("sft", "nano", &[]);
    (examples.facts.prompt_tokens, examples.facts.completion_tokens) = (40, 60);
    assert!(check_positions(&examples.run, &examples.facts).is_ok());
    examples.facts.completion_tokens = 65;
    assert!(check_positions(&examples.run, &examples.facts).is_err());
}

#[test]
fn a_micro_batch_holds_the_longest_sequence() {
    let check = |tokens: u32| {
        let case = case(&["rollout.max_new_tokens=20", &format!("train.micro_batch_tokens={tokens}")]);
        check_lengths(&case.run, &case.facts)
    };
    assert!(check(28).is_ok());
    let error = check(27).expect_err("a token too many");
    assert_eq!(error.slug, "sequence-too-long");
    assert!(error.message.contains("a prompt of 8 tokens and rollout.max_new_tokens = 20"), "{error}");
    let hint = error.hints.iter().find(|hint| hint.contains("at least 28"));
    assert!(hint.is_some(), "{error:?}");
}

#[test]
fn sizes_that_no_machine_has_are_refused_with_a_name() {
    for sets in [
        &["data.prompt_tokens_max=4294967295"][..],
        &[
            "rollout.prompts_per_step=1048576",
            "rollout.group_size=1",
            "rollout.max_new_tokens=4194304",
            "method=reinforce",
        ],
        &["rollout.sequences_max=4294967295", "rollout.max_new_tokens=4194304"],
    ] {
        let case = case(&[sets, &["model_options.positions=extend", "run.device=cpu"]].concat());
        let error = case.try_plan(ROOMY).expect_err("no machine");
        assert_eq!(error.slug, "size-overflow", "{sets:?}: {error}");
    }
    // Large, and still a number: a plan that does not fit.
    let large = case(&["rollout.kv_blocks=4294967295", "run.device=cpu"]).plan("host=64GiB,disk=1TiB");
    assert!(!large.fits && peak(&large, Pool::Host) > 1 << 46);
}

#[test]
fn no_limit_refuses_nothing() {
    let case = case(&["run.device=cpu"]);
    let report = plimsoll_plan::plan_with(&case.run, &case.facts, &limits("shm=1KiB")).expect("a plan");
    assert!(report.fits && report.plan.limits.host == Limits::default().host, "{:?}", report.plan.limits);
}

#[test]
fn an_episode_has_room_for_the_longest_reply_to_each_of_its_turns() {
    let bytes = |env: &str, turn_tokens: &str| {
        let case = played_case(env, &[turn_tokens, "model_options.positions=extend"]);
        row(&case.plan(ROOMY), "environment.episodes")
    };
    // 32 bytes a token, and messages of 128 bytes: one for 4 tokens, 8 at least. Seven turns are kept twice, one waits.
    for (turn_tokens, reply) in [(8, 32 * 8 + 128 * 8), (128, 32 * 128 + 128 * 32)] {
        let key = format!("environment.turn_tokens_max={turn_tokens}");
        let more = bytes("python:a.py:A", &key) - bytes("text:second-try", &key);
        assert_eq!(more, 16 * 15 * reply + (4 << 20), "{turn_tokens}: and a thread");
    }
}
