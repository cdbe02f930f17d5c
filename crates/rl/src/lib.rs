//! RL training of language models: prompts, rollouts, rewards, losses and updates.
//!
//! The folders are the parts of a step. `data` gives prompts, `players` produce responses, `rollout` samples and grades
//! them on all ranks, `supply` says which of them a step trains on, `methods` turn samples into losses, `teachers`
//! score samples for those that learn from one, and `roles` are the models with their passes, whose numbers are in
//! `arrays`. `save` writes checkpoints, `script` serves a program that makes the steps itself, and `train` is the run
//! that uses all of them.

pub mod arrays;
mod checks;
pub mod context;
pub mod data;
pub mod diverged;
pub mod flops;
pub mod methods;
pub mod players;
pub mod ranks;
pub mod roles;
pub mod rollout;
pub mod save;
pub mod script;
pub mod supply;
pub mod teachers;
pub mod train;
