//! Operands of products: panels of weights as stored, and a kernel for each element type.

use super::tile::{Operands, TILE_PANELS, TILE_ROWS, Tile, single, widened};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, x86};
use crate::lanes::{LANES, Lanes, simd_fn};
use crate::{CpuDevice, Isa};
use half::bf16;
use plimsoll_device::{Matrix, MatrixLayout, PANEL};

/// Element types that products are computed from.
pub(crate) trait Operand: Lanes {
    /// Elements of the reduced dimension that one step takes.
    const STEP: usize;

    /// Returns the rows of a path's tiles: whole panels of packed columns, or a divisor of one.
    fn tile_rows(isa: Isa) -> usize;

    /// Brings a part of a packed panel, `[rows/STEP][16][STEP]` of at most 32 rows, into the order of A.
    fn order_as_a(isa: Isa, part: &mut [Self]);

    /// Fills the first `rows` x `panels` of `out`.
    ///
    /// # Safety
    /// The machine has `isa`; the operands reach over `rows` rows, `panels` panels and `len` elements.
    unsafe fn tile(isa: Isa, rows: usize, panels: usize, ops: &Operands<Self>, out: &mut Tile);

    /// Interleaves `STEP` rows of at least 16 elements, `cols` apart, as `[16][STEP]`.
    fn interleave_rows(from: &[Self], cols: usize, to: &mut [Self]);

    /// Transposes a 16 x 16 block of a panel, `[16/STEP][16][STEP]`.
    fn transpose_block(isa: Isa, from: &[Self; PANEL * PANEL], to: &mut [Self; PANEL * PANEL]);
}

impl Operand for bf16 {
    const STEP: usize = 2;

    fn tile_rows(isa: Isa) -> usize {
        if isa == Isa::Amx { TILE_ROWS } else { f32::tile_rows(isa) }
    }

    #[inline(always)]
    fn order_as_a(isa: Isa, part: &mut [bf16]) {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx {
            amx::turn(isa, part);
        }
        let _ = (isa, part);
    }

    #[inline(always)]
    fn interleave_rows(from: &[bf16], cols: usize, to: &mut [bf16]) {
        let (first, second) = (&from[..PANEL], &from[cols..cols + PANEL]);
        for ((to, a), b) in to.as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
            *to = [*a, *b];
        }
    }

    fn transpose_block(isa: Isa, from: &[bf16; PANEL * PANEL], to: &mut [bf16; PANEL * PANEL]) {
        transpose_pairs(isa, from, to);
    }

    #[inline]
    unsafe fn tile(isa: Isa, rows: usize, panels: usize, ops: &Operands<bf16>, out: &mut Tile) {
        // SAFETY: the caller promises that the machine has `isa`, and operands that reach over rows and panels.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx => amx::pairs(rows, panels, ops, out),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Bf16 => x86::pairs_avx512(rows, panels, ops, out),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::pairs(rows, panels, ops, out),
                _ => widened(rows, panels, ops, out),
            }
        }
    }
}

impl Operand for f32 {
    const STEP: usize = 1;

    fn tile_rows(isa: Isa) -> usize {
        if isa == Isa::Avx2 { avx2::ROWS } else { 8 }
    }

    fn order_as_a(_isa: Isa, _part: &mut [f32]) {}

    #[inline(always)]
    fn interleave_rows(from: &[f32], _cols: usize, to: &mut [f32]) {
        to.copy_from_slice(&from[..PANEL]);
    }

    fn transpose_block(isa: Isa, from: &[f32; PANEL * PANEL], to: &mut [f32; PANEL * PANEL]) {
        transpose_single(isa, from, to);
    }

    #[inline]
    unsafe fn tile(isa: Isa, rows: usize, panels: usize, ops: &Operands<f32>, out: &mut Tile) {
        // SAFETY: the caller promises that the machine has `isa`, and operands that reach over rows and panels.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx | Isa::Avx512Bf16 => x86::single_avx512(rows, panels, ops, out),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::single(rows, panels, ops, out),
                _ => single(rows, panels, ops, out),
            }
        }
    }
}

