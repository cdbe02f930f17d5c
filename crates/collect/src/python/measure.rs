//! The host memory of Python environments, known before they start: one worker is started, measured and ended.

use super::{PythonEnvs, PythonStepper};
use crate::{Ask, Request, Stepper};
use plimsoll_base::{Bytes, Result};
use plimsoll_env::{Slot, Spec};
use plimsoll_memory::{Layout, Place, Pool};
use plimsoll_worker::{Stop, procs};

/// Growth of a worker after its first resets: one part in `GROWTH_PART`, and a constant.
const GROWTH_PART: u64 = 4;
const GROWTH: Bytes = Bytes::mib(4);

/// The readings of one worker with its full share of environments, after their first resets.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Spaces and limits of the environments.
    pub spec: Spec,
    /// The limit on the steps of an episode that the environment was registered with.
    pub episode_steps_max: Option<u32>,
    /// True if several environments step as one.
    pub is_vector: bool,
    /// Environments that step as one: 1 if each steps alone.
    pub unit: u32,
    /// Workers that will be started; fewer than requested if there are fewer vector environments.
    pub workers: u32,
    /// Environments of the measured worker.
    pub worker_envs: u32,
    /// Anonymous memory of a worker's processes.
    pub anonymous: Bytes,
    /// File pages mapped by it; all workers share them.
    pub files: Bytes,
    /// Describes what enforces `worker_memory`.
    pub memory_held_by: String,
}

impl Measured {
    /// Starts one worker of `envs`, resets its environments, and reads its memory.
    ///
    /// Errors: those of `PythonStepper::start`; `env-failing-repeatedly`.
    pub fn of(envs: &PythonEnvs, stop: &Stop) -> Result<Measured> {
        let mut stepper = PythonStepper::start_some(envs.clone(), 1, stop)?;
        let groups = stepper.groups().to_vec();
        let spec = stepper.spec().clone();
        let action = Slot::of(&spec.action)?;
        for (group, range) in groups.iter().enumerate() {
            let (asks, actions) = (vec![Ask::Reset; range.len()], vec![0; action.bytes * range.len()]);
            let seeds = vec![0; range.len()];
            stepper.submit(group, Request { asks: &asks, actions: &actions, seeds: &seeds })?;
        }
        for _ in &groups {
            stepper.wait(stop)?;
        }
        let worker_envs = groups.iter().map(|range| range.len() as u32).sum::<u32>().max(1);
        let pids: Vec<u32> = procs::below(&stepper.keepers()).into_iter().map(|(_, pid)| pid).collect();
        let (anonymous, files) = procs::resident_bytes(&pids);
        let workers = envs.num_workers.clamp(1, envs.num_envs.div_ceil(worker_envs).max(1));
        let (vector, episode_steps_max) = stepper.said();
        Ok(Measured {
            spec,
            episode_steps_max,
            is_vector: vector > 0,
            unit: vector.max(1),
            workers,
            worker_envs,
            anonymous,
            files,
            memory_held_by: stepper.memory_held_by().to_string(),
        })
    }

    /// Returns the number of threads, at most `threads`: each has its own workers.
    pub fn lanes(&self, threads: usize) -> usize {
        threads.clamp(1, self.workers.max(1) as usize)
    }

    /// Returns the environments of the largest of the workers of `num_envs`, which bounds the largest group.
    pub fn group_envs_max(&self, num_envs: u32) -> u32 {
        let units = num_envs.div_ceil(self.unit);
        units.div_ceil(self.workers.clamp(1, units.max(1))) * self.unit
    }

    /// Returns the plan rows of `num_envs` environments, under `name`: shared slots, buffers of this process,
    /// and the workers themselves.
    ///
    /// Errors: `env-space-unsupported`.
    pub fn layout(&self, name: &str, num_envs: u32) -> Result<Layout> {
        let (observation, action) = (Slot::of(&self.spec.observation)?, Slot::of(&self.spec.action)?);
        let workers = u64::from(self.workers.min(num_envs.div_ceil(self.unit)).max(1));
        let share = u64::from(num_envs).div_ceil(workers);
        let (buffers, shared) = PythonStepper::bytes(share, &observation, &action);
        let own = self.anonymous.0 + self.anonymous.0 / GROWTH_PART + GROWTH.0;
        let mut layout = Layout::new();
        let mut row = |what: &str, place: Place, bytes: u64| {
            layout.outside(&format!("{name}.{what}"), "collect", Pool::Host, place, Bytes(bytes));
        };
        row("slots", Place::Heap, workers * shared);
        row("buffers", Place::Heap, workers * buffers);
        row("workers", Place::Workers, workers * own);
        row("worker_files", Place::Workers, self.files.0);
        Ok(layout)
    }
}

/// Returns the CPU seconds of ended child processes, including their start.
pub fn children_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace();
    // cutime and cstime, the 16th and 17th of the line.
    let ticks: u64 = fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}
