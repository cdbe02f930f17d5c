//! Tests what attention must do on every device.

use super::{
    FAMILY, Pass, Piece, SHAPES, SUNK, Sequence, Shape, Spec, capped, latent, reference, sequences, shape,
    sunk, windowed,
};
use crate::both::{Machine, Open, bits, check_close, close, f64s};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::ALL_KEYS;
use std::ops::Range;

/// Shapes whose gradients are compared.
pub const GRADIENT_SHAPES: [Shape; 19] = [
    shape(9, 3, 64, Bf16),
    shape(2, 2, 128, Bf16),
    shape(6, 1, 128, Bf16),
    shape(7, 1, 16, Bf16),
    shape(9, 3, 64, F32),
    shape(4, 2, 48, F32),
    windowed(1, shape(9, 3, 64, Bf16)),
    windowed(40, shape(6, 1, 128, Bf16)),
    windowed(130, shape(2, 1, 256, Bf16)),
    windowed(37, shape(9, 3, 64, F32)),
    capped(1.5, shape(4, 2, 48, F32)),
    capped(4.0, shape(2, 1, 32, Bf16)),
    shape(8, 2, 256, Bf16),
    shape(2, 1, 304, Bf16),
    shape(2, 2, 576, F32),
    latent(3, 16, 48, Bf16),
    latent(4, 64, 576, Bf16),
    latent(20, 64, 576, Bf16),
    latent(2, 64, 576, F32),
];

/// Returns what an element of an output may be off by; values are below 2.5. f32: |scores| up to about 8 with errors of
/// d/2 units, and exponentials good to 2^-22. bf16 rounds the result, by at most 2^-8 of it; and a card weights too,
/// by 2^-9 each, which add up as random errors do.
pub fn allowed<D: Machine>(e: DType, x: f64) -> f64 {
    match e {
        Bf16 if D::ROUNDS_WEIGHTS => 1e-2,
        Bf16 => x.abs() / 256.0 + 1e-5,
        _ => 1e-5,
    }
}

/// Panics unless rows of a sequence of `len` keys are close to f64, those at `positions` of the pass over `rows`.
pub fn check_rows<D: Machine>(
    open: Open<D>,
    s: Shape,
    len: usize,
    rows: Range<usize>,
    positions: impl Iterator<Item = usize>,
) {
    let x = sequences(s, &[(None, 0, len)]);
    let all = Pass::new(s, &x, len, &[(0, rows.start, rows.end)]).each(open);
    for (p, head) in positions.flat_map(|p| (0..s.a).map(move |head| (p, head))) {
        let (_, want, want_lse) = reference::row(s, &x[0], p, head);
        let scale: Vec<f64> = want.iter().map(|&x| allowed::<D>(s.e, x)).collect();
        let place = (p - rows.start) * s.a + head;
        for [out, lse] in &all {
            let used = |x: usize| s.unused() + x * s.d..(x + 1) * s.d;
            check_close(&out[used(place)], &want[used(0)], &scale[used(0)], 1.0, &format!("{s:?} out {p}"));
            close(&format!("{s:?} lse {p}"), &lse[place..][..1], &[want_lse], 2e-5);
        }
    }
}

pub fn chunks_beyond_the_first_are_merged<D: Machine>(open: Open<D>) {
    // Windows that begin in the first chunk, in the second, at its edge, and in the row's own.
    for window in [ALL_KEYS, 900, 511, 512, 513, 9] {
        check_rows(open, windowed(window, shape(3, 1, 32, F32)), 1100, 1010..1040, 1010..1040);
    }
}

/// Where a long sequence is cut.
pub struct Cuts<'c> {
    /// First positions of prefills of the long one.
    pub prefills: &'c [usize],
    /// Positions that are decoded.
    pub decodes: &'c [usize],
    /// Bounds on keys that decode of a position is given.
    pub bounds: fn(usize) -> Vec<usize>,
}

