//! A collector and its batches, for Python. It detaches from the interpreter while it waits.

use crate::dlpack::Memory;
use crate::environments::{EnvironmentsRequest, spaces};
use crate::errors::raised;
use crate::policy::{self, Shared};
use plimsoll_base::{Error, PolicyVersion, Result};
use plimsoll_collect::{Batch, Beyond, Collector, Extras, Mode, OnAbort, RowLayout, Settings};
use plimsoll_env::Slot;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Batches of E environments and T frames.
#[pyclass(frozen, name = "Collector")]
pub struct PyCollector {
    description: String,
    shared: Shared,
    collector: Mutex<Option<Collector>>,
}

/// Settings from Python, without the environments.
struct Plan {
    settings: Settings,
    frames_per_batch: u64,
    extras: Extras,
    beyond: Beyond,
}

impl Plan {
    /// Parses the settings. Errors: `bad-value`.
    fn read(text: &str) -> Result<Plan> {
        let bad =
            |message: String| Error::usage("bad-value", message).hint("see help(plimsoll.collect.Collector)");
        let asked: Value = serde_json::from_str(text).map_err(|err| bad(err.to_string()))?;
        let count = |key: &str| asked[key].as_u64().unwrap_or(0);
        let mode = match (asked["mode"].as_str(), asked["preemptive_threshold"].as_f64()) {
            (None | Some("sync"), _) => Mode::Sync,
            (Some("semi-sync"), threshold) => {
                let preemptive_threshold = threshold.unwrap_or(1.0);
                if !(preemptive_threshold > 0.0 && preemptive_threshold <= 1.0) {
                    let message = format!(
                        "`preemptive_threshold` is {preemptive_threshold}; it takes a share above 0, at most 1"
                    );
                    return Err(bad(message));
                }
                Mode::SemiSync { preemptive_threshold }
            }
            (Some("async"), _) => Mode::Async { policy_lag_max: asked["policy_lag_max"].as_u64() },
            (Some(other), _) => {
                return Err(bad(format!("`mode` is \"{other}\"; it takes sync, semi-sync or async")));
            }
        };
        let has =
            |name: &str| asked["extras"].as_array().is_some_and(|list| list.iter().any(|one| one == name));
        Ok(Plan {
            settings: Settings {
                run_seed: count("seed"),
                mode,
                batches_in_flight: count("batches_in_flight").max(1) as usize,
                on_abort: OnAbort::Keep,
                random_steps: count("random_steps"),
                reset_each_batch: asked["reset_each_batch"] == true,
            },
            frames_per_batch: count("frames_per_batch"),
            extras: Extras { logprobs: has("logprobs"), values: has("values") },
            beyond: if asked["clip_actions"] == true { Beyond::Clip } else { Beyond::Refuse },
        })
    }
}

#[pymethods]
impl PyCollector {
    /// `asked`: JSON with the environment's name and options; `plan`: JSON with how to collect.
    #[new]
    fn new(py: Python<'_>, asked: &str, plan: &str, policy: Option<Py<PyAny>>) -> PyResult<PyCollector> {
        py.detach(|| PyCollector::start(asked, plan, policy.map(Arc::new))).map_err(|err| raised(&err))
    }

    /// Returns spaces, leaves and the columns of a row, as JSON.
    #[getter]
    fn description(&self) -> &str {
        &self.description
    }

    /// Returns the next batch; `None` once the collector is closed.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        let taken = py.detach(|| match &mut *self.lock() {
            Some(collector) => collector.next(),
            None => Ok(None),
        });
        let raised_by_policy =
            self.shared.raised.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        match (raised_by_policy, taken) {
            (Some(err), _) => Err(err),
            (None, Err(err)) => Err(raised(&err)),
            (None, Ok(batch)) => Ok(batch.map(|batch| PyBatch { batch: Arc::new(batch) })),
        }
    }

    /// Sets the current version of the policy's weights.
    fn publish(&self, py: Python<'_>, version: u64) {
        self.shared.version.store(version, Ordering::Release);
        py.detach(|| {
            if let Some(collector) = &mut *self.lock() {
                collector.published(PolicyVersion(version));
            }
        });
    }

    /// Returns the account of frames and the counters, as JSON.
    fn stats(&self, py: Python<'_>) -> String {
        let stats = py.detach(|| self.lock().as_ref().map(Collector::stats)).unwrap_or_default();
        let counters = stats.counters;
        json!({
            "produced": stats.produced,
            "delivered": stats.delivered,
            "lagged": stats.lagged,
            "in_flight": stats.in_flight,
            "stalled_seconds": stats.stalled_seconds,
            "policy_seconds": stats.policy_seconds,
            "env_seconds": stats.env_seconds,
            "restarts": counters.restarts,
            "exceptions": counters.exceptions,
            "timeouts": counters.timeouts,
            "over_budget": counters.over_budget,
            "frames_aborted": counters.frames_aborted,
            "episodes": counters.episodes,
        })
        .to_string()
    }

    /// Takes the failures since the last call.
    fn take_faults(&self, py: Python<'_>) -> Vec<String> {
        let faults = py.detach(|| self.lock().as_mut().map(Collector::take_faults)).unwrap_or_default();
        faults.iter().map(|fault| format!("{}: {}", fault.error.slug, fault.error.message)).collect()
    }

    /// Ends threads and workers.
    fn close(&self, py: Python<'_>) {
        // Threads that wait for the interpreter must get it before they can end.
        py.detach(|| drop(self.lock().take()));
    }
}

