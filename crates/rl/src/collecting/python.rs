//! Python environments of an environment file: their options, and one worker started to be measured.

use crate::runfile::{CollectMode, EnvFile, Network, PolicyKind, Reseed, WorkerGpu};
use plimsoll_base::Result;
use plimsoll_collect::{Measured, PythonEnvs};
use plimsoll_memory::host::Host;
use plimsoll_worker::{Gpu, Stop};
use std::time::Duration;

/// The environments and what a worker of them is and holds; none for native ones.
///
/// Errors: those of starting a worker.
pub(super) fn measured(file: &EnvFile) -> Result<Option<(PythonEnvs, Measured)>> {
    if !["gym:", "python:"].iter().any(|prefix| file.env.starts_with(prefix)) {
        return Ok(None);
    }
    let envs = options(file);
    let measured = Measured::of(&envs, &Stop::default())?;
    Ok(Some((envs, measured)))
}

fn options(file: &EnvFile) -> PythonEnvs {
    let workers = file.num_workers.value().unwrap_or_else(|| Host::this().threads() as u32);
    let mut envs = PythonEnvs::new(&file.env, file.num_envs, workers.clamp(1, file.num_envs));
    envs.kwargs = file.env_options.clone();
    envs.python = file.python.clone();
    if let Some(limit) = file.worker_memory {
        envs.worker_memory = limit.0;
    }
    envs.step_timeout = Duration::from_millis(file.step_timeout_ms.into());
    envs.reset_timeout = Duration::from_millis(file.reset_timeout_ms.into());
    envs.restarts_max = file.restarts_max;
    envs.workers_alive_min = file.workers_alive_min;
    envs.network = match file.network {
        Network::Deny => plimsoll_worker::Network::Deny,
        Network::Allow => plimsoll_worker::Network::Allow,
    };
    envs.gpu = match file.gpu {
        WorkerGpu::Deny => Gpu::Deny,
        WorkerGpu::Allow => Gpu::Allow,
    };
    envs.reseed = file.reseed == Reseed::Episode;
    // Random actions are there at once, and in lockstep nobody waits for a part of the environments.
    envs.overlap = file.policy.kind != PolicyKind::Random || file.mode != CollectMode::Sync;
    envs
}
