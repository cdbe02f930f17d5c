//! Gates of heads on a card against f64.

use crate::both::head_gates::{CASES, check};
use crate::rig::on_card;
use plimsoll_base::DType::{Bf16, F32};

#[test]
fn gates_of_heads_agree_with_f64() {
    for (case, e) in CASES.iter().flat_map(|case| [(case, Bf16), (case, F32)]) {
        let Some(mut gpu) = on_card(&case.buffers(e)) else { return };
        check(case, &mut gpu, e, "a card");
    }
}
