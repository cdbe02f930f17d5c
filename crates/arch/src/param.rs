//! The parameters that a model may have, and the products of a layer.

use crate::{LoraShape, LoraTarget, ModelSpec};

/// Names one parameter of a model, in a layer or outside of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// [V, h]
    Embed,
    /// [h]: before attention
    AttnNorm,
    /// [(a + 2k) d, h]
    Qkv,
    /// [(a + 2k) d]
    QkvBias,
    /// [d], or [a d] of a norm over rows
    QNorm,
    /// [d], or [k d] of a norm over rows
    KNorm,
    /// [4 C], linear attention only: C rows of taps
    DeltaConv,
    /// [H], linear attention only: the logarithm of A
    DeltaDecay,
    /// [H], linear attention only
    DeltaBias,
    /// [dv], linear attention only: the norm before `Output`
    DeltaNorm,
    /// [h, a d]
    Output,
    /// [h]
    OutputBias,
    /// [h]: after attention
    AttnPostNorm,
    /// [h]: before the feed-forward part
    FfnNorm,
    /// [E, h]: which experts compute a row
    Router,
    /// [2f, h], or [E 2f, h]: those of all experts, one after the other
    GateUp,
    /// [2f]
    GateUpBias,
    /// [h, f], or [E h, f]
    Down,
    /// [h]
    DownBias,
    /// [h]: after the feed-forward part
    FfnPostNorm,
    /// [h]
    FinalNorm,
    /// [V, h], untied models only
    Head,
    /// [1, h], critics and reward models only
    ValueHead,
    /// [S r, K]: A of the adapters of a product
    AdapterA(Site),
    /// [n, r]: B of one
    AdapterB(LoraTarget),
    /// [n, k], a linear map of an MLP's actor; `layer` counts them
    ActorLinear,
    /// [n]
    ActorBias,
    /// [n, k], of its critic
    CriticLinear,
    /// [n]
    CriticBias,
    /// [A], Gaussian actors only
    LogStd,
}

impl ParamKind {
    /// Returns the product that it is the weights of, if adapters may lie next to them.
    pub const fn site(self) -> Option<Site> {
        match self {
            ParamKind::Qkv => Some(Site::Qkv),
            ParamKind::Output => Some(Site::Output),
            ParamKind::GateUp => Some(Site::GateUp),
            ParamKind::Down => Some(Site::Down),
            _ => None,
        }
    }

    /// Returns whether a layer multiplies rows by it.
    pub const fn is_product(self) -> bool {
        self.site().is_some() || matches!(self, ParamKind::Router)
    }
}

/// A product of a layer that adapters may lie next to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Of queries, keys and values.
    Qkv,
    /// Of what attention gives.
    Output,
    /// Of gates and what they multiply.
    GateUp,
    /// Of what those give.
    Down,
}

impl Site {
    /// All of them, in the order in which a layer computes them.
    pub const ALL: [Site; 4] = [Site::Qkv, Site::Output, Site::GateUp, Site::Down];

    /// Returns the linear layers that it consists of, by their outputs.
    pub const fn layers(self) -> &'static [LoraTarget] {
        match self {
            Site::Qkv => &[LoraTarget::Q, LoraTarget::K, LoraTarget::V],
            Site::Output => &[LoraTarget::O],
            Site::GateUp => &[LoraTarget::Gate, LoraTarget::Up],
            Site::Down => &[LoraTarget::Down],
        }
    }

    /// Returns those that have an adapter, each with the first of its outputs; in a layer of experts, of each of these.
    pub fn targets(
        self,
        spec: &ModelSpec,
        lora: LoraShape,
        layer: u32,
    ) -> impl Iterator<Item = (LoraTarget, usize)> {
        let mut first = 0;
        let each = self.layers().iter().map(move |&target| {
            let start = first;
            first += target.widths(spec, layer).1 as usize;
            (target, start)
        });
        each.filter(move |(target, _)| lora.targets.contains(*target))
    }

    /// Returns S r, the width of u; 0 without an adapter.
    pub fn width(self, lora: LoraShape) -> usize {
        self.layers().iter().filter(|target| lora.targets.contains(**target)).count() * lora.rank as usize
    }

    /// Returns whether a layer with experts has it once for each of them.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Site::GateUp | Site::Down)
    }
}
