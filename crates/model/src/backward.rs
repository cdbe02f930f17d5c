//! The backward pass, written out for this decoder family; recompute per layer is an option, not another path.

use crate::activations::Activations;
use crate::activations::bufs::{Backward, HeadGradBufs};
use crate::activations::mode::Recompute;
use crate::adapters::Adapters;
use crate::decoder::{Decoder, Layers, Way};
use crate::forward;
use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, LayerGrads, MixerGradients, Product};
use crate::parts;
use crate::pass::Pass;
use crate::weights::Params;
use plimsoll_device::{Device, HeadBackward, ListedBackward, Matrix, NormGrads};
use plimsoll_memory::Buf;

/// Derivatives of the loss with respect to the outputs of each head row, [R] each.
#[derive(Clone, Copy, Debug)]
pub enum Derivatives<'d> {
    /// For log-probabilities and entropies, after `head`; with listed tokens also for divergences, else that is empty.
    Vocabulary { inv_temperature: f32, logprobs: &'d [f32], entropy: &'d [f32], divergence: &'d [f32] },
    /// For the values of a critic or a reward model, after `values`.
    Values(&'d [f32]),
}

/// Where gradients go: all parameters, or only adapters if the decoder's weights are frozen.
#[derive(Clone, Copy, Debug)]
pub enum Gradients<'x, 'a> {
    Weights(&'x Params<'a>),
    Adapters(&'x Adapters<'a>),
}

impl<'x, 'a> From<&'x Params<'a>> for Gradients<'x, 'a> {
    fn from(of: &'x Params<'a>) -> Gradients<'x, 'a> {
        Gradients::Weights(of)
    }
}

impl<'x, 'a> From<&'x Adapters<'a>> for Gradients<'x, 'a> {
    fn from(of: &'x Adapters<'a>) -> Gradients<'x, 'a> {
        Gradients::Adapters(of)
    }
}

impl<'x, 'a> Gradients<'x, 'a> {
    /// Returns the flat buffer of all of them.
    pub fn all(self) -> Buf<'a> {
        match self {
            Gradients::Weights(params) => params.all,
            Gradients::Adapters(adapters) => adapters.all,
        }
    }

    /// Returns the gradients of all parameters, unless these are frozen.
    pub fn weights(self) -> Option<&'x Params<'a>> {
        match self {
            Gradients::Weights(params) => Some(params),
            Gradients::Adapters(_) => None,
        }
    }

    /// Returns the gradient of the head, unless it is frozen.
    fn head(self) -> Option<Matrix<'a>> {
        match self {
            Gradients::Weights(params) => Some(params.head),
            Gradients::Adapters(adapters) => adapters.head,
        }
    }
}

/// A part of a backward pass, named after the gradients that it completes; in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The head and the final norm.
    Head,
    /// A layer; the last one comes first.
    Layer(u32),
}

impl Stage {
    /// Returns the stages of a decoder, in order.
    pub fn all(layers: u32) -> impl Iterator<Item = Stage> {
        std::iter::once(Stage::Head).chain((0..layers).rev().map(Stage::Layer))
    }
}

/// Gradient of the input embeddings of a pass's rows, not yet added to the embedding.
#[derive(Clone, Copy, Debug)]
pub struct RowGradients<'p> {
    /// [M, h] f32.
    pub d_input: Buf<'p>,
    /// [M] u32: the token of each row.
    pub ids: Buf<'p>,
}

impl<'p> Activations<'p> {
    /// Returns where `backward_part` leaves the row gradients of a pass of `rows` rows, on any rank.
    pub fn row_gradients(&self, rows: usize) -> RowGradients<'p> {
        let back = self.backward.expect("only the update runs backward");
        let width = back.d_resid.len() / self.ids.len();
        RowGradients { d_input: back.d_resid.slice(0, rows * width), ids: self.ids.slice(0, rows) }
    }
}

/// Adds the gradients of a pass to `grads`, after `layers` and the head of the same pass. Without `add` it writes them,
/// so the first pass of a step needs no zeros; the bits are the same.
pub fn backward<'x, 'a: 'x>(
    dev: &dyn Device,
    from: &dyn Layers<'_>,
    grads: impl Into<Gradients<'x, 'a>>,
    add: bool,
    pass: &Pass<'_>,
    of: Derivatives<'_>,
) {
    let grads = grads.into();
    let weights = grads.weights();
    if let Some(weights) = weights.filter(|weights| !add && weights.head.buf != weights.embed.buf) {
        // Token rows are added to; a tied embedding has been written as the head.
        dev.zero(weights.embed.buf);
    }
    let RowGradients { d_input, ids } = backward_part(dev, from, grads, add, pass, of, &mut |_| {});
    if let Some(weights) = weights {
        dev.embed_backward(d_input, ids, weights.embed);
    }
}

