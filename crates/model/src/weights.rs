//! Handles to one role's parameters (or gradients), resolved once at start.

use crate::adapters::{Adapters, LayerAdapters};
use crate::params::{Param, ParamTable};
use plimsoll_arch::{ModelSpec, ParamKind, Site, SiteMap};
use plimsoll_base::DType;
use plimsoll_device::{Adapted, Adapter, Codes, DeltaWeights, Fp8, Matrix, MatrixLayout};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Parameters of one layer; also the shape of its gradients.
#[derive(Clone, Copy, Debug)]
pub struct LayerParams<'a> {
    /// [h], before attention
    pub attn_norm: Option<Buf<'a>>,
    /// [a], in a layer whose softmaxes have sinks
    pub sinks: Option<Buf<'a>>,
    pub q_norm: Option<Buf<'a>>,
    pub k_norm: Option<Buf<'a>>,
    /// Linear attention layers only
    pub delta: Option<LayerDelta<'a>>,
    /// [h], after attention
    pub attn_post_norm: Option<Buf<'a>>,
    /// [h], before the feed-forward part
    pub ffn_norm: Option<Buf<'a>>,
    /// [E, h], in a layer with experts
    pub router: Option<Matrix<'a>>,
    /// [E], where experts have biases
    pub router_bias: Option<Buf<'a>>,
    /// In a layer with experts next to its dense part
    pub joined: Option<LayerJoined<'a>>,
    /// [1, h], in a layer with a shared expert
    pub shared_gate: Option<Matrix<'a>>,
    /// [3, E], in a layer whose router scores by sigmoids
    pub router_correction: Option<Buf<'a>>,
    /// [h], after the feed-forward part
    pub ffn_post_norm: Option<Buf<'a>>,
    /// In a layer with an input of its own
    pub input: Option<LayerInput<'a>>,
    /// [1]: multiplies what the layer gives
    pub scale: Option<Buf<'a>>,
    /// The products, those of all experts one after the other.
    pub products: SiteMap<LayerProduct<'a>>,
    /// Adapters of the products
    pub adapters: LayerAdapters<'a>,
}

/// A product of a layer: y = W x + bias.
#[derive(Clone, Copy, Debug)]
pub struct LayerProduct<'a> {
    /// [n, k], or [E n, k] of all experts
    pub w: Matrix<'a>,
    /// [n], or [E n] of all experts
    pub bias: Option<Buf<'a>>,
    /// The codes of `w`, if quantized
    pub(crate) codes: Option<Codes<'a>>,
    /// What the product is computed with instead of `w`, if that is rounded to eight bits
    pub(crate) fp8: Option<Fp8<'a>>,
}

/// Parameters of experts next to a dense part, excluding products.
#[derive(Clone, Copy, Debug)]
pub struct LayerJoined<'a> {
    /// [h]: multiplies what the router reads
    pub router_scale: Buf<'a>,
    /// [E]: multiplies the weights of experts
    pub expert_scale: Buf<'a>,
    /// [h], before the experts
    pub experts_norm: Buf<'a>,
    /// [h], after the experts
    pub experts_post_norm: Buf<'a>,
    /// [h], after the dense part
    pub dense_post_norm: Buf<'a>,
}

/// Parameters of a layer's own input.
#[derive(Clone, Copy, Debug)]
pub struct LayerInput<'a> {
    /// [w, h]
    pub gate: Matrix<'a>,
    /// [h, w]
    pub projection: Matrix<'a>,
    /// [h]
    pub norm: Buf<'a>,
}

/// What the layers' own inputs come from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// [V, L w]
    pub table: Matrix<'a>,
    /// [L w, h]
    pub context: Matrix<'a>,
    /// [w]
    pub norm: Buf<'a>,
}

/// Parameters of linear attention, excluding its products.
#[derive(Clone, Copy, Debug)]
pub struct LayerDelta<'a> {
    /// Convolution, decay and bias, between the input projection and q, k, v and the gates.
    pub inputs: DeltaWeights<'a>,
    /// [dv]: the norm before the output projection.
    pub norm: Buf<'a>,
}

