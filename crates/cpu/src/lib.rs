//! The CPU device: it owns the arena's mapping and a fixed pool of threads; each operation has its own module.
//!
//! Operations run synchronously. An operation splits its outputs into tasks; which thread takes which task does not
//! change any bit. Nothing here allocates after construction.

#[macro_use]
mod scratch;

mod activation;
mod adamw;
mod adamw8;
mod attention;
mod attention_backward;
mod blocks;
mod columns;
mod cpu_device;
mod delta;
mod elementwise;
mod expert_bias;
mod experts;
mod fp8;
mod gate;
mod gelu;
mod head;
mod head_divergence;
mod head_gates;
mod head_listed;
mod isa;
mod lanes;
mod layer_norm;
pub mod layouts;
mod listed_gradient;
mod matmul;
mod muon;
mod nf4;
mod noise;
mod norm;
mod operations;
pub mod peak;
mod pipeline;
mod placed_rows;
mod pool;
mod rope;
mod router;
mod row_masks;
mod sample;
mod sync;
mod view;
mod whole_gradient;

pub use cpu_device::CpuDevice;
pub use isa::Isa;
pub use layouts::LAYOUTS;
pub use operations::takes_head_dim;
pub use pool::Pool;
pub(crate) use view::{Element, Real, Shared};
