//! The gradient of `delta_inputs`: back through silu and the norms of heads, then to the inputs that each row read, and to the weights.

use super::super::CpuDevice;
use plimsoll_device::DeltaInputsBackward;

pub(super) fn backward(_dev: &CpuDevice, _args: DeltaInputsBackward<'_>) {
    panic!("not written yet")
}
