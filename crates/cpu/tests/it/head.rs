//! The head on the CPU: bits that threads do not change, and buffers of the size that is planned.

use crate::both::head::{Head, Inputs, case, plain};
use crate::both::{Rig, normal, paths};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::HEAD_TILE;

fn open(inputs: &Inputs, isa: Isa, threads: usize) -> Head<CpuDevice> {
    let (case, width) = (inputs.case, HEAD_TILE.min(inputs.case.vocab));
    let scratch = ("scratch", case.e, threads * 48 * width.next_multiple_of(2));
    inputs.on(Rig::new(isa, threads, &[case.buffers::<CpuDevice>(threads), vec![scratch]].concat()))
}

#[test]
fn threads_change_no_bit_of_the_head() {
    for e in [Bf16, F32] {
        let inputs = case(90, 1301, 12, e).inputs();
        for isa in paths() {
            let run = |threads| {
                let head = open(&inputs, isa, threads);
                let drawn = head.sample(0, 90, plain(1.0));
                let results = head.forward(0, 90, 0.7);
                ((results, drawn), head.backward(0.7, &normal(8, 90, 1.0, F32), &normal(9, 90, 1.0, F32)))
            };
            let one = run(1);
            assert!(one == run(3) && one.0 == run(2).0, "{} on {}", e.name(), isa.name());
        }
    }
}

#[test]
fn planned_buffers_are_used_to_the_end() {
    for (rows, vocab) in [(1, 15), (70, 260), (300, 1301), (5, 700)] {
        let inputs = case(rows, vocab, 64, Bf16).inputs();
        open(&inputs, Isa::detect(), 1).check_planned(&["tile", "pack", "dtile", "scratch"]);
    }
}
