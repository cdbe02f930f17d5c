//! Python environments in worker processes: Gymnasium's, or those that a function of the user returns.
//!
//! A worker is the user's interpreter running an embedded script (`worker.py`), with several environments. Messages go
//! over a socket, data through shared memory (`slots.rs`), and a thread watches the workers (`supervisor.rs`). Each
//! `PythonStepper` steps a range of them, and may share a processor with its worker (`pairing.rs`). A failing worker is
//! a value and does not end the run.

mod ends;
mod group;
mod judge;
mod limits;
mod measure;
mod pairing;
mod run;
mod slots;
mod start;
mod stepper;
mod supervisor;
mod words;

pub use measure::{Measured, children_cpu_seconds};
pub use plimsoll_worker::ENV_WORKER;
pub use stepper::PythonStepper;

use plimsoll_base::{Bytes, Error, Result, slugs};
use plimsoll_memory::host::Host;
use plimsoll_worker::{Gpu, Network, procs};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The script, embedded so that nothing needs to be installed.
const SCRIPT: &str = include_str!("worker.py");
/// Longest time until a stop, a late worker or a silent death is noticed.
const TICK: Duration = Duration::from_millis(50);
/// Smallest group that is worth a message.
const GROUP_ENVS_MIN: usize = 4;

/// Which environments to make, how many, and within which limits.
#[derive(Clone, Debug)]
pub struct PythonEnvs {
    /// `gym:ID`, or `python:FILE.py:FUNCTION` where the function returns an environment.
    pub env: String,
    /// Keyword arguments.
    pub kwargs: Map<String, Value>,
    /// Number of environments.
    pub num_envs: u32,
    /// Number of processes.
    pub num_workers: u32,
    /// The interpreter, or the folder of a virtual environment; `None` for the default of the worker crate.
    pub python: Option<String>,
    /// A binary with the verb `env-worker`; `None` for this one.
    pub program: Option<PathBuf>,
    /// Memory limit of a worker.
    pub worker_memory: Bytes,
    /// Longest time without progress while a worker steps.
    pub step_timeout: Duration,
    /// Longest time to make or reset an environment.
    pub reset_timeout: Duration,
    /// Failures of one environment within ten minutes before the run stops.
    pub restarts_max: u32,
    /// The share of workers that must not be in a crash loop.
    pub workers_alive_min: f64,
    /// First and longest wait before a failed environment or worker is made again; it doubles in between.
    pub backoff: [Duration; 2],
    /// Says whether workers may reach a network.
    pub network: Network,
    /// Says whether workers may reach a GPU.
    pub gpu: Gpu,
    /// Prefixes of the paths of GPU devices.
    pub gpu_devices: Vec<String>,
    /// True if each worker gets its own memory cgroup where groups can be made.
    pub memory_groups: bool,
    /// Steps after which an episode is truncated; `None` leaves it to the environment.
    pub episode_steps_max: Option<u32>,
    /// True if each episode has its own seed; otherwise only the first one of an environment has.
    pub reseed: bool,
    /// True if a worker steps one half of its environments while the policy acts on the other. Each switch costs both
    /// processes a wake-up: it pays if the policy takes time and there are free processors.
    pub overlap: bool,
}

impl PythonEnvs {
    /// Returns `num_envs` of `env` in `num_workers` processes, with the default limits.
    pub fn new(env: &str, num_envs: u32, num_workers: u32) -> PythonEnvs {
        PythonEnvs {
            env: env.to_string(),
            kwargs: Map::new(),
            num_envs,
            num_workers,
            python: None,
            program: None,
            worker_memory: Bytes(2 << 30),
            step_timeout: Duration::from_secs(60),
            reset_timeout: Duration::from_secs(300),
            restarts_max: 5,
            workers_alive_min: 0.5,
            backoff: [Duration::from_millis(100), Duration::from_secs(30)],
            network: Network::Deny,
            gpu: Gpu::Deny,
            gpu_devices: procs::GPU_DEVICES.map(String::from).to_vec(),
            memory_groups: true,
            episode_steps_max: None,
            reseed: true,
            overlap: true,
        }
    }

    /// Errors: `unknown-environment` for a name in neither form, or a missing file; `env-ulimit-too-low`.
    pub fn check(&self) -> Result<()> {
        check_name(&self.env)?;
        limits::check(u64::from(self.num_workers))
    }
}

/// Runs the verb `env-worker` of a binary: becomes a worker's keeper. `arguments` are those after the verb.
pub fn become_env_worker(arguments: &[OsString]) -> ExitCode {
    plimsoll_worker::become_env_worker(arguments, SCRIPT)
}

/// The environments of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    /// Counted over the run.
    envs: Range<u32>,
    groups: Vec<Range<u32>>,
}

impl Share {
    /// Returns the groups, counted within the worker.
    fn local_groups(&self) -> Vec<Range<usize>> {
        let local = |env: u32| (env - self.envs.start) as usize;
        self.groups.iter().map(|group| local(group.start)..local(group.end)).collect()
    }
}

