//! The forward pass of a tower: patches to rows, layers, and mergers.

use super::VectorTable;
use super::params::{Linear, Merger, TowerLayer};
use super::pass::{Tower, TowerPass};
use plimsoll_arch::{Gelu, TowerMlp, TowerSpec};
use plimsoll_device::{Device, Scores};
use plimsoll_memory::Buf;

/// Computes the vectors of a pass's images into `to`, from vector `first` on, and their further features into the other
/// sets.
pub fn forward(
    dev: &dyn Device,
    tower: &Tower<'_>,
    pass: &TowerPass<'_>,
    to: &VectorTable<'_>,
    first: usize,
) {
    let spec = &tower.spec;
    assert_eq!(to.sets, tower.params.mergers.len(), "a set for each merger");
    let count = pass.rows / spec.rows_per_vector() as usize;
    embed(dev, tower, pass);
    for (l, w) in tower.params.layers.iter().enumerate() {
        let step = LayerStep { dev, tower, w, pass, index: l };
        step.run_to_activation();
        step.add_down();
        if let Some(deep) = spec.deep.index_of(l as u32) {
            let out = to.part(deep + 1, first, count);
            merge(dev, spec, &tower.params.mergers[deep + 1], pass, (pass.resid(l + 1), out));
        }
    }
    let out = to.part(0, first, count);
    merge(dev, spec, &tower.params.mergers[0], pass, (pass.resid(spec.depth as usize), out));
}

/// Computes the rows of patches: a product, and learned positions between which each patch lies.
fn embed(dev: &dyn Device, tower: &Tower<'_>, pass: &TowerPass<'_>) {
    let (params, rows) = (&tower.params, pass.resid(0));
    dev.matmul(pass.rows_of(pass.regions.pixels), params.patch, None, rows, false);
    if let Some(bias) = params.patch_bias {
        dev.add_bias(rows, bias);
    }
    let Some(table) = params.positions else { return };
    // Their sum first, as in the reference.
    let (sum, one) = (pass.rows_of(pass.regions.mid), pass.spare());
    for corner in 0..4 {
        let (ids, weights) = pass.corner(corner).expect("a tower with positions has corners");
        dev.embed(table, ids, one);
        dev.weigh_rows(one, weights, sum, corner > 0);
    }
    dev.accumulate(sum, rows, true);
}

/// A layer in a pass.
#[derive(Clone, Copy)]
pub(super) struct LayerStep<'x, 'a> {
    pub(super) dev: &'x dyn Device,
    pub(super) tower: &'x Tower<'a>,
    pub(super) w: &'x TowerLayer<'a>,
    pub(super) pass: &'x TowerPass<'a>,
    pub(super) index: usize,
}

/// Computes out = x W^T + b with adapters, rounded once.
pub(super) fn product(dev: &dyn Device, pass: &TowerPass<'_>, of: &Linear<'_>, x: Buf<'_>, out: Buf<'_>) {
    match of.adapted(Some(of.b)) {
        Some(adapted) => {
            let u = pass.u(x.len() / of.w.k, &adapted.adapter);
            dev.adapted(x, adapted, None, u, out);
        }
        None => dev.matmul(x, of.w, Some(of.b), out, false),
    }
}

/// Computes out = x W^T + b with adapters in f32, or resid + that. The bias is added last.
fn product_f32(
    dev: &dyn Device,
    pass: &TowerPass<'_>,
    of: &Linear<'_>,
    (x, resid): (Buf<'_>, Option<Buf<'_>>),
    out: Buf<'_>,
) {
    match (of.adapted(None), resid) {
        (Some(adapted), resid) => {
            let u = pass.u(x.len() / of.w.k, &adapted.adapter);
            dev.adapted(x, adapted, resid, u, out);
        }
        (None, Some(resid)) => dev.matmul_add(x, of.w, resid, out),
        (None, None) => dev.matmul(x, of.w, None, out, false),
    }
    dev.add_bias(out, of.b);
}

