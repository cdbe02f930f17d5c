//! Layers with linear attention: their regions in a pass, their forward pass and their gradients.
//!
//! Legend: as in `plimsoll_device::DeltaHeads`; L layers with linear attention.

use crate::weights::LayerDelta;
use plimsoll_base::{DType, DeltaSpec, ModelSpec, Result};
use plimsoll_device::{
    CONV_TAPS, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaRule, DeltaRuleBackward, Device, NormGated,
    NormGatedBackward, Places, SEGMENT_FIELDS, STATE_CHUNK, edges,
};
use plimsoll_memory::{Buf, Turn};

/// Words of a segment in the places of a pass.
pub(crate) const PLACE_FIELDS: usize = 2;

/// Handles to the regions of a pass through layers with linear attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRegions<'p> {
    /// [S, 2] u32.
    pub(crate) places: Buf<'p>,
    /// [M, C] e: q, k, v.
    qkv: Buf<'p>,
    /// [M, 2, H] f32.
    gates: Buf<'p>,
    /// [M, H dv] e.
    out: Buf<'p>,
    /// [P, H, dk, dv] f32; of each layer in a rollout.
    states: Buf<'p>,
    /// [L, P, 3, C] e, in a rollout.
    tails: Option<Buf<'p>>,
    /// [M, H dv] f32, in passes over whole sequences.
    rest: Option<Buf<'p>>,
    gradients: Option<GradientRegions<'p>>,
}

/// Handles to what only passes with gradients have.
#[derive(Clone, Copy, Debug)]
struct GradientRegions<'p> {
    d_rest: Buf<'p>,
    d_states: Buf<'p>,
    d_qkv: Buf<'p>,
    d_gates: Buf<'p>,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The states of sequences, from pass to pass.
    States,
    /// Nothing: sequences are whole.
    Nothing,
    /// What the backward pass reads, as long as a layer lasts.
    Gradients,
}

/// Places that a pass over whole sequences has: for segments of a chunk on average. Where they are shorter, a micro-batch ends
/// before its rows do; a pair of responses with its prompt always fits.
pub fn places_for(rows: usize, segments: usize) -> usize {
    let (all, most) = (rows.div_ceil(STATE_CHUNK), 2 * segments.min(rows));
    (all + most).min(2 * all + 6)
}

/// Adds the regions, for passes of M rows in S segments with P places of states.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(
    spec: &ModelSpec,
    weights: DType,
    (m, segments, places): (usize, usize, usize),
    keeps: Keeps,
    add: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    let Some(delta) = spec.delta else { return Ok(()) };
    let heads = heads(delta);
    let layers = spec.delta_layers() as usize;
    let DeltaHeads { value_heads, key_dim, value_dim, .. } = heads;
    let (conv, values) = (heads.conv_width(), heads.value_width());
    let state = [places, value_heads, key_dim, value_dim];
    let turn = if keeps == Keeps::Gradients { Turn::Layers } else { Turn::Whole };
    add(Turn::Whole, "delta.places", &[segments, PLACE_FIELDS], DType::U32)?;
    add(turn, "delta.qkv", &[m, conv], weights)?;
    add(turn, "delta.gates", &[m, 2, value_heads], DType::F32)?;
    add(turn, "delta.out", &[m, values], weights)?;
    if keeps == Keeps::States {
        add(turn, "delta.states", &[&[layers], &state[..]].concat(), DType::F32)?;
        return add(turn, "delta.tails", &[layers, places, CONV_TAPS - 1, conv], weights);
    }
    add(turn, "delta.states", &state, DType::F32)?;
    add(turn, "delta.rest", &[m, values], DType::F32)?;
    if keeps == Keeps::Gradients {
        add(turn, "delta.d_rest", &[m, values], DType::F32)?;
        add(turn, "delta.d_states", &state, DType::F32)?;
        add(turn, "delta.d_qkv", &[m, conv], DType::F32)?;
        add(turn, "delta.d_gates", &[m, 2, value_heads], DType::F32)?;
    }
    Ok(())
}

fn heads(delta: DeltaSpec) -> DeltaHeads {
    DeltaHeads {
        key_heads: delta.key_heads as usize,
        value_heads: delta.value_heads as usize,
        key_dim: delta.key_dim as usize,
        value_dim: delta.value_dim as usize,
    }
}

