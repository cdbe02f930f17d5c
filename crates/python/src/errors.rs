//! Named errors as Python exceptions.

use plimsoll_base::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(plimsoll_rl, PlimsollError, PyRuntimeError, "A named error; `slug` is its name.");

/// Converts an error to a Python exception: the message with facts and hints, and `slug` for code.
pub fn raised(error: &Error) -> PyErr {
    Python::attach(|py| {
        let raised = PlimsollError::new_err(error.to_string());
        match raised.value(py).setattr("slug", error.slug) {
            Ok(()) => raised,
            Err(other) => other,
        }
    })
}
