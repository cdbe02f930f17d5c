//! Clients that go, crowd, stall, lie or have no right to ask; and a server that is asked to stop.

use crate::client::answer;
use crate::rig::{Options, Running};
use plimsoll_serve::guard::Guard;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

/// Tokens that take long enough for a test to come in between.
const LONG: usize = 3000;

/// A request that runs for long, as a stream.
fn endless() -> Value {
    json!({ "prompt": "a", "max_tokens": LONG, "ignore_eos": true, "stream": true, "temperature": 1 })
}

fn golden(slots: usize, queue: usize) -> Running {
    options(slots, queue).serve()
}

fn options(slots: usize, queue: usize) -> Options {
    Options { slots, queue, prompt_tokens: 56, new_tokens: LONG, ..Options::default() }
}

/// Reads up to the first event.
fn first_event(reader: &mut impl BufRead) {
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "the stream ended");
    }
}

#[test]
fn a_client_that_hangs_up_frees_its_slot_and_its_blocks() {
    let server = golden(1, 4);
    for _ in 0..5 {
        let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
        first_event(&mut reader);
        // One that waits in the queue, and one that waits for a whole answer, hang up too.
        let queued = server.begin("/v1/completions", &endless());
        let whole = server
            .begin("/v1/completions", &json!({ "prompt": "a", "max_tokens": LONG, "ignore_eos": true }));
        server.wait_for("waiting", |n| n >= 1.0);
        drop((reader, queued, whole));
        server.wait_for("running", |n| n == 0.0);
    }
    let answer = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 4 }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    server.wait_for("kv_blocks_free", |n| n == server.metric("kv_blocks"));
    assert!(server.metric("cancelled_total") >= 5.0);
}

#[test]
fn a_crowd_is_refused_with_the_numbers_and_nobody_who_was_taken_is_lost() {
    let server = golden(2, 3);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = || {
            server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true }))
        };
        let clients: Vec<_> = (0..25).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(taken.len() >= 5 && !refused.is_empty(), "{} taken", taken.len());
    for answer in &taken {
        assert_eq!(answer.json()["usage"]["completion_tokens"], 400);
    }
    for answer in &refused {
        assert_eq!((answer.status, answer.error().0.as_str()), (429, "serve-queue-full"));
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
        assert!(answer.body.contains("of 5 places are taken, 2 running and 3 waiting"), "{}", answer.body);
    }
    // More prompts than there are places can never be taken.
    let many = server.post("/v1/completions", &json!({ "prompt": vec!["a"; 6], "max_tokens": 1 }));
    assert_eq!((many.status, many.error()), (400, ("serve-bad-request".to_string(), json!("prompt"))));
    let several = server.post("/v1/completions", &json!({ "prompt": vec!["a"; 5], "max_tokens": 1 }));
    assert_eq!(several.json()["choices"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_body_beyond_the_plan_is_refused_whether_it_says_its_length_or_not() {
    let server = golden(4, 64);
    let head = |more: &str| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{more}\r\n",
            server.at
        )
    };
    let told = answer(server.send(head("Content-Length: 104857600\r\nConnection: close\r\n").as_bytes()));
    assert_eq!((told.status, told.error().0.as_str()), (413, "serve-body-too-large"));
    assert!(told.body.contains("104857600 bytes"), "{}", told.body);
    let mut link = server.send(head("Transfer-Encoding: chunked\r\nConnection: close\r\n").as_bytes());
    let mut sender = link.try_clone().expect("a handle");
    let flood = std::thread::spawn(move || {
        let piece = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
        // A hundred MB, until it is cut off.
        (0..1600).take_while(|_| sender.write_all(piece.as_bytes()).is_ok()).count()
    });
    let mut bytes = Vec::new();
    // The rest of the flood may reset the connection after the answer.
    let _ = link.read_to_end(&mut bytes);
    assert!(
        String::from_utf8_lossy(&bytes).contains("413 Payload Too Large"),
        "{}",
        String::from_utf8_lossy(&bytes)
    );
    assert!(flood.join().expect("it ends") < 1600);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn clients_that_stall_do_not_keep_others_waiting() {
    let server = golden(2, 40);
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n", server.at);
    let half_heads: Vec<_> = (0..20).map(|_| server.send(head.as_bytes())).collect();
    // They ask for a stream and never read it.
    let long = json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let deaf: Vec<_> = (0..6).map(|_| server.begin("/v1/completions", &long)).collect();
    for _ in 0..3 {
        let answer = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 8 }));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    server.wait_for("responses_total", |n| n >= 9.0);
    server.wait_for("kv_blocks_free", |n| n == server.metric("kv_blocks"));
    drop((half_heads, deaf));
}

/// Four half-sent bodies held all permits of the readers, for 30 s each.
#[test]
fn r_slow_bodies_kept_everybody_waiting() {
    let server = golden(2, 40);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        server.at
    );
    let slow: Vec<_> = (0..60).map(|_| server.send(head.as_bytes())).collect();
    let begun = Instant::now();
    for _ in 0..3 {
        let answer = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 4 }));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    drop(slow);
}