/// Rows of activations or of their gradients, or a run of columns of such rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E> {
    /// From the first row's first element on; it may end with the last row.
    data: &'a [E],
    stride: usize,
    len: usize,
}

impl<'a, E> Rows<'a, E> {
    /// Returns all of `data`, rows of `len`.
    pub(crate) fn whole(data: &'a [E], len: usize) -> Rows<'a, E> {
        Rows::columns(data, len, 0, len)
    }

    /// Returns columns `first..first + len` of rows of `stride`.
    pub(super) fn columns(data: &'a [E], stride: usize, first: usize, len: usize) -> Rows<'a, E> {
        assert!(first + len <= stride, "columns {first}+{len} of {stride}");
        assert_eq!(data.len() % stride, 0, "{} elements in rows of {stride}", data.len());
        Rows { data: data.get(first..).unwrap_or_default(), stride, len }
    }

    pub(super) fn count(&self) -> usize {
        self.data.len().div_ceil(self.stride)
    }

    /// Returns the elements of a row.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the elements from row to row.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns at most `most` rows from `first`.
    pub(super) fn part(&self, first: usize, most: usize) -> Rows<'a, E> {
        let data = &self.data[first * self.stride..];
        Rows { data: &data[..data.len().min(most * self.stride)], ..*self }
    }

    /// Returns everything from column `col` of the first row on.
    pub(super) fn beginning_at(&self, col: usize) -> &'a [E] {
        &self.data[col..]
    }

    /// Returns a pointer to a row, of which `len` elements are in the data.
    pub(super) fn row(&self, row: usize) -> *const E {
        self.data[row * self.stride..][..self.len].as_ptr()
    }
}

/// Panels of weights as stored.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a, E> {
    pub(super) data: &'a [E],
    pub(super) n: usize,
    pub(super) k: usize,
}

impl<'a, E: Operand> Panels<'a, E> {
    /// Returns the panels of a matrix whose layout is that of weights of type `E`.
    pub(crate) fn new(dev: &'a CpuDevice, w: Matrix<'a>) -> Panels<'a, E> {
        assert_eq!(
            w.layout,
            MatrixLayout::of_weights(&crate::LAYOUTS, E::DTYPE),
            "the layout of weights of {}",
            E::DTYPE.name()
        );
        Panels { data: dev.read::<E>(w.buf), n: w.n, k: w.k }
    }

    pub(super) fn panel(&self) -> usize {
        self.k.next_multiple_of(E::STEP) * PANEL
    }

    /// Returns the panels from a group of `TILE_PANELS` on.
    pub(super) fn group(&self, group: usize) -> &'a [E] {
        &self.data[group * TILE_PANELS * self.panel()..]
    }

    /// Returns rows `first..first + n`; `first` begins a panel.
    pub(crate) fn rows(&self, first: usize, n: usize) -> Panels<'a, E> {
        assert!(first.is_multiple_of(PANEL) && first + n <= self.n, "rows {first}+{n} of {}", self.n);
        let len = n.div_ceil(PANEL) * self.panel();
        Panels { data: &self.data[first / PANEL * self.panel()..][..len], n, k: self.k }
    }

    pub(crate) fn n(&self) -> usize {
        self.n
    }

    pub(crate) fn k(&self) -> usize {
        self.k
    }
}

/// Transposes `[8][16][2]` to `[8][16][2]`, on any path.
fn transpose_pairs(isa: Isa, from: &[bf16; 256], to: &mut [bf16; 256]) {
    #[cfg(target_arch = "x86_64")]
    match isa {
        // SAFETY: `CpuDevice::new` refuses a path that the machine does not have.
        Isa::Amx | Isa::Avx512Bf16 => return unsafe { transpose_pairs_avx512(from, to) },
        // SAFETY: as above.
        Isa::Avx2 => return unsafe { transpose_pairs_avx2(from, to) },
        Isa::Scalar => {}
    }
    let _ = isa;
    for (i, to) in to.iter_mut().enumerate() {
        let (row, col) = (i / 32 * 2 + i % 2, i / 2 % 16);
        *to = from[(col / 2 * 16 + row) * 2 + col % 2];
    }
}

