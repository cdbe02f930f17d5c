//! Bodies that are wrong, or made to hurt.

use crate::rig::{FIRST, SECOND, Server};
use crate::wire::{bytes, datum, floats, ids, integer, next_tokens, packed, pass, varint};
use plimsoll_tinker::TinkerLimits;
use serde_json::{Value, json};
use std::slice::from_ref;

#[test]
fn what_is_wrong_is_named_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let session = client.session();
    let model = client.model(&session, 0);
    for (body, slug, has) in bad_passes(&model) {
        client.pass_refused(&body, slug, &[has]);
    }
    // Many empty datums in few bytes.
    let empty: Vec<u8> = [0x1a, 0x00].repeat(1_000_000);
    client.pass_refused(
        &[pass(&model, 0, "cross_entropy", &[], &[]), empty].concat(),
        BAD,
        &["more than 1024 datums"],
    );
    for (path, body, status, slug) in bad_json(&session, &model) {
        client.refused(path, &body, (status, slug), &[]);
    }
    assert_eq!(server.client("tml-somebody-else-00").json("client/config", &json!({})).0, 401);
    server.client(SECOND).refused("get_info", &json!({ "model_id": model }), (404, "tinker-not-found"), &[]);
    // The model is as it was, and compressed bodies are read within a bound.
    let zeros = zstd::bulk::compress(&vec![0; 80 << 20], 3).unwrap();
    let mut out = Vec::new();
    varint(1, &mut out);
    let request = ureq::post(format!("{}forward_backward", server.address)).header("X-API-Key", FIRST);
    let sent = request
        .header("Content-Encoding", "zstd")
        .config()
        .http_status_as_error(false)
        .build()
        .send(&zeros[..]);
    assert_eq!(sent.unwrap().status().as_u16(), 400);
    assert!(client.value(&client.step(&model, 1))["metrics"].is_object());
}

const BAD: &str = "tinker-bad-request";

/// Passes with the slug of their refusal and a part of its text.
fn bad_passes(model: &str) -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let good = next_tokens(&[1, 2, 3]);
    let one = |loss: &str, datums: &[Vec<u8>], options: &[(&str, f64)]| pass(model, 0, loss, datums, options);
    let target = ("target_tokens", ids(&[2, 3]));
    let image = bytes(1, &bytes(2, &bytes(1, b"PNG")));
    let mut all = vec![
        (one("stable_reinforce", from_ref(&good), &[]), "tinker-unknown-loss", "importance_sampling"),
        (
            one("importance_samplng", from_ref(&good), &[]),
            "tinker-unknown-loss",
            "did you mean \"importance_sampling\"",
        ),
        (one("cross_entropy", from_ref(&good), &[("beta", 1.0)]), "tinker-unknown-key", "has none"),
        (one("cross_entropy", &[], &[]), BAD, "no datum"),
        (one("ppo", from_ref(&good), &[]), "tinker-unknown-key", "weights"),
        (one("ppo", &[datum(&[1, 2], from_ref(&target))], &[]), BAD, "needs the input \"logprobs\""),
        (
            one("cross_entropy", &[datum(&[1, 2], &[target.clone(), ("mask", floats(&[1.0, 1.0]))])], &[]),
            "tinker-unknown-key",
            "mask",
        ),
        (one("cross_entropy", &[datum(&[1, 2], &[("target_tokens", ids(&[2, -100]))])], &[]), BAD, "-100"),
        (one("cross_entropy", &[datum(&[1, 128], from_ref(&target))], &[]), BAD, "below 128"),
        (one("cross_entropy", &[datum(&[1, 2, 3], from_ref(&target))], &[]), BAD, "[2]"),
        (
            one(
                "cross_entropy",
                &[datum(&[1, 2], &[target.clone(), ("weights", floats(&[f32::NAN, 1.0]))])],
                &[],
            ),
            BAD,
            "weights[0]",
        ),
        (one("cross_entropy", &[image], &[]), "tinker-no-images", "an image"),
        (one("ppo", from_ref(&good), &[("clip_low_threshold", 2.0)]), BAD, "above the upper"),
        (
            [integer(2, 1), bytes(1, model.as_bytes()), vec![0x1a, 0xff]].concat(),
            BAD,
            "ForwardBackwardRequest",
        ),
    ];
    all.extend(bad_tensors(model));
    all
}

/// Passes whose targets are no tensors.
fn bad_tensors(model: &str) -> Vec<(Vec<u8>, &'static str, &'static str)> {
    let sparse = |crow: &[i64], col: &[i64], shape: &[usize]| {
        let raw = |n: &[i64]| n.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let csr = [bytes(1, &raw(&vec![5; col.len()])), bytes(2, &raw(crow)), bytes(3, &raw(col))].concat();
        [bytes(2, &csr), integer(3, 2), bytes(4, &packed(shape))].concat()
    };
    let bad = [
        (integer(3, 9), "dtype 9"),
        (sparse(&[0], &[], &[1 << 60, 0]), "CSR"),
        (sparse(&[0, 1, 1], &[7], &[2, 7]), "outside"),
        (sparse(&[0, 0, 0], &[], &[2, 1 << 40]), "more numbers"),
    ];
    let of = |targets| pass(model, 0, "cross_entropy", &[datum(&[1, 2], &[("target_tokens", targets)])], &[]);
    bad.into_iter().map(|(targets, has)| (of(targets), BAD, has)).collect()
}

/// Paths, bodies, and the status and slug of their refusal.
fn bad_json(session: &str, model: &str) -> Vec<(&'static str, Value, u16, &'static str)> {
    vec![
        ("optim_step", json!({ "model_id": model, "adam_params": { "learning_rate": -1 } }), 400, BAD),
        ("optim_step", json!({ "model_id": model, "optimizer_params": { "type": "dimuon" } }), 400, BAD),
        ("optim_step", json!({ "model_id": "none" }), 404, "tinker-not-found"),
        ("save_weights", json!({ "model_id": model, "path": "../../etc/passwd" }), 400, BAD),
        ("load_weights", json!({ "model_id": model, "path": "tinker://a/weights/../x" }), 400, BAD),
        (
            "create_model",
            json!({ "session_id": session, "model_seq_id": 1, "base_model": "fake/tinny" }),
            404,
            "tinker-not-found",
        ),
        (
            "create_model",
            json!({ "session_id": session, "model_seq_id": 1, "base_model": "fake/tiny", "lora_config": { "rank": 65 } }),
            400,
            BAD,
        ),
        ("forward_backwrd", json!({}), 404, "tinker-unknown-route"),
        (
            "asample",
            json!({ "sampling_session_id": "x", "prompt": { "chunks": [] }, "sampling_params": {} }),
            404,
            "tinker-not-found",
        ),
        ("retrieve_future", json!({ "request_id": "9999999" }), 404, "tinker-not-found"),
        ("create_session", json!([1]), 400, BAD),
    ]
}
