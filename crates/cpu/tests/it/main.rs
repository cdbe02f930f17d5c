//! The CPU's operations against f64 references, and the properties that the rest of the system is built on: a row's
//! bits are its own, and threads change none.

#[path = "../../../device/tests/both/mod.rs"]
mod both;

mod activation;
mod adamw;
mod adamw8;
mod adapter;
mod attention;
mod attention_backward;
mod bench;
mod blocks;
mod delta;
mod experts;
mod head;
mod head_gates;
mod matmul;
mod nf4;
mod rotation;
mod rows;

mod cases {
    use crate::both::{Rig, Sized, cases, paths};

    fn open(buffers: &[Sized<'_>]) -> Vec<Rig> {
        paths().map(|isa| Rig::new(isa, 2, buffers)).collect()
    }

    cases!(open);
}
