//! The backward pass of a layer: what its parts need for gradients, and the gradients of its products and norms.

use crate::activations::bufs::Backward;
use crate::adapters::LayerAdapters;
use crate::layer::LayerPass;
use crate::weights::LayerParams;
use plimsoll_arch::Site;
use plimsoll_device::{AdaptBackward, Adapted, Adapter, NormGrads};
use plimsoll_memory::Buf;

/// Where the gradients of a layer go.
#[derive(Clone, Copy)]
pub(crate) enum LayerGrads<'x, 'a> {
    Weights(&'x LayerParams<'a>),
    Adapters(&'x LayerAdapters<'a>),
}

/// The backward pass of one layer; `d_resid`: gradient of its output, then input; `d_out`: the same for products.
pub(crate) struct LayerBackward<'x, 'a, 'p> {
    pub(crate) layer: &'x LayerPass<'x, 'a, 'p>,
    pub(crate) grads: LayerGrads<'x, 'a>,
    pub(crate) add: bool,
    pub(crate) back: &'x Backward<'p>,
    pub(crate) d_resid: Buf<'p>,
    pub(crate) d_out: Buf<'p>,
}

/// A product of a layer: y = x W^T, with the gradient of y.
#[derive(Clone, Copy)]
pub(crate) struct Product<'b> {
    pub(crate) site: Site,
    pub(crate) x: Buf<'b>,
    pub(crate) dy: Buf<'b>,
}

/// Inputs and outputs of a mixer's backward pass.
#[derive(Clone, Copy)]
pub(crate) struct MixerGradients<'b> {
    /// The output projection.
    pub(crate) output: Product<'b>,
    /// Written: the gradient of the output projection's input.
    pub(crate) d_mixed: Buf<'b>,
    /// Written: the gradient of the input projection's output.
    pub(crate) d_first: Buf<'b>,
    /// Written: the gradient of the mixer's input, if it is needed.
    pub(crate) d_input: Option<Buf<'b>>,
}

impl<'x, 'a, 'p> LayerBackward<'x, 'a, 'p> {
    /// Returns where weight gradients go, unless the weights are frozen.
    pub(crate) fn weights(&self) -> Option<&'x LayerParams<'a>> {
        match self.grads {
            LayerGrads::Weights(grads) => Some(grads),
            LayerGrads::Adapters(_) => None,
        }
    }

    /// Begins a product: computes the gradient of its bias, if that is trained, and of its adapters' u, which
    /// `weight_gradient` and `input_gradient` read.
    pub(crate) fn output_gradients(&self, of: Product<'_>) {
        let dev = self.layer.dev;
        if let Some((adapter, _, du)) = self.adapter(of.site) {
            dev.adapt_backward_u(of.dy, adapter, du);
        }
        if let Some(bias) = self.weights().and_then(|grads| grads.bias(of.site)) {
            dev.bias_backward(of.dy, bias, self.add);
        }
    }

    /// Computes all gradients of a product; that of its input into `d_x`, if given.
    pub(crate) fn product_gradients(&self, of: Product<'_>, d_x: Option<Buf<'_>>) {
        self.output_gradients(of);
        self.weight_gradient(of);
        if let Some(d_x) = d_x {
            self.input_gradient(of, d_x);
        }
    }

    /// Computes the gradient of a product's weights, or of its adapters.
    pub(crate) fn weight_gradient(&self, of: Product<'_>) {
        let (LayerPass { dev, w, .. }, add) = (*self.layer, self.add);
        match self.grads {
            LayerGrads::Weights(grads) => dev.matmul_dw(of.dy, of.x, grads.at(of.site), add, self.back.pack),
            LayerGrads::Adapters(grads) => {
                let Some((adapter, u, du)) = self.adapter(of.site) else { return };
                if w.adapters.are_merged {
                    dev.adapt_down(of.x, adapter, u);
                }
                let (_, pack) = self.room();
                let grads = grads.at(of.site).expect("adapters have their gradients");
                dev.adapt_backward_w(AdaptBackward { x: of.x, u, dy: of.dy, du, pack, grads, add });
            }
        }
    }

