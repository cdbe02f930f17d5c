//! Launch files of other frameworks: read as text, turned into a run file, and planned by those frameworks' own rules.
//!
//! A stack is a folder (`openrlhf`, `verl`, ...) and a row of [`STACKS`]. What is known of its options is in one table that
//! `import` and the plan both read. Nothing is run, nothing is fetched, and no type of a run file is known here: it leaves as text.

mod defaults;
mod import;
mod launch;
mod losses;
mod openrlhf;
mod options;
mod orz;
mod plan;
mod rules;
mod secret;
mod setting;
mod stack;
mod subject;
mod table;
mod torchrl;
mod trl;
mod unbuilt;
mod verl;

pub use import::{Imported, Wishes, import, translate};
pub use launch::settings;
pub use losses::{Loss, losses};
pub use plan::ledger::{Item, Per, Phase};
pub use plan::limits::{Known, Limits};
pub use plan::model::preset_of;
pub use plan::pool::Pool;
pub use plan::run::{RunPlan, plan};
pub use setting::Setting;
pub use stack::Stack;

/// Every stack, in the order of the help.
pub static STACKS: &[&Stack] = &[&openrlhf::STACK, &verl::STACK, &trl::STACK, &orz::STACK, &torchrl::STACK];

pub fn find(name: &str) -> Option<&'static Stack> {
    STACKS.iter().copied().find(|stack| stack.name == name)
}