/// A long sequence, and short ones around blocks.
pub fn to_cut(s: Shape, long: usize) -> Vec<Sequence> {
    sequences(s, &[long, 45, 1, 16, 33, 64, 65].map(|len| (None, 0, len)))
}

/// Panics unless bits of a row of `to_cut` do not depend on calls, segments, chunks or unused slots; returns those of a
/// pass over all rows.
pub fn check_cuts<D: Machine>(
    open: Open<D>,
    s: Shape,
    x: &[Sequence],
    cuts: &Cuts<'_>,
) -> Vec<[Vec<f32>; 2]> {
    let long = x[0].len;
    let train = Pass::whole(s, x).each(open);
    assert!(train.iter().flatten().flatten().all(|x| x.is_finite()), "{s:?}: NaN of unused slots");
    // Compares a pass over pieces with the rows of training, bit by bit.
    let check = |what: &str, cached: usize, keys_max: Option<usize>, pieces: &[Piece]| {
        let mut pass = Pass::new(s, x, cached, pieces);
        pass.keys_max = keys_max.unwrap_or(pass.keys_max);
        for (all, part) in train.iter().zip(pass.each(open)) {
            let mut at = 0;
            for &(i, from, to) in pieces {
                let row = x[..i].iter().map(|x| x.len).sum::<usize>() + from;
                for (width, all, part) in [(s.a * s.d, &all[0], &part[0]), (s.a, &all[1], &part[1])] {
                    let [all, part] =
                        [(all, row), (part, at)].map(|(x, at)| &x[at * width..][..(to - from) * width]);
                    assert_eq!(bits(all), bits(part), "{what} {s:?} {keys_max:?}: sequence {i} from {from}");
                }
                at += to - from;
            }
        }
    };
    // Prefill from anywhere, in other company and alone.
    for &cut in cuts.prefills {
        check("prefill", usize::MAX, None, &[(4, 3, 30), (0, cut, long), (1, 0, 45)]);
    }
    for cut in [1, 15, 16, 17, 40, 44] {
        check("prefill alone", usize::MAX, None, &[(1, cut, 45)]);
    }
    // Decode, later slots unwritten: chunks in blocks of their own, also where a bound promises more of them.
    for &p in cuts.decodes {
        let pieces: Vec<Piece> = (0..7).filter(|&i| p < x[i].len).map(|i| (i, p, p + 1)).collect();
        for keys_max in (cuts.bounds)(p) {
            check("decode", p + 1, Some(keys_max), &pieces);
        }
    }
    // Decode of enough segments that a block of a card takes all chunks.
    let pieces: Vec<Piece> = (0..long - 10).map(|p| (0, p, p + 1)).collect();
    check("decode of many", usize::MAX, None, &pieces);
    train
}

/// Panics unless gradients are close to f64 and the same bits each time.
pub fn check_gradients<D: Machine>(open: Open<D>, s: Shape, specs: &[Spec]) {
    let x = sequences(s, specs);
    let pass = Pass::whole(s, &x);
    let dout = pass.dout();
    let mut want = None;
    for mut rig in open(&pass.buffers()) {
        let got = pass.backward(&mut rig, &dout);
        let (dq, dkv) = want.get_or_insert_with(|| reference::gradients(s, &x, &dout));
        // bf16: delta is of the rounded output, and on a card P and dS are rounded, errors of 2^-9 of terms of order 1
        // that add up as random ones over the rows and heads that look at a key. f32: sums of up to 1,000 terms.
        let [q, kv] = match s.e {
            Bf16 => [1e-2, if D::ROUNDS_WEIGHTS { 4e-2 } else { 2e-2 }],
            _ => [1e-5, 1e-4],
        };
        close(&format!("{s:?} dq"), &got[1], dq, q);
        close(&format!("{s:?} dkv"), &got[2], dkv, kv);
        let again = pass.backward(&mut rig, &dout);
        assert_eq!(got.map(|x| bits(&x)), again.map(|x| bits(&x)), "{s:?}");
    }
}

