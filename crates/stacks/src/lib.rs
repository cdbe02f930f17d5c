//! Reads launch files of other frameworks as text, converts them to a run file, and plans them by their rules.
//!
//! A stack is a folder (`openrlhf`, `verl`, ...) and a row of [`STACKS`]. `import` and the plan share one table of its
//! options. Nothing is run or fetched, and no type of a run file is known here: it leaves as text.

mod axolotl;
mod defaults;
mod import;
mod launch;
mod losses;
mod openrlhf;
mod options;
mod orz;
mod plan;
mod prime;
mod registry;
mod rules;
mod secret;
mod setting;
mod skyrl;
mod slime;
mod stack;
mod subject;
mod swift;
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
pub use registry::{STACKS, find};
pub use setting::Setting;
pub use stack::Stack;
