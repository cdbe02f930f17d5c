//! The engine: what it samples is what training computes, on every schedule, in the bytes of the plan.

#[path = "../common/mod.rs"]
mod common;

mod exactness;
mod golden_greedy;
mod images;
mod listed;
mod live;
mod poison;
mod prefixes;
mod slots;
mod turns;