pub fn gradients_are_close_to_the_f64_reference_and_the_same_bits_each_time<D: Machine>(open: Open<D>) {
    for s in GRADIENT_SHAPES.into_iter().chain(SUNK) {
        check_gradients(open, s, &FAMILY);
    }
}

pub fn sinks_are_in_every_softmax_once_however_many_chunks_it_has<D: Machine>(open: Open<D>) {
    for window in [ALL_KEYS, 900, 512, 9] {
        let s = windowed(window, sunk(shape(3, 1, 32, F32)));
        check_rows(open, s, 1100, 1010..1040, 1010..1040);
    }
}

pub fn gradients_of_sinks_agree_with_f64<D: Machine>(open: Open<D>) {
    for s in SUNK {
        let x = sequences(s, &FAMILY);
        let (pass, tolerance) = (Pass::whole(s, &x), if s.e == Bf16 { 1e-2 } else { 2e-5 });
        let dout = pass.dout();
        let [want, sizes] = reference::sink_gradients(s, &x, &dout);
        for mut rig in open(&pass.buffers()) {
            pass.backward(&mut rig, &dout);
            let got = pass.sink_backward(&mut rig, None);
            check_close(&got, &want, &sizes, tolerance, &format!("{s:?}"));
            assert_eq!(bits(&pass.sink_backward(&mut rig, None)), bits(&got), "{s:?}");
            let both = pass.sink_backward(&mut rig, Some(&vec![1.5; s.a]));
            let sum: Vec<f32> = got.iter().map(|d| 1.5 + d).collect();
            check_close(&both, &f64s(&sum), &sizes, 1e-5, &format!("{s:?}: added"));
        }
    }
}

pub fn shared_prefixes_give_whole_sequences_rows<D: Machine>(open: Open<D>) {
    for s in GRADIENT_SHAPES.into_iter().chain(SUNK) {
        let x = sequences(s, &FAMILY);
        let shared = Pass::whole(s, &x).each(open);
        let mut first = 0;
        for x in x {
            // With a copy of the prefix of its own.
            let alone = Sequence { parent: None, prefix: 0, table: (0..x.table.len() as u32).collect(), ..x };
            let (n, width) = (x.len - x.prefix, s.a * s.d);
            for (shared, [out, _]) in shared.iter().zip(Pass::whole(s, &[alone]).each(open)) {
                let (own, shared) = (&out[x.prefix * width..], &shared[0][first * width..][..n * width]);
                assert_eq!(bits(own), bits(shared), "{s:?}: {n} rows after {}", x.prefix);
            }
            first += n;
        }
    }
}

pub fn rows_of_no_segment_have_no_gradients<D: Machine>(open: Open<D>) {
    for s in [shape(9, 3, 64, Bf16), shape(9, 3, 64, F32), shape(8, 2, 256, Bf16)] {
        let mut pass = Pass::whole(s, &sequences(s, &[(None, 0, 20), (None, 0, 90)]));
        pass.segments.truncate(5);
        for mut rig in open(&pass.buffers()) {
            let [_, dq, dkv] = pass.backward(&mut rig, &pass.dout());
            let rest = dq[20 * s.a * s.d..].iter().chain(&dkv[20 * 2 * s.k * s.d..]);
            assert!(rest.copied().all(|x| x == 0.0), "{s:?}");
            assert!(dq[..20 * s.a * s.d].iter().any(|&x| x != 0.0), "{s:?}");
        }
    }
}

pub fn values_are_stored_as_the_dtype_holds_them<D: Machine>(_: Open<D>) {
    // The references are of the stored numbers.
    for s in SHAPES.into_iter().chain(SUNK) {
        let x = Sequence::new(s, 1, 3, 0);
        let all = x.q.iter().chain(&x.k).chain(&x.v);
        assert!(all.copied().all(|x| crate::both::round(x, s.e) == x), "{s:?}");
    }
}
