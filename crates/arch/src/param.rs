//! The parameters that a model may have, and the products of a layer that adapters may extend.

use crate::LoraTarget;

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

plimsoll_base::names! {
    /// A product of a layer that adapters may extend. The names are those of regions.
    Site {
        /// Queries, keys and values, or all inputs of linear attention.
        Qkv = "qkv",
        /// The output projection of a mixer.
        Output = "output",
        /// Gate and up projections.
        GateUp = "gate_up",
        /// The down projection.
        Down = "down",
    }
}
