//! A host mapping of rows, each owned by one value: threads fill rows without locks, and their owner has one array.

use crate::Mapping;
use plimsoll_base::{Bytes, Result};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Rows start on multiples of this: a cache line, so that two threads never share one.
pub const ROW_ALIGN: usize = 64;

/// One row of a mapping, with a single owner. The mapping is unmapped with its last row.
#[derive(Debug)]
pub struct MappedRow {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

/// Types for which every bit pattern is valid, so bytes may be read as them.
pub trait Plain: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($type:ty),*) => { $(impl sealed::Sealed for $type {} impl Plain for $type {})* };
}

plain!(u8, i8, u32, i32, u64, i64, f32, f64);

impl MappedRow {
    /// Allocates `count` rows of `bytes` zeros, at multiples of `stride(bytes)`.
    ///
    /// Errors: `size-overflow`, `host-allocation-failed`.
    pub fn rows(count: usize, bytes: usize) -> Result<Vec<MappedRow>> {
        let stride = MappedRow::stride(bytes);
        let total = Bytes::checked(&[count as u64, stride as u64], 1)?;
        let mapping = Arc::new(Mapping::touched(total)?);
        let row = |index: usize| MappedRow { mapping: mapping.clone(), offset: index * stride, len: bytes };
        Ok((0..count).map(row).collect())
    }

    /// Returns the distance between rows.
    pub fn stride(bytes: usize) -> usize {
        bytes.next_multiple_of(ROW_ALIGN)
    }

    /// Returns the bytes of `range` as numbers. Panics unless the range is inside the row, aligned and whole.
    pub fn numbers<T: Plain>(&self, range: Range<usize>) -> &[T] {
        let bytes = &self[range];
        let (at, size) = (bytes.as_ptr(), size_of::<T>());
        assert!(
            (at as usize).is_multiple_of(align_of::<T>()) && bytes.len().is_multiple_of(size),
            "{} bytes of {size}",
            bytes.len()
        );
        // SAFETY: the bytes are initialised, borrowed as long as the result, aligned and a multiple of T's size
        // (asserted), and every bit pattern of T is valid (`Plain` is sealed).
        unsafe { std::slice::from_raw_parts(at.cast(), bytes.len() / size) }
    }

    /// Returns the bytes of `range` as mutable numbers. Panics unless the range is inside the row, aligned and whole.
    pub fn numbers_mut<T: Plain>(&mut self, range: Range<usize>) -> &mut [T] {
        let bytes = &mut self[range];
        let (at, size) = (bytes.as_mut_ptr(), size_of::<T>());
        assert!(
            (at as usize).is_multiple_of(align_of::<T>()) && bytes.len().is_multiple_of(size),
            "{} bytes of {size}",
            bytes.len()
        );
        // SAFETY: as in `numbers`, and the bytes are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(at.cast(), bytes.len() / size) }
    }
}

impl Deref for MappedRow {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: offset..offset + len is inside the mapping, which lives as long as the Arc and began as zeros; only
        // this value refers to these bytes, because only `rows` makes rows, and they are disjoint.
        unsafe { std::slice::from_raw_parts(self.mapping.base().add(self.offset), self.len) }
    }
}

impl DerefMut for MappedRow {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the only value that refers to these bytes is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().add(self.offset), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_disjoint_and_filled_by_threads() {
        let mut rows = MappedRow::rows(3, 100).unwrap();
        let first = rows[0].as_ptr() as usize;
        std::thread::scope(|scope| {
            for (index, row) in rows.iter_mut().enumerate() {
                scope.spawn(move || row.fill(index as u8 + 1));
            }
        });
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(row.as_ptr() as usize, first + index * 128);
            assert_eq!((row.len(), row.iter().all(|&byte| byte == index as u8 + 1)), (100, true));
        }
    }

    #[test]
    fn bytes_are_read_as_numbers_where_they_are_aligned() {
        let mut row = MappedRow::rows(1, 64).unwrap().remove(0);
        row.numbers_mut::<f32>(4..12).copy_from_slice(&[1.5, -2.0]);
        assert_eq!(row.numbers::<u32>(4..12), [1.5f32.to_bits(), (-2.0f32).to_bits()]);
        let unaligned = std::panic::catch_unwind(|| row.numbers::<f64>(4..12).len());
        assert!(unaligned.is_err());
    }

    #[test]
    fn a_row_outlives_the_others() {
        let row = MappedRow::rows(8, 4096).unwrap().remove(5);
        assert_eq!(row.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 0);
    }
}
