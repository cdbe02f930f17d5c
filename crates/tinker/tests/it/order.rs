//! The order of requests, gaps, silent sessions and bounds of a tenant.

use crate::rig::{FIRST, SECOND, Server};
use crate::wire::{self, metric, next_tokens, pass};
use plimsoll_tinker::TinkerLimits;
use serde_json::json;
use std::time::Duration;

#[test]
fn requests_are_done_in_their_order_and_once_however_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path(), TinkerLimits::default());
    let client = server.client(FIRST);
    let (session, data) = (client.session(), [next_tokens(&[1, 2, 3, 4])]);
    let [apart, mixed] = [0, 1].map(|n| client.model(&session, n));
    let body = |model: &str, seq: u64| pass(model, seq, "cross_entropy", &data, &[]);
    // One after another.
    let first = client.result(&client.pass(&body(&apart, 1)));
    client.value(&client.step(&apart, 2));
    let expect = [first, client.result(&client.pass(&body(&apart, 3)))];
    // The last first, and some twice.
    let third = client.pass(&body(&mixed, 3));
    let step = client.step(&mixed, 2);
    assert_eq!(client.step(&mixed, 2), step, "a retry has the same request");
    let first = client.pass(&body(&mixed, 1));
    assert_eq!(client.pass(&body(&mixed, 1)), first);
    let got = [&first, &third].map(|promise| client.result(promise));
    assert_eq!(got, expect);
    assert!(metric(&got[1], "loss:sum") < metric(&got[0], "loss:sum"));
    assert_eq!(client.pass(&body(&mixed, 1)), first, "also after its answer");
    // A refused request leaves no hole.
    client.pass_refused(
        &pass(&mixed, 4, "no_such_loss", &data, &[]),
        "tinker-unknown-loss",
        &["cross_entropy"],
    );
    client.value(&client.step(&mixed, 5));
    client.pass_refused(&body(&mixed, 4), "tinker-order", &[]);
}

#[test]
fn a_request_that_never_comes_fails_those_that_wait_for_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let limits = TinkerLimits { gap_wait: Duration::from_millis(300), ..TinkerLimits::default() };
    let server = Server::new(folder.path(), limits);
    let client = server.client(FIRST);
    let model = client.model(&client.session(), 0);
    let held = client.step(&model, 2);
    let value = client.value(&held);
    assert!(
        value["error"].as_str().unwrap().contains("request 1 of the model") && value["category"] == "user",
        "{value}"
    );
    assert!(client.value(&client.step(&model, 3))["metrics"].is_object());
}

#[test]
fn a_session_without_signs_of_life_is_closed_and_its_model_kept() {
    let folder = tempfile::tempdir().unwrap();
    let limits = TinkerLimits { silence: Duration::from_millis(600), ..TinkerLimits::default() };
    let server = Server::new(folder.path(), limits);
    let client = server.client(FIRST);
    let session = client.session();
    let model = client.model(&session, 0);
    let body = pass(&model, 1, "cross_entropy", &[next_tokens(&[1, 2])], &[]);
    client.result(&client.pass(&body));
    client.value(&client.step(&model, 2));
    let held = client.step(&model, 9);
    let path = format!("tinker://{model}/weights/session-end");
    let is_there = || client.json("weights_info", &json!({ "tinker_path": path })).0 == 200;
    while !is_there() {
        std::thread::sleep(Duration::from_millis(100));
    }
    client.refused(
        "session_heartbeat",
        &json!({ "session_id": session }),
        (410, "tinker-session-closed"),
        &[],
    );
    client.refused(
        "optim_step",
        &json!({ "model_id": model, "seq_id": 3 }),
        (410, "tinker-session-closed"),
        &[],
    );
    assert!(client.value(&held)["error"].as_str().unwrap().contains("tinker-session-closed"));
    let other = client.session();
    let load = json!({ "session_id": other, "model_seq_id": 0, "path": path, "optimizer": true });
    let loaded = client.value(&client.ok("load_weights", &load));
    assert_eq!(loaded["model_id"], format!("{other}:train:0"));
    server.client(SECOND).refused(
        "weights_info",
        &json!({ "tinker_path": path }),
        (404, "tinker-not-found"),
        &[],
    );
}

#[test]
fn a_tenant_has_a_bound_of_requests_and_of_results() {
    let folder = tempfile::tempdir().unwrap();
    let limits = TinkerLimits { pending: 4, result_bytes: 4_000, ..TinkerLimits::default() };
    let server = Server::new(folder.path(), limits);
    let client = server.client(FIRST);
    let model = client.model(&client.session(), 0);
    // Requests whose predecessor is missing stay.
    (2..6).for_each(|seq| drop(client.step(&model, seq)));
    client.refused(
        "optim_step",
        &json!({ "model_id": model, "seq_id": 6 }),
        (429, "tinker-queue-full"),
        &["4 requests"],
    );
    let other = server.client(SECOND);
    let theirs = other.model(&other.session(), 0);
    let data: Vec<Vec<u8>> = (0..20).map(|_| next_tokens(&[1, 2, 3, 4, 5, 6])).collect();
    let body = |seq| wire::pass(&theirs, seq, "cross_entropy", &data, &[]);
    let old = other.pass(&body(1));
    other.result(&old);
    (2..9).for_each(|seq| drop(other.result(&other.pass(&body(seq)))));
    server.tinker.tick();
    let ask = json!({ "request_id": old["request_id"] });
    other.refused("retrieve_future", &ask, (410, "tinker-future-gone"), &["no longer kept"]);
    client.refused("retrieve_future", &ask, (410, "tinker-future-gone"), &[]);
}
