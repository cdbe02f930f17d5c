//! Gates of heads against f64, for every path of the machine.

use crate::both::head_gates::{CASES, check};
use crate::both::{Rig, paths};
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn gates_of_heads_agree_with_f64_on_every_path() {
    for isa in paths() {
        for (case, e) in CASES.iter().flat_map(|case| [(case, Bf16), (case, F32)]) {
            check(case, &mut Rig::new(isa, 2, &case.buffers(e)), e, isa.name());
        }
    }
}
