//! `plimsoll collect` and `plan` of Python environments, by the binary: needs an interpreter with numpy.

mod common;

use common::{Folder, check_refused, plimsoll, text};
use serde_json::Value;

const ENVS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../collect/tests/common/envs.py");

/// The interpreter for tests, if it has numpy; otherwise says what is missing.
fn python() -> Option<String> {
    let python = std::env::var("PLIMSOLL_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = std::process::Command::new(&python).args(["-c", "import numpy"]).output();
    let found = found.is_ok_and(|out| out.status.success());
    if !found {
        eprintln!(
            "skipped: `{python}` has no numpy; PLIMSOLL_TEST_PYTHON may name an interpreter that has it"
        );
    }
    found.then_some(python)
}

fn file(python: &str, class: &str, more: &str) -> String {
    format!(
        "env = \"python:{ENVS}:{class}\"\npython = \"{python}\"\nnum_envs = 8\nnum_workers = 2\nframes_per_batch = 160\n{more}\n"
    )
}

fn collected(folder: &Folder, name: &str) -> Value {
    let out = plimsoll(&["collect", &folder.text_path(name), "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn python_environments_are_planned_and_collected() {
    let Some(python) = python() else { return };
    let folder = Folder::with("env.toml", &file(&python, "Count", "total_frames = 800"));
    let planned = plimsoll(&["plan", &folder.text_path("env.toml"), "--json"]);
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let names: Vec<&str> =
        plan["regions"].as_array().unwrap().iter().filter_map(|region| region["name"].as_str()).collect();
    for row in ["env.slots", "env.buffers", "env.workers", "env.worker_files"] {
        assert!(names.contains(&row), "{names:?}");
    }
    let summary = collected(&folder, "env.toml");
    assert_eq!((summary["frames"].as_u64(), summary["workers"].as_u64()), (Some(800), Some(2)));
    // 100 steps of each of 8, whose episodes have 7.
    assert_eq!(summary["counters"]["episodes"].as_u64(), Some(8 * (100 / 7)));
    assert_eq!(summary["counters"]["restarts"].as_u64(), Some(0));
    let (peak, line) = (summary["rss_peak_bytes"].as_u64(), summary["rss_planned_bytes"].as_u64());
    assert!(peak.unwrap() <= line.unwrap(), "{summary}");
}

#[test]
fn episodes_are_truncated_where_the_environment_goes_on() {
    let Some(python) = python() else { return };
    let folder =
        Folder::with("env.toml", &file(&python, "Count", "total_frames = 800\nmax_frames_per_traj = 3"));
    let summary = collected(&folder, "env.toml");
    // 100 steps of each of 8.
    assert_eq!(summary["counters"]["episodes"].as_u64(), Some(8 * (100 / 3)));
    // Half of 1, 2 and 3.
    assert_eq!((summary["frames"].as_u64(), summary["episode_return"].as_f64()), (Some(800), Some(3.0)));
    folder.write("env.toml", &file(&python, "Vector", "max_frames_per_traj = 3\n[env_options]\nn = 4"));
    check_refused(&["plan", &folder.text_path("env.toml")], 2, &["error[contradictory-keys]", "step as one"]);
}

#[test]
fn a_run_outlives_its_workers() {
    let Some(python) = python() else { return };
    let folder = Folder::new();
    let marker = folder.path("").display().to_string();
    let options = format!("total_frames = 800\n[env_options]\nfolder = \"{marker}\"\nfault = \"kill\"");
    folder.write("env.toml", &file(&python, "Faulty", &options));
    let summary = collected(&folder, "env.toml");
    assert_eq!(summary["counters"]["restarts"].as_u64(), Some(1));
    // The worker's four steps in flight.
    assert_eq!(summary["counters"]["frames_aborted"].as_u64(), Some(4));
    assert_eq!(summary["frames"].as_u64(), Some(800));
}

#[test]
fn what_cannot_start_is_refused_before_the_run() {
    let Some(python) = python() else { return };
    let folder = Folder::with("env.toml", &file("python-of-no-version", "Count", ""));
    let path = folder.text_path("env.toml");
    check_refused(&["collect", &path], 2, &["error[env-python-missing]", "python-of-no-version"]);
    folder.write("env.toml", &file(&python, "NotThere", ""));
    check_refused(&["collect", &path], 2, &["error[env-import-failed]", "has no attribute 'NotThere'"]);
    folder.write("env.toml", &file(&python, "Vector", "[env_options]\nn = 3"));
    check_refused(&["plan", &path], 2, &["error[env-vector-size]", "steps 3 at once"]);
}
