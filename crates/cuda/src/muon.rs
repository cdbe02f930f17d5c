//! Launchers of `muon.cu`: Muon's operations besides its products.

use super::CudaDevice;
use super::rows::{blocks, typed};
use plimsoll_base::DType;
use plimsoll_device::{Arrange, Descent, Matrix, MatrixLayout, Momentum};
use plimsoll_memory::Buf;

pub(crate) fn momentum(dev: &CudaDevice, how: Momentum, grad: Buf<'_>, m: Buf<'_>) {
    assert_eq!((m.len(), m.dtype()), (grad.len(), DType::F32), "a gradient and its momentum");
    let args = args![dev, grad, m, grad.len() as u64, how.rest, how.grad_scale, how.nesterov];
    dev.launch("muon", typed!("momentum", grad), blocks(grad.len(), 256, 256), &args);
}

pub(crate) fn descend(
    dev: &CudaDevice,
    how: Descent,
    direction: Buf<'_>,
    weights: Buf<'_>,
    master: Option<Buf<'_>>,
) {
    let n = weights.len();
    assert_eq!([direction.len(), master.map_or(n, |b| b.len())], [n; 2], "lengths of a step");
    assert!(master.is_some() || weights.dtype() == DType::F32, "bf16 weights have a copy in f32");
    let args = args![dev, direction, weights, master, n as u64, how.keep, how.rate];
    dev.launch("muon", typed!("descend", weights), blocks(n, 256, 256), &args);
}

pub(crate) fn arrange(dev: &CudaDevice, src: Matrix<'_>, dst: Matrix<'_>, what: Arrange) {
    what.check([src.n, src.k], [dst.n, dst.k]);
    assert_eq!([src.layout, dst.layout], [MatrixLayout::Rows; 2]);
    assert_eq!(dst.buf.dtype(), DType::F32);
    let elements = (what.rows * dst.k) as u64;
    let args = args![dev, src.buf, dst.buf, src.k, dst.k, what.from, what.to, elements, what.turned];
    dev.launch("muon", typed!("arrange", src.buf), blocks(what.rows * dst.k, 256, 256), &args);
}
