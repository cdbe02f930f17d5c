//! Episodes of text environments, which workers of the run play: their answers are tokens between the model's turns.

mod carried;
mod environment;
mod glue;
mod graded;
mod memory;
mod player;
mod playing;
mod talk;
mod whole;

pub(super) use environment::TextPlayer;
pub(crate) use memory::first_prompt_tokens;
