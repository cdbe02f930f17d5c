//! Memory, decided before the run: named regions, the plan that sums them, the arena's bookkeeping that binds
//! them to addresses, what the host allows, and whether its memory grows.
//!
//! The same `Layout` is summed by the planner and bound by the arena, so the plan cannot drift from the run.
//! This crate never uses a GPU; it knows offsets, not pointers, except for host mappings.

mod arena;
mod card;
pub mod host;
mod layout;
mod mapping;
mod mirror;
mod piece;
mod plan;
mod shared;
pub mod trend;

pub use arena::{Arena, ArenaMap, Binding, Buf, Home, InPhase, Overlay, ReadLease, Resident};
pub use card::CardMemory;
pub use layout::{Layout, Place, Pool, REGION_ALIGN, Region, Turn};
pub use mapping::Mapping;
pub use mirror::Mirror;
pub use piece::{PIECE_ALIGN, Piece, Plain};
pub use plan::{Limit, Limits, Plan, PoolPeak};
pub use shared::{SharedWords, shared_file};
