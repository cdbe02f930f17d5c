//! Episodes of text environments as training samples: which episodes are played, and what their tokens are.
//!
//! An episode is one token sequence: the prompt, what was drawn, what the environment replied, what was drawn, ... Drawn
//! tokens are kept as they were drawn; the environment's words are tokenized once and appended. While one environment
//! thinks, other episodes go on; the result does not depend on who answers first.

mod evaluate;
mod glue;
mod kept;
mod memory;
mod round;

pub use evaluate::evaluate_episodes;
pub use kept::{KeptEpisode, KeptTurn};
pub use memory::first_prompt_tokens;
pub use round::{Episodes, RoundReport};
