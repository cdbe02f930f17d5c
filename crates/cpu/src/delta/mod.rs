//! Linear attention by the gated delta rule: which function runs an operation.
//!
//! Legend: M rows, S segments, P places of states, H value heads over G heads of q and k, of dk and dv elements, C = 2
//! G dk + H dv. A forward row is a function of its sequence alone: the order of its sums depends on dk and dv.

mod chunk;
mod inputs;
mod inputs_backward;
mod norm;
mod rule;
mod rule_backward;
pub(super) mod shared;

use super::CpuDevice;
use plimsoll_device::DeltaOp;

/// Runs one of the operations of linear attention.
pub(super) fn run(dev: &CpuDevice, op: DeltaOp<'_>) {
    match op {
        DeltaOp::DeltaInputs { args } => inputs::forward(dev, args),
        DeltaOp::DeltaRule { args } => rule::forward(dev, args),
        DeltaOp::NormGated { args } => norm::forward(dev, args),
        DeltaOp::NormGatedBackward { args } => norm::backward(dev, args),
        DeltaOp::DeltaRuleBackward { args } => rule_backward::backward(dev, args),
        DeltaOp::DeltaInputsBackward { args } => inputs_backward::backward(dev, args),
    }
}
