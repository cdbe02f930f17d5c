//! The CUDA device against the CPU's and f64. Without a card every test says so and passes.

mod attention;
mod decode;
mod failure_2;
mod head;
mod matmul;
mod offload;
mod optimizer;
mod rig;
mod rotation;
mod rows;
mod sgemm;
