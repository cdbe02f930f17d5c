//! The rotary table: cosine and sine of every position and frequency, computed with `plimsoll_base::math`.

use plimsoll_arch::{ModelSpec, RopeScaling};
use plimsoll_base::math::{ln, pow, sin_cos};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::Device;
use plimsoll_memory::{Buf, Layout, Pool};

/// Returns the region `rope.table`: [T, positions, r/2, 2] f32, resident; r: rotated elements of a head. T is 2 if some
/// layers have their own rope, else that axis is absent. If the heads of these are rotated in another width, it is
/// [positions, r + r'] f32, and if queries grow, [positions, T r + 1] f32: the tables one after the other, and then a
/// factor on the queries of each position.
///
/// Errors: `size-overflow`.
pub fn layout(spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    layout_as("rope.table", spec, positions, pool)
}

/// True if both models can share one region.
pub fn same(a: &ModelSpec, b: &ModelSpec) -> bool {
    use RopeScaling::{Dynamic, LongRope};
    let of = |spec: &ModelSpec| {
        let by_length = matches!(spec.rope_scaling, Dynamic { .. } | LongRope { .. });
        let known = by_length.then_some(spec.max_positions);
        (widths(spec), spec.rope_theta, spec.rope_scaling, local_theta(spec), known)
    };
    of(a) == of(b)
}

/// Returns the region of `layout` with another name.
///
/// Errors: `size-overflow`.
pub fn layout_as(name: &str, spec: &ModelSpec, positions: usize, pool: Pool) -> Result<Layout> {
    let mut layout = Layout::new();
    let (width, local) = widths(spec);
    let shape = [1 + local.is_some() as u64, positions as u64, width as u64 / 2, 2];
    let of_position = [positions as u64, elements(spec) as u64];
    let shape = match shape {
        _ if query_growth(spec).is_some() || local.is_some_and(|local| local != width) => &of_position[..],
        [1, ..] => &shape[1..],
        _ => &shape[..],
    };
    layout.arena(name, "model", pool, PhaseSet::RESIDENT, shape, DType::F32)?;
    Ok(layout)
}

/// Returns the base of the layers that have their own rope.
fn local_theta(spec: &ModelSpec) -> Option<f64> {
    spec.attentions().find_map(|attention| attention.own_theta)
}

/// Returns the rotated elements of a head, and of those of the layers that have their own rope.
fn widths(spec: &ModelSpec) -> (usize, Option<usize>) {
    let of = |is_local: bool| {
        let those = spec.attentions().filter(|attention| attention.own_theta.is_some() == is_local);
        those.map(|attention| attention.rotary_width() as usize).max()
    };
    (of(false).unwrap_or(spec.rotary_width() as usize), of(true))
}

/// Returns the elements of the region for each position.
fn elements(spec: &ModelSpec) -> usize {
    let (width, local) = widths(spec);
    width + local.unwrap_or(0) + usize::from(query_growth(spec).is_some())
}

/// Returns b, and the positions of a step, of the rule by which queries grow, if they do.
fn query_growth(spec: &ModelSpec) -> Option<(f64, u32)> {
    match spec.rope_scaling {
        RopeScaling::Yarn { query_growth, original_max_position_embeddings, .. } if query_growth > 0.0 => {
            Some((query_growth, original_max_position_embeddings))
        }
        _ => None,
    }
}

/// The parts of the region.
struct Tables<'a> {
    /// That of the model's rope.
    whole: Buf<'a>,
    /// That of the layers that have their own.
    local: Option<Buf<'a>>,
    /// The factors on queries by position.
    factors: Option<Buf<'a>>,
}

impl<'a> Tables<'a> {
    fn of(spec: &ModelSpec, region: Buf<'a>) -> Tables<'a> {
        let ((width, local), positions) = (widths(spec), region.len() / elements(spec));
        let end = width + local.unwrap_or(0);
        Tables {
            whole: region.slice(0, positions * width),
            local: local.map(|local| region.slice(positions * width, positions * local)),
            factors: query_growth(spec).map(|_| region.slice(positions * end, positions)),
        }
    }
}

/// Returns the factors on queries by position, if they grow: [positions] f32.
pub(crate) fn query_factors<'a>(spec: &ModelSpec, region: Buf<'a>) -> Option<Buf<'a>> {
    Tables::of(spec, region).factors
}

