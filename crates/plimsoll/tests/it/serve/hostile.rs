//! A server as a process: its memory under a crowd, its token, its signals, and what it refuses to start with.

use super::client::Server;
use super::{BYTES, GOLDEN, LAST_MESSAGE, user};
use crate::common::{Folder, check_refused};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};

/// Reads up to the first event.
fn first_event(reader: &mut impl BufRead) {
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "the stream ended");
    }
}

#[test]
fn the_process_stays_within_its_plan_under_a_crowd() {
    let (server, words) =
        Server::start_with_words(&[GOLDEN, "--set", BYTES, "--sequences", "8", "--queue", "24"]);
    let planned = planned_mib(&words);
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

/// A tokenizer takes two hundred times a text's bytes, so few texts become tokens at one time, and no long one does.
#[test]
fn prompts_that_are_too_long_are_refused_within_the_plan() {
    let extend = r#"model_options.positions="extend""#;
    let args = ["builtin:nano", "--set", extend, "--prompt-tokens", "2000", "--max-new-tokens", "500"];
    let (server, words) = Server::start_with_words(&args);
    let planned = planned_mib(&words);
    // Tokens of one byte: the text has room, and its tokens have not.
    let [some, many] = [56_384, 56_385].map(|bytes| json!({ "prompt": "1".repeat(bytes) }));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for (body, why) in
                    [(&some, "56384 tokens"), (&many, "56385 bytes of text, and 56384 is the most")]
                {
                    let answer = server.post("/v1/completions", body);
                    assert!(answer.status == 400 && answer.body.contains(why), "{}", answer.body);
                    assert_eq!(answer.error().0, "serve-too-long");
                }
            });
        }
    });
    let peak = server.peak_mib();
    assert!(peak <= planned, "{peak} MiB, planned {planned}");
}

fn planned_mib(words: &str) -> f64 {
    let planned = words.split_once(" MiB planned").and_then(|(before, _)| before.rsplit_once(' '));
    planned.and_then(|(_, mib)| mib.parse().ok()).unwrap_or_else(|| panic!("{words}"))
}

/// Received body bytes are bounded. A body that comes during such a flood is read, or refused by name at once.
#[test]
fn large_bodies_that_stop_half_way_are_held_within_the_plan() {
    let (server, words) =
        Server::start_with_words(&[GOLDEN, "--set", BYTES, "--sequences", "2", "--queue", "100"]);
    let planned = planned_mib(&words);
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
    assert!(answer.status == 200 || answer.error().0 == "serve-bodies-full", "{}", answer.body);
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    let peak = server.peak_mib();
    assert!(peak <= planned, "{peak} MiB, planned {planned}");
    drop(links);
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
fn a_signal_ends_the_server_with_its_code_when_the_grace_is_over() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let mut server = Server::start(&[
            GOLDEN,
            "--set",
            BYTES,
            "--set",
            "model_options.positions=extend",
            "--max-new-tokens",
            "6000",
            "--grace",
            "0",
        ]);
        let body = json!({ "prompt": "a", "max_tokens": 6000, "ignore_eos": true, "stream": true });
        let mut reader = BufReader::new(server.begin("/v1/completions", &body));
        first_event(&mut reader);
        server.signal(signal);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the stream ends");
        assert!(rest.contains("\"code\":\"serve-stopping\""), "{rest}");
        assert_eq!(server.wait().code(), Some(code));
    }
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
