//! The gradient of the rule.

use super::super::CpuDevice;
use plimsoll_device::DeltaRuleBackward;

pub(super) fn backward(_dev: &CpuDevice, _args: DeltaRuleBackward<'_>) {
    panic!("not written yet")
}
