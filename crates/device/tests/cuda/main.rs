//! The CUDA device against the CPU's and f64. Without a card every test says so and passes.

mod decode;
mod matmul;
mod rig;
