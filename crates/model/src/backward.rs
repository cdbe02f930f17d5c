//! The backward pass, written out for this decoder family; recompute per layer is an option, not another path.

use crate::activations::bufs::{Backward, HeadGradBufs, LayerBufs};
use crate::activations::{Activations, Recompute};
use crate::adapters::{Adapters, LayerAdapters};
use crate::decoder::Decoder;
use crate::delta::DeltaGradients;
use crate::experts::ExpertGradients;
use crate::forward;
use crate::mixer::{self, qk_norm};
use crate::pass::Pass;
use crate::weights::{LayerParams, Params};
use plimsoll_arch::{ModelSpec, Site};
use plimsoll_device::{
    AdaptBackward, Adapter, AttentionBackward, Device, GateHeadsBackward, HeadBackward, Matrix, NormGrads,
    QkNormBackward, RopeBackward, sizes,
};
use plimsoll_memory::Buf;

/// Derivatives of the loss by the numbers of each head row, [R] each.
#[derive(Clone, Copy, Debug)]
pub enum Derivatives<'d> {
    /// By log-probabilities and entropies, after `head`.
    Vocabulary { inv_temperature: f32, logprobs: &'d [f32], entropy: &'d [f32] },
    /// By the values of a critic or a reward model, after `values`.
    Values(&'d [f32]),
}

/// Where gradients go: those of all parameters, or of adapters alone, whose decoder's weights are frozen.
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
    /// Returns the flat buffer that they lie in.
    pub fn all(self) -> Buf<'a> {
        match self {
            Gradients::Weights(params) => params.all,
            Gradients::Adapters(adapters) => adapters.all,
        }
    }

    /// Returns those of all parameters, unless they are frozen.
    pub fn weights(self) -> Option<&'x Params<'a>> {
        match self {
            Gradients::Weights(params) => Some(params),
            Gradients::Adapters(_) => None,
        }
    }

    /// Returns that of the head, unless it is frozen.
    fn head(self) -> Option<Matrix<'a>> {
        match self {
            Gradients::Weights(params) => Some(params.head),
            Gradients::Adapters(adapters) => adapters.head,
        }
    }
}

/// What a backward pass has computed the gradients of, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The head, and the last norm.
    Head,
    /// A layer; the last one first.
    Layer(u32),
}

impl Stage {
    /// Returns the stages of a decoder, in order.
    pub fn all(layers: u32) -> impl Iterator<Item = Stage> {
        std::iter::once(Stage::Head).chain((0..layers).rev().map(Stage::Layer))
    }
}

/// Where a backward pass leaves the gradient of its rows' embeddings, when it does not add them.
#[derive(Clone, Copy, Debug)]
pub struct RowGradients<'p> {
    /// [M, h] f32.
    pub d_input: Buf<'p>,
    /// [M] u32: the token of each row.
    pub ids: Buf<'p>,
}

impl<'p> Activations<'p> {
    /// Returns where `backward_part` leaves the row gradients of a pass of `rows` rows: in the arrays of any rank.
    pub fn row_gradients(&self, rows: usize) -> RowGradients<'p> {
        let back = self.backward.expect("only the update runs backward");
        let width = back.d_resid.len() / self.ids.len();
        RowGradients { d_input: back.d_resid.slice(0, rows * width), ids: self.ids.slice(0, rows) }
    }
}

/// Adds the gradients of a pass to `grads`, after `layers` and the head of the same pass; or writes them, unless `add`: the
/// first pass of a step need not find zeros. The bits are the same.
pub fn backward<'x, 'a: 'x>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    grads: impl Into<Gradients<'x, 'a>>,
    add: bool,
    pass: &Pass<'_>,
    of: Derivatives<'_>,
) {
    let grads = grads.into();
    whole_backward(dev, grads, add, || backward_part(dev, decoder, grads, add, pass, of, &mut |_| {}));
}

/// `part`, and the gradients of the rows' embeddings.
pub(crate) fn whole_backward<'p>(
    dev: &dyn Device,
    grads: Gradients<'_, '_>,
    add: bool,
    part: impl FnOnce() -> RowGradients<'p>,
) {
    let weights = grads.weights();
    if let Some(weights) = weights.filter(|weights| !add && weights.head.buf != weights.embed.buf) {
        // Rows of tokens are added to; a tied embedding has been written as the head.
        dev.zero(weights.embed.buf);
    }
    let RowGradients { d_input, ids } = part();
    if let Some(weights) = weights {
        dev.embed_backward(d_input, ids, weights.embed);
    }
}

