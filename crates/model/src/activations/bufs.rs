//! Handles to parts of a pass: of one layer, of the head, of the backward pass.

use crate::parts::attention::regions::AttentionBufs;
use crate::parts::delta::regions::DeltaBufs;
use crate::parts::experts::regions::ExpertBufs;
use plimsoll_device::HeadOut;
use plimsoll_memory::Buf;

/// What the head of a pass writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadBufs<'p> {
    /// Over the vocabulary, through a tile.
    Vocabulary { out: HeadOut<'p>, tile: Buf<'p> },
    /// [R] f32: a critic's values, or scores.
    Values(Buf<'p>),
}

/// What the backward pass of the head takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeadGradBufs<'p> {
    /// Over the vocabulary, through a tile.
    Vocabulary { d_logprobs: Buf<'p>, d_entropy: Buf<'p>, d_tile: Buf<'p> },
    /// [R]: derivatives by the values, in f32 and as products read them.
    Values { d_values: Buf<'p>, d_out: Buf<'p> },
}

/// Handles that only the backward pass uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backward<'p> {
    pub(crate) d_resid: Buf<'p>,
    pub(crate) d_norm: Buf<'p>,
    pub(crate) d_out: Buf<'p>,
    pub(crate) d_attn: Buf<'p>,
    pub(crate) d_qkv: Buf<'p>,
    pub(crate) rstd: Buf<'p>,
    /// Gradient of what a part of a layer adds, before its norm.
    pub(crate) d_branch: Option<Buf<'p>>,
    pub(crate) head: HeadGradBufs<'p>,
    pub(crate) head_d_norm: Buf<'p>,
    pub(crate) head_d_input: Buf<'p>,
    pub(crate) head_rstd: Buf<'p>,
    /// Empty on a device that packs nothing.
    pub(crate) pack: Buf<'p>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerBufs<'p> {
    pub(crate) resid: Buf<'p>,
    /// The residual after attention; the layer's own `resid` where nothing is kept.
    pub(crate) mid: Buf<'p>,
    /// The residual after the layer; its own `resid` where nothing is kept.
    pub(crate) next: Buf<'p>,
    /// What attention adds, before its norm, where a norm comes after it.
    pub(crate) attn_out: Option<Buf<'p>>,
    /// What the feed-forward part adds, likewise.
    pub(crate) ffn_out: Option<Buf<'p>>,
    pub(crate) norm_attn: Buf<'p>,
    pub(crate) norm_ffn: Buf<'p>,
    /// What the first product gives.
    pub(crate) qkv: Buf<'p>,
    /// What the mixer gives, without gates.
    pub(crate) attn: Buf<'p>,
    /// What the last product of the mixer reads: `attn`, or with its gates.
    pub(crate) mixed: Buf<'p>,
    pub(crate) mixer: MixerBufs<'p>,
    pub(crate) gate_up: Buf<'p>,
    pub(crate) product: Buf<'p>,
    pub(crate) ffn: FfnBufs<'p>,
    /// By `Site`.
    pub(crate) u: [Option<Buf<'p>>; 4],
    /// For u of one product at a time, of any layer.
    pub(crate) u_once: Option<Buf<'p>>,
}

/// What a layer's mixer has alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MixerBufs<'p> {
    Attention(AttentionBufs<'p>),
    Delta(DeltaBufs<'p>),
}

impl<'p> MixerBufs<'p> {
    /// Returns where heads are after their gates, if they have such.
    pub(super) fn gated(&self) -> Option<Buf<'p>> {
        match self {
            MixerBufs::Attention(of) => of.gates.map(|gates| gates.out),
            MixerBufs::Delta(_) => None,
        }
    }
}

/// What a layer's feed-forward part has alone.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One a layer, on the stack.
pub(crate) enum FfnBufs<'p> {
    Dense,
    Experts(ExpertBufs<'p>),
}

impl<'p> Backward<'p> {
    pub(super) fn bind(
        get: &impl Fn(&str) -> Option<Buf<'p>>,
        buf: &impl Fn(&str) -> Buf<'p>,
    ) -> Backward<'p> {
        let vocabulary = || HeadGradBufs::Vocabulary {
            d_logprobs: buf("head.d_logprobs"),
            d_entropy: buf("head.d_entropy"),
            d_tile: buf("head.d_tile"),
        };
        let values = |d_values| HeadGradBufs::Values { d_values, d_out: buf("head.d_out") };
        Backward {
            d_resid: buf("d_resid"),
            d_norm: buf("d_norm"),
            d_out: buf("d_out"),
            d_attn: buf("d_attn"),
            d_qkv: buf("d_qkv"),
            rstd: buf("rstd"),
            d_branch: get("d_branch"),
            head: get("head.d_values").map_or_else(vocabulary, values),
            head_d_norm: buf("head.d_norm"),
            head_d_input: buf("head.d_input"),
            head_rstd: buf("head.rstd"),
            pack: get("pack").unwrap_or_else(|| buf("head.d_norm").slice(0, 0)),
        }
    }
}
