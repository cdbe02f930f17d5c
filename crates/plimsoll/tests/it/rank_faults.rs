//! Tests what users see of ranks: rows, a stopped rank, a damaged checkpoint, nothing left of killed ones.

use crate::common::{command, plimsoll, text};
use crate::run::{Run, SMALL, Started, check_done, kill, refs};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the trainer of a rank of the run that writes into `out`: the process whose environment says so.
fn trainer(folder: &Run, rank: u32, ranks: u32) -> Option<u32> {
    let pids = fs::read_dir("/proc").expect("proc").flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let place = format!("PLIMSOLL_RANK={rank}/{ranks}");
    pids.find(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == place.as_bytes())
            && String::from_utf8_lossy(&command).contains(&folder.text_path("out"))
    })
}

/// Starts an endless run of two ranks into `out` and waits for its first step.
fn endless(folder: &Run, sets: &[&str]) -> Started {
    let args = folder
        .train_args("out", &[&["--ranks=2", "train.cut_multiple=2", "train.steps=1000000"], sets].concat());
    Started::new(command(&refs(&args)))
}

/// Returns `doctor DIR --json` with its exit code.
fn doctor(folder: &Run, dir: &str) -> (Option<i32>, Value) {
    let output = plimsoll(&["doctor", &folder.text_path(dir), "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn rows(board: &Value) -> Vec<(u64, String)> {
    let rows = board["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let row = |row: &Value| Some((row["rank"].as_u64()?, row["state"].as_str()?.to_string()));
    rows.iter().filter_map(row).collect()
}

#[test]
fn a_run_of_several_ranks_has_a_row_for_each_and_a_run_of_one_has_none() {
    let folder = Run::new(SMALL);
    let sets = ["train.cut_multiple=3", "train.steps=6"];
    let train = |flag: &str| {
        let output = folder.output("out", &[&[flag], &sets[..]].concat());
        (check_done(&output), text(&output.stdout))
    };
    let (_, closing) = train("--ranks=3");
    assert!(closing.contains("\nranks     rank 0  waited "), "{closing}");
    let summary = folder.read_json("out/summary.json");
    let ranks = summary["ranks"].as_array().expect("rows");
    assert_eq!(ranks.len(), 3);
    for row in ranks {
        let [held, planned] =
            ["rss_peak_bytes", "rss_planned_bytes"].map(|key| row[key].as_u64().expect("bytes"));
        assert!(1 << 20 < held && held <= planned && row["seconds_waited"].is_number(), "{row}");
    }
    let (code, found) = doctor(&folder, "out");
    assert_eq!((code, &found["state"]), (Some(0), &"finished".into()), "{found}");
    let expect: Vec<(u64, String)> = (0..3).map(|rank| (rank, "finished".into())).collect();
    assert_eq!(rows(&found["ranks"]), expect);
    assert!(found["ranks"]["rows"].as_array().expect("rows").iter().all(|row| row["step"] == 6), "{found}");
    // What watches a run of one rank sees what it saw before.
    let (said, closing) = train("--overwrite");
    assert!(!said.contains("rank") && !closing.contains("rank"), "{said}{closing}");
    assert!(
        !folder.path("out/ranks.json").exists()
            && folder.read_json("out/summary.json").get("ranks").is_none()
    );
    let (code, found) = doctor(&folder, "out");
    assert_eq!((code, &found["ranks"]), (Some(0), &Value::Null));
    assert!(folder.events("out").iter().all(|event| event.get("ranks_waited").is_none()));
}

#[test]
fn the_rows_of_a_live_run_say_what_its_ranks_do_and_a_stopped_one_ends_it() {
    let folder = Run::new(SMALL);
    let mut run = endless(&folder, &["--wait-seconds=8"]);
    let live = until("rows of a live run", || {
        let (code, found) = doctor(&folder, "out");
        let rows = rows(&found["ranks"]);
        // Rank 1 tells five times a second what it does.
        let has_begun = rows.len() == 2 && rows.iter().all(|(_, state)| state != "starts");
        (has_begun && code == Some(0)).then_some(found)
    });
    assert_eq!(live["state"], "running");
    let pid = trainer(&folder, 1, 2).expect("it lives");
    let row = &live["ranks"]["rows"][1];
    assert_eq!((row["rank"].as_u64(), row["trainer"].as_u64()), (Some(1), Some(pid.into())), "{live}");
    assert!(["computes", "waits"].contains(&row["state"].as_str().expect("a word")), "{live}");
    let [held, planned] = ["held_bytes", "planned_bytes"].map(|key| row[key].as_u64().expect("bytes"));
    assert!(1 << 20 < held && held <= planned, "{row}");
    kill("-STOP", pid);
    until("that a rank is stopped", || {
        let board: Value = serde_json::from_slice(&fs::read(folder.path("out/ranks.json")).ok()?).ok()?;
        (rows(&board) == [(0, "waits".to_string()), (1, "stopped".to_string())]).then_some(())
    });
    let status = until("an end", || run.child.try_wait().expect("a child"));
    let words = text(&run.end().stderr);
    assert_eq!(status.code(), Some(5), "{words}");
    assert!(words.contains("warning[rank-stopped]: the other ranks wait for rank 1 (host "), "{words}");
    let sentence = format!("was stopped: a signal stopped its trainer, pid {pid}, for 8 s, in step ");
    assert!(words.contains("error[rank-lost]: rank 1 (host ") && words.contains(&sentence), "{words}");
    assert_eq!(words.matches("error[").count(), 1, "{words}");
    let (code, found) = doctor(&folder, "out");
    assert_eq!(
        (code, &found["state"], &found["crash"]["slug"]),
        (Some(1), &"failed".into(), &"rank-lost".into())
    );
    assert!(found["ranks"]["ended"].as_str().is_some_and(|words| words.contains(&sentence)), "{found}");
}

#[test]
fn who_waits_for_a_stopped_rank_and_in_which_queue_is_named() {
    for (rank, needs, full) in [(1, "rollout", "0"), (0, "weights", "1")] {
        let folder = Run::new(SMALL);
        let apart = ["async.staleness=1", "async.rollout_ranks=1", "rollout.max_new_tokens=24"];
        let mut run = endless(&folder, &[&["--wait-seconds=6"], &apart[..]].concat());
        until("what ranks do", || folder.path("out/ranks.json").exists().then_some(()));
        let pid = trainer(&folder, rank, 2).expect("it lives");
        kill("-STOP", pid);
        until("an end", || run.child.try_wait().expect("a child"));
        let words = text(&run.end().stderr);
        let sentence = format!("was stopped: a signal stopped its trainer, pid {pid}, for 6 s, in step ");
        assert!(
            words.contains(&format!("error[rank-lost]: rank {rank} (host ")) && words.contains(&sentence),
            "{words}"
        );
        let other = 1 - rank;
        let queue = |full: &str| {
            format!(" from rank {rank} (queue `rollouts`, {full} of 1 places full); 1 other rank")
        };
        // Stopped between two steps, it has handed over what it had.
        let is_named = |what: &str, full: &str| {
            words.contains(&format!("; rank {other} waits for the {what} of step "))
                && words.contains(&queue(full))
        };
        assert!(is_named(needs, full) || is_named("end", "1"), "{words}");
    }
}

#[test]
fn a_killed_rank_is_named_whichever_it_is() {
    for rank in [0, 1] {
        let folder = Run::new(SMALL);
        let run = endless(&folder, &[]);
        let pid = trainer(&folder, rank, 2).expect("it lives");
        kill("-KILL", pid);
        let output = run.end();
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{words}");
        let slug = if rank == 0 { "trainer-killed" } else { "rank-lost" };
        let begin = words.find(&format!("error[{slug}]: rank {rank} (host "));
        let sentence = begin.and_then(|at| words[at..].lines().next()).unwrap_or_else(|| panic!("{words}"));
        let cause = format!(" was killed: SIGKILL from outside killed the trainer, pid {pid}, in step ");
        assert!(sentence.contains(&cause) && sentence.ends_with("; 1 other rank ended for it"), "{sentence}");
        assert_eq!(words.lines().filter(|line| line.starts_with("error[")).count(), 1, "{words}");
        let crash = folder.read_json("out/crash.json");
        assert_eq!(crash["message"], sentence.split_once(": ").expect("a slug").1, "{crash}");
    }
}

#[test]
fn a_stopped_rank_0_is_named_too() {
    let folder = Run::new(SMALL);
    let run = endless(&folder, &["--wait-seconds=8"]);
    let pid = trainer(&folder, 0, 2).expect("it lives");
    kill("-STOP", pid);
    let output = run.end();
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{words}");
    assert!(
        words.contains("error[rank-lost]: rank 0 (host ") && words.contains("for 8 s, in step "),
        "{words}"
    );
    assert_eq!(words.matches("error[").count(), 1, "{words}");
    assert_eq!(folder.read_json("out/crash.json")["slug"], "rank-lost");
}

/// The others finish before two seconds of silence are over, or end because of it; either way the command ends.
#[test]
fn a_stopped_supervisor_does_not_keep_a_run_that_is_over() {
    let folder = Run::new(SMALL);
    let args = folder.train_args("out", &["--ranks=2", "train.cut_multiple=2", "train.steps=60"]);
    let mut run = Started::new(command(&refs(&args)));
    let pid = trainer(&folder, 1, 2).expect("it lives");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let words = stat.rsplit_once(')').expect("a name").1;
    let supervisor: u32 =
        words.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a parent");
    kill("-STOP", supervisor);
    let status = until("the end of the command", || run.child.try_wait().expect("it is ours"));
    assert!(matches!(status.code(), Some(0 | 4 | 5)), "{status}");
    assert!(!Path::new(&format!("/proc/{supervisor}")).exists());
}

#[test]
fn a_damaged_checkpoint_is_reported_once_with_the_path_that_the_user_knows() {
    let folder = Run::new(SMALL);
    let sets = ["train.cut_multiple=2", "train.steps=3", "checkpoint.every=1"];
    folder.train("out", &[&["--ranks=2"], &sets[..]].concat());
    let latest = fs::canonicalize(folder.path("out/checkpoints/latest")).expect("a checkpoint");
    let file = latest.join("model.safetensors");
    let mut bytes = fs::read(&file).expect("weights");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&file, bytes).expect("it is ours");
    let output = folder.output("out", &["--ranks=2", "--resume", "train.cut_multiple=2", "train.steps=5"]);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert_eq!(words.matches("error[checkpoint-damaged]").count(), 1, "{words}");
    assert!(words.contains(&folder.text_path("out/checkpoints/")) && !words.contains(".ranks"), "{words}");
}

#[test]
fn nothing_is_left_of_ranks_that_were_killed() {
    let (folder, temporary) = (Run::new(SMALL), tempfile::tempdir().expect("a folder"));
    let left = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().count();
    let ranks = |flags: &[&str]| -> Command {
        let args = folder.train_args(
            "out",
            &[&["--ranks=3", "train.cut_multiple=3", "checkpoint.every=1"], flags].concat(),
        );
        let mut command = command(&refs(&args));
        command.env("TMPDIR", temporary.path());
        command
    };
    let mut run = Started::new(ranks(&["train.steps=1000000"]));
    let trainers: Vec<u32> = (0..3).map(|rank| trainer(&folder, rank, 3).expect("it lives")).collect();
    until("a checkpoint", || folder.path("out/checkpoints/latest").exists().then_some(()));
    let gone = |trainers: &[u32]| trainers.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    run.child.kill().and_then(|()| run.child.wait()).expect("it is ours");
    until("their end", || gone(&trainers).then_some(()));
    assert_eq!(left(temporary.path()), 2, "ranks 1 and 2 had no time to clean up");
    let mut again = ranks(&["--resume", "train.steps=1000000"]);
    let mut again = again.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary runs");
    until("views of the checkpoints", || (left(&folder.path("out/.ranks")) == 2).then_some(()));
    assert_eq!(left(temporary.path()), 0, "the next start has cleaned up");
    let trainers: Vec<u32> = (0..3).map(|rank| trainer(&folder, rank, 3).expect("it lives")).collect();
    again.kill().and_then(|()| again.wait()).expect("it is ours");
    until("their end too", || gone(&trainers).then_some(()));
    // One rank goes on, and the folder in the run directory goes as well.
    let latest = fs::read_link(folder.path("out/checkpoints/latest")).expect("a checkpoint");
    let step: u32 = latest.display().to_string().trim_start_matches("step-").parse().expect("a step");
    let steps = format!("train.steps={}", step + 4);
    folder.train("out", &["--resume", "train.cut_multiple=3", "checkpoint.every=1", &steps]);
    assert!(!folder.path("out/.ranks").exists());
}

#[test]
fn a_disk_without_room_is_that_of_the_run_and_reported_once() {
    // More samples than any disk holds.
    let folder = Run::new(SMALL);
    let output = folder.output("out", &["--ranks=3", "train.cut_multiple=3", "train.steps=2000000000"]);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{words}");
    assert!(words.contains("error[disk-pool-exceeded]: ") && !words.contains("plimsoll-rank-"), "{words}");
    assert_eq!(words.matches("error[").count(), 1, "{words}");
}