/// Divides environments into ascending ranges, never splitting a vector environment of `vector`; two groups per
/// worker if they `overlap` and each is large enough.
///
/// Errors: `env-vector-size` if the number of environments is not a multiple of `vector`.
fn share(num_envs: u32, num_workers: u32, vector: u32, overlap: bool) -> Result<Vec<Share>> {
    let unit = vector.max(1);
    if !num_envs.is_multiple_of(unit) || num_envs == 0 {
        let message = format!("`num_envs` is {num_envs}, and a vector environment steps {unit} at once");
        return Err(Error::usage("env-vector-size", message).hint(format!(
            "set num_envs to a multiple of {unit}, or make vector environments of another size"
        )));
    }
    let units = num_envs / unit;
    let workers = num_workers.clamp(1, units);
    // Widened, because the product of two 32-bit numbers may overflow.
    let start = |worker: u32| (u64::from(worker) * u64::from(units) / u64::from(workers)) as u32;
    let of = |worker: u32| {
        let (first, last) = (start(worker), start(worker + 1));
        let middle = first + (last - first).div_ceil(2);
        let halves = overlap && (last - middle) as usize * unit as usize >= GROUP_ENVS_MIN;
        let bounds = if halves { vec![first, middle, last] } else { vec![first, last] };
        let groups = bounds.windows(2).map(|pair| pair[0] * unit..pair[1] * unit).collect();
        Share { envs: first * unit..last * unit, groups }
    };
    Ok((0..workers).map(of).collect())
}

fn check_name(env: &str) -> Result<()> {
    let not_found = |message: String| {
        Error::usage(slugs::UNKNOWN_ENVIRONMENT, message)
            .hint("a Python environment is \"gym:ID\" or \"python:FILE.py:FUNCTION\", with a path from where the command runs")
    };
    if let Some(id) = env.strip_prefix("gym:") {
        return if id.is_empty() { Err(not_found("`gym:` without an id".into())) } else { Ok(()) };
    }
    match env.strip_prefix("python:").and_then(|rest| rest.rsplit_once(':')) {
        Some((file, function)) if !file.is_empty() && !function.is_empty() => {
            let is_file = Path::new(file).is_file();
            if is_file {
                Ok(())
            } else {
                Err(not_found(format!("`{file}` is not a file")).near(Path::new(file)))
            }
        }
        _ => Err(not_found(format!("`{env}` names no Python environment"))),
    }
}

/// Refuses shared memory that does not fit, before any is allocated. It counts against the container's
/// memory, not against /dev/shm, because it is in no file system.
fn check_room(bytes: Bytes, num_envs: u32) -> Result<()> {
    let Some(limit) = Host::this().memory_limit() else { return Ok(()) };
    if bytes <= limit.bytes {
        return Ok(());
    }
    let message = format!(
        "the slots of {num_envs} environments take {bytes} of shared memory, {} are left ({})",
        limit.bytes, limit.source
    );
    Err(Error::does_not_fit("env-shared-memory-full", message)
        .hint("lower `num_envs`, or observe less: fewer elements, or uint8 instead of float32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_ascending_and_keep_vectors_together() {
        for (envs, workers, vector) in
            [(1, 1, 0), (7, 3, 0), (64, 8, 0), (8, 16, 0), (12, 5, 4), (4096, 7, 2)]
        {
            let shares = share(envs, workers, vector, true).unwrap();
            assert!(shares.len() as u32 <= workers && shares.iter().all(|share| !share.envs.is_empty()));
            let groups: Vec<_> = shares.iter().flat_map(|share| share.groups.clone()).collect();
            let mut next = 0;
            for group in &groups {
                assert_eq!((group.start, group.len() as u32 % vector.max(1)), (next, 0), "{shares:?}");
                next = group.end;
            }
            assert_eq!(next, envs);
        }
        assert_eq!(share(64, 8, 0, true).unwrap()[1].local_groups(), [0..4, 4..8]);
        assert_eq!(share(64, 8, 0, false).unwrap()[1].local_groups().len(), 1);
        assert_eq!(share(10, 2, 4, true).unwrap_err().slug, "env-vector-size");
    }

    #[test]
    fn more_room_than_the_machine_has_is_refused_before_it_is_taken() {
        let error = check_room(Bytes(1 << 50), 7).unwrap_err();
        assert_eq!(error.slug, "env-shared-memory-full", "{error}");
        assert!(check_room(Bytes(4096), 7).is_ok());
    }

    #[test]
    fn a_name_says_what_it_is() {
        for (name, is_one) in
            [("gym:CartPole-v1", true), ("gym:", false), ("CartPole-v1", false), ("python:x.py", false)]
        {
            assert_eq!(check_name(name).is_ok(), is_one, "{name}");
        }
        assert!(check_name("python:none.py:make").unwrap_err().message.contains("`none.py` is not a file"));
    }
}
