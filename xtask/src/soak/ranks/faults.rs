//! The faults: what happens to which process of a rank, and what a user must see of it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::super::compare;
use super::super::faults::Mount;
use super::super::process::{LIFE_SECONDS_MAX, send};
use super::bench::{Bench, END_SECONDS_MAX, Expect, Unnamed, ends};
use super::groups::{Does, Group};
use super::scene::Scene;

/// Runs a fault on a rank; `None` if the user lacks rights for it.
type Run = fn(&mut Bench<'_>, usize) -> Result<Option<Unnamed>, String>;

pub struct Fault {
    pub name: &'static str,
    /// True to run it on every rank, false on `first_rank` alone.
    pub every_rank: bool,
    pub first_rank: usize,
    /// True if it is in the short form, a test.
    pub is_short: bool,
    pub run: Run,
}

const fn each(name: &'static str, run: Run) -> Fault {
    Fault { name, every_rank: true, first_rank: 0, is_short: false, run }
}

pub const fn once(name: &'static str, first_rank: usize, run: Run) -> Fault {
    Fault { name, every_rank: false, first_rank, is_short: false, run }
}

const fn short(fault: Fault) -> Fault {
    Fault { is_short: true, ..fault }
}

pub const FAULTS: [Fault; 11] = [
    short(each("trainer killed", |bench, rank| signal(bench, rank, "KILL", "was killed: SIGKILL"))),
    each("trainer crashed", |bench, rank| signal(bench, rank, "ABRT", "SIGABRT")),
    short(each("trainer stopped, --wait-seconds 4", stopped)),
    each("trainer frozen, --wait-seconds 3", too_slow),
    once("trainer frozen for 33 s", 2, slow),
    short(each("supervisor killed", |bench, rank| supervisor(bench, rank, "KILL"))),
    each("supervisor stopped", |bench, rank| supervisor(bench, rank, "STOP")),
    each("connections closed", |bench, rank| partition(bench, rank, "close")),
    short(each("connections silent", |bench, rank| partition(bench, rank, "silence"))),
    each("out of memory", out_of_memory),
    once("disk full", 0, full_disk),
];

/// Time limits of faults that test one.
const WAIT_STOPPED: f64 = 4.0;
const WAIT_SLOW: f64 = 3.0;
/// Time until the others wait for the rank, and supervisors have told each other.
const NOTICED: f64 = 2.0;
/// A rank that computes is named after half a minute.
const FROZEN: Duration = Duration::from_secs(33);
/// Bytes of a container's limit left before another process takes them.
const LEFT_BYTES: u64 = 8 << 20;

fn expect(words: &str, wait: f64) -> Expect {
    Expect { words: words.into(), wait }
}

/// Kills a rank's trainer in `phase`.
pub fn killed_in(bench: &mut Bench<'_>, phase: &str, rank: usize) -> Result<Unnamed, String> {
    let training = bench.training();
    let at = [rank, bench.ranks];
    let mut scene = Scene::start(&training, at, &[], phase != "start")?;
    let trainer = scene.stop_in(phase)?;
    let began = Instant::now();
    send("KILL", trainer);
    let words = if phase == "start" { "before the first step".into() } else { format!("phase {phase}") };
    bench.ends_and_goes_on(scene, began, &expect(&words, 0.0))
}

/// Sends the rank's trainer a signal at a random instant.
fn signal(bench: &mut Bench<'_>, rank: usize, name: &str, words: &str) -> Result<Option<Unnamed>, String> {
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    bench.pause();
    // Rank 0's own sentence says that it was killed without "was".
    let words = if rank == 0 { words.trim_start_matches("was killed: ") } else { words };
    let began = Instant::now();
    send(name, scene.trainer()?);
    bench.ends_and_goes_on(scene, began, &expect(words, 0.0)).map(Some)
}

fn stopped(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &["--wait-seconds", "4"], true)?;
    bench.pause();
    let began = Instant::now();
    send("STOP", scene.trainer()?);
    let words = expect("was stopped: a signal stopped its trainer", WAIT_STOPPED);
    bench.ends_and_goes_on(scene, began, &words).map(Some)
}

/// Freezes the rank, as in a driver's call, unkillable: the others wait as long as allowed, and end without it.
fn too_slow(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let Some(group) = Group::new(Does::Freezes) else { return Ok(None) };
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &["--wait-seconds", "3"], true)?;
    bench.pause();
    let began = Instant::now();
    group.take(scene.trainer()?)?;
    group.freeze(true)?;
    let rest: Vec<u32> = scene.supervisors.iter().copied().filter(|pid| *pid != scene.supervisor()).collect();
    let gone = || rest.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists());
    while !gone() && began.elapsed().as_secs_f64() < NOTICED + WAIT_SLOW + END_SECONDS_MAX {
        thread::sleep(Duration::from_millis(20));
    }
    let seconds = began.elapsed().as_secs_f64();
    let are_gone = gone();
    group.freeze(false)?;
    if !are_gone {
        return Err(format!("the others live on after {seconds:.1} s"));
    }
    let words = expect("is too slow: the others waited 3 s for its trainer", WAIT_SLOW + END_SECONDS_MAX);
    let (_, seen) = ends(scene, began, &words)?;
    let resumed_on = bench.goes_on(&training, rank)?;
    Ok(Some(Unnamed(Some(seconds), seen, Some(resumed_on))))
}