/// Returns a layer's part of the region; none if its heads are not rotated.
pub(crate) fn of_layer<'a>(spec: &ModelSpec, region: Buf<'a>, layer: u32) -> Option<Buf<'a>> {
    let attention = spec.layer(layer).attention().filter(|attention| attention.is_rotated)?;
    let tables = Tables::of(spec, region);
    if attention.own_theta.is_some() { tables.local } else { Some(tables.whole) }
}

pub fn fill(dev: &dyn Device, spec: &ModelSpec, region: Buf<'_>) {
    let (tables, (width, local)) = (Tables::of(spec, region), widths(spec));
    fill_table(dev, spec, width, tables.whole);
    if let Some(((table, width), theta)) = tables.local.zip(local).zip(local_theta(spec)) {
        let local = ModelSpec { rope_theta: theta, rope_scaling: RopeScaling::None, ..*spec };
        fill_table(dev, &local, width, table);
    }
    if let Some((factors, (growth, step))) = tables.factors.zip(query_growth(spec)) {
        let factor = |position: usize| (1.0 + growth * ln((1 + position / step as usize) as f64)) as f32;
        dev.write_f32(factors, 0, &(0..factors.len()).map(factor).collect::<Vec<_>>());
    }
}

fn fill_table(dev: &dyn Device, spec: &ModelSpec, width: usize, table: Buf<'_>) {
    let half = width / 2;
    let positions = table.len() / width;
    let frequencies: Vec<f64> = (0..half).map(|i| frequency(spec, width, positions, i)).collect();
    let factor = attention_factor(spec) as f32;
    let mut row = vec![0.0f32; width];
    for position in 0..positions {
        for (i, &frequency) in frequencies.iter().enumerate() {
            // The angle is rounded to f32 first, as in the reference: the tables then agree to the last place.
            let angle = (position as f32) * (frequency as f32);
            let (s, c) = sin_cos(f64::from(angle));
            (row[2 * i], row[2 * i + 1]) = (c as f32 * factor, s as f32 * factor);
        }
        dev.write_f32(table, position * width, &row);
    }
}

/// Says which variant of a length-dependent rope a table of `positions` uses; none for other ropes.
pub fn words(spec: &ModelSpec, positions: usize) -> Option<String> {
    let (rule, known, [within, beyond]) = match spec.rope_scaling {
        RopeScaling::LongRope { original_max_position_embeddings: known, .. } => {
            ("longrope", known, ["short divisors", "long divisors"])
        }
        RopeScaling::Dynamic { .. } => {
            ("dynamic", spec.max_positions, ["plain frequencies", "a larger base"])
        }
        _ => return None,
    };
    let (side, table) = if positions <= known as usize { ("not beyond", within) } else { ("beyond", beyond) };
    Some(format!("{rule}: {table} for all sequences, which reach {positions} positions, {side} {known}"))
}

/// Returns the factor on cosines and sines.
fn attention_factor(spec: &ModelSpec) -> f64 {
    match spec.rope_scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        RopeScaling::LongRope { original_max_position_embeddings, .. } => {
            let original = f64::from(original_max_position_embeddings);
            let stretch = f64::from(spec.max_positions) / original;
            if stretch > 1.0 { (1.0 + ln(stretch) / ln(original)).sqrt() } else { 1.0 }
        }
        _ => 1.0,
    }
}

/// Returns the radians per position of pair `i` of a head of `width` rotated elements. Length-dependent rules use the
/// table's `positions` as the length: the reference uses each sequence's own, and would have to rotate cached keys
/// again as a sequence grows.
/// Source: transformers `modeling_rope_utils.py` (default, linear, dynamic, llama3, yarn, longrope, proportional).
fn frequency(spec: &ModelSpec, width: usize, positions: usize, i: usize) -> f64 {
    let width = width as f64;
    let of = |theta: f64| 1.0 / pow(theta, 2.0 * i as f64 / width);
    let base = of(spec.rope_theta);
    match spec.rope_scaling {
        RopeScaling::None => base,
        // A single pair turns at the same speed whatever the base.
        RopeScaling::Dynamic { .. } if positions <= spec.max_positions as usize || width <= 2.0 => base,
        RopeScaling::Dynamic { factor } => {
            let stretch = factor * positions as f64 / f64::from(spec.max_positions) - (factor - 1.0);
            of(spec.rope_theta * pow(stretch, width / (width - 2.0)))
        }
        RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings } => {
            let is_short = positions <= original_max_position_embeddings as usize;
            base / if is_short { short_factor } else { long_factor }.as_slice()[i]
        }
        RopeScaling::Linear { factor } => base / factor,
        // The others are not rotated: cosines of 1.
        RopeScaling::Proportional { share, .. } if i as f64 >= (share * width / 2.0).floor() => 0.0,
        RopeScaling::Proportional { factor, .. } => base / factor,
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
            let (low, high) = yarn_ramp(spec, width);
            let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            base / factor * divided + base * (1.0 - divided)
        }
    }
}

