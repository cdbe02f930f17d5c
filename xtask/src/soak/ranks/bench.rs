//! The common part of all rank faults: the undisturbed run, and how a run that is hit must end and resume.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::super::compare;
use super::super::process::{LIFE_SECONDS_MAX, Options, Training, run_file};
use super::super::random::Rng;
use super::scene::Scene;

/// Time within which all ranks end after one has.
pub const END_SECONDS_MAX: f64 = 12.0;

/// One line of the table.
pub struct Row {
    pub fault: String,
    pub rank: usize,
    /// Seconds until all had ended; `None` if all continued.
    pub seconds: Option<f64>,
    pub seen: String,
    pub resumed_on: Option<usize>,
}

/// The undisturbed run, and what the other runs share.
pub struct Bench<'o> {
    pub options: &'o Options,
    run: PathBuf,
    pub whole: PathBuf,
    pub ranks: usize,
    pub rng: Rng,
    count: u32,
}

/// The signs of a fault that a user must see.
pub struct Expect {
    /// A part of the sentence.
    pub words: String,
    /// Seconds that others may wait before they end.
    pub wait: f64,
}

/// A row before it has a name: seconds to the end, what the user sees, and the number of ranks that resumed.
pub struct Unnamed(pub Option<f64>, pub String, pub Option<usize>);

impl Unnamed {
    pub fn named(self, fault: String, rank: usize) -> Row {
        let Unnamed(seconds, seen, resumed_on) = self;
        Row { fault, rank, seconds, seen, resumed_on }
    }
}

impl<'o> Bench<'o> {
    /// Writes the run file and makes the undisturbed run.
    pub fn new(options: &'o Options, ranks: usize) -> Result<Bench<'o>, String> {
        fs::create_dir_all(&options.folder).map_err(|err| format!("{}: {err}", options.folder.display()))?;
        let run = options.folder.join("ranks.toml");
        let text = run_file("builtin:nano", options.steps);
        let text = text.replace("micro_batch_tokens = 256\n", "micro_batch_tokens = 256\ncut_multiple = 4\n");
        let device = match options.device.as_str() {
            "" => String::new(),
            device => format!("[run]\ndevice = \"{device}\"\n"),
        };
        fs::write(&run, text + &device).map_err(|err| err.to_string())?;
        let whole = Training::new(options, &run, "whole");
        let end = whole.start(&[])?.wait(LIFE_SECONDS_MAX)?;
        if end.code != Some(0) {
            return Err(format!("the run that is left alone failed: {}", end.stderr));
        }
        let whole = whole.dir;
        Ok(Bench { options, run, whole, ranks, rng: Rng(options.seed), count: 0 })
    }

    /// Returns a run directory that no other fault has used.
    pub fn training(&mut self) -> Training {
        self.count += 1;
        Training::new(self.options, &self.run, &format!("fault-{}", self.count))
    }

    /// Sleeps for a random moment.
    pub fn pause(&mut self) {
        thread::sleep(Duration::from_micros(self.rng.below(100_000)));
    }

    /// Waits for the end of a run whose rank was hit at `began`, and resumes it.
    pub fn ends_and_goes_on(
        &mut self,
        scene: Scene<'_>,
        began: Instant,
        expect: &Expect,
    ) -> Result<Unnamed, String> {
        let Scene { training, rank, .. } = scene;
        let (seconds, seen) = ends(scene, began, expect)?;
        let resumed_on = self.goes_on(training, rank)?;
        Ok(Unnamed(Some(seconds), seen, Some(resumed_on)))
    }

    /// Resumes a run with a random number of ranks and compares. Returns that number.
    pub fn goes_on(&mut self, training: &Training, rank: usize) -> Result<usize, String> {
        let resumed_on = 1 + self.rng.below(self.ranks as u64) as usize;
        let flags = ["--ranks", &resumed_on.to_string(), "--resume"];
        let after = training.start(&flags)?.wait(LIFE_SECONDS_MAX)?;
        if after.code != Some(0) {
            return Err(format!("rank {rank}: --resume on {resumed_on} ranks gives {}", after.words()));
        }
        compare::directories(&self.whole, &training.dir)?;
        fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
        Ok(resumed_on)
    }
}

/// Checks that a run ends in time, with one sentence that names the rank, and no process. Returns both.
pub fn ends(scene: Scene<'_>, began: Instant, expect: &Expect) -> Result<(f64, String), String> {
    let (everyone, rank) = (scene.everyone(), scene.rank);
    let end = scene.life.wait(LIFE_SECONDS_MAX)?;
    let seconds = began.elapsed().as_secs_f64();
    let sentences: Vec<&str> = end.stderr.lines().filter(|line| line.contains("error[")).collect();
    let names = |line: &&&str| {
        (line.contains(&format!("rank {rank} ")) || line.starts_with(&format!("rank {rank}: ")) || rank == 0)
            && line.contains(&expect.words)
    };
    let seen =
        sentences.iter().find(names).ok_or(format!("no sentence has {:?}: {sentences:?}", expect.words))?;
    if end.code == Some(0) || seconds > END_SECONDS_MAX + expect.wait {
        return Err(format!("{} after {seconds:.1} s", end.words()));
    }
    // A stopped process ends when the launcher does: the kernel kills it.
    let gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !everyone.iter().all(gone) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    match everyone.iter().find(|pid| !gone(pid)) {
        Some(pid) => Err(format!("process {pid} lives on")),
        None => Ok((seconds, shortened(seen))),
    }
}

/// Returns the sentence without the launcher's prefix and without paths.
fn shortened(line: &str) -> String {
    let text = line.split_once("error[").map_or(line, |(_, rest)| rest);
    let parts = text
        .split(' ')
        .map(|word| if word.starts_with('/') { word.rsplit('/').next().unwrap_or(word) } else { word });
    format!("error[{}", parts.collect::<Vec<_>>().join(" "))
}
