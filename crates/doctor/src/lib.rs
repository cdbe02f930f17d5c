//! What would end a training run on this machine (`machine`), and what ended the run that these logs are of (`log`).
//!
//! It reads and judges; it changes nothing, starts nothing, and knows no GPU crate: facts about cards are handed in. Texts
//! for people (cause, example, remedies) are the pages in docs/errors, one a slug; here are only slugs and numbers.

pub mod log;
pub mod machine;
