//! Numbers in the slots of actions and observations, and numpy's arithmetic.

use crate::{ElementType, Space};

/// Returns the box of f32 from `low` to `high`, each rounded to f32.
pub(super) fn bounds<const N: usize>(low: [f64; N], high: [f64; N]) -> Space {
    let [low, high] = [low, high].map(|bounds| bounds.map(|bound| f64::from(bound as f32)).to_vec());
    Space::Box { dtype: ElementType::Float32, shape: vec![N], low, high }
}

/// Writes `values` as f32 slots.
pub(super) fn write_f32<const N: usize>(values: [f32; N], observation: &mut [u8]) {
    for (element, value) in observation.chunks_exact_mut(4).zip(values) {
        element.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Reads the choice in the slot of a Discrete.
pub(super) fn choice(action: &[u8]) -> i64 {
    i64::from_ne_bytes(*action.first_chunk().expect("the slot of a Discrete has 8 bytes"))
}

/// Reads the number in the slot of a Box of one f32.
pub(super) fn number(action: &[u8]) -> f32 {
    f32::from_ne_bytes(*action.first_chunk().expect("the slot of a Box of one f32 has 4 bytes"))
}

/// Squares as numpy squares an f64 scalar: with the C library's `pow`, whose last bit may differ from `x * x`.
pub(super) fn power_2(x: f64) -> f64 {
    // Hidden from the compiler, which would replace it by a product.
    x.powf(std::hint::black_box(2.0))
}