/// Runs `backward`, but returns the row gradients, valid until the next pass, instead of adding them. Calls `after`
/// once the operations of each stage are issued. With frozen weights the row gradients, then useless, are not computed.
pub fn backward_part<'x, 'a: 'x, 'p>(
    dev: &dyn Device,
    from: &dyn Layers<'_>,
    grads: impl Into<Gradients<'x, 'a>>,
    add: bool,
    pass: &Pass<'p>,
    of: Derivatives<'_>,
    after: &mut dyn FnMut(Stage),
) -> RowGradients<'p> {
    let (grads, decoder) = (grads.into(), from.decoder());
    let spec = &decoder.spec;
    let (m, h) = (pass.rows, spec.hidden as usize);
    let back = pass.acts.backward.expect("only the update runs backward");
    let d_resid = back.d_resid.slice(0, m * h);
    dev.zero(d_resid);
    let norm = grads.weights().map(|params| params.final_norm);
    let head = HeadPass { dev, decoder, grad: grads.head(), norm, add, pass, back: &back };
    head.run(of, d_resid);
    after(Stage::Head);
    let d_out = back.d_out.slice(0, m * h);
    dev.cast(d_resid, d_out);
    let kept = pass.acts.kept(m);
    let of_tower = pass.images.is_some_and(|images| images.d_vectors.is_some());
    for l in (0..spec.layers.len() as usize).rev() {
        let bufs = pass.acts.layer(spec, l as u32, m);
        let layer = LayerPass {
            dev,
            decoder,
            w: &from.layer(dev, l, Way::Backward),
            index: l as u32,
            pass,
            bufs: &bufs,
        };
        kept.inspect(|kept| kept.before_backward(dev, l));
        pass.images.inspect(|images| images.add_after_backward(dev, l, d_resid));
        if layer.is_made_again() {
            forward::layer_to_gates(&layer);
        }
        let grads = match grads {
            Gradients::Weights(params) => LayerGrads::Weights(&params.layers[l]),
            Gradients::Adapters(adapters) => LayerGrads::Adapters(&adapters.layers[l]),
        };
        if let Some(scale) = layer.w.scale {
            dev.scale_by(d_resid, scale);
            dev.cast(d_resid, d_out);
        }
        let step = LayerBackward { layer: &layer, grads, add, back: &back, d_resid, d_out };
        parts::inputs::backward(&step);
        ffn(&step);
        // Nothing needs the gradient of the first layer's input if embeddings and towers are frozen.
        mixer(&step, l > 0 || step.weights().is_some() || of_tower);
        after(Stage::Layer(l as u32));
    }
    pass.images.inspect(|images| images.put_backward(dev, d_resid));
    if let Some(factor) = decoder.embedding_factor().filter(|_| grads.weights().is_some()) {
        dev.scale(d_resid, factor);
    }
    RowGradients { d_input: d_resid, ids: pass.ids }
}

/// The backward pass of the head and of the final norm.
struct HeadPass<'x, 'a, 'p> {
    dev: &'x dyn Device,
    decoder: &'x Decoder<'a>,
    /// Gradient of the head; none if it is frozen.
    grad: Option<Matrix<'a>>,
    /// Gradient of the final norm.
    norm: Option<Buf<'a>>,
    add: bool,
    pass: &'x Pass<'p>,
    back: &'x Backward<'p>,
}

