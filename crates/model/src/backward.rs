//! The backward pass, written out for this decoder family; recompute per layer is an option, not another path.

use crate::activations::{Activations, Backward, HeadGradBufs, LayerBufs, Recompute};
use crate::forward::{self, Decoder, Pass, qk_norm};
use crate::weights::{LayerParams, Params};
use plimsoll_base::ModelSpec;
use plimsoll_device::{
    AttentionBackward, Device, HeadBackward, Heads, NormGrads, QkNormBackward, RopeBackward, sizes,
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
pub fn backward(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    grads: &Params<'_>,
    add: bool,
    pass: &Pass<'_>,
    of: Derivatives<'_>,
) {
    if !add && grads.head.buf != grads.embed.buf {
        // Rows of tokens are added to; a tied embedding has been written as the head.
        dev.zero(grads.embed.buf);
    }
    let RowGradients { d_input, ids } = backward_part(dev, decoder, grads, add, pass, of, &mut |_| {});
    dev.embed_backward(d_input, ids, grads.embed);
}

/// `backward` without the gradients of the rows' embeddings, which it returns: until the next pass they lie in its arrays. `after` is
/// called after the operations of each stage.
pub fn backward_part<'p>(
    dev: &dyn Device,
    decoder: &Decoder<'_>,
    grads: &Params<'_>,
    add: bool,
    pass: &Pass<'p>,
    of: Derivatives<'_>,
    after: &mut dyn FnMut(Stage),
) -> RowGradients<'p> {
    let spec = &decoder.spec;
    let (m, h) = (pass.rows, spec.hidden as usize);
    let back = pass.acts.backward.expect("only the update runs backward");
    let d_resid = back.d_resid.slice(0, m * h);
    dev.zero(d_resid);
    let head = HeadPass { dev, decoder, grads, add, pass, back: &back };
    head.run(of, d_resid);
    after(Stage::Head);
    let d_out = back.d_out.slice(0, m * h);
    dev.cast(d_resid, d_out);
    for l in (0..spec.layers as usize).rev() {
        let bufs = pass.acts.layer(spec, l, m);
        let w = &decoder.params.layers[l];
        if pass.acts.mode.recompute() == Some(Recompute::Layer) {
            forward::layer_to_gates(dev, decoder, w, pass, &bufs);
        }
        let g = &grads.layers[l];
        let step = LayerBackward { dev, decoder, w, g, add, pass, bufs: &bufs, back: &back, d_resid, d_out };
        step.ffn();
        step.attention();
        after(Stage::Layer(l as u32));
    }
    RowGradients { d_input: d_resid, ids: pass.ids }
}

/// The backward pass of the head and of the last norm.
struct HeadPass<'x, 'a, 'p> {
    dev: &'x dyn Device,
    decoder: &'x Decoder<'a>,
    grads: &'x Params<'a>,
    add: bool,
    pass: &'x Pass<'p>,
    back: &'x Backward<'p>,
}

impl HeadPass<'_, '_, '_> {
    /// Adds the gradient of the head rows' inputs to `d_resid`.
    fn run(&self, of: Derivatives<'_>, d_resid: Buf<'_>) {
        let Self { dev, decoder, grads, add, pass, back } = *self;
        let (r, h) = (pass.head_rows, decoder.spec.hidden as usize);
        if r == 0 {
            if !add {
                dev.zero(grads.head.buf);
                dev.zero(grads.final_norm);
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
        let to = NormGrads {
            dx,
            rounded: None,
            dw: Some(grads.final_norm),
            add,
            rstd: back.head_rstd.slice(0, r),
        };
        dev.rms_norm_backward(input, decoder.params.final_norm, decoder.spec.rms_eps, d_norm, to);
        dev.scatter_add_rows(dx, acts.head_rows.slice(0, r), d_resid);
    }

    fn vocabulary(&self, x: Buf<'_>, dx: Buf<'_>, inv_temperature: f32, derivatives: [&[f32]; 2]) {
        let Self { dev, decoder, grads, add, pass, back } = *self;
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
            inv_temperature,
            head_out: pass.head_out(),
            dlogprobs,
            dentropy,
            tile: pass.vocabulary().1,
            dtile: d_tile.slice(0, dtile),
            pack: back.pack,
            dx,
            grad: Some(grads.head),
            add,
        });
    }

    fn values(&self, x: Buf<'_>, dx: Buf<'_>, derivatives: &[f32]) {
        let Self { dev, decoder, grads, add, pass, back } = *self;
        let r = pass.head_rows;
        assert_eq!(derivatives.len(), r, "one derivative a head row");
        let HeadGradBufs::Values { d_values, d_out } = back.head else {
            panic!("this pass ends in a vocabulary");
        };
        let (d_values, d_out) = (d_values.slice(0, r), d_out.slice(0, r));
        dev.write_f32(d_values, 0, derivatives);
        dev.cast(d_values, d_out);
        dev.matmul_dw(d_out, x, grads.head, add, back.pack);
        dev.matmul_dx(d_out, decoder.params.head, dx, false);
    }
}

