//! Validates observations of untrusted processes: numbers must be finite and choices must exist. The bounds
//! of a box are only advice in Gymnasium, whose own environments overshoot them.

use plimsoll_env::{Domain, ElementType, Slot};
use std::ops::Range;

/// A leaf to validate: what is not finite leaves the policy no finite weights.
pub(super) enum Check {
    F32(Range<usize>),
    F64(Range<usize>),
    Domain(usize),
}

/// Returns the leaves of a slot to validate.
pub(super) fn checks(slot: &Slot) -> Vec<Check> {
    let leaves = slot.leaves.iter().enumerate();
    leaves
        .filter_map(|(index, leaf)| {
            let range = leaf.offset..leaf.offset + leaf.bytes();
            match (leaf.element, &leaf.domain) {
                (ElementType::Float32, _) => Some(Check::F32(range)),
                (ElementType::Float64, _) => Some(Check::F64(range)),
                // A choice is an index.
                (_, Domain::Bounds { .. }) => None,
                _ => Some(Check::Domain(index)),
            }
        })
        .collect()
}

/// Returns what is wrong with an observation: NaN, infinity, or a choice that its space lacks.
pub(super) fn judge(checks: &[Check], slot: &Slot, bytes: &[u8]) -> Option<String> {
    let odd = |value: f64| (!(value as f32).is_finite()).then(|| format!("its observation holds {value:e}"));
    checks.iter().find_map(|check| match check {
        Check::F32(range) => {
            let mut values = bytes[range.clone()].as_chunks::<4>().0.iter();
            values.find_map(|value| odd(f32::from_ne_bytes(*value).into()))
        }
        Check::F64(range) => {
            let mut values = bytes[range.clone()].as_chunks::<8>().0.iter();
            values.find_map(|value| odd(f64::from_ne_bytes(*value)))
        }
        Check::Domain(index) => {
            let wrong = slot.leaves[*index].check(slot.leaves[*index].of(bytes)).err()?;
            Some(format!("its observation is outside its space: {wrong}"))
        }
    })
}
