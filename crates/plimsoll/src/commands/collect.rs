//! `collect ENV`: environment collectors without training.

use super::layers::Sets;
use crate::terminal::{self, LiveLine};
use crate::{output, signals};
use plimsoll_agent::collecting::{CollectProgress, Stop, collect, plan_env, stalled_share};
use plimsoll_base::{Error, Exit, Result, shown_places};
use plimsoll_config::EnvFile;
use plimsoll_run::ending::ended_by;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
SIGINT and SIGTERM end it and keep what was collected (exit codes 130 and 143).

Examples:
  plimsoll collect runs/cartpole-collect.toml
  plimsoll collect runs/cartpole-collect.toml --set num_envs=1024 --set frames_per_batch=32768 --json
  plimsoll collect runs/cartpole-collect.toml --set run.dir=/tmp/frames      frames as safetensors files
  plimsoll collect runs/cartpole-collect.toml --set run.dir=/tmp/frames --set run.format=parquet
  plimsoll plan    runs/cartpole-collect.toml                                the host memory that it takes")]
pub struct Args {
    /// The environment file.
    env: PathBuf,
    #[command(flatten)]
    sets: Sets,
    /// Print the summary as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let signal = signals::install(None)?;
    let loaded = args.sets.load_env(&args.env, quiet)?;
    let stopped = |error| ended_by(error, &signal);
    let plan = plan_env(&loaded, None, &Stop::on(&signal)).map_err(stopped)?;
    plan.refuse(&loaded.env)?;
    let line = Line::new(&loaded.env, quiet);
    let end = collect(
        &loaded,
        &plan,
        &mut |progress, news| {
            let errors = news.faults.iter().map(|fault| &fault.error).chain(&news.warnings);
            errors.for_each(|error| line.say(&warning(error)));
            line.show(progress);
        },
        &signal,
    )
    .map_err(stopped)?;
    drop(line);
    output::either(args.json, &end.summary, closing)?;
    Ok(match end.signal {
        None => ExitCode::SUCCESS,
        Some(signal_hook::consts::SIGINT) => ExitCode::from(Exit::Interrupted as u8),
        Some(_) => ExitCode::from(Exit::Terminated as u8),
    })
}

/// Progress: a live line on a terminal, nothing in a pipe.
struct Line {
    live: Option<LiveLine>,
    quiet: bool,
    what: String,
}

impl Line {
    fn new(env: &EnvFile, quiet: bool) -> Line {
        Line { live: terminal::live_line(quiet), quiet, what: format!("{} x {}", env.num_envs, env.env) }
    }

    fn say(&self, words: &str) {
        match &self.live {
            Some(live) => live.say(words),
            None => output::note(self.quiet, words),
        }
    }

    fn show(&self, progress: &CollectProgress) {
        if let Some(bar) = &self.live {
            bar.show(&live_line(&self.what, progress));
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(bar) = &self.live {
            bar.finish();
        }
    }
}

fn live_line(what: &str, progress: &CollectProgress) -> String {
    let CollectProgress { frames, seconds, stats, threads, .. } = progress;
    let share = progress.total_frames.map_or(String::new(), |total| {
        format!(" {:.0}%", (*frames as f64 / total as f64 * 100.0).min(100.0))
    });
    let mean =
        progress.episode_return.map_or(String::new(), |mean| format!("  return {}", shown_places(mean, 1)));
    let lag = if stats.lagged > 0 { format!("  lagged {}", stats.lagged) } else { String::new() };
    format!(
        "{what}{share}  {:.0} frames/s{mean}  stalled {:.0}%  {threads} threads{lag}",
        *frames as f64 / seconds.max(1e-9),
        stalled_share(progress) * 100.0,
    )
}

fn warning(error: &Error) -> String {
    format!("warning[{}]: {}", error.slug, error.message)
}

fn closing(summary: &Value) -> String {
    let number = |key: &str| summary[key].as_f64().unwrap_or(0.0);
    let count = |key: &str| summary["counters"][key].as_u64().unwrap_or(0);
    // Workers compute the frames of Python environments: their time counts, and that of their start.
    let workers = summary["worker_cpu_seconds"].as_f64();
    let of_workers = workers.map_or(0.0, |seconds| seconds * 1e6 / number("frames").max(1.0));
    let mut text = format!(
        "frames    {:.0} in {:.2} s: {:.0} a second, {:.3} us of CPU time each{}\n",
        number("frames"),
        number("seconds"),
        number("frames_per_second"),
        number("cpu_us_per_frame") + of_workers,
        if workers.is_some() { ", of all processes and with their start" } else { "" }
    );
    let mean = summary["episode_return"]
        .as_f64()
        .map_or(String::new(), |mean| format!(", last returns {}", shown_places(mean, 2)));
    text += &format!("episodes  {}{mean}\n", count("episodes"));
    let faults = ["restarts", "exceptions", "timeouts", "over_budget", "frames_aborted"];
    if faults.iter().any(|key| count(key) > 0) {
        let words: Vec<String> = faults.iter().map(|key| format!("{key} {}", count(key))).collect();
        text += &format!("faults    {}\n", words.join(", "));
    }
    let warnings = count("warnings");
    if warnings > 0 {
        text += &format!("warnings  {warnings}, in full with --json\n");
    }
    if let Some(files) = summary["files"].as_array().filter(|files| !files.is_empty()) {
        text += &format!(
            "written   {} files, the first {}\n",
            files.len(),
            files[0].as_str().unwrap_or_default()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_collect::Stats;

    #[test]
    fn the_time_of_workers_counts() {
        let mut summary = serde_json::json!({
            "frames": 1000, "seconds": 2.0, "frames_per_second": 500.0, "cpu_us_per_frame": 0.5, "worker_cpu_seconds": null,
        });
        assert!(closing(&summary).contains(", 0.500 us of CPU time each\n"));
        summary["worker_cpu_seconds"] = 0.018.into();
        assert!(closing(&summary).contains(", 18.500 us of CPU time each, of all processes"));
    }

    #[test]
    fn the_live_line_is_short() {
        let stats = Stats { stalled_seconds: 0.5, lagged: 3, ..Stats::default() };
        let progress = CollectProgress {
            frames: 500_000,
            total_frames: Some(1_000_000),
            seconds: 1.0,
            stats,
            threads: 2,
            episode_return: Some(22.25),
        };
        let expect = "64 x CartPole-v1 50%  500000 frames/s  return 22.2  stalled 25%  2 threads  lagged 3";
        assert_eq!(live_line("64 x CartPole-v1", &progress), expect);
    }
}
