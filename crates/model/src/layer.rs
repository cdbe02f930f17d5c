//! A layer in a pass: what its parts need, and its products.

use crate::activations::bufs::LayerBufs;
use crate::activations::mode::Recompute;
use crate::decoder::Decoder;
use crate::pass::Pass;
use crate::weights::LayerParams;
use plimsoll_arch::{ModelSpec, Site};
use plimsoll_device::{Adapted, Device, Norm, Rounded};
use plimsoll_memory::Buf;

#[derive(Clone, Copy)]
pub(crate) struct LayerPass<'x, 'a, 'p> {
    pub(crate) dev: &'x dyn Device,
    pub(crate) decoder: &'x Decoder<'a>,
    pub(crate) w: &'x LayerParams<'a>,
    pub(crate) index: u32,
    pub(crate) pass: &'x Pass<'p>,
    pub(crate) bufs: &'x LayerBufs<'p>,
}

impl LayerPass<'_, '_, '_> {
    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.decoder.spec
    }

    /// Returns whether the backward pass recomputes the whole layer.
    pub(crate) fn is_made_again(&self) -> bool {
        self.pass.acts.mode.recompute().is_some_and(Recompute::is_of_layers)
    }

    /// Computes the input of a part's products: the norm of the residual stream, or the stream itself.
    pub(crate) fn part_input(&self, resid: Buf<'_>, norm: Option<Buf<'_>>, out: Buf<'_>) {
        match norm {
            Some(norm) => self.dev.rms_norm(resid, self.decoder.norm(norm), out),
            None => self.dev.cast(resid, out),
        }
    }

    /// Computes out = x W^T with bias and adapters.
    pub(crate) fn product(&self, site: Site, x: Buf<'_>, out: Buf<'_>) {
        self.linear(site, x, self.w.bias(site), None, out);
    }

    /// Computes out = x W^T + bias, or resid + x W^T, with adapters.
    fn linear(&self, site: Site, x: Buf<'_>, bias: Option<Buf<'_>>, resid: Option<Buf<'_>>, out: Buf<'_>) {
        let Self { dev, w, .. } = *self;
        match (w.adapters.added(site), resid) {
            (Some(adapter), _) => {
                let u = self.bufs.u.get(site).expect("a pass with adapters has their u");
                // A layer may have fewer of the product's linear layers than others.
                let u = u.slice(0, self.pass.rows * adapter.a.n);
                let adapted = Adapted { fp8: self.rounded(site), ..w.adapted(site, bias, adapter) };
                match w.adapters.slots.zip(self.pass.slot_rows) {
                    Some((slots, rows)) => dev.adapted_slots(x, adapted, slots.of_rows(rows), resid, u, out),
                    None => dev.adapted(x, adapted, resid, u, out),
                }
            }
            (None, resid) => match (w.codes(site), self.rounded(site), resid) {
                (Some(codes), ..) => dev.matmul_codes(x, codes, w.at(site), bias, resid, out),
                (_, Some(rounded), _) => dev.matmul_fp8(x, rounded, bias, resid, out),
                (.., Some(resid)) => dev.matmul_add(x, w.at(site), resid, out),
                (.., None) => dev.matmul(x, w.at(site), bias, out, false),
            },
        }
    }

    /// Returns what a product is computed with instead of its weights, if that is rounded to eight bits.
    pub(crate) fn rounded(&self, site: Site) -> Option<Rounded<'_>> {
        let room = || self.pass.acts.fp8.expect("a pass of rounded weights has room for rounded inputs");
        self.w.fp8(site).map(|w| Rounded { w, room: room() })
    }

    /// Computes to = from + product of `x`, with bias, or + its norm if there is one; `out` then keeps the product.
    /// The bias is added last: a library adds biases only to outputs of their own dtype.
    fn add_product(
        &self,
        site: Site,
        x: Buf<'_>,
        norm: Option<(Norm<'_>, Buf<'_>)>,
        from: Buf<'_>,
        to: Buf<'_>,
    ) {
        let bias = |out| self.w.bias(site).into_iter().for_each(|bias| self.dev.add_bias(out, bias));
        let Some((norm, out)) = norm else {
            self.linear(site, x, None, Some(from), to);
            return bias(to);
        };
        self.linear(site, x, None, None, out);
        bias(out);
        self.dev.rms_norm_add(out, norm, from, to);
    }

    /// Returns the output projection of the layer's mixer.
    pub(crate) fn output(&self) -> Site {
        self.spec().layer(self.index).mixer.output()
    }

    /// Computes the residual after attention.
    pub(crate) fn add_output(&self) {
        let Self { w, bufs, .. } = *self;
        let norm = w.attn_post_norm.map(|norm| self.decoder.norm(norm)).zip(bufs.attn_out);
        self.add_product(self.output(), bufs.mixed, norm, bufs.resid, bufs.mid);
    }

    /// Adds the down projection of the shared expert to the residual after the layer.
    pub(crate) fn add_shared(&self, product: Buf<'_>) {
        let next = self.bufs.next;
        self.linear(Site::SharedDown, product, None, Some(next), next);
    }

    /// Computes the down projection of the dense part next to experts.
    pub(crate) fn dense_out(&self, product: Buf<'_>, out: Buf<'_>) {
        self.linear(Site::SharedDown, product, None, None, out);
    }

    /// Computes the residual after a feed-forward part without experts.
    pub(crate) fn add_down(&self) {
        let Self { w, bufs, .. } = *self;
        let norm = w.ffn_post_norm.map(|norm| self.decoder.norm(norm)).zip(bufs.ffn_out);
        self.add_product(Site::Down, bufs.product, norm, bufs.mid, bufs.next);
    }
}
