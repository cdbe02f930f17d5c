//! What the parts of layers have in a pass: their regions, and the buffers of one layer.
//!
//! Attention's keys, log-sum-exps and gradients are added by name, since other regions lie between them.

use super::attention::regions::{self as attention, AttentionBufs, AttentionRegions};
use super::attention::value_regions as values;
use super::delta::regions::{self as delta, DeltaBufs, DeltaRegions};
use super::experts::regions::{self as experts, ExpertBufs, ExpertRegions};
use super::inputs::regions::{self as inputs, InputRegions};
use super::latent::regions::{self as latent, LatentBufs, LatentRegions};
use crate::activations::shape::{PassShape, Regions};
use plimsoll_arch::{DenseSpec, Ffn, Mixer, ModelSpec};
use plimsoll_base::Result;
use plimsoll_memory::Buf;

/// Handles to the regions that only some kinds of parts have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartRegions<'p> {
    pub(crate) attention: Option<AttentionRegions<'p>>,
    pub(crate) delta: Option<DeltaRegions<'p>>,
    pub(crate) latent: Option<LatentRegions<'p>>,
    pub(crate) experts: Option<ExpertRegions<'p>>,
    pub(crate) inputs: Option<InputRegions<'p>>,
}

/// Buffers that only this kind of mixer has.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One a layer, on the stack.
pub(crate) enum MixerBufs<'p> {
    Attention(AttentionBufs<'p>),
    Delta(DeltaBufs<'p>),
    Latent(LatentBufs<'p>),
}

/// A feed-forward part with the buffers that only its kind has.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One a layer, on the stack.
pub(crate) enum FfnBufs<'p> {
    Dense(DenseSpec),
    Experts(ExpertBufs<'p>),
}

/// Adds the regions of experts, of heads with output gates, of linear and of latent attention.
///
/// Errors: `size-overflow`.
pub(crate) fn add(to: &mut Regions<'_>) -> Result<()> {
    experts::add_regions(to)?;
    attention::add_gates(to)?;
    values::add_regions(to)?;
    delta::add_regions(to)?;
    latent::add_regions(to)?;
    inputs::add_regions(to)
}

/// Returns whether the outputs of all layers' feed-forward parts are sums of two, each kept.
pub(crate) fn are_sums(spec: &ModelSpec) -> bool {
    spec.each_layer().all(|layer| super::experts::joined_regions::is_joined(spec, &layer))
}

impl<'p> PartRegions<'p> {
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> PartRegions<'p> {
        PartRegions {
            attention: AttentionRegions::bind(get),
            delta: DeltaRegions::bind(get),
            latent: LatentRegions::bind(get),
            experts: ExpertRegions::bind(get),
            inputs: InputRegions::bind(get),
        }
    }

    /// Returns the first `m` rows of the buffers of a layer's mixer.
    pub(crate) fn mixer(&self, of: &PassShape<'_>, layer: u32, m: usize) -> MixerBufs<'p> {
        match of.spec.layer(layer).mixer {
            Mixer::Attention(attention) => {
                let regions = self.attention.expect("regions of attention");
                MixerBufs::Attention(regions.layer(of, attention, layer, m))
            }
            Mixer::Latent(latent) => {
                let regions = self.attention.expect("regions of attention over latents");
                let attention = regions.layer(of, latent.over_latents(), layer, m);
                let regions = self.latent.expect("regions of latent attention");
                MixerBufs::Latent(regions.layer(of, (latent, attention), layer, m))
            }
            Mixer::Delta(delta) => {
                let regions = self.delta.expect("regions of linear attention");
                MixerBufs::Delta(regions.layer(of.spec, delta, layer, m))
            }
        }
    }

    /// Returns the first `m` rows of the buffers of a layer's feed-forward part.
    pub(crate) fn ffn(&self, of: &PassShape<'_>, layer: u32, m: usize) -> FfnBufs<'p> {
        match of.spec.layer(layer).ffn {
            Ffn::Dense(dense) => FfnBufs::Dense(dense),
            Ffn::Experts(experts) => {
                let regions = self.experts.expect("regions of experts");
                FfnBufs::Experts(regions.layer(of, experts, layer, m))
            }
        }
    }
}

impl<'p> MixerBufs<'p> {
    /// Returns the gated heads, if heads have gates.
    pub(crate) fn gated(&self) -> Option<Buf<'p>> {
        match self {
            MixerBufs::Attention(of) => of.gates.map(|gates| gates.out),
            MixerBufs::Delta(_) | MixerBufs::Latent(_) => None,
        }
    }
}
