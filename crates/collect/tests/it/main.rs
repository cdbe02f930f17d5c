//! Collectors from outside. `python_restarts` is a separate target: it counts what its process holds.

#[path = "../common/mod.rs"]
mod common;

mod collecting;
mod founding_failure_4;
mod keeping;
mod python_faults;
mod python_isolation;
mod python_kinds;
mod python_lanes;
mod python_vectors;
mod underway;
