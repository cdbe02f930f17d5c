//! Quantized weights in the blocks of a file, widened into the panels that products read.

use crate::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use crate::matmul::Operand;
use crate::{CpuDevice, Isa, nf4};
use plimsoll_base::Encoding;
use plimsoll_base::blocks::decode;
use plimsoll_device::{BLOCK_PARTS_MAX, Blocks, Codes, Matrix, MatrixLayout, PANEL};

/// Columns that are decoded at a time: whole blocks of every encoding.
const COLUMNS: usize = 256;

/// A row's encoding and bytes.
type Row<'r> = (Encoding, &'r [u8]);

/// A matrix `[n, k]` in codes, whose panels are widened one at a time.
#[allow(clippy::large_enum_variant)] // One an operation, on the stack.
pub(crate) enum Stored<'a> {
    Nf4(nf4::Stored<'a>),
    /// Groups of rows, one after the other, with their bytes.
    Blocks([Option<(Blocks<'a>, &'a [u8])>; BLOCK_PARTS_MAX], usize),
}

impl<'a> Stored<'a> {
    pub(crate) fn new(dev: &'a CpuDevice, w: Codes<'a>) -> Stored<'a> {
        if let Some(w) = w.whole(Encoding::Nf4) {
            return Stored::Nf4(nf4::Stored::new(dev, w));
        }
        let parts = w.parts.map(|part| part.map(|part| (part, bytes(dev.read::<u32>(part.words)))));
        Stored::Blocks(parts, w.shape().1)
    }

    /// Widens panel `panel` and rounds it; rows beyond the last become zeros. `to`: a panel of weights.
    pub(crate) fn panel<E: Operand>(&self, isa: Isa, panel: usize, to: &mut [E]) {
        match self {
            Stored::Nf4(of) => of.panel(isa, panel, to),
            Stored::Blocks(parts, k) => {
                let rows = std::array::from_fn(|lane| row_of(parts, panel * PANEL + lane));
                widen::<E>(isa, &rows, *k, to);
            }
        }
    }
}

fn row_of<'a>(parts: &[Option<(Blocks<'a>, &'a [u8])>; BLOCK_PARTS_MAX], row: usize) -> Option<Row<'a>> {
    let mut within = row;
    for (part, bytes) in parts.iter().flatten() {
        if within < part.n {
            let at = within * part.row_bytes();
            return Some((part.encoding, &bytes[at..at + part.row_bytes()]));
        }
        within -= part.n;
    }
    None
}

/// Writes out = w, widened, then rounded. `w`, `out`: [N, K].
pub(crate) fn dequantize(dev: &CpuDevice, w: Codes<'_>, out: Matrix<'_>) {
    assert_eq!(w.shape(), (out.n, out.k), "codes and weights of one shape");
    assert_eq!(out.layout, MatrixLayout::of_weights(&crate::LAYOUTS, out.buf.dtype()));
    let stored = Stored::new(dev, w);
    by_dtype!(out.buf, E => {
        let (to, len) = (dev.write::<E>(out.buf), PANEL * out.k.next_multiple_of(E::STEP));
        dev.pool().run(out.n.div_ceil(PANEL), &|panel, _| {
            // SAFETY: a task writes its own panel.
            stored.panel(dev.isa(), panel, unsafe { to.range(panel * len, len) });
        });
    });
}

/// Returns the bytes of words, the first from the lowest bits.
fn bytes(words: &[u32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little")) };
    // SAFETY: any four bytes are a u32, and a byte has no alignment: the slice covers exactly the words' memory.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

simd_fn! {
    /// Widens one panel of up to 16 rows of `k` elements; missing rows become zeros.
    fn widen[E: Operand](s: S, rows: &[Option<Row<'_>>; PANEL], k: usize, to: &mut [E]) {
        // The last column of an odd number is half of a step, whose other half is zero, as are missing rows.
        let mut rounded = [[E::from_f32(0.0); COLUMNS]; PANEL];
        let mut values = [0.0f32; COLUMNS];
        for (index, to) in to.chunks_mut(PANEL * COLUMNS).enumerate() {
            let first = index * COLUMNS;
            let columns = COLUMNS.min(k - first);
            for (row, rounded) in rows.iter().zip(&mut rounded) {
                let Some((encoding, bytes)) = row else { continue };
                let (values_of, bytes_of) = (encoding.block_values() as usize, encoding.block_bytes() as usize);
                let bytes = &bytes[first / values_of * bytes_of..][..columns / values_of * bytes_of];
                decode(*encoding, bytes, &[], &mut values[..columns]);
                values[columns..].fill(0.0);
                for (to, from) in rounded.as_chunks_mut::<LANES>().0.iter_mut().zip(values.as_chunks::<LANES>().0) {
                    E::store(s, to, f32::load(s, from));
                }
            }
            turn::<E>(s, &rounded, to);
        }
    }
}

/// Writes columns of 16 rows in the order of a panel, `[columns/STEP][16][STEP]`: sixteen words of four bytes, each a
/// step of a row, change places with the rows.
#[inline(always)]
fn turn<E: Operand>(s: impl Simd, rows: &[[E; COLUMNS]; PANEL], to: &mut [E]) {
    const { assert!(E::STEP * size_of::<E>() == size_of::<f32>()) };
    let len = to.len();
    let mut squares = to.chunks_exact_mut(PANEL * LANES * E::STEP);
    for (index, to) in squares.by_ref().enumerate() {
        let mut words = [s.splat(0.0); PANEL];
        for (word, row) in words.iter_mut().zip(rows) {
            let row = &row[index * LANES * E::STEP..][..LANES * E::STEP];
            // SAFETY: the part of the row is 16 words, which are moved and not computed with.
            *word = unsafe { s.load(row.as_ptr().cast()) };
        }
        for (word, to) in s.transpose(words).into_iter().zip(to.chunks_exact_mut(PANEL * E::STEP)) {
            // SAFETY: the part of the panel is 16 words.
            unsafe { s.store(to.as_mut_ptr().cast(), word) };
        }
    }
    let rest = squares.into_remainder();
    let first = len / PANEL - rest.len() / PANEL;
    for (step, to) in rest.chunks_exact_mut(PANEL * E::STEP).enumerate() {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(E::STEP)) {
            to.copy_from_slice(&row[first + step * E::STEP..][..E::STEP]);
        }
    }
}
