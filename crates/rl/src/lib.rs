//! RL training of language models: prompts, rollouts, rewards, losses and updates.
//!
//! `data` reads prompts, `rollout` samples and grades responses, `episodes` plays text environments, `methods` turns
//! samples into losses, and `roles` holds the models with their passes. `eval` scores held-out prompts, `save` writes
//! checkpoints, `train` is the run that uses all of them, and `serve` answers clients with a model's engine.

mod checks;
pub mod context;
pub mod data;
pub mod diverged;
pub mod episodes;
pub mod eval;
pub mod flops;
pub mod methods;
pub mod ranks;
pub mod roles;
pub mod rollout;
pub mod save;
pub mod serve;
pub mod train;