/// Connections that ask for nothing held all places until their heads were late.
#[test]
fn r_silent_clients_took_all_places() {
    // 36 places.
    let server = golden(2, 2);
    let half_head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\n", server.at);
    let half_body = format!("{half_head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{");
    let mut silent = Vec::new();
    let begun = Instant::now();
    for _ in 0..10 {
        for bytes in ["", &half_head, &half_body] {
            silent.extend((0..12).map(|_| server.send(bytes.as_bytes())));
        }
        let answer = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 4 }));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
    // One whose answer is being drawn keeps its place.
    let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
    first_event(&mut reader);
    silent.extend((0..80).map(|_| server.send(b"")));
    first_event(&mut reader);
    drop(silent);
}

#[test]
fn names_of_other_sites_and_forms_of_other_pages_are_refused() {
    let guard = Guard { token: None, hosts: vec!["gpu7.lab".into()] };
    let server = Options { guard, ..Options::default() }.serve();
    let body = "{\"prompt\":\"1\"}";
    let json = "Content-Type: application/json\r\n";
    for (host, kind, status) in [
        ("Host: evil.example\r\n", json, 421),
        ("Host: 127.0.0.1.evil.example:80\r\n", json, 421),
        ("Host: localhost, evil.example\r\n", json, 421),
        ("Host: [::1]evil.com\r\n", json, 421),
        ("Host: [::1].evil.com:80\r\n", json, 421),
        ("Host: [::1]:80\r\n", json, 200),
        ("Host: localhost\r\nHost: evil.example\r\n", json, 421),
        ("Host: localhost:9\r\n", json, 200),
        ("Host: gpu7.lab\r\n", json, 200),
        // What a page of another site may send without consent.
        ("Host: localhost\r\n", "Content-Type: text/plain\r\n", 400),
        ("Host: localhost\r\n", "Content-Type: application/x-www-form-urlencoded\r\n", 400),
        ("Host: localhost\r\n", "", 400),
        ("Host: localhost\r\n", "Content-Type: application/json; charset=utf-8\r\n", 200),
    ] {
        let answer = server.ask("POST /v1/completions", &format!("{host}{kind}"), body);
        assert_eq!(answer.status, status, "{host}{kind}: {}", answer.body);
        assert!(!answer.head.contains("access-control-allow-origin"));
    }
}

#[test]
fn a_token_is_asked_for_everywhere_but_where_a_supervisor_looks() {
    let guard = Guard { token: Some("a-token-of-my-own".into()), hosts: Vec::new() };
    let server = Options { guard, ..Options::default() }.serve();
    let ask = |authorization: &str| {
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n{authorization}", server.at);
        server.ask("POST /v1/completions", &headers, "{\"prompt\":\"1\"}")
    };
    for wrong in [
        "",
        "Authorization: Bearer a-token-of-my-owN\r\n",
        "Authorization: Bearer a\r\n",
        "Authorization: Basic a-token-of-my-own\r\n",
    ] {
        let answer = ask(wrong);
        assert_eq!((answer.status, answer.error().0.as_str()), (401, "serve-token-wrong"), "{wrong}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
    }
    assert_eq!(ask("Authorization: Bearer a-token-of-my-own\r\n").status, 200);
    assert_eq!((server.get("/v1/models").status, server.get("/metrics").status), (401, 401));
    assert_eq!(server.get("/v1/models?token=a-token-of-my-own").status, 401, "an address is written to logs");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn running_responses_end_before_the_server_does() {
    let server = Options { grace: Duration::from_secs(120), ..options(1, 4) }.serve();
    let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
    first_event(&mut reader);
    server.signal();
    let refused = || {
        let answer = server.get("/health");
        (answer.status == 503).then(|| answer.error().0)
    };
    // It says that it is stopping while the response still runs.
    while refused().is_none() {}
    let late = server.post("/v1/completions", &json!({ "prompt": "a" }));
    assert_eq!((late.status, late.error().0.as_str()), (503, "serve-stopping"));
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the stream goes on to its end");
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    server.wait().expect("it ends well");
}

#[test]
fn a_response_beyond_the_grace_ends_with_an_error() {
    let server = golden(1, 4);
    let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
    first_event(&mut reader);
    let waiting =
        server.begin("/v1/completions", &json!({ "prompt": "a", "max_tokens": LONG, "ignore_eos": true }));
    server.wait_for("waiting", |n| n >= 1.0);
    server.signal();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the stream ends");
    assert!(rest.contains("\"code\":\"serve-stopping\"") && !rest.contains("[DONE]"), "{rest}");
    let waiting = answer(waiting);
    assert_eq!((waiting.status, waiting.error().0.as_str()), (503, "serve-stopping"));
    server.wait().expect("it ends well");
}
