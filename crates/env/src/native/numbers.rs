//! Numbers in the slots of actions and observations, and numpy's arithmetic.

/// Writes `values` as f32 slots.
pub(super) fn write_f32<const N: usize>(values: [f32; N], observation: &mut [u8]) {
    for (element, value) in observation.chunks_exact_mut(4).zip(values) {
        element.copy_from_slice(&value.to_ne_bytes());
    }
}

/// The choice in the slot of a Discrete.
pub(super) fn choice(action: &[u8]) -> i64 {
    i64::from_ne_bytes(*action.first_chunk().expect("the slot of a Discrete has 8 bytes"))
}

/// The number in the slot of a Box of one f32.
pub(super) fn number(action: &[u8]) -> f32 {
    f32::from_ne_bytes(*action.first_chunk().expect("the slot of a Box of one f32 has 4 bytes"))
}

/// numpy's square of an f64 scalar: the C library's `pow`, whose last bit may differ from that of `x * x`.
pub(super) fn power_2(x: f64) -> f64 {
    // Hidden from the compiler, which would multiply.
    x.powf(std::hint::black_box(2.0))
}
