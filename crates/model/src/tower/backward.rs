//! The backward pass of a tower: gradients of all its weights, and none of pixels.

use super::VectorTable;
use super::forward::{LayerStep, merge_input, product};
use super::params::{Linear, Merger, NormParams, TowerLayer, TowerParams};
use super::pass::{Tower, TowerPass};
use super::regions::TowerBack;
use plimsoll_arch::{Gelu, TowerMlp, TowerSpec};
use plimsoll_device::{
    AttentionBackward, Device, LayerNorm, LayerNormGrads, Norm, NormGrads, RopeBackward, Scores,
};
use plimsoll_memory::Buf;

/// Adds the gradients of a pass to `grads`, after `forward` of the same pass in a mode with a backward pass. `d`: the
/// gradients of the vectors, which begin at vector `first`. Without `add` it writes them, so the first pass of a step
/// needs no zeros; the bits are the same.
pub fn backward<'a>(
    dev: &dyn Device,
    tower: &Tower<'a>,
    grads: &TowerParams<'a>,
    add: bool,
    pass: &TowerPass<'a>,
    d: (&VectorTable<'_>, usize),
) {
    let back = pass.regions.back.expect("an update of a tower");
    let step = BackStep { dev, tower, pass, back, add };
    let (depth, count) = (tower.spec.depth as usize, pass.rows / tower.spec.rows_per_vector() as usize);
    let d_resid = pass.rows_of(back.d_resid);
    dev.zero(d_resid);
    let merger = |index: usize| (&tower.params.mergers[index], &grads.mergers[index]);
    step.merger(merger(0), pass.resid(depth), d.0.part(0, d.1, count));
    for l in (0..depth).rev() {
        if let Some(deep) = tower.spec.deep.index_of(l as u32) {
            step.merger(merger(deep + 1), pass.resid(l + 1), d.0.part(deep + 1, d.1, count));
        }
        step.layer(l, &grads.layers[l]);
    }
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

    /// Computes the gradients of a product's weights and bias.
    fn weights(&self, grads: &Linear<'_>, x: Buf<'_>, dy: Buf<'_>) {
        self.dev.matmul_dw(dy, x, grads.w, self.add, self.back.pack);
        self.dev.bias_backward(dy, grads.b, self.add);
    }

    /// Adds the gradient of a norm's input to that of the residual stream, and rounds it for products.
    fn norm(&self, x: Buf<'_>, w: &NormParams<'_>, grads: &NormParams<'_>, dy: Buf<'_>) {
        let (rows, add, eps) = (x.len() / w.w.len(), self.add, self.spec().eps);
        let (dx, rounded) = (self.rows(self.back.d_resid), Some(self.rows(self.back.d_out)));
        match w.b {
            Some(b) => {
                let dw_db = grads.b.map(|db| (grads.w, db));
                let stats = self.back.stats.slice(0, 2 * rows);
                let to = LayerNormGrads { dx, rounded, dw_db, add, stats };
                self.dev.layer_norm_backward(x, LayerNorm { w: w.w, b, eps }, dy, to);
            }
            None => {
                let rstd = self.back.stats.slice(0, rows);
                let to = NormGrads { dx, rounded, dw: Some(grads.w), add, rstd };
                self.dev.rms_norm_backward(x, Norm::new(w.w, eps), dy, to);
            }
        }
    }

    /// Computes the gradients of a merger of rows `x`, and adds that of `x`; `d`: [n, H] f32.
    fn merger(&self, (w, grads): (&Merger<'a>, &Merger<'a>), x: Buf<'a>, d: Buf<'_>) {
        let (dev, spec, back) = (self.dev, self.spec(), &self.back);
        let of_vectors = |buf| self.pass.merged(spec, buf);
        let (up, act, d_act) =
            (of_vectors(self.pass.regions.merge), of_vectors(back.merge_act), of_vectors(back.d_merge));
        let norm = merge_input(dev, spec, w, self.pass, x);
        product(dev, &w.up, norm, up);
        dev.gelu(Gelu::Erf, up, act);
        let dy = back.d_vectors.slice(0, d.len());
        let d = self.pass.windowed(spec).map_or(d, |(vectors, order)| {
            dev.gather_rows(d, order, vectors);
            vectors
        });
        dev.cast(d, dy);
        self.weights(&grads.down, act, dy);
        dev.matmul_dx(dy, w.down.w, d_act, false);
        dev.gelu_backward(Gelu::Erf, up, d_act, d_act);
        self.weights(&grads.up, norm, d_act);
        let d_norm = self.rows(back.d_norm);
        dev.matmul_dx(d_act, w.up.w, d_norm, false);
        self.norm(x, &w.norm, &grads.norm, d_norm);
    }

    /// Computes a layer again, then its gradients.
    fn layer(&self, index: usize, grads: &TowerLayer<'a>) {
        let (dev, tower, pass, back) = (self.dev, self.tower, self.pass, &self.back);
        let w = &tower.params.layers[index];
        let step = LayerStep { dev, tower, w, pass, index };
        step.run_to_activation();
        let r = &pass.regions;
        let (d_out, d_norm, norm) = (self.rows(back.d_out), self.rows(back.d_norm), self.rows(r.norm));
        let (up, act) = (self.rows(r.up), step.act());
        self.weights(&grads.down, act, d_out);
        // In place of the activation, which nothing reads again.
        dev.matmul_dx(d_out, w.down.w, act, false);
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
        self.weights(&grads.up, norm, d_up);
        dev.matmul_dx(d_up, w.up.w, d_norm, false);
        self.norm(pass.mid(index), &w.ffn_norm, &grads.ffn_norm, d_norm);
        // The norm's output before attention lies where the other's was.
        let mixed = self.rows(r.wide.map_or(r.attn, |wide| wide.mixed));
        self.weights(&grads.output, mixed, d_out);
        self.attention(w, index);
        w.attn_norm.forward(dev, self.spec().eps, pass.resid(index), norm);
        let d_qkv = self.rows(r.qkv);
        self.weights(&grads.qkv, norm, d_qkv);
        dev.matmul_dx(d_qkv, w.qkv.w, d_norm, false);
        self.norm(pass.resid(index), &w.attn_norm, &grads.attn_norm, d_norm);
    }

    /// Computes the gradient of q, k and v into `qkv`, from that of the output projection's outputs.
    fn attention(&self, w: &TowerLayer<'a>, index: usize) {
        let (dev, pass, back, spec) = (self.dev, self.pass, &self.back, self.spec());
        let (r, heads) = (&pass.regions, spec.heads as usize);
        let (dout, d_out) = (self.rows(back.d_attn), self.rows(back.d_out));
        match r.wide {
            None => dev.matmul_dx(d_out, w.output.w, dout, false),
            Some(wide) => {
                // `mixed` is read by then.
                let d_mixed = self.rows(wide.mixed);
                dev.matmul_dx(d_out, w.output.w, d_mixed, false);
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
