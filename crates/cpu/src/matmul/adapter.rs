//! Low-rank adapters of linear layers: small products that add to runs of a layer's outputs, and their gradients.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r, n outputs of a block, e the storage of
//! activations. Each product is one chain an element, as those of the layer itself.

use super::operand::{Operand, Panels, Rows};
use super::pack::Packed;
use super::{Target, add_products, product, transposed_product};
use crate::CpuDevice;
use crate::elementwise::begin_sum;
use crate::lanes::by_dtype;
use crate::{blocks, fp8};
use plimsoll_device::{AdaptBackward, Adapted, Adapter, AdapterSlots, Matrix};
use plimsoll_memory::Buf;

/// Computes u = scale x A^T, rounded. `x`: [M, K] e; `u`: [M, S r] e.
pub(crate) fn adapt_down(dev: &CpuDevice, x: Buf<'_>, adapter: Adapter<'_>, u: Buf<'_>) {
    if check_inputs(&adapter, x, u) > 0 {
        by_dtype!(x, E => {
            let a = Panels::<E>::new(dev, adapter.a);
            let to = Target { scale: Some(adapter.scale), ..Target::whole(dev.write::<E>(u), a.n) };
            product(dev, Rows::whole(dev.read::<E>(x), a.k), &a, &to);
        });
    }
}

/// Computes u, the layer's product out = x W^T with bias, or resid + x W^T, rounded, and then adds u_i B_i^T.
pub(crate) fn adapted(
    dev: &CpuDevice,
    x: Buf<'_>,
    of: Adapted<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) {
    adapt_down(dev, x, of.adapter, u);
    own_product(dev, x, of, resid, out);
    adapt_up(dev, u, of.adapter, out);
}

/// Computes a layer as `adapted` does, each run of rows of one slot with that slot's adapter.
pub(crate) fn adapted_slots(
    dev: &CpuDevice,
    x: Buf<'_>,
    of: Adapted<'_>,
    slots: AdapterSlots<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) {
    let (k, sr) = (of.adapter.a.k, of.adapter.a.n);
    let rows = check_inputs(&of.adapter, x, u);
    slots.check(rows);
    let width = of.adapter.check(rows, out);
    own_product(dev, x, of, resid, out);
    let (of_row, scales) = (dev.read::<u32>(slots.of_row), dev.read::<f32>(slots.scales));
    let mut first = 0;
    for run in of_row.chunk_by(|a, b| a == b) {
        let (slot, count) = (run[0] as usize, run.len());
        if slot < slots.count() {
            let adapter = Adapter { scale: scales[slot], ..slots.adapter(of.adapter, slot) };
            let own = u.slice(first * sr, count * sr);
            adapt_down(dev, x.slice(first * k, count * k), adapter, own);
            adapt_up(dev, own, adapter, out.slice(first * width, count * width));
        }
        first += count;
    }
}

/// Computes out = x W^T with bias, or resid + x W^T, rounded.
fn own_product(dev: &CpuDevice, x: Buf<'_>, of: Adapted<'_>, resid: Option<Buf<'_>>, out: Buf<'_>) {
    let Adapted { w, codes, fp8, bias, .. } = of;
    if let Some(rounded) = fp8 {
        return fp8::forward(dev, x, rounded, bias, resid, out);
    }
    match (codes, resid) {
        (Some(codes), _) => super::coded(dev, x, codes, w, bias, resid, out),
        (None, Some(resid)) => {
            assert!(bias.is_none(), "a bias, or a residual stream");
            super::forward_add(dev, x, w, resid, out);
        }
        (None, None) => super::forward(dev, x, w, bias, out, false),
    }
}

/// Computes out = dy W + du A: the layer's own product, rounded, and then the sum.
pub(crate) fn adapted_dx(dev: &CpuDevice, dy: Buf<'_>, of: Adapted<'_>, du: Buf<'_>, out: Buf<'_>) {
    if let Some(rounded) = of.fp8 {
        fp8::backward_x(dev, dy, rounded, out);
        return super::backward_x(dev, du, of.adapter.a, out, true);
    }
    of.codes.into_iter().for_each(|codes| blocks::dequantize(dev, codes, of.w));
    super::backward_x(dev, dy, of.w, out, false);
    super::backward_x(dev, du, of.adapter.a, out, true);
}

