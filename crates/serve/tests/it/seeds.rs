//! Bits: what a client gets depends on its request and the server's seed, and not on other clients.

use crate::rig::{Options, sampling};
use plimsoll_device::Sampling;
use serde_json::{Value, json};

fn numbers(list: &Value) -> Vec<u32> {
    let bits = |n: &Value| (n.as_f64().expect("a number") as f32).to_bits();
    list.as_array().expect("a list").iter().map(bits).collect()
}

#[test]
fn clients_in_a_crowd_get_the_bits_of_the_engine_alone() {
    let options = Options { sampling: sampling(1.0, 7), new_tokens: 24, ..Options::default() };
    let server = options.clone().serve();
    let prompts = ["a", "What is 2 + 2?", "The quick brown fox jumps over the lazy dog, twice.", "x=1"];
    let ways = [
        ("temperature", json!(0), sampling(0.0, 7)),
        ("temperature", json!(1), sampling(1.0, 7)),
        ("top_p", json!(0.7), Sampling { top_p: 0.7, ..sampling(1.0, 7) }),
        ("top_k", json!(5), Sampling { top_k: 5, ..sampling(1.0, 7) }),
    ];
    let expect: Vec<(Value, Vec<u32>)> = prompts
        .iter()
        .zip(&ways)
        .map(|(prompt, (.., sampling))| {
            let ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
            // A request with seed s draws as sample s.
            let drawn = options.alone(&ids, 3, *sampling);
            (json!(drawn.ids(0)), drawn.logprobs(0).iter().map(|n| n.to_bits()).collect())
        })
        .collect();
    // More clients than slots, each kind several times, with others in between whose answers are not compared.
    std::thread::scope(|scope| {
        let ask = |i: usize| {
            let (key, value, _) = &ways[i % 4];
            let mut body = json!({
                "prompt": prompts[i % 4], "max_tokens": 24, "seed": 3, "logprobs": 0, "return_token_ids": true,
                "n": 1 + i % 3,
            });
            body[key] = value.clone();
            let answer = server.post("/v1/completions", &body);
            assert_eq!(answer.status, 200, "{}", answer.body);
            let choice = &answer.json()["choices"][0];
            (choice["token_ids"].clone(), numbers(&choice["logprobs"]["token_logprobs"]))
        };
        let clients: Vec<_> = (0..24).map(|i| scope.spawn(move || ask(i))).collect();
        for (i, client) in clients.into_iter().enumerate() {
            assert_eq!(client.join().expect("an answer"), expect[i % 4], "client {i}");
        }
    });
    server.wait_for("kv_blocks_free", |n| n == server.metric("kv_blocks"));
}

#[test]
fn a_seed_gives_the_same_tokens_and_no_seed_gives_others() {
    let server = Options::default().serve();
    let ask = |more: Value| {
        let mut body = json!({
            "token_ids": [2, 3, 12], "sampling_params": { "max_tokens": 12, "temperature": 3.0, "ignore_eos": true, "n": 3 },
        });
        let params = body["sampling_params"].as_object_mut().expect("an object");
        params.extend(more.as_object().expect("an object").clone());
        let answer = server.post("/inference/v1/generate", &body).json();
        let choices = answer["choices"].as_array().expect("choices");
        choices.iter().map(|c| c["token_ids"].clone()).collect::<Vec<_>>()
    };
    let (one, other) = (ask(json!({ "seed": 5 })), ask(json!({ "seed": -5 })));
    assert_eq!(one, ask(json!({ "seed": 5 })));
    assert_ne!(one, other);
    assert_ne!(one[0], one[1]);
    assert_ne!(ask(json!({})), ask(json!({})));
    // A response does not depend on how many others were asked for.
    assert_eq!(one[..1], ask(json!({ "seed": 5, "n": 1 })));
}

#[test]
fn servers_with_the_same_seed_draw_the_same_without_a_seed_in_the_request() {
    let first = |seed: u64| {
        let server = Options { sampling: sampling(2.0, seed), ..Options::default() }.serve();
        let body = json!({ "prompt": "1+", "return_token_ids": true, "ignore_eos": true });
        server.post("/v1/completions", &body).json()["choices"][0]["token_ids"].clone()
    };
    assert_eq!(first(0), first(0));
    assert_ne!(first(0), first(1));
}
