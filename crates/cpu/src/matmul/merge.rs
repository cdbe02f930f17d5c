//! Adapters added to the weights of a layer, in the order in which products read them.
//!
//! Legend: N outputs and K inputs of the layer, r rank of a block. A task has a panel: 16 outputs.

use super::operand::{Operand, Panels};
use crate::elementwise::{copy_bytes, panel_elements};
use crate::lanes::by_dtype;
use crate::{CpuDevice, Shared};
use plimsoll_arch::LoraShape;
use plimsoll_device::{Adapter, AdapterBlock, Matrix, PANEL};

/// Writes out = w + scale B_i A_i in each block, else w: a chain of r f32 sums, rounded once. `w`, `out`: [N, K].
pub(crate) fn merge(dev: &CpuDevice, w: Matrix<'_>, adapter: Adapter<'_>, out: Matrix<'_>) {
    assert_eq!((w.n, w.k, w.layout), (out.n, out.k, out.layout), "w and out of one shape");
    assert_eq!((adapter.a.k, adapter.a.layout), (w.k, w.layout), "A of as many inputs");
    adapter.check_width(w.n);
    copy_bytes(dev, w.buf, out.buf);
    by_dtype!(w.buf, E => {
        let (a, to) = (dev.read::<E>(adapter.a.buf), dev.write::<E>(out.buf));
        for (i, block) in adapter.blocks() {
            let product = Product::<E> { a, first_row: i * adapter.rank(), b: Panels::new(dev, block.b), block, scale: adapter.scale };
            let panels = block.first / PANEL..(block.first + block.b.n).div_ceil(PANEL);
            dev.pool().run(panels.len(), &|task, _| {
                // SAFETY: a task writes the elements of its own panel.
                unsafe { product.add_to_panel(panels.start + task, out, to) };
            });
        }
    });
}

/// scale B A of one block.
struct Product<'a, E> {
    /// A of all blocks; this block's begins at `first_row`.
    a: &'a [E],
    first_row: usize,
    b: Panels<'a, E>,
    block: AdapterBlock<'a>,
    scale: f32,
}

impl<E: Operand> Product<'_, E> {
    /// Adds the block's outputs that are in a panel.
    ///
    /// # Safety
    /// No other task uses the panel.
    unsafe fn add_to_panel(&self, panel: usize, out: Matrix<'_>, to: Shared<'_, E>) {
        let Matrix { k, layout, .. } = out;
        let (first, end) = (self.block.first, self.block.first + self.block.b.n);
        let (rank, output) = (self.b.k, |lane: usize| panel * PANEL + lane);
        // B of the panel's outputs, zero for those of other blocks or none: [r][16].
        let mut b = [[0.0f32; PANEL]; LoraShape::RANK_MAX as usize];
        let b = &mut b[..rank];
        for lane in (0..PANEL).filter(|&lane| (first..end).contains(&output(lane))) {
            for (j, b) in b.iter_mut().enumerate() {
                b[lane] = self.b.data[layout.index(rank, output(lane) - first, j)].to_f32();
            }
        }
        let size = panel_elements(out);
        // SAFETY: the caller promises that the panel is this task's.
        let to = unsafe { to.range(panel * size, size) };
        for col in 0..k {
            let mut sum = [0.0f32; PANEL];
            for (j, b) in b.iter().enumerate() {
                let a = self.a[layout.index(k, self.first_row + j, col)].to_f32();
                for (sum, b) in sum.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
            for (lane, sum) in sum.into_iter().enumerate() {
                if (first..end).contains(&output(lane)) {
                    let to = &mut to[layout.index(k, lane, col)];
                    *to = E::from_f32(to.to_f32() + self.scale * sum);
                }
            }
        }
    }
}
