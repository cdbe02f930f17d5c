//! The upward product of latent attention, head by head and with adapters: rows of its matrix, and those of B.
//!
//! A head's keys meet queries as y W, and its values meet sums of latents as x W^T. With adapters W is W + scale B A:
//! y W + (scale y B) A, and x W^T + (scale x A^T) B^T, where what is in brackets is rounded as u of any product is. The
//! gradients of both are the same sums: B gets y^T (scale x A^T), and A gets (scale y B)^T x.
//!
//! Legend: as in `arch::LatentSpec`; M rows, r rank.

use super::regions::LatentBufs;
use crate::layer::LayerPass;
use crate::layer_backward::{LayerBackward, LayerGrads};
use plimsoll_arch::Site;
use plimsoll_device::{Adapted, Adapter, AdapterBlock, Columns, HeadPart, HeadProducts, Matrix};

/// Which rows of the upward product a head has: those of its keys, or of its values.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Keys,
    Values,
}

/// Multiplies the columns of each head with its rows of the product, x W^T, or with their transpose, x W: to latents.
///
/// With adapters that are not merged, one head after another.
pub(super) fn product(
    layer: &LayerPass<'_, '_, '_>,
    bufs: &LatentBufs<'_>,
    (part, is_turned): (Part, bool),
    [x, y]: [Columns<'_>; 2],
) {
    let (dev, w) = (layer.dev, layer.w.ready(layer.dev, Site::LatentUp));
    let (first, n) = bufs.rows_of(0, part);
    let narrow = match part {
        Part::Keys => bufs.keys,
        Part::Values => bufs.values,
    };
    let of_head = HeadPart { first, step: bufs.key_dim + bufs.value_dim, rows: n };
    let (x_room, y_room) = if is_turned { (narrow, bufs.wide) } else { (bufs.wide, narrow) };
    let (rows, heads) = (bufs.rows, bufs.heads);
    let products = HeadProducts { x, w, part: of_head, y, rows, heads, is_turned, x_room, y_room };
    let Some(adapter) = layer.w.adapters.added(Site::LatentUp) else { return dev.matmul_heads(products) };
    let u = layer.bufs.u_once.expect("a pass with adapters of the product has room for u of a head");
    let u = u.slice(0, layer.pass.rows * adapter.a.n);
    let of_one = |head, x, w, y| {
        let adapted = Adapted {
            w,
            codes: None,
            fp8: None,
            bias: None,
            adapter: bufs.adapter_part(adapter, head, part),
        };
        if is_turned {
            dev.adapt_backward_u(x, adapted.adapter, u);
            dev.adapted_dx(x, adapted, u, y);
        } else {
            dev.adapted(x, adapted, None, u, y);
        }
    };
    products.one_by_one(|args| dev.move_columns(args), of_one);
}

/// Returns whether the gradient of the product, or of its adapters, is computed.
pub(super) fn is_trained(step: &LayerBackward<'_, '_, '_>) -> bool {
    step.weights().is_some() || step.layer.w.adapters.at(Site::LatentUp).is_some()
}

/// Computes the gradients of the rows of a part of all heads, from what heads have in `bufs.wide` and in their keys or
/// values.
pub(super) fn gradients(step: &LayerBackward<'_, '_, '_>, bufs: &LatentBufs<'_>, part: Part) {
    let (dev, pack) = (step.layer.dev, step.back.pack);
    let of_head = |head| match part {
        Part::Keys => bufs.key_of(head),
        Part::Values => bufs.value_of(head),
    };
    let grads = match step.grads {
        LayerGrads::Weights(grads) => {
            for head in 0..bufs.heads {
                let grad = bufs.part(grads.at(Site::LatentUp), head, part);
                dev.matmul_dw(of_head(head), bufs.wide_of(head), grad, step.add, pack);
            }
            return;
        }
        LayerGrads::Adapters(grads) => grads.at(Site::LatentUp),
    };
    let Some((grads, adapter)) = grads.zip(step.layer.w.adapters.at(Site::LatentUp)) else { return };
    let (rank, (d_u, pack)) = (adapter.a.n, step.room());
    let [u, d_u] = [step.layer.bufs.u_once.expect("an update of the product's adapters"), d_u]
        .map(|room| room.slice(0, bufs.heads * bufs.rows * rank));
    // The rows of all heads at once: A is the same for all.
    let first = bufs.adapter_part(adapter, 0, part);
    dev.adapt_down(bufs.wide, first, u);
    for head in 0..bufs.heads {
        let [u, d_u] = [u, d_u].map(|all| all.part(head, bufs.rows * rank));
        dev.adapt_backward_u(of_head(head), bufs.adapter_part(adapter, head, part), d_u);
        let b = bufs.adapter_part(grads, head, part).blocks().next().expect("one block").1.b;
        dev.matmul_dw(of_head(head), u, b, step.add, pack);
    }
    // Values come first, and keys add to what they left. The sum of both is added to that of other passes.
    let sum = step.layer.pass.acts.adapt.d_a.expect("an update of the product's adapters");
    let sum = Matrix { buf: sum.slice(0, grads.a.buf.len()), ..grads.a };
    dev.matmul_dw(d_u, bufs.wide, sum, matches!(part, Part::Keys), pack);
    if let Part::Keys = part {
        dev.accumulate(sum.buf, grads.a.buf, step.add);
    }
}

impl LatentBufs<'_> {
    /// Returns the first row of a head's part in a product, and the number of its rows.
    fn rows_of(&self, head: usize, part: Part) -> (usize, usize) {
        let first = head * (self.key_dim + self.value_dim);
        match part {
            Part::Keys => (first, self.key_dim),
            Part::Values => (first + self.key_dim, self.value_dim),
        }
    }

    /// Returns the rows of a product, or of its gradient, that are a head's.
    fn part<'w>(&self, of: Matrix<'w>, head: usize, part: Part) -> Matrix<'w> {
        let (first, rows) = self.rows_of(head, part);
        of.rows(first, rows)
    }

    /// Returns the adapter, or its gradient, of the rows that are a head's.
    fn adapter_part<'w>(&self, of: Adapter<'w>, head: usize, part: Part) -> Adapter<'w> {
        let (first, rows) = self.rows_of(head, part);
        let blocks =
            of.blocks.map(|block| block.map(|block| AdapterBlock { b: block.b.rows(first, rows), first: 0 }));
        Adapter { blocks, ..of }
    }
}
