//! The plan of another framework's run: what each role holds on its card and host in each phase, by that framework's
//! rules, and the first phase that does not fit.
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
