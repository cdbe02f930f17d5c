//! The regions of linear attention in a pass, and the handles to them.
//!
//! Legend: as in `plimsoll_device::DeltaHeads`; L layers with linear attention, P places of states.

use super::places::{PLACE_FIELDS, places_of_scores};
use crate::activations::mode::Mode;
use crate::activations::shape::{Life, PassLimits, PassShape, Regions};
use plimsoll_arch::{Cache, DeltaSpec, ModelSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::{CONV_TAPS, DeltaHeads, Device, NO_STATE, Places, SEGMENT_FIELDS};
use plimsoll_memory::Buf;

/// Segments whose places are uploaded at once.
const SENT_SEGMENTS: usize = 32;

/// Handles to the regions of a pass through layers with linear attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaRegions<'p> {
    /// [S, 2] u32.
    places: Buf<'p>,
    /// [M, C] e: q, k, v.
    pub(super) qkv: Buf<'p>,
    /// [M, 2, H] f32.
    pub(super) gates: Buf<'p>,
    /// [M, H dv] e.
    pub(super) out: Buf<'p>,
    /// [P, H, dk, dv] f32; per layer in a rollout.
    pub(super) states: Buf<'p>,
    /// [L, P, 3, C] e, in a rollout.
    pub(super) tails: Option<Buf<'p>>,
    /// [M, H dv] f32, in passes with gradients.
    pub(super) rest: Option<Buf<'p>>,
    pub(super) gradients: Option<GradientRegions<'p>>,
}

/// Handles that only passes with gradients have.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientRegions<'p> {
    pub(super) d_rest: Buf<'p>,
    pub(super) d_states: Buf<'p>,
    pub(super) d_qkv: Buf<'p>,
    pub(super) d_gates: Buf<'p>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaBufs<'p> {
    pub(super) heads: DeltaHeads,
    pub(super) regions: DeltaRegions<'p>,
}

impl DeltaBufs<'_> {
    /// Returns the places of the states of a pass's segments.
    pub(super) fn places<'s>(&'s self, segments: Buf<'s>) -> Places<'s> {
        let count = segments.len() / SEGMENT_FIELDS;
        let places = self.regions.places.slice(0, count * PLACE_FIELDS);
        Places { places, segments, has_parents: self.regions.tails.is_none() }
    }
}

/// Adds the regions.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (PassShape { spec, mode, limits }, weights) = (to.of, to.weights);
    let Some(delta) = spec.each_layer().find_map(|layer| layer.delta()) else { return Ok(()) };
    let (m, heads, layers) = (limits.rows, heads(delta), spec.delta_layers() as usize);
    let DeltaHeads { value_heads, key_dim, value_dim, .. } = heads;
    let (conv, values) = (heads.conv_width(), heads.value_width());
    let (is_rollout, has_gradients) = (matches!(mode, Mode::Rollout { .. }), mode.recompute().is_some());
    let places = limits.caches.units(Cache::STATE);
    let whole = if is_rollout || has_gradients { places } else { places_of_scores(limits.segments, places) };
    let state = [whole, value_heads, key_dim, value_dim];
    to.add(Life::Pass, "delta.places", &[limits.segments, PLACE_FIELDS], DType::U32)?;
    to.add(Life::Layer, "delta.qkv", &[m, conv], weights)?;
    to.add(Life::Layer, "delta.gates", &[m, 2, value_heads], DType::F32)?;
    to.add(Life::Layer, "delta.out", &[m, values], weights)?;
    if is_rollout {
        to.add(Life::Cached, "delta.states", &[&[layers], &state[..]].concat(), DType::F32)?;
        return to.add(Life::Cached, "delta.tails", &[layers, whole, CONV_TAPS - 1, conv], weights);
    }
    to.add(Life::Layer, "delta.states", &state, DType::F32)?;
    if has_gradients {
        to.add(Life::Layer, "delta.rest", &[m, values], DType::F32)?;
        to.add(Life::Layer, "delta.d_rest", &[m, values], DType::F32)?;
        to.add(Life::Layer, "delta.d_states", &state, DType::F32)?;
        to.add(Life::Layer, "delta.d_qkv", &[m, conv], DType::F32)?;
        to.add(Life::Layer, "delta.d_gates", &[m, 2, value_heads], DType::F32)?;
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

    /// Returns the first `m` rows of the buffers of a layer with linear attention.
    pub(crate) fn layer(&self, spec: &ModelSpec, delta: DeltaSpec, layer: u32, m: usize) -> DeltaBufs<'p> {
        let heads = heads(delta);
        let (conv, values) = (heads.conv_width(), heads.value_width());
        let below = spec.layers.iter().take(layer as usize).filter(|layer| layer.delta().is_some());
        let (layers, index) = (spec.delta_layers() as usize, below.count());
        let of_layer = |buf: Buf<'p>| match self.tails {
            Some(_) => buf.part(index, buf.len() / layers),
            None => buf,
        };
        DeltaBufs {
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
        }
    }

    /// Uploads the segments' places: those given, or one each if no backward pass reads the chunks' initial states.
    pub(crate) fn upload(&self, dev: &dyn Device, given: &[u32], segments: &[u32], limits: &PassLimits) {
        let segments = segments.as_chunks::<SEGMENT_FIELDS>().0;
        assert_eq!(given.len(), segments.len() * PLACE_FIELDS, "places of every segment");
        if self.tails.is_some() || self.gradients.is_some() {
            return dev.write_u32(self.places, 0, given);
        }
        let (states, mut sent) = (places_of_scores(limits.segments, limits.caches.units(Cache::STATE)), 0);
        for part in segments.chunks(SENT_SEGMENTS) {
            let mut places = [[NO_STATE; PLACE_FIELDS]; SENT_SEGMENTS];
            for (i, (segment, place)) in part.iter().zip(&mut places).enumerate() {
                let parent = segments[..sent + i].iter().rposition(|other| other[0] == segment[4]);
                // A rehearsal may have more segments than states.
                *place = [parent.map_or(NO_STATE, |at| (at % states) as u32), ((sent + i) % states) as u32];
            }
            dev.write_u32(self.places, sent * PLACE_FIELDS, places[..part.len()].as_flattened());
            sent += part.len();
        }
    }
}
