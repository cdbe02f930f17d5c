//! The verbs `doctor` from outside: what they print, their exit codes, and a container that is too small.

use crate::common::cgroup::Group;
use crate::common::{Folder, check_refused, command, plimsoll, text};
use serde_json::Value;
use std::io::Write;
use std::process::{Output, Stdio};

const LOG: &str = "step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 871.00 MiB is free. Including non-PyTorch memory, this process has 78.20 GiB memory in use. Of the allocated memory 61.10 GiB is allocated by PyTorch, and 14.00 GiB is reserved by PyTorch but unallocated.\nNCCL WARN Cuda failure 'out of memory'\n";

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|err| panic!("{err}: {output:?}"))
}

#[test]
fn a_log_is_named_with_evidence_and_remedies() {
    let folder = Folder::with("a.log", LOG);
    let output = plimsoll(&["doctor", "--json", "--log", &folder.text_path("a.log")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = object(&output);
    assert_eq!((&found["slug"], &found["evidence"][0]["line"]), (&"cuda-oom".into(), &2.into()));
    assert_eq!(found["follows"][0]["slug"], "nccl-device-oom");
    assert!(found["reasons"].to_string().contains("14.00 GiB are reserved but unallocated"), "{found}");
    assert!(found["remedies"].as_array().is_some_and(|steps| steps.len() >= 3), "{found}");
    assert!(found["remedies"][0].to_string().contains("expandable_segments"), "{found}");
    assert!(found["unproven"].is_array() && found["evidence"][0]["file"].is_string(), "{found}");
    let words = text(&plimsoll(&["doctor", "--log", &folder.text_path("a.log")]).stdout);
    for part in ["first cause: cuda-oom\n", "\nseen\n", "\nbecause\n", "\nfollows\n", "\ndo\n  1. "] {
        assert!(words.contains(part), "{part:?}: {words}");
    }
}

#[test]
fn standard_input_and_what_holds_nothing() {
    for (bytes, code, slug, lines) in [
        (LOG, 1, "cuda-oom", 1),
        ("Fatal error: a is damaged\n", 1, "unknown", 1),
        ("RuntimeError: a\n", 1, "exception-raised", 1),
        ("KeyError: 'a'\n", 1, "value-missing", 1),
        ("all is well\n", 1, "none", 0),
        ("", 1, "none", 0),
        ("step 1 loss 0.5\n{'train_runtime': 812.3, 'train_loss': 0.31}\n", 0, "none", 0),
        ("RuntimeError: a\n{'train_runtime': 812.3, 'train_loss': 0.31}\n", 1, "exception-raised", 1),
    ] {
        let mut child = command(&["doctor", "--json", "--log", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        child.stdin.take().expect("a pipe").write_all(bytes.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let found = object(&output);
        assert_eq!(output.status.code(), Some(code), "{bytes:?}: {found}");
        // No failure has no name; that is not an unknown one.
        let named = found["slug"].as_str().unwrap_or("none");
        assert_eq!((named, found["evidence"].as_array().map(Vec::len)), (slug, Some(lines)), "{found}");
        assert_eq!(found["finished"].as_bool(), Some(code == 0), "{found}");
    }
    check_refused(&["doctor", "--log", "no/such.log"], 2, &["error[log-missing]: no/such.log", "hint: "]);
}

#[test]
fn every_example_is_on_the_diagonal() {
    let output = plimsoll(&["doctor", "--self-test"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("examples on the diagonal\n"));
}

#[test]
fn this_machine_is_checked_and_nothing_is_changed() {
    let folder = Folder::new();
    let output =
        command(&["doctor", "--json"]).arg("--dir").arg(folder.path(".")).output().expect("the binary runs");
    let found = object(&output);
    let checks = found["checks"].as_array().expect("a list");
    assert_eq!(checks.len(), 24);
    for check in checks {
        assert!(check["why"].as_str().is_some_and(|why| why.len() > 20), "{check}");
        assert!(check["remedies"].as_array().is_some_and(|steps| !steps.is_empty()), "{check}");
    }
    let has_problem = checks.iter().any(|check| check["state"] == "problem");
    assert_eq!(
        (found["problem"].as_bool(), output.status.code()),
        (Some(has_problem), Some(i32::from(has_problem)))
    );
    assert_eq!(std::fs::read_dir(folder.path(".")).expect("a folder").count(), 0);
}

/// A container as Docker makes it: 2 GiB of memory, 64 MiB of /dev/shm.
#[test]
fn a_small_container_is_a_problem() {
    let Some(group) = Group::new("doctor", 2 << 30) else { return };
    let script = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$0\" doctor --json";
    let output = group
        .command("unshare", &["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_plimsoll")])
        .output()
        .expect("the shell runs");
    if output.stdout.is_empty() {
        eprintln!("skipped: this user may not mount: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let found = object(&output);
    assert_eq!(output.status.code(), Some(1), "{found}");
    for (slug, words) in
        [("machine-container-memory", "limit 2.0 GiB"), ("machine-shared-memory", "/dev/shm has 64.0 MiB")]
    {
        let checks = found["checks"].as_array().expect("a list");
        let check = checks.iter().find(|check| check["slug"] == slug).expect("it is checked");
        assert_eq!(check["state"], "problem", "{check}");
        assert!(check["finding"].as_str().is_some_and(|finding| finding.contains(words)), "{check}");
    }
}
