//! What a supply needs to read itself back from a checkpoint.

use crate::players::PlayLimits;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::Item;
use plimsoll_rollout::Finish;
use plimsoll_run::checkpoint::RunState;
use std::path::Path;

/// A checkpoint of a run, with its prompts.
pub struct Restored<'r> {
    pub folder: &'r Path,
    pub state: &'r RunState,
    pub run: &'r RunSpec,
    /// Size of the model's vocabulary.
    pub vocab: u32,
    /// What one response may bring besides its tokens.
    pub limits: PlayLimits,
    /// Returns the prompt at a position of the data.
    pub item: &'r mut dyn FnMut(u64) -> Result<Item>,
    /// Returns the text of a response.
    pub text: &'r dyn Fn(&[u32], Finish) -> String,
}
