//! Memory, decided before the run: named regions, the plan that sums them, the arena's bookkeeping that binds them to
//! addresses, the host's limits, and a test for growth of its memory.
//!
//! The planner sums and the arena binds the same `Layout`, so the plan cannot drift from the run. This crate never uses
//! a GPU; it knows offsets, not pointers, except for host mappings.

mod arena;
mod card;
pub mod host;
mod layout;
mod mapped_row;
mod mapping;
mod mirror;
mod plan;
mod shared;
pub mod trend;

pub use arena::{Arena, ArenaMap, Binding, Buf, Home, InPhase, Overlay, ReadLease, Resident};
pub use card::CardMemory;
pub use layout::{Layout, Place, Pool, REGION_ALIGN, Region, Turn};
pub use mapped_row::{MappedRow, Plain, ROW_ALIGN};
pub use mapping::Mapping;
pub use mirror::Mirror;
pub use plan::{Limit, Limits, Plan, PoolPeak};
pub use shared::{SharedWords, shared_file};