/// `backward` without the gradients of the rows' embeddings, which it returns: until the next pass they lie in its arrays. `after` is
/// called after the operations of each stage. Where weights are frozen they are of no use to anything, and not computed.
pub fn backward_part<'x, 'a: 'x, 'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    grads: impl Into<Gradients<'x, 'a>>,
    add: bool,
    pass: &Pass<'p>,
    of: Derivatives<'_>,
    after: &mut dyn FnMut(Stage),
) -> RowGradients<'p> {
    let walk = Walk { weights: &mut |l| decoder.params.layers[l], after };
    backward_of(dev, decoder, grads.into(), add, pass, of, walk)
}

/// The way back through the layers.
pub(crate) struct Walk<'s, 'w> {
    /// Gives the weights of a layer; the last is asked for first, after the head.
    pub(crate) weights: &'s mut dyn FnMut(usize) -> LayerParams<'w>,
    /// Is called after the operations of each stage.
    pub(crate) after: &'s mut dyn FnMut(Stage),
}

/// `backward_part` with layers that are asked for one after the other.
pub(crate) fn backward_of<'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    grads: Gradients<'_, '_>,
    add: bool,
    pass: &Pass<'p>,
    of: Derivatives<'_>,
    walk: Walk<'_, '_>,
) -> RowGradients<'p> {
    let (spec, Walk { weights, after }) = (&decoder.spec, walk);
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
    for l in (0..spec.layers as usize).rev() {
        let bufs = pass.acts.layer(spec, l, m);
        let w = &weights(l);
        kept.inspect(|kept| kept.before_backward(dev, l));
        if pass.acts.mode.recompute().is_some_and(Recompute::is_of_layers) {
            forward::layer_to_gates(dev, decoder, (w, l as u32), pass, &bufs);
        }
        let g = match grads {
            Gradients::Weights(params) => LayerGrads::Weights(&params.layers[l]),
            Gradients::Adapters(adapters) => LayerGrads::Adapters(&adapters.layers[l]),
        };
        let step = LayerBackward {
            dev,
            decoder,
            w,
            l: l as u32,
            g,
            is_last: l == 0 && grads.weights().is_none(),
            add,
            pass,
            bufs: &bufs,
            back: &back,
            d_resid,
            d_out,
        };
        step.ffn();
        step.attention();
        after(Stage::Layer(l as u32));
    }
    if let Some(factor) = decoder.embedding_factor().filter(|_| grads.weights().is_some()) {
        dev.scale(d_resid, factor);
    }
    RowGradients { d_input: d_resid, ids: pass.ids }
}

