//! `plimsoll collect` and `plan` of Python environments, by the binary: needs an interpreter with numpy.

use crate::common::{Folder, check_refused, plimsoll, python_with, text};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

const ENVS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../collect/tests/common/envs.py");

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
    let Some(python) = python_with("numpy") else { return };
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

/// `make` keeps descriptors 3 and 4 for its jobserver, and shells and launchers theirs: a worker did not start then.
#[test]
fn workers_get_nothing_that_was_open_where_the_run_was_started() {
    let Some(python) = python_with("numpy") else { return };
    let envs = std::path::Path::new(ENVS).parent().expect("a folder").display().to_string();
    let checked = format!(
        "import os, sys\nsys.path.insert(0, {envs:?})\nfrom envs import Count\n\n\nclass Checked(Count):\n    def __init__(self):\n\
         \x20       links = [f'/proc/self/fd/{{n}}' for n in os.listdir('/proc/self/fd')]\n\
         \x20       found = [os.readlink(link) for link in links if os.path.lexists(link)]\n\
         \x20       assert not any('theirs.txt' in path for path in found), found\n\
         \x20       super().__init__()\n"
    );
    let folder = Folder::with("checked.py", &checked);
    folder.write("theirs.txt", "a line");
    let of_it = file(&python, "Count", "total_frames = 160")
        .replace(&format!("{ENVS}:Count"), &format!("{}:Checked", folder.text_path("checked.py")));
    folder.write("env.toml", &of_it);
    let script = "exec 3< \"$1\" 4< \"$1\" 9< \"$1\"; exec \"$0\" collect \"$2\" --json";
    let args = ["-c", script, env!("CARGO_BIN_EXE_plimsoll")].map(String::from);
    let args = args.into_iter().chain(["theirs.txt", "env.toml"].map(|name| folder.text_path(name)));
    let out = std::process::Command::new("bash").args(args).output().expect("bash is everywhere");
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn episodes_are_truncated_where_the_environment_goes_on() {
    let Some(python) = python_with("numpy") else { return };
    let folder =
        Folder::with("env.toml", &file(&python, "Count", "total_frames = 800\nmax_frames_per_traj = 3"));
    let summary = collected(&folder, "env.toml");
    // 100 steps of each of 8.
    assert_eq!(summary["counters"]["episodes"].as_u64(), Some(8 * (100 / 3)));
    // Half of 1, 2 and 3.
    assert_eq!((summary["frames"].as_u64(), summary["episode_return"].as_f64()), (Some(800), Some(3.0)));
}

#[test]
fn nested_observations_are_columns_of_lists() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Folder::new();
    let run =
        format!("total_frames = 160\n[run]\nformat = \"parquet\"\ndir = \"{}\"", folder.text_path("frames"));
    folder.write("env.toml", &file(&python, "Spaces", &run));
    let summary = collected(&folder, "env.toml");
    let path = summary["files"][0].as_str().unwrap();
    let file = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let row = file.get_row_iter(None).unwrap().next().unwrap().unwrap();
    let columns: Vec<(String, usize)> = row
        .get_column_iter()
        .filter(|(name, _)| name.starts_with("observation"))
        .map(|(name, field)| match field {
            Field::ListInternal(list) => (name.clone(), list.len()),
            _ => (name.clone(), 0),
        })
        .collect();
    let expect =
        [("flag", 0), ("heard.a.0", 2), ("heard.a.1", 3), ("heard.b", 0), ("heard.c", 4), ("image", 6)];
    assert_eq!(columns, expect.map(|(name, length)| (format!("observation.{name}"), length)));
}

#[test]
fn a_run_outlives_its_workers() {
    let Some(python) = python_with("numpy") else { return };
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
fn a_warning_is_shown_and_counted() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Folder::new();
    let options = format!("total_frames = 1600\n[env_options]\nfolder = \"{}\"", folder.path("").display());
    folder.write("env.toml", &file(&python, "MapsCuda", &options));
    let out = plimsoll(&["collect", &folder.text_path("env.toml"), "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["counters"]["warnings"].as_u64(), Some(2), "once a worker: {summary}");
    assert_eq!(summary["warnings"][0]["slug"], "env-worker-maps-cuda");
    assert_eq!(
        text(&out.stderr).matches("warning[env-worker-maps-cuda]").count(),
        2,
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn plan_and_summary_say_who_holds_workers_to_their_memory() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Folder::with("env.toml", &file(&python, "Count", "total_frames = 160"));
    let path = folder.text_path("env.toml");
    let planned = plimsoll(&["plan", &path]);
    let held_by = "worker_memory is held by: ";
    assert!(text(&planned.stdout).contains(held_by), "{}", text(&planned.stdout));
    let summary = collected(&folder, "env.toml");
    let said = summary["worker_memory_held_by"].as_str().unwrap();
    assert!(said.starts_with("memory group (cgroup v") || said == "readings every 250 ms", "{said}");
    assert!(text(&planned.stdout).contains(&format!("{held_by}{said}")));
}

#[test]
fn a_limit_truncates_episodes_of_workers() {
    let Some(python) = python_with("numpy") else { return };
    let folder =
        Folder::with("env.toml", &file(&python, "Count", "total_frames = 800\nmax_frames_per_traj = 5"));
    assert_eq!(collected(&folder, "env.toml")["counters"]["episodes"].as_u64(), Some(8 * (100 / 5)));
    // A vector that resets itself cannot be; one whose caller resets can.
    let vector = |mode: &str| {
        let options =
            format!("total_frames = 800\nmax_frames_per_traj = 2\n[env_options]\nmode = \"{mode}\"");
        file(&python, "Vector", &options)
    };
    folder.write("env.toml", &vector("NextStep"));
    check_refused(
        &["collect", &folder.text_path("env.toml")],
        2,
        &["error[env-vector-autoreset]", "mode `NextStep`", "after 2 frames"],
    );
    folder.write("env.toml", &vector("Disabled"));
    assert_eq!(collected(&folder, "env.toml")["counters"]["episodes"].as_u64(), Some(8 * (100 / 2)));
}

#[test]
fn what_cannot_start_is_refused_before_the_run() {
    let Some(python) = python_with("numpy") else { return };
    let folder = Folder::with("env.toml", &file("python-of-no-version", "Count", ""));
    let path = folder.text_path("env.toml");
    check_refused(&["collect", &path], 2, &["error[env-python-missing]", "python-of-no-version"]);
    folder.write("env.toml", &file(&python, "NotThere", ""));
    check_refused(&["collect", &path], 2, &["error[env-import-failed]", "has no attribute 'NotThere'"]);
    folder.write("env.toml", &file(&python, "Vector", "[env_options]\nn = 3"));
    check_refused(&["plan", &path], 2, &["error[env-vector-size]", "steps 3 at once"]);
}
