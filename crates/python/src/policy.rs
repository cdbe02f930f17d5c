//! A policy in Python: called with the slots of a group, it returns action slots.

use plimsoll_base::{PolicyVersion, Result};
use plimsoll_collect::{ActionBatch, Beyond, ObservationBatch, Policy, Random};
use plimsoll_env::Spec;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The state of a policy shared by the collector's threads and its owner.
#[derive(Clone, Default)]
pub struct Shared {
    /// The version of the current weights.
    pub version: Arc<AtomicU64>,
    /// Its exception, which ends the collection.
    pub raised: Arc<Mutex<Option<PyErr>>>,
}

/// Calls `call(observations: bytes, env_index: int, episodes: bytes, steps: bytes) -> (actions, logprobs, values)`, all
/// bytes in the order of the slots.
pub struct Called {
    pub call: Arc<Py<PyAny>>,
    pub shared: Shared,
    pub beyond: Beyond,
}

/// Returns a policy: random actions without `call`, otherwise calls to Python.
pub fn make(
    call: Option<&Arc<Py<PyAny>>>,
    shared: &Shared,
    run_seed: u64,
    beyond: Beyond,
) -> Box<dyn Policy> {
    match call {
        None => Box::new(Random { run_seed }),
        Some(call) => Box::new(Called { call: call.clone(), shared: shared.clone(), beyond }),
    }
}

impl Policy for Called {
    fn check(&self, _: &Spec) -> Result<()> {
        Ok(())
    }

    fn beyond(&self) -> Beyond {
        self.beyond
    }

    fn act(&mut self, observations: &ObservationBatch<'_>, actions: &mut ActionBatch<'_>) -> PolicyVersion {
        let version = PolicyVersion(self.shared.version.load(Ordering::Acquire));
        let answered = Python::attach(|py| self.ask(py, observations, actions));
        if let Err(err) = answered {
            let mut raised = self.shared.raised.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            raised.get_or_insert(err);
            // NaN is outside every space: the collector ends, and its owner raises the exception.
            actions.actions.fill(0xff);
        }
        version
    }
}

impl Called {
    fn ask(
        &self,
        py: Python<'_>,
        observations: &ObservationBatch<'_>,
        actions: &mut ActionBatch<'_>,
    ) -> PyResult<()> {
        let numbers = |numbers: &[u32]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_ne_bytes()).collect() };
        let answer = self.call.bind(py).call1((
            PyBytes::new(py, observations.observations),
            observations.first_env,
            PyBytes::new(py, &numbers(observations.episodes)),
            PyBytes::new(py, &numbers(observations.steps)),
        ))?;
        let (chosen, logprobs, values): (Bound<'_, PyBytes>, Bound<'_, PyBytes>, Bound<'_, PyBytes>) =
            answer.extract()?;
        copy(chosen.as_bytes(), actions.actions, "actions")?;
        floats(logprobs.as_bytes(), actions.logprobs, "logprobs")?;
        floats(values.as_bytes(), actions.values, "values")
    }
}

fn copy(from: &[u8], to: &mut [u8], what: &str) -> PyResult<()> {
    if from.len() != to.len() {
        let message = format!("the policy gave {} bytes of {what}; the group takes {}", from.len(), to.len());
        return Err(pyo3::exceptions::PyValueError::new_err(message));
    }
    to.copy_from_slice(from);
    Ok(())
}

fn floats(from: &[u8], to: &mut [f32], what: &str) -> PyResult<()> {
    let (chunks, rest) = from.as_chunks::<4>();
    if chunks.len() != to.len() || !rest.is_empty() {
        let message = format!("the policy gave {} {what}; the group takes {}", from.len() / 4, to.len());
        return Err(pyo3::exceptions::PyValueError::new_err(message));
    }
    for (to, from) in to.iter_mut().zip(chunks) {
        *to = f32::from_ne_bytes(*from);
    }
    Ok(())
}
