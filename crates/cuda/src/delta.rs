//! Linear attention by the gated delta rule, and the gates of heads.

use crate::cuda_device::CudaDevice;
use plimsoll_device::Op;

/// Launches one of the operations of linear attention.
pub(crate) fn run(_dev: &CudaDevice, op: Op<'_>) {
    todo!("{}", op.name());
}
