//! Muon's operations besides its products: momentum, matrices in another order of elements, and the step.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::norm::{load_any, store_any};
use super::{Real, Shared};
use plimsoll_base::DType;
use plimsoll_device::{Arrange, Descent, Matrix, MatrixLayout, Momentum, PANEL};
use plimsoll_memory::Buf;

pub(super) fn momentum(dev: &CpuDevice, how: Momentum, grad: Buf<'_>, m: Buf<'_>) {
    let n = grad.len();
    assert_eq!(m.len(), n, "lengths of a gradient and its momentum");
    by_dtype!(grad, G => {
        let (g, m) = (dev.write::<G>(grad), dev.write::<f32>(m));
        split(dev, n.div_ceil(LANES), LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(n));
            // SAFETY: parts are disjoint, and each is one task's.
            let (g, m) = unsafe { (g.range(start, end - start), m.range(start, end - start)) };
            momentum_part::<G>(dev.isa(), &how, g, m);
        });
    });
}

simd_fn! {
    fn momentum_part[G: Lanes](s: S, how: &Momentum, g: &mut [G], m: &mut [f32]) {
        for at in (0..g.len()).step_by(LANES) {
            let here = at..(at + LANES).min(g.len());
            let grad = s.mul(load_any(s, &g[here.clone()]), s.splat(how.grad_scale));
            let old = load_any(s, &m[here.clone()]);
            let new = s.fma(s.sub(grad, old), s.splat(how.rest), old);
            let to = if how.nesterov { s.fma(s.sub(grad, new), s.splat(how.rest), new) } else { new };
            store_any(s, &mut m[here.clone()], new);
            store_any(s, &mut g[here], to);
        }
    }
}

pub(super) fn descend(
    dev: &CpuDevice,
    how: Descent,
    direction: Buf<'_>,
    weights: Buf<'_>,
    master: Option<Buf<'_>>,
) {
    let n = weights.len();
    assert_eq!([direction.len(), master.map_or(n, |b| b.len())], [n; 2], "lengths of a step");
    assert!(master.is_some() || weights.dtype() == DType::F32, "bf16 weights have a copy in f32");
    by_dtype!(weights, W => {
        let (d, w) = (dev.read::<f32>(direction), dev.write::<W>(weights));
        let master = master.map(|b| dev.write::<f32>(b));
        split(dev, n.div_ceil(LANES), LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(n));
            // SAFETY: parts are disjoint, and each is one task's.
            unsafe {
                let w = w.range(start, end - start);
                let master = master.as_ref().map(|b| b.range(start, end - start));
                descend_part::<W>(dev.isa(), &how, &d[start..end], w, master);
            }
        });
    });
}

simd_fn! {
    fn descend_part[W: Lanes](s: S, how: &Descent, d: &[f32], w: &mut [W], master: Option<&mut [f32]>) {
        let mut master = master;
        for at in (0..w.len()).step_by(LANES) {
            let here = at..(at + LANES).min(w.len());
            let old = match &master {
                Some(master) => load_any(s, &master[here.clone()]),
                None => load_any(s, &w[here.clone()]),
            };
            let kept = s.mul(old, s.splat(how.keep));
            let new = s.fma(load_any(s, &d[here.clone()]), s.splat(-how.rate), kept);
            if let Some(master) = &mut master {
                store_any(s, &mut master[here.clone()], new);
            }
            store_any(s, &mut w[here], new);
        }
    }
}

pub(super) fn arrange(dev: &CpuDevice, src: Matrix<'_>, dst: Matrix<'_>, what: Arrange) {
    what.check([src.n, src.k], [dst.n, dst.k]);
    let out = dev.write::<f32>(dst.buf);
    by_dtype!(src.buf, T => arrange_as::<T>(dev, src, dev.read::<T>(src.buf), dst, &out, what));
}

/// Copies by groups of 16 rows of dst, which are contiguous in every order.
fn arrange_as<T: Real + Sync>(
    dev: &CpuDevice,
    src: Matrix<'_>,
    x: &[T],
    dst: Matrix<'_>,
    out: &Shared<'_, f32>,
    what: Arrange,
) {
    let Arrange { from, to, rows, turned } = what;
    let panels = to / PANEL..(to + rows).div_ceil(PANEL);
    let start_of = |panel: usize| match dst.layout {
        MatrixLayout::Rows => (panel * PANEL).min(dst.n) * dst.k,
        _ => dst.layout.index(dst.k, panel * PANEL, 0),
    };
    split(dev, panels.len(), PANEL * dst.k, &|part| {
        for panel in panels.start + part.start..panels.start + part.end {
            let start = start_of(panel);
            // SAFETY: panels are disjoint, and each is one task's.
            let out = unsafe { out.range(start, start_of(panel + 1) - start) };
            for row in (panel * PANEL).max(to)..((panel + 1) * PANEL).min(to + rows) {
                for col in 0..dst.k {
                    let at = if turned { (from + col, row - to) } else { (from + row - to, col) };
                    out[dst.layout.index(dst.k, row, col) - start] =
                        x[src.layout.index(src.k, at.0, at.1)].to_f32();
                }
            }
        }
    });
}
