//! One client from its first request to the end of its session.

use crate::rig::{Client, FIRST, SECOND, Server};
use crate::wire::{datum, floats, ids, metric, next_tokens, pass};
use plimsoll_tinker::TinkerLimits;
use serde_json::json;

#[test]
fn a_client_trains_saves_samples_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    for (path, body) in [
        ("client/config", json!({ "sdk_version": "0.38.0" })),
        ("client/dynamic_config", json!({})),
        ("telemetry", json!({ "events": [] })),
    ] {
        client.ok(path, &body);
    }
    assert_eq!(client.get("get_server_capabilities").1["supported_models"][0]["model_name"], "fake/tiny");
    let session = client.session();
    client.ok("session_heartbeat", &json!({ "session_id": session }));
    let model = client.model(&session, 0);
    assert_eq!(client.ok("get_info", &json!({ "model_id": model }))["lora_rank"], 8);
    let one = |seq: u64, loss: &str, options: &[(&str, f64)]| {
        let inputs = [
            ("target_tokens", ids(&[2, 3])),
            ("logprobs", floats(&[-4.0, -5.0])),
            ("advantages", floats(&[1.0, -2.0])),
        ];
        pass(&model, seq, loss, &[datum(&[1, 2], &inputs)], options)
    };
    let is = client.result(&client.pass(&one(1, "importance_sampling", &[])));
    let wide = client.result(&client.pass(&one(
        2,
        "ppo",
        &[("clip_low_threshold", 0.0), ("clip_high_threshold", 1e9)],
    )));
    assert_eq!(metric(&is, "loss:sum"), metric(&wide, "loss:sum"));
    client.value(&client.step(&model, 3));
    saves_and_samples(&client, &session, &model);
}

/// Saves under names, samples from one of them, loads another and lists all.
fn saves_and_samples(client: &Client, session: &str, model: &str) {
    let save = |path: &str, body: serde_json::Value| client.value(&client.ok(path, &body));
    let state = save("save_weights", json!({ "model_id": model, "seq_id": 4, "path": "a" }))["path"].clone();
    assert_eq!(state, format!("tinker://{model}/weights/a"));
    let taken = save("save_weights", json!({ "model_id": model, "seq_id": 5, "path": "a" }));
    assert!(taken["error"].as_str().unwrap().contains("tinker-name-taken") && taken["category"] == "user");
    assert_eq!(
        save("save_weights", json!({ "model_id": model, "seq_id": 6, "path": "a", "overwrite": true }))["path"],
        state
    );
    let named = save(
        "save_weights_for_sampler",
        json!({ "model_id": model, "seq_id": 7, "path": "a", "kind": "snapshot" }),
    );
    let sampler = json!({ "session_id": session, "sampling_session_seq_id": 0, "model_path": named["path"] });
    let id = client.ok("create_sampling_session", &sampler)["sampling_session_id"].clone();
    assert_eq!(client.get(&format!("samplers/{}", id.as_str().unwrap())).1["model_path"], named["path"]);
    let sample = json!({
        "sampling_session_id": id, "seq_id": 0, "num_samples": 1, "prompt_logprobs": true, "topk_prompt_logprobs": 0,
        "prompt": { "chunks": [{ "tokens": [1, 2, 3], "type": "encoded_text" }] }, "sampling_params": { "max_tokens": 1 },
    });
    let drawn = client.result(&client.ok("asample", &sample));
    // The sampler's log-probs of the prompt are the trainer's, to the bit.
    let again =
        client.result(&client.pass(&pass(model, 8, "cross_entropy", &[next_tokens(&[1, 2, 3])], &[])));
    let field = again.windows(8).find(|window| {
        drawn.windows(8).any(|other| other == *window && window.iter().filter(|b| **b == 0).count() < 2)
    });
    assert!(field.is_some(), "two floats are in both results");
    let load = json!({ "session_id": session, "model_seq_id": 1, "path": state, "optimizer": true });
    assert_eq!(client.value(&client.ok("load_weights", &load))["model_id"], format!("{session}:train:1"));
    let listed = client.get(&format!("training_runs/{model}/checkpoints")).1;
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 2);
    assert_eq!(client.get("training_runs").1["cursor"]["total_count"], 2);
    client.ok(
        &format!("sessions/{session}/finish"),
        &json!({ "reason": { "type": "success" }, "detail": null }),
    );
    client.refused(
        "session_heartbeat",
        &json!({ "session_id": session }),
        (410, "tinker-session-closed"),
        &[],
    );
}

#[test]
fn saved_weights_are_downloaded_from_addresses_that_need_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let model = client.model(&client.session(), 0);
    let body = json!({ "model_id": model, "seq_id": 1, "path": "a" });
    let saved = client.value(&client.ok("save_weights_external", &body));
    assert_eq!(saved["path"], format!("tinker://{model}/external_weights/a"));
    let store =
        std::fs::read_dir(folder.path()).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap();
    let weights = std::fs::read(store.path().join("adapter_model.safetensors")).unwrap();
    let of = format!("training_runs/{}/checkpoints/external_weights/a", model.replace(':', "%3A"));
    let (status, urls) = client.get(&format!("{of}/external_weights_urls"));
    assert!(status == 200 && urls["expires"].as_str().unwrap().ends_with('Z'), "{urls}");
    let names: Vec<&String> = urls["urls"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["adapter_model.safetensors", "checkpoint_complete"]);
    let url = |name: &str| urls["urls"][name].as_str().unwrap();
    assert_eq!(client.download(url(names[0])), (200, weights.len(), weights.clone()));
    assert_eq!(client.download(url(names[1])), (200, 0, Vec::new()));
    let (_, archive) = client.get(&format!("{of}/archive"));
    let (status, length, tar) = client.download(archive["url"].as_str().unwrap());
    assert_eq!(
        (status, length, tar.len()),
        (200, tar.len(), 512 + weights.len().next_multiple_of(512) + 512 + 1024)
    );
    assert_eq!(
        (&tar[..25], &tar[512..512 + weights.len()]),
        (&b"adapter_model.safetensors"[..], &weights[..])
    );
    // Others find nothing, and neither does anyone by another name, another word, or once it is deleted.
    assert_eq!(server.client(SECOND).get(&format!("{of}/archive")).0, 404);
    let other = url(names[0]).replace("adapter_model.safetensors", "..%2Fjournal");
    assert_eq!(client.download(&other).0, 404);
    assert_eq!(client.download(&url(names[0]).replacen("files/", "files/0", 1)).0, 404);
    let (status, _) = client.delete(&of);
    assert_eq!((status, client.download(url(names[0])).0), (200, 404));
}