impl<'p> DeltaRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<DeltaRegions<'p>> {
        let buf = |what: &str| get(&format!("delta.{what}"));
        let gradient = |what: &str| buf(what).expect("a pass with gradients has it");
        Some(DeltaRegions {
            places: buf("places")?,
            qkv: buf("qkv")?,
            gates: buf("gates")?,
            out: buf("out")?,
            states: buf("states")?,
            tails: buf("tails"),
            rest: buf("rest"),
            gradients: buf("d_rest").map(|d_rest| GradientRegions {
                d_rest,
                d_states: gradient("d_states"),
                d_qkv: gradient("d_qkv"),
                d_gates: gradient("d_gates"),
            }),
        })
    }

    /// The first `m` rows of the buffers of a layer, if it has linear attention.
    pub(crate) fn layer(&self, spec: &ModelSpec, layer: u32, m: usize) -> Option<DeltaBufs<'p>> {
        let delta = spec.delta_of(layer)?;
        let heads = heads(delta);
        let (conv, values) = (heads.conv_width(), heads.value_width());
        let (layers, index) = (spec.delta_layers() as usize, delta.layers.before(layer) as usize);
        let of_layer = |buf: Buf<'p>| match self.tails {
            Some(_) => buf.part(index, buf.len() / layers),
            None => buf,
        };
        Some(DeltaBufs {
            heads,
            regions: DeltaRegions {
                places: self.places,
                qkv: self.qkv.slice(0, m * conv),
                gates: self.gates.slice(0, m * 2 * heads.value_heads),
                out: self.out.slice(0, m * values),
                states: of_layer(self.states),
                tails: self.tails.map(of_layer),
                rest: self.rest.map(|rest| rest.slice(0, m * values)),
                gradients: self.gradients.map(|of| GradientRegions {
                    d_rest: of.d_rest.slice(0, m * values),
                    d_states: of.d_states,
                    d_qkv: of.d_qkv.slice(0, m * conv),
                    d_gates: of.d_gates.slice(0, m * 2 * heads.value_heads),
                }),
            },
        })
    }
}

/// One layer's buffers for M rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaBufs<'p> {
    heads: DeltaHeads,
    regions: DeltaRegions<'p>,
}

/// A layer with linear attention in a pass.
pub(crate) struct DeltaLayer<'x, 'a, 'p> {
    pub(crate) dev: &'x dyn Device,
    pub(crate) eps: f32,
    pub(crate) w: LayerDelta<'a>,
    pub(crate) bufs: DeltaBufs<'p>,
    /// [S, 5] u32, as `Batch::segments`.
    pub(crate) segments: Buf<'p>,
    /// [M, C + H dv + 2 H] e: what the first product gave.
    pub(crate) x: Buf<'p>,
    /// [M, H dv] e: what the last product reads.
    pub(crate) y: Buf<'p>,
}

/// Gradients of a layer with linear attention.
pub(crate) struct DeltaGradients<'a, 'p> {
    /// Where those of weights go; none where they are frozen.
    pub(crate) weights: Option<LayerDelta<'a>>,
    pub(crate) add: bool,
    /// [M, H dv] e: of `y`; written.
    pub(crate) d: Buf<'p>,
    /// [M, C + H dv + 2 H] e, written: of `x`.
    pub(crate) dx: Buf<'p>,
}

impl DeltaLayer<'_, '_, '_> {
    /// Computes `y`.
    pub(crate) fn forward(&self) {
        self.to_out();
        let (heads, DeltaRegions { out, .. }) = (self.bufs.heads, self.bufs.regions);
        self.dev.norm_gated(NormGated { heads, o: out, x: self.x, w: self.w.norm, eps: self.eps, y: self.y });
    }

    /// Computes what the backward pass reads, `x` being there: all but `y`.
    pub(crate) fn to_out(&self) {
        let Self { dev, w, x, bufs: DeltaBufs { heads, regions }, .. } = *self;
        let DeltaRegions { qkv, gates, out, states, tails, rest, .. } = regions;
        let (weights, places) = (w.inputs, self.places());
        dev.delta_inputs(DeltaInputs { heads, x, weights, places, tails, qkv, gates });
        dev.delta_rule(DeltaRule { heads, qkv, gates, places, states, out, rest });
    }

    /// The gradient of `x`, and those of weights.
    pub(crate) fn backward(&self, of: &DeltaGradients<'_, '_>) {
        let Self { dev, w, x, eps, segments, bufs: DeltaBufs { heads, regions }, .. } = *self;
        let DeltaRegions { qkv, gates, out, states, rest, gradients, .. } = regions;
        let GradientRegions { d_rest, d_states, d_qkv, d_gates } = gradients.expect("an update");
        let (dx, add, dw) = (of.dx, of.add, of.weights.map(|w| w.norm));
        dev.norm_gated_backward(NormGatedBackward { heads, o: out, x, w: w.norm, eps, d: of.d, dx, dw, add });
        dev.delta_rule_backward(DeltaRuleBackward {
            heads,
            qkv,
            gates,
            places: self.places(),
            states,
            rest: rest.expect("an update"),
            dout: of.d,
            d_rest,
            d_states,
            d_qkv,
            d_gates,
        });
        let (weights, grads) = (w.inputs, of.weights.map(|w| w.inputs));
        let backward = DeltaInputsBackward { heads, x, weights, segments, d_qkv, d_gates, dx, grads, add };
        dev.delta_inputs_backward(backward);
    }

    fn places(&self) -> Places<'_> {
        let (segments, regions) = (self.segments, &self.bufs.regions);
        let count = segments.len() / SEGMENT_FIELDS;
        let places = regions.places.slice(0, count * PLACE_FIELDS);
        Places { places, segments, has_parents: regions.tails.is_none() }
    }
}

/// Adds the places of a segment of `rows` rows, of which none is anybody's: as many as a pass has are given out, then the first again.
pub(crate) fn push_any(places: &mut Vec<u32>, next: &mut usize, rows: usize, limit: usize) {
    let first = if *next + edges(rows) <= limit { *next } else { 0 };
    *next = first + edges(rows);
    places.extend([plimsoll_device::NO_STATE, first as u32]);
}
