//! Python environments of an environment file or a run: their options, and the measurement of one started worker.

use plimsoll_base::Result;
use plimsoll_collect::{Measured, PythonEnvs};
use plimsoll_config::{EnvFile, Environment, Network, PolicyKind, Reseed, WorkerGpu, is_python_env};
use plimsoll_memory::host::Host;
use plimsoll_worker::{Gpu, Stop};
use std::time::Duration;

/// Python environments with a measured worker.
#[derive(Clone, Debug)]
pub struct PythonSetup {
    pub envs: PythonEnvs,
    /// Size and properties of a worker.
    pub measured: Measured,
    /// Ends any wait for environments to be made.
    pub stop: Stop,
}

impl PythonSetup {
    /// Sets up the environments of a file; none for native ones.
    ///
    /// Errors: those of starting a worker, `interrupted` once `stop` is set; `env-vector-autoreset` for a limit that
    /// vector environments cannot have.
    pub fn of_file(file: &EnvFile, stop: &Stop) -> Result<Option<PythonSetup>> {
        if !is_python_env(&file.env) {
            return Ok(None);
        }
        let mut envs =
            PythonEnvs::new(&file.env, file.num_envs, workers(file.num_workers.value(), file.num_envs));
        envs.kwargs = file.env_options.clone();
        envs.python = file.python.clone();
        if let Some(limit) = file.worker_memory {
            envs.worker_memory = limit.0;
        }
        envs.step_timeout = Duration::from_millis(file.step_timeout_ms.into());
        envs.reset_timeout = Duration::from_millis(file.reset_timeout_ms.into());
        envs.restarts_max = file.restarts_max;
        envs.workers_alive_min = file.workers_alive_min;
        envs.network = network(file.network);
        envs.gpu = gpu(file.gpu);
        envs.reseed = file.reseed == Reseed::Episode;
        envs.overlap = overlap(&envs) && file.policy.kind != PolicyKind::Random;
        envs.episode_steps_max = file.episode_steps_max();
        PythonSetup::measured(envs, stop).map(Some)
    }

    /// Sets up the environment that a small network is trained in; none for native ones.
    pub fn of_run(section: &Environment, num_envs: u32, stop: &Stop) -> Result<Option<PythonSetup>> {
        if !is_python_env(&section.env) {
            return Ok(None);
        }
        let mut envs =
            PythonEnvs::new(&section.env, num_envs, workers(section.num_workers.value(), num_envs));
        envs.kwargs = section.env_options.clone().into_iter().collect();
        envs.python = section.python.clone();
        envs.worker_memory = section.worker_memory.0;
        envs.step_timeout = Duration::from_millis(section.step_timeout_ms);
        envs.reset_timeout = Duration::from_millis(section.reset_timeout_ms);
        envs.restarts_max = section.restarts_max;
        envs.network = network(section.network);
        envs.gpu = gpu(section.gpu);
        envs.overlap = overlap(&envs);
        envs.episode_steps_max = section.max_frames_per_traj;
        PythonSetup::measured(envs, stop).map(Some)
    }

    fn measured(envs: PythonEnvs, stop: &Stop) -> Result<PythonSetup> {
        let measured = Measured::of(&envs, stop)?;
        Ok(PythonSetup { envs, measured, stop: stop.clone() })
    }

    /// Truncates episodes after `limit` frames, where environments do not do so themselves.
    pub(crate) fn limit_episodes(&mut self, limit: u32) {
        if !self.measured.is_vector {
            self.envs.episode_steps_max = Some(limit);
        }
    }

    /// Returns the first `num_envs` environments, in at most as many workers as all of them have.
    pub(crate) fn envs_of(&self, num_envs: u32) -> PythonEnvs {
        let num_workers = self.measured.workers.min(num_envs);
        PythonEnvs { num_envs, num_workers, ..self.envs.clone() }
    }
}

fn workers(asked: Option<u32>, num_envs: u32) -> u32 {
    asked.unwrap_or_else(|| Host::this().threads() as u32).clamp(1, num_envs.max(1))
}

/// True if there is a processor for each worker and for each thread that asks one. Otherwise they take turns, and
/// splitting a worker's environments into halves only adds turns.
fn overlap(envs: &PythonEnvs) -> bool {
    2 * envs.num_workers as usize <= Host::this().threads()
}

fn network(network: Network) -> plimsoll_worker::Network {
    match network {
        Network::Deny => plimsoll_worker::Network::Deny,
        Network::Allow => plimsoll_worker::Network::Allow,
    }
}

fn gpu(gpu: WorkerGpu) -> Gpu {
    match gpu {
        WorkerGpu::Deny => Gpu::Deny,
        WorkerGpu::Allow => Gpu::Allow,
    }
}