/// Adds u_i B_i^T to the outputs of each block. `u`: [M, S r] e; `out`: [M, N] e or f32.
fn adapt_up(dev: &CpuDevice, u: Buf<'_>, adapter: Adapter<'_>, out: Buf<'_>) {
    let (sr, r) = (adapter.a.n, adapter.rank());
    assert_eq!(u.len() % sr, 0, "u of {} elements for S r = {sr}", u.len());
    let rows = u.len() / sr;
    let width = adapter.check(rows, out);
    if rows > 0 {
        by_dtype!(u, E => by_dtype!(out, O => {
            let (u, out) = (dev.read::<E>(u), dev.write::<O>(out));
            for (i, block) in adapter.blocks() {
                let b = Panels::<E>::new(dev, block.b);
                let to = Target { start: block.first, cols: b.n, add: true, ..Target::whole(out, width) };
                product(dev, Rows::columns(u, sr, i * r, r), &b, &to);
            }
        }));
    }
}

/// Computes du_i = scale dy_i B_i of each block. `dy`: [M, N] e; `du`: [M, S r] e.
pub(crate) fn adapt_backward_u(dev: &CpuDevice, dy: Buf<'_>, adapter: Adapter<'_>, du: Buf<'_>) {
    let (sr, r) = (adapter.a.n, adapter.rank());
    assert_eq!((du.len() % sr, du.dtype()), (0, dy.dtype()), "du of {} elements for S r = {sr}", du.len());
    let rows = du.len() / sr;
    let width = adapter.check(rows, dy);
    if rows == 0 {
        return;
    }
    by_dtype!(dy, E => {
        let (dy, du) = (dev.read::<E>(dy), dev.write::<E>(du));
        for (i, block) in adapter.blocks() {
            let b = Panels::<E>::new(dev, block.b);
            let to = Target { start: i * r, cols: r, scale: Some(adapter.scale), ..Target::whole(du, sr) };
            transposed_product(dev, Rows::columns(dy, width, block.first, b.n), &b, &to);
        }
    });
}

/// Writes grad B_i = dy_i^T u_i of each block and grad A = du^T x, or adds them when `add`.
pub(crate) fn adapt_backward_w(dev: &CpuDevice, args: AdaptBackward<'_>) {
    let AdaptBackward { x, u, dy, du, grads, .. } = args;
    let rows = check_inputs(&grads, x, u);
    let width = grads.check(rows, dy);
    assert_eq!((du.len(), du.dtype()), (u.len(), u.dtype()), "du is u's gradient");
    assert_eq!(dy.dtype(), x.dtype(), "gradients of outputs are stored as activations are");
    begin_sum(dev, grads.a.buf, args.add);
    grads.blocks().for_each(|(_, block)| begin_sum(dev, block.b.buf, args.add));
    if rows == 0 {
        return;
    }
    let (sr, r) = (grads.a.n, grads.rank());
    by_dtype!(x, E => {
        let [x, u, dy, du] = [x, u, dy, du].map(|buf| dev.read::<E>(buf));
        for (i, block) in grads.blocks() {
            let (dy, u) = (Rows::columns(dy, width, block.first, block.b.n), Rows::columns(u, sr, i * r, r));
            add_gradient(dev, args.pack, dy, u, block.b);
        }
        add_gradient(dev, args.pack, Rows::whole(du, sr), Rows::whole(x, grads.a.k), grads.a);
    });
}

/// Adds dy^T x over the rows to grad.
fn add_gradient<E: Operand>(
    dev: &CpuDevice,
    pack: Buf<'_>,
    dy: Rows<'_, E>,
    x: Rows<'_, E>,
    grad: Matrix<'_>,
) {
    let mut parts = Packed::<E>::new(dev.write(pack), x.count(), grad.n, grad.k);
    parts.pack_x(dev, x);
    parts.pack_dy(dev, dy);
    by_dtype!(grad.buf, G => add_products::<E, G>(dev, &parts, dev.write::<G>(grad.buf), grad.layout));
}

/// Checks the layer's inputs and u, and returns M.
fn check_inputs(adapter: &Adapter<'_>, x: Buf<'_>, u: Buf<'_>) -> usize {
    let a = adapter.a;
    assert_eq!(x.len() % a.k, 0, "x of {} elements for K = {}", x.len(), a.k);
    let rows = x.len() / a.k;
    assert_eq!((u.len(), u.dtype()), (rows * a.n, x.dtype()), "u of [{rows}, {}]", a.n);
    rows
}
