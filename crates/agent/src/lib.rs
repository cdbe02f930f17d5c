//! Environment policies: `method = "ppo"` with an `[environment]` that is native or Python, and a small actor-critic.
//!
//! The run around it is that of every method: plan, directory, events, checkpoints, resume. What is its own is here:
//! a collector fills batches with a policy's frames, a learner updates the weights from them, and the policy takes them
//! over. Nothing here reaches a GPU. `plimsoll collect`, which trains nothing, is in `collecting`.

pub mod collecting;
pub mod evaluate;
pub mod experience;
pub mod gather;
pub mod learner;
pub mod metrics;
pub mod network;
pub mod normalise;
pub mod plan;
pub mod policy;
pub mod run;
pub mod save;
pub mod settings;
pub mod spaces;
pub mod state;