impl Drop for PyCollector {
    fn drop(&mut self) {
        Python::attach(|py| self.close(py));
    }
}

impl PyCollector {
    fn start(asked: &str, plan: &str, call: Option<Arc<Py<PyAny>>>) -> Result<PyCollector> {
        let (asked, plan) = (EnvironmentsRequest::read(asked)?, Plan::read(plan)?);
        let envs = asked.num_envs() as u64;
        if plan.frames_per_batch == 0 || !plan.frames_per_batch.is_multiple_of(envs) {
            let frames = plan.frames_per_batch;
            let message = format!("`frames_per_batch` is {frames}, no multiple of `num_envs` = {envs}");
            let hint = format!("set frames_per_batch to {}", frames.max(1).next_multiple_of(envs));
            return Err(Error::usage("frames-not-whole", message).hint(hint));
        }
        let steppers = asked.steppers(call.is_none())?;
        let spec = steppers[0].spec().clone();
        let (observation, action) = (Slot::of(&spec.observation)?, Slot::of(&spec.action)?);
        let frames = (plan.frames_per_batch / envs) as usize;
        let layout = RowLayout::new(&observation, &action, frames, frames, plan.extras).ok_or_else(|| {
            Error::usage("size-overflow", "a row of this many frames has more bytes than can be told")
        })?;
        let description = describe(&spaces(&spec)?, &layout);
        let (shared, seed) = (Shared::default(), plan.settings.run_seed);
        let collector = Collector::start(&plan.settings, layout, steppers, &mut || {
            policy::make(call.as_ref(), &shared, seed, plan.beyond)
        })?;
        Ok(PyCollector { description, shared, collector: Mutex::new(Some(collector)) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Collector>> {
        self.collector.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn describe(spaces: &str, layout: &RowLayout) -> String {
    let mut value: Value = serde_json::from_str(spaces).expect("it was written as JSON");
    let at = |range: &Range<usize>| json!([range.start, range.end]);
    value["frames"] = json!(layout.frames);
    value["columns"] = json!({
        "observations": at(&layout.observations),
        "final_observations": at(&layout.final_observations),
        "actions": at(&layout.actions),
        "policy_versions": at(&layout.policy_versions),
        "final_returns": at(&layout.final_returns),
        "rewards": at(&layout.rewards),
        "episode_indices": at(&layout.episode_indices),
        "steps": at(&layout.steps),
        "logprobs": at(&layout.logprobs),
        "values": at(&layout.values),
        "final_frames": at(&layout.final_frames),
        "flags": at(&layout.flags),
    });
    value.to_string()
}

/// A batch, whose memory returns to the collector once it and its arrays are dropped.
#[pyclass(frozen, name = "Batch")]
pub struct PyBatch {
    /// The batch, shared by its arrays.
    pub batch: Arc<Batch>,
}

#[pymethods]
impl PyBatch {
    #[getter]
    fn index(&self) -> u64 {
        self.batch.index
    }

    #[getter]
    fn num_frames(&self) -> u64 {
        self.batch.num_frames
    }

    #[getter]
    fn versions(&self) -> Option<(u64, u64)> {
        self.batch.versions
    }

    /// Returns the environment of each row, [E] u32 as bytes.
    fn env_indices<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let indices = self.batch.rows().iter().flat_map(|row| row.env_index.to_ne_bytes());
        PyBytes::new(py, &indices.collect::<Vec<u8>>())
    }

    /// Returns the number of final observations of each row, [E] u32 as bytes.
    fn num_finals<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let counts = self.batch.rows().iter().flat_map(|row| (row.num_finals as u32).to_ne_bytes());
        PyBytes::new(py, &counts.collect::<Vec<u8>>())
    }

    /// Returns the rows in place; `None` if they are not evenly spaced.
    fn memory(&self) -> Option<Memory> {
        Memory::of(&self.batch)
    }

    /// Returns a copy of the rows, [E, bytes of a row].
    fn copied<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let rows: Vec<u8> = self.batch.rows().iter().flat_map(|row| row.bytes().iter().copied()).collect();
        PyBytes::new(py, &rows)
    }
}
