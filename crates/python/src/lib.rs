//! The native part of the Python package: collectors and vector environments for learners in Python.
//!
//! This side passes bytes: slots of observations and actions, and the memory of a batch. The Python side
//! (`python/plimsoll/collect`) shapes them with numpy, from spaces described in JSON.

#![warn(missing_docs)]

mod collector;
mod dlpack;
mod environments;
mod errors;
mod policy;
mod replay;
mod vector;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NATIVE_IDS", plimsoll_env::native::IDS.to_vec())?;
    module.add_class::<vector::Vector>()?;
    module.add_class::<collector::PyCollector>()?;
    module.add_class::<collector::PyBatch>()?;
    module.add_class::<replay::PyReplay>()?;
    module.add_class::<dlpack::Memory>()
}
