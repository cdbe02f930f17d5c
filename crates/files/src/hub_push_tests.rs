//! Uploads against a hub in this process.

#[path = "../tests/fake_hub/mod.rs"]
mod fake_hub;

use super::*;
use crate::writer::digest;
use fake_hub::{COMMIT, FakeHub, Fault, State, TOKEN, committed};
use std::path::Path;
use std::time::Duration;

fn wire(hub: &FakeHub, token: &str) -> Wire {
    let own = Hub {
        cache: "/none".into(),
        endpoint: hub.endpoint.clone(),
        offline: false,
        token: Some(token.into()),
    };
    let mut wire = Wire::new(own).expect("it has a token");
    wire.pause = Duration::from_millis(1);
    wire
}

fn weights() -> Vec<u8> {
    (0..250_000u32).flat_map(|i| i.to_le_bytes()).collect()
}

/// Weights on disk, and a text.
fn files(folder: &Path) -> Vec<PushFile> {
    let path = folder.join("model.safetensors");
    std::fs::write(&path, weights()).expect("a file");
    let file = |path: &str, content: PushContent, bytes: &[u8]| PushFile {
        path: path.into(),
        content,
        bytes: bytes.len() as u64,
        sha256: digest(bytes),
    };
    let card = "# Größe\n";
    vec![
        file("model.safetensors", PushContent::File(path), &weights()),
        file("README.md", PushContent::Text(card.into()), card.as_bytes()),
    ]
}

fn wish(folder: &Path) -> Push {
    let target = PushTarget::parse("hf:o/m").expect("a name");
    Push { target, files: files(folder), create: false, public: false, summary: "step 1".into() }
}

fn state(private: bool) -> State {
    State { repos: [("o/m".to_string(), private)].into(), ..State::default() }
}

#[test]
fn names_of_targets() {
    for (text, expect) in [
        ("hf:o/m", Some("hf:o/m")),
        ("hf:o/m@main", Some("hf:o/m")),
        ("hf:o/m@next/try", Some("hf:o/m@next/try")),
        ("o/m", None),
        ("hf:m", None),
        ("hf:o/m/x", None),
        ("hf:../m", None),
        ("hf:o/m@", None),
        ("hf:o/m@../x", None),
    ] {
        let found = PushTarget::parse(text);
        assert_eq!(found.as_ref().ok().map(ToString::to_string).as_deref(), expect, "{text}");
        assert!(found.is_ok() || found.unwrap_err().slug == "push-target-invalid");
    }
}

/// In one piece and in parts; a second push sends no weights.
#[test]
fn a_push_arrives_whole_and_is_not_sent_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    for part_bytes in [0, 300_000] {
        let hub = FakeHub::start(State { part_bytes, ..state(true) });
        let mut seen = Vec::new();
        let pushed =
            push_with(&wire(&hub, TOKEN), &wish(folder.path()), &mut |done, all| seen.push((done, all)))
                .expect("a push");
        assert_eq!(
            (pushed.commit.as_str(), pushed.sent, pushed.already_there),
            (COMMIT, Bytes(1_000_000), Bytes(0))
        );
        assert_eq!(pushed.url, format!("{}/o/m", hub.endpoint));
        assert_eq!(seen.last(), Some(&(Bytes(1_000_000), Bytes(1_000_000))));
        assert!(seen.iter().all(|(done, all)| done <= all), "{part_bytes}");
        let again = push_with(&wire(&hub, TOKEN), &wish(folder.path()), &mut |_, _| {}).expect("a push");
        assert_eq!((again.sent, again.already_there), (Bytes(0), Bytes(1_000_000)));
        let num_puts = hub.count("PUT /store/");
        assert_eq!(num_puts, if part_bytes == 0 { 1 } else { 4 });
        let state = hub.state();
        assert_eq!(committed(&state, "model.safetensors").as_deref(), Some(&weights()[..]));
        assert_eq!(committed(&state, "README.md").as_deref(), Some("# Größe\n".as_bytes()));
        assert_eq!(state.commits[0][0]["value"]["summary"], "step 1");
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
    }
}

#[test]
fn a_repository_is_made_private_unless_public_is_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    for public in [false, true] {
        let hub = FakeHub::start(State::default());
        let made = Push { create: true, public, ..wish(folder.path()) };
        push_with(&wire(&hub, TOKEN), &made, &mut |_, _| {}).expect("a push");
        assert_eq!(hub.state().repos.get("o/m"), Some(&!public));
    }
    let open = FakeHub::start(state(false));
    let error = push_with(&wire(&open, TOKEN), &wish(folder.path()), &mut |_, _| {}).unwrap_err();
    assert_eq!((error.slug, open.count("POST")), ("push-public", 0));
    let meant = Push { public: true, ..wish(folder.path()) };
    push_with(&wire(&open, TOKEN), &meant, &mut |_, _| {}).expect("a push");
}

