//! Shared by tests of Python environments: the interpreter, options that point at `envs.py`, and a driver.

#![allow(dead_code, reason = "each test binary uses only a part")]

use plimsoll_base::Result;
use plimsoll_collect::{Ask, Fault, PythonEnvs, PythonStepper, Request, Stepper};
use plimsoll_env::{flags, seed};
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Returns the interpreter for tests, if it has numpy; otherwise prints what is missing.
pub fn python() -> Option<String> {
    let python = std::env::var("PLIMSOLL_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let found =
        Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|out| out.status.success());
    if !found {
        eprintln!(
            "skipped: `{python}` has no numpy; PLIMSOLL_TEST_PYTHON may name an interpreter that has it"
        );
    }
    found.then_some(python)
}

/// Makes `class` of envs.py, with short waits before restarts, so that tests are short.
pub fn envs(python: &str, class: &str, kwargs: Value, num_envs: u32, num_workers: u32) -> PythonEnvs {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/envs.py");
    let mut envs = PythonEnvs::new(&format!("python:{file}:{class}"), num_envs, num_workers);
    envs.kwargs = kwargs.as_object().cloned().unwrap_or_default();
    envs.python = Some(python.to_string());
    envs.program = Some(env!("CARGO_BIN_EXE_plimsoll-env-worker").into());
    envs.step_timeout = Duration::from_secs(30);
    envs.reset_timeout = Duration::from_secs(60);
    envs.backoff = [Duration::from_millis(5), Duration::from_millis(20)];
    envs
}

/// One environment's answer to one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub observation: Vec<u8>,
    pub last: Vec<u8>,
    pub reward: f64,
    pub flags: u8,
}

impl Frame {
    pub fn values(&self) -> Vec<f32> {
        self.observation.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }
}

/// Steps all environments of a stepper in turn, with actions determined by environment and step.
pub struct Driver {
    pub stepper: PythonStepper,
    pub frames: Vec<Vec<Frame>>,
    pub faults: Vec<Fault>,
    /// Action 0 always.
    pub still: bool,
    episodes: Vec<u32>,
    asked: u32,
}

impl Driver {
    pub fn start(envs: PythonEnvs) -> Result<Driver> {
        let num_envs = envs.num_envs as usize;
        let stepper = PythonStepper::start(envs, &Stop::default())?;
        let (frames, episodes) = (vec![Vec::new(); num_envs], vec![0; num_envs]);
        let mut driver = Driver { stepper, frames, faults: Vec::new(), still: false, episodes, asked: 0 };
        driver.all(Ask::Reset)?;
        Ok(driver)
    }

    pub fn steps(&mut self, steps: u32) -> Result<()> {
        (0..steps).try_for_each(|_| self.all(Ask::Step))
    }

    /// Submits a request to every group and waits for all.
    pub fn all(&mut self, ask: Ask) -> Result<()> {
        let groups = self.stepper.groups().to_vec();
        let bytes = plimsoll_env::Slot::of(&self.stepper.spec().action)?.bytes;
        for (group, envs) in groups.iter().enumerate() {
            let seeds: Vec<u64> =
                envs.clone().map(|env| seed::reset_seed(5, env, self.episodes[env as usize])).collect();
            let mut actions = vec![0; bytes * envs.len()];
            if bytes == 8 && !self.still {
                for (slot, env) in actions.chunks_exact_mut(8).zip(envs.clone()) {
                    slot.copy_from_slice(&i64::from((env + self.asked) % 4).to_ne_bytes());
                }
            }
            self.stepper
                .submit(group, Request { asks: &vec![ask; envs.len()], actions: &actions, seeds: &seeds })?;
        }
        self.asked += 1;
        for _ in &groups {
            let group = self.stepper.wait(&Stop::default())?.expect("it is not stopped");
            let results = self.stepper.results(group);
            let width = results.observations.len() / results.flags.len();
            for (index, env) in groups[group].clone().enumerate() {
                let of = |bytes: &[u8]| bytes[index * width..(index + 1) * width].to_vec();
                let flags = results.flags[index];
                let done = flags & flags::DONE != 0;
                let last = if done { of(results.final_observations) } else { Vec::new() };
                let frame = Frame {
                    observation: of(results.observations),
                    last,
                    reward: results.rewards[index],
                    flags,
                };
                self.frames[env as usize].push(frame);
                self.episodes[env as usize] +=
                    u32::from(done || flags & flags::ABORTED != 0 || ask == Ask::Reset);
            }
        }
        self.faults.extend(self.stepper.take_faults());
        Ok(())
    }

    /// Returns the number of aborted steps.
    pub fn aborted(&self) -> usize {
        self.frames.iter().flatten().filter(|frame| frame.flags & flags::ABORTED != 0).count()
    }
}

/// An instance of `Faulty` that fails once.
pub fn faulty(folder: &Path, fault: &str, place: &str) -> Value {
    json!({ "folder": folder, "fault": fault, "where": place })
}

/// Whether a killed process is gone, or a zombie.
pub fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}
