//! Handles to parts of a pass: one layer, the head, the backward pass.

use super::taught::WholeBufs;
use crate::own_logits::OwnBufs;
use crate::parts::inputs::regions::InputBufs;
use crate::parts::regions::{FfnBufs, MixerBufs};
use plimsoll_arch::SiteMap;
use plimsoll_device::{HeadOut, ListedTokens};
use plimsoll_memory::Buf;

/// Outputs of a pass's head.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One a pass, on the stack.
pub(crate) enum HeadBufs<'p> {
    /// Log-probabilities over the vocabulary, computed tile by tile.
    Vocabulary { out: HeadOut<'p>, tile: Buf<'p>, listed: Option<ListedTokens<'p>>, own: OwnBufs<'p> },
    /// [R] f32: a critic's values, or a reward model's scores.
    Values(Buf<'p>),
}

/// Inputs and scratch of the head's backward pass.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // One a pass, on the stack.
pub(crate) enum HeadGradBufs<'p> {
    /// Over the vocabulary, tile by tile.
    Vocabulary {
        d_logprobs: Buf<'p>,
        d_entropy: Buf<'p>,
        d_tile: Buf<'p>,
        listed: Option<DivergenceBufs<'p>>,
        whole: Option<WholeBufs<'p>>,
    },
    /// [R]: gradients of the values, in f32 and in the dtype of products.
    Values { d_values: Buf<'p>, d_out: Buf<'p> },
}

/// The buffers that the divergence of each head row follows from, as in `ListedBackward`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DivergenceBufs<'p> {
    /// [R, K] f32.
    pub(crate) slopes: Buf<'p>,
    /// [R] f32.
    pub(crate) rest: Buf<'p>,
    /// [R] f32.
    pub(crate) d: Buf<'p>,
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
    /// Gradient of a part's output before its norm.
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
    /// The residual after attention; `resid` itself if nothing is kept.
    pub(crate) mid: Buf<'p>,
    /// The residual after the layer; `resid` itself if nothing is kept.
    pub(crate) next: Buf<'p>,
    /// Attention's output before its norm, if a norm follows it.
    pub(crate) attn_out: Option<Buf<'p>>,
    /// The feed-forward part's output before its norm, if a norm follows it.
    pub(crate) ffn_out: Option<Buf<'p>>,
    pub(crate) norm_attn: Buf<'p>,
    pub(crate) norm_ffn: Buf<'p>,
    /// Output of the input projection.
    pub(crate) qkv: Buf<'p>,
    /// Output of the mixer before its gates.
    pub(crate) attn: Buf<'p>,
    /// Input of the mixer's output projection: `attn`, or that with gates.
    pub(crate) mixed: Buf<'p>,
    pub(crate) mixer: MixerBufs<'p>,
    pub(crate) gate_up: Buf<'p>,
    pub(crate) product: Buf<'p>,
    pub(crate) ffn: FfnBufs<'p>,
    pub(crate) input: Option<InputBufs<'p>>,
    /// u = A x of each product.
    pub(crate) u: SiteMap<Buf<'p>>,
    /// Scratch for u of one product at a time, of any layer.
    pub(crate) u_once: Option<Buf<'p>>,
}

impl<'p> Backward<'p> {
    /// Returns the buffers of a divergence; none where no tokens are listed.
    pub(crate) fn divergence(&self) -> Option<DivergenceBufs<'p>> {
        match self.head {
            HeadGradBufs::Vocabulary { listed, .. } => listed,
            HeadGradBufs::Values { .. } => None,
        }
    }

    /// Returns the buffers of a divergence over the whole vocabulary; none where none is learned.
    pub(crate) fn whole(&self) -> Option<WholeBufs<'p>> {
        match self.head {
            HeadGradBufs::Vocabulary { whole, .. } => whole,
            HeadGradBufs::Values { .. } => None,
        }
    }

    pub(super) fn bind(
        get: &impl Fn(&str) -> Option<Buf<'p>>,
        buf: &impl Fn(&str) -> Buf<'p>,
    ) -> Backward<'p> {
        let vocabulary = || HeadGradBufs::Vocabulary {
            d_logprobs: buf("head.d_logprobs"),
            d_entropy: buf("head.d_entropy"),
            d_tile: buf("head.d_tile"),
            listed: get("head.slopes").map(|slopes| DivergenceBufs {
                slopes,
                rest: buf("head.rest"),
                d: buf("head.d_divergence"),
            }),
            whole: WholeBufs::bind(get),
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
