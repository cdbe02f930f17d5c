//! The plan of a run of another framework: what each role holds on its card and on its host in each phase, by that
//! framework's own rules, and the first phase that does not fit.
//!
//! Each number has a formula and names the framework's file and version that it was read in (`docs/stacks.md` explains them).
//! What is not known is listed, never guessed: an option without a rule does not affect the plan and is reported.

pub mod hazards;
pub mod ledger;
pub mod limits;
pub mod model;
pub mod pool;
mod report;
pub mod run;
pub mod verdict;
