//! A teacher on a server: a stand-in that says known log-probabilities teaches what a model with these would, on any
//! number of ranks, after a resume too; what it does wrong is named, and its samples are left out.

use crate::ranks::left;
use crate::run::{Run, export, number, region};
use crate::taught::taught;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const RUN: &str = r#"method = "distill"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
eval = "none"
[rollout]
prompts_per_step = 4
group_size = 2
max_new_tokens = 5
[distill]
teacher = "LOCAL"
[train]
steps = 3
learning_rate = 3e-4
[checkpoint]
every = 1
keep = 3
"#;

const ENDPOINT: &str = r#"teacher = "endpoint"
[distill.endpoint]
url = "URL"
timeout_ms = 2000
retries = 0
workers = 3
"#;

/// Says what the server says to a request, by its number and its body.
type Says = dyn Fn(usize, &Value) -> (u16, String) + Send + Sync;

/// Starts a server. Returns its address, and the number of requests so far.
fn server(
    says: impl Fn(usize, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    server_of_texts(move |number, body| {
        let (status, said) = says(number, body);
        (status, said.to_string())
    })
}

/// Starts a server whose replies need not be JSON.
pub(crate) fn server_of_texts(
    says: impl Fn(usize, &Value) -> (u16, String) + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let (says, count): (Arc<Says>, _) = (Arc::new(says), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (says, count) = (says.clone(), count.clone());
            std::thread::spawn(move || answer(stream, &count, &*says));
        }
    });
    (url, counted)
}

fn answer(stream: TcpStream, count: &AtomicUsize, says: &Says) {
    let mut stream = BufReader::new(stream);
    let (mut head, mut line) = (BTreeMap::new(), String::new());
    while stream.read_line(&mut line).expect("a head") > 2 {
        if let Some((name, value)) = line.trim().split_once(": ") {
            head.insert(name.to_ascii_lowercase(), value.to_string());
        }
        line.clear();
    }
    let mut body = vec![0; head["content-length"].parse().expect("a length")];
    stream.read_exact(&mut body).expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let (status, said) = says(count.fetch_add(1, Ordering::SeqCst), &body);
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", said.len());
    // The other side may have gone.
    let _ = stream.get_ref().write_all(format!("{head}{said}").as_bytes());
}

fn ids(body: &Value) -> Vec<u64> {
    let ids = body["prompt"].as_array().expect("token ids");
    ids.iter().map(|id| id.as_u64().expect("an id")).collect()
}

/// A reply as vLLM's: nothing for the first token, and one entry for each other.
pub(crate) fn listed(body: &Value, logprob: impl Fn(usize, u64) -> f32) -> Value {
    let one = |(at, id): (usize, &u64)| match at {
        0 => Value::Null,
        _ => json!({ id.to_string(): { "logprob": logprob(at, *id), "rank": 1, "decoded_token": null } }),
    };
    let all: Vec<Value> = ids(body).iter().enumerate().map(one).collect();
    json!({ "choices": [{ "index": 0, "text": "x", "logprobs": null, "prompt_logprobs": all }] })
}

/// A reply in OpenAI's older form: all tokens of the prompt, then the one that was drawn.
fn echoed(body: &Value, logprob: impl Fn(usize, u64) -> f32) -> Value {
    let mut all: Vec<Value> =
        ids(body).iter().enumerate().map(|(at, id)| json!((at > 0).then(|| logprob(at, *id)))).collect();
    all.push(json!(-0.5));
    json!({ "choices": [{ "index": 0, "text": "x", "logprobs": { "token_logprobs": all } }] })
}

/// Log-probabilities that depend on the token and its place alone.
pub(crate) fn known(at: usize, id: u64) -> f32 {
    -0.25 - ((at as u64 * 7 + id * 3) % 11) as f32 / 4.0
}

pub(crate) fn run_of(url: &str) -> Run {
    let endpoint = ENDPOINT.replace("URL", url);
    Run::named("x.toml", &RUN.replace("teacher = \"LOCAL\"\n", &endpoint))
}