/// Freezes the rank for a while, as in a driver's call, then continues it.
fn slow(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let Some(group) = Group::new(Does::Freezes) else { return Ok(None) };
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    bench.pause();
    group.take(scene.trainer()?)?;
    group.freeze(true)?;
    thread::sleep(FROZEN);
    group.freeze(false)?;
    let end = scene.life.wait(LIFE_SECONDS_MAX)?;
    let head = format!("warning[rank-slow]: rank {rank} (");
    let seen = end.stderr.lines().find(|line| line.starts_with(&head)).ok_or("it is not named as slow")?;
    if end.code != Some(0) {
        return Err(end.words());
    }
    compare::directories(&bench.whole, &training.dir)?;
    Ok(Some(Unnamed(None, seen.into(), None)))
}

fn supervisor(bench: &mut Bench<'_>, rank: usize, name: &str) -> Result<Option<Unnamed>, String> {
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    bench.pause();
    let began = Instant::now();
    send(name, scene.supervisor());
    bench.ends_and_goes_on(scene, began, &expect("was lost: ", 0.0)).map(Some)
}

/// Cuts or silences the rank's connections to all others, in both directions.
fn partition(bench: &mut Bench<'_>, rank: usize, how: &str) -> Result<Option<Unnamed>, String> {
    let training = bench.training();
    let scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    bench.pause();
    // Its trainer is stopped until they are cut: a run of few steps may be over before Python has started.
    let trainer = scene.trainer()?;
    send("STOP", trainer);
    let own = scene.supervisor();
    let others = scene.supervisors.iter().filter(|pid| **pid != own);
    let began = Instant::now();
    let cut = Command::new("python3")
        .args(["-c", include_str!("partition.py"), how, &own.to_string()])
        .args(others.map(u32::to_string))
        .output();
    send("CONT", trainer);
    let done = cut.as_ref().is_ok_and(|cut| cut.status.success() && cut.stdout != b"0\n");
    if !done {
        scene.life.wait(LIFE_SECONDS_MAX)?;
        return Ok(None);
    }
    // Each side has lost the other: whose sentence comes first depends on the side.
    let words = expect("was lost: ", 0.0);
    bench.ends_and_goes_on(scene, began, &words).map(Some)
}

/// Lowers the limit of the container of all ranks; another process takes the rest, and the kernel kills the rank.
fn out_of_memory(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let Some(group) = Group::new(Does::Limits) else { return Ok(None) };
    let mut training = bench.training();
    training.before = group.enter();
    let mut scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    // Stopped while it computes, so that it is in a step.
    let trainer = scene.stop_in("update")?;
    fs::write(format!("/proc/{trainer}/oom_score_adj"), "1000").map_err(|err| err.to_string())?;
    let limit = group.usage()? + LEFT_BYTES;
    group.limit(limit)?;
    let began = Instant::now();
    send("CONT", trainer);
    group.eat_until_gone(trainer)?;
    let (seconds, seen) = ends(scene, began, &expect("the container's limit of ", 0.0))?;
    training.before.clear();
    let resumed_on = bench.goes_on(&training, rank)?;
    Ok(Some(Unnamed(Some(seconds), seen, Some(resumed_on))))
}

/// Fills the disk of the run directory, where rank 0 writes.
fn full_disk(bench: &mut Bench<'_>, rank: usize) -> Result<Option<Unnamed>, String> {
    let place = bench.options.folder.join("small-disk");
    fs::create_dir_all(&place).map_err(|err| err.to_string())?;
    let Some(_mount) = Mount::new(&["-t", "tmpfs", "-o", "size=192m", "tmpfs"], &place) else {
        return Ok(None);
    };
    let training = bench.training().at(place.join("run"));
    let scene = Scene::start(&training, [rank, bench.ranks], &[], true)?;
    let ballast = place.join("ballast");
    let mut file =
        OpenOptions::new().create(true).append(true).open(&ballast).map_err(|err| err.to_string())?;
    while file.write_all(&[0; 1 << 16]).is_ok() {}
    drop(file); // An open file keeps its room after it is removed.
    let began = Instant::now();
    let (seconds, seen) = ends(scene, began, &expect("disk-full", 0.0))?;
    fs::remove_file(&ballast).map_err(|err| err.to_string())?;
    let resumed_on = bench.goes_on(&training, rank)?;
    Ok(Some(Unnamed(Some(seconds), seen, Some(resumed_on))))
}
