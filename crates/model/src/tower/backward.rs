//! The backward pass of a tower: gradients of all its weights or of its adapters, and none of pixels.

use super::VectorTable;
use super::adapters::TowerAdapters;
use super::forward::{LayerStep, merge_input, product};
use super::params::{Linear, Merger, NormParams, TowerLayer, TowerParams};
use super::pass::{Tower, TowerPass};
use super::regions::TowerBack;
use plimsoll_arch::{Gelu, TowerMlp, TowerSpec};
use plimsoll_device::{
    AdaptBackward, Adapter, AttentionBackward, Device, LayerNorm, LayerNormGrads, Norm, NormGrads,
    RopeBackward, Scores,
};
use plimsoll_memory::Buf;

/// What a backward pass computes.
#[derive(Clone, Copy, Debug)]
pub enum TowerGradients<'g, 'a> {
    /// Gradients of all weights.
    Weights(&'g TowerParams<'a>),
    /// Gradients of adapters, of a tower whose weights are frozen.
    Adapters(&'g TowerAdapters<'a>),
}

/// Where the gradients of a product go.
#[derive(Clone, Copy)]
enum ProductGradients<'a> {
    Weights(Linear<'a>),
    Adapter(Adapter<'a>),
}

/// Where the gradients of a layer go; norms have none where adapters are trained.
struct LayerGradients<'a> {
    attn_norm: Option<NormParams<'a>>,
    qkv: ProductGradients<'a>,
    output: ProductGradients<'a>,
    ffn_norm: Option<NormParams<'a>>,
    up: ProductGradients<'a>,
    down: ProductGradients<'a>,
}

/// Where the gradients of a merger go.
struct MergerGradients<'a> {
    norm: Option<NormParams<'a>>,
    up: ProductGradients<'a>,
    down: ProductGradients<'a>,
}

impl<'a> TowerGradients<'_, 'a> {
    fn layer(&self, index: usize) -> LayerGradients<'a> {
        match self {
            TowerGradients::Weights(params) => {
                let TowerLayer { attn_norm, qkv, output, ffn_norm, up, down } = params.layers[index];
                let [qkv, output, up, down] = [qkv, output, up, down].map(ProductGradients::Weights);
                let (attn_norm, ffn_norm) = (Some(attn_norm), Some(ffn_norm));
                LayerGradients { attn_norm, qkv, output, ffn_norm, up, down }
            }
            TowerGradients::Adapters(adapters) => {
                let [qkv, output, up, down] = adapters.layer(index).map(ProductGradients::Adapter);
                LayerGradients { attn_norm: None, qkv, output, ffn_norm: None, up, down }
            }
        }
    }

    fn merger(&self, index: usize) -> MergerGradients<'a> {
        match self {
            TowerGradients::Weights(params) => {
                let Merger { norm, up, down } = params.mergers[index];
                let [up, down] = [up, down].map(ProductGradients::Weights);
                MergerGradients { norm: Some(norm), up, down }
            }
            TowerGradients::Adapters(adapters) => {
                let [up, down] = adapters.merger(index).map(ProductGradients::Adapter);
                MergerGradients { norm: None, up, down }
            }
        }
    }
}

/// Adds the gradients of a pass to `grads`, after `forward` of the same pass in a mode with a backward pass. `d`: the
/// gradients of the vectors, which begin at vector `first`. Without `add` it writes them, so the first pass of a step
/// needs no zeros; the bits are the same.
pub fn backward<'a>(
    dev: &dyn Device,
    tower: &Tower<'a>,
    grads: TowerGradients<'_, 'a>,
    add: bool,
    pass: &TowerPass<'a>,
    d: (&VectorTable<'_>, usize),
) {
    let back = pass.regions.back.expect("an update of a tower");
    let step = BackStep { dev, tower, pass, back, add };
    let (depth, count) = (tower.spec.depth as usize, pass.rows / tower.spec.rows_per_vector() as usize);
    let d_resid = pass.rows_of(back.d_resid);
    dev.zero(d_resid);
    let merger = |index: usize| (&tower.params.mergers[index], grads.merger(index));
    step.merger(merger(0), pass.resid(depth), d.0.part(0, d.1, count));
    for l in (0..depth).rev() {
        if let Some(deep) = tower.spec.deep.index_of(l as u32) {
            step.merger(merger(deep + 1), pass.resid(l + 1), d.0.part(deep + 1, d.1, count));
        }
        step.layer(l, &grads.layer(l));
    }
    let TowerGradients::Weights(grads) = grads else { return };
    let d_out = pass.rows_of(back.d_out);
    dev.matmul_dw(d_out, pass.rows_of(pass.regions.pixels), grads.patch, add, back.pack);
    if let Some(bias) = grads.patch_bias {
        dev.bias_backward(d_out, bias, add);
    }
    let Some(table) = grads.positions else { return };
    if !add {
        dev.zero(table.buf);
    }
    let one = pass.spare();
    for corner in 0..4 {
        let (ids, weights) = pass.corner(corner).expect("a tower with positions has corners");
        dev.weigh_rows(d_resid, weights, one, false);
        dev.embed_backward(one, ids, table);
    }
}

