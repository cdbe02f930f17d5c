//! Faults of a rank's card: another program that holds its memory, and one that computes on it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::super::compare;
use super::super::process::LIFE_SECONDS_MAX;
use super::bench::{Bench, END_SECONDS_MAX, Unnamed};
use super::faults::{Fault, once};

pub const FAULTS: [Fault; 2] = [
    once("its card held by another program before the start", 1, full),
    once("another program computes on its card", 1, busy),
];

/// Time in which the other program begins to compute.
const BEGUN: Duration = Duration::from_secs(6);

/// A program next to the run, ended when it is dropped.
struct Neighbour(Child);

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fills the card: the run must be refused before its first step, and succeed once there is room.
fn full(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let spawned = Command::new("python3")
        .args(["-c", include_str!("neighbour.py"), &rank.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut neighbour = Neighbour(spawned.map_err(|err| format!("python3: {err}"))?);
    let mut held = String::new();
    let pipe = neighbour.0.stdout.take().expect("it is piped");
    let _ = BufReader::new(pipe).read_line(&mut held);
    if held.trim().is_empty() {
        return Ok(None);
    }
    let training = bench.training();
    let ranks = bench.ranks.to_string();
    let began = Instant::now();
    let end = training.start(&["--ranks", &ranks])?.wait(LIFE_SECONDS_MAX)?;
    let seconds = began.elapsed().as_secs_f64();
    drop(neighbour);
    let sentences: Vec<&str> = end.stderr.lines().filter(|line| line.contains("error[")).collect();
    let seen = sentences.iter().find(|line| line.contains("memory") || line.contains("MiB"));
    let seen = seen.ok_or(format!("no sentence names the memory: {sentences:?}"))?.to_string();
    if end.code == Some(0) || seconds > END_SECONDS_MAX {
        return Err(format!("{} after {seconds:.1} s", end.words()));
    }
    let _ = fs::remove_dir_all(&training.dir);
    let end = training.start(&["--ranks", &ranks])?.wait(LIFE_SECONDS_MAX)?;
    if end.code != Some(0) {
        return Err(format!("with room on the card: {}", end.words()));
    }
    compare::directories(&bench.whole, &training.dir)?;
    Ok(Some(Unnamed(Some(seconds), seen, Some(bench.ranks))))
}

/// Computes on the card: the run goes on, slower, and leaves the same.
fn busy(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let (ranks, binary) = (bench.ranks.to_string(), &bench.options.binary);
    let mut run = |what: &str| {
        let training = bench.training();
        let began = Instant::now();
        let end = training.start(&["--ranks", &ranks])?.wait(LIFE_SECONDS_MAX)?;
        if end.code != Some(0) {
            return Err(format!("{what}: {}", end.words()));
        }
        compare::directories(&bench.whole, &training.dir)?;
        fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
        Ok(began.elapsed().as_secs_f64())
    };
    let alone = run("alone")?;
    let words =
        "bench train --model random:smollm2-135m --device cuda --batch 4 --seq 1024 --repeats 10000 -q";
    let spawned = Command::new(binary)
        .args(words.split(' '))
        .env("CUDA_VISIBLE_DEVICES", rank.to_string())
        .stdout(Stdio::null())
        .spawn();
    let mut neighbour = Neighbour(spawned.map_err(|err| err.to_string())?);
    thread::sleep(BEGUN);
    let both = run("next to it")?;
    if let Ok(Some(status)) = neighbour.0.try_wait() {
        return Err(format!("the other program ended before the run: {status}"));
    }
    drop(neighbour);
    let seen = format!("nothing: {both:.1} s instead of {alone:.1} s");
    Ok(Some(Unnamed(None, seen, None)))
}