/// The backward pass of the head and of the last norm.
struct HeadPass<'x, 'a, 'p> {
    dev: &'x dyn Device,
    decoder: &'x Decoder<'a>,
    /// Of the head; none where it is frozen.
    grad: Option<Matrix<'a>>,
    /// Of the last norm.
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
            Derivatives::Vocabulary { inv_temperature, logprobs, entropy } => {
                self.vocabulary(norm, d_norm, inv_temperature, [logprobs, entropy]);
            }
            Derivatives::Values(values) => self.values(norm, d_norm, values),
        }
        dev.zero(dx);
        let to = NormGrads { dx, rounded: None, dw, add, rstd: back.head_rstd.slice(0, r) };
        dev.rms_norm_backward(input, decoder.norm(decoder.params.final_norm), d_norm, to);
        dev.scatter_add_rows(dx, acts.head_rows.slice(0, r), d_resid);
    }

    fn vocabulary(&self, x: Buf<'_>, dx: Buf<'_>, inv_temperature: f32, derivatives: [&[f32]; 2]) {
        let Self { dev, decoder, grad, add, pass, back, .. } = *self;
        let r = pass.head_rows;
        let HeadGradBufs::Vocabulary { d_logprobs, d_entropy, d_tile } = back.head else {
            panic!("this pass ends in values");
        };
        let [dlogprobs, dentropy] = [d_logprobs, d_entropy].map(|b| b.slice(0, r));
        for (to, from) in [dlogprobs, dentropy].into_iter().zip(derivatives) {
            assert_eq!(from.len(), r, "one derivative a head row");
            dev.write_f32(to, 0, from);
        }
        let dtile = sizes::head_gradient_tile(dev.kind(), r, decoder.spec.vocab as usize) as usize;
        dev.head_backward(HeadBackward {
            x,
            w: decoder.params.head,
            targets: pass.acts.targets.expect("the update has targets").slice(0, r),
            logits: decoder.logits().and_times(inv_temperature),
            head_out: pass.head_out(),
            dlogprobs,
            dentropy,
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

/// Where the gradients of a layer go.
#[derive(Clone, Copy)]
enum LayerGrads<'x, 'a> {
    Weights(&'x LayerParams<'a>),
    Adapters(&'x LayerAdapters<'a>),
}

impl<'x, 'a> LayerGrads<'x, 'a> {
    fn weights(self) -> Option<&'x LayerParams<'a>> {
        match self {
            LayerGrads::Weights(params) => Some(params),
            LayerGrads::Adapters(_) => None,
        }
    }
}

/// The backward pass of one layer; `d_resid` is the gradient of its output, then of its input, and `d_out` the same as
/// products read it.
struct LayerBackward<'x, 'a, 'p> {
    dev: &'x dyn Device,
    decoder: &'x Decoder<'a>,
    w: &'x LayerParams<'a>,
    l: u32,
    g: LayerGrads<'x, 'a>,
    /// True if nothing needs the gradient of the layer's input.
    is_last: bool,
    add: bool,
    pass: &'x Pass<'p>,
    bufs: &'x LayerBufs<'p>,
    back: &'x Backward<'p>,
    d_resid: Buf<'p>,
    d_out: Buf<'p>,
}

/// A product of a layer: y = x W^T, with the gradient of y.
#[derive(Clone, Copy)]
struct Product<'b> {
    site: Site,
    x: Buf<'b>,
    dy: Buf<'b>,
}

impl<'a, 'p> LayerBackward<'_, 'a, 'p> {
    fn ffn(&self) {
        let Self { dev, w, bufs, back, d_out, .. } = *self;
        let (m, h, f) = (self.pass.rows, self.spec().hidden as usize, self.spec().ffn as usize);
        let d_norm = back.d_norm.slice(0, m * h);
        if forward::recomputes(self.pass.acts.mode) {
            mixer::gate(dev, self.spec(), bufs);
            forward::attention_output(dev, self.decoder, w, bufs);
            forward::part_input(dev, self.decoder, bufs.mid, w.ffn_norm, bufs.norm_ffn);
        }
        self.post_norm_backward(w.ffn_post_norm, bufs.ffn_out, |g| g.ffn_post_norm);
        if let Some(experts) = forward::expert_layer(dev, self.decoder, (w, self.l), bufs) {
            let (weights, add, pack) = (self.g.weights(), self.add, back.pack);
            let (segments, balance) = (self.pass.batch.segments, self.pass.balance);
            let (d_input, adapters) = (d_norm, self.adapters_with_room());
            experts.backward(&ExpertGradients {
                weights,
                adapters,
                add,
                d_out,
                d_input,
                pack,
                segments,
                balance,
            });
            return self.input_backward(bufs.mid, w.ffn_norm, d_norm, |g| g.ffn_norm);
        }
        let gate = self.spec().architecture().gate;
        // In place: gate and up are not read again, and a product and its gradient need each other's memory only where
        // one of them is done with.
        let (d_product, d_gate_up) = (bufs.product, bufs.gate_up);
        let down = Product { site: Site::Down, x: bufs.product, dy: d_out };
        self.adapter_gradient(down);
        self.bias_gradient(down);
        if forward::keeps_product(self.spec(), self.pass.acts.mode) {
            self.weight_gradient(down);
            self.input_gradient(down, d_product);
            dev.glu_backward(gate, bufs.gate_up, f, d_product, d_gate_up, None);
        } else {
            self.input_gradient(down, d_product);
            dev.glu_backward(gate, bufs.gate_up, f, d_product, d_gate_up, Some(bufs.product));
            self.weight_gradient(down);
        }
        let gate_up = Product { site: Site::GateUp, x: bufs.norm_ffn, dy: d_gate_up };
        self.adapter_gradient(gate_up);
        self.bias_gradient(gate_up);
        self.weight_gradient(gate_up);
        self.input_gradient(gate_up, d_norm);
        self.input_backward(bufs.mid, w.ffn_norm, d_norm, |g| g.ffn_norm);
    }

    fn attention(&self) {
        let Self { dev, w, bufs, back, d_out, .. } = *self;
        let spec = self.spec();
        let (m, h) = (self.pass.rows, spec.hidden as usize);
        let (first, mixed) = (spec.first_width(self.l) as usize, spec.mixed_width(self.l) as usize);
        let d_norm = back.d_norm.slice(0, m * h);
        let (d_mixed, d_first) = (back.d_attn.slice(0, m * mixed), back.d_qkv.slice(0, m * first));
        if forward::recomputes(self.pass.acts.mode) {
            forward::part_input(dev, self.decoder, bufs.resid, w.attn_norm, bufs.norm_attn);
        }
        self.post_norm_backward(w.attn_post_norm, bufs.attn_out, |g| g.attn_post_norm);
        let output = Product { site: Site::Output, x: bufs.mixed, dy: d_out };
        self.adapter_gradient(output);
        self.bias_gradient(output);
        match bufs.gates {
            Some(gates) => {
                self.input_gradient(output, d_mixed);
                let (heads, out) = (mixer::heads(spec), Some(gates.out));
                let (x, attn, d, dx) = (bufs.qkv, bufs.attn, d_mixed, d_first);
                dev.gate_heads_backward(GateHeadsBackward { heads, x, attn, d, dx, out });
                self.weight_gradient(output);
            }
            None => {
                self.weight_gradient(output);
                self.input_gradient(output, d_mixed);
            }
        }
        match mixer::linear(dev, self.decoder, w, self.pass, bufs) {
            Some(delta) => {
                if !self.pass.acts.mode.recompute().is_some_and(Recompute::is_of_layers) {
                    delta.to_out();
                }
                let (weights, add) = (self.g.weights().and_then(|g| g.delta), self.add);
                delta.backward(&DeltaGradients { weights, add, d: d_mixed, dx: d_first });
            }
            None => self.attention_over_keys(d_mixed, d_first),
        }
        let qkv = Product { site: Site::Qkv, x: bufs.norm_attn, dy: d_first };
        self.adapter_gradient(qkv);
        self.bias_gradient(qkv);
        self.weight_gradient(qkv);
        if self.is_last {
            return;
        }
        self.input_gradient(qkv, d_norm);
        self.input_backward(bufs.resid, w.attn_norm, d_norm, |g| g.attn_norm);
    }

    /// The gradient of what the first product gave, from that of what attention gave. Those of gates are there.
    fn attention_over_keys(&self, dout: Buf<'_>, d_first: Buf<'_>) {
        let Self { dev, bufs, back, .. } = *self;
        let spec = self.spec();
        let (m, q, kv) = (self.pass.rows, spec.q_width() as usize, spec.kv_width() as usize);
        let (dq, dkv) = (back.d_q.slice(0, m * q), back.d_kv.slice(0, m * 2 * kv));
        let lse = bufs.lse.expect("the update keeps log-sum-exps");
        let (out, batch, scores) = (bufs.attn, self.pass.batch, self.decoder.scores(self.l));
        let (q, kv) = (bufs.q, bufs.kv);
        dev.attention_backward(AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv });
        let (rotation, positions) = (self.decoder.rotation(self.l), batch.positions);
        let (heads, norms) = (mixer::heads(spec), self.qk_norm());
        let d_qkv = bufs.gates.map_or(d_first, |gates| gates.d_qkv.expect("an update of gates"));
        dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv: d_qkv });
        if bufs.gates.is_some() {
            dev.join_gates(d_qkv, heads, d_first);
        }
    }

    /// The gradient of u of a product's adapters, from which the two below go on.
    fn adapter_gradient(&self, of: Product<'_>) {
        if let Some((adapter, _, du)) = self.adapter(of.site) {
            self.dev.adapt_backward_u(of.dy, adapter, du);
        }
    }

    /// The gradient of a product's bias, if it has one that is trained.
    fn bias_gradient(&self, of: Product<'_>) {
        if let Some(bias) = self.g.weights().and_then(|g| g.bias(of.site)) {
            self.dev.bias_backward(of.dy, bias, self.add);
        }
    }

    /// The gradient of a product's weights, or of its adapters.
    fn weight_gradient(&self, of: Product<'_>) {
        let Self { dev, add, back, .. } = *self;
        match self.g {
            LayerGrads::Weights(g) => dev.matmul_dw(of.dy, of.x, g.at(of.site), add, back.pack),
            LayerGrads::Adapters(g) => {
                let Some((adapter, u, du)) = self.adapter(of.site) else { return };
                if self.w.adapters.are_merged {
                    dev.adapt_down(of.x, adapter, u);
                }
                let grads = g.at(of.site).expect("adapters have their gradients");
                let pack = self.pass.acts.adapt.pack.unwrap_or(du.slice(0, 0));
                dev.adapt_backward_w(AdaptBackward { x: of.x, u, dy: of.dy, du, pack, grads, add });
            }
        }
    }

    /// The gradient of a product's input.
    fn input_gradient(&self, of: Product<'_>, out: Buf<'_>) {
        match self.adapter(of.site).filter(|_| !self.w.adapters.are_merged) {
            Some((adapter, _, du)) => {
                self.dev.adapted_dx(of.dy, self.w.adapted(of.site, None, adapter), du, out);
            }
            None => self.dev.matmul_dx(of.dy, self.w.ready(self.dev, of.site), out, false),
        }
    }

    /// The adapters of a product, with u and the space for its gradient.
    fn adapter(&self, site: Site) -> Option<(Adapter<'_>, Buf<'p>, Buf<'p>)> {
        let adapter = self.w.adapters.at(site)?;
        let (acts, len) = (&self.pass.acts.adapt, self.pass.rows * adapter.a.n);
        let scratch = |buf: Option<Buf<'p>>| buf.expect("an update of adapters").slice(0, len);
        let u = self.bufs.u[site as usize].unwrap_or_else(|| scratch(acts.u_once));
        let du = scratch(acts.d_u);
        Some((adapter, u, du))
    }

    /// Where the gradients of the layer's adapters go, with room for that of u and for packing; none where weights are trained.
    fn adapters_with_room(&self) -> Option<(&LayerAdapters<'a>, Buf<'p>, Buf<'p>)> {
        let LayerGrads::Adapters(grads) = self.g else { return None };
        let d_u = self.pass.acts.adapt.d_u.expect("an update of adapters");
        Some((grads, d_u, self.pass.acts.adapt.pack.unwrap_or(d_u.slice(0, 0))))
    }

    /// Adds the gradient of what a part of the layer read to that of the residual stream, which `dy` is the gradient of, or of its
    /// norm's.
    fn input_backward(
        &self,
        x: Buf<'_>,
        norm: Option<Buf<'_>>,
        dy: Buf<'_>,
        grad: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
    ) {
        let (dev, dx, rounded) = (self.dev, self.d_resid, self.d_out);
        let Some(w) = norm else {
            dev.accumulate(dy, dx, true);
            return dev.cast(dx, rounded);
        };
        let (dw, rstd) = (self.g.weights().and_then(&grad), self.back.rstd.slice(0, self.pass.rows));
        let to = NormGrads { dx, rounded: Some(rounded), dw, add: self.add, rstd };
        dev.rms_norm_backward(x, self.decoder.norm(w), dy, to);
    }

    /// The gradient of what a part of the layer gave, as its last product reads it, where a norm came after it.
    fn post_norm_backward(
        &self,
        norm: Option<Buf<'_>>,
        x: Option<Buf<'_>>,
        grad: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
    ) {
        let Some((w, x)) = norm.zip(x) else { return };
        let dx = self.back.d_branch.expect("an update of norms after parts").slice(0, x.len());
        let (dw, rstd) = (self.g.weights().and_then(&grad), self.back.rstd.slice(0, self.pass.rows));
        self.dev.zero(dx);
        let to = NormGrads { dx, rounded: Some(self.d_out), dw, add: self.add, rstd };
        self.dev.rms_norm_backward(x, self.decoder.norm(w), self.d_resid, to);
    }

    fn qk_norm(&self) -> Option<QkNormBackward<'_>> {
        let norm = qk_norm(self.decoder, self.w)?;
        let (dq_weight, dk_weight) = self.g.weights().and_then(|g| g.qk_norm).unzip();
        if !self.add {
            [dq_weight, dk_weight].into_iter().flatten().for_each(|grad| self.dev.zero(grad));
        }
        let qkv = mixer::qkv(self.dev, self.spec(), self.bufs);
        Some(QkNormBackward { norm, qkv, dq_weight, dk_weight })
    }

    fn spec(&self) -> &ModelSpec {
        &self.decoder.spec
    }
}