/// A cut upload, a server that fails, one that asks for a pause, an address that has expired: each is tried again.
#[test]
fn what_passes_is_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for (part_bytes, faults) in [
        (0, vec![("PUT /store/", Fault::Cut(500_000))]),
        (
            0,
            vec![
                ("PUT /store/", Fault::Status(500, None)),
                ("POST /api/models/o/m/commit", Fault::Status(502, None)),
            ],
        ),
        (0, vec![("PUT /store/", Fault::Status(403, None))]),
        (
            300_000,
            vec![
                ("/2?", Fault::Cut(10)),
                ("/3?", Fault::Status(403, None)),
                ("/complete", Fault::Status(503, None)),
            ],
        ),
        (0, vec![("objects/batch", Fault::Status(429, Some(1))), ("/preupload/", Fault::Cut(3))]),
    ] {
        let hub = FakeHub::start(State { part_bytes, faults, ..state(true) });
        push_with(&wire(&hub, TOKEN), &wish(folder.path()), &mut |_, _| {}).expect("a push");
        let state = hub.state();
        assert!(state.faults.is_empty() && state.commits.len() == 1, "{:?}", state.log);
        assert_eq!(committed(&state, "model.safetensors").as_deref(), Some(&weights()[..]));
        assert!(state.wrong.is_empty(), "{:?}", state.wrong);
    }
}

#[test]
fn what_does_not_pass_has_a_name_and_not_the_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let always = |part: &'static str, fault: Fault| vec![(part, fault); 32];
    for (slug, words, faults) in [
        ("push-refused", "403", always("/commit/", Fault::Status(403, None))),
        ("push-repo-missing", "404", always("/preupload/", Fault::Status(404, None))),
        (
            "push-conflict",
            "the commit: the hub answered 409: as was asked for",
            always("/commit/", Fault::Status(409, None)),
        ),
        ("push-conflict", "412", always("/commit/", Fault::Status(412, None))),
        ("push-too-large", "413", always("PUT /store/", Fault::Status(413, None))),
        ("push-rate-limited", "5 attempts", always("/commit/", Fault::Status(429, None))),
        ("push-rate-limited", "a pause of 3600 s", always("/commit/", Fault::Status(429, Some(3600)))),
        ("push-interrupted", "5 attempts", always("GET /api", Fault::Status(500, None))),
        ("push-interrupted", "5 attempts", always("PUT /store/", Fault::Cut(1000))),
        (
            "push-interrupted",
            "the store answered 403, 3 attempts",
            always("PUT /store/", Fault::Status(403, None)),
        ),
        ("push-rejected", "422", always("/commit/", Fault::Status(422, None))),
        ("push-rejected", "307", always("/commit/", Fault::Status(307, None))),
    ] {
        let hub = FakeHub::start(State { faults, ..state(true) });
        let error = push_with(&wire(&hub, TOKEN), &wish(folder.path()), &mut |_, _| {}).expect_err(words);
        assert_eq!(error.slug, slug, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(!error.to_string().contains("signature") && !error.to_string().contains(TOKEN), "{error}");
        assert!(hub.state().commits.is_empty(), "{words}");
    }
    // Its answer repeats what it was sent.
    let hub = FakeHub::start(state(true));
    let error = push_with(&wire(&hub, "wrong-token-123"), &wish(folder.path()), &mut |_, _| {}).unwrap_err();
    assert!(error.slug == "push-refused" && !error.to_string().contains("wrong-token-123"), "{error}");
    let missing = FakeHub::start(State::default());
    let error = push_with(&wire(&missing, TOKEN), &wish(folder.path()), &mut |_, _| {}).unwrap_err();
    assert!(error.slug == "push-repo-missing" && error.to_string().contains("--create"), "{error}");
}

/// Shows that what was sent before the break is not sent again.
#[test]
fn a_push_that_broke_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut wish = wish(folder.path());
    let second = PushFile {
        path: "model-2.safetensors".into(),
        sha256: digest(b"two"),
        bytes: 3,
        content: PushContent::Text("two".into()),
    };
    wish.files.push(second);
    let faults = vec![("POST /api/models/o/m/commit", Fault::Cut(0)); 5];
    let hub = FakeHub::start(State { faults, ..state(true) });
    assert_eq!(push_with(&wire(&hub, TOKEN), &wish, &mut |_, _| {}).unwrap_err().slug, "push-interrupted");
    let puts = hub.count("PUT");
    let pushed = push_with(&wire(&hub, TOKEN), &wish, &mut |_, _| {}).expect("a push");
    assert_eq!((hub.count("PUT"), pushed.already_there), (puts, Bytes(1_000_003)));
}

#[test]
fn nothing_is_sent_without_a_token_or_offline() {
    let own = |offline, token: Option<&str>| Hub {
        cache: "/none".into(),
        endpoint: "http://127.0.0.1:1".into(),
        offline,
        token: token.map(str::to_string),
    };
    assert_eq!(Wire::new(own(false, None)).err().map(|error| error.slug), Some("push-refused"));
    assert_eq!(Wire::new(own(true, Some("t"))).err().map(|error| error.slug), Some("hub-unreachable"));
    let secure =
        Wire::new(Hub { endpoint: "https://hub.example".into(), ..own(false, Some("t")) }).expect("a wire");
    assert!(secure.require_safe("https://store.example/x").is_ok());
    assert_eq!(secure.require_safe("http://store.example/x").unwrap_err().slug, "push-rejected");
}

#[test]
fn a_file_that_is_gone_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let wish = wish(folder.path());
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("it was there");
    let hub = FakeHub::start(state(true));
    let error = push_with(&wire(&hub, TOKEN), &wish, &mut |_, _| {}).unwrap_err();
    assert!(
        error.slug == "push-file-unreadable" && error.to_string().contains("model.safetensors"),
        "{error}"
    );
}
