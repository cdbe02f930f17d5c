//! Tests what is served has the bits of `generate` and `eval`.

use super::client::Server;
use super::{BYTES, GOLDEN};
use crate::common::{Folder, plimsoll, text};
use crate::run::Run;
use serde_json::{Value, json};

/// Returns what `generate` prints.
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
fn a_client_gets_the_bits_that_generate_prints() {
    let server = Server::start(&[GOLDEN, "--seed", "7", "--set", BYTES, "--sequences", "4"]);
    let prompt = "What is 2 + 2?";
    let sets = [BYTES, "seed=7", "rollout.max_new_tokens=24", "rollout.temperature=1.0", "rollout.top_p=0.7"];
    let body = json!({
        "prompt": prompt, "max_tokens": 24, "temperature": 1.0, "top_p": 0.7, "seed": 0, "logprobs": 0,
        "return_token_ids": true, "n": 3,
    });
    let answer = server.post("/v1/completions", &body).json();
    assert_eq!(drawn(&answer["choices"][0]), generated(GOLDEN, prompt, &sets), "{answer}");
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
