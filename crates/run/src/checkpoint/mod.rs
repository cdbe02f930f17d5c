//! Checkpoints: everything that a run needs to resume bit for bit, in a folder that is complete or absent.
//!
//! `step-N/` is a Hugging Face model (weights, configuration, tokenizer) with two additions: `state/`, which holds the
//! optimizer states, the critic with its own, samples waiting for their steps, the resolved run file and every counter
//! of the run; and `manifest.json`, with length, SHA-256 and sums of pieces of each file. Tensors are stored as logical
//! rows under Hugging Face names, never in a device's element order, so a checkpoint does not depend on the machine;
//! the bits of later steps do, so `state.json` records machine, build and plan.

pub mod export;
mod gguf;
mod manifest;
mod merge;
mod numbers;
mod publish;
mod retention;
mod saver;
mod state;
mod store;
pub mod verbs;
mod weights;

pub use manifest::{FORMAT, Finding, MANIFEST, Manifest};
pub use merge::Merged;
pub use numbers::{exact, exact_map, exact_option};
pub use plimsoll_files::ADAPTER_WEIGHTS;
pub use publish::{Published, published};
pub use retention::Retention;
pub use saver::Saver;
pub use state::{BASE, Best, BufferState, RoleState, RunState};
pub use store::Store;
pub use weights::{Made, Progress};

/// Subfolder of files that transformers does not read.
pub const STATE: &str = "state";
pub const STATE_JSON: &str = "state/state.json";
pub const OPTIMIZER: &str = "state/optimizer.safetensors";
pub const CRITIC: &str = "state/critic.safetensors";
pub const CRITIC_OPTIMIZER: &str = "state/critic_optimizer.safetensors";
/// Optimizer states of a tower over images that is trained.
pub const TOWER_OPTIMIZER: &str = "state/tower_optimizer.safetensors";
/// Samples waiting for their steps, one line per group.
pub const HELD: &str = "state/held.jsonl";
/// The groups of responses that had not ended, if there are any.
pub const CARRIED: &str = "state/carried.jsonl";
/// What a script that makes the steps keeps of its own, if it keeps anything.
pub const SCRIPT: &str = "state/script.bin";
/// The resolved run file.
pub const RUN_FILE: &str = "state/run.toml";
pub const WEIGHTS: &str = "model.safetensors";

/// Returns the file of the rollout that waits for the step after `index` others.
pub fn ahead_file(index: usize) -> String {
    format!("state/ahead-{index}.jsonl")
}
