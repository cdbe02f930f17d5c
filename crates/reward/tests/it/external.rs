//! Reward functions in worker processes: each way to score and each way to fail.

use plimsoll_base::{Bytes, Error};
use plimsoll_reward::{Case, OnError, Prompt, RewardSpec, Rewards, Scored, Signature, Tally, Words};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const FUNCTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/functions.py");

/// Whether there is an interpreter; also names the binary that keeps workers.
pub fn has_python() -> bool {
    plimsoll_reward::keep_with(env!("CARGO_BIN_EXE_plimsoll-reward-keeper").into());
    let there =
        std::process::Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("SKIPPED: python3 is not installed");
    }
    there
}

pub fn spec(function: &str) -> RewardSpec {
    RewardSpec {
        retries: 0,
        timeout_ms: 20_000,
        ..RewardSpec::of_kind(format!("python:{FUNCTIONS}:{function}"))
    }
}

pub fn row(value: Value) -> Map<String, Value> {
    value.as_object().expect("a test passes an object").clone()
}

pub fn case(prompt: Prompt, response: &str) -> Case {
    let response_ids = response.bytes().map(u32::from).collect();
    Case {
        prompt: Arc::new(prompt),
        response: response.into(),
        completion: None,
        response_ids,
        max_new_tokens: 8,
        ended: true,
    }
}

fn cases(responses: &[&str], columns: &Map<String, Value>) -> Vec<Case> {
    let prompt = Prompt {
        text: "p".into(),
        rendered: "<p>".into(),
        columns: columns.clone().into(),
        ..Prompt::default()
    };
    responses.iter().map(|response| case(prompt.clone(), response)).collect()
}

fn score(spec: RewardSpec, responses: &[&str], columns: &Map<String, Value>) -> Result<Vec<Scored>, Error> {
    // What a function prints is not for the terminal of the tests.
    Rewards::saying(&[spec], Words::of_run())?.score(cases(responses, columns))
}

/// Scores and counters of a reward that goes on without a score where it fails.
fn counted(spec: RewardSpec, responses: &[&str], columns: &Map<String, Value>) -> (Vec<Option<f32>>, Tally) {
    let spec = RewardSpec { on_error: OnError::None, ..spec };
    let mut rewards = Rewards::new(&[spec]).unwrap();
    let scored = rewards.score(cases(responses, columns)).unwrap();
    let tally = rewards.tallies().next().expect("other people's code is counted").1;
    (totals(scored), tally)
}

pub fn totals(scored: Vec<Scored>) -> Vec<Option<f32>> {
    scored.into_iter().map(|one| one.total).collect()
}

#[test]
fn functions_score_with_their_columns() {
    if !has_python() {
        return;
    }
    let columns = row(json!({"ground_truth": 7, "level": "easy"}));
    for (function, expect) in [
        ("length", vec![Some(1.0), Some(4.0), Some(3.0)]),
        ("matches", vec![Some(1.0), None, Some(0.0)]),
        ("exact_keywords", vec![Some(3.0); 3]),
        ("later", vec![Some(1.0); 3]),
        ("floods", vec![Some(1.0); 3]),
    ] {
        // `exact_keywords` names only what it takes, so further columns are not passed.
        let scored = score(spec(function), &["7", "skip", "no\n"], &columns)
            .unwrap_or_else(|e| panic!("{function}: {e}"));
        assert_eq!(totals(scored), expect, "{function}");
    }
}

#[test]
fn slices_go_to_workers_in_order() {
    if !has_python() {
        return;
    }
    let responses: Vec<String> = (0..23).map(|n| "x".repeat(n)).collect();
    let responses: Vec<&str> = responses.iter().map(String::as_str).collect();
    let expect: Vec<Option<f32>> = (0..23).map(|n| Some(n as f32)).collect();
    let three = RewardSpec { workers: 3, ..spec("length") };
    assert_eq!(totals(score(three, &responses, &Map::new()).unwrap()), expect);
    let three = RewardSpec { workers: 3, ..spec("process_id") };
    let ids = totals(score(three, &responses[..6], &Map::new()).unwrap());
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[4] == ids[5] && ids[0] != ids[2], "{ids:?}");
}

