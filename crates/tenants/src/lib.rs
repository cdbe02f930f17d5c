//! One engine for many: adapters of several tenants on one base, trained one request at a time while all are sampled.
//!
//! It does the jobs of Tinker's protocol (`plimsoll_tinker`) on a model in the arena: a request's passes over one
//! adapter (`pass.rs`), responses with any of them in between (`sampling.rs`, `snapshots.rs`), and what is saved
//! (`store.rs`). Each adapter that is trained has a slot with its gradients and states (`slots.rs`), or is parked in a
//! file (`parked.rs`). A request's numbers follow from its model and itself: who else is there changes no bit.

mod adapter;
mod alike;
mod engine;
mod parked;
mod pass;
mod sampling;
mod serve;
mod slots;
mod snapshots;
mod store;

pub use serve::{TenantServing, serve_tenants};
