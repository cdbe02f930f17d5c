//! Products with weights in codes: each task widens the panels that it multiplies, and no whole matrix is widened.
//!
//! A panel of widened codes is that of the widened matrix, and the product is the same chain over it, so the bits are
//! those of `dequantize` and the product after it, whatever the number of rows and threads.

use super::operand::{Operand, Panels, Rows};
use super::tile::{TILE_PANELS, TILE_ROWS, TILE_WIDTH};
use super::{Bias, TASKS_PER_THREAD, Target, product, rows_by_group};
use crate::CpuDevice;
use crate::blocks::{self, Stored};
use crate::elementwise::cast;
use crate::lanes::{Lanes, by_dtype};
use plimsoll_base::DType;
use plimsoll_device::{Codes, Matrix, MatrixLayout, PANEL};
use plimsoll_memory::Buf;

/// Minimum rows of a task, among which the panels that it widens are shared.
const ROWS_MIN: usize = 256;

/// Computes out = x W^T + bias, or resid + x W^T, of W in codes. `w` has room for W, and then parts of it.
pub(crate) fn coded(
    dev: &CpuDevice,
    x: Buf<'_>,
    codes: Codes<'_>,
    w: Matrix<'_>,
    bias: Option<Buf<'_>>,
    resid: Option<Buf<'_>>,
    out: Buf<'_>,
) {
    assert_eq!(codes.shape(), (w.n, w.k), "codes and weights of one shape");
    assert_eq!(w.layout, MatrixLayout::of_weights(&crate::LAYOUTS, w.buf.dtype()));
    assert_eq!(x.dtype(), w.buf.dtype(), "inputs are stored as weights are");
    assert_eq!(x.len() % w.k, 0, "x of {} elements for K = {}", x.len(), w.k);
    assert_eq!(out.len(), x.len() / w.k * w.n, "out of a product with N = {}", w.n);
    if let Some(resid) = resid.filter(|resid| *resid != out) {
        cast(dev, resid, out);
    }
    let add = resid.is_some();
    assert!(!add || (bias.is_none() && out.dtype() == DType::F32), "a bias, or an f32 residual stream");
    by_dtype!(x, E => by_dtype!(out, O => {
        let to = Target { bias: Bias::of(dev, bias), add, ..Target::whole(dev.write::<O>(out), w.n) };
        product_of_codes::<E, O>(dev, Rows::whole(dev.read::<E>(x), w.k), codes, w, &to);
    }));
}

fn product_of_codes<E: Operand, O: Lanes>(
    dev: &CpuDevice,
    x: Rows<'_, E>,
    codes: Codes<'_>,
    w: Matrix<'_>,
    to: &Target<'_, O>,
) {
    let (panels, threads, num_rows) = (w.n.div_ceil(PANEL), dev.pool().threads(), x.count());
    if panels < threads * TILE_PANELS {
        // A thread has no room for the panels of a tile.
        blocks::dequantize(dev, codes, w);
        return product(dev, x, &Panels::<E>::new(dev, w), to);
    }
    let (stored, room) = (Stored::new(dev, codes), dev.write::<E>(w.buf));
    let (groups, panel_len) = (w.n.div_ceil(TILE_WIDTH), w.k.next_multiple_of(E::STEP) * PANEL);
    let wanted = (TASKS_PER_THREAD * threads).div_ceil(groups);
    let chunk = num_rows.div_ceil(wanted).next_multiple_of(TILE_ROWS).max(ROWS_MIN);
    dev.pool().run(num_rows.div_ceil(chunk) * groups, &|task, thread| {
        let (group, row) = (task % groups, task / groups * chunk);
        let len = TILE_PANELS * panel_len;
        // SAFETY: a thread runs one task at a time, and this part of the room is its own.
        let b = unsafe { room.range(thread * len, len) };
        let first = group * TILE_PANELS;
        for (panel, b) in (first..panels).zip(b.chunks_exact_mut(panel_len)) {
            stored.panel(dev.isa(), panel, b);
        }
        // SAFETY: a task writes its own rows and columns.
        unsafe { rows_by_group(dev.isa(), x.part(row, chunk), b, to, row, group) };
    });
}
