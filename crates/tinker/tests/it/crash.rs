//! What a crash leaves. A crash is a copy of the journal and of what was saved, opened by another server.

use crate::rig::{Client, FIRST, Server, settings};
use crate::wire::{next_tokens, pass};
use plimsoll_tinker::{Tinker, TinkerLimits};
use serde_json::{Value, json};
use std::path::Path;

fn copied(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).unwrap();
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        let there = to.join(file.file_name());
        if file.path().is_dir() {
            std::fs::create_dir(&there).unwrap();
            copied(&file.path(), &there);
        } else {
            // A journal that is written anew gets its name meanwhile.
            let copied = std::fs::copy(file.path(), there);
            assert!(copied.is_ok() || file.file_name() != "journal", "{file:?}");
        }
    }
}

/// Trains from step `from` to step `to`, and returns the requests and results.
fn train(client: &Client, model: &str, from: u64, to: u64) -> Vec<(Value, Vec<u8>)> {
    let mut done = Vec::new();
    for step in from..to {
        let data: Vec<Vec<u8>> =
            (0..30).map(|i| next_tokens(&[i, (step as i32 * 3 + i) % 128, 9, 4])).collect();
        let all = [
            client.pass(&pass(model, 2 * step + 1, "cross_entropy", &data, &[])),
            client.step(model, 2 * step + 2),
        ];
        done.extend(all.map(|promise| {
            let result = client.result(&promise);
            (promise, result)
        }));
    }
    done
}

#[test]
fn training_over_crashes_has_the_bits_of_training_without() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // Small bounds, so that models are saved and the journal is written anew between two crashes.
    let limits = TinkerLimits { recover_bytes: 9_000, compact_bytes: 12_000, ..TinkerLimits::default() };
    let mut server = Server::new(a.path(), limits);
    let client = server.client(FIRST);
    let session = client.session();
    let [whole, model] = [0, 1].map(|n| client.model(&session, n));
    let expect: Vec<Vec<u8>> = train(&client, &whole, 0, 12).into_iter().map(|(_, result)| result).collect();
    let sampler = client.ok(
        "save_weights_for_sampler",
        &json!({ "model_id": whole, "seq_id": 25, "sampling_session_seq_id": 0 }),
    );
    let sampler = client.value(&sampler)["sampling_session_id"].clone();
    let sample = json!({
        "sampling_session_id": sampler, "seq_id": 0, "num_samples": 2, "prompt": { "chunks": [{ "tokens": [1, 2], "type": "encoded_text" }] },
        "sampling_params": { "max_tokens": 8 },
    });
    let asked = client.ok("asample", &sample);
    assert_eq!(asked["sample_sequence_ids"].as_array().unwrap().len(), 2);
    let drawn = client.result(&asked);
    let (mut got, mut folders) = (Vec::new(), [a.path(), b.path()]);
    for (from, to) in [(0, 1), (1, 5), (5, 6), (6, 12)] {
        got.extend(train(&server.client(FIRST), &model, from, to));
        server.tinker.tick();
        // Nothing is removed while it is copied.
        server.end_engine();
        copied(folders[0], folders[1]);
        folders.reverse();
        server = Server::new(folders[0], limits);
        let client = server.client(FIRST);
        for (promise, result) in &got {
            assert_eq!(client.result(promise), *result, "what was answered is as it was");
        }
        assert_eq!(client.result(&asked), drawn);
    }
    let results: Vec<Vec<u8>> = got.into_iter().map(|(_, result)| result).collect();
    assert_eq!(results, expect);
    let client = server.client(FIRST);
    let mut again = sample.clone();
    again["seq_id"] = 1.into();
    again["sampling_params"]["seed"] = 5.into();
    assert!(!client.result(&client.ok("asample", &again)).is_empty(), "the sampler is still there");
    let length = std::fs::metadata(folders[0].join("journal")).unwrap().len();
    assert!(length < 120_000, "{length} bytes of a journal that was cut");
}

#[test]
fn what_was_accepted_is_done_after_a_restart() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let tinker = Tinker::start(settings(a.path(), TinkerLimits::default())).unwrap();
    drop(tinker);
    let server = Server::new(a.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let model = client.model(&client.session(), 0);
    // It waits for the one before it, which comes after the crash.
    let step = client.step(&model, 2);
    copied(a.path(), b.path());
    let server = Server::new(b.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let first = client.pass(&pass(&model, 1, "cross_entropy", &[next_tokens(&[1, 2, 3])], &[]));
    assert!(!client.result(&first).is_empty());
    assert!(client.value(&step)["metrics"].is_object());
    assert_eq!(client.step(&model, 2), step);
}

#[test]
fn results_that_differ_after_a_restart_are_named() {
    let [a, b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let server = Server::new(a.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let model = client.model(&client.session(), 0);
    train(&client, &model, 0, 1);
    let save = client.ok("save_weights", &json!({ "model_id": model, "seq_id": 3, "path": "x" }));
    assert!(client.value(&save)["path"].is_string());
    client.value(&client.step(&model, 4));
    train(&client, &model, 2, 3);
    copied(a.path(), b.path());
    // Somebody changes what was saved.
    let store = std::fs::read_dir(b.path())
        .unwrap()
        .flatten()
        .find(|file| file.file_name() != "journal")
        .unwrap()
        .path()
        .join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&store).unwrap();
    bytes.iter_mut().skip(3).step_by(4).take(128 * 128).for_each(|byte| *byte ^= 0x80);
    std::fs::write(&store, bytes).unwrap();
    let server = Server::new(b.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let refused = loop {
        let (status, value) = client.json("get_info", &json!({ "model_id": model }));
        if status != 200 {
            break value;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    assert!(refused["detail"].as_str().unwrap().contains("another result"), "{refused}");
}
