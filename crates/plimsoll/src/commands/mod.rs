//! One file for each command: its flags, and the call that does the work.

mod bench;
mod checkpoint;
mod checkpoint_export;
mod checkpoint_push;
mod collect;
mod completions;
mod doctor;
mod doctor_dir;
mod doctor_ranks;
mod doctor_run;
mod doctor_stacks;
mod eval;
mod explain;
mod generate;
mod grade;
mod import;
mod init;
mod launch;
mod launch_submit;
pub(crate) mod layers;
mod man;
mod plan;
mod plan_images;
mod reproduce;
mod serve;
mod serve_train;
mod train;
mod watch;

use clap::Subcommand;
use plimsoll_base::Result;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Command {
    /// Write a run file to begin with: one that is known to learn, or one for your own model, data and reward.
    Init(init::Args),
    /// Show where a run's memory goes and whether it fits.
    Plan(plan::Args),
    /// Train: a run directory with checkpoints, metrics and samples.
    Train(train::Args),
    /// Write what starts a run on several hosts by Slurm, Kubernetes, SSH or Ray, with memory and cards from the plan.
    Launch(launch::Args),
    /// Train what somebody published, and say whether the number is reproduced.
    Reproduce(reproduce::Args),
    /// Show runs in a browser, live or as one file.
    Watch(watch::Args),
    /// Generate a response to a prompt, as a stream.
    Generate(generate::Args),
    /// Answer requests over HTTP, as OpenAI's API and vLLM do, with the rollout engine.
    Serve(serve::Args),
    /// Score a model on prompts with a reward.
    Eval(eval::Args),
    /// Step many environments at once: measure frames per second, or write frames to files.
    Collect(collect::Args),
    /// Grade given responses with a verifier, one JSON object per line.
    Grade(grade::Args),
    /// Make a run file from an OpenRLHF, verl, TRL or Open-Reasoner-Zero configuration.
    Import(import::Args),
    /// List, verify or export the checkpoints of a run.
    Checkpoint(checkpoint::Args),
    /// Measure this machine's peak and how close the engine comes to it.
    Bench(bench::Args),
    /// Find what would end a run on this machine, what ended the run that wrote some logs, or where another framework's
    /// run would fail.
    Doctor(doctor::Args),
    /// Print the page of an error, list them all, or search them.
    Explain(explain::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Write a manual page for each command.
    Man(man::Args),
    /// Open card memory that `doctor` offers; used by its probe.
    #[command(hide = true, name = doctor::TAKE)]
    TakeCardMemory { line: String },
}

impl Command {
    /// Runs the command. `quiet` leaves out progress and notes; `cli` describes the whole command line.
    pub fn run(self, quiet: bool, cli: fn() -> clap::Command) -> Result<ExitCode> {
        match self {
            Command::Init(args) => init::run(&args, quiet),
            Command::Plan(args) => plan::run(&args, quiet),
            Command::Train(args) => train::run(&args, quiet),
            Command::Launch(args) => launch::run(&args, quiet),
            Command::Reproduce(args) => reproduce::run(&args, quiet),
            Command::Watch(args) => watch::run(&args, quiet),
            Command::Generate(args) => generate::run(&args, quiet),
            Command::Serve(args) => serve::run(&args, quiet),
            Command::Eval(args) => eval::run(&args, quiet),
            Command::Collect(args) => collect::run(&args, quiet),
            Command::Grade(args) => grade::run(&args, quiet),
            Command::Import(args) => import::run(&args, quiet),
            Command::Checkpoint(args) => checkpoint::run(&args, quiet),
            Command::Bench(args) => bench::run(&args, quiet),
            Command::Doctor(args) => doctor::run(&args, quiet),
            Command::Explain(args) => explain::run(&args, quiet),
            Command::Completions(args) => completions::run(&args, cli()),
            Command::Man(args) => man::run(&args, cli()),
            Command::TakeCardMemory { line } => doctor::take(&line),
        }
    }
}
