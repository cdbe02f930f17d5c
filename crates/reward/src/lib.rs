//! Verifiers and reward functions: a response and its ground truth in, a number out.
//!
//! Built-in verifiers are pure functions with bounded work: hostile text costs milliseconds and is wrong. Other
//! people's code (`python:`, `command:`, `code`) runs in worker processes; its failure is a named error or a counted
//! `None`, never a silent 0. This crate never sees a model or a device, and only passes tokens on.

#![warn(missing_docs)]

mod ahead;
mod blocks;
mod case;
mod code;
mod command;
mod countdown;
mod exact;
mod format;
mod grade;
mod grader;
mod gsm8k;
mod hash;
mod http;
mod json_schema;
mod judge;
mod kinds;
mod length;
pub mod math;
mod pattern;
mod python;
mod rewards;
mod scorer;
mod spec;
mod tally;
mod teacher;
mod thinking;
mod truths;

pub use blocks::fenced_program;
pub use case::{Case, Prompt, column};
pub use code::Programs;
pub use countdown::solves_countdown;
pub use exact::grade_exact;
pub use grade::{Agreement, Disagreement, GraderAgreement, Grading, RESPONSE};
pub use gsm8k::grade_gsm8k;
pub use judge::JudgeSpec;
pub use kinds::{KINDS, RewardKind, RewardMemory, answers_check};
pub use plimsoll_worker::{
    EstimatorInputs, EstimatorSpec, KEEPER, Network, Offered, PythonEstimator, RewardStep, STEPS_MAX,
    SampleImage, Signature, WORDS_BYTES_MAX, Words, become_keeper, keep_with, offered,
};
pub use rewards::{Rewards, Scored};
pub use spec::{OnError, RewardSpec};
pub use tally::Tally;
pub use teacher::{
    TEACHER_WORKERS_MAX, TeacherAnswers, TeacherQuestion, TeacherServer, TeacherSpec, teacher_address,
};
