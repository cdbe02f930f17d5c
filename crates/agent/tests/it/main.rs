//! Environment policies, part by part: what a rollout holds, what an update computes, what a run keeps.

mod files;
mod learning;
mod plans;
mod rig;
mod rollouts;
mod settings;
mod states;
