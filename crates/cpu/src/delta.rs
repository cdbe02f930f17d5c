//! Linear attention by the gated delta rule.

use super::CpuDevice;
use plimsoll_device::Op;

/// Runs one of the operations of linear attention.
pub(super) fn run(_dev: &CpuDevice, op: Op<'_>) {
    todo!("{}", op.name());
}
