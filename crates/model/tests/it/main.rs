//! The decoder and the small networks against references, and weights through files.

#[path = "../common/mod.rs"]
mod common;

mod experts;
mod golden;
mod images;
mod load;
mod mlp;
mod passes;
mod regions;
mod save;
mod smollm2;
mod tables;