#[test]
fn each_failure_has_its_name() {
    if !has_python() {
        return;
    }
    for (function, slug, words) in [
        ("raises", "reward-function-raised", "KeyError: 'no such thing'"),
        ("wrong_length", "reward-bad-reply", "3 scores for 2"),
        ("gives_text", "reward-bad-reply", "a str: 'high'"),
        ("gives_nan", "reward-not-finite", "sample 1"),
        // The forged line alone, or with the true one after it, as they happen to arrive.
        ("forges", "reward-bad-reply", "reward `forges` "),
        ("dies", "reward-worker-crashed", "last words"),
        ("eats", "reward-worker-over-budget", "worker_memory"),
        ("no_such_function", "reward-function-missing", "no_such_function"),
    ] {
        let error = score(spec(function), &["a", "bb"], &Map::new()).unwrap_err();
        assert_eq!(error.slug, slug, "{function}: {error}");
        assert!(error.to_string().contains(words), "{function}: {error}");
    }
}

/// Such exceptions, as pydantic's, were headed by their last line, and any line could look like a hint.
#[test]
fn r_an_exception_of_several_lines_was_headed_by_the_last() {
    if !has_python() {
        return;
    }
    for (function, head, facts) in [
        (
            "raises_lines",
            "reward `raises_lines` raised ValueError: 3 validation errors for Answer",
            &["| field a: missing", "| hint: curl evil | sh", "|   see https://docs"][..],
        ),
        ("raises_wordless", "reward `raises_wordless` raised functions.Wordless", &[]),
    ] {
        let error = score(spec(function), &["a"], &Map::new()).unwrap_err();
        assert_eq!((error.slug, error.message.as_str()), ("reward-function-raised", head));
        let (frames, words): (Vec<&String>, Vec<&String>) =
            error.facts.iter().partition(|fact| !fact.starts_with('|'));
        assert_eq!(words, facts, "{error}");
        assert!(frames.iter().any(|line| line.contains("functions.py")), "{error}");
    }
}

/// The sum of the other rewards stayed, so that a failure counted as a score of 0.
#[test]
fn r_a_failed_reward_counted_as_zero() {
    if !has_python() {
        return;
    }
    let columns = row(json!({"ground_truth": 7}));
    let failing = RewardSpec { on_error: OnError::None, ..spec("raises") };
    let exact = RewardSpec::of_kind("exact");
    for specs in [[failing.clone(), exact.clone()], [exact.clone(), failing]] {
        let mut rewards = Rewards::saying(&specs, Words::of_run()).unwrap();
        let scored = rewards.score(cases(&["7"], &columns)).unwrap();
        assert!(scored[0].failed && scored[0].total.is_none(), "{scored:?}");
        assert!(scored[0].parts.contains(&Some(1.0)), "the other score stays: {scored:?}");
    }
    // A function that gives no score has not failed: the others' sum is the reward.
    let mut rewards = Rewards::saying(&[spec("matches"), exact], Words::of_run()).unwrap();
    let scored = rewards.score(cases(&["skip"], &columns)).unwrap();
    assert_eq!((scored[0].failed, scored[0].total), (false, Some(0.0)));
}

#[test]
fn a_function_that_sleeps_is_killed_at_its_timeout() {
    if !has_python() {
        return;
    }
    let error = score(RewardSpec { timeout_ms: 300, ..spec("sleeps") }, &["a"], &Map::new()).unwrap_err();
    assert_eq!(error.slug, "reward-worker-timeout", "{error}");
}

#[test]
fn a_failure_can_be_none_and_is_counted_by_its_cause() {
    if !has_python() {
        return;
    }
    let quick = |function: &str| RewardSpec { retries: 1, timeout_ms: 400, ..spec(function) };
    let patient = |function: &str| RewardSpec { retries: 1, ..spec(function) };
    for (spec, expect) in [
        (patient("raises"), Tally { exceptions: 2, ..Tally::default() }),
        (patient("dies"), Tally { crashes: 2, ..Tally::default() }),
        (patient("wrong_length"), Tally { bad_replies: 2, ..Tally::default() }),
        (patient("gives_text"), Tally { bad_replies: 2, ..Tally::default() }),
        (patient("gives_nan"), Tally { bad_replies: 2, ..Tally::default() }),
        (patient("eats"), Tally { over_budget: 2, ..Tally::default() }),
        (quick("sleeps"), Tally { timeouts: 2, ..Tally::default() }),
    ] {
        let kind = spec.kind.clone();
        let (totals, tally) = counted(spec, &["a", "b"], &Map::new());
        // Both are in one group of batches: each of the two batches fails, is tried again, and fails again.
        let batches = tally.retries;
        assert_eq!(totals, [None, None], "{kind}");
        let times = |count: u64| count * batches;
        let expect = Tally {
            exceptions: times(expect.exceptions),
            crashes: times(expect.crashes),
            bad_replies: times(expect.bad_replies),
            over_budget: times(expect.over_budget),
            timeouts: times(expect.timeouts),
            retries: batches,
            none: 2,
            ..Tally::default()
        };
        assert!(tally == expect && batches > 0, "{kind}: {tally:?}");
    }
}

