//! What a command opens before it samples: models, their tokens, prompts, and what is refused of them.

mod chars;
mod codes;
mod models;
mod prompts;
mod scores;
