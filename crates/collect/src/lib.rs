//! Collectors: step many environments at once into batches allocated at start.
//!
//! A `Stepper` steps groups of environments: in threads of this process for native ones, in worker processes for
//! Python. A thread (`lane.rs`) owns a stepper, a policy and the rows that it fills, and passes rows on by value; only
//! counters are shared. This crate never uses a device; a policy is a trait that other crates implement.

#![warn(missing_docs)]

mod batch;
mod collector;
mod export;
mod fault;
mod group;
mod lane;
mod native;
mod plan;
mod policy;
mod python;
mod replay;
mod row;
mod settings;
mod shared;
mod stepper;
mod trajectories;

pub use batch::Batch;
pub use collector::{Collector, LANE_STACK_BYTES, process_cpu_seconds};
pub use export::write_batches;
pub use fault::{Counters, Fault, FaultKind, RestartLimit};
pub use native::{Autoreset, GroupOptions, NativeGroup, native_steppers};
pub use plan::{Limits, layout, native_bytes};
pub use policy::{ActionBatch, Beyond, Extras, ObservationBatch, Policy, Random};
pub use python::{ENV_WORKER, Measured, PythonEnvs, PythonStepper, become_env_worker, children_cpu_seconds};
pub use replay::{NStep, Replay, Transition};
pub use row::{Final, Row, RowLayout};
pub use settings::{Mode, OnAbort, Settings, Stats, Underway};
pub use stepper::{Ask, Request, Results, Stepper};
pub use trajectories::{Episode, Trajectories};