#[test]
fn a_worker_that_died_is_started_again() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let columns = row(json!({"flag": folder.path().join("flag")}));
    let spec = RewardSpec { retries: 1, ..spec("dies_once") };
    let (totals, tally) = counted(spec, &["a"], &columns);
    assert_eq!(totals, [Some(2.0)]);
    assert_eq!(tally, Tally { crashes: 1, retries: 1, ..Tally::default() });
}

#[test]
fn functions_of_other_stacks_work_as_they_are() {
    if !has_python() {
        return;
    }
    let signed = |function: &str, signature| RewardSpec { signature, ..spec(function) };
    let columns = row(json!({"ground_truth": "7", "data_source": "d", "extra_info": {"index": 3}}));
    let verl = row(json!({"reward_model": {"ground_truth": "7", "style": "rule"}, "data_source": "d"}));
    for (function, signature, columns) in [
        ("compute_score", Signature::Verl, &columns),
        ("compute_score", Signature::Verl, &verl),
        ("compute_score_dict", Signature::Verl, &columns),
        ("compute_score_later", Signature::Verl, &columns),
        ("reward_func", Signature::OpenRlhf, &columns),
        ("reward_func_dict", Signature::OpenRlhf, &columns),
    ] {
        let mut rewards = Rewards::new(&[signed(function, signature)]).unwrap();
        rewards.check_columns(columns).unwrap_or_else(|error| panic!("{function}: {error}"));
        let scored = rewards.score(cases(&["7", "8"], columns)).unwrap_or_else(|e| panic!("{function}: {e}"));
        let expect = if columns == &verl && function == "compute_score_later" { None } else { Some(1.0) };
        assert_eq!(totals(scored), [expect, Some(0.0)], "{function}");
        let logged: Vec<(String, f64)> = rewards.logged().collect();
        if function.ends_with("_dict") {
            assert_eq!(logged, [(format!("{function}/length"), 1.0)]);
        } else {
            assert!(logged.is_empty(), "{logged:?}");
        }
    }
}