#[derive(Clone, Copy, Debug)]
pub struct CodeBufs<'a> {
    /// `ParamTable::codes.word` u32.
    pub words: Buf<'a>,
    /// `ParamTable::codes.scale` f32, if there are any.
    pub scales: Option<Buf<'a>>,
    /// `ParamTable::widened_elements`: one dequantized matrix at a time.
    pub widened: Buf<'a>,
}

/// All parameters of a decoder over one flat buffer; also the shape of its gradients.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    pub all: Buf<'a>,
    /// Codes of the products' weights, if quantized.
    pub codes: Option<CodeBufs<'a>>,
    /// [V, h]
    pub embed: Matrix<'a>,
    pub layers: Vec<LayerParams<'a>>,
    /// [h]
    pub final_norm: Buf<'a>,
    /// If layers have inputs of their own
    pub inputs: Option<Inputs<'a>>,
    /// [V, h], the embedding itself in a tied model; a critic's is [1, h].
    pub head: Matrix<'a>,
}

impl<'a> Params<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements; `weights` is the dtype of the weights, which
    /// decides the element order of gradients too.
    pub fn bind(spec: &ModelSpec, table: &ParamTable, weights: DType, all: Buf<'a>) -> Params<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat parameter buffer");
        Params::bind_where(spec, table, weights, all, |p| all.slice(p.offset as usize, p.elements as usize))
    }

    /// Resolves the handles, with `slice` locating a parameter, and `all` the start of the flat buffer.
    pub fn bind_where(
        spec: &ModelSpec,
        table: &ParamTable,
        weights: DType,
        all: Buf<'a>,
        slice: impl Fn(&Param) -> Buf<'a> + Copy,
    ) -> Params<'a> {
        let layout = MatrixLayout::of_weights(table.device, weights);
        let layers = (0..spec.layers.len()).map(|l| LayerParams::bind(table, layout, l, slice)).collect();
        Params { layers, ..Params::ends(spec, table, layout, all, slice) }
    }

    /// Returns the weights with these adapters, or with none. A head trained with the adapters replaces the decoder's.
    pub fn with_adapters(mut self, adapters: Option<&Adapters<'a>>) -> Params<'a> {
        self.head = adapters.and_then(|all| all.head).unwrap_or(self.head);
        for (index, layer) in self.layers.iter_mut().enumerate() {
            layer.adapters = adapters.map(|all| all.layers[index]).unwrap_or_default();
        }
        self
    }

    /// Resolves all but the layers: `ends` holds the elements of the flat buffer outside `gap`.
    pub(crate) fn bind_ends(
        spec: ModelSpec,
        table: &ParamTable,
        weights: DType,
        ends: Buf<'a>,
        gap: Range<u64>,
    ) -> Params<'a> {
        let layout = MatrixLayout::of_weights(table.device, weights);
        Params::ends(&spec, table, layout, ends, |p: &Param| {
            let before = if p.offset < gap.start { 0 } else { gap.end - gap.start };
            ends.slice((p.offset - before) as usize, p.elements as usize)
        })
    }

    fn ends(
        spec: &ModelSpec,
        table: &ParamTable,
        layout: MatrixLayout,
        all: Buf<'a>,
        slice: impl Fn(&Param) -> Buf<'a>,
    ) -> Params<'a> {
        let matrix = |kind| {
            let p = find(table, kind, 0);
            Matrix::new(slice(p), p.n as usize, p.k as usize, layout)
        };
        let embed = matrix(ParamKind::Embed);
        let is_critic = table.find(ParamKind::ValueHead, 0).is_some();
        let head = if is_critic {
            matrix(ParamKind::ValueHead)
        } else if spec.tied {
            embed
        } else {
            matrix(ParamKind::Head)
        };
        let final_norm = slice(find(table, ParamKind::FinalNorm, 0));
        let inputs = table.find(ParamKind::InputTable, 0).map(|_| Inputs {
            table: matrix(ParamKind::InputTable),
            context: matrix(ParamKind::InputContext),
            norm: slice(find(table, ParamKind::InputNorm, 0)),
        });
        Params { all, codes: None, embed, layers: Vec::new(), final_norm, inputs, head }
    }
}

