//! Clients that go, crowd, stall, lie or have no right to ask; and a server that is asked to stop.

use super::client::{Server, answer};
use super::{BYTES, GOLDEN, LAST_MESSAGE, user};
use crate::common::{Folder, check_refused};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};

/// Tokens that take seconds.
const LONG: u32 = 6000;

/// A request that runs for seconds, as a stream.
fn endless() -> Value {
    json!({ "prompt": "a", "max_tokens": LONG, "ignore_eos": true, "stream": true, "temperature": 1 })
}

fn golden(more: &[&str]) -> Server {
    let long = LONG.to_string();
    let length =
        ["--set", "model_options.positions=extend", "--prompt-tokens", "56", "--max-new-tokens", &long];
    Server::start(&[&[GOLDEN, "--set", BYTES], &length[..], more].concat())
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
    let server = golden(&["--sequences", "1", "--queue", "4"]);
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
    let server = golden(&["--sequences", "2", "--queue", "3"]);
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
fn the_process_stays_within_its_plan_under_a_crowd() {
    let (server, words) =
        Server::start_with_words(&[GOLDEN, "--set", BYTES, "--sequences", "8", "--queue", "24"]);
    let planned = words.split_once(" MiB planned").and_then(|(before, _)| before.rsplit_once(' '));
    let planned: f64 = planned.and_then(|(_, mib)| mib.parse().ok()).unwrap_or_else(|| panic!("{words}"));
    assert!(
        words.contains("8 responses at one time and 24 waiting, 256 tokens each, 128 of them new"),
        "{words}"
    );
    let text = "x".repeat(100);
    std::thread::scope(|scope| {
        for client in 0..40 {
            let (server, text) = (&server, &text);
            scope.spawn(move || {
                for _ in 0..4 {
                    let mut body = json!({
                        "prompt": text, "max_tokens": 100, "ignore_eos": true, "logprobs": 1, "return_token_ids": true,
                    });
                    body["stream"] = json!(client % 2 == 0);
                    let status = server.post("/v1/completions", &body).status;
                    assert!(status == 200 || status == 429, "{status}");
                }
            });
        }
    });
    let peak = server.peak_mib();
    assert!(peak <= planned, "{peak} MiB, planned {planned}");
}

#[test]
fn a_body_beyond_the_plan_is_refused_whether_it_says_its_length_or_not() {
    let server = golden(&[]);
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
    let server = golden(&["--sequences", "2", "--queue", "40"]);
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
    let server = golden(&["--sequences", "2", "--queue", "40"]);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n{{",
        server.at
    );
    let slow: Vec<_> = (0..60).map(|_| server.send(head.as_bytes())).collect();
    let begun = std::time::Instant::now();
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
    let server = golden(&["--sequences", "2", "--queue", "2"]);
    let half_head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\n", server.at);
    let half_body = format!("{half_head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{");
    let mut silent = Vec::new();
    let begun = std::time::Instant::now();
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

/// What has come of all bodies is bounded. One that comes during such a flood is read, or refused by name at once.
#[test]
fn large_bodies_that_stop_half_way_are_held_within_the_plan() {
    let (server, words) =
        Server::start_with_words(&[GOLDEN, "--set", BYTES, "--sequences", "2", "--queue", "100"]);
    let planned = words.split_once(" MiB planned").and_then(|(before, _)| before.rsplit_once(' '));
    let planned: f64 = planned.and_then(|(_, mib)| mib.parse().ok()).unwrap_or_else(|| panic!("{words}"));
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: 260000\r\n\r\n",
        server.at
    );
    let half = head + &" ".repeat(250_000);
    let mut links = Vec::new();
    for _ in 0..100 {
        let mut link = std::net::TcpStream::connect(&server.at).expect("it listens");
        link.set_write_timeout(Some(std::time::Duration::from_secs(10))).expect("a timeout");
        // One that has been refused is closed.
        let _ = link.write_all(half.as_bytes());
        links.push(link);
    }
    let prompt = json!({ "prompt": "a", "max_tokens": 4, "user": "u".repeat(200_000) });
    let begun = std::time::Instant::now();
    let answer = server.post("/v1/completions", &prompt);
    assert!(answer.status == 200 || answer.error().0 == "serve-body-too-slow", "{}", answer.body);
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let peak = server.peak_mib();
    assert!(peak <= planned, "{peak} MiB, planned {planned}");
    drop(links);
}

#[test]
fn names_of_other_sites_and_forms_of_other_pages_are_refused() {
    let server = Server::start(&["builtin:nano", "--host", "gpu7.lab"]);
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
fn another_address_needs_the_token() {
    let folder = Folder::with("token", "a-token-of-my-own\n");
    let path = folder.text_path("token");
    let by_file = Server::start(&["builtin:nano", "--bind", "0.0.0.0", "--token-file", &path]);
    let variable = [("PLIMSOLL_SERVE_TOKEN", "a-token-of-my-own")];
    let by_variable = Server::start_with(&["builtin:nano", "--bind", "0.0.0.0"], &variable);
    for server in [by_file, by_variable] {
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
        }
        assert_eq!(ask("Authorization: Bearer a-token-of-my-own\r\n").status, 200);
        assert_eq!((server.get("/v1/models").status, server.get("/metrics").status), (401, 401));
        assert_eq!(server.get("/health").status, 200);
    }
    check_refused(
        &["serve", "builtin:nano", "--bind", "0.0.0.0"],
        2,
        &["error[serve-token-missing]", "0.0.0.0"],
    );
    check_refused(
        &["serve", "builtin:nano", "--token-file", "/dev/zero"],
        1,
        &["error[bad-value]", "more than 65536 bytes"],
    );
    let short = folder.write("short", "short");
    check_refused(
        &["serve", "builtin:nano", "--token-file", &short],
        2,
        &["error[bad-value]", "5 characters"],
    );
}

#[test]
fn running_responses_end_before_the_server_does() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut server = golden(&["--sequences", "1"]);
        let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
        first_event(&mut reader);
        server.signal(signal);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the stream goes on to its end");
        assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
        assert_eq!(server.wait().code(), Some(code));
    }
}