#[test]
fn a_server_teaches_what_a_model_with_its_numbers_does() {
    // A model whose weights are all 0 gives every token the probability 1/V, and so does the server.
    let folder = taught();
    let model = folder.text_path("model");
    export(&folder, "teacher", &model);
    let file = format!("{model}/model.safetensors");
    let mut bytes = fs::read(&file).expect("weights");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    bytes[header..].fill(0);
    fs::write(&file, bytes).expect("a file");
    let config = fs::read(format!("{model}/config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let uniform = -(config["vocab_size"].as_u64().expect("a number") as f32).ln();
    let local = Run::new(&RUN.replace("LOCAL", &model));
    local.train("out", &[]);
    let (url, _) = server(move |_, body| (200, listed(body, |_, _| uniform)));
    let asks = run_of(&url);
    asks.train("out", &[]);
    let kl = |run: &Run| number(&run.metrics("out")[0], "distill/reverse_kl");
    assert_eq!(kl(&asks), kl(&local));
    assert!(asks.result("out") == local.result("out"), "other bits");
}

#[test]
fn ranks_and_a_resume_change_no_bit_of_what_a_server_teaches() {
    let (url, asked) = server(|_, body| match body.get("echo") {
        Some(_) => (200, echoed(body, known)),
        // As a server that does not know the field.
        None => (400, json!({ "error": { "message": "prompt_logprobs: this server does not have it" } })),
    });
    let folder = run_of(&url);
    folder.train("one", &[]);
    // Two requests find out what the server has, and each of the 8 responses of a step is one.
    assert_eq!(asked.load(Ordering::SeqCst), 2 + 3 * 8);
    for step in folder.metrics("one") {
        assert_eq!(
            (number(&step, "reward/fault_share"), number(&step, "teacher/none")),
            (0.0, 0.0),
            "{step}"
        );
        assert!(
            number(&step, "distill/reverse_kl").is_finite() && number(&step, "grad_norm") > 0.0,
            "{step}"
        );
    }
    folder.train("two", &["--ranks=2", "distill.endpoint.workers=1"]);
    assert_eq!(left(&folder, "one"), left(&folder, "two"));
    folder.train("part", &["train.steps=2"]);
    folder.train("part", &["--resume", "distill.endpoint.timeout_ms=9000"]);
    assert!(folder.result("part") == folder.result("one"), "other bits after a resume");
    // The plan names the requests, and no second model.
    let plan = folder.plan(&[]);
    assert_eq!(region(&plan, "teacher.requests").expect("a row")["bytes"], json!(3 * 5 * (4 << 20)));
    assert!(region(&plan, "teacher.weights").is_none(), "{plan}");
    assert!(plan.to_string().contains("whether http://127.0.0.1"), "a plan does not ask: {plan}");
}

#[test]
fn what_a_server_cannot_say_is_left_out_and_named() {
    // Of every step one response comes late, one has too few numbers, and one has one that is none.
    let says = |number: usize, body: &Value| {
        let mut reply = listed(body, known);
        let all = reply["choices"][0]["prompt_logprobs"].as_array_mut().expect("a list");
        match number % 8 {
            1 => std::thread::sleep(Duration::from_millis(2500)),
            2 => _ = all.pop(),
            3 => {
                *all.last_mut().expect("it has tokens") =
                    json!({ ids(body).last().expect("an id").to_string(): { "logprob": 0.5 } })
            }
            _ => {}
        }
        (200, reply)
    };
    let (url, _) = server(says);
    let folder = run_of(&url);
    let said = folder.train("out", &["train.steps=1"]);
    assert!(said.contains("warning[rewards-failing]"), "{said}");
    let step = &folder.metrics("out")[0];
    assert_eq!(number(step, "reward/fault_share"), 3.0 / 8.0, "{step}");
    for (name, count) in [("none", 3.0), ("timeouts", 1.0), ("bad_replies", 2.0), ("retries", 0.0)] {
        assert_eq!(number(step, &format!("teacher/{name}")), count, "{name}: {step}");
    }
    // Sent again, each has an answer.
    let (url, _) = server(says);
    let url = format!("distill.endpoint.url={url}");
    folder.train("again", &["train.steps=1", "distill.endpoint.retries=3", &url]);
    assert_eq!(number(&folder.metrics("again")[0], "reward/fault_share"), 0.0);
}

#[test]
fn a_server_without_what_a_teacher_needs_is_named_before_the_first_step() {
    let reply = |said: Value, expect: &[&str]| {
        let (url, _) = server(move |_, _| (200, said.clone()));
        let folder = run_of(&url);
        folder.train_refused("out", &[], 1, &[&["the teacher: http://127.0.0.1"], expect].concat());
    };
    reply(json!({ "choices": [] }), &["error[teacher-endpoint-failed]", "without a choice"]);
    reply(json!("hello"), &["error[teacher-endpoint-failed]", "no completion"]);
    let few =
        json!({ "choices": [{ "prompt_logprobs": [null], "logprobs": { "token_logprobs": [null, -1.0] } }] });
    reply(
        few,
        &["error[teacher-endpoint-failed]", "with 2 log-probabilities for", "with 1 log-probabilities for"],
    );
    // A server of chats has no log-probabilities of prompts.
    reply(json!({ "choices": [{ "text": "x" }] }), &["without `logprobs`", "without `prompt_logprobs`"]);
    let (url, _) = server(|_, _| (404, json!({ "error": "no model `big` here" })));
    run_of(&url).train_refused(
        "out",
        &["distill.endpoint.model=big"],
        1,
        &["error[teacher-endpoint-failed]", "status 404", "no model `big` here"],
    );
    // Another tokenizer: the same ids are other texts.
    let (url, _) = server(|_, body| {
        let mut reply = echoed(body, known);
        reply["choices"][0]["logprobs"]["tokens"] =
            json!(ids(body).iter().map(|id| format!("t{id}")).collect::<Vec<_>>());
        (if body.get("echo").is_some() { 200 } else { 400 }, reply)
    });
    run_of(&url).train_refused("out", &[], 1, &["error[teacher-tokenizer-mismatch]", "to the student it is"]);
    let nobody = run_of("http://127.0.0.1:9/v1");
    nobody.train_refused(
        "out",
        &[],
        1,
        &["error[teacher-endpoint-failed]", "the teacher: http://127.0.0.1:9/v1"],
    );
    let key = "distill.endpoint.key_env=PLIMSOLL_NO_SUCH_KEY";
    nobody.train_refused(
        "out",
        &[key],
        2,
        &["error[teacher-endpoint-failed]", "PLIMSOLL_NO_SUCH_KEY is not set"],
    );
}