impl HeadPass<'_, '_, '_> {
    /// Adds the gradient of the head rows' inputs to `d_resid`.
    fn run(&self, of: Derivatives<'_>, d_resid: Buf<'_>) {
        let Self { dev, decoder, grad, norm: dw, add, pass, back } = *self;
        let (r, h) = (pass.head_rows, decoder.spec.hidden as usize);
        if r == 0 {
            if !add {
                grad.map(|grad| grad.buf).into_iter().chain(dw).for_each(|grad| dev.zero(grad));
            }
            return;
        }
        let acts = &pass.acts;
        let (input, norm) = (acts.head_input.slice(0, r * h), acts.head_norm.slice(0, r * h));
        let (d_norm, dx) = (back.head_d_norm.slice(0, r * h), back.head_d_input.slice(0, r * h));
        match of {
            Derivatives::Vocabulary { inv_temperature, logprobs, entropy, divergence } => {
                self.vocabulary(norm, d_norm, inv_temperature, [logprobs, entropy, divergence]);
            }
            Derivatives::Values(values) => self.values(norm, d_norm, values),
        }
        dev.zero(dx);
        let to = NormGrads { dx, rounded: None, dw, add, rstd: back.head_rstd.slice(0, r) };
        dev.rms_norm_backward(input, decoder.norm(decoder.params.final_norm), d_norm, to);
        dev.scatter_add_rows(dx, acts.head_rows.slice(0, r), d_resid);
    }

    fn vocabulary(&self, x: Buf<'_>, dx: Buf<'_>, inv_temperature: f32, derivatives: [&[f32]; 3]) {
        let Self { dev, decoder, grad, add, pass, back, .. } = *self;
        let r = pass.head_rows;
        let HeadGradBufs::Vocabulary { d_logprobs, d_entropy, d_tile, .. } = back.head else {
            panic!("this pass ends in values");
        };
        let [dlogprobs, dentropy] = [d_logprobs, d_entropy].map(|b| b.slice(0, r));
        let divergence = back.divergence().zip(pass.listed());
        let listed = divergence.map(|(of, listed)| ListedBackward {
            listed,
            slopes: of.slopes.slice(0, listed.ids.len()),
            rest: of.rest.slice(0, r),
            d: of.d.slice(0, r),
        });
        let whole = pass.divergence_backward();
        let further = listed.map(|of| of.d).into_iter().chain(whole.map(|of| of.d));
        for (to, from) in [dlogprobs, dentropy].into_iter().chain(further).zip(derivatives) {
            assert_eq!(from.len(), r, "one derivative a head row");
            dev.write_f32(to, 0, from);
        }
        let dtile = (dev.kind().head_gradient_tile)(r, decoder.spec.vocab as usize) as usize;
        dev.head_backward(HeadBackward {
            x,
            w: decoder.params.head,
            targets: pass.acts.targets.expect("the update has targets").slice(0, r),
            logits: pass.logits(decoder, inv_temperature),
            head_out: pass.head_out(),
            dlogprobs,
            dentropy,
            listed,
            whole,
            tile: pass.vocabulary().1,
            dtile: d_tile.slice(0, dtile),
            pack: back.pack,
            dx,
            grad,
            add,
        });
    }

    fn values(&self, x: Buf<'_>, dx: Buf<'_>, derivatives: &[f32]) {
        let Self { dev, decoder, grad, add, pass, back, .. } = *self;
        let r = pass.head_rows;
        assert_eq!(derivatives.len(), r, "one derivative a head row");
        let HeadGradBufs::Values { d_values, d_out } = back.head else {
            panic!("this pass ends in a vocabulary");
        };
        let (d_values, d_out) = (d_values.slice(0, r), d_out.slice(0, r));
        dev.write_f32(d_values, 0, derivatives);
        dev.cast(d_values, d_out);
        if let Some(grad) = grad {
            dev.matmul_dw(d_out, x, grad, add, back.pack);
        }
        dev.matmul_dx(d_out, decoder.params.head, dx, false);
    }
}

/// Computes the gradients of a layer's feed-forward part, and adds its input gradient.
fn ffn(step: &LayerBackward<'_, '_, '_>) {
    let LayerPass { w, bufs, pass, .. } = *step.layer;
    let d_norm = step.back.d_norm.slice(0, bufs.norm_ffn.len());
    if pass.acts.mode.recompute() == Some(Recompute::Cheap) {
        parts::mix_again(step.layer);
        step.layer.add_output();
        step.layer.part_input(bufs.mid, w.ffn_norm, bufs.norm_ffn);
        parts::ffn_inputs_again(step.layer);
    }
    parts::add_again(step.layer);
    step.post_norm_backward(bufs.ffn_out, |w| w.ffn_post_norm);
    parts::ffn_backward(step, d_norm);
    step.input_backward(bufs.mid, |w| w.ffn_norm, d_norm);
}

/// Computes the gradients of a layer's mixer, and adds its input gradient if needed.
fn mixer(step: &LayerBackward<'_, '_, '_>, is_needed: bool) {
    let LayerPass { w, bufs, pass, .. } = *step.layer;
    let d_norm = step.back.d_norm.slice(0, bufs.norm_attn.len());
    let (d_mixed, d_first) =
        (step.back.d_attn.slice(0, bufs.mixed.len()), step.back.d_qkv.slice(0, bufs.qkv.len()));
    if pass.acts.mode.recompute() == Some(Recompute::Cheap) {
        step.layer.part_input(bufs.resid, w.attn_norm, bufs.norm_attn);
    }
    step.post_norm_backward(bufs.attn_out, |w| w.attn_post_norm);
    let output = Product { site: step.layer.output(), x: bufs.mixed, dy: step.d_out };
    step.output_gradients(output);
    let d_input = is_needed.then_some(d_norm);
    parts::mix_backward(step, MixerGradients { output, d_mixed, d_first, d_input });
    if is_needed {
        step.input_backward(bufs.resid, |w| w.attn_norm, d_norm);
    }
}
