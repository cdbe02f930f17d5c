//! The wheel `plimsoll-rl`: collectors and vector environments for learners in Python.
//!
//! This side passes bytes: slots of observations and actions, and the memory of a batch. The Python side
//! (`python/plimsoll_rl`) shapes them with numpy, from spaces described in JSON.

#![warn(missing_docs)]

mod collector;
mod dlpack;
mod environments;
mod errors;
mod policy;
mod replay;
mod vector;

use pyo3::prelude::*;
use std::ffi::OsString;

/// Becomes a worker of Python environments; returns only on errors.
#[pyfunction]
fn become_env_worker(arguments: Vec<OsString>) {
    plimsoll_collect::exec_env_worker(&arguments);
}

#[pymodule]
fn _native(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PlimsollError", py.get_type::<errors::PlimsollError>())?;
    module.add("NATIVE_IDS", plimsoll_env::native::IDS.to_vec())?;
    module.add_function(wrap_pyfunction!(become_env_worker, module)?)?;
    module.add_class::<vector::Vector>()?;
    module.add_class::<collector::PyCollector>()?;
    module.add_class::<collector::PyBatch>()?;
    module.add_class::<replay::PyReplay>()?;
    module.add_class::<dlpack::Memory>()
}