/// Returns the pairs of a head of `d` rotated elements between which YaRN's ramp rises.
fn yarn_ramp(spec: &ModelSpec, d: f64) -> (f64, f64) {
    let RopeScaling::Yarn { original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } =
        spec.rope_scaling
    else {
        panic!("a rule of YaRN");
    };
    let context = f64::from(original_max_position_embeddings);
    // The pair that makes this many turns within the original context.
    let pair = |turns: f64| d * ln(context / (turns * std::f64::consts::TAU)) / (2.0 * ln(spec.rope_theta));
    let (low, high) = (pair(beta_fast), pair(beta_slow));
    let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min(d - 1.0));
    // As in the reference: a ramp of length 0 becomes a step.
    (low, if low == high { high + 0.001 } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::FileShape;

    /// Numbers of transformers 4.57.6, in f32.
    fn check(spec: &ModelSpec, positions: usize, pairs: &[(usize, f64)]) {
        for &(i, theirs) in pairs {
            let ours = frequency(spec, spec.rotary_width() as usize, positions, i);
            assert!(
                (ours / theirs - 1.0).abs() < 3e-7,
                "pair {i} of {positions}: {ours}, reference {theirs}"
            );
        }
    }

    #[test]
    fn a_base_grows_with_the_longest_sequence_beyond_the_models_positions() {
        let rope_scaling = RopeScaling::Dynamic { factor: 2.0 };
        let shape = nano().file_shape();
        let of = |head_dim| FileShape { head_dim, rope_theta: 1e4, max_positions: 64, rope_scaling, ..shape };
        let spec = of(16).spec();
        let plain = ModelSpec { rope_scaling: RopeScaling::None, ..spec };
        for i in 0..8 {
            let (ours, theirs) = (frequency(&spec, 16, 64, i), frequency(&plain, 16, 64, i));
            assert_eq!(ours.to_bits(), theirs.to_bits(), "the bits of plain frequencies");
        }
        check(&spec, 100, &[(0, 1.0), (1, 2.839451432e-1), (2, 8.062484115e-2), (7, 1.488130656e-4)]);
        check(&spec, 200, &[(1, 2.495284677e-1), (3, 1.553675346e-2), (7, 6.023386231e-5)]);
        let narrow = of(2).spec();
        assert_eq!(frequency(&narrow, 2, 200, 0), 1.0);
        assert!(!same(&spec, &ModelSpec { max_positions: 65, ..spec }));
        assert!(same(&plain, &ModelSpec { max_positions: 65, ..plain }));
    }

    #[test]
    fn short_factors_are_for_tables_of_the_first_context() {
        let phi = ModelSpec::preset("phi-4-mini").unwrap();
        assert!((attention_factor(&phi) / 1.190_238_071_423_808_3 - 1.0).abs() < 1e-14);
        check(&phi, 4096, &[(0, 1.0), (1, 8.254041672e-1), (20, 2.154435031e-2), (47, 1.211527488e-4)]);
        check(&phi, 4097, &[(0, 1.0), (1, 7.380746603e-1), (20, 2.301475266e-3), (47, 2.536168040e-6)]);
        let of = |positions| words(&phi, positions).unwrap();
        assert!(of(4096).starts_with("longrope: short divisors") && of(4096).ends_with("not beyond 4096"));
        assert!(
            of(4097).starts_with("longrope: long divisors")
                && of(4097).ends_with("4097 positions, beyond 4096")
        );
        assert_eq!(words(&nano(), 4096), None);
        let unstretched = ModelSpec { max_positions: 4096, ..phi };
        assert_eq!(attention_factor(&unstretched), 1.0);
    }

    fn nano() -> ModelSpec {
        ModelSpec::preset("nano").unwrap()
    }
}
