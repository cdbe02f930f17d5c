//! Routing of rows to experts, gates of expert products, and sums over experts' outputs. `matmul` has their products.
//!
//! Legend: M rows, E experts of which each row has k, P = M k pairs, f feed-forward width of an expert. A row or pair
//! depends on its own numbers only; just the order of pairs is made for all rows together, from integers.

use super::delta::shared::sigmoid;
use super::elementwise::split;
use super::gate::{clamped, gated, slopes};
use super::lanes::{LANES, Lanes, Simd, by_dtype, exp_in_place, simd_fn};
use super::router::{RowShares, SigmoidRouter};
use super::{CpuDevice, Real, Shared};
use plimsoll_arch::{EXPERTS_MAX, GATE_LIMIT, Gate};
use plimsoll_device::{
    Balance, GluExpertsBackward, GluSharedBackward, RouteBackward, Routes, Routing, SEGMENT_FIELDS,
};
use plimsoll_memory::Buf;
use std::ops::Range;

pub(super) fn route(dev: &CpuDevice, logits: Buf<'_>, how: Routing<'_>, to: Routes<'_>) {
    let (rows, Routing { experts: count, chosen, normalizes, .. }) = (check(&how, logits, &to), how);
    let router = SigmoidRouter::of(dev, &how);
    let logits = dev.read::<f32>(logits);
    let (experts, weights) = (dev.write::<u32>(to.experts), dev.write::<f32>(to.weights));
    split(dev, rows, count, &|part| {
        for m in part {
            // SAFETY: ranges of rows are disjoint, and each is one task's.
            let (experts, weights) =
                unsafe { (experts.range(m * chosen, chosen), weights.range(m * chosen, chosen)) };
            let logits = &logits[m * count..][..count];
            if let Some(router) = &router {
                router.route(dev, logits, (experts, weights), choose);
            } else {
                choose(logits, experts);
                weigh(dev, logits, experts, normalizes, weights);
            }
        }
    });
    let whole = |buf: Buf<'_>| dev.write::<u32>(buf);
    let (pairs, places, starts) = (whole(to.pairs), whole(to.places), whole(to.starts));
    // SAFETY: no task runs, and the operation has claimed the buffers.
    unsafe {
        let all = |buf: Shared<'_, u32>| std::slice::from_raw_parts_mut(buf.as_ptr(), buf.len());
        order(all(experts), all(pairs), all(places), all(starts));
    }
}

/// Checks the operands of routing, and returns M.
fn check(how: &Routing<'_>, logits: Buf<'_>, routes: &Routes<'_>) -> usize {
    let Routing { experts, chosen, .. } = *how;
    assert!((1..=experts).contains(&chosen) && experts <= EXPERTS_MAX, "{chosen} of {experts} experts");
    how.check_sigmoid();
    let rows = logits.len() / experts;
    assert_eq!(logits.len(), rows * experts, "logits [{rows}, {experts}]");
    for (buf, len) in [
        (routes.experts, rows * chosen),
        (routes.weights, rows * chosen),
        (routes.pairs, rows * chosen),
        (routes.places, rows * chosen),
        (routes.starts, experts + 1),
    ] {
        assert_eq!(buf.len(), len, "routes of {rows} rows");
    }
    rows
}

/// Chooses the k largest logits, ties by the lower number, in ascending order. NaN comes first, so that it is not lost.
fn choose(logits: &[f32], experts: &mut [u32]) {
    let comes_before = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
    let mut len = 0;
    for (expert, &logit) in logits.iter().enumerate() {
        let better = |chosen: &u32| !comes_before(logit, logits[*chosen as usize]);
        let at = experts[..len].partition_point(better);
        if at < experts.len() {
            len = (len + 1).min(experts.len());
            experts.copy_within(at..len - 1, at + 1);
            experts[at] = expert as u32;
        }
    }
    experts.sort_unstable();
}

/// Writes the probabilities of a row's experts, or their shares of the sum of these.
fn weigh(dev: &CpuDevice, logits: &[f32], experts: &[u32], normalizes: bool, weights: &mut [f32]) {
    let mut all = [0.0; EXPERTS_MAX];
    let probabilities = softmax(dev, logits, &mut all);
    for (weight, &expert) in weights.iter_mut().zip(experts) {
        *weight = probabilities[expert as usize];
    }
    if normalizes {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// Returns the softmax of a row, in f32.
fn softmax<'p>(dev: &CpuDevice, logits: &[f32], space: &'p mut [f32; EXPERTS_MAX]) -> &'p mut [f32] {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let p = &mut space[..logits.len()];
    p.iter_mut().zip(logits).for_each(|(p, logit)| *p = logit - largest);
    exp_in_place(dev.isa(), p);
    let sum: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
    p
}

