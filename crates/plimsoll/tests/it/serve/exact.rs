//! What is served has the bits of `generate`, `eval` and the engine alone, whatever other clients ask for.

use super::client::Server;
use super::{BYTES, GOLDEN, LAST_MESSAGE};
use crate::common::{Folder, plimsoll, text};
use crate::run::Run;
use serde_json::{Value, json};

/// What `generate` prints.
fn generated(model: &str, prompt: &str, sets: &[&str]) -> (Value, Vec<f32>) {
    let mut args = vec!["generate", "--model", model, "--raw", "--prompt", prompt, "--json", "--quiet"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    let output = plimsoll(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    (found["tokens"].clone(), numbers(&found["logprobs"]))
}

fn numbers(list: &Value) -> Vec<f32> {
    list.as_array().expect("a list").iter().map(|n| n.as_f64().expect("a number") as f32).collect()
}

/// The ids and the log-probabilities of a completion's choice.
fn drawn(choice: &Value) -> (Value, Vec<f32>) {
    (choice["token_ids"].clone(), numbers(&choice["logprobs"]["token_logprobs"]))
}

#[test]
fn concurrent_clients_get_the_bits_that_generate_prints() {
    let (seed, tokens) = ("seed=7", "rollout.max_new_tokens=24");
    let server = Server::start(&[GOLDEN, "--seed", "7", "--set", BYTES, "--sequences", "4"]);
    let prompts = ["a", "What is 2 + 2?", "The quick brown fox jumps over the lazy dog, twice.", "x=1"];
    let ways = [("temperature", "0.0"), ("temperature", "1.0"), ("top_p", "0.7"), ("top_k", "5")];
    let expect: Vec<_> = prompts
        .iter()
        .zip(ways)
        .map(|(prompt, (key, value))| {
            generated(
                GOLDEN,
                prompt,
                &[BYTES, seed, tokens, "rollout.temperature=1.0", &format!("rollout.{key}={value}")],
            )
        })
        .collect();
    // More clients than slots, each kind several times, and others in between whose answers are not compared.
    std::thread::scope(|scope| {
        let ask = |i: usize| {
            let (key, value) = ways[i % 4];
            let mut body = json!({
                "prompt": prompts[i % 4], "max_tokens": 24, "temperature": 1.0, "seed": 0, "logprobs": 0,
                "return_token_ids": true, "n": 1 + i % 3,
            });
            body[key] = serde_json::from_str(value).expect("a number");
            let answer = server.post("/v1/completions", &body);
            assert_eq!(answer.status, 200, "{}", answer.body);
            drawn(&answer.json()["choices"][0])
        };
        let clients: Vec<_> = (0..24).map(|i| scope.spawn(move || ask(i))).collect();
        for (i, client) in clients.into_iter().enumerate() {
            assert_eq!(client.join().expect("an answer"), expect[i % 4], "client {i}");
        }
    });
    server.wait_for("kv_blocks_free", |n| n == server.metric("kv_blocks"));
}

#[test]
fn a_run_is_served_by_its_directory_with_the_bits_of_its_evaluation() {
    let folder = Run::new(&std::fs::read_to_string("../../runs/first-lora.toml").expect("a recipe"));
    folder.summary("out", &["train.steps=3", "eval.prompts_max=12", "eval.every=3"]);
    let (server, words) = Server::start_with_words(&[&folder.text_path("out"), "--name", "mine"]);
    // Whose lengths these are, and how to get longer ones.
    let said =
        "64 tokens each, 5 of them new (the lengths of the run); --max-new-tokens N allows longer responses;";
    assert!(words.contains(said), "{words}");
    let (_, words) = Server::start_with_words(&[&folder.text_path("out"), "--prompt-tokens", "20"]);
    let said = "25 tokens each, 5 of them new (the lengths of the run); --prompt-tokens N and --max-new-tokens N allow \
                more, up to the model's 64 in all;";
    assert!(words.contains(said), "{words}");
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "1+1=", "model": "mine" })).status, 200);
    let own = folder.read_lines("out/samples/eval-000003.jsonl");
    assert!(!own.is_empty());
    for row in &own {
        let body = json!({ "prompt": row["prompt"], "temperature": 0, "max_tokens": 5, "logprobs": 1 });
        let answer = server.post("/v1/completions", &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], row["response"], "{answer}");
        assert_eq!(numbers(&choice["logprobs"]["token_logprobs"]), numbers(&row["logprobs"]), "{answer}");
    }
}

#[test]
fn a_seed_gives_the_same_tokens_and_no_seed_gives_others() {
    let server = Server::start(&["builtin:nano", "--set", LAST_MESSAGE]);
    let ask = |more: Value| {
        let mut body = json!({
            "token_ids": [2, 3, 12], "sampling_params": { "max_tokens": 12, "temperature": 3.0, "ignore_eos": true, "n": 3 },
        });
        body["sampling_params"]
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        let answer = server.post("/inference/v1/generate", &body).json();
        answer["choices"]
            .as_array()
            .expect("choices")
            .iter()
            .map(|c| c["token_ids"].clone())
            .collect::<Vec<_>>()
    };
    let (one, other) = (ask(json!({ "seed": 5 })), ask(json!({ "seed": -5 })));
    assert_eq!(one, ask(json!({ "seed": 5 })));
    assert_ne!(one, other);
    assert_ne!(one[0], one[1]);
    assert_ne!(ask(json!({})), ask(json!({})));
    // A response does not depend on how many others were asked for.
    assert_eq!(one[..1], ask(json!({ "seed": 5, "n": 1 })));
    // Another server with the same seed draws the same, without a seed in the request too.
    let again = Server::start(&["builtin:nano"]);
    let first = |server: &Server| {
        let body = json!({ "prompt": "1+", "temperature": 2.0, "return_token_ids": true });
        server.post("/v1/completions", &body).json()["choices"][0]["token_ids"].clone()
    };
    let third = Server::start(&["builtin:nano", "--seed", "1"]);
    assert_eq!(first(&again), first(&Server::start(&["builtin:nano"])));
    assert_ne!(first(&third), first(&Server::start(&["builtin:nano"])));
}

#[test]
fn a_run_file_is_served_as_its_model_with_its_settings() {
    let folder = Folder::new();
    let run = "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"builtin:addition\"\n\
               chat_template = \"{{ messages[-1].content }}\"\n[rollout]\nmax_new_tokens = 4\n\
               [[reward]]\nkind = \"exact\"\n[train]\nsteps = 1\nlearning_rate = 1e-4\n";
    let path = folder.write("run.toml", run);
    let server = Server::start(&[&path]);
    let body = json!({ "messages": super::user("123+456="), "temperature": 0 });
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(
        (&answer["model"], &answer["choices"][0]["finish_reason"]),
        (&json!(path), &json!("stop")),
        "{answer}"
    );
    let long = server.post("/v1/completions", &json!({ "prompt": "1", "max_tokens": 5 }));
    assert_eq!((long.status, long.error().0.as_str()), (400, "serve-too-long"), "{}", long.body);
}
