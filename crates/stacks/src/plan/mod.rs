//! The plan of another framework's run: what each role holds on card and host per phase, and what does not fit first.
//!
//! Each number has a formula, and the framework's version and file it was read in (see `docs/stacks.md`). Unknowns are
//! listed, never guessed: an option without a rule does not affect the plan and is reported.

pub mod hazards;
pub mod ledger;
pub mod limits;
pub mod model;
pub mod pool;
mod report;
pub mod run;
pub mod verdict;
