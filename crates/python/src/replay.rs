//! The replay ring for off-policy learners: batches are copied in, transitions come out by key.

use crate::collector::PyBatch;
use crate::errors::raised;
use plimsoll_collect::Replay;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::sync::{Mutex, MutexGuard};

type Owned<'py> = Bound<'py, PyByteArray>;

/// The last frames of each environment.
#[pyclass(frozen, name = "Replay")]
pub struct PyReplay {
    num_envs: usize,
    /// Frames of each environment.
    capacity: usize,
    seed: u64,
    /// Made with the first batch, which determines the layout.
    ring: Mutex<Option<Replay>>,
}

#[pymethods]
impl PyReplay {
    #[new]
    fn new(num_envs: usize, capacity: usize, seed: u64) -> PyResult<PyReplay> {
        if num_envs == 0 || capacity == 0 {
            return Err(PyValueError::new_err("a ring holds at least one frame of one environment"));
        }
        Ok(PyReplay { num_envs, capacity, seed, ring: Mutex::default() })
    }

    /// Returns the number of frames in the ring.
    fn len(&self) -> usize {
        self.ring().as_ref().map_or(0, Replay::len)
    }

    /// Copies the frames of a batch over the oldest of their environments.
    fn push(&self, py: Python<'_>, batch: &PyBatch) -> PyResult<()> {
        let batch = batch.shared();
        if let Some(row) = batch.rows().iter().find(|row| row.env_index as usize >= self.num_envs) {
            let message = format!("environment {} of {} in the ring", row.env_index, self.num_envs);
            return Err(PyValueError::new_err(message));
        }
        py.detach(|| {
            let mut ring = self.ring();
            if ring.is_none() {
                *ring = Some(Replay::new(self.num_envs, self.capacity, &batch.layout)?);
            }
            ring.as_mut().expect("made above").push(batch);
            Ok(())
        })
        .map_err(|err| raised(&err))
    }

    /// Samples `count` transitions of up to `n` steps, determined by seed and draw: observations, actions, next
    /// observations, returns f32, bootstrap discounts f32, environments u32, each as bytes. Empty if the ring is.
    #[allow(clippy::type_complexity)] // Six arrays, named above.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        draw: u64,
        count: usize,
        n: usize,
        discount: f64,
    ) -> (Owned<'py>, Owned<'py>, Owned<'py>, Owned<'py>, Owned<'py>, Owned<'py>) {
        let mut parts: [Vec<u8>; 6] = Default::default();
        if let Some(ring) = &*self.ring() {
            let drawn = (0..count as u64).map_while(|i| ring.sample(self.seed, draw, i, n.max(1), discount));
            for one in drawn {
                parts[0].extend_from_slice(one.observation);
                parts[1].extend_from_slice(one.action);
                parts[2].extend_from_slice(one.next_observation);
                parts[3].extend_from_slice(&(one.steps.n_step_return as f32).to_ne_bytes());
                parts[4].extend_from_slice(&(one.steps.bootstrap_discount as f32).to_ne_bytes());
                parts[5].extend_from_slice(&one.env_index.to_ne_bytes());
            }
        }
        let [a, b, c, d, e, f] = parts.map(|part| PyByteArray::new(py, &part));
        (a, b, c, d, e, f)
    }
}

impl PyReplay {
    fn ring(&self) -> MutexGuard<'_, Option<Replay>> {
        self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