/// Sorts the pairs by their experts, then by rows.
fn order(experts: &[u32], pairs: &mut [u32], places: &mut [u32], starts: &mut [u32]) {
    starts.fill(0);
    experts.iter().for_each(|&expert| starts[expert as usize + 1] += 1);
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    // `starts[e]` is the place of e's next pair until all have one: then the place of the first pair of e + 1.
    for (pair, (&expert, place)) in experts.iter().zip(places).enumerate() {
        let next = &mut starts[expert as usize];
        (*place, pairs[*next as usize]) = (*next, pair as u32);
        *next += 1;
    }
    starts.copy_within(..starts.len() - 1, 1);
    starts[0] = 0;
}

pub(super) fn glu(dev: &CpuDevice, how: Gate, gate_up: Buf<'_>, f: usize, routes: Routes<'_>, out: Buf<'_>) {
    let count = routes.pairs();
    assert_eq!((out.len(), gate_up.len()), (count * f, count * 2 * f), "{count} pairs of {f}");
    let (weights, pairs) = (dev.read::<f32>(routes.weights), dev.read::<u32>(routes.pairs));
    by_dtype!(out, T => {
        let (x, out) = (dev.read::<T>(gate_up), dev.write::<T>(out));
        split(dev, count, 2 * f, &|part| {
            for p in part {
                // SAFETY: ranges of pairs are disjoint, and each is one task's.
                let out = unsafe { out.range(p * f, f) };
                glu_row::<T>(dev.isa(), how, &x[p * 2 * f..][..2 * f], weights[pairs[p] as usize], out);
            }
        });
    });
}

