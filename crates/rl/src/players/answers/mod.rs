//! Answers to prompts of the data, which the run's rewards grade.

mod early_grading;
mod graded;
mod player;
mod responding;
mod whole;

pub use player::Answers;
pub(crate) use whole::respond;
