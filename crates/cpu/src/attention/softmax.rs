//! The softmax of a chunk of keys, and its merger with those before it.

use crate::lanes::{LANES, Lanes, Simd};
use plimsoll_device::ATTENTION_CHUNK;

/// Keys of a chunk that a query sees: from `from` on, below `upto`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) from: usize,
    pub(super) upto: usize,
}

impl Seen {
    /// Returns the keys of the chunk at `chunk` that a row sees: of its `keys` keys, those in its window.
    pub(super) fn of(keys: usize, window: usize, chunk: usize) -> Seen {
        let within = |key: usize| key.saturating_sub(chunk).min(ATTENTION_CHUNK);
        Seen { from: within(keys.saturating_sub(window)), upto: within(keys) }
    }

    pub(super) fn is_empty(self) -> bool {
        self.from >= self.upto
    }
}

/// Largest score and sum of exponentials of a query.
#[derive(Clone, Copy, Default)]
pub(super) struct Softmax {
    pub(super) max: f32,
    pub(super) sum: f32,
}

/// Turns the scores that are seen into e^(score - max); the rest of the first and of the last block becomes 0.
///
/// # Safety
/// `scores` has `seen.upto` elements, rounded up to 16.
#[inline(always)]
pub(super) unsafe fn softmax<S: Simd>(s: S, scores: *mut f32, seen: Seen) -> Softmax {
    if seen.is_empty() {
        return Softmax::default();
    }
    let minus = s.splat(f32::NEG_INFINITY);
    let (first, last, rest) = (seen.from / LANES, (seen.upto - 1) / LANES, (seen.upto - 1) % LANES + 1);
    // SAFETY: block `last` is the last of the elements, and `first` is not after it.
    unsafe {
        let begin = s.first(seen.from % LANES, minus, s.load(scores.add(first * LANES)));
        s.store(scores.add(first * LANES), begin);
        let end = s.first(rest, s.load(scores.add(last * LANES)), minus);
        s.store(scores.add(last * LANES), end);
        let mut largest = minus;
        for i in first..=last {
            largest = s.max(s.load(scores.add(i * LANES)), largest);
        }
        let max = s.largest(largest);
        let (mut sums, shift) = (s.splat(0.0), s.splat(max));
        for i in first..=last {
            let e = s.exp(s.sub(s.load(scores.add(i * LANES)), shift));
            sums = s.add(sums, e);
            s.store(scores.add(i * LANES), e);
        }
        Softmax { max, sum: s.sum(sums) }
    }
}

/// Merges a chunk into the total of the chunks before it.
///
/// # Safety
/// `total` and `out` have `d` elements.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    s: S,
    d: usize,
    soft: &mut Softmax,
    total: *mut f32,
    fresh: Softmax,
    out: *const f32,
) {
    let max = if fresh.max > soft.max { fresh.max } else { soft.max };
    let mut factors = [0.0; LANES];
    (factors[0], factors[1]) = (soft.max - max, fresh.max - max);
    let e = s.exp(f32::load(s, &factors));
    f32::store(s, &mut factors, e);
    let (old, new) = (factors[0], factors[1]);
    *soft = Softmax { max, sum: soft.sum * old + fresh.sum * new };
    for at in (0..d).step_by(LANES) {
        // SAFETY: `total` and `out` have d elements as the caller promises, a multiple of 16.
        unsafe {
            let x = s.mul(s.load(total.add(at)), s.splat(old));
            s.store(total.add(at), s.fma(s.load(out.add(at)), s.splat(new), x));
        }
    }
}