simd_fn! {
    fn glu_row[T: Lanes](s: S, how: Gate, gate_up: &[T], weight: f32, out: &mut [T]) {
        if how == Gate::ClampedSilu {
            let weight = s.splat(weight);
            for (x, out) in gate_up.chunks(2 * LANES).zip(out.chunks_mut(LANES)) {
                let [g, u] = apart(x);
                let (g, u) = clamped(s, f32::load(s, &g), f32::load(s, &u));
                T::store_part(s, out, s.mul(weight, gated(s, how, g, u)));
            }
            return;
        }
        let (gate, up) = gate_up.split_at(out.len());
        let ((gate, gate_rest), (up, up_rest)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
        let ((out, out_rest), weight) = (out.as_chunks_mut::<LANES>(), s.splat(weight));
        for ((g, u), out) in gate.iter().zip(up).zip(out) {
            T::store(s, out, s.mul(weight, gated(s, how, T::load(s, g), T::load(s, u))));
        }
        let rest = gated(s, how, T::load_part(s, gate_rest), T::load_part(s, up_rest));
        T::store_part(s, out_rest, s.mul(weight, rest));
    }
}

pub(super) fn glu_backward(dev: &CpuDevice, args: GluExpertsBackward<'_>) {
    let GluExpertsBackward { how, gate_up, f, routes, dout, d_weights } = args;
    let count = routes.pairs();
    assert_eq!((dout.len(), gate_up.len()), (count * f, count * 2 * f), "{count} pairs of {f}");
    assert_eq!(d_weights.len(), count, "a derivative for each pair");
    let (weights, pairs) = (dev.read::<f32>(routes.weights), dev.read::<u32>(routes.pairs));
    let d_weights = dev.write::<f32>(d_weights);
    by_dtype!(dout, T => {
        let (x, d) = (dev.write::<T>(gate_up), dev.write::<T>(dout));
        split(dev, count, 2 * f, &|part| {
            for p in part {
                // SAFETY: ranges of pairs are disjoint, and each is one task's.
                let (x, d, d_weight) =
                    unsafe { (x.range(p * 2 * f, 2 * f), d.range(p * f, f), d_weights.range(p, 1)) };
                d_weight[0] = glu_backward_row::<T>(dev.isa(), how, x, d, weights[pairs[p] as usize]);
            }
        });
    });
}

simd_fn! {
    /// Overwrites gate and up by their gradient and `d` by the forward output; returns the derivative by the weight.
    fn glu_backward_row[T: Lanes](s: S, how: Gate, gate_up: &mut [T], d: &mut [T], weight: f32) -> f32 {
        if how == Gate::ClampedSilu {
            return clamped_backward_row(s, gate_up, d, weight);
        }
        let (gate, up) = gate_up.split_at_mut(d.len());
        let (weight, mut sum) = (s.splat(weight), s.splat(0.0));
        for ((gate, up), d) in gate.chunks_mut(LANES).zip(up.chunks_mut(LANES)).zip(d.chunks_mut(LANES)) {
            // The lanes beyond the row are 0, and add 0.
            let (g, u, dout) = (T::load_part(s, gate), T::load_part(s, up), T::load_part(s, d));
            let product = gated(s, how, g, u);
            sum = s.fma(dout, product, sum);
            let (dg, du) = slopes(s, how, g, u, s.mul(weight, dout));
            T::store_part(s, gate, dg);
            T::store_part(s, up, du);
            T::store_part(s, d, s.mul(weight, product));
        }
        s.sum(sum)
    }
}

/// Returns up to 16 gates and ups that alternate; those beyond are 0.
#[inline(always)]
fn apart<T: Real>(x: &[T]) -> [[f32; LANES]; 2] {
    let mut both = [[0.0; LANES]; 2];
    for (i, pair) in x.chunks_exact(2).enumerate() {
        (both[0][i], both[1][i]) = (pair[0].to_f32(), pair[1].to_f32());
    }
    both
}

/// Computes a row of `Gate::ClampedSilu` as `glu_backward_row` says. What was clamped has a gradient of 0.
#[inline(always)]
fn clamped_backward_row<S: Simd, T: Lanes>(s: S, gate_up: &mut [T], d: &mut [T], weight: f32) -> f32 {
    let (how, weight, mut sum) = (Gate::ClampedSilu, s.splat(weight), s.splat(0.0));
    for (x, d) in gate_up.chunks_mut(2 * LANES).zip(d.chunks_mut(LANES)) {
        let [gate, up] = apart(x);
        // The lanes beyond the row are 0, and add 0.
        let dout = T::load_part(s, d);
        let (g, u) = clamped(s, f32::load(s, &gate), f32::load(s, &up));
        let product = gated(s, how, g, u);
        sum = s.fma(dout, product, sum);
        let (dg, du) = slopes(s, how, g, u, s.mul(weight, dout));
        let [mut of_gate, mut of_up] = [[0.0; LANES]; 2];
        f32::store(s, &mut of_gate, dg);
        f32::store(s, &mut of_up, du);
        for (i, pair) in x.chunks_exact_mut(2).enumerate() {
            let is_open = [gate[i] <= GATE_LIMIT, up[i].abs() <= GATE_LIMIT];
            pair[0] = T::from_f32(if is_open[0] { of_gate[i] } else { 0.0 });
            pair[1] = T::from_f32(if is_open[1] { of_up[i] } else { 0.0 });
        }
        T::store_part(s, d, s.mul(weight, product));
    }
    s.sum(sum)
}

pub(super) fn glu_shared(
    dev: &CpuDevice,
    how: Gate,
    gate_up: Buf<'_>,
    f: usize,
    logits: Buf<'_>,
    out: Buf<'_>,
) {
    let rows = logits.len();
    assert_eq!((out.len(), gate_up.len()), (rows * f, rows * 2 * f), "{rows} rows of {f}");
    let logits = dev.read::<f32>(logits);
    by_dtype!(out, T => {
        let (x, out) = (dev.read::<T>(gate_up), dev.write::<T>(out));
        split(dev, rows, 2 * f, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * f, f) };
                let weight = share::<T>(dev.isa(), logits[m]);
                glu_row::<T>(dev.isa(), how, &x[m * 2 * f..][..2 * f], weight, out);
            }
        });
    });
}

pub(super) fn glu_shared_backward(dev: &CpuDevice, args: GluSharedBackward<'_>) {
    let GluSharedBackward { how, gate_up, f, logits, dout, d_logits } = args;
    let rows = logits.len();
    assert_eq!((dout.len(), gate_up.len()), (rows * f, rows * 2 * f), "{rows} rows of {f}");
    assert_eq!(d_logits.len(), rows, "a derivative for each row");
    let logits = dev.read::<f32>(logits);
    by_dtype!(dout, T => {
        let (x, d, d_logits) = (dev.write::<T>(gate_up), dev.write::<T>(dout), dev.write::<T>(d_logits));
        split(dev, rows, 2 * f, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let (x, d, d_logit) =
                    unsafe { (x.range(m * 2 * f, 2 * f), d.range(m * f, f), d_logits.range(m, 1)) };
                let [weight, other] = [logits[m], -logits[m]].map(|logit| share::<T>(dev.isa(), logit));
                let slope = glu_backward_row::<T>(dev.isa(), how, x, d, weight);
                d_logit[0] = T::from_f32(weight * other * slope);
            }
        });
    });
}

