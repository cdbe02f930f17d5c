//! Named errors as Python exceptions.

use plimsoll_base::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Converts an error to the package's exception, `plimsoll.PlimsollError`, with slug, facts and hints for code.
pub fn raised(error: &Error) -> PyErr {
    Python::attach(|py| exception(py, error).map_or_else(|other| other, PyErr::from_value))
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let named = PyDict::new(py);
    named.set_item("slug", error.slug)?;
    named.set_item("facts", &error.facts)?;
    named.set_item("hints", &error.hints)?;
    named.set_item("exit_code", error.exit as i32)?;
    py.import("plimsoll.errors")?.getattr("PlimsollError")?.call((&error.message,), Some(&named))
}
