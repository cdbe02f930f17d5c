//! `cargo xtask soak --ranks N --rounds M`: a run of 1 to N ranks is killed at a random instant, all of it or one
//! process, and resumes with another number of ranks. Each must give the weights, states, samples and metrics of an
//! undisturbed run.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::super::compare;
use super::super::process::{LIFE_SECONDS_MAX, Life, Options, children, newest_step, send};
use super::bench::Bench;

/// Starts in a row that end before the kill; more mean that the machine is too fast for this run.
const MISSES_MAX: u32 = 20;

/// The processes that were killed.
const HITS: [&str; 3] = ["the whole run", "one trainer", "one supervisor"];

/// The results of the rounds.
#[derive(Default)]
pub struct Report {
    rounds: u32,
    /// Rounds by what was killed, and rounds without a checkpoint by then.
    hits: [u32; HITS.len()],
    without_checkpoint: u32,
    /// Rounds by the numbers of ranks before and after.
    pairs: BTreeMap<(usize, usize), u32>,
}

/// Runs the rounds; `say` gets a line for each. An error is the first difference.
pub fn rounds(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Report, String> {
    let mut bench = Bench::new(options, options.ranks)?;
    let alone = Duration::from_millis(300 + 40 * u64::from(options.steps));
    let (mut report, mut misses) = (Report::default(), 0);
    while report.rounds < options.rounds {
        let training = bench.training();
        let before = 1 + bench.rng.below(options.ranks as u64) as usize;
        let others = 1 + bench.rng.below(options.ranks as u64 - 1) as usize;
        let after = if others >= before { others + 1 } else { others };
        let hit = bench.rng.below(HITS.len() as u64) as usize;
        let mut life = training.start(&["--ranks", &before.to_string()])?;
        life.wait_until_elapsed(Duration::from_micros(bench.rng.below(alone.as_micros() as u64)));
        let is_hit = kill(&mut life, before, hit, &mut bench);
        let end = life.wait(LIFE_SECONDS_MAX)?;
        if !is_hit || end.code == Some(0) {
            misses += 1;
            if misses > MISSES_MAX {
                return Err("it ends before it can be killed: take more steps".into());
            }
            fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
            continue;
        }
        misses = 0;
        let saved = newest_step(&training.dir);
        let flags = ["--ranks", &after.to_string(), "--resume"];
        let end = training.start(&flags)?.wait(LIFE_SECONDS_MAX)?;
        if end.code != Some(0) {
            return Err(format!(
                "{before} to {after} ranks: --resume gives {}:\n{}",
                end.words(),
                end.stderr
            ));
        }
        compare::directories(&bench.whole, &training.dir)?;
        if training.dir.join(".ranks").exists() {
            return Err(format!("{}: .ranks was left over", training.dir.display()));
        }
        report.rounds += 1;
        report.hits[hit] += 1;
        report.without_checkpoint += u32::from(saved.is_none());
        *report.pairs.entry((before, after)).or_default() += 1;
        let at = saved.unwrap_or("no checkpoint".into());
        say(&format!(
            "{}: {} of {before} ranks killed after {at}; equal on {after}",
            report.rounds, HITS[hit]
        ));
        fs::remove_dir_all(&training.dir).map_err(|err| err.to_string())?;
    }
    Ok(report)
}

/// Sends SIGKILL. Returns false if the process was not there.
fn kill(life: &mut Life, ranks: usize, hit: usize, bench: &mut Bench<'_>) -> bool {
    // A run of one rank is a supervisor and its trainer; one of several has a launcher above the supervisors.
    let supervisors = if ranks == 1 { vec![life.pid()] } else { children(life.pid()) };
    if hit == 0 {
        return life.kill(false);
    }
    let one = supervisors.get(bench.rng.below(supervisors.len().max(1) as u64) as usize).copied();
    let pid = if hit == 1 { one.and_then(|pid| children(pid).first().copied()) } else { one };
    pid.into_iter().for_each(|pid| send("KILL", pid));
    pid.is_some()
}

/// Returns the table as a Markdown page.
pub fn table(options: &Options, report: &Report) -> String {
    let Options { ranks, rounds, steps, seed, .. } = options;
    let mut text = format!(
        "# Kills of ranks at random instants\n\n`cargo xtask soak --ranks {ranks} --rounds {rounds} --steps {steps} --seed {seed}`: a run of {steps} steps on 1 to \
         {ranks} ranks gets SIGKILL at a random instant, the whole of it or one process of one rank, and `--resume` goes on with another number of ranks. \
         Weights, optimizer states and samples are compared byte for byte with a run of one rank that was left alone, metrics number for number.\n\n\
         **{rounds} rounds, 0 differ.** Killed were {}. {} rounds had no checkpoint yet.\n\n| ranks before | ranks after | rounds |\n|---|---|---|\n",
        HITS.iter()
            .zip(report.hits)
            .map(|(what, count)| format!("{what} {count} times"))
            .collect::<Vec<_>>()
            .join(", "),
        report.without_checkpoint,
    );
    for ((before, after), count) in &report.pairs {
        text += &format!("| {before} | {after} | {count} |\n");
    }
    text
}
