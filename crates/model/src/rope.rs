//! The rotary table: cosine and sine of every position and frequency, by our own arithmetic.

use plimsoll_base::math::{ln, pow, sin_cos};
use plimsoll_base::{DType, ModelSpec, PhaseSet, Result, RopeScaling};
use plimsoll_device::Device;
use plimsoll_memory::{Buf, Layout, Pool};

/// The region `rope.table`: [T, positions, d/2, 2] f32, resident, with a second table for layers that have a rule of their own.
///
/// Errors: `size-overflow`.
pub fn layout(spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    layout_as("rope.table", spec, positions, pool)
}

/// True if one region serves both models.
pub fn same(a: &ModelSpec, b: &ModelSpec) -> bool {
    let of = |spec: &ModelSpec| (spec.head_dim, spec.rope_theta, spec.rope_scaling, local_theta(spec));
    of(a) == of(b)
}

/// The same region under another name.
///
/// Errors: `size-overflow`.
pub fn layout_as(name: &str, spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    let mut layout = Layout::new();
    let shape = [tables(spec) as u64, positions as u64, u64::from(spec.head_dim) / 2, 2];
    let shape = if shape[0] == 1 { &shape[1..] } else { &shape[..] };
    layout.arena(name, "model", pool, PhaseSet::RESIDENT, shape, DType::F32)?;
    Ok(layout)
}

/// Base of the layers with a rule of their own.
fn local_theta(spec: &ModelSpec) -> Option<f64> {
    spec.attention.window.and_then(|window| window.rope_theta)
}

fn tables(spec: &ModelSpec) -> usize {
    1 + usize::from(local_theta(spec).is_some())
}

/// The angles of a layer, out of the region; none if its heads are not rotated.
pub(crate) fn of_layer<'a>(spec: &ModelSpec, region: Buf<'a>, layer: u32) -> Option<Buf<'a>> {
    if spec.attention.unrotated.contains(layer) {
        return None;
    }
    let len = region.len() / tables(spec);
    let is_local = local_theta(spec).is_some() && spec.attention.window_of(layer).is_some();
    Some(region.slice(if is_local { len } else { 0 }, len))
}

/// Fills the region.
pub fn fill(dev: &dyn Device, spec: &ModelSpec, region: Buf<'_>) {
    let len = region.len() / tables(spec);
    fill_table(dev, spec, region.slice(0, len));
    if let Some(theta) = local_theta(spec) {
        let local = ModelSpec { rope_theta: theta, rope_scaling: RopeScaling::None, ..*spec };
        fill_table(dev, &local, region.slice(len, len));
    }
}

fn fill_table(dev: &dyn Device, spec: &ModelSpec, table: Buf<'_>) {
    let half = spec.head_dim as usize / 2;
    let frequencies: Vec<f64> = (0..half).map(|i| frequency(spec, i)).collect();
    let factor = match spec.rope_scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
        _ => 1.0,
    };
    let mut row = vec![0.0f32; half * 2];
    for position in 0..table.len() / (half * 2) {
        for (i, &frequency) in frequencies.iter().enumerate() {
            // The angle is rounded to f32 first, as the reference does: the tables then agree to the last place.
            let angle = (position as f32) * (frequency as f32);
            let (s, c) = sin_cos(f64::from(angle));
            (row[2 * i], row[2 * i + 1]) = (c as f32 * factor, s as f32 * factor);
        }
        dev.write_f32(table, position * half * 2, &row);
    }
}

/// Radians per position of pair `i`. Source: transformers `modeling_rope_utils.py` (default, linear, llama3, yarn).
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
        RopeScaling::Yarn { factor, .. } => {
            let (low, high) = yarn_ramp(spec);
            let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            base / factor * divided + base * (1.0 - divided)
        }
    }
}

/// The pairs between which YaRN's ramp rises.
fn yarn_ramp(spec: &ModelSpec) -> (f64, f64) {
    let RopeScaling::Yarn { original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } =
        spec.rope_scaling
    else {
        panic!("a rule of YaRN");
    };
    let (d, context) = (f64::from(spec.head_dim), f64::from(original_max_position_embeddings));
    // The pair that turns so often within the first context.
    let pair = |turns: f64| d * ln(context / (turns * std::f64::consts::TAU)) / (2.0 * ln(spec.rope_theta));
    let (low, high) = (pair(beta_fast), pair(beta_slow));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min(d - 1.0));
    // As the reference does, so that a ramp without length is one step.
    (low, if low == high { high + 0.001 } else { high })
}
