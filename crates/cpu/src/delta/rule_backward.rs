//! The gradient of the rule, in two steps: gradients of states go back row by row, in reverse of the forward pass; then
//! each chunk of rows gets the gradients of q, k, v and the gates from the states at its ends.
//!
//! With D the gradient of a state, w = beta du, and a = e^g, the first step is
//!
//! ```text
//! D += q do^T     du = D^T k     D -= k w^T     D *= a
//! ```
//!
//! and the second is in `chunk`.

#![allow(clippy::needless_range_loop)] // Indices run over several arrays, which stay in registers.

use super::super::CpuDevice;
use super::super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::super::norm::dot;
use super::chunk::{self, Call};
use super::rule::{Block, Space, by_width, queries_and_keys};
use super::shared::{COLUMNS, Stay, Stays, check_rows, check_segments, exp_of, rows_of};
use plimsoll_device::{DELTA_HEAD_MAX, DeltaRuleBackward, STATE_CHUNK, edges};

pub(crate) fn backward(dev: &CpuDevice, args: DeltaRuleBackward<'_>) {
    let heads = args.heads;
    let rows = rows_of(&heads, args.qkv, heads.conv_width());
    let (h, width) = (heads.value_heads, heads.value_width());
    let of_rows = [
        ("gates", args.gates, 2 * h),
        ("rest", args.rest, width),
        ("dout", args.dout, width),
        ("d_rest", args.d_rest, width),
        ("d_qkv", args.d_qkv, heads.conv_width()),
        ("d_gates", args.d_gates, 2 * h),
    ];
    check_rows(rows, of_rows);
    let all = Stays::new(dev, args.places, rows);
    assert_eq!(check_segments(all.segments, rows), rows, "every row is in a segment");
    assert_eq!(args.states.len() % heads.state(), 0, "whole states");
    assert_eq!(args.states.len(), args.d_states.len(), "states and their gradients");
    all.check_places(args.states.len() / heads.state(), |segment| edges(segment.rows));
    assert!(all.iter().all(|stay| stay.to.is_some()), "states of all chunks have places");
    by_dtype!(args.qkv, T => {
        let call = Call::<T> {
            heads,
            all,
            qkv: dev.read(args.qkv),
            gates: dev.read(args.gates),
            states: dev.read(args.states),
            rest: dev.read(args.rest),
            dout: dev.read(args.dout),
            d_rest: dev.write(args.d_rest),
            d_states: dev.write(args.d_states),
            d_qkv: dev.write(args.d_qkv),
            d_gates: dev.write(args.d_gates),
        };
        let blocks = heads.value_dim.div_ceil(COLUMNS);
        for &wave in all.waves().iter().rev() {
            dev.pool().run(all.len() * h * blocks, &|task, _thread| {
                let stay = all.at(task / (h * blocks));
                if stay.is_child() == wave {
                    walk_back::<T>(dev.isa(), &call, &stay, task / blocks % h, task % blocks * COLUMNS);
                }
            });
        }
        let chunks = all.iter().map(|stay| stay.segment.rows.div_ceil(STATE_CHUNK)).sum::<usize>();
        dev.pool().run(chunks * heads.key_heads, &|task, _thread| {
            chunk::backward::<T>(dev.isa(), &call, &call.chunk(task / heads.key_heads), task % heads.key_heads);
        });
    });
}

simd_fn! {
    /// Computes the rows of a segment in reverse, for the columns of a head's state from `column` on.
    fn walk_back[T: Lanes](s: S, call: &Call<'_, T>, stay: &Stay, head: usize, column: usize) {
        by_width!(S, T, (s, call, stay, head, column));
    }
}

/// Computes the rows of a segment in reverse, for W vectors of columns. Returns W.
#[inline(always)]
fn walk_columns<S: Simd, T: Lanes, const W: usize>(
    s: S,
    call: &Call<'_, T>,
    stay: &Stay,
    head: usize,
    column: usize,
    space: &mut Space,
) -> usize {
    let (heads, rows) = (&call.heads, stay.segment.rows);
    let (keys, own) = (heads.key_dim, space.block(W * LANES));
    let first = stay.to.expect("states of all chunks have places");
    let place = |place: usize| Block::at(&call.d_states, heads, place, head, column);
    // SAFETY: blocks have dk rows of W vectors; no other task has these columns of this head in the segment's places;
    // those of children were written in the wave before.
    unsafe {
        let mut from = place(first + edges(rows) - 1);
        from.clear::<S, W>(s, keys);
        if !stay.is_child() && call.all.has_parents {
            let is_own = |child: &Stay| child.segment.parent as usize == stay.segment.first_row;
            for child in call.all.iter().filter(is_own) {
                place(child.to.expect("states of all chunks have places")).add_to::<S, W>(s, keys, from);
            }
        }
        for t in (0..rows).rev() {
            let to = if t % STATE_CHUNK == 0 { place(first + t / STATE_CHUNK) } else { own };
            row_back::<S, T, W>(s, call, stay.segment.first_row + t, head, column, from, to);
            from = to;
        }
    }
    W
}

/// Computes one row: reads the gradient of the state after it at `from`, writes that of the state before it to `to`.
///
/// # Safety
/// Both have dk rows of W vectors, which no other task writes; they are the same or apart.
#[inline(always)]
unsafe fn row_back<S: Simd, T: Lanes, const W: usize>(
    s: S,
    call: &Call<'_, T>,
    m: usize,
    head: usize,
    column: usize,
    from: Block,
    to: Block,
) {
    let heads = &call.heads;
    let h = heads.value_heads;
    let (q, k) = (&mut [0.0; DELTA_HEAD_MAX], &mut [0.0; DELTA_HEAD_MAX]);
    let (q, k) = queries_and_keys(s, heads, &call.qkv[m * heads.conv_width()..], head, q, k);
    let gates = &call.gates[m * 2 * h..][..2 * h];
    let (decay, beta) = (s.splat(exp_of(s, gates[head])), s.splat(gates[h + head]));
    let at = m * heads.value_width() + head * heads.value_dim + column;
    let (dout, both) = (&call.dout[at..][..W * LANES], s.splat(dot(s, q, k)));
    // SAFETY: the caller promises dk rows of both blocks; row m's elements of this head's columns are this task's.
    unsafe {
        // D^T k before do is added: with it, q k times do more.
        let read = from.times::<S, W>(s, k);
        let (mut douts, mut minus) = (read, read);
        for w in 0..W {
            douts[w] = T::load_at(s, dout.as_ptr().add(w * LANES));
            let du = s.fma(both, douts[w], read[w]);
            s.store(call.d_rest.range(at + w * LANES, LANES).as_mut_ptr(), du);
            minus[w] = s.sub(s.splat(0.0), s.mul(beta, du));
        }
        for i in 0..heads.key_dim {
            let (q, k) = (s.splat(q[i]), s.splat(k[i]));
            for w in 0..W {
                let old = s.load(from.first.add(i * from.stride + w * LANES));
                let new = s.fma(k, minus[w], s.fma(q, douts[w], old));
                s.store(to.first.add(i * to.stride + w * LANES), s.mul(decay, new));
            }
        }
    }
}
