//! Layers with linear attention: their regions in a pass, their forward pass and their gradients.
//!
//! Legend: as in `plimsoll_device::DeltaHeads`; L layers with linear attention.

use crate::weights::LayerDelta;
use plimsoll_arch::{DeltaSpec, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::{
    CONV_TAPS, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaRule, DeltaRuleBackward, Device, NO_STATE,
    NormGated, NormGatedBackward, Places, SEGMENT_FIELDS, STATE_CHUNK, edges,
};
use plimsoll_memory::{Buf, Turn};

/// Words of a segment in the places of a pass.
pub(crate) const PLACE_FIELDS: usize = 2;
/// Segments whose places are sent at once.
const SENT_SEGMENTS: usize = 32;

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
    /// [M, H dv] f32, in passes with gradients.
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
    let segments = segments.min(rows);
    (2 * segments + (rows - segments) / STATE_CHUNK).min(2 * rows.div_ceil(STATE_CHUNK) + 6)
}

/// Places that a pass without gradients has, of segments that would have two of `places` at least: one each.
pub(crate) fn places_of_scores(segments: usize, places: usize) -> usize {
    segments.min(places / 2)
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
    let places = if keeps == Keeps::Nothing { places_of_scores(segments, places) } else { places };
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
    if keeps == Keeps::Gradients {
        add(turn, "delta.rest", &[m, values], DType::F32)?;
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

/// Sends the places of a pass's segments: those that are given, or one each where no backward pass reads what chunks begin with.
pub(crate) fn upload(
    dev: &dyn Device,
    regions: &DeltaRegions<'_>,
    given: &[u32],
    segments: &[u32],
    states: usize,
) {
    if regions.tails.is_some() || regions.gradients.is_some() {
        return dev.write_u32(regions.places, 0, given);
    }
    let (segments, mut sent) = (segments.as_chunks::<SEGMENT_FIELDS>().0, 0);
    for part in segments.chunks(SENT_SEGMENTS) {
        let mut places = [[NO_STATE; PLACE_FIELDS]; SENT_SEGMENTS];
        for (i, (segment, place)) in part.iter().zip(&mut places).enumerate() {
            let parent = segments[..sent + i].iter().rposition(|other| other[0] == segment[4]);
            // A rehearsal may have more segments than states.
            *place = [parent.map_or(NO_STATE, |at| (at % states) as u32), ((sent + i) % states) as u32];
        }
        dev.write_u32(regions.places, sent * PLACE_FIELDS, places[..part.len()].as_flattened());
        sent += part.len();
    }
}

/// Adds the places of a segment of `rows` rows, of which none is anybody's: as many as a pass has are given out, then the first again.
pub(crate) fn push_any(places: &mut Vec<u32>, next: &mut usize, rows: usize, limit: usize) {
    let first = if *next + edges(rows) <= limit { *next } else { 0 };
    *next = first + edges(rows);
    places.extend([NO_STATE, first as u32]);
}

#[cfg(test)]
mod tests {
    use crate::{Mode, PassLimits, Recompute, Target, activations_layout};
    use plimsoll_arch::ModelSpec;
    use plimsoll_base::DType;
    use plimsoll_device::DeviceKind;
    use plimsoll_memory::Pool;

    #[test]
    fn a_pass_without_gradients_has_one_state_of_a_segment_and_no_rest() {
        let spec = ModelSpec::preset("qwen3.5-0.8b").unwrap();
        let target = Target { kind: DeviceKind::Cpu, pool: Pool::Host, threads: 1 };
        let limits = PassLimits {
            rows: 1024,
            head_rows: 1024,
            segments: 9,
            table_entries: 80,
            blocks: 80,
            copies: 8,
            window_blocks: 0,
            places: super::places_for(1024, 9),
        };
        let layout =
            |mode| activations_layout(&spec, DType::Bf16, target, mode, limits).expect("a layout that fits");
        let states = |mode: Mode| {
            let layout = layout(mode);
            let of =
                |name| layout.find(&format!("{}.delta.{name}", mode.prefix())).map(|region| region.shape[0]);
            (of("states"), of("rest"))
        };
        assert_eq!(limits.places, 33);
        assert_eq!(states(Mode::Update(Recompute::Cheap)), (Some(33), Some(1024)));
        assert_eq!(states(Mode::Score), (Some(9), None));
        assert_eq!(states(Mode::Reward(0)), (Some(9), None));
    }
}