/// The backward pass of one layer; `d_resid` is the gradient of its output, then of its input, and `d_out` the same as
/// products read it.
struct LayerBackward<'x, 'a, 'p> {
    dev: &'x dyn Device,
    decoder: &'x Decoder<'a>,
    w: &'x LayerParams<'a>,
    g: &'x LayerParams<'a>,
    add: bool,
    pass: &'x Pass<'p>,
    bufs: &'x LayerBufs<'p>,
    back: &'x Backward<'p>,
    d_resid: Buf<'p>,
    d_out: Buf<'p>,
}

impl LayerBackward<'_, '_, '_> {
    fn ffn(&self) {
        let Self { dev, w, g, add, bufs, back, d_out, .. } = *self;
        let (m, h, f) = (self.pass.rows, self.spec().hidden as usize, self.spec().ffn as usize);
        let d_norm = back.d_norm.slice(0, m * h);
        if forward::recomputes(self.pass.acts.mode) {
            dev.matmul_add(bufs.attn, w.output, bufs.resid, bufs.mid);
            dev.rms_norm(bufs.mid, w.ffn_norm, self.spec().rms_eps, bufs.norm_ffn);
        }
        // In place: gate and up are not read again, and a product and its gradient need each other's memory only where
        // one of them is done with.
        let (d_product, d_gate_up) = (bufs.product, bufs.gate_up);
        if forward::keeps_product(self.pass.acts.mode) {
            dev.matmul_dw(d_out, bufs.product, g.down, add, back.pack);
            dev.matmul_dx(d_out, w.down, d_product, false);
            dev.swiglu_backward(bufs.gate_up, f, d_product, d_gate_up, None);
        } else {
            dev.matmul_dx(d_out, w.down, d_product, false);
            dev.swiglu_backward(bufs.gate_up, f, d_product, d_gate_up, Some(bufs.product));
            dev.matmul_dw(d_out, bufs.product, g.down, add, back.pack);
        }
        dev.matmul_dw(d_gate_up, bufs.norm_ffn, g.gate_up, add, back.pack);
        dev.matmul_dx(d_gate_up, w.gate_up, d_norm, false);
        self.norm_backward(bufs.mid, w.ffn_norm, d_norm, g.ffn_norm);
    }

    fn attention(&self) {
        let Self { dev, w, g, add, bufs, back, d_out, .. } = *self;
        let spec = self.spec();
        let (m, h) = (self.pass.rows, spec.hidden as usize);
        let (q, kv) = (spec.q_width() as usize, spec.kv_width() as usize);
        let d_norm = back.d_norm.slice(0, m * h);
        let (d_attn, d_qkv) = (back.d_attn.slice(0, m * q), back.d_qkv.slice(0, m * (q + 2 * kv)));
        let (d_q, d_kv) = (back.d_q.slice(0, m * q), back.d_kv.slice(0, m * 2 * kv));
        if forward::recomputes(self.pass.acts.mode) {
            dev.rms_norm(bufs.resid, w.attn_norm, spec.rms_eps, bufs.norm_attn);
        }
        dev.matmul_dw(d_out, bufs.attn, g.output, add, back.pack);
        dev.matmul_dx(d_out, w.output, d_attn, false);
        let lse = bufs.lse.expect("the update keeps log-sum-exps");
        let (out, batch) = (bufs.attn, self.pass.batch);
        let (dout, dq, dkv) = (d_attn, d_q, d_kv);
        dev.attention_backward(AttentionBackward { q: bufs.q, kv: bufs.kv, batch, out, lse, dout, dq, dkv });
        let (rope, positions, norms) = (self.decoder.rope, batch.positions, self.qk_norm());
        dev.rope_backward(RopeBackward { dq, dkv, rope, positions, heads: heads(spec), norms, dqkv: d_qkv });
        if let Some(bias) = g.qkv_bias {
            dev.bias_backward(d_qkv, bias, add);
        }
        dev.matmul_dw(d_qkv, bufs.norm_attn, g.qkv, add, back.pack);
        dev.matmul_dx(d_qkv, w.qkv, d_norm, false);
        self.norm_backward(bufs.resid, w.attn_norm, d_norm, g.attn_norm);
    }

    fn norm_backward(&self, x: Buf<'_>, w: Buf<'_>, dy: Buf<'_>, dw: Buf<'_>) {
        let to = NormGrads {
            dx: self.d_resid,
            rounded: Some(self.d_out),
            dw: Some(dw),
            add: self.add,
            rstd: self.back.rstd.slice(0, self.pass.rows),
        };
        self.dev.rms_norm_backward(x, w, self.spec().rms_eps, dy, to);
    }

    fn qk_norm(&self) -> Option<QkNormBackward<'_>> {
        let norm = qk_norm(self.decoder, self.w)?;
        let (dq_weight, dk_weight) = self.g.qk_norm?;
        if !self.add {
            self.dev.zero(dq_weight);
            self.dev.zero(dk_weight);
        }
        Some(QkNormBackward {
            norm,
            qkv: self.bufs.qkv,
            dq_weight: Some(dq_weight),
            dk_weight: Some(dk_weight),
        })
    }

    fn spec(&self) -> &ModelSpec {
        &self.decoder.spec
    }
}

fn heads(spec: &ModelSpec) -> Heads {
    Heads { heads: spec.heads as usize, kv_heads: spec.kv_heads as usize, head_dim: spec.head_dim as usize }
}
