//! `hf:` data sets from outside, against a hub in this process.

use crate::common::{Folder, check_error, command, text};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const RUN: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "hf:o/sums"
eval = "hf:o/sums/test"
prompt_column = "question"
answer_column = "answer"
prompt_tokens_max = 8
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 2
learning_rate = 1e-4
[run]
dir = "out"
"#;

/// Requests so far.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

/// A hub with the data set `o/sums`, in two splits, and `o/gated`, which it refuses.
pub(crate) fn serve() -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
    let log = Log::default();
    let seen = log.clone();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| answer(stream, &seen)));
    (endpoint, log)
}

fn answer(mut stream: TcpStream, log: &Log) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    let mut header = String::new();
    while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
        header.clear();
    }
    let mut words = line.split(' ').map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    log.lock().expect("no thread panics").push(path.clone());
    let row = |i: usize| {
        format!("{{\"question\": \"{:03}+{:03}=\", \"answer\": \"{}\"}}\n", 100 + i, 200 + i, 300 + 2 * i)
    };
    let listing = format!(
        "{{\"sha\": \"{COMMIT}\", \"siblings\": [{{\"rfilename\": \"main/train.jsonl\"}}, {{\"rfilename\": \"main/test.jsonl\"}}]}}"
    );
    let (status, body, etag) = match path.as_str() {
        "/api/datasets/o/sums/revision/main" => ("200 OK", listing, "x"),
        path if path.ends_with("/main/train.jsonl") => ("200 OK", (0..64).map(row).collect(), "train"),
        path if path.ends_with("/main/test.jsonl") => ("200 OK", (64..72).map(row).collect(), "test"),
        path if path.starts_with("/api/datasets/o/gated/") => ("401 Unauthorized", String::new(), "x"),
        _ => ("404 Not Found", String::new(), "x"),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\netag: \"{etag}\"\r\nconnection: close\r\n\r\n"
    );
    let body = if method == "HEAD" { String::new() } else { body };
    let _ = stream.write_all((head + &body).as_bytes());
}

pub(crate) fn run(folder: &Folder, endpoint: &str, args: &[&str]) -> Output {
    let mut command = command(args);
    command.current_dir(folder.path(".")).env("HF_HOME", folder.path("hub")).env("HF_ENDPOINT", endpoint);
    for name in
        ["HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
    {
        command.env_remove(name);
    }
    command.output().expect("the binary runs")
}

#[test]
fn a_data_set_of_the_hub_is_fetched_once_and_its_commit_is_kept() {
    let (folder, (endpoint, log)) = (Folder::with("run.toml", RUN), serve());
    let plan = run(&folder, &endpoint, &["plan", "run.toml"]);
    assert_eq!(plan.status.code(), Some(0), "{}", text(&plan.stderr));
    assert!(log.lock().expect("no thread panics").is_empty(), "a plan fetches nothing");

    let trained = run(&folder, &endpoint, &["train", "run.toml"]);
    assert_eq!(trained.status.code(), Some(0), "{}", text(&trained.stderr));
    let kept = std::fs::read_to_string(folder.path("out/run.toml")).expect("a run file");
    assert!(kept.contains(&format!("prompts = \"hf:o/sums@{COMMIT}\"")), "{kept}");
    assert!(kept.contains(&format!("eval = \"hf:o/sums@{COMMIT}/test\"")), "{kept}");
    let events = std::fs::read_to_string(folder.path("out/events.jsonl")).expect("a log");
    assert!(events.contains("\"set\":\"hf:o/sums/test\""), "{events}");

    // The run goes on from its cache, and says what it may not take instead.
    let asked = log.lock().expect("no thread panics").len();
    let more =
        run(&folder, "http://127.0.0.1:1", &["train", "run.toml", "--resume", "--set", "train.steps=4"]);
    assert_eq!(more.status.code(), Some(0), "{}", text(&more.stderr));
    assert_eq!(log.lock().expect("no thread panics").len(), asked);
    let other =
        ["train", "run.toml", "--resume", "--set", "train.steps=6", "--set", "data.prompts=hf:o/sums/test"];
    check_error(&other, &run(&folder, &endpoint, &other), 2, &["error[run-file-changed]", "data.prompts"]);

    let eval = ["eval", "--model", "out/checkpoints/latest", "--data", "hf:o/sums", "--reward", "exact"];
    let columns = ["--set", "data.prompt_column=question", "--set", "data.answer_column=answer"];
    let scored = run(&folder, &endpoint, &[&eval[..], &columns].concat());
    assert_eq!(scored.status.code(), Some(0), "{}", text(&scored.stderr));
    assert!(text(&scored.stdout).contains("on 8 prompts"), "{}", text(&scored.stdout));
}

#[test]
fn what_is_wrong_with_a_data_set_of_the_hub_is_named() {
    let (folder, (endpoint, _)) = (Folder::with("run.toml", RUN), serve());
    for (set, code, contains) in [
        ("data.prompts=hf:sums", 2, &["error[data-hub-name]", "hf:org/name"][..]),
        ("data.prompts=hf:o/gated", 1, &["error[hub-refused]", "401", "HF_TOKEN"]),
        ("data.prompts=hf:o/none", 1, &["error[hub-refused]", "404", "HF_TOKEN"]),
        ("data.prompts=hf:o/sums/valid", 1, &["error[data-hub-file]", "main/train.jsonl"]),
        ("data.prompt_column=prompt", 1, &["error[data-column-missing]", "prompt"]),
    ] {
        let args = ["train", "run.toml", "--set", set];
        check_error(&args, &run(&folder, &endpoint, &args), code, contains);
        assert!(!folder.path("out").exists(), "{set}");
    }
    let fresh = Folder::with("run.toml", RUN);
    // A plan fetches nothing. It needs the rows where no key bounds the prompts.
    let unbounded = Folder::with("run.toml", &RUN.replace("prompt_tokens_max = 8\n", ""));
    let args = ["plan", "run.toml"];
    let words = ["error[data-not-local]", "hf:o/sums", "set data.prompt_tokens_max"];
    check_error(&args, &run(&unbounded, "http://127.0.0.1:1", &args), 1, &words);
    assert_eq!(run(&fresh, "http://127.0.0.1:1", &args).status.code(), Some(0));
    let args = ["train", "run.toml"];
    check_error(&args, &run(&fresh, "http://127.0.0.1:1", &args), 1, &["error[hub-unreachable]"]);
}
