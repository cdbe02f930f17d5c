//! The host memory of an environment file, computed before anything starts.

use super::{Opened, batches, frames, open};
use plimsoll_base::{Bytes, Result};
use plimsoll_collect as collect;
use plimsoll_config::{EnvFile, FramesFormat, LoadedEnv};
use plimsoll_memory::{Layout, Limits, Place, Plan, Pool, host::Host};
use plimsoll_plan::{kernel_bytes, process_rows, render};
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;

/// Largest total size of the headers of all files.
const HEADER_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct EnvPlan {
    pub plan: Plan,
    pub opened: Opened,
}

/// Plans for this machine, or for the given limits; `stop` ends the wait for Python environments.
///
/// Errors: those of opening the environment; a plan that does not fit is no error.
pub fn plan_env(loaded: &LoadedEnv, given: Option<Limits>, stop: &Stop) -> Result<EnvPlan> {
    let file = &loaded.env;
    let opened = open(file, &loaded.provenance, stop)?;
    let layout = layout(file, &opened)?;
    let here = Host::this().limits(Path::new(file.run.dir.as_deref().unwrap_or(".")));
    let given = given.unwrap_or_default();
    let limits = Limits {
        host: given.host.or(here.host),
        disk: given.disk.or(here.disk),
        shm: given.shm.or(here.shm),
        device: given.device,
    };
    let plan = Plan { layout, limits };
    plan.check_sum()?;
    Ok(EnvPlan { plan, opened })
}

fn layout(file: &EnvFile, opened: &Opened) -> Result<Layout> {
    let envs = u64::from(file.num_envs);
    let bytes = opened.row.observation.bytes;
    let limits = collect::Limits {
        num_envs: envs,
        batches: batches(file),
        threads: opened.threads as u64,
        environment_bytes: match &opened.python {
            Some(_) => 0,
            None => collect::native_bytes(&file.env, &file.env_options, envs, bytes)?,
        },
        trajectories: file.episodes_per_batch.zip(file.episode_frames_max).map(|(n, t)| (n.into(), t.into())),
        replay_frames: file.replay.map(|replay| replay.capacity / envs),
    };
    let mut layout = collect::layout(&limits, &opened.row);
    if let Some(setup) = &opened.python {
        layout.extend(setup.measured.layout("env", file.num_envs)?);
    }
    if let Some(policy) = &opened.policy {
        layout.extend(policy.layout(opened.group_envs, opened.threads)?);
    }
    process_rows(&mut layout);
    if let (Some(_), FramesFormat::Parquet) = (&file.run.dir, file.run.format) {
        let buffer = frames::bytes(&opened.row).1;
        layout.outside("collect.writer", "collect", Pool::Host, Place::Heap, buffer);
    }
    if let (Some(_), Some(total)) = (&file.run.dir, file.total_frames) {
        let rows = total.div_ceil(file.frames_per_batch).saturating_mul(envs);
        let of_row = match file.run.format {
            FramesFormat::Safetensors => opened.row.bytes as u64,
            FramesFormat::Parquet => frames::bytes(&opened.row).0.saturating_mul(file.frames_per_env()),
        };
        let bytes = rows.saturating_mul(of_row).saturating_add(HEADER_BYTES);
        layout.outside("collect.files", "collect", Pool::Disk, Place::File, Bytes(bytes));
    }
    let mapped = layout.sum(|region| region.pool == Pool::Host);
    layout.outside(
        "kernel.memory",
        "kernel",
        Pool::Host,
        Place::Kernel,
        kernel_bytes(opened.threads + 1, mapped),
    );
    Ok(layout)
}

impl EnvPlan {
    /// Refuses a plan that does not fit, with exit code 3 and remedies.
    pub fn refuse(&self, file: &EnvFile) -> Result<()> {
        self.plan.refusal().map_err(|error| {
            let frames = (file.frames_per_env() / 2).max(1) * u64::from(file.num_envs);
            let mut error =
                error.hint(format!("--set frames_per_batch={frames}: half the frames of each environment"));
            if file.batches_in_flight > 1 {
                error = error.hint("--set batches_in_flight=1: no batch is filled while another is used");
            }
            error
        })
    }

    pub fn process_peak(&self) -> Bytes {
        self.plan.process_peak()
    }

    /// Returns the object that `plan --json` prints.
    pub fn to_json(&self) -> Value {
        json!({
            "fits": self.plan.fits(),
            "pools": render::pools_json(&self.plan),
            "regions": self.plan.layout.regions,
            "row_bytes": self.opened.row.bytes,
            "worker_memory_held_by": self.memory_held_by(),
        })
    }

    /// Returns the table that `plan` prints.
    pub fn table(&self) -> String {
        let verdict = if self.plan.fits() { "verdict: fits" } else { "verdict: does not fit" };
        let held_by = self.memory_held_by();
        let workers = held_by.map_or(String::new(), |by| format!("worker_memory is held by: {by}\n"));
        let (regions, pools) = (render::region_lines(&self.plan), render::pool_lines(&self.plan));
        format!("{regions}{pools}{workers}{verdict}\n")
    }

    /// Returns the means that limits workers to `worker_memory`; `None` without workers.
    pub fn memory_held_by(&self) -> Option<&str> {
        self.opened.python.as_ref().map(|setup| setup.measured.memory_held_by.as_str())
    }
}
