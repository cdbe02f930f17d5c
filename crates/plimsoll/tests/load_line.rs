//! The load line from outside: limits as `plan` shows them, and a run that goes over its plan.

mod common;

use common::{plimsoll, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/first.toml");

fn plan(args: &[&str]) -> Value {
    let output = plimsoll(&[&["plan", FIRST, "--json"], args].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {}", text(&output.stderr)))
}

#[test]
fn plan_shows_every_limit_and_where_it_was_read() {
    let object = plan(&[]);
    let limits = object["limits"].as_array().expect("a list");
    for name in ["container memory", "free memory", "free disk", "shared memory", "open files", "overcommit"]
    {
        let row = limits.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {object}"));
        assert!(row["source"].is_string() && row["state"].is_string(), "{row}");
    }
    assert!(
        object["pools"]["disk"]["limit_source"].as_str().is_some_and(|s| s.starts_with("free disk at /")),
        "{object}"
    );
    let table = plimsoll(&["plan", FIRST]);
    let table = text(&table.stdout);
    assert!(
        table.starts_with("limits of this machine\n") && table.contains("/proc/meminfo MemAvailable"),
        "{table}"
    );
}

#[test]
fn a_plan_for_another_machine_takes_every_pool_from_the_flag() {
    let object = plan(&["--limit", "host=8GiB,disk=100GiB,shm=64MiB"]);
    assert!(object.get("limits").is_none(), "{object}");
    for (pool, bytes) in [("host", 8u64 << 30), ("disk", 100 << 30), ("shm", 64 << 20)] {
        assert_eq!(object["pools"][pool]["limit_bytes"], bytes);
        assert_eq!(object["pools"][pool]["limit_source"], "--limit");
    }
    for bad in [
        "",
        ",",
        "host",
        "host=",
        "host=1GiB,",
        "host=1GiB,host=2GiB",
        "ram=1GiB",
        "HOST=1GiB",
        "host=-1",
        "host=lots",
        "host=nan",
        "host=17179869184GiB",
        "host=99999999999999999999GiB",
    ] {
        let output = plimsoll(&["plan", FIRST, "--limit", bad]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{bad}: {stderr}");
        assert!(stderr.starts_with("error[bad-"), "{bad}: {stderr}");
    }
    // Less than the processes themselves need.
    let output = plimsoll(&["plan", FIRST, "--limit", "host=4MiB"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}

#[test]
fn a_strict_run_that_goes_over_a_row_saves_and_ends() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    // Each process is within the limit of one; together they are over the row of the one that was planned.
    let reward = "import os, time\ndone = []\ndef f(completions, **columns):\n    for _ in range(0 if done else 2):\n        done.append(1)\n        r, w = os.pipe()\n        if os.fork() == 0:\n            held = b'x' * (100 << 20)\n            os.write(w, b'.')\n            time.sleep(600)\n        os.read(r, 1)\n    return [float(len(c)) for c in completions]\n";
    fs::write(at("r.py"), reward).expect("a file");
    let run = format!(
        "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"builtin:addition\"\neval = \"none\"\n\
         [rollout]\nprompts_per_step = 2\ngroup_size = 4\nmax_new_tokens = 4\n\
         [[reward]]\nkind = \"python:{}:f\"\nworker_memory = \"150MiB\"\n[train]\nsteps = 3\nlearning_rate = 1e-6\n",
        at("r.py")
    );
    fs::write(at("x.toml"), run).expect("a file");
    let train = |dir: &str, strict: &str| {
        plimsoll(&["train", &at("x.toml"), "--set", &format!("run.dir={}", at(dir)), "--set", strict])
    };
    let output = train("strict", "memory.strict=true");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("\nerror[over-the-line]: step 1: row reward.workers is "), "{stderr}");
    assert!(Path::new(&at("strict/checkpoints/latest/model.safetensors")).is_file(), "{stderr}");

    let output = train("calm", "memory.strict=false");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(
        stderr.matches("warning[over-the-line]: step 1: row reward.workers is ").count(),
        1,
        "{stderr}"
    );
}
