//! `plimsoll collect`: runs environments alone, from an environment file to batches, statistics and files.
//!
//! `plan.rs` computes the host memory before anything starts; `policy.rs` opens the policy; `run.rs` is the loop.

mod frames;
mod plan;
mod policy;
mod python;
mod run;

pub use plan::{EnvPlan, plan_env};
pub use python::PythonSetup;
pub use run::{CollectEnd, CollectProgress, News, collect, stalled_share};

use plimsoll_base::{Error, Result, slugs};
use plimsoll_collect::{
    Extras, GroupOptions, Mode, OnAbort, Policy, PythonStepper, Random, RowLayout, Settings, Stepper,
    native_steppers,
};
use plimsoll_config::{AbortedEpisode, CollectMode, EnvFile, Provenance};
use plimsoll_env::{Environment, Slot, Spec, native};
use plimsoll_memory::host::Host;
pub use plimsoll_worker::Stop;
use policy::OpenedPolicy;
use std::sync::Arc;

/// Observations up to this size have room for an end of an episode at every frame.
const SMALL_OBSERVATION_BYTES: usize = 64;

/// An opened environment file: spaces, the layout of a row, and the collector's settings.
#[derive(Clone, Debug)]
pub struct Opened {
    pub spec: Spec,
    pub row: RowLayout,
    pub settings: Settings,
    pub options: GroupOptions,
    /// Threads that step native environments, or ask workers.
    pub threads: usize,
    /// Number of environments in the largest group that the policy acts on.
    pub group_envs: usize,
    /// Python environments with a measured worker; none for native ones.
    pub python: Option<PythonSetup>,
    /// The policy of a file; none for a random one.
    pub policy: Option<Arc<OpenedPolicy>>,
}

/// Opens an environment without stepping it.
///
/// Errors: `unknown-environment`, `env-bad-option`, `env-space-unsupported`, `not-built`, `size-overflow`; those of
/// starting a Python worker and of opening a policy.
pub fn open(file: &EnvFile, at: &Provenance, stop: &Stop) -> Result<Opened> {
    let python = PythonSetup::of_file(file, stop)?;
    let spec = match &python {
        Some(setup) => setup.measured.spec.clone(),
        None => spec_of(file, at)?,
    };
    let policy = OpenedPolicy::of(file, &spec, at)?.map(Arc::new);
    let (observation, action) = (Slot::of(&spec.observation)?, Slot::of(&spec.action)?);
    let frames = file.frames_per_env() as usize;
    let small = observation.bytes <= SMALL_OBSERVATION_BYTES;
    let finals = match file.final_rows_max {
        Some(rows) => rows.div_ceil(u64::from(file.num_envs)) as usize,
        None => {
            if small {
                frames
            } else {
                frames / 4 + 1
            }
        }
    };
    let extras = policy.as_ref().map_or(Extras::default(), |policy| policy.extras());
    let row =
        RowLayout::new(&observation, &action, frames, finals.clamp(1, frames), extras).ok_or_else(|| {
            Error::usage("size-overflow", "a row of this many frames has more bytes than 64 bits can count")
        })?;
    let options = GroupOptions {
        episode_steps_max: file.episode_steps_max(),
        restarts_max: file.restarts_max,
        ..GroupOptions::default()
    };
    let threads = match (&python, file.threads.value()) {
        (Some(setup), None) => setup.measured.lanes(Host::this().threads()),
        (Some(setup), Some(threads)) => setup.measured.lanes(threads as usize),
        (None, Some(threads)) => threads as usize,
        (None, None) => Host::this().threads(),
    };
    let threads = threads.clamp(1, file.num_envs as usize);
    let group_envs = match &python {
        Some(setup) => setup.measured.group_envs_max(file.num_envs) as usize,
        None => (file.num_envs as usize).div_ceil(threads),
    };
    Ok(Opened { spec, row, settings: settings(file), options, threads, group_envs, python, policy })
}

pub fn steppers(file: &EnvFile, opened: &Opened) -> Result<Vec<Box<dyn Stepper>>> {
    match &opened.python {
        Some(setup) => {
            let lanes = PythonStepper::start_lanes(setup.envs.clone(), opened.threads, &setup.stop)?;
            Ok(lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Stepper>).collect())
        }
        None => native_steppers(&file.env, &file.env_options, file.num_envs, opened.threads, opened.options),
    }
}

/// Makes the policies, one per thread.
pub fn policies(file: &EnvFile, opened: &Opened) -> Result<Vec<Box<dyn Policy>>> {
    match &opened.policy {
        Some(policy) => policy.policies(file, opened.group_envs, opened.threads),
        None => {
            let random = || Box::new(Random { run_seed: file.seed }) as Box<dyn Policy>;
            Ok((0..opened.threads).map(|_| random()).collect())
        }
    }
}

fn settings(file: &EnvFile) -> Settings {
    Settings {
        run_seed: file.seed,
        mode: match file.mode {
            CollectMode::Sync => Mode::Sync,
            CollectMode::SemiSync => {
                Mode::SemiSync { preemptive_threshold: file.preemptive_threshold.unwrap_or(1.0) }
            }
            CollectMode::Async => Mode::Async { policy_lag_max: file.policy_lag_max },
        },
        batches_in_flight: batches(file) as usize,
        on_abort: match file.on_abort {
            AbortedEpisode::Keep => OnAbort::Keep,
            AbortedEpisode::Drop => OnAbort::Drop,
        },
        random_steps: file.init_random_frames.div_ceil(u64::from(file.num_envs)),
        reset_each_batch: file.reset_each_batch,
    }
}

/// Returns the number of batches in memory: those being filled, and those that wait for the rest of their file.
fn batches(file: &EnvFile) -> u64 {
    let waiting = if file.run.dir.is_some() { file.run.batches_per_file - 1 } else { 0 };
    u64::from(file.batches_in_flight) + u64::from(waiting)
}

fn spec_of(file: &EnvFile, at: &Provenance) -> Result<Spec> {
    if file.env.starts_with("text:") {
        return Err(plimsoll_config::not_built(
            at,
            "env",
            "a text environment",
            "native ones and those of Python",
        ));
    }
    native::visit(&file.env, &file.env_options, OfKind).map_err(|error| pointed(error, at))
}

/// Adds the place of the key to an error.
fn pointed(error: Error, at: &Provenance) -> Error {
    let key = if error.slug == slugs::UNKNOWN_ENVIRONMENT { "env" } else { "env_options" };
    let place = at.error(error.slug, key, &error.message);
    Error { facts: [place.facts, error.facts].concat(), hints: error.hints, ..place }
}

struct OfKind;

impl native::Visitor for OfKind {
    type Output = Spec;

    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Spec {
        make().spec()
    }
}
