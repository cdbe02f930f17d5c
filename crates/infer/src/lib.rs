//! Opening a language model and sampling from it: what a command needs that trains nothing, and what training builds
//! on.
//!
//! `models` and `text` open a model and turn strings into its tokens, `hub` and `sets` find and read held-out prompts,
//! and `facts` tell the planner what a command samples. `form` is what responses are held to. `codes` says which
//! frozen models stay in codes. `bound` is a model in the arena, `sampler` the engine that samples from it, and
//! `runner` both without a method; `album` has the images of rows, and `image_table` the vectors of those that are
//! needed. `generate`, `serve` and `eval` are the commands. A method, a loss or an optimizer is not known here.

pub mod album;
mod answer_images;
pub mod bound;
pub mod codes;
pub mod drawn;
pub mod eval;
pub mod facts;
pub mod form;
pub mod generate;
pub mod grading;
pub mod hub;
pub mod image_rows;
pub mod image_table;
pub mod images;
mod images_ahead;
pub mod model_reward;
pub mod models;
pub mod phases;
mod reach;
pub mod responder;
pub mod responses;
pub mod runner;
pub mod sample_images;
pub mod sampler;
pub mod serve;
mod served_images;
pub mod sets;
pub mod side_adapters;
pub mod sight;
pub mod teacher_prompt;
pub mod teacher_text;
pub mod text;
pub mod weights;
