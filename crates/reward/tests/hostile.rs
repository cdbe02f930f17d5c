//! Hostile replies of judges, rewards and teachers on servers: 4 MiB of small values end in a score or in a named
//! error, within what the plan has for a connection. Peaks are of the process's resident memory, which the kernel
//! counts, so the cases run one after another in a process without other tests.

use plimsoll_reward::{
    Case, JudgeSpec, Prompt, RewardSpec, Rewards, TeacherQuestion, TeacherServer, TeacherSpec, Words,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Bytes of a reply, just within the limit.
const REPLY_BYTES: usize = (4 << 20) - 4096;

/// A line of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10
}

/// Returns what `work` returns, and the most resident bytes beyond those from before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    std::fs::write("/proc/self/clear_refs", "5").expect("the process may reset its peak");
    let before = status_bytes("VmRSS:");
    let result = work();
    (result, status_bytes("VmHWM:").saturating_sub(before))
}

/// A server with its next reply.
struct Server {
    address: String,
    reply: Arc<Mutex<String>>,
}

impl Server {
    fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let reply = Arc::new(Mutex::new(String::new()));
        let says = reply.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &says.lock().expect("no test panicked with it"));
            }
        });
        Server { address, reply }
    }

    fn says(&self, reply: String) {
        *self.reply.lock().expect("no test panicked with it") = reply;
    }
}

fn answer(stream: TcpStream, reply: &str) {
    let mut stream = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while stream.read_line(&mut line).expect("a head") > 2 {
        if let Some(text) = line.to_ascii_lowercase().trim().strip_prefix("content-length: ") {
            length = text.parse().expect("a length");
        }
        line.clear();
    }
    stream.read_exact(&mut vec![0; length]).expect("a body");
    let head = format!("HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", reply.len());
    // The other side may have gone.
    let _ = stream
        .get_ref()
        .write_all(head.as_bytes())
        .and_then(|()| stream.get_ref().write_all(reply.as_bytes()));
}

/// Small values of each kind, with a comma after each.
fn filled(piece: &str) -> String {
    piece.repeat(REPLY_BYTES / piece.len())
}

fn score(rewards: &mut Rewards) -> Result<Option<f32>, plimsoll_base::Error> {
    score_of(rewards, "2")
}

fn score_of(rewards: &mut Rewards, response: &str) -> Result<Option<f32>, plimsoll_base::Error> {
    let case = Case {
        prompt: Arc::new(Prompt { text: "1+1=".into(), ..Prompt::default() }),
        response: response.into(),
        completion: None,
        response_ids: Vec::new(),
        max_new_tokens: 8,
        ended: true,
    };
    Ok(rewards.score(vec![case])?.remove(0).total)
}

/// Runs this test again in a process whose allocator gives memory back at once, so that no earlier case hides a peak.
/// Returns true in that process.
fn gives_memory_back() -> bool {
    if std::env::var_os("MALLOC_TRIM_THRESHOLD_").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("this test"));
    again.args(std::env::args_os().skip(1));
    let allocator =
        [("MALLOC_MMAP_THRESHOLD_", "16384"), ("MALLOC_TRIM_THRESHOLD_", "0"), ("MALLOC_TOP_PAD_", "0")];
    assert!(again.envs(allocator).status().expect("this test runs").success());
    false
}

#[test]
fn a_hostile_reply_takes_no_more_than_a_connection_has_in_the_plan() {
    if !gives_memory_back() {
        return;
    }
    judges();
    rewards_on_servers();
    teachers();
    workers();
}