simd_fn! {
    /// Returns 1 / (1 + e^-x).
    fn share[T: Lanes](s: S, x: f32) -> f32 {
        let mut lanes = [0.0; LANES];
        f32::store(s, &mut lanes, sigmoid(s, s.splat(x)));
        lanes[0]
    }
}

pub(super) fn combine(dev: &CpuDevice, y: Buf<'_>, routes: Routes<'_>, resid: Option<Buf<'_>>, out: Buf<'_>) {
    let count = routes.pairs();
    if count == 0 {
        return;
    }
    let h = y.len() / count;
    let rows = out.len() / h;
    let chosen = count / rows;
    assert_eq!((y.len(), out.len(), count), (count * h, rows * h, rows * chosen), "rows of {h}, and pairs");
    assert!(resid.is_none_or(|resid| resid.len() == out.len()), "the residual stream's rows");
    let (y, places) = (dev.read::<f32>(y), dev.read::<u32>(routes.places));
    // Through `write`, because it may be the output: no slices of both are formed.
    let resid = resid.map(|resid| dev.write::<f32>(resid));
    by_dtype!(out, T => {
        let out = dev.write::<T>(out);
        split(dev, rows, (chosen + 1) * h, &|part| {
            for m in part {
                // SAFETY: row m of [M, h], which only this task touches; it has been read before it is written.
                let (resid, out) = unsafe {
                    (resid.map(|resid| resid.as_ptr().add(m * h).cast_const()), out.as_ptr().add(m * h))
                };
                sum_row::<T>(dev.isa(), y, h, &places[m * chosen..][..chosen], resid, out);
            }
        });
    });
}

simd_fn! {
    /// Writes out = resid + (the rows of `y` at `places`, in order), h elements each; `out` may be `resid`.
    fn sum_row[T: Lanes](s: S, y: &[f32], h: usize, places: &[u32], resid: Option<*const f32>, out: *mut T) {
        for at in (0..h).step_by(LANES) {
            let n = LANES.min(h - at);
            let row = |place: u32| &y[place as usize * h + at..][..n];
            let mut sum = f32::load_part(s, row(places[0]));
            for &place in &places[1..] {
                sum = s.add(sum, f32::load_part(s, row(place)));
            }
            // SAFETY: at + n <= h, and the caller's rows are that long; the residual is read before `out` is written.
            unsafe {
                if let Some(resid) = resid {
                    let x = f32::load_part(s, std::slice::from_raw_parts(resid.add(at), n));
                    sum = s.add(x, sum);
                }
                T::store_part(s, std::slice::from_raw_parts_mut(out.add(at), n), sum);
            }
        }
    }
}

pub(super) fn route_backward(dev: &CpuDevice, args: RouteBackward<'_>) {
    let rows = check(&args.how, args.logits, &args.routes);
    assert_eq!(args.d_logits.len(), args.logits.len(), "logits and their gradient");
    assert_eq!(args.d_weights.len(), args.routes.pairs(), "a derivative for each pair");
    by_dtype!(args.d_logits, T => {
        let of = LogitGradient::<T> {
            dev,
            how: args.how,
            router: SigmoidRouter::of(dev, &args.how),
            logits: dev.read(args.logits),
            experts: dev.read(args.routes.experts),
            weights: dev.read(args.routes.weights),
            places: dev.read(args.routes.places),
            d_weights: dev.read(args.d_weights),
            out: dev.write(args.d_logits),
        };
        match args.balance {
            None => split(dev, rows, of.how.experts, &|part| part.for_each(|m| of.row(m, None))),
            Some(balance) => of.balanced(balance),
        }
    });
}

/// The gradient of routing by its logits.
struct LogitGradient<'a, T> {
    dev: &'a CpuDevice,
    how: Routing<'a>,
    router: Option<SigmoidRouter>,
    logits: &'a [f32],
    experts: &'a [u32],
    weights: &'a [f32],
    places: &'a [u32],
    d_weights: &'a [f32],
    out: Shared<'a, T>,
}