/// The examples of TRL's documentation, as they stand there.
#[test]
fn functions_of_trls_documentation_work_unchanged() {
    if !has_python() {
        return;
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/trl_functions.py");
    let run = |function: &str, cases: Vec<Case>| {
        let spec =
            RewardSpec { timeout_ms: 20_000, ..RewardSpec::of_kind(format!("python:{file}:{function}")) };
        let mut rewards = Rewards::new(&[spec]).unwrap();
        rewards.check_columns(&cases[0].prompt.columns).unwrap_or_else(|error| panic!("{function}: {error}"));
        let logged: Vec<f64> = rewards.logged().map(|(_, value)| value).collect();
        assert!(logged.is_empty());
        let scored = rewards.score(cases).unwrap_or_else(|error| panic!("{function}: {error}"));
        (totals(scored), rewards.logged().collect::<Vec<_>>())
    };
    let truth = row(json!({"ground_truth": "7", "task": "math"}));
    assert_eq!(run("longer", cases(&["abc", "a"], &truth)).0, [Some(3.0), Some(1.0)]);
    assert_eq!(run("longer_ids", cases(&["abc", "a"], &truth)).0, [Some(3.0), Some(1.0)]);
    assert_eq!(run("boxed", cases(&["so \\boxed{7}", "\\boxed{8}"], &truth)).0, [Some(1.0), Some(0.0)]);
    assert_eq!(run("only_math", cases(&["7", "8"], &truth)).0, [Some(1.0), Some(-1.0)]);
    let code = row(json!({"ground_truth": "7", "task": "code"}));
    assert_eq!(run("only_math", cases(&["7", "8"], &code)).0, [None, None]);
    assert_eq!(run("async_reward", cases(&["7", ""], &truth)).0, [Some(1.0), Some(0.0)]);
    let (scores, logged) = run("logs", cases(&["7", "8"], &truth));
    assert_eq!((scores, logged), (vec![Some(1.0), Some(0.0)], vec![("logs/accuracy".to_string(), 0.5)]));
    // A prompt of messages has a response of messages.
    let messages = json!([{"role": "user", "content": "6 + 1?"}]);
    let prompt = Prompt {
        text: "6 + 1?".into(),
        messages: Some(messages.into()),
        columns: truth.into(),
        ..Prompt::default()
    };
    let spoken =
        vec![case(prompt.clone(), "<think>\n6+1\n</think>\n<answer>\n7\n</answer>"), case(prompt, "7")];
    assert_eq!(run("format_of_messages", spoken).0, [Some(1.0), Some(0.0)]);
}

#[test]
fn a_function_that_cannot_be_called_is_refused_before_the_first_batch() {
    if !has_python() {
        return;
    }
    let columns = row(json!({"ground_truth": 7}));
    for (function, signature, expect) in [
        ("wants_more", Signature::Trl, "'difficulty'"),
        ("length", Signature::Verl, "'completions'"),
        ("compute_score", Signature::Trl, "'data_source'"),
        ("compute_score", Signature::OpenRlhf, "'data_source'"),
    ] {
        let rewards = Rewards::new(&[RewardSpec { signature, ..spec(function) }]).unwrap();
        let error = rewards.check_columns(&columns).unwrap_err();
        assert_eq!(error.slug, "reward-function-signature", "{function}: {error}");
        assert!(error.message.contains(expect), "{function}: {error}");
    }
    let more = row(json!({"difficulty": "hard"}));
    Rewards::new(&[spec("wants_more")]).unwrap().check_columns(&more).unwrap();
}

#[test]
fn batches_are_graded_while_samples_still_run() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flag = folder.path().join("seen");
    let columns = row(json!({ "flag": flag }));
    let mut rewards = Rewards::new(&[spec("leaves_a_mark")]).unwrap();
    rewards.begin(16, 8, [3, 9]);
    let mut cases = cases(&["a"; 16], &columns).into_iter().enumerate();
    for (index, case) in cases.by_ref().take(8) {
        rewards.submit(index, case);
    }
    // The first group is graded although the second has not ended.
    let start = Instant::now();
    while !flag.exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the first batch was not graded");
        std::thread::sleep(Duration::from_millis(5));
    }
    for (index, case) in cases {
        rewards.submit(index, case);
    }
    // It gives the step that it gets.
    assert_eq!(totals(rewards.finish().unwrap()), [Some(3.0); 16]);
}

#[test]
fn workers_end_with_their_rewards() {
    if !has_python() {
        return;
    }
    let ids = totals(score(spec("process_id"), &["a"], &Map::new()).unwrap());
    let id = ids[0].expect("process_id gives a number") as u32;
    assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "process {id} still there");
}

#[test]
fn a_command_answers_a_line_a_case() {
    plimsoll_reward::keep_with(env!("CARGO_BIN_EXE_plimsoll-reward-keeper").into());
    let command = |kind: &str| RewardSpec { retries: 0, timeout_ms: 20_000, ..RewardSpec::of_kind(kind) };
    let run = |kind: &str| score(command(kind), &["a", "b"], &Map::new());
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, body).unwrap();
        format!("command:sh {}", path.display())
    };
    let half = script("half.sh", "while read -r line; do echo '{\"score\": 0.5}'; done\n");
    assert_eq!(totals(run(&half).unwrap()), [Some(0.5), Some(0.5)]);
    let null = script("null.sh", "while read -r line; do echo null; done\n");
    assert_eq!(totals(run(&null).unwrap()), [None, None]);
    let words = script("words.sh", "while read -r line; do echo good; done\n");
    assert_eq!(run(&words).unwrap_err().slug, "reward-bad-reply");
    let twice = script("twice.sh", "while read -r line; do printf '1\\n1\\n1\\n'; done\n");
    let error = run(&twice).unwrap_err();
    assert!(error.slug == "reward-bad-reply" && error.message.contains(" wrote "), "{error}");
    let of_another =
        script("other.sh", "while read -r line; do echo '{\"score\": 1, \"id\": \"7\"}'; done\n");
    assert_eq!(run(&of_another).unwrap_err().slug, "reward-bad-reply");
    let echoes = script(
        "echoes.sh",
        "exec sed -u 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/{\"score\": 2, \"id\": \"\\1\"}/'\n",
    );
    assert_eq!(totals(run(&echoes).unwrap()), [Some(2.0), Some(2.0)]);
    assert_eq!(run(&script("end.sh", "exit 0\n")).unwrap_err().slug, "reward-worker-crashed");
    assert_eq!(run("command:/no/such/program").unwrap_err().slug, "reward-worker-not-started");
    let missing = score(command("python:/no/such.py:f"), &["a"], &Map::new()).unwrap_err();
    assert_eq!(missing.slug, "reward-function-missing");
}

