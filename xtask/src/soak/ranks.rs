//! `cargo xtask soak --ranks N`: what happens to one process of a run of several ranks, for every rank: killed, crashed, stopped, its
//! supervisor gone. All must end within a bound with one sentence that names the rank, nothing may live on, and the run goes
//! on with another number of ranks to the bits of a run that was left alone.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::compare;
use super::process::{LIFE_SECONDS_MAX, Options, Training, children, newest_step, run_file, send};
use super::random::Rng;

/// Within which all ranks end after one has.
const END_SECONDS_MAX: f64 = 12.0;

/// What is done, to which process of a rank, what its sentence holds, and what it ends with.
struct Fault {
    name: &'static str,
    signal: &'static str,
    is_supervisor: bool,
    words: &'static str,
}

const FAULTS: [Fault; 4] = [
    Fault { name: "trainer killed", signal: "KILL", is_supervisor: false, words: "was killed: SIGKILL" },
    Fault { name: "trainer crashed", signal: "ABRT", is_supervisor: false, words: "SIGABRT" },
    Fault { name: "supervisor killed", signal: "KILL", is_supervisor: true, words: "was lost: " },
    Fault { name: "supervisor stopped", signal: "STOP", is_supervisor: true, words: "was lost: " },
];

/// One line of the table.
pub struct Row {
    fault: &'static str,
    rank: usize,
    seconds: f64,
    seen: String,
    resumed_on: usize,
}

/// Runs every fault on every rank; `say` gets a line for each. An error is what is not as it must be.
pub fn soak(options: &Options, ranks: usize, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, String> {
    fs::create_dir_all(&options.folder).map_err(|err| format!("{}: {err}", options.folder.display()))?;
    let run = options.folder.join("ranks.toml");
    let text = run_file("builtin:nano", options.steps);
    let text = text.replace("micro_batch_tokens = 256\n", "micro_batch_tokens = 256\ncut_multiple = 4\n");
    fs::write(&run, text).map_err(|err| err.to_string())?;
    let whole = Training::new(options, &run, "whole");
    let end = whole.start(&[])?.wait(LIFE_SECONDS_MAX)?;
    if end.code != Some(0) {
        return Err(format!("the run that is left alone failed: {}", end.stderr));
    }
    let (mut rng, mut rows) = (Rng(options.seed), Vec::new());
    for fault in &FAULTS {
        for rank in 0..ranks {
            let training = Training::new(options, &run, &format!("{}-{rank}", fault.name.replace(' ', "-")));
            let row = one(fault, rank, ranks, &training, &whole.dir, &mut rng)
                .map_err(|err| format!("{}, rank {rank}: {err}", fault.name))?;
            say(&line(&row));
            rows.push(row);
            fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
        }
    }
    Ok(rows)
}

fn one(
    fault: &Fault,
    rank: usize,
    ranks: usize,
    training: &Training,
    whole: &Path,
    rng: &mut Rng,
) -> Result<Row, String> {
    let mut life = training.start(&["--ranks", &ranks.to_string()])?;
    if !life.wait_until(LIFE_SECONDS_MAX, |_| newest_step(&training.dir).is_some()) {
        return Err(format!("it ended before it saved: {}", life.wait(LIFE_SECONDS_MAX)?.words()));
    }
    thread::sleep(Duration::from_micros(rng.below(100_000)));
    // Supervisors are started in the order of ranks; each has one child that trains.
    let supervisors = children(life.pid());
    let supervisor = *supervisors.get(rank).ok_or("the run is over")?;
    let hit = if fault.is_supervisor { Some(supervisor) } else { children(supervisor).first().copied() };
    let everyone: Vec<u32> =
        supervisors.iter().flat_map(|pid| [vec![*pid], children(*pid)].concat()).collect();
    let began = Instant::now();
    send(fault.signal, hit.ok_or("the run is over")?);
    let end = life.wait(LIFE_SECONDS_MAX)?;
    let seconds = began.elapsed().as_secs_f64();
    let sentences: Vec<&str> = end.stderr.lines().filter(|line| line.contains("error[")).collect();
    let names = |line: &&&str| {
        (line.contains(&format!("rank {rank} ")) || line.starts_with(&format!("rank {rank}: ")) || rank == 0)
            && line.contains(fault.words)
    };
    let seen = sentences.iter().find(names).ok_or(format!("no sentence names it: {sentences:?}"))?;
    if end.code == Some(0) || seconds > END_SECONDS_MAX {
        return Err(format!("{} after {seconds:.1} s", end.words()));
    }
    // A stopped process ends when the launcher does: the kernel sees to it.
    let gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !everyone.iter().all(gone) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    if let Some(pid) = everyone.iter().find(|pid| !gone(pid)) {
        return Err(format!("process {pid} lives on"));
    }
    let resumed_on = 1 + rng.below(ranks as u64) as usize;
    let flags = ["--ranks", &resumed_on.to_string(), "--resume"];
    let after = training.start(&flags)?.wait(LIFE_SECONDS_MAX)?;
    if after.code != Some(0) {
        return Err(format!("--resume on {resumed_on} ranks gives {}", after.words()));
    }
    compare::directories(whole, &training.dir)?;
    Ok(Row { fault: fault.name, rank, seconds, seen: shortened(seen), resumed_on })
}

/// Without names of the host and of processes.
fn shortened(line: &str) -> String {
    let text = line.split_once("error[").map_or(line, |(_, rest)| rest);
    format!("error[{text}")
}

fn line(row: &Row) -> String {
    let Row { fault, rank, seconds, seen, resumed_on } = row;
    format!(
        "{fault}, rank {rank}: {seen}; all ended after {seconds:.1} s; equal after --resume on {resumed_on}"
    )
}

/// The table, as a Markdown page.
pub fn table(options: &Options, ranks: usize, rows: &[Row]) -> String {
    let mut text = format!(
        "# Faults of ranks\n\n`cargo xtask soak --ranks {ranks} --steps {} --seed {}`: one process of a run of {ranks} ranks is hit at a \
         random instant. All end within {END_SECONDS_MAX} s with a sentence that names the rank, nothing lives on, and `--resume` with \
         another number of ranks comes to the weights, states, metrics and samples of a run that was left alone, bit for bit.\n\n\
         | fault | rank | all ended after | resumed on | what the user sees |\n|---|---|---|---|---|\n",
        options.steps, options.seed
    );
    for Row { fault, rank, seconds, seen, resumed_on } in rows {
        text += &format!("| {fault} | {rank} | {seconds:.1} s | {resumed_on} | `{seen}` |\n");
    }
    text
}
