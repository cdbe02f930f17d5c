//! Who gets a place, and with which numbers a response draws.

use super::*;
use crate::protocol::completions;
use crate::rig::{EOS, LIMITS, state};
use serde_json::{Value, json};

fn submit(state: &Arc<ServerState>, body: &Value) -> Reply<RequestOutput> {
    let parsed = completions::read(body.to_string().as_bytes(), state, None)?;
    state.submit(parsed.prompts, None, parsed.params, parsed.delivery.stream, parsed.usual_tokens)
}

fn refused(state: &Arc<ServerState>, body: &Value) -> (String, String) {
    let refusal = submit(state, body).map(|_| ()).expect_err("it is refused");
    (refusal.error.slug.into(), refusal.error.message.clone())
}

#[test]
fn places_are_taken_whole_and_given_back_when_the_client_goes() {
    let (state, inbox) = state("");
    let two = json!({ "prompt": "a", "n": 2 });
    let three = json!({ "prompt": ["a", "b", "c"] });
    // Seven places: four run and three wait.
    let (first, second) = (submit(&state, &three), submit(&state, &two));
    assert!(first.is_ok() && second.is_ok());
    let (slug, message) = refused(&state, &three);
    assert_eq!(slug, "serve-queue-full");
    assert!(message.starts_with("3 more responses have no room: 5 of 7 places are taken"), "{message}");
    let third = submit(&state, &two);
    assert!(third.is_ok() && submit(&state, &json!({ "prompt": "a" })).is_err());
    drop(second);
    assert!(submit(&state, &two).is_ok());
    // A refused request has sent nothing, and one whose client has gone says so to the engine.
    let sent: Vec<QueuedRequest> = inbox.try_iter().collect();
    assert_eq!(sent.len(), 3 + 3);
    let is_left: Vec<bool> = sent.iter().map(|request| request.outbox.is_left()).collect();
    assert_eq!(is_left, [false, false, false, true, false, true]);
    assert_eq!((state.metrics.requests.get(), state.metrics.prompt_tokens.get()), (4, 6));
}

#[test]
fn what_can_never_be_taken_is_no_matter_of_time() {
    let (state, _inbox) = state("");
    let many = vec!["a"; LIMITS.responses() + 1];
    for (body, words) in [
        (json!({ "prompt": "a", "n": 5 }), "n = 5: 4 responses run at one time here"),
        (json!({ "prompt": many }), "8 responses, and this server holds 7"),
        (json!({ "prompt": "" }), "the prompt has no token"),
    ] {
        let (slug, message) = refused(&state, &body);
        assert_eq!((slug.as_str(), message.as_str()), ("serve-bad-request", words));
    }
    for (prompt, new, words) in [
        (64, 1, "the prompt has 64 tokens, and 64 is the most with its response"),
        (8, 17, "17 new tokens, and 16 is the most of a response"),
        (60, 5, "60 tokens of prompt and 5 new ones are 65, and 64 is the most"),
    ] {
        let (slug, message) = refused(&state, &json!({ "prompt": "x".repeat(prompt), "max_tokens": new }));
        assert_eq!((slug.as_str(), message.as_str()), ("serve-too-long", words));
    }
    // None of them holds a place.
    assert!(submit(&state, &json!({ "prompt": vec!["a"; LIMITS.responses()] })).is_ok());
}

#[test]
fn a_request_draws_with_its_seed_and_its_choices_with_numbers_of_their_own() {
    let (state, inbox) = state("");
    let ids = |body: Value| -> Vec<u64> {
        let output = submit(&state, &body);
        assert!(output.is_ok(), "{body}");
        inbox.try_iter().flat_map(|request| request.prompt.sample_ids).collect()
    };
    let one = ids(json!({ "prompt": "a", "seed": 5 }));
    assert_eq!(one, [5], "seed s draws as sample s of a rollout");
    let several = ids(json!({ "prompt": ["a", "b"], "n": 2, "seed": 5 }));
    assert_eq!(several[..1], one);
    let mut unique = several.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 4, "{several:?}");
    assert_eq!(ids(json!({ "prompt": "a", "seed": -1 })), [u64::MAX]);
    let (first, second) = (ids(json!({ "prompt": "a" })), ids(json!({ "prompt": "a" })));
    assert_ne!(first, second);
}

#[test]
fn what_ends_a_response_is_the_model_s_end_and_what_the_request_names() {
    let (state, inbox) = state("");
    let ends = |more: Value| -> Vec<u32> {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let output = submit(&state, &body);
        assert!(output.is_ok(), "{body}");
        inbox.recv().expect("a request").params.ends.to_vec()
    };
    assert_eq!(ends(json!({})), [EOS]);
    assert_eq!(ends(json!({ "stop_token_ids": [9, EOS, 3, 9] })), [3, 9, EOS]);
    assert_eq!(ends(json!({ "ignore_eos": true })), [0; 0]);
    let all: Vec<u32> = (0..129).collect();
    let (slug, message) = refused(&state, &json!({ "prompt": "a", "stop_token_ids": all }));
    assert_eq!(slug, "serve-bad-request");
    assert!(message.contains("130 tokens that end a response, 128 is the most"), "{message}");
}

#[test]
fn a_server_that_stops_takes_nothing_and_a_dead_engine_is_said_so() {
    let (open, inbox) = state("");
    assert!(open.check_open().is_ok());
    open.stop();
    assert_eq!(open.check_open().expect_err("it stops").error.slug, "serve-stopping");
    drop(inbox);
    assert_eq!(refused(&open, &json!({ "prompt": "a" })).0, "serve-stopping");
}