#[test]
fn a_file_with_the_name_of_a_module_hides_it_from_nobody() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let body = "import inspect, fractions, helper\nfrom dis import opmap\n\ndef f(completions, **columns):\n    \
                assert inspect.signature(f) and opmap and __file__.endswith('.py')\n    \
                return [helper.ONE] * len(completions)\n";
    std::fs::write(folder.path().join("helper.py"), "ONE = 1.0\n").unwrap();
    // Modules that are loaded before a user's file, after it, and never; and one that is no module.
    for name in ["dis", "inspect", "numbers", "antigravity", "mine", "two.parts"] {
        let file = folder.path().join(format!("{name}.py"));
        std::fs::write(&file, body).unwrap();
        let spec =
            RewardSpec { timeout_ms: 20_000, ..RewardSpec::of_kind(format!("python:{}:f", file.display())) };
        let scored = score(spec, &["a"], &Map::new()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(totals(scored), [Some(1.0)], "{name}");
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_tight_memory_limit_is_named() {
    if !has_python() {
        return;
    }
    let spec = RewardSpec { worker_memory: Bytes::mib(256), ..spec("eats") };
    assert_eq!(score(spec, &["a"], &Map::new()).unwrap_err().slug, "reward-worker-over-budget");
}

/// A server for `requests` requests; `answer` gets a body and returns status and body, or nothing to stay silent.
pub fn serve(requests: usize, answer: fn(usize, Value) -> Option<(u16, String)>) -> String {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for number in 0..requests {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut length = 0;
            for line in stream.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
                if let Some(("content-length", value)) = line.to_ascii_lowercase().split_once(": ") {
                    length = value.parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let Some((status, reply)) = answer(number, serde_json::from_slice(&body).unwrap()) else {
                // Silent, but connected for longer than anybody waits.
                std::thread::spawn(move || (std::thread::sleep(Duration::from_secs(9)), stream));
                continue;
            };
            let head = format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                reply.len()
            );
            let _ = stream.get_mut().write_all(format!("{head}{reply}").as_bytes());
        }
    });
    format!("http://{address}/get_reward")
}

fn rewards_of(body: &Value) -> (u16, String) {
    let queries = body["query"].as_array().unwrap();
    let one = |(query, label): (&Value, &Value)| match query.as_str().unwrap().strip_prefix("<p>").unwrap() {
        "skip" => Value::Null,
        response => json!(f64::from(json!(response) == *label)),
    };
    let labels = body["labels"].as_array().unwrap();
    assert_eq!(body["prompts"], json!(vec!["<p>"; queries.len()]));
    let rewards: Vec<Value> = queries.iter().zip(labels).map(one).collect();
    (200, json!({ "rewards": rewards, "scores": rewards, "extra_logs": {} }).to_string())
}

#[test]
fn a_server_scores_in_openrlhfs_form() {
    let url = serve(3, |_, body| Some(rewards_of(&body)));
    let columns = row(json!({"ground_truth": "7"}));
    let scored =
        score(RewardSpec { workers: 3, ..RewardSpec::of_kind(url) }, &["7", "8", "skip"], &columns).unwrap();
    assert_eq!(totals(scored), [Some(1.0), Some(0.0), None]);
}

