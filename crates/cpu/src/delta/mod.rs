//! Linear attention by the gated delta rule.
//!
//! Legend: M rows, S segments, P places of states, H value heads over G heads of q and k, of dk and dv elements, C = 2
//! G dk + H dv. A forward row is a function of its sequence alone: the order of its sums depends on dk and dv.

mod chunk;
pub(super) mod inputs;
pub(super) mod inputs_backward;
pub(super) mod norm;
pub(super) mod rule;
pub(super) mod rule_backward;
pub(super) mod shared;
