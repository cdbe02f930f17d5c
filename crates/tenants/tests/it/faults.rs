//! A fault of one model is its own, and changes nothing.

use crate::rig::{SMALL, Server, learn, reinforce, sample, sampler, scored, tokens};
use crate::wire::{next_tokens, pass};
use serde_json::json;

#[test]
fn a_request_that_fails_leaves_its_model_and_others_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), SMALL);
    let client = server.client(0);
    let session = client.session();
    let [plain, faulty] = [0, 1].map(|n| client.model(&session, n));
    let text = tokens(0, 9, 20);
    let heard = |model: &str, fails: bool| {
        let first = scored(&client.result(&learn(&client, model, 0, 1)));
        if fails {
            // A ratio of infinity: no gradient of it is a number.
            let failed = client.value(&reinforce(&client, model, 2, (&text, &[-1e30; 19], 1.0)));
            let said = failed["error"].as_str().unwrap_or_else(|| panic!("{failed}"));
            assert!(said.contains("loss-not-finite") && said.contains("datum 0"), "{said}");
        } else {
            client.value(&client.ok("save_weights", &json!({ "model_id": model, "seq_id": 2, "path": "a" })));
        }
        let norm = client.value(&client.step(model, 3))["metrics"].to_string();
        (first, norm, scored(&client.result(&learn(&client, model, 0, 4))))
    };
    let (a, b) = (heard(&plain, false), heard(&faulty, true));
    assert_eq!((a.1, &a.2), (b.1, &b.2), "the failed request left its model as it was");
    assert!(a.0 != a.2, "it learns");
}

#[test]
fn what_is_beyond_the_plan_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), SMALL);
    let client = server.client(0);
    let session = client.session();
    let unembed = json!({
        "session_id": session, "model_seq_id": 5, "base_model": "nano",
        "lora_config": { "rank": 8, "train_unembed": true, "train_mlp": false, "train_attn": false },
    });
    let said = client.value(&client.ok("create_model", &unembed));
    assert!(said["error"].as_str().unwrap_or_default().contains("train_attn or train_mlp"), "{said}");
    let rank = json!({ "session_id": session, "model_seq_id": 6, "base_model": "nano", "lora_config": { "rank": 9 } });
    client.refused("create_model", &rank, (400, "tinker-bad-request"), &["rank = 9", "1 to 8"]);
    let model = client.model(&session, 0);
    let foreign = pass(&model, 1, "cross_entropy", &[next_tokens(&[1, 5000, 3])], &[]);
    client.pass_refused(&foreign, "tinker-bad-request", &["5000"]);
    let long = pass(&model, 1, "cross_entropy", &[next_tokens(&[1; 200])], &[]);
    client.pass_refused(&long, "tinker-bad-request", &["128"]);
    let id = sampler(&client, &model, 2, 0);
    let body = json!({
        "sampling_session_id": id, "seq_id": 0, "num_samples": 1, "topk_prompt_logprobs": 40,
        "prompt": { "chunks": [{ "tokens": [1, 2, 3], "type": "encoded_text" }] }, "sampling_params": { "max_tokens": 1 },
    });
    let said = client.value(&client.ok("asample", &body));
    assert!(said["error"].as_str().unwrap_or_default().contains("20 is the most"), "{said}");
    // More responses than the engine has places for come one after the other.
    let many = crate::rig::drawn(&client.result(&sample(&client, &id, 1, &[1, 2, 3], (20, 2))));
    assert_eq!((many.tokens.len(), many.prompt.len()), (20, 3));
}