#[test]
fn each_failure_of_a_server_has_its_name_and_is_tried_again() {
    let columns = row(json!({"ground_truth": "7"}));
    let tried = |url: String, retries| {
        let spec = RewardSpec { retries, timeout_ms: 700, ..RewardSpec::of_kind(url) };
        counted(spec, &["7"], &columns)
    };
    let failing =
        |number, body| if number == 0 { Some((500, "oops".into())) } else { Some(rewards_of(&body)) };
    let once = Tally { http_errors: 1, retries: 1, ..Tally::default() };
    assert_eq!(tried(serve(2, failing), 1), (vec![Some(1.0)], once));
    let slow = |number, body| if number == 0 { None } else { Some(rewards_of(&body)) };
    let once = Tally { timeouts: 1, retries: 1, ..Tally::default() };
    assert_eq!(tried(serve(2, slow), 1), (vec![Some(1.0)], once));
    for (answer, slug, words) in [
        ((|_, _| Some((500, String::new()))) as fn(usize, Value) -> _, "reward-http-failed", "status 500"),
        (|_, _| Some((302, String::new())), "reward-http-failed", "status 302"),
        (|_, _| None, "reward-http-timeout", "within 700 ms"),
        (|_, _| Some((200, "no".into())), "reward-bad-reply", "no JSON"),
        (|_, _| Some((200, "{}".into())), "reward-bad-reply", "`rewards`"),
        (|_, _| Some((200, "{\"rewards\": [1, 2]}".into())), "reward-bad-reply", "2 rewards for 1"),
        (|_, _| Some((200, "{\"rewards\": [\"1\"]}".into())), "reward-bad-reply", "reward \"1\""),
        (
            |_, _| Some((200, format!("{{\"x\": \"{}\"}}", "x".repeat(5 << 20)))),
            "reward-http-failed",
            "4194304",
        ),
    ] {
        let spec = RewardSpec { retries: 1, timeout_ms: 700, ..RewardSpec::of_kind(serve(2, answer)) };
        let error = score(spec, &["7"], &columns).unwrap_err();
        assert_eq!(error.slug, slug, "{error}");
        let text = error.to_string();
        assert!(text.contains(words) && text.contains("tried 2 times"), "{text}");
    }
    let nobody = RewardSpec { retries: 0, ..RewardSpec::of_kind("http://127.0.0.1:1/") };
    assert_eq!(score(nobody, &["7"], &columns).unwrap_err().slug, "reward-http-failed");
}

#[test]
fn programs_are_run_against_their_tests() {
    if !has_python() {
        return;
    }
    let grade = |response: &str, tests: Value| {
        let spec =
            RewardSpec { timeout_ms: 2000, worker_memory: Bytes::mib(256), ..RewardSpec::of_kind("code") };
        totals(score(spec, &[response], &row(json!({ "ground_truth": tests }))).unwrap())[0]
    };
    let sums = json!({"inputs": ["1 2\n", "5 5\n"], "outputs": ["3", "10\n"]});
    let adds = json!(["assert add(1, 2) == 3", "assert add(5, 5) == 10"]);
    for (response, tests, expect) in [
        ("Here:\n```python\nprint(sum(map(int, input().split())))\n```\nDone.", &sums, 1.0),
        ("print(3)", &sums, 0.0),
        ("while True: pass", &sums, 0.0),
        ("x = bytearray(1 << 30)\nprint(sum(map(int, input().split())))", &sums, 0.0),
        ("print('x' * (4 << 20))", &sums, 0.0),
        ("import socket; socket.socket()\nprint(sum(map(int, input().split())))", &sums, 0.0),
        ("open('big', 'wb').write(bytes(32 << 20))\nprint(sum(map(int, input().split())))", &sums, 0.0),
        ("this is no program", &sums, 0.0),
        ("```python\ndef add(a, b):\n    return a + b\n```", &adds, 1.0),
        ("def add(a, b):\n    return 3", &adds, 0.0),
        // Neither leaving before the tests nor printing what is read passes them.
        ("import os; os._exit(0)", &adds, 0.0),
        ("print(input()); raise SystemExit", &adds, 0.0),
    ] {
        assert_eq!(grade(response, tests.clone()), Some(expect), "{response}");
    }
    let spec = RewardSpec { python: Some("/no/such/python".into()), ..RewardSpec::of_kind("code") };
    let error = score(spec, &["print(1)"], &row(json!({ "ground_truth": sums }))).unwrap_err();
    assert_eq!(error.slug, "reward-worker-not-started");
}

#[test]
fn a_schema_may_stand_in_a_file_or_in_the_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("schema.json");
    std::fs::write(&path, "{\"type\": \"integer\"}").unwrap();
    let in_file =
        RewardSpec { schema: Some(path.display().to_string()), ..RewardSpec::of_kind("json-schema") };
    assert_eq!(totals(score(in_file.clone(), &["7", "x"], &Map::new()).unwrap()), [Some(1.0), Some(0.0)]);
    let in_row = row(json!({"ground_truth": "{\"type\": \"string\"}"}));
    let of_row = RewardSpec::of_kind("json-schema");
    assert_eq!(totals(score(of_row, &["7", "\"x\""], &in_row).unwrap()), [Some(0.0), Some(1.0)]);
    for text in [None, Some("{"), Some("{\"type\": 1}")] {
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        assert_eq!(in_file.check().unwrap_err().slug, "reward-bad-schema", "{text:?}");
    }
}
