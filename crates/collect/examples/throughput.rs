//! Frames per second with the random policy: `throughput [id] [envs] [frames] [threads] [batches]`. For a Python
//! environment (`gym:ID`) threads are worker processes, of the interpreter that `PYTHON` names.

use plimsoll_collect::{
    Collector, Extras, GroupOptions, Mode, OnAbort, PythonEnvs, PythonStepper, Random, RowLayout, Settings,
    Stepper, native_steppers, process_cpu_seconds,
};
use plimsoll_env::{Slot, native};
use plimsoll_worker::Stop;
use std::time::Instant;

fn main() -> plimsoll_base::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|verb| verb == "env-worker") {
        let arguments: Vec<_> = std::env::args_os().skip(2).collect();
        plimsoll_collect::become_env_worker(&arguments);
        return Ok(());
    }
    let number =
        |at: usize, default: usize| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let id = args.first().map_or("CartPole-v1", String::as_str);
    let (envs, frames, threads, batches) = (number(1, 1024), number(2, 32), number(3, 2), number(4, 200));
    let steppers: Vec<Box<dyn Stepper>> = if id.contains(':') {
        let mut python = PythonEnvs::new(id, envs as u32, threads as u32);
        python.python = std::env::var("PYTHON").ok();
        python.overlap = false;
        let lanes = PythonStepper::start_lanes(python, threads, &Stop::default())?;
        lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Stepper>).collect()
    } else {
        let options = GroupOptions { restarts_max: 5, ..GroupOptions::default() };
        native_steppers(id, &native::Options::new(), envs as u32, threads, options)?
    };
    let spec = steppers[0].spec();
    let (observation, action) = (Slot::of(&spec.observation)?, Slot::of(&spec.action)?);
    let layout =
        RowLayout::new(&observation, &action, frames, frames, Extras::default()).expect("a small row");
    let settings = Settings {
        run_seed: 0,
        mode: Mode::Sync,
        batches_in_flight: 2,
        on_abort: OnAbort::Keep,
        random_steps: 0,
        reset_each_batch: false,
    };
    let mut collector =
        Collector::start(&settings, layout, steppers, &mut || Box::new(Random { run_seed: 0 }))?;
    collector.next()?;
    let (since, cpu) = (Instant::now(), process_cpu_seconds());
    let mut count = 0;
    for _ in 0..batches {
        count += collector.next()?.map_or(0, |batch| batch.num_frames);
    }
    let seconds = since.elapsed().as_secs_f64();
    let (cpu, stats) = (process_cpu_seconds() - cpu, collector.stats());
    println!(
        "{id}: {envs} environments, {threads} threads: {:.4} us a frame ({:.4} of CPU time), policy {:.4}, environments {:.4}, episodes {}",
        seconds / count as f64 * 1e6,
        cpu / count as f64 * 1e6,
        stats.policy_seconds / stats.produced as f64 * 1e6,
        stats.env_seconds / stats.produced as f64 * 1e6,
        stats.counters.episodes,
    );
    Ok(())
}
