//! The steps of a run as a script makes them: a program on the other side of a Unix socket asks for the parts of a
//! step in its own order, and the loop of `plimsoll-run` leads the run as ever: events, checkpoints, evaluation.
//!
//! `verbs` are what it may ask, `link` reads and writes frames, `room` holds the arrays that came with one. `step`
//! serves a step, by `draw` and `learn`, with the functions that a run's own steps call; `known` says which runs can be
//! led so.

mod draw;
mod fault;
mod held;
mod known;
mod learn;
mod link;
mod objective;
mod own;
mod peer;
mod room;
mod step;
mod verbs;

pub(crate) use known::planned;
pub use peer::Script;
pub(crate) use peer::{Between, closed};
