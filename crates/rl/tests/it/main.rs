//! Steps of training on a model that is planned, bound and trained in the test's own process.

mod founding_failure_5;
mod keeping;
mod pairs;
mod rig;
mod roles;
mod steps;
