//! The protocol over HTTP, with an engine that computes little: what clients send, what they hear, what a crash leaves.

mod client;
mod crash;
mod fake;
mod hostile;
mod order;
mod rig;
mod training;
mod wire;
