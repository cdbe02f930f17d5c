//! Mutated inputs for every parser of files that other people wrote: each must return, with a value or a named error,
//! in bounded time and memory. Inputs are a function of a seed and their number, so one that fails can be made again.

pub mod mutate;
pub mod report;
pub mod session;
pub mod target;
pub mod targets;
