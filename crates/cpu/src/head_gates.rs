//! The output gates of attention: each head of a row times the sigmoid of its own gate, stored next to its query.
//!
//! Legend: M rows, a heads of queries, k of keys and values, d elements of a head.

use super::elementwise::split;
use super::lanes::{LANES, Lanes, by_dtype, simd_fn};
use super::norm::{load_any, store_any};
use super::{CpuDevice, Shared};
use plimsoll_device::{GateHeadsBackward, Heads};
use plimsoll_memory::Buf;

/// Elements of a row: of q, of k and v, and of all with gates.
#[derive(Clone, Copy)]
struct Widths {
    d: usize,
    q: usize,
    kv: usize,
    x: usize,
}

impl Widths {
    /// Checks the rows of `x`; returns their number too.
    fn new(heads: Heads, x: Buf<'_>) -> (Widths, usize) {
        let Heads { heads: a, kv_heads: k, head_dim: d } = heads;
        assert!(a > 0 && k > 0 && d > 0, "{a} heads over {k}, of {d}");
        let widths = Widths { d, q: a * d, kv: 2 * k * d, x: 2 * (a + k) * d };
        assert_eq!(x.len() % widths.x, 0, "{} elements in rows of {}", x.len(), widths.x);
        (widths, x.len() / widths.x)
    }
}

/// Checks that a buffer has rows of `width`.
fn check(name: &str, buf: Buf<'_>, rows: usize, width: usize) {
    assert_eq!(buf.len(), rows * width, "{name} of [{rows}, {width}]");
}

pub(super) fn split_gates(dev: &CpuDevice, x: Buf<'_>, heads: Heads, out: Buf<'_>) {
    let (widths, rows) = Widths::new(heads, x);
    let Widths { d, q, kv, .. } = widths;
    check("q, k and v", out, rows, q + kv);
    by_dtype!(x, T => {
        let (x, out) = (dev.read::<T>(x), dev.write::<T>(out));
        split(dev, rows, q + kv, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * (q + kv), q + kv) };
                let (queries, others) = x[m * widths.x..][..widths.x].split_at(2 * q);
                for (out, query) in out.chunks_exact_mut(d).zip(queries.chunks_exact(2 * d)) {
                    out.copy_from_slice(&query[..d]);
                }
                out[q..].copy_from_slice(others);
            }
        });
    });
}

pub(super) fn join_gates(dev: &CpuDevice, d_qkv: Buf<'_>, heads: Heads, dx: Buf<'_>) {
    let (widths, rows) = Widths::new(heads, dx);
    let Widths { d, q, kv, .. } = widths;
    check("the gradient of q, k and v", d_qkv, rows, q + kv);
    by_dtype!(dx, T => {
        let (from, dx) = (dev.read::<T>(d_qkv), dev.write::<T>(dx));
        split(dev, rows, q + kv, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let dx = unsafe { dx.range(m * widths.x, widths.x) };
                let from = &from[m * (q + kv)..][..q + kv];
                let (queries, others) = dx.split_at_mut(2 * q);
                for (query, from) in queries.chunks_exact_mut(2 * d).zip(from.chunks_exact(d)) {
                    query[..d].copy_from_slice(from);
                }
                others.copy_from_slice(&from[q..]);
            }
        });
    });
}

pub(super) fn gate_heads(dev: &CpuDevice, x: Buf<'_>, heads: Heads, attn: Buf<'_>, out: Buf<'_>) {
    let (widths, rows) = Widths::new(heads, x);
    check("attention", attn, rows, widths.q);
    check("gated heads", out, rows, widths.q);
    by_dtype!(x, T => {
        let (x, attn, out) = (dev.read::<T>(x), dev.read::<T>(attn), dev.write::<T>(out));
        split(dev, rows, 2 * widths.q, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                let out = unsafe { out.range(m * widths.q, widths.q) };
                let attn = &attn[m * widths.q..][..widths.q];
                gate_row::<T>(dev.isa(), widths.d, &x[m * widths.x..], attn, out);
            }
        });
    });
}

simd_fn! {
    /// Gates a row. `x`: a query and its gate for each head.
    fn gate_row[T: Lanes](s: S, d: usize, x: &[T], attn: &[T], out: &mut [T]) {
        let heads = x.chunks_exact(2 * d).zip(attn.chunks_exact(d)).zip(out.chunks_exact_mut(d));
        for ((x, attn), out) in heads {
            let vectors = x[d..].chunks(LANES).zip(attn.chunks(LANES)).zip(out.chunks_mut(LANES));
            for ((gate, attn), out) in vectors {
                store_any(s, out, s.mul(load_any(s, attn), super::delta::shared::sigmoid(s, load_any(s, gate))));
            }
        }
    }
}

pub(super) fn backward(dev: &CpuDevice, args: GateHeadsBackward<'_>) {
    let GateHeadsBackward { heads, x, attn, d, dx, out } = args;
    let (widths, rows) = Widths::new(heads, x);
    for (name, buf) in [("attention", attn), ("the gradient", d), ("gated heads", out.unwrap_or(d))] {
        check(name, buf, rows, widths.q);
    }
    check("the gradient of gates", dx, rows, widths.x);
    by_dtype!(x, T => {
        let call = Call::<T> {
            widths,
            x: dev.read(x),
            attn: dev.read(attn),
            d: dev.write(d),
            dx: dev.write(dx),
            out: out.map(|out| dev.write(out)),
        };
        split(dev, rows, 4 * widths.q, &|part| part.for_each(|m| backward_row::<T>(dev.isa(), &call, m)));
    });
}

struct Call<'a, T> {
    widths: Widths,
    x: &'a [T],
    attn: &'a [T],
    d: Shared<'a, T>,
    dx: Shared<'a, T>,
    out: Option<Shared<'a, T>>,
}

simd_fn! {
    /// Computes row m, which only this task touches.
    fn backward_row[T: Lanes](s: S, call: &Call<'_, T>, m: usize) {
        let Widths { d, q, x: width, .. } = call.widths;
        for at in (0..q).step_by(d).flat_map(|head| (0..d).step_by(LANES).map(move |at| (head, at))) {
            let (head, at) = at;
            let n = LANES.min(d - at);
            let (of_gate, here) = (m * width + 2 * head + d + at, m * q + head + at);
            // SAFETY: elements of row m.
            let (to, dgate) = unsafe { (call.d.range(here, n), call.dx.range(of_gate, n)) };
            let (attn, dy) = (load_any(s, &call.attn[here..][..n]), load_any(s, to));
            let sig = super::delta::shared::sigmoid(s, load_any(s, &call.x[of_gate..][..n]));
            let slope = s.mul(sig, s.sub(s.splat(1.0), sig));
            store_any(s, dgate, s.mul(s.mul(dy, attn), slope));
            store_any(s, to, s.mul(dy, sig));
            if let Some(out) = &call.out {
                // SAFETY: elements of row m.
                store_any(s, unsafe { out.range(here, n) }, s.mul(attn, sig));
            }
        }
    }
}
