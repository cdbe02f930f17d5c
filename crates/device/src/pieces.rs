//! Buckets and pieces: the fixed cut of a flat buffer of gradients by which they are summed and shared out.
//!
//! A bucket has at most `BUCKET_ELEMENTS_MAX` elements; it is cut into `PIECES` pieces of whole blocks of 8-bit
//! moments. The cut depends on the model alone, not on threads, nor on how many processes share the gradients. So a sum
//! of one number per piece, added in order, has the same bits wherever each piece is.

use crate::CODE_BLOCK;

/// Maximum elements of a bucket: 64 MiB of f32.
pub const BUCKET_ELEMENTS_MAX: u64 = 16 << 20;
/// Pieces of a bucket. Those of a small bucket may be empty.
pub const PIECES: usize = 64;

/// Neighbouring elements of a buffer: a bucket or a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First element; of buckets and pieces a multiple of `CODE_BLOCK`.
    pub start: u64,
    pub elements: u64,
}

/// Neighbouring elements of a buffer, and where a shard of it holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedRun {
    /// Their place in the whole buffer.
    pub run: Run,
    /// Their first element in the shard, whole blocks of 8-bit moments away from `run.start`.
    pub at: u64,
}

impl OwnedRun {
    /// Returns the elements that are in `within`, if there are any.
    pub fn inside(self, within: Run) -> Option<OwnedRun> {
        let (start, end) = (self.run.start.max(within.start), self.run.end().min(within.end()));
        let run = Run { start, elements: end.checked_sub(start).filter(|elements| *elements > 0)? };
        Some(OwnedRun { run, at: self.at + (start - self.run.start) })
    }
}

impl Run {
    pub fn end(&self) -> u64 {
        self.start + self.elements
    }

    /// Returns the pieces of a bucket, in order.
    pub fn pieces(self) -> impl Iterator<Item = Run> {
        let block = CODE_BLOCK as u64;
        let blocks = self.elements.div_ceil(block);
        let edge = move |index: usize| (blocks * index as u64 / PIECES as u64 * block).min(self.elements);
        (0..PIECES).map(move |index| Run {
            start: self.start + edge(index),
            elements: edge(index + 1) - edge(index),
        })
    }
}

/// Bytes brought from other hosts' ranks at once and then copied; a single larger buffer exceeds it.
pub const PORTION_BYTES: u64 = 128 << 20;

/// Splits items into portions of at most `PORTION_BYTES`, but at least one item.
pub fn portions<'x, T>(all: &'x [T], bytes: impl Fn(&T) -> u64 + 'x) -> impl Iterator<Item = &'x [T]> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = |item: &&T| {
            sum += bytes(item);
            sum <= PORTION_BYTES
        };
        let len = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (portion, after) = rest.split_at(len);
        rest = after;
        (!portion.is_empty()).then_some(portion)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn portions_are_all_of_it_in_order() {
        let (half, whole) = (PORTION_BYTES / 2, PORTION_BYTES);
        for (all, expect) in [
            (vec![], vec![]),
            (vec![1, 2, 3], vec![3]),
            (vec![half, half, 1], vec![2, 1]),
            (vec![3 * whole, 1, whole, 1], vec![1, 1, 1, 1]),
        ] {
            let found: Vec<&[u64]> = portions(&all, |bytes| *bytes).collect();
            assert_eq!(found.iter().map(|portion| portion.len()).collect::<Vec<_>>(), expect, "{all:?}");
            assert_eq!(found.concat(), all);
        }
    }

    use super::*;

    #[test]
    fn what_is_owned_of_a_range_is_where_the_shard_holds_it() {
        let owned = OwnedRun { run: Run { start: 512, elements: 256 }, at: 1024 };
        let inside = |start, elements| {
            owned.inside(Run { start, elements }).map(|o| (o.run.start, o.run.elements, o.at))
        };
        assert_eq!(inside(0, 4096), Some((512, 256, 1024)));
        assert_eq!(inside(600, 10), Some((600, 10, 1112)));
        assert_eq!(inside(0, 600), Some((512, 88, 1024)));
        assert_eq!(inside(700, 4096), Some((700, 68, 1212)));
        assert_eq!((inside(0, 512), inside(768, 9)), (None, None));
    }

    #[test]
    fn pieces_are_whole_blocks_and_together_the_bucket() {
        for elements in [1, 255, 256, 257, 64 * 256, 64 * 256 + 1, 1_000_003, BUCKET_ELEMENTS_MAX] {
            let bucket = Run { start: 512, elements };
            let mut next = bucket.start;
            for piece in bucket.pieces() {
                assert_eq!(piece.start, next);
                assert!(piece.end() == bucket.end() || piece.end().is_multiple_of(CODE_BLOCK as u64));
                next = piece.end();
            }
            assert_eq!((next, bucket.pieces().count()), (bucket.end(), PIECES));
        }
    }
}
