//! Finds what would end a training run on this machine (`machine`), and what ended the run that wrote logs (`log`).
//!
//! It reads and judges; it changes nothing, starts nothing, and has no GPU crate: the caller passes facts about cards.
//! Texts for users (cause, example, remedies) are pages in docs/errors, one per slug; here are only slugs and numbers.

pub mod log;
pub mod machine;
