//! A decoder: its shape, weights and per-layer computation, and the trait through which a pass gets its layers.

use crate::pass::Pass;
use crate::rope;
use crate::weights::{LayerParams, Params};
use plimsoll_arch::{AttentionSpec, ModelSpec, Multipliers, Site};
use plimsoll_base::DType;
use plimsoll_device::{Adapter, Device, Logits, Matrix, Norm, Rotation};
use plimsoll_memory::Buf;
use std::borrow::Cow;

/// A decoder: its shape, one role's weights, and the rotary table.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    pub spec: ModelSpec,
    /// Dtype of weights and of the inputs of products.
    pub dtype: DType,
    pub params: Params<'a>,
    /// Filled by `rope::fill`.
    pub rope: Buf<'a>,
}

/// Direction of a pass through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// First layer to last.
    Forward,
    /// Last layer to first.
    Backward,
}

/// Gives passes a decoder layer by layer, wherever its weights are stored.
pub trait Layers<'a> {
    /// Returns what is resident during the whole pass: the shape, the embedding, the final norm and the head.
    fn decoder(&self) -> &Decoder<'a>;

    /// Returns the weights of layer `index`. A pass asks for layers one by one, each once the operations of the one
    /// before are issued; the weights are valid until it asks for the next.
    fn layer(&self, dev: &dyn Device, index: usize, way: Way) -> LayerParams<'a>;
}

impl<'a> Layers<'a> for Decoder<'a> {
    fn decoder(&self) -> &Decoder<'a> {
        self
    }

    fn layer(&self, _: &dyn Device, index: usize, _: Way) -> LayerParams<'a> {
        self.params.layers[index]
    }
}

impl<'a> Layers<'a> for &Decoder<'a> {
    fn decoder(&self) -> &Decoder<'a> {
        self
    }

    fn layer(&self, dev: &dyn Device, index: usize, way: Way) -> LayerParams<'a> {
        (**self).layer(dev, index, way)
    }
}

impl<'a> Decoder<'a> {
    /// Returns it with a head over the first `vocab` tokens: its distribution is that among them. `None` is all tokens.
    pub fn over(&self, vocab: Option<u32>) -> Cow<'_, Decoder<'a>> {
        match vocab {
            Some(vocab) if (vocab as usize) < self.params.head.n => {
                let params = Params { head: self.head_over(vocab), ..self.params.clone() };
                Cow::Owned(Decoder { params, ..self.clone() })
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns a number that follows from which adapters its layers read, and how: a pass that is recorded is one of a
    /// decoder with this number.
    pub fn adapters_key(&self) -> u64 {
        let each = |of: &LayerParams<'a>| {
            let (of, mixed) = (of.adapters, u64::from(of.adapters.slots.is_some()));
            let key = move |a: Adapter<'a>| [a.a.buf.offset(), u64::from(a.scale.to_bits()), mixed];
            Site::ALL.into_iter().filter_map(move |site| of.added(site)).flat_map(key)
        };
        self.params
            .layers
            .iter()
            .flat_map(each)
            .fold(0, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }

    /// Returns the rows of its head that are those of the first `vocab` tokens.
    pub(crate) fn head_over(&self, vocab: u32) -> Matrix<'a> {
        let Matrix { buf, n, k, layout } = self.params.head;
        let vocab = vocab as usize;
        assert!(vocab <= n, "{vocab} tokens of a vocabulary of {n}");
        Matrix::new(buf.slice(0, layout.elements(vocab as u64, k as u64) as usize), vocab, k, layout)
    }

    /// Returns a norm of the residual stream, which here is 1 / `multipliers.residual` of the one in the family's
    /// formulas, so that additions need no factor. A norm with an epsilon scaled to match gives the same result.
    pub(crate) fn norm<'w>(&self, w: Buf<'w>) -> Norm<'w> {
        let residual = self.spec.multipliers.residual;
        let eps = self.spec.rms_eps / (residual * residual);
        Norm { w, eps, offset: self.spec.architecture().norm_offset }
    }

    /// Returns the factor on embeddings, if it is not 1.
    pub(crate) fn embedding_factor(&self) -> Option<f32> {
        let root = match (self.spec.architecture().scales_embedding, self.dtype) {
            (false, _) => 1.0,
            // Rounded to the weights' dtype, as in the reference.
            (true, DType::Bf16) => half::bf16::from_f32((self.spec.hidden as f32).sqrt()).to_f32(),
            (true, _) => (self.spec.hidden as f32).sqrt(),
        };
        let factor = root * self.spec.multipliers.embedding / self.spec.multipliers.residual;
        (factor != 1.0).then_some(factor)
    }

    /// Returns the soft cap and the factor of logits, excluding temperature, and the tokens that it suppresses.
    pub(crate) fn logits(&self) -> Logits<'static> {
        let Multipliers { logits, logit_cap, .. } = self.spec.multipliers;
        Logits {
            factor: 1.0 / logits,
            cap: logit_cap,
            suppressed: self.spec.suppressed,
            ..Logits::times(1.0)
        }
    }

    /// Returns how a layer's heads are rotated in a pass.
    pub(crate) fn rotation<'r>(&self, of: &AttentionSpec, layer: u32, pass: &Pass<'r>) -> Rotation<'r>
    where
        'a: 'r,
    {
        // Attention divides scores by sqrt(d).
        let q_scale = of.scale.map_or(1.0, |scale| scale * (of.head_dim as f32).sqrt());
        let width = of.rotated.map(|width| width as usize);
        let angles = rope::of_layer(&self.spec, self.rope, layer);
        let axes = angles.and(pass.images).map(|images| images.axes(pass.rows));
        let q_factors = angles.and(rope::query_factors(&self.spec, self.rope));
        Rotation { angles, width, q_scale, q_factors, axes }
    }
}
