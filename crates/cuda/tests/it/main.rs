//! The CUDA device against the CPU's and f64. Without a card every test that needs one says so and passes.

#[path = "../../../device/tests/both/mod.rs"]
mod both;

mod adapter;
mod attention;
mod bench;
mod blocks;
mod chain;
mod decode;
mod delta;
mod experts;
mod failure_2;
mod head;
mod head_gates;
mod kernels;
mod matmul;
mod nf4;
mod offload;
mod optimizer;
mod rig;
mod rotation;
mod rows;
mod sgemm;

mod cases {
    use crate::both::cases;

    cases!(crate::rig::run_on_card);
    cases!(whole crate::rig::run_on_card);
}