/// Transposes quadruples (two rows, two columns), then exchanges them as 64-bit elements of four 4 x 4 matrices.
///
/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_pairs_avx2(from: &[bf16; 256], to: &mut [bf16; 256]) {
    use std::arch::x86_64::*;
    let turn =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        // SAFETY: both blocks are 8 rows of 2 vectors; vector i of row 4 j + c, with c < 4.
        let v: [__m256i; 4] = std::array::from_fn(|c| unsafe {
            _mm256_shuffle_epi8(_mm256_loadu_si256(from.as_ptr().add(32 * (4 * j + c) + 16 * i).cast()), turn)
        });
        let even = [_mm256_unpacklo_epi64(v[0], v[1]), _mm256_unpacklo_epi64(v[2], v[3])];
        let odd = [_mm256_unpackhi_epi64(v[0], v[1]), _mm256_unpackhi_epi64(v[2], v[3])];
        let out = [
            _mm256_permute2x128_si256::<0x20>(even[0], even[1]),
            _mm256_permute2x128_si256::<0x20>(odd[0], odd[1]),
            _mm256_permute2x128_si256::<0x31>(even[0], even[1]),
            _mm256_permute2x128_si256::<0x31>(odd[0], odd[1]),
        ];
        for (r, x) in out.into_iter().enumerate() {
            // SAFETY: vector j of row 4 i + r, with r < 4.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().add(32 * (4 * i + r) + 16 * j).cast(), x) };
        }
    }
}

/// Transposes quadruples (two rows, two columns), then exchanges them as 64-bit elements of an 8 x 8 matrix.
///
/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn transpose_pairs_avx512(from: &[bf16; 256], to: &mut [bf16; 256]) {
    use std::arch::x86_64::*;
    let turn = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    // SAFETY: both blocks are 16 x 16 bf16, which are 8 vectors.
    let v: [__m512i; 8] = std::array::from_fn(|i| unsafe {
        _mm512_shuffle_epi8(_mm512_loadu_si512(from.as_ptr().add(32 * i).cast()), turn)
    });
    for odd in 0..2 {
        let a: [__m512i; 4] = std::array::from_fn(|i| {
            if odd == 0 {
                _mm512_unpacklo_epi64(v[2 * i], v[2 * i + 1])
            } else {
                _mm512_unpackhi_epi64(v[2 * i], v[2 * i + 1])
            }
        });
        let even_quarters =
            [_mm512_shuffle_i64x2::<0x88>(a[0], a[1]), _mm512_shuffle_i64x2::<0x88>(a[2], a[3])];
        let odd_quarters =
            [_mm512_shuffle_i64x2::<0xdd>(a[0], a[1]), _mm512_shuffle_i64x2::<0xdd>(a[2], a[3])];
        let out = [
            _mm512_shuffle_i64x2::<0x88>(even_quarters[0], even_quarters[1]),
            _mm512_shuffle_i64x2::<0x88>(odd_quarters[0], odd_quarters[1]),
            _mm512_shuffle_i64x2::<0xdd>(even_quarters[0], even_quarters[1]),
            _mm512_shuffle_i64x2::<0xdd>(odd_quarters[0], odd_quarters[1]),
        ];
        for (i, x) in out.into_iter().enumerate() {
            // SAFETY: vector 2 i + odd of the 8 of a block: i < 4 and odd < 2.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().add(32 * (2 * i + odd)).cast(), x) };
        }
    }
}

simd_fn! {
    fn transpose_single[](s: S, from: &[f32; 256], to: &mut [f32; 256]) {
        let from = from.as_chunks::<LANES>().0;
        let mut rows = [s.splat(0.0); LANES];
        for (row, from) in rows.iter_mut().zip(from) {
            *row = f32::load(s, from);
        }
        for (to, x) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(s.transpose(rows)) {
            f32::store(s, to, x);
        }
    }
}
