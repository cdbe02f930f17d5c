//! The parameters that a model may have.

use crate::{LoraTarget, Site, TowerParam};

/// A parameter of a model, in a layer or outside of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// [V, h]
    Embed,
    /// [h]: before attention
    AttnNorm,
    /// [n, k]: the weights of a product, or [E n, k]: those of all experts, one after the other
    Weight(Site),
    /// [n]: the bias of a product, or [E n]: those of all experts, one after the other
    Bias(Site),
    /// [a]: logits that take part in the softmax of heads, and have no value
    Sinks,
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
    /// [h]: after attention
    AttnPostNorm,
    /// [h]: before the feed-forward part
    FfnNorm,
    /// [E, h]: scores the experts
    Router,
    /// [E]: the bias of a router
    RouterBias,
    /// [h], experts next to a dense part only: multiplies what the router reads
    RouterScale,
    /// [E], experts next to a dense part only: multiplies the weights of experts
    ExpertScale,
    /// [h], experts next to a dense part only: before the experts
    ExpertsNorm,
    /// [h], experts next to a dense part only: after the experts
    ExpertsPostNorm,
    /// [h], a dense part next to experts only: after the dense part
    DensePostNorm,
    /// [1, h]: scores what the shared expert of a layer adds
    SharedGate,
    /// [3, E], routers of sigmoids only: added to scores for the choice, in three terms each; never trained
    RouterCorrection,
    /// [heads d, width of the latent of queries]: queries of what chooses keys, which plans alone have
    IndexQuery,
    /// [d, h]: its keys
    IndexKey,
    /// [d]: the weights of their norm
    IndexNorm,
    /// [d]: what the norm adds
    IndexNormBias,
    /// [heads, h]: the weights of its heads
    IndexWeights,
    /// [h]: after the feed-forward part
    FfnPostNorm,
    /// [V, L w]: the layers' own inputs of each token
    InputTable,
    /// [L w, h]: the layers' own inputs from embeddings
    InputContext,
    /// [w]: the norm of what `InputContext` gives
    InputNorm,
    /// [w, h]: gates a layer's own input
    InputGate,
    /// [h, w]: what a layer's own input adds
    InputProjection,
    /// [h]: after a layer's own input
    InputPostNorm,
    /// [1]: multiplies what the layer gives; never trained
    LayerScale,
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
    /// A parameter of a tower over images; `layer` is its layer or merger
    Tower(TowerParam),
    /// [S r, K]: A of all adapters of a tower's product; `layer` is its layer or merger
    TowerA(TowerParam),
    /// [n, r]: B of one linear layer's adapter, by its number in the product
    TowerB(TowerParam, u8),
}

impl ParamKind {
    /// Returns the product that this parameter is the weight of, if adapters may extend it.
    pub fn site(self) -> Option<Site> {
        match self {
            ParamKind::Weight(site) => Some(site),
            _ => None,
        }
    }

    /// Returns the terms that a number of this parameter is the sum of: 3 of bf16 are an f32, as files have it.
    pub fn terms(self) -> u32 {
        if self == ParamKind::RouterCorrection { 3 } else { 1 }
    }

    /// Returns whether no training changes this parameter.
    pub fn is_fixed(self) -> bool {
        matches!(self, ParamKind::RouterCorrection | ParamKind::LayerScale)
    }

    /// Returns whether a layer multiplies rows by this parameter.
    pub fn is_product(self) -> bool {
        use ParamKind::{IndexKey, IndexQuery, IndexWeights, InputGate, InputProjection, Router, SharedGate};
        self.site().is_some()
            || matches!(self, Router | SharedGate | InputGate | InputProjection)
            || matches!(self, IndexQuery | IndexKey | IndexWeights)
    }
}