fn judges() {
    let good = r#""choices":[{"message":{"content":"Score: 7"},"finish_reason":"stop"}]"#;
    let choices = |list: &str| format!("{{\"choices\":[{list}0]}}");
    let said = |text: &str| json!({ "choices": [{ "message": { "content": text } }] }).to_string();
    let server = Server::new();
    let judge = JudgeSpec { url: Some(format!("{}/v1", server.address)), ..JudgeSpec::default() };
    let spec = RewardSpec { judge, retries: 0, timeout_ms: 60_000, ..RewardSpec::of_kind("judge") };
    let planned = spec.memory().buffers.0;
    let mut judged = Rewards::saying(&[spec], Words::of_run()).expect("a judge");
    server.says(format!("{{{good}}}"));
    assert_eq!(score(&mut judged).expect("a score"), Some(0.7));
    for (number, (reply, words)) in [
        (format!("{{\"x\":[{}0],{good}}}", filled("0,")), ""),
        (format!("{{\"x\":[{}0],{good}}}", filled("{},")), ""),
        (choices(&filled("{},")), "choices for 1 request"),
        (choices(&filled("null,")), "choices for 1 request"),
        (format!("{{{}{good}}}", filled("\"a\":0,")), ""),
        (filled("["), "lists and objects within each other"),
        (said(&"\"".repeat(400_000)), "without a score"),
        (said(&format!("{{\"a\":[{}0]}}", "0,".repeat(500_000))), "without a score"),
        (said(&"Score: 1\n".repeat(100_000)), ""),
        (said(&"x".repeat(2 << 20)), "more than 1048576 bytes"),
        (format!("{{{good},{good}}}"), "`choices` 2 times"),
    ]
    .into_iter()
    .enumerate()
    {
        server.says(reply);
        // Another model is another request: what is known is not asked again.
        let fresh = RewardSpec {
            judge: JudgeSpec {
                url: Some(format!("{}/v1", server.address)),
                model: Some(format!("m{number}")),
                ..JudgeSpec::default()
            },
            retries: 0,
            timeout_ms: 60_000,
            ..RewardSpec::of_kind("judge")
        };
        let mut judged = Rewards::saying(&[fresh], Words::of_run()).expect("a judge");
        let (scored, peak) = peak_of(|| score(&mut judged));
        check(&format!("judge {number}"), scored.map(drop), words, peak, planned);
    }
}

fn rewards_on_servers() {
    let server = Server::new();
    let spec =
        RewardSpec { retries: 0, timeout_ms: 60_000, ..RewardSpec::of_kind(format!("{}/r", server.address)) };
    let planned = spec.memory().buffers.0;
    let new = || Rewards::saying(std::slice::from_ref(&spec), Words::of_run()).expect("a reward");
    let mut scored = new();
    server.says("{\"rewards\":[1]}".into());
    assert_eq!(score(&mut scored).expect("a score"), Some(1.0));
    for (number, (reply, words)) in [
        (format!("{{\"x\":[{}0],\"rewards\":[1]}}", filled("0,")), ""),
        (format!("{{\"rewards\":[{}0]}}", filled("0,")), "rewards for 1 queries"),
        (format!("{{\"rewards\":[{}0]}}", filled("{},")), "rewards for 1 queries"),
        (format!("{{\"rewards\":[[{}0]]}}", filled("0,")), "the reward [0,0,"),
        (format!("{{\"rewards\":[1],\"steps\":[[{}0]]}}", filled("[],")), ""),
    ]
    .into_iter()
    .enumerate()
    {
        server.says(reply);
        // An error ends the threads of a reward.
        let mut scored = new();
        let (got, peak) = peak_of(|| score(&mut scored));
        check(&format!("reward {number}"), got.map(drop), words, peak, planned);
    }
}

