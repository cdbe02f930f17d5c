//! Environment policies: `method = "ppo"` with a native or Python `[environment]`, and a small actor-critic.
//!
//! The run around it (plan, directory, events, checkpoints, resume) is the same as for every method. This crate adds
//! the rest: a collector fills batches with a policy's frames, a learner updates the weights from them, and the policy
//! takes over the new weights. Nothing here uses a GPU. `plimsoll collect`, which trains nothing, is in `collecting`.

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