impl<'a> LayerParams<'a> {
    /// Returns a product. Panics if the layer has none of this name.
    fn of(&self, site: Site) -> LayerProduct<'a> {
        self.products.get(site).expect("a layer computes products that it has")
    }

    /// Returns the weights of a product.
    pub(crate) fn at(&self, site: Site) -> Matrix<'a> {
        self.of(site).w
    }

    pub(crate) fn bias(&self, site: Site) -> Option<Buf<'a>> {
        self.of(site).bias
    }

    /// Returns the codes of a product's weights, if they are quantized.
    pub(crate) fn codes(&self, site: Site) -> Option<Codes<'a>> {
        self.of(site).codes
    }

    /// Returns a product's rounded weights, if it is computed with eight bits.
    pub(crate) fn fp8(&self, site: Site) -> Option<Fp8<'a>> {
        self.of(site).fp8
    }

    /// Returns a product with its bias and adapter.
    pub(crate) fn adapted(&self, site: Site, bias: Option<Buf<'a>>, adapter: Adapter<'a>) -> Adapted<'a> {
        let LayerProduct { w, codes, .. } = self.of(site);
        Adapted { w, codes, fp8: None, bias, adapter }
    }

    /// Resolves the handles of layer `l`; `slice` is where a parameter is.
    pub(crate) fn bind(
        table: &ParamTable,
        layout: MatrixLayout,
        l: u32,
        slice: impl Fn(&Param) -> Buf<'a>,
    ) -> LayerParams<'a> {
        let vector = |kind| table.find(kind, l).map(&slice);
        let of = |p: &Param| Matrix::new(slice(p), p.n as usize, p.k as usize, layout);
        LayerParams {
            attn_norm: vector(ParamKind::AttnNorm),
            sinks: vector(ParamKind::Sinks),
            q_norm: vector(ParamKind::QNorm),
            k_norm: vector(ParamKind::KNorm),
            delta: vector(ParamKind::DeltaConv).map(|conv| {
                let buf = |kind| slice(find(table, kind, l));
                let (decay, bias) = (buf(ParamKind::DeltaDecay), buf(ParamKind::DeltaBias));
                LayerDelta { inputs: DeltaWeights { conv, decay, bias }, norm: buf(ParamKind::DeltaNorm) }
            }),
            attn_post_norm: vector(ParamKind::AttnPostNorm),
            ffn_norm: vector(ParamKind::FfnNorm),
            router: table.find(ParamKind::Router, l).map(of),
            router_bias: vector(ParamKind::RouterBias),
            joined: vector(ParamKind::RouterScale).map(|router_scale| {
                let buf = |kind| slice(find(table, kind, l));
                LayerJoined {
                    router_scale,
                    expert_scale: buf(ParamKind::ExpertScale),
                    experts_norm: buf(ParamKind::ExpertsNorm),
                    experts_post_norm: buf(ParamKind::ExpertsPostNorm),
                    dense_post_norm: buf(ParamKind::DensePostNorm),
                }
            }),
            shared_gate: table.find(ParamKind::SharedGate, l).map(of),
            router_correction: vector(ParamKind::RouterCorrection),
            ffn_post_norm: vector(ParamKind::FfnPostNorm),
            input: table.find(ParamKind::InputGate, l).map(|gate| LayerInput {
                gate: of(gate),
                projection: of(find(table, ParamKind::InputProjection, l)),
                norm: slice(find(table, ParamKind::InputPostNorm, l)),
            }),
            scale: vector(ParamKind::LayerScale),
            products: SiteMap::of(|site| {
                let w = table.find(ParamKind::Weight(site), l).map(of)?;
                Some(LayerProduct { w, bias: vector(ParamKind::Bias(site)), codes: None, fp8: None })
            }),
            adapters: LayerAdapters::default(),
        }
    }
}

fn find(table: &ParamTable, kind: ParamKind, layer: u32) -> &Param {
    table.find(kind, layer).expect("the table has every parameter of its spec")
}
