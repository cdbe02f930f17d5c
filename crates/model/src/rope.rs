//! The rotary table: cosine and sine of every position and frequency, by our own arithmetic.

use plimsoll_base::math::{pow, sin_cos};
use plimsoll_base::{DType, ModelSpec, PhaseSet, Result, RopeScaling};
use plimsoll_device::Device;
use plimsoll_memory::{Buf, Layout, Pool};

/// The region `rope.table`: [positions, d/2, 2] f32, resident.
///
/// Errors: `size-overflow`.
pub fn layout(spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    layout_as("rope.table", spec, positions, pool)
}

/// True if one table serves both models.
pub fn same(a: &ModelSpec, b: &ModelSpec) -> bool {
    (a.head_dim, a.rope_theta, a.rope_scaling) == (b.head_dim, b.rope_theta, b.rope_scaling)
}

/// The same region under another name.
///
/// Errors: `size-overflow`.
pub fn layout_as(name: &str, spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    let mut layout = Layout::new();
    let shape = [positions as u64, u64::from(spec.head_dim) / 2, 2];
    layout.arena(name, "model", pool, PhaseSet::RESIDENT, &shape, DType::F32)?;
    Ok(layout)
}

pub fn fill(dev: &dyn Device, spec: &ModelSpec, table: Buf<'_>) {
    let half = spec.head_dim as usize / 2;
    let frequencies: Vec<f64> = (0..half).map(|i| frequency(spec, i)).collect();
    let mut row = vec![0.0f32; half * 2];
    for position in 0..table.len() / (half * 2) {
        for (i, &frequency) in frequencies.iter().enumerate() {
            // The angle is rounded to f32 first, as the reference does: the tables then agree to the last place.
            let angle = (position as f32) * (frequency as f32);
            let (s, c) = sin_cos(f64::from(angle));
            (row[2 * i], row[2 * i + 1]) = (c as f32, s as f32);
        }
        dev.write_f32(table, position * half * 2, &row);
    }
}

/// Radians per position of pair `i`. Source: transformers `modeling_rope_utils.py` (default, linear, llama3).
fn frequency(spec: &ModelSpec, i: usize) -> f64 {
    let base = 1.0 / pow(spec.rope_theta, 2.0 * i as f64 / f64::from(spec.head_dim));
    match spec.rope_scaling {
        RopeScaling::None => base,
        RopeScaling::Linear { factor } => base / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let context = f64::from(original_max_position_embeddings);
            let wavelength = std::f64::consts::TAU / base;
            if wavelength < context / high_freq_factor {
                base
            } else if wavelength > context / low_freq_factor {
                base / factor
            } else {
                let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * base / factor + smooth * base
            }
        }
    }
}
