//! Low-rank adapters of linear layers and their gradients.
//!
//! Legend: M rows, N outputs and K inputs of the layer, S blocks of rank r, e the storage of activations. Products over
//! many elements go by cuBLASLt where it takes them. What is added to a layer's outputs is a sum of r products, and the
//! library would round it to bf16 before the addition: it goes by our own kernel, which rounds once.

use super::blas::{Op, Shape, Strides};
use super::matmul::{self, Product, by_library, product, rows};
use super::sgemm::{self, Columns, Sum};
use super::{CudaDevice, memory};
use plimsoll_device::{AdaptBackward, Adapter, Matrix, MatrixLayout};
use plimsoll_memory::Buf;

/// u = scale x A^T, rounded; then out += u_i B_i^T at the outputs of each block. `x`: [M, K] e; `u`: [M, S r] e;
/// `out`: [M, N] e or f32.
pub(crate) fn adapt(dev: &CudaDevice, x: Buf<'_>, adapter: Adapter<'_>, u: Buf<'_>, out: Buf<'_>) {
    let (a, r, m) = (adapter.a, adapter.rank(), rows(x, adapter.a.k));
    let width = check(&adapter, m, u, out);
    assert_eq!(u.dtype(), x.dtype(), "u is stored as inputs are");
    if m == 0 {
        return;
    }
    if by_library(dev, &[x, a.buf, u], &[a.k, a.n]) {
        let shape = Shape::new(Op::Forward, m, a.n, a.k, u.dtype());
        product(dev, shape, Product { scale: adapter.scale, ..Product::new(a.buf, x, u) });
    } else {
        let (x, to) = (Columns::whole(x, a.k), Columns::whole(u, a.n));
        sgemm::forward_columns(dev, m, x, a, None, to, Sum { scale: adapter.scale, add: false });
    }
    for (i, block) in adapter.blocks() {
        let (from, to) = (Columns::of(u, a.n, i * r), Columns::of(out, width, block.first));
        sgemm::forward_columns(dev, m, from, block.b, None, to, Sum { scale: 1.0, add: true });
    }
}

/// du_i = scale dy_i B_i of each block. `dy`: [M, N] e; `du`: [M, S r] e.
pub(crate) fn backward_u(dev: &CudaDevice, dy: Buf<'_>, adapter: Adapter<'_>, du: Buf<'_>) {
    let (sr, r, scale) = (adapter.a.n, adapter.rank(), adapter.scale);
    let m = rows(du, sr);
    let width = check(&adapter, m, du, dy);
    assert_eq!(du.dtype(), dy.dtype(), "du is stored as gradients of outputs are");
    if m == 0 {
        return;
    }
    for (i, block) in adapter.blocks() {
        let b = block.b;
        let (from, to) = (Columns::of(dy, width, block.first), Columns::of(du, sr, i * r));
        if by_library(dev, &[from.buf, b.buf, to.buf], &[b.n, r, width, sr]) {
            let strides = Strides { a: r, b: width, out: sr };
            let shape = Shape { strides, of_many: true, ..Shape::new(Op::BackwardX, m, b.n, r, du.dtype()) };
            product(dev, shape, Product { scale, ..Product::new(b.buf, from.buf, to.buf) });
        } else {
            sgemm::backward_x_columns(dev, m, from, b, to, Sum { scale, add: false });
        }
    }
}

/// grad B_i = dy_i^T u_i of each block, and grad A = du^T x, or added when `add`.
pub(crate) fn backward_w(dev: &CudaDevice, args: AdaptBackward<'_>) {
    let AdaptBackward { x, u, dy, du, grads, add, .. } = args;
    let (sr, r, m) = (grads.a.n, grads.rank(), rows(x, grads.a.k));
    let width = check(&grads, m, u, dy);
    let types = [u, dy, du].map(|buf| buf.dtype());
    assert_eq!((du.len(), types), (u.len(), [x.dtype(); 3]), "du is u's gradient, and all are stored alike");
    for (i, block) in grads.blocks() {
        if m == 0 {
            begin_sum(dev, block.b, add);
        } else {
            let (dy, u) = (Columns::of(dy, width, block.first), Columns::of(u, sr, i * r));
            columns_backward_w(dev, m, dy, u, block.b, add);
        }
    }
    matmul::backward_w(dev, du, x, grads.a, add);
}

/// grad = dy^T u of a block's columns, or grad += when `add`.
fn columns_backward_w(
    dev: &CudaDevice,
    m: usize,
    dy: Columns<'_>,
    u: Columns<'_>,
    grad: Matrix<'_>,
    add: bool,
) {
    let whole = by_library(dev, &[dy.buf, u.buf], &[grad.n, grad.k, dy.stride, u.stride]);
    if whole && dev.address(grad.buf).is_multiple_of(16) {
        let strides = Strides { a: u.stride, b: dy.stride, out: grad.k };
        let shape = Shape { strides, add, ..Shape::new(Op::BackwardW, m, grad.n, grad.k, grad.buf.dtype()) };
        product(dev, shape, Product::new(u.buf, dy.buf, grad.buf));
    } else {
        begin_sum(dev, grad, add);
        sgemm::backward_w_columns(dev, m, dy, u, grad);
    }
}

/// Makes a gradient zero to which a sum is added, unless it is to be added to what is there.
fn begin_sum(dev: &CudaDevice, grad: Matrix<'_>, add: bool) {
    if !add {
        memory::zero(dev, grad.buf);
    }
}

/// Checks that blocks fit each other, u and the layer's outputs, or their gradients, and returns N; 0 without rows.
fn check(adapter: &Adapter<'_>, m: usize, u: Buf<'_>, out: Buf<'_>) -> usize {
    let (a, r) = (adapter.a, adapter.rank());
    assert_eq!(a.n, adapter.blocks().count() * r, "A of whole blocks");
    assert_eq!((u.len(), a.layout), (m * a.n, MatrixLayout::Rows), "u of [{m}, {}]", a.n);
    let width = out.len().checked_div(m).unwrap_or_default();
    assert_eq!(out.len(), m * width, "{} elements in {m} rows", out.len());
    let mut end = 0;
    for (_, block) in adapter.blocks() {
        assert_eq!((block.b.k, block.b.layout), (r, MatrixLayout::Rows), "B of rank {r}");
        assert!(
            end <= block.first,
            "blocks by their outputs: one begins at {}, one ends at {end}",
            block.first
        );
        end = block.first + block.b.n;
    }
    assert!(m == 0 || end <= width, "a block's outputs end at {end} of {width}");
    width
}
