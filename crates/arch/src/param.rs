//! The parameters that a model may have, and the products of a layer that adapters may extend.

use crate::{LoraShape, LoraTarget, ModelSpec};

/// A parameter of a model, in a layer or outside of layers.
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
    /// [d], or [a d] if the norm is over rows
    QNorm,
    /// [d], or [k d] if the norm is over rows
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
    /// [E, h]: scores the experts
    Router,
    /// [2f, h], or [E 2f, h]: all experts, one after the other
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
    /// [S r, K]: A of all adapters of a product
    AdapterA(Site),
    /// [n, r]: B of one linear layer's adapter
    AdapterB(LoraTarget),
    /// [n, k], a linear layer of an MLP actor; `layer` is its index
    ActorLinear,
    /// [n], a bias of an MLP actor
    ActorBias,
    /// [n, k], a linear layer of an MLP critic
    CriticLinear,
    /// [n], a bias of an MLP critic
    CriticBias,
    /// [A], Gaussian actors only
    LogStd,
}

impl ParamKind {
    /// Returns the product that this parameter is the weight of, if adapters may extend it.
    pub const fn site(self) -> Option<Site> {
        match self {
            ParamKind::Qkv => Some(Site::Qkv),
            ParamKind::Output => Some(Site::Output),
            ParamKind::GateUp => Some(Site::GateUp),
            ParamKind::Down => Some(Site::Down),
            _ => None,
        }
    }

    /// Returns whether a layer multiplies rows by this parameter.
    pub const fn is_product(self) -> bool {
        self.site().is_some() || matches!(self, ParamKind::Router)
    }
}

/// A product of a layer that adapters may extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Queries, keys and values.
    Qkv,
    /// The output projection of attention.
    Output,
    /// Gate and up projections.
    GateUp,
    /// The down projection.
    Down,
}

impl Site {
    /// All sites, in the order in which a layer computes them.
    pub const ALL: [Site; 4] = [Site::Qkv, Site::Output, Site::GateUp, Site::Down];

    /// Returns the linear layers that the product consists of, in the order of its outputs.
    pub const fn layers(self) -> &'static [LoraTarget] {
        match self {
            Site::Qkv => &[LoraTarget::Q, LoraTarget::K, LoraTarget::V],
            Site::Output => &[LoraTarget::O],
            Site::GateUp => &[LoraTarget::Gate, LoraTarget::Up],
            Site::Down => &[LoraTarget::Down],
        }
    }

    /// Returns the targets that have an adapter, each with the index of its first output (within one expert, if any).
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

    /// Returns S r, the width of A x; 0 without an adapter.
    pub fn width(self, lora: LoraShape) -> usize {
        self.layers().iter().filter(|target| lora.targets.contains(**target)).count() * lora.rank as usize
    }

    /// Returns whether each expert of a layer has its own.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Site::GateUp | Site::Down)
    }
}