/// Inputs of the balance loss, for a row's segment.
#[derive(Clone, Copy)]
struct Shares<'s> {
    /// [E]: the share of the segment's rows that chose each expert.
    of: &'s [f32],
    factor: f32,
    /// In how many sequences the segment's rows are.
    times: f32,
    rows: Shared<'s, f32>,
}

impl<T: Real> LogitGradient<'_, T> {
    /// Computes all rows, one segment per task.
    fn balanced(&self, balance: Balance<'_>) {
        let segments = self.dev.read::<u32>(balance.segments).as_chunks::<SEGMENT_FIELDS>().0;
        let rows = self.dev.write::<f32>(balance.rows);
        self.dev.pool().run(segments.len(), &|task, _| {
            let [first, count, ..] = segments[task].map(|field| field as usize);
            let children = segments.iter().filter(|[.., parent]| *parent as usize == first).count();
            let times = children.max(1) as f32;
            let factor = balance.factor * times;
            let mut shares = [0.0; EXPERTS_MAX];
            let shares = &mut shares[..self.how.experts];
            for &expert in &self.experts[self.chosen(first).start..self.chosen(first + count).start] {
                shares[expert as usize] += 1.0;
            }
            shares.iter_mut().for_each(|share| *share /= count as f32);
            (first..first + count)
                .for_each(|m| self.row(m, Some(Shares { of: shares, factor, times, rows })));
        });
    }

    fn chosen(&self, m: usize) -> Range<usize> {
        m * self.how.chosen..(m + 1) * self.how.chosen
    }

    /// Computes row m, which only this task touches.
    fn row(&self, m: usize, shares: Option<Shares<'_>>) {
        let Routing { experts: count, normalizes, .. } = self.how;
        let chosen = self.chosen(m);
        if let Some(router) = &self.router {
            return self.sigmoid_row(router, m, shares);
        }
        let (experts, weights) = (&self.experts[chosen.clone()], &self.weights[chosen.clone()]);
        let d_weight = |j: usize| self.d_weights[self.places[chosen.start + j] as usize];
        let (mut space, mut d) = ([0.0; EXPERTS_MAX], [0.0; EXPERTS_MAX]);
        let d = &mut d[..count];
        // The weights of a row, or its probabilities, through the softmax that they are: w (dw - sum of w dw).
        let mean: f32 = weights.iter().enumerate().map(|(j, weight)| weight * d_weight(j)).sum();
        let p = if normalizes && shares.is_none() {
            &mut space[..count]
        } else {
            softmax(self.dev, &self.logits[m * count..][..count], &mut space)
        };
        if !normalizes {
            d.iter_mut().zip(&*p).for_each(|(d, p)| *d = -p * mean);
        }
        for (j, (&expert, &weight)) in experts.iter().zip(weights).enumerate() {
            let own = if normalizes { d_weight(j) - mean } else { d_weight(j) };
            d[expert as usize] += weight * own;
        }
        if let Some(Shares { of, factor, times, rows }) = shares {
            let mean: f32 = p.iter().zip(of).map(|(p, share)| p * share).sum();
            d.iter_mut().zip(&*p).zip(of).for_each(|((d, p), share)| *d += factor * p * (share - mean));
            // SAFETY: row m is this task's.
            let to = unsafe { rows.range(m, 1) };
            to[0] = times * mean;
        }
        self.write(m, d);
    }

    /// Computes row m of a router of sigmoids.
    fn sigmoid_row(&self, router: &SigmoidRouter, m: usize, shares: Option<Shares<'_>>) {
        let (count, chosen) = (self.how.experts, self.chosen(m));
        let d_weight = |j: usize| self.d_weights[self.places[chosen.start + j] as usize];
        let (logits, experts) = (&self.logits[m * count..][..count], &self.experts[chosen.clone()]);
        let mut d = [0.0; EXPERTS_MAX];
        let of_row = shares.map(|Shares { of, factor, .. }| RowShares { of, factor });
        let mean = router.backward(self.dev, logits, experts, d_weight, of_row, &mut d[..count]);
        if let Some(Shares { times, rows, .. }) = shares {
            // SAFETY: row m is this task's.
            let to = unsafe { rows.range(m, 1) };
            to[0] = times * mean;
        }
        self.write(m, &d[..count]);
    }

    /// Writes the derivatives of row m.
    fn write(&self, m: usize, d: &[f32]) {
        // SAFETY: row m is this task's.
        let out = unsafe { self.out.range(m * d.len(), d.len()) };
        out.iter_mut().zip(d).for_each(|(out, d)| *out = T::from_f32(*d));
    }
}
