//! The load line from outside: limits as `plan` shows them, and a run that goes over its plan.

use crate::common::{every_nth, plimsoll, text};
use crate::run::{FIRST, Run, SMALL, has_python, object, refs};
use plimsoll_base::Bytes;
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
    if !has_python() {
        return;
    }
    let folder = Run::new(SMALL);
    // Each process of the worker is within its limit: they share the pages of a file. The row counts by process.
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

#[test]
fn a_run_has_one_number_for_its_memory_and_names_its_parts() {
    if !has_python() {
        return;
    }
    let run = Run::new(SMALL);
    let file = run
        .write("r.py", "def f(completions, **columns):\n    return [float(len(c)) for c in completions]\n");
    let reward = format!("reward.0.kind=python:{file}:f");
    let sets = [reward.as_str(), "reward.0.worker_memory=1GiB", "run.device=cpu"];
    let stderr = run.train("out", &sets);
    let plan = run.read_json("out/plan.json");
    let host = &plan["pools"]["host"];
    let peak = host["peak_bytes"].as_u64().expect("bytes");
    let parts = host["peak_parts"].as_object().expect("parts");
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, ["workers", "trainer", "supervisor", "kernel"]);
    assert_eq!(parts.values().filter_map(Value::as_u64).sum::<u64>(), peak);
    // The start, the steps and the log show it; so do the plan and the page, which read the same.
    for event in run.events("out").iter().filter(|e| e["event"] == "started" || e["event"] == "step") {
        assert_eq!(event["planned_bytes"], peak, "{event}");
        if event["event"] == "step" {
            let (held, trainer) = (event["held_bytes"].as_u64(), event["rss_bytes"].as_u64());
            assert!(trainer < held && held <= Some(peak), "{event}");
        }
    }
    let shown = Bytes(peak).to_string();
    assert!(
        stderr.contains(&format!("; {shown} planned of ")) && stderr.contains(" (workers 1.0 GiB, trainer "),
        "{stderr}"
    );
    assert!(stderr.contains(&format!(" of {shown}  ")), "the steps: {stderr}");
    let planned = plimsoll(&refs(&run.args("plan", &sets)));
    let planned = text(&planned.stdout);
    assert!(planned.contains(&format!("host: peak {shown} in ")), "{shown}: {planned}");
    assert!(planned.contains("  of the peak: workers 1.0 GiB, trainer "), "{planned}");
    let drawn =
        object(&["plan", "--run", &run.text_path("out"), "--svg", &run.text_path("x.svg"), "--json"]).1;
    let trainer = run.read_json("out/summary.json")["rss_peak_bytes"].as_u64();
    assert!(
        drawn["measured_peak_bytes"].as_u64() > trainer,
        "the workers and the supervisor are measured too: {drawn}"
    );
}

#[test]
fn rows_are_within_the_plan_whatever_their_tokens_and_columns() {
    if !has_python() {
        return;
    }
    let run = Run::new(
        "method = \"grpo\"\nmodel = \"random:nano\"\n[model_options]\npositions = \"extend\"\n[data]\n\
         prompts = \"x.jsonl\"\neval = \"none\"\n[rollout]\nprompts_per_step = 2\ngroup_size = 32\n\
         max_new_tokens = 8\n[[reward]]\nkind = \"exact\"\n[train]\nsteps = 1\nlearning_rate = 1e-4\n",
    );
    let row = |prompt: &str, tests: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"ground_truth\": \"1\", \"tests\": \"{tests}\"}}\n")
    };
    // A token of four bytes for each byte of text.
    let digits = run.write("digits.jsonl", &row(&"1".repeat(1000), "").repeat(20_000));
    // Columns of a MiB, which every sample of a batch has on its way to a function.
    let columns = run.write("columns.jsonl", &row("1+1=", &"x".repeat(1 << 20)).repeat(2));
    let function = run.write("r.py", "def f(completions, **columns):\n    return [0.0] * len(completions)\n");
    // The one row of a file, which all samples of a call have.
    let again = run.write("again.jsonl", &row("1+1=", &"x".repeat(1 << 20)));
    let function = format!("python:{function}:f");
    for (_, (dir, prompts, kind, batch)) in every_nth(
        3,
        [
            ("tokens", &digits, "exact", 32),
            ("columns", &columns, &function, 32),
            ("again", &again, &function, 64),
        ],
    ) {
        let sets = [
            format!("data.prompts={prompts}"),
            format!("reward.0.kind={kind}"),
            format!("reward.0.batch_size={batch}"),
        ];
        let summary = run.summary(dir, &refs(&sets));
        assert!(
            summary["rss_peak_bytes"].as_u64() <= summary["rss_planned_bytes"].as_u64(),
            "{dir}: {summary}"
        );
    }
}
