//! `plimsoll collect` and `plimsoll plan` of environment files.

use crate::common::{Folder, check_refused, command, plimsoll, text};
use crate::run::json;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../runs/cartpole-collect.toml");

#[test]
fn a_collector_says_what_it_came_to() {
    let found = json(&["collect", RUN, "--json", "--set", "total_frames=100000"]);
    assert_eq!(found["frames"], 13 * 8192);
    assert!(found["frames_per_second"].as_f64().unwrap() > 0.0);
    assert!(found["cpu_us_per_frame"].as_f64().unwrap() > 0.0);
    let counters = found["counters"].as_object().unwrap();
    assert!(counters["episodes"].as_u64().unwrap() > 3000);
    for none in ["restarts", "exceptions", "timeouts", "over_budget", "frames_aborted"] {
        assert_eq!(counters[none], 0, "{none}");
    }
    // A random policy holds the pole for about 22 steps.
    assert!((18.0..27.0).contains(&found["episode_return"].as_f64().unwrap()), "{found}");
}

#[test]
fn words_go_to_people_and_a_pipe_is_quiet() {
    let output = plimsoll(&["collect", RUN, "--set", "total_frames=8192"]);
    assert!(text(&output.stdout).starts_with("frames    8192 in "), "{}", text(&output.stdout));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn ten_thousand_environments_run_in_the_planned_bytes() {
    let sets =
        ["--set", "num_envs=10000", "--set", "frames_per_batch=160000", "--set", "total_frames=640000"];
    let planned = json(&[&["plan", RUN, "--json"], &sets[..]].concat());
    assert_eq!(planned["fits"], true);
    // The system maps less of the binary when it is short of memory for files: the largest of three runs counts.
    let peaks = (0..3).map(|_| {
        let found = json(&[&["collect", RUN, "--json"], &sets[..]].concat());
        let [peak, plan] = ["rss_peak_bytes", "rss_planned_bytes"].map(|name| found[name].as_u64().unwrap());
        assert!(peak <= plan, "{peak} bytes of {plan} planned");
        (peak, plan)
    });
    let (peak, plan) = peaks.max().unwrap();
    let region = |name: &str| {
        let regions = planned["regions"].as_array().unwrap();
        regions.iter().find(|region| region["name"] == name).unwrap()
    };
    // The bound on a host's plan. The binary's row is five eighths of it, and a collector touches about half: what is
    // left of the row grows with the binary, which is larger as tests build it.
    let untouched = region("process.image")["bytes"].as_u64().unwrap() / 5;
    let larger_image = if cfg!(debug_assertions) { untouched } else { 0 };
    assert!(plan - peak <= (plan / 20).max(16 << 20) + larger_image, "{peak} bytes of {plan} planned");
    assert_eq!(
        region("collect.batches")["bytes"].as_u64().unwrap(),
        2 * 10_000 * planned["row_bytes"].as_u64().unwrap().div_ceil(64) * 64
    );
}

#[test]
fn what_does_not_fit_is_refused_before_it_starts() {
    let sets = ["--set", "frames_per_batch=1310720", "--limit", "host=64MiB"];
    let output = plimsoll(&[&["plan", RUN], &sets[..]].concat());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.starts_with("error[host-pool-exceeded]") && stderr.contains("collect.batches"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: --set frames_per_batch=655360"), "{stderr}");
    // A batch larger than any machine.
    check_refused(
        &["collect", RUN, "--set", "frames_per_batch=2147483648", "--set", "batches_in_flight=1024"],
        3,
        &["error[host-pool-exceeded]", "batches_in_flight"],
    );
}

#[test]
fn frames_are_written_where_the_user_says() {
    let folder = Folder::new();
    let dir = folder.text_path("frames");
    let set = format!("run.dir={dir}");
    let args = [
        "collect",
        RUN,
        "--json",
        "--set",
        "total_frames=40960",
        "--set",
        "run.batches_per_file=2",
        "--set",
        &set,
    ];
    let found = json(&args);
    let files: Vec<&str> =
        found["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    assert_eq!(files.len(), 3);
    let rows = |path: &str| {
        let bytes = std::fs::read(path).unwrap();
        safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor("reward").unwrap().shape().to_vec()
    };
    assert_eq!(files.iter().map(|path| rows(path)).collect::<Vec<_>>(), [[128, 128], [128, 128], [64, 128]]);
    check_refused(&args, 2, &["error[run-dir-not-empty]"]);
}

/// Numbers of a column of a Parquet file, lists one after the other; a null is NaN.
fn numbers(rows: &[Row], name: &str) -> Vec<f64> {
    fn add(field: &Field, into: &mut Vec<f64>) {
        match field {
            Field::Null => into.push(f64::NAN),
            Field::Bool(value) => into.push(f64::from(u8::from(*value))),
            Field::UInt(value) => into.push(f64::from(*value)),
            Field::ULong(value) => into.push(*value as f64),
            Field::Long(value) => into.push(*value as f64),
            Field::Float(value) => into.push(f64::from(*value)),
            Field::Double(value) => into.push(*value),
            Field::ListInternal(list) => list.elements().iter().for_each(|field| add(field, into)),
            other => panic!("{other:?}"),
        }
    }
    let mut found = Vec::new();
    for row in rows {
        let (_, field) =
            row.get_column_iter().find(|(column, _)| *column == name).expect("the column is there");
        add(field, &mut found);
    }
    found
}

#[test]
fn parquet_has_the_frames_of_safetensors() {
    let folder = Folder::new();
    let write = |format: &str| {
        let (dir, format) = (format!("run.dir={}", folder.text_path(format)), format!("run.format={format}"));
        let sets = ["total_frames=1280", "num_envs=4", "frames_per_batch=640"].map(|set| ["--set", set]);
        let args =
            [&["collect", RUN, "--json", "--set", &dir, "--set", &format][..], &sets.concat()].concat();
        json(&args)["files"][0].as_str().unwrap().to_string()
    };
    let bytes = std::fs::read(write("safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let path = write("parquet");
    assert!(path.ends_with("frames-000000.parquet"));
    let file = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let metadata = file.metadata().file_metadata();
    let notes = metadata.key_value_metadata().unwrap();
    let note = |key: &str| notes.iter().find(|note| note.key == key).and_then(|note| note.value.clone());
    assert_eq!((note("env"), note("observation.shape")), (Some("CartPole-v1".into()), Some("[4]".into())));
    let rows: Vec<Row> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    // Two batches of four environments with 160 frames each, all of them frames.
    assert_eq!((metadata.num_rows(), rows.len()), (1280, 1280));
    let column = |name: &str| numbers(&rows, name);
    let floats = |name: &str| -> Vec<f64> {
        let data = tensors.tensor(name).unwrap().data();
        data.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    };
    assert_eq!(column("reward"), floats("reward"));
    let with_next = floats("observation");
    let (mut before, mut after): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for row in with_next.chunks_exact(161 * 4) {
        before.extend(&row[..160 * 4]);
        after.extend(&row[4..]);
    }
    assert_eq!(column("observation"), before);
    // What came after a frame is the next observation, but where an episode ended: there it is the last one.
    let next = column("next_observation");
    let (returns, ended) = (column("final_return"), column("terminated"));
    let mut finals = floats("final_observation").into_iter();
    for t in 0..rows.len() {
        let expect: Vec<f64> = if returns[t].is_nan() {
            after[4 * t..4 * t + 4].to_vec()
        } else {
            finals.by_ref().take(4).collect()
        };
        assert_eq!(next[4 * t..4 * t + 4], expect, "frame {t}");
        assert_eq!(ended[t] == 1.0, !returns[t].is_nan(), "CartPole's random episodes end by themselves");
    }
    let marks = tensors.tensor("flags").unwrap().data();
    assert_eq!(column("cut"), marks.iter().map(|mark| f64::from(mark >> 2 & 1)).collect::<Vec<_>>());
}

#[test]
fn an_interrupt_ends_it_with_what_was_collected() {
    let folder = Folder::with(
        "env.toml",
        "env = \"CartPole-v1\"\nnum_envs = 8\nframes_per_batch = 8000\nmode = \"async\"\n[run]\nbatches_per_file = 1\n",
    );
    let set = format!("run.dir={}", folder.text_path("frames"));
    let child = command(&["collect", &folder.text_path("env.toml"), "--json", "--set", &set])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // It never ends by itself. Once the first file is there, it takes signals and has frames.
    while !folder.path("frames/frames-000000.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("the summary is printed all the same");
    assert!(found["frames"].as_u64().unwrap() > 0);
}

#[test]
fn wrong_environment_files_are_refused_at_their_line() {
    let base = "env = \"CartPole-v1\"\nnum_envs = 64\nframes_per_batch = 8192\n";
    for (content, slug, parts) in [
        (
            base.replace("CartPole", "Cartpole"),
            "unknown-environment",
            &["env.toml:1:1", "did you mean `CartPole-v1`?"][..],
        ),
        (
            base.replace("8192", "1000"),
            "frames-not-whole",
            &["env.toml:3:1", "15.625 frames each", "= 960 or 1024"],
        ),
        (base.replace("64", "0"), "bad-value", &["`num_envs` is 0"]),
        (
            base.replace("num_envs", "num_env"),
            "unknown-key",
            &["an environment file", "did you mean `num_envs`?"],
        ),
        (base.replace("num_envs = 64\n", ""), "missing-key", &["add num_envs = 64"]),
        (format!("{base}mode = \"semi\"\n"), "bad-value", &["semi-sync"]),
        (format!("{base}mode = \"semi-sync\"\n"), "missing-key", &["preemptive_threshold"]),
        (format!("{base}policy_lag_max = 1\n"), "contradictory-keys", &["mode = \"async\""]),
        (format!("{base}episodes_per_batch = 4\n"), "missing-key", &["episode_frames_max"]),
        (format!("{base}threads = 1\nnum_threads = 2\n"), "duplicate-key", &["env.toml:5:1"]),
        (format!("{base}[env_options]\ngravity = 1\n"), "env-bad-option", &["gravity"]),
        (format!("{base}[replay]\ncapacity = 100\n"), "frames-not-whole", &["replay.capacity"]),
        (format!("{base}[policy]\nkind = \"best\"\n"), "bad-value", &["random"]),
        (base.replace("CartPole-v1", "text:countdown"), "not-built", &["env.toml:1:1"]),
        // Keys that would do nothing.
        (
            format!("{base}reseed = \"once\"\n"),
            "contradictory-keys",
            &["env.toml:4:1", "`reseed` is set", "env = \"gym:CartPole-v1\""],
        ),
        (format!("{base}worker_memory = \"1GiB\"\n"), "contradictory-keys", &["remove worker_memory"]),
        (format!("{base}explore = \"mode\"\n"), "contradictory-keys", &["does not use it"]),
        (format!("{base}episode_frames_max = 9\n"), "contradictory-keys", &["max_frames_per_traj"]),
        (format!("{base}[run]\nformat = \"parquet\"\n"), "contradictory-keys", &["set run.dir"]),
    ] {
        let folder = Folder::with("env.toml", &content);
        let slug = format!("error[{slug}]");
        let parts: Vec<&str> = std::iter::once(slug.as_str()).chain(parts.iter().copied()).collect();
        check_refused(&["collect", &folder.text_path("env.toml")], 2, &parts);
    }
}
