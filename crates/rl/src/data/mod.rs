//! Prompts, completions, pairs and labelled answers as tokens, and the files that a run names.

mod answered_images;
pub mod dataset;
mod drawn;
pub mod epochs;
mod first_rows;
pub(crate) mod hub;
pub mod images;
pub(crate) mod labels;
mod mixture;
pub mod models;
pub(crate) mod pairs;
mod readers;
pub mod session;
mod supervised;