#[derive(Clone, Copy)]
struct BackStep<'x, 'a> {
    dev: &'x dyn Device,
    tower: &'x Tower<'a>,
    pass: &'x TowerPass<'a>,
    back: TowerBack<'a>,
    add: bool,
}

impl<'a> BackStep<'_, 'a> {
    fn spec(&self) -> &TowerSpec {
        &self.tower.spec
    }

    fn rows(&self, buf: Buf<'a>) -> Buf<'a> {
        self.pass.rows_of(buf)
    }

    /// Computes the gradients of a product's weights and bias, or of its adapters.
    fn weights(&self, w: &Linear<'_>, grads: ProductGradients<'_>, x: Buf<'_>, dy: Buf<'_>) {
        let (dev, add) = (self.dev, self.add);
        match grads {
            ProductGradients::Weights(grads) => {
                dev.matmul_dw(dy, x, grads.w, add, self.back.pack);
                dev.bias_backward(dy, grads.b, add);
            }
            ProductGradients::Adapter(grads) => {
                let adapter = w.adapter.expect("a product whose adapters are trained");
                let (u, du) = (self.pass.u(x.len() / w.w.k, &adapter), self.du(w, dy).expect("the same"));
                dev.adapt_backward_u(dy, adapter, du);
                // That of the forward pass is overwritten: products share it.
                dev.adapt_down(x, adapter, u);
                let (_, pack) = self.back.adapt.expect("an update of a tower's adapters");
                dev.adapt_backward_w(AdaptBackward { x, u, dy, du, pack, grads, add });
            }
        }
    }

    /// Returns space for the gradient of u, if a product has adapters.
    fn du(&self, w: &Linear<'_>, dy: Buf<'_>) -> Option<Buf<'a>> {
        let (adapter, (du, _)) = w.adapter.zip(self.back.adapt)?;
        Some(du.slice(0, dy.len() / w.w.n * adapter.a.n))
    }

    /// Computes the gradient of a product's input, after those of its weights.
    fn input(&self, w: &Linear<'_>, dy: Buf<'_>, out: Buf<'_>) {
        match w.adapted(None).zip(self.du(w, dy)) {
            Some((adapted, du)) => self.dev.adapted_dx(dy, adapted, du, out),
            None => self.dev.matmul_dx(dy, w.w, out, false),
        }
    }

    /// Adds the gradient of a norm's input to that of the residual stream, and rounds it for products.
    fn norm(&self, x: Buf<'_>, w: &NormParams<'_>, grads: Option<NormParams<'_>>, dy: Buf<'_>) {
        let (rows, add, eps) = (x.len() / w.w.len(), self.add, self.spec().eps);
        let (dx, rounded) = (self.rows(self.back.d_resid), Some(self.rows(self.back.d_out)));
        match w.b {
            Some(b) => {
                let dw_db = grads.and_then(|grads| Some((grads.w, grads.b?)));
                let stats = self.back.stats.slice(0, 2 * rows);
                let to = LayerNormGrads { dx, rounded, dw_db, add, stats };
                self.dev.layer_norm_backward(x, LayerNorm { w: w.w, b, eps }, dy, to);
            }
            None => {
                let rstd = self.back.stats.slice(0, rows);
                let to = NormGrads { dx, rounded, dw: grads.map(|grads| grads.w), add, rstd };
                self.dev.rms_norm_backward(x, Norm::new(w.w, eps), dy, to);
            }
        }
    }

    /// Computes the gradients of a merger of rows `x`, and adds that of `x`; `d`: [n, H] f32.
    fn merger(&self, (w, grads): (&Merger<'a>, MergerGradients<'_>), x: Buf<'a>, d: Buf<'_>) {
        let (dev, spec, back) = (self.dev, self.spec(), &self.back);
        let of_vectors = |buf| self.pass.merged(spec, buf);
        let (up, act, d_act) =
            (of_vectors(self.pass.regions.merge), of_vectors(back.merge_act), of_vectors(back.d_merge));
        let norm = merge_input(dev, spec, w, self.pass, x);
        product(dev, self.pass, &w.up, norm, up);
        dev.gelu(Gelu::Erf, up, act);
        let dy = back.d_vectors.slice(0, d.len());
        let d = self.pass.windowed(spec).map_or(d, |(vectors, order)| {
            dev.gather_rows(d, order, vectors);
            vectors
        });
        dev.cast(d, dy);
        self.weights(&w.down, grads.down, act, dy);
        self.input(&w.down, dy, d_act);
        dev.gelu_backward(Gelu::Erf, up, d_act, d_act);
        self.weights(&w.up, grads.up, norm, d_act);
        let d_norm = self.rows(back.d_norm);
        self.input(&w.up, d_act, d_norm);
        self.norm(x, &w.norm, grads.norm, d_norm);
    }

    /// Computes a layer again, then its gradients.
    fn layer(&self, index: usize, grads: &LayerGradients<'_>) {
        let (dev, tower, pass, back) = (self.dev, self.tower, self.pass, &self.back);
        let w = &tower.params.layers[index];
        let step = LayerStep { dev, tower, w, pass, index };
        step.run_to_activation();
        let r = &pass.regions;
        let (d_out, d_norm, norm) = (self.rows(back.d_out), self.rows(back.d_norm), self.rows(r.norm));
        let (up, act) = (self.rows(r.up), step.act());
        self.weights(&w.down, grads.down, act, d_out);
        // In place of the activation, which nothing reads again.
        self.input(&w.down, d_out, act);
        let d_up = match self.spec().mlp {
            TowerMlp::Plain(how) => {
                dev.gelu_backward(how, up, act, act);
                act
            }
            TowerMlp::Gated(how) => {
                dev.glu_backward(how, up, self.spec().ffn as usize, act, up, None);
                up
            }
        };
        self.weights(&w.up, grads.up, norm, d_up);
        self.input(&w.up, d_up, d_norm);
        self.norm(pass.mid(index), &w.ffn_norm, grads.ffn_norm, d_norm);
        // The norm's output before attention lies where the other's was.
        let mixed = self.rows(r.wide.map_or(r.attn, |wide| wide.mixed));
        self.weights(&w.output, grads.output, mixed, d_out);
        self.attention(w, index);
        w.attn_norm.forward(dev, self.spec().eps, pass.resid(index), norm);
        let d_qkv = self.rows(r.qkv);
        self.weights(&w.qkv, grads.qkv, norm, d_qkv);
        self.input(&w.qkv, d_qkv, d_norm);
        self.norm(pass.resid(index), &w.attn_norm, grads.attn_norm, d_norm);
    }

    /// Computes the gradient of q, k and v into `qkv`, from that of the output projection's outputs.
    fn attention(&self, w: &TowerLayer<'a>, index: usize) {
        let (dev, pass, back, spec) = (self.dev, self.pass, &self.back, self.spec());
        let (r, heads) = (&pass.regions, spec.heads as usize);
        let (dout, d_out) = (self.rows(back.d_attn), self.rows(back.d_out));
        match r.wide {
            None => self.input(&w.output, d_out, dout),
            Some(wide) => {
                // `mixed` is read by then.
                let d_mixed = self.rows(wide.mixed);
                self.input(&w.output, d_out, d_mixed);
                pass.move_heads(dev, spec, heads, d_mixed, dout);
            }
        }
        let (q, out, lse) = (self.rows(r.q), self.rows(r.attn), self.rows(back.lse));
        let (dq, dkv) = (self.rows(back.dq), self.rows(back.dkv));
        let (kv, batch, scores) = (pass.kv(spec, index), pass.batch(spec, index), Scores::of_whole());
        dev.attention_backward(AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv });
        let (rotation, positions) = (pass.rotation(self.tower), batch.positions);
        let dqkv = self.rows(r.wide.map_or(r.qkv, |wide| wide.qkv));
        let heads_of = pass.heads(spec);
        dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads: heads_of, norms: None, dqkv });
        if let Some(wide) = r.wide {
            pass.move_heads(dev, spec, 3 * heads, self.rows(wide.qkv), self.rows(r.qkv));
        }
    }
}
