//! The CPU's operations against f64 references, and the properties that the rest of the system is built on: a row's
//! bits are its own, and threads change none.

#[path = "../../../device/tests/both/mod.rs"]
mod both;

mod activation;
mod adamw;
mod adamw8;
mod adapter;
mod attention;
mod bench;
mod blocks;
mod coded;
mod delta;
mod experts;
mod head;
mod head_gates;
mod images;
mod matmul;
mod nf4;
mod rotation;
mod rows;

mod cases {
    use crate::both::{Open, Rig, Sized, THREADS, cases, paths};
    use plimsoll_cpu::CpuDevice;

    /// With a scratch of the first buffer's dtype: that of activations, where an operation needs one.
    fn open(buffers: &[Sized<'_>]) -> Vec<Rig> {
        let buffers = [buffers, &[("scratch", buffers[0].1, 1 << 17)]].concat();
        paths().map(|isa| Rig::new(isa, THREADS, &buffers)).collect()
    }

    fn run(case: impl FnOnce(Open<'_, CpuDevice>)) {
        case(&open);
    }

    cases!(run);
    cases!(whole run);
}
