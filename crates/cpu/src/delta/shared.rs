//! Shared parts of linear attention: operand checks, segments with the places of their states, elementary functions.

use super::super::CpuDevice;
use super::super::attention::{Segment, segments};
use super::super::lanes::{LANES, Simd, by_dtype};
use super::super::view::{Element, Real};
use plimsoll_device::{
    DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaHeads, NO_PARENT, NO_STATE, Places, SEGMENT_FIELDS,
};
use plimsoll_memory::Buf;

/// Columns of a state that a task owns: 32 KiB of a state of 128 rows, which stay in the first cache.
pub(super) const COLUMNS: usize = 4 * LANES;

/// Checks the heads, and returns M: the rows of a buffer of rows of `width`.
pub(super) fn rows_of(heads: &DeltaHeads, buf: Buf<'_>, width: usize) -> usize {
    let &DeltaHeads { key_heads, value_heads, key_dim, value_dim } = heads;
    assert!(
        key_heads > 0 && value_heads > 0 && value_heads.is_multiple_of(key_heads),
        "{value_heads} heads of values over {key_heads} of keys"
    );
    for dim in [key_dim, value_dim] {
        assert!(
            dim > 0 && dim.is_multiple_of(DELTA_HEAD_STEP) && dim <= DELTA_HEAD_MAX,
            "heads of {dim} elements: a multiple of {DELTA_HEAD_STEP} up to {DELTA_HEAD_MAX}"
        );
    }
    assert_eq!(buf.len() % width, 0, "{} elements in rows of {width}", buf.len());
    buf.len() / width
}

/// Checks that buffers have `width` elements for each of `rows`.
pub(super) fn check_rows<const N: usize>(rows: usize, all: [(&str, Buf<'_>, usize); N]) {
    for (name, buf, width) in all {
        assert_eq!(buf.len(), rows * width, "{name} of [{rows}, {width}]");
    }
}

/// A segment, and where its states are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) segment: Segment,
    /// Place of the state that it begins with.
    pub(super) from: Option<usize>,
    /// First place that it writes.
    pub(super) to: Option<usize>,
}

impl Stay {
    pub(super) fn is_child(&self) -> bool {
        self.segment.parent != NO_PARENT
    }
}

/// The segments of a pass.
#[derive(Clone, Copy)]
pub(super) struct Stays<'a> {
    pub(super) segments: &'a [u32],
    pub(super) places: &'a [u32],
    pub(super) has_parents: bool,
}

impl<'a> Stays<'a> {
    /// Checks that segments are of the pass's `rows`.
    pub(super) fn new(dev: &'a CpuDevice, of: Places<'_>, rows: usize) -> Stays<'a> {
        let all = Stays {
            segments: dev.read(of.segments),
            places: dev.read(of.places),
            has_parents: of.has_parents,
        };
        assert_eq!(all.segments.len() % SEGMENT_FIELDS, 0, "whole records of segments");
        assert_eq!(all.places.len(), 2 * all.len(), "two places of each of {} segments", all.len());
        check_segments(all.segments, rows);
        all
    }

    /// Returns S.
    pub(super) fn len(&self) -> usize {
        self.segments.len() / SEGMENT_FIELDS
    }

    pub(super) fn at(&self, index: usize) -> Stay {
        let fields = &self.segments[index * SEGMENT_FIELDS..][..SEGMENT_FIELDS];
        let mut segment = segments(fields).next().expect("one record");
        if !self.has_parents {
            segment.parent = NO_PARENT;
        }
        let place = |at: usize| Some(self.places[at]).filter(|&p| p != NO_STATE).map(|p| p as usize);
        Stay { segment, from: place(2 * index), to: place(2 * index + 1) }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Stay> + Clone + 'a {
        (0..self.len()).map(move |index| self.at(index))
    }

    /// Returns the waves to compute in order: segments that are not children (false), then children (true).
    pub(super) fn waves(&self) -> &'static [bool] {
        if self.has_parents { &[false, true] } else { &[false] }
    }

    /// Checks that the places of all segments are among `count`: the one it begins with, and `written(segment)` places
    /// from the first that it writes.
    pub(super) fn check_places(&self, count: usize, written: impl Fn(&Segment) -> usize) {
        for stay in self.iter() {
            assert!(stay.from.is_none_or(|from| from < count), "{stay:?} of {count} places");
            let written = written(&stay.segment);
            assert!(
                stay.to.is_none_or(|to| to + written <= count),
                "{stay:?} writes {written} of {count} places"
            );
        }
    }
}

/// Checks that segments have rows and are inside a pass of `rows`; returns the number of rows that are in one.
pub(super) fn check_segments(fields: &[u32], rows: usize) -> usize {
    segments(fields)
        .map(|segment| {
            assert!(segment.rows > 0, "a segment without rows: {segment:?}");
            assert!(segment.first_row + segment.rows <= rows, "{segment:?} of {rows} rows");
            segment.rows
        })
        .sum()
}

/// Widens elements from `first` on; there may be fewer than N.
pub(super) fn widened<const N: usize>(dev: &CpuDevice, buf: Buf<'_>, first: usize) -> [f32; N] {
    let mut out = [0.0; N];
    by_dtype!(buf, T => {
        let from = &dev.read::<T>(buf)[first..];
        out.iter_mut().zip(from).for_each(|(out, x)| *out = x.to_f32());
    });
    out
}

/// Writes to = sums, or to + sums if `add`, rounded once.
pub(super) fn add_sums(dev: &CpuDevice, to: Buf<'_>, first: usize, sums: &[f32], add: bool) {
    fn all<T: Real + Element>(to: &mut [T], sums: &[f32], add: bool) {
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = T::from_f32(if add { to.to_f32() + sum } else { *sum });
        }
    }
    by_dtype!(to, T => {
        let to = dev.write::<T>(to);
        // SAFETY: the caller's task alone has these elements.
        all(unsafe { to.range(first, sums.len()) }, sums, add);
    });
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, s.exp(s.sub(s.splat(0.0), x))))
}

/// Returns log(1 + e^x), as max(x, 0) + log(1 + e^-|x|).
#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let zero = s.splat(0.0);
    let minus = s.sub(zero, x);
    let y = s.exp(s.sub(zero, s.max(minus, x)));
    // log(1 + y) = 2 artanh(z), z = y / (2 + y) <= 1/3: what the series leaves out is below 2 z^15 / 15 = 1e-8 z.
    let z = s.div(y, s.add(s.splat(2.0), y));
    let square = s.mul(z, z);
    let mut sum = s.splat(1.0 / 13.0);
    for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        sum = s.fma(sum, square, s.splat(c));
    }
    // Zero comes first, so that NaN stays NaN.
    s.fma(s.mul(s.splat(2.0), z), sum, s.max(zero, x))
}

/// Returns e^x of one number.
#[inline(always)]
pub(super) fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    // All sixteen lanes are equal: the largest is any of them.
    s.largest(s.exp(s.splat(x)))
}
