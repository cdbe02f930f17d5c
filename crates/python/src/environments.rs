//! Environments for Python: native ones by id, Python's in worker processes.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_collect::{GroupOptions, PythonEnvs, PythonStepper, Stepper, native_steppers};
use plimsoll_env::{Domain, Leaf, Slot, Space, Spec};
use plimsoll_worker::{Gpu, Stop};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The request from Python, as JSON; unknown keys are refused.
pub struct EnvironmentsRequest {
    env: String,
    num_envs: u32,
    options: Map<String, Value>,
    threads: usize,
    workers: u32,
    python: Option<String>,
    program: Option<PathBuf>,
    worker_memory: Option<u64>,
    gpu: Gpu,
    episode_steps_max: Option<u32>,
    restarts_max: u32,
}

impl EnvironmentsRequest {
    /// Parses a request. Errors: `bad-value`.
    pub fn read(text: &str) -> Result<EnvironmentsRequest> {
        let bad =
            |message: String| Error::usage("bad-value", message).hint("see help(plimsoll.collect.Collector)");
        let Ok(Value::Object(mut asked)) = serde_json::from_str(text) else {
            return Err(bad("the options are no JSON object".into()));
        };
        let mut count = |key: &str, or: u64| match asked.remove(key) {
            None | Some(Value::Null) => Ok(or),
            Some(value) => value.as_u64().filter(|n| *n <= u64::from(u32::MAX)).ok_or_else(|| {
                bad(format!("`{key}` is {value}; it takes a whole number from 0 to {}", u32::MAX))
            }),
        };
        let (num_envs, workers) = (count("num_envs", 0)? as u32, count("num_workers", 0)? as u32);
        let (threads, restarts_max) = (count("threads", 0)? as usize, count("restarts_max", 5)? as u32);
        let steps_max = count("episode_steps_max", 0)? as u32;
        if num_envs == 0 {
            return Err(bad("`num_envs` is 0; it takes at least 1".into()));
        }
        let mut text = |key: &str| asked.remove(key).as_ref().and_then(Value::as_str).map(str::to_string);
        let env = text("env").unwrap_or_default();
        let (python, program) = (text("python"), text("program").map(PathBuf::from));
        let gpu = match text("gpu").as_deref() {
            None | Some("deny") => Gpu::Deny,
            Some("allow") => Gpu::Allow,
            Some(other) => return Err(bad(format!("`gpu` is \"{other}\"; it takes \"deny\" or \"allow\""))),
        };
        let worker_memory = asked.remove("worker_memory").as_ref().and_then(Value::as_u64);
        let options = match asked.remove("env_options") {
            Some(Value::Object(options)) => options,
            _ => Map::new(),
        };
        if let Some(key) = asked.keys().find(|key| !asked[*key].is_null()) {
            return Err(bad(format!("`{key}` is no option")));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(EnvironmentsRequest {
            env,
            num_envs,
            options,
            threads: if threads == 0 { cores } else { threads },
            workers: if workers == 0 { cores as u32 } else { workers },
            python,
            program,
            worker_memory,
            gpu,
            episode_steps_max: (steps_max > 0).then_some(steps_max),
            restarts_max,
        })
    }

    /// Returns E, the number of environments.
    pub fn num_envs(&self) -> usize {
        self.num_envs as usize
    }

    /// Puts native environments in one group, for a caller that steps them itself.
    pub fn on_this_thread(mut self) -> EnvironmentsRequest {
        self.threads = 1;
        self
    }

    /// Makes the steppers: threads that share native environments; for workers several threads if these are `ours`, a
    /// collector's without Python; otherwise one thread for all workers, its processors unchanged.
    ///
    /// Errors: those of `native_steppers` and `PythonStepper::start`.
    pub fn steppers(&self, ours: bool) -> Result<Vec<Box<dyn Stepper>>> {
        if !["gym:", "python:"].iter().any(|prefix| self.env.starts_with(prefix)) {
            let options = GroupOptions {
                episode_steps_max: self.episode_steps_max,
                restarts_max: self.restarts_max,
                ..GroupOptions::default()
            };
            return native_steppers(&self.env, &self.options, self.num_envs, self.threads, options);
        }
        let mut envs = PythonEnvs::new(&self.env, self.num_envs, self.workers.clamp(1, self.num_envs));
        envs.kwargs = self.options.clone();
        envs.python = self.python.clone();
        envs.program = self.program.clone();
        envs.gpu = self.gpu;
        envs.restarts_max = self.restarts_max;
        envs.episode_steps_max = self.episode_steps_max;
        if let Some(bytes) = self.worker_memory {
            envs.worker_memory = Bytes(bytes);
        }
        if !ours {
            return Ok(vec![Box::new(PythonStepper::start(envs, &Stop::default())?)]);
        }
        envs.overlap = false;
        let lanes = PythonStepper::start_lanes(envs, self.threads, &Stop::default())?;
        Ok(lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Stepper>).collect())
    }
}

/// Returns the spaces of `spec` and the places of their leaves, as JSON.
pub fn spaces(spec: &Spec) -> Result<String> {
    let part = |space: &Space| -> Result<Value> {
        let slot = Slot::of(space)?;
        let leaves: Vec<Value> = slot.leaves.iter().map(leaf).collect();
        Ok(json!({ "space": space, "bytes": slot.bytes, "leaves": leaves }))
    };
    let value =
        json!({ "id": spec.id, "observation": part(&spec.observation)?, "action": part(&spec.action)? });
    Ok(value.to_string())
}

fn leaf(leaf: &Leaf) -> Value {
    let least = if let Domain::Choice { start, .. } = leaf.domain { start } else { 0 };
    json!({
        "path": leaf.path,
        "dtype": leaf.element.name(),
        "shape": leaf.shape,
        "offset": leaf.offset,
        "start": least,
    })
}