#[test]
fn a_response_beyond_the_grace_ends_with_an_error() {
    let mut server = golden(&["--sequences", "1", "--grace", "0"]);
    let mut reader = BufReader::new(server.begin("/v1/completions", &endless()));
    first_event(&mut reader);
    let waiting =
        server.begin("/v1/completions", &json!({ "prompt": "a", "max_tokens": LONG, "ignore_eos": true }));
    server.wait_for("waiting", |n| n >= 1.0);
    server.signal("TERM");
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the stream ends");
    assert!(rest.contains("\"code\":\"serve-stopping\"") && !rest.contains("[DONE]"), "{rest}");
    let waiting = answer(waiting);
    assert_eq!((waiting.status, waiting.error().0.as_str()), (503, "serve-stopping"));
    assert_eq!(server.wait().code(), Some(143));
}

#[test]
fn what_cannot_be_served_is_named() {
    check_refused(&["serve", "no-such-model"], 1, &["error[model-"]);
    let small = ["serve", "builtin:nano", "--set", "memory.host=1MiB"];
    check_refused(&small, 3, &["error[host-pool-exceeded]", "serve.clients"]);
    check_refused(
        &["serve", "builtin:nano", "--prompt-tokens", "64"],
        2,
        &["error[positions-beyond-model]", "64"],
    );
    let folder = Folder::new();
    let policy = std::fs::read_to_string("../../runs/cartpole-ppo.toml").expect("a recipe");
    let run = folder.write("policy.toml", &policy);
    check_refused(&["serve", &run], 2, &["error[serve-not-a-language-model]"]);
    let server = Server::start(&["builtin:nano", "--set", LAST_MESSAGE]);
    let port = server.at.rsplit_once(':').expect("a port").1;
    check_refused(
        &["serve", "builtin:nano", "--port", port],
        1,
        &["error[port-in-use]", "next free port: --port "],
    );
    // What fits is exactly what is taken: the longest prompt with the longest response.
    let chat = |new: u32| {
        server.post("/v1/chat/completions", &json!({ "messages": user(&"1".repeat(32)), "max_tokens": new }))
    };
    assert_eq!((chat(32).status, chat(33).status), (200, 400));
}