impl<'a> LayerStep<'_, 'a> {
    /// Computes a layer up to the activation, where the backward pass continues.
    pub(super) fn run_to_activation(&self) {
        let LayerStep { dev, tower, w, pass, index } = *self;
        let (spec, r) = (&tower.spec, &pass.regions);
        let (norm, mid) = (pass.rows_of(r.norm), pass.mid(index));
        w.attn_norm.forward(dev, spec.eps, pass.resid(index), norm);
        product(dev, pass, &w.qkv, norm, pass.rows_of(r.qkv));
        let mixed = self.attend();
        product_f32(dev, pass, &w.output, (mixed, Some(pass.resid(index))), mid);
        w.ffn_norm.forward(dev, spec.eps, mid, norm);
        let up = pass.rows_of(r.up);
        product(dev, pass, &w.up, norm, up);
        match spec.mlp {
            TowerMlp::Plain(how) => dev.gelu(how, up, self.act()),
            TowerMlp::Gated(how) => dev.glu(how, up, spec.ffn as usize, self.act()),
        }
    }

    /// Returns the activation's output, which is in place where it is as wide and nothing reads its input again.
    pub(super) fn act(&self) -> Buf<'a> {
        let r = &self.pass.regions;
        self.pass.rows_of(r.act.unwrap_or(r.up))
    }

    /// Computes attention; returns its outputs, [M, h] e.
    fn attend(&self) -> Buf<'a> {
        let LayerStep { dev, tower, pass, .. } = *self;
        let (spec, r, heads) = (&tower.spec, &pass.regions, tower.spec.heads as usize);
        let mut qkv = pass.rows_of(r.qkv);
        if let Some(wide) = r.wide {
            let to = pass.rows_of(wide.qkv);
            pass.move_heads(dev, spec, 3 * heads, qkv, to);
            qkv = to;
        }
        let (q, attn) = (pass.rows_of(r.q), pass.rows_of(r.attn));
        let (batch, kv) = (pass.batch(spec, self.index), pass.kv(spec, self.index));
        dev.rope(qkv, None, pass.rotation(tower), batch, kv, q);
        let lse = r.back.map(|back| pass.rows_of(back.lse));
        dev.attention(q, kv, batch, Scores::of_whole(), attn, lse);
        let Some(wide) = r.wide else { return attn };
        let mixed = pass.rows_of(wide.mixed);
        pass.move_heads(dev, spec, heads, attn, mixed);
        mixed
    }

    fn add_down(&self) {
        let LayerStep { dev, w, pass, index, .. } = *self;
        product_f32(dev, pass, &w.down, (self.act(), Some(pass.mid(index))), pass.resid(index + 1));
    }
}

/// The norm of a merger: its rows are those of the tower, or joined ones; its width says which.
pub(super) fn merge_input<'p>(
    dev: &dyn Device,
    spec: &TowerSpec,
    w: &Merger<'_>,
    pass: &TowerPass<'p>,
    x: Buf<'p>,
) -> Buf<'p> {
    // Rows of a vector are neighbours: joined rows are the same memory.
    let norm = pass.rows_of(pass.regions.norm);
    w.norm.forward(dev, spec.eps, x, norm);
    norm
}

/// Joins the rows of each vector: x is [M, h] f32, out [n, H] f32, image by image and row by row.
fn merge<'p>(
    dev: &dyn Device,
    spec: &TowerSpec,
    w: &Merger<'_>,
    pass: &TowerPass<'p>,
    (x, out): (Buf<'p>, Buf<'_>),
) {
    let norm = merge_input(dev, spec, w, pass, x);
    let up = pass.merged(spec, pass.regions.merge);
    product(dev, pass, &w.up, norm, up);
    dev.gelu(Gelu::Erf, up, up);
    let windowed = pass.windowed(spec);
    let to = windowed.map_or(out, |(vectors, _)| vectors);
    product_f32(dev, pass, &w.down, (up, None), to);
    if let Some((vectors, order)) = windowed {
        dev.replace_rows(vectors, order, out);
    }
}
