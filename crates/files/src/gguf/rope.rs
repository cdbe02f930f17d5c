//! Llama 3's rule for rotary frequencies, stored in a GGUF file as a table of divisors instead of its parameters.

use plimsoll_arch::{FileShape, RopeScaling};
use plimsoll_base::math;

/// The parameters of Llama 3.1 and later, first trained with 8192 positions; only the factor differs.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const ORIGINAL: u32 = 8192;

/// Returns the published rule with that factor.
pub(crate) const fn published(factor: f64) -> RopeScaling {
    RopeScaling::Llama3 {
        factor,
        low_freq_factor: LOW,
        high_freq_factor: HIGH,
        original_max_position_embeddings: ORIGINAL,
    }
}

/// Returns the divisors of a model's rotary frequencies by the published rule with that factor: [d/2].
pub(crate) fn divisors(shape: &FileShape, factor: f64) -> Vec<f64> {
    let original = f64::from(ORIGINAL);
    let divisor = |i: u32| {
        let exponent = 2.0 * f64::from(i) / f64::from(shape.head_dim);
        let frequency = math::exp(-exponent * math::ln(shape.rope_theta));
        let wavelength = std::f64::consts::TAU / frequency;
        if wavelength < original / HIGH {
            1.0
        } else if wavelength > original / LOW {
            factor
        } else {
            let smooth = (original / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..shape.head_dim / 2).map(divisor).collect()
}

/// Returns the published rule that gives this table.
pub(crate) fn rule_of(shape: &FileShape, table: &[f32]) -> Option<RopeScaling> {
    let factor = f64::from(table.iter().copied().fold(1.0, f32::max));
    let near = |(&stored, expect): (&f32, f64)| (f64::from(stored) - expect).abs() <= 1e-4 * expect;
    if !table.iter().zip(divisors(shape, factor)).all(near) {
        return None;
    }
    Some(if factor == 1.0 { RopeScaling::None } else { published(factor) })
}
