//! Opening a language model and sampling from it: what a command needs that trains nothing, and what training builds on.
//!
//! `models` and `text` open a model and turn strings into its tokens, `hub` and `sets` find and read held-out prompts,
//! and `facts` tell the planner what a command samples. A method, a loss or an optimizer is not known here.

pub mod facts;
pub mod hub;
pub mod models;
pub mod sets;
pub mod text;