    /// Computes the gradient of a product's input.
    pub(crate) fn input_gradient(&self, of: Product<'_>, out: Buf<'_>) {
        let LayerPass { dev, w, .. } = *self.layer;
        match self.adapter(of.site).filter(|_| !w.adapters.are_merged) {
            Some((adapter, _, du)) => {
                let fp8 = self.layer.rounded(of.site);
                dev.adapted_dx(of.dy, Adapted { fp8, ..w.adapted(of.site, None, adapter) }, du, out);
            }
            None => match self.layer.rounded(of.site) {
                Some(rounded) => dev.matmul_fp8_dx(of.dy, rounded, out),
                None => dev.matmul_dx(of.dy, w.ready(dev, of.site), out, false),
            },
        }
    }

    /// Returns the adapters of a product, with u and the space for its gradient.
    fn adapter(&self, site: Site) -> Option<(Adapter<'a>, Buf<'p>, Buf<'p>)> {
        let LayerPass { w, bufs, pass, .. } = *self.layer;
        let adapter = w.adapters.at(site)?;
        let len = pass.rows * adapter.a.n;
        let once = || bufs.u_once.expect("an update of adapters").slice(0, len);
        let u = bufs.u.get(site).map_or_else(once, |u| u.slice(0, len));
        Some((adapter, u, self.room().0.slice(0, len)))
    }

    /// Returns scratch for the gradient of u and for packing, for adapters.
    pub(crate) fn room(&self) -> (Buf<'p>, Buf<'p>) {
        let of = &self.layer.pass.acts.adapt;
        let d_u = of.d_u.expect("an update of adapters");
        (d_u, of.pack.unwrap_or(d_u.slice(0, 0)))
    }

    /// Adds the gradient of a part's input to that of the residual stream; `dy` is the input's gradient, or its norm's.
    pub(crate) fn input_backward(
        &self,
        x: Buf<'_>,
        norm: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
        dy: Buf<'_>,
    ) {
        let (LayerPass { dev, w, .. }, dx, rounded) = (*self.layer, self.d_resid, self.d_out);
        match norm(w) {
            Some(_) => self.norm_backward(x, norm, dy, dx),
            None => {
                dev.accumulate(dy, dx, true);
                dev.cast(dx, rounded);
            }
        }
    }

    /// Computes the gradient of a part's output, in the dtype of products, if a norm follows it.
    pub(crate) fn post_norm_backward(
        &self,
        x: Option<Buf<'_>>,
        norm: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
    ) {
        let Some(x) = x else { return };
        let dx = self.back.d_branch.expect("an update of norms after parts").slice(0, x.len());
        self.layer.dev.zero(dx);
        self.norm_backward(x, norm, self.d_resid, dx);
    }

    /// Adds the gradient of a norm's input to `dx`, and leaves it rounded in `d_out`.
    fn norm_backward(
        &self,
        x: Buf<'_>,
        norm: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
        dy: Buf<'_>,
        dx: Buf<'_>,
    ) {
        self.norm_backward_into(x, norm, dy, (dx, Some(self.d_out)));
    }

    /// Adds the gradient of a norm's input to a buffer, and leaves it rounded in another one.
    pub(crate) fn norm_backward_into(
        &self,
        x: Buf<'_>,
        norm: impl Fn(&LayerParams<'a>) -> Option<Buf<'a>>,
        dy: Buf<'_>,
        (dx, rounded): (Buf<'_>, Option<Buf<'_>>),
    ) {
        let LayerPass { dev, w, decoder, pass, .. } = *self.layer;
        let w = norm(w).expect("a norm of the layer");
        let (dw, rstd) = (self.weights().and_then(norm), self.back.rstd.slice(0, pass.rows));
        let to = NormGrads { dx, rounded, dw, add: self.add, rstd };
        dev.rms_norm_backward(x, decoder.norm(w), dy, to);
    }
}
