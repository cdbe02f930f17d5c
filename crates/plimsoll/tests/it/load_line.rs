//! The load line from outside: limits as `plan` shows them, and a run that goes over its plan.

use crate::common::{plimsoll, text};
use crate::run::{FIRST, Run, SMALL, object, python_is_there};
use serde_json::Value;

fn plan(args: &[&str]) -> Value {
    object(&[&["plan", FIRST, "--json"], args].concat()).1
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
    if !python_is_there() {
        return;
    }
    let folder = Run::new(SMALL);
    // All processes of the worker are within its limit, because they share the pages of a file. The row counts by process.
    folder.write_bytes("pages", vec![1u8; 100 << 20]);
    let reward = "import mmap, os, time\ndone = []\npages = open(os.path.join(os.path.dirname(__file__), 'pages'), 'rb')\ndef f(completions, **columns):\n    for _ in range(0 if done else 2):\n        done.append(1)\n        r, w = os.pipe()\n        if os.fork() == 0:\n            held = mmap.mmap(pages.fileno(), 0, access=mmap.ACCESS_READ)\n            sum(held[::4096])\n            os.write(w, b'.')\n            time.sleep(600)\n        os.read(r, 1)\n    return [float(len(c)) for c in completions]\n";
    let kind = format!("reward.0.kind=python:{}:f", folder.write("r.py", reward));
    let train =
        |dir: &str, strict: &str| folder.output(dir, &[&kind, "reward.0.worker_memory=150MiB", strict]);
    let output = train("strict", "memory.strict=true");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("\nerror[over-the-line]: step 1: row reward.workers is "), "{stderr}");
    assert!(folder.path("strict/checkpoints/latest/model.safetensors").is_file(), "{stderr}");

    let output = train("calm", "memory.strict=false");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(
        stderr.matches("warning[over-the-line]: step 1: row reward.workers is ").count(),
        1,
        "{stderr}"
    );
}
