//! Biases of experts' products, and their gradients. `matmul` has the products.
//!
//! Legend: M rows, E experts of which each row has k, P = M k pairs, N outputs of an expert. A pair depends on its own
//! numbers only, and a bias's gradient is one chain over the pairs of its expert.

use super::CpuDevice;
use super::elementwise::{begin_sum, split};
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::norm::dot;
use plimsoll_device::{ExpertBiasBackward, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Columns that are summed at a time.
const COLUMNS: usize = 16 * LANES;

/// The pairs of a pass, with their rows, experts and weights.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    pairs: &'a [u32],
    experts: &'a [u32],
    weights: &'a [f32],
    starts: &'a [u32],
    /// k.
    chosen: usize,
}

impl<'a> Pairs<'a> {
    /// Reads the routes of `rows` rows.
    fn new(dev: &'a CpuDevice, routes: &Routes<'a>, rows: usize) -> Pairs<'a> {
        let count = routes.pairs();
        assert!(count == 0 || count.is_multiple_of(rows), "{count} pairs of {rows} rows");
        Pairs {
            pairs: dev.read(routes.pairs),
            experts: dev.read(routes.experts),
            weights: dev.read(routes.weights),
            starts: dev.read(routes.starts),
            chosen: count.checked_div(rows).unwrap_or(1).max(1),
        }
    }

    fn row(&self, p: usize) -> usize {
        self.pairs[p] as usize / self.chosen
    }

    fn expert(&self, p: usize) -> usize {
        self.experts[self.pairs[p] as usize] as usize
    }

    fn weight(&self, p: usize, weighs: bool) -> f32 {
        if weighs { self.weights[self.pairs[p] as usize] } else { 1.0 }
    }
}

pub(super) fn add(dev: &CpuDevice, out: Buf<'_>, bias: Buf<'_>, routes: Routes<'_>, weighs: bool) {
    let (count, n) = (routes.pairs(), bias.len() / routes.count());
    assert_eq!((out.len(), bias.len()), (count * n, routes.count() * n), "{count} pairs of {n}");
    // Rows are not asked for: any number of pairs a row will do.
    let of = Pairs::new(dev, &routes, count);
    by_dtype!(out, O => by_dtype!(bias, B => {
        let (out, bias) = (dev.write::<O>(out), dev.read::<B>(bias));
        split(dev, count, n, &|part| {
            for p in part {
                // SAFETY: ranges of pairs are disjoint, and each is one task's.
                let out = unsafe { out.range(p * n, n) };
                add_row::<O, B>(dev.isa(), &bias[of.expert(p) * n..][..n], of.weight(p, weighs), out);
            }
        });
    }));
}

simd_fn! {
    /// Adds weight times `x` to `out`, rounded once.
    fn add_row[O: Lanes, X: Lanes](s: S, x: &[X], weight: f32, out: &mut [O]) {
        let weight = s.splat(weight);
        for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
            let sum = s.fma(weight, X::load_part(s, x), O::load_part(s, out));
            O::store_part(s, out, sum);
        }
    }
}

pub(super) fn backward(dev: &CpuDevice, args: ExpertBiasBackward<'_>) {
    let ExpertBiasBackward { dy, dy_has, routes, weighs, grad, add } = args;
    let (experts, count) = (routes.count(), routes.pairs());
    let n = grad.len() / experts;
    let rows = dy.len() / n;
    assert_eq!((grad.len(), dy.len()), (experts * n, rows * n), "rows of {n}");
    assert!(dy_has == RowsOf::Rows || rows == count, "a row for each pair");
    begin_sum(dev, grad, add);
    let of = Pairs::new(dev, &routes, rows);
    by_dtype!(dy, T => by_dtype!(grad, G => {
        let (dy, grad) = (dev.read::<T>(dy), dev.write::<G>(grad));
        split(dev, experts, count / experts * n, &|part| {
            for expert in part {
                // SAFETY: experts are disjoint, and each is one task's.
                let grad = unsafe { grad.range(expert * n, n) };
                for (index, grad) in grad.chunks_mut(COLUMNS).enumerate() {
                    let mut sums = [0.0f32; COLUMNS];
                    let sums = &mut sums[..grad.len()];
                    for p in of.starts[expert] as usize..of.starts[expert + 1] as usize {
                        let row = if dy_has == RowsOf::Rows { of.row(p) } else { p };
                        let dy = &dy[row * n + index * COLUMNS..][..sums.len()];
                        add_row::<f32, T>(dev.isa(), dy, of.weight(p, weighs), sums);
                    }
                    add_row::<G, f32>(dev.isa(), sums, 1.0, grad);
                }
            }
        });
    }));
}

pub(super) fn weights_backward(
    dev: &CpuDevice,
    dy: Buf<'_>,
    bias: Buf<'_>,
    routes: Routes<'_>,
    d_weights: Buf<'_>,
) {
    let (count, n) = (routes.pairs(), bias.len() / routes.count());
    let rows = dy.len() / n;
    assert_eq!((dy.len(), bias.len()), (rows * n, routes.count() * n), "rows of {n}");
    assert_eq!(d_weights.len(), count, "a derivative for each pair");
    let of = Pairs::new(dev, &routes, rows);
    by_dtype!(dy, T => by_dtype!(bias, B => {
        let (dy, bias) = (dev.read::<T>(dy), dev.read::<B>(bias));
        let d_weights = dev.write::<f32>(d_weights);
        split(dev, count, n, &|part| {
            for p in part {
                let (dy, bias) = (&dy[of.row(p) * n..][..n], &bias[of.expert(p) * n..][..n]);
                // SAFETY: ranges of pairs are disjoint, and each is one task's.
                let d_weight = unsafe { d_weights.range(p, 1) };
                d_weight[0] += products::<T, B>(dev.isa(), dy, bias);
            }
        });
    }));
}

simd_fn! {
    /// Returns the sum of products of elements.
    fn products[X: Lanes, Y: Lanes](s: S, x: &[X], y: &[Y]) -> f32 {
        dot(s, x, y)
    }
}