fn teachers() {
    let server = Server::new();
    let spec = TeacherSpec {
        url: format!("{}/v1", server.address),
        model: None,
        key_env: None,
        timeout_ms: 60_000,
        retries: 0,
        workers: 1,
    };
    let good = |ids: &[u32]| -> Value {
        let listed = |id: &u32| json!({ id.to_string(): { "logprob": -1.0, "decoded_token": null } });
        let all: Vec<Value> =
            ids.iter().enumerate().map(|(at, id)| if at == 0 { Value::Null } else { listed(id) }).collect();
        json!({ "choices": [{ "prompt_logprobs": all }] })
    };
    server.says(good(&[1, 2]).to_string());
    let teacher = TeacherServer::start(&spec, &[(1, "a".into()), (2, "b".into())]).expect("a teacher");
    let question = TeacherQuestion { prompt: &[1], response: &[2, 3] };
    for (number, (reply, words)) in [
        (format!("{{\"choices\":[{}{{}}]}}", filled("{},")), "choices for 1 request"),
        (format!("{{\"choices\":[{{\"prompt_logprobs\":[{}null]}}]}}", filled("null,")), "for 3 tokens"),
        (
            format!("{{\"x\":[{}0],{}", filled("0,"), &good(&[1, 2, 3]).to_string()[1..]),
            "",
        ),
        (
            format!(
                "{{\"choices\":[{{\"prompt_logprobs\":[null,{{{}\"2\":{{\"logprob\":-1}}}},{{\"3\":{{\"logprob\":-1}}}}]}}]}}",
                filled("\"7\":{\"logprob\":-1},")
            ),
            "",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        server.says(reply);
        let (answers, peak) = peak_of(|| teacher.ask(&[question]));
        let got = match answers.failure {
            Some(error) => Err(error),
            None => Ok(answers.logprobs),
        };
        let got = got.map(|logprobs| assert_eq!(logprobs, [Some(vec![-1.0, -1.0])]));
        check(&format!("teacher {number}"), got, words, peak, spec.memory().0);
    }
}

/// The user's code shares a worker's process, and may write what it likes to its pipe.
const WORKER: &str = r#"
import json
honest = json.dumps
forged = None
def dumps(message):
    if forged is None or "id" not in message:
        return honest(message)
    return forged.replace("ID", honest(message["id"]))
json.dumps = dumps
def f(completions, **columns):
    global forged
    kind = completions[0]
    numbers = "0," * 500_000
    forged = {
        "2": None,
        "ignored": '{"id":ID,"x":[' + numbers + '0],"scores":[1]}',
        "objects": '{"id":ID,"x":[' + '{"a":0},' * 120_000 + '0],"scores":[1]}',
        "scores": '{"id":ID,"scores":[' + numbers + '0]}',
        "score": '{"id":ID,"scores":[[' + numbers + '0]]}',
        "logged": '{"id":ID,"scores":[1],"metrics":{' + ",".join(f'"{n}":[[],0]' for n in range(60_000)) + '}}',
        "raised": '{"id":ID,"raised":[' + numbers + '0]}',
        "deep": '{"id":ID,"x":' + "[" * 500_000,
    }[kind]
    return [1.0] * len(completions)
"#;

fn workers() {
    plimsoll_reward::keep_with(env!("CARGO_BIN_EXE_plimsoll-reward-keeper").into());
    let has_python = std::process::Command::new("python3").args(["-c", ""]).status();
    if !has_python.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: python3 is not installed");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("forged.py");
    std::fs::write(&file, WORKER).expect("a file");
    let spec = RewardSpec {
        retries: 0,
        timeout_ms: 60_000,
        ..RewardSpec::of_kind(format!("python:{}:f", file.display()))
    };
    let planned = spec.memory().buffers.0;
    let new = || Rewards::saying(std::slice::from_ref(&spec), Words::of_run()).expect("a reward");
    let mut scored = new();
    assert_eq!(score(&mut scored).expect("a score"), Some(1.0));
    for (kind, words) in [
        ("ignored", ""),
        ("objects", ""),
        ("scores", "scores for 1 completions"),
        ("score", "the score [0,0,"),
        ("logged", "more than 1024 logged values"),
        ("raised", "raised an exception"),
        ("deep", "a line that is not JSON"),
    ] {
        let mut scored = new();
        assert_eq!(score(&mut scored).expect("a score"), Some(1.0));
        let (got, peak) = peak_of(|| score_of(&mut scored, kind));
        let slug = if kind == "raised" { "reward-function-raised" } else { "reward-bad-reply" };
        check_slug(&format!("worker {kind}"), got.map(drop), (slug, words), peak, planned);
    }
}

/// Asserts an error with `words`, or none where there are none, and the peak.
#[track_caller]
fn check(name: &str, got: Result<(), plimsoll_base::Error>, words: &str, peak: u64, planned: u64) {
    check_slug(name, got, ("reward-bad-reply", words), peak, planned);
}

#[track_caller]
fn check_slug(
    name: &str,
    got: Result<(), plimsoll_base::Error>,
    (slug, words): (&str, &str),
    peak: u64,
    planned: u64,
) {
    println!("{:>6} KiB of {}  {name}", peak >> 10, planned >> 10);
    match got {
        Ok(()) => assert!(words.is_empty(), "{name}: no error"),
        Err(error) => {
            assert_eq!(error.slug, slug, "{name}: {error}");
            assert!(!words.is_empty() && error.to_string().contains(words), "{name}: {error}");
        }
    }
    assert!(peak <= planned, "{name}: {} KiB of {}", peak >> 10, planned >> 10);
}
