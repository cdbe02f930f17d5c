//! Environments stepped together, one call per step, for `gymnasium.vector.VectorEnv`.

use crate::environments::{EnvironmentsRequest, spaces};
use crate::errors::raised;
use plimsoll_base::Result;
use plimsoll_collect::{Ask, Request, Stepper};
use plimsoll_env::{Slot, flags, seed::reset_seed};
use plimsoll_worker::Stop;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::sync::{Mutex, MutexGuard};

type Owned<'py> = Bound<'py, PyByteArray>;

/// E environments; every call returns results for all of them.
#[pyclass(frozen)]
pub struct Vector {
    spaces: String,
    inner: Mutex<Inner>,
}

struct Inner {
    steppers: Vec<Box<dyn Stepper>>,
    action_bytes: usize,
    run_seed: u64,
    /// [E]: the current episode of each environment.
    episodes: Vec<u32>,
    /// [E]: the seed of the next episode of each.
    seeds: Vec<u64>,
    asks: Vec<Ask>,
    no_action: Vec<u8>,
    observations: Vec<u8>,
    finals: Vec<u8>,
    rewards: Vec<u8>,
    flags: Vec<u8>,
    errors: Vec<String>,
}

impl Inner {
    fn reset(&mut self) -> Result<()> {
        for (env, seed) in self.seeds.iter_mut().enumerate() {
            *seed = reset_seed(self.run_seed, env as u32, self.episodes[env]);
        }
        self.asks.fill(Ask::Reset);
        let actions = self.no_action.clone();
        self.ask(&actions)?;
        self.begin_next(|_| true);
        Ok(())
    }

    fn step(&mut self, actions: &[u8]) -> Result<()> {
        self.asks.fill(Ask::Step);
        self.ask(actions)?;
        let begun: Vec<bool> =
            self.flags.iter().map(|flag| flag & (flags::DONE | flags::ABORTED) != 0).collect();
        self.begin_next(|env| begun[env]);
        Ok(())
    }

    /// Sets the seeds of the episodes after the current ones.
    fn begin_next(&mut self, has_begun: impl Fn(usize) -> bool) {
        for env in (0..self.seeds.len()).filter(|&env| has_begun(env)) {
            self.episodes[env] += 1;
            self.seeds[env] = reset_seed(self.run_seed, env as u32, self.episodes[env]);
        }
    }

    /// Submits requests to all groups, then waits for all.
    fn ask(&mut self, actions: &[u8]) -> Result<()> {
        self.observations.clear();
        self.finals.clear();
        self.rewards.clear();
        self.flags.clear();
        let bytes = self.action_bytes;
        for stepper in &mut self.steppers {
            let groups = stepper.groups().to_vec();
            for (index, envs) in groups.iter().enumerate() {
                let (first, last) = (envs.start as usize, envs.end as usize);
                let (asks, seeds) = (&self.asks[first..last], &self.seeds[first..last]);
                let actions = &actions[first * bytes..last * bytes];
                stepper.submit(index, Request { asks, actions, seeds })?;
            }
            for _ in &groups {
                stepper.wait(&Stop::default())?;
            }
            for fault in stepper.take_faults() {
                self.errors.push(format!("{}: {}", fault.error.slug, fault.error.message));
            }
            for index in 0..groups.len() {
                let results = stepper.results(index);
                self.observations.extend_from_slice(results.observations);
                self.finals.extend_from_slice(results.final_observations);
                self.rewards.extend(results.rewards.iter().flat_map(|reward| reward.to_ne_bytes()));
                self.flags.extend_from_slice(results.flags);
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Vector {
    /// `asked`: JSON with the environment's name and options.
    #[new]
    fn new(py: Python<'_>, asked: &str, seed: u64) -> PyResult<Vector> {
        py.detach(|| Vector::start(asked, seed)).map_err(|err| raised(&err))
    }

    /// Returns spaces and leaves as JSON.
    #[getter]
    fn spaces(&self) -> &str {
        &self.spaces
    }

    /// Begins an episode of each; a seed determines all of them.
    #[pyo3(signature = (seed=None))]
    fn reset<'py>(&self, py: Python<'py>, seed: Option<u64>) -> PyResult<Owned<'py>> {
        py.detach(|| {
            let mut inner = self.inner();
            if let Some(seed) = seed {
                inner.run_seed = seed;
                inner.episodes.fill(0);
            }
            inner.reset()
        })
        .map_err(|err| raised(&err))?;
        Ok(PyByteArray::new(py, &self.inner().observations))
    }

    /// Steps all with their action slots. Returns observations, final observations, rewards f64 and flags, as bytes.
    fn step<'py>(
        &self,
        py: Python<'py>,
        actions: &[u8],
    ) -> PyResult<(Owned<'py>, Owned<'py>, Owned<'py>, Owned<'py>)> {
        let wanted = self.inner().no_action.len();
        if actions.len() != wanted {
            let message = format!("{} bytes of actions; the environments take {wanted}", actions.len());
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        py.detach(|| self.inner().step(actions)).map_err(|err| raised(&err))?;
        let inner = self.inner();
        Ok((
            PyByteArray::new(py, &inner.observations),
            PyByteArray::new(py, &inner.finals),
            PyByteArray::new(py, &inner.rewards),
            PyByteArray::new(py, &inner.flags),
        ))
    }

    /// Takes the failures since the last call; failed environments were made again.
    fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().errors)
    }
}

impl Vector {
    fn start(asked: &str, seed: u64) -> Result<Vector> {
        let asked = EnvironmentsRequest::read(asked)?.on_this_thread();
        let steppers = asked.steppers(false)?;
        let spec = steppers[0].spec().clone();
        let action_bytes = Slot::of(&spec.action)?.bytes;
        let count = asked.num_envs();
        Ok(Vector {
            spaces: spaces(&spec)?,
            inner: Mutex::new(Inner {
                steppers,
                action_bytes,
                run_seed: seed,
                episodes: vec![0; count],
                seeds: vec![0; count],
                asks: vec![Ask::Skip; count],
                no_action: vec![0; count * action_bytes],
                observations: Vec::new(),
                finals: Vec::new(),
                rewards: Vec::new(),
                flags: Vec::new(),
                errors: Vec::new(),
            }),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
