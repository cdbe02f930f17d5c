//! The CUDA device: one card, one context, one stream, one arena of plain device memory.
//!
//! It owns the card's memory from start to end: after the arena Plimsoll allocates nothing else. Operations are queued
//! on the stream and return at once; the first failure is kept and reported by `check`, and operations after it do
//! nothing. Kernels are in `cu/`, one file for each module here; their launchers check shapes before the launch.

#[macro_use]
mod launch;

mod adapted;
mod adapted_codes;
mod adapter;
mod adapter_gradients;
mod aside;
mod attention;
mod attention_backward;
mod attention_latent;
mod attention_shape;
mod bindings;
mod blas;
mod blocks;
mod boxes;
mod card_link;
mod cards;
mod chain;
mod checked;
mod chosen;
mod columns;
mod compile;
mod cuda_device;
mod delta;
mod delta_rows;
mod driver;
mod exchange;
mod experts;
mod experts_adapter;
mod experts_bias;
mod experts_codes;
mod experts_plain;
mod far;
mod few;
mod fork;
mod hand_over;
mod head;
mod head_divergence;
mod head_gates;
mod head_listed;
mod heads;
pub mod held;
mod hopper;
mod kernels;
pub mod layouts;
mod library;
mod lt;
mod matmul;
mod memory;
mod muon;
mod nccl;
mod nf4;
mod noise;
mod nvml;
mod operations;
mod optimizer;
mod parameters;
mod peers;
mod pipeline;
mod profile;
mod queue;
mod reach;
mod rotation;
mod route;
mod rows;
mod sample;
mod sgemm;
mod side;
mod slots;
mod tower;
mod trade;
mod transfer;
mod transfers;
mod trial;

pub use attention::attention_scratch_bytes;
pub use attention_backward::attention_backward_scratch_bytes;
pub use attention_shape::takes_head_dim;
pub use bindings::NcclId;
pub use card_link::CardLink;
pub use cards::cards;
pub use compile::{ARCHITECTURES, SOURCES, Source, check_architecture, compile};
pub use cuda_device::{CudaDevice, libraries, probe};
pub use driver::GpuInfo;
pub use far::{FAR_BYTES, ShownArena};
pub use hand_over::{Offer, take};
pub(crate) use launch::{Arg, Launch, count};
pub use layouts::LAYOUTS;
pub use nccl::{NCCL_BYTES, nccl_id, nccl_version};
pub use nvml::{card_name, free_memory};
