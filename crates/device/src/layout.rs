//! Element orders of matrices and of the KV cache, and sizes of the buffers that operations ask for.
//!
//! On the CPU a matrix `[N, K]` is stored in panels of 16 rows, so that one vector load gives 16 outputs the same input
//! element: `Single` is `[N/16][K][16]`; `Pairs`, for bf16, is `[N/16][K/2][16][2]`, the operand of a dot-product
//! instruction. Gradients and optimizer states use the order of their weights, whatever their dtype, so the optimizer
//! is element-wise. N is padded to 16 and K to 2; padding is zero and stays zero. On a GPU matrices are row-major, as
//! cuBLASLt takes them.

use plimsoll_base::DType;
use plimsoll_memory::Buf;

/// Rows of a panel.
pub const PANEL: usize = 16;

/// Layouts of a kind of device: the order of matrices, and sizes of the buffers that operations need besides inputs and
/// outputs. The plan and the arena share these pure functions. Two kinds are equal if their names are.
#[derive(Debug)]
pub struct Layouts {
    /// The device's name in run files.
    pub name: &'static str,
    /// Order of weight matrices of a dtype.
    pub order: fn(DType) -> MatrixLayout,
    /// f32 elements of the head operations' `tile`, for calls of at most `rows_max` rows. `truncates`: some call
    /// samples with top-k, top-p or min-p.
    pub head_tile: fn(threads: usize, rows_max: usize, vocab: usize, truncates: bool) -> u64,
    /// Elements (e) of the `dtile` argument of `head_backward`.
    pub head_gradient_tile: fn(rows: usize, vocab: usize) -> u64,
    /// Elements (e) of the `pack` argument of `matmul_dw` and `head_backward`, for dy [M, N] and x [M, K].
    pub pack: fn(m: u64, n: u64, k: u64, weights: DType) -> u64,
    /// Dtype of a micro-batch's gradient that is computed apart, then added to sums of the dtype given.
    pub partial: fn(DType) -> DType,
    /// Whether products of rounded numbers (`Fp8`) multiply codes; else they multiply the numbers of these.
    pub multiplies_fp8: bool,
}

impl PartialEq for Layouts {
    fn eq(&self, other: &Layouts) -> bool {
        self.name == other.name
    }
}

impl Eq for Layouts {}

/// Element order of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixLayout {
    /// `[N/16][K][16]`.
    Single,
    /// `[N/16][K/2][16][2]`.
    Pairs,
    /// `[N][K]`, no padding: on a GPU.
    Rows,
}

impl MatrixLayout {
    /// Returns the order for weights of a dtype on a kind of device.
    pub fn of_weights(kind: &Layouts, dtype: DType) -> MatrixLayout {
        (kind.order)(dtype)
    }

    /// Returns the elements of a matrix `[n, k]`, padding included.
    pub fn elements(self, n: u64, k: u64) -> u64 {
        if self == MatrixLayout::Rows {
            return n * k;
        }
        let k = if self == MatrixLayout::Pairs { k.next_multiple_of(2) } else { k };
        n.next_multiple_of(PANEL as u64) * k
    }

    /// Returns the index of element (row, col) of a matrix with `k` columns.
    pub fn index(self, k: usize, row: usize, col: usize) -> usize {
        let (panel, lane) = (row / PANEL, row % PANEL);
        match self {
            MatrixLayout::Single => (panel * k + col) * PANEL + lane,
            MatrixLayout::Pairs => ((panel * k.div_ceil(2) + col / 2) * PANEL + lane) * 2 + col % 2,
            MatrixLayout::Rows => row * k + col,
        }
    }
}

/// A matrix `[n, k]`: n outputs, k inputs.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// `matrix_elements` elements.
    pub buf: Buf<'a>,
    pub n: usize,
    pub k: usize,
    pub layout: MatrixLayout,
}

impl<'a> Matrix<'a> {
    /// Returns a matrix over a buffer of exactly the right length.
    pub fn new(buf: Buf<'a>, n: usize, k: usize, layout: MatrixLayout) -> Matrix<'a> {
        assert_eq!(buf.len() as u64, layout.elements(n as u64, k as u64), "matrix [{n}, {k}] {layout:?}");
        Matrix { buf, n, k, layout }
    }

    /// Returns rows `first..first + n`, which begin and end panels where rows are in panels.
    pub fn rows(&self, first: usize, n: usize) -> Matrix<'a> {
        let elements = |n: usize| self.layout.elements(n as u64, self.k as u64) as usize;
        let is_whole =
            self.layout == MatrixLayout::Rows || (first.is_multiple_of(PANEL) && n.is_multiple_of(PANEL));
        assert!(is_whole && first + n <= self.n, "rows {first} to {} of {}", first + n, self.n);
        Matrix { buf: self.buf.slice(elements(first), elements(n)), n, ..*self }
    }
}

/// Returns the elements of a matrix of weights `[n, k]` of a dtype on a kind of device, padding included.
pub fn matrix_elements(kind: &Layouts, n: u64, k: u64, weights: DType) -> u64 {
    (kind.order)(weights).elements(n, k)
}

/// One layer's keys and values in blocks of `KV_BLOCK` positions, of the activations' dtype.
///
/// On the CPU keys are `[blocks][k][d][16]` (one vector load gives an element of 16 keys) and values
/// `[blocks][k][16][d]`; on a GPU both are `[blocks][k][16][d]`.
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    /// [blocks, k, d, 16].
    pub keys: Buf<'a>,
    /// [blocks, k, 16, d].
    pub values: Buf<'a>,
    pub kv_heads: usize,
    pub head_dim: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_its_own_index_inside_the_matrix() {
        for (n, k) in [(16, 2), (15, 128), (33, 6), (48, 7)] {
            for layout in [MatrixLayout::Single, MatrixLayout::Pairs, MatrixLayout::Rows] {
                let mut seen = vec![false; layout.elements(n as u64, k as u64) as usize];
                for row in 0..n {
                    for col in 0..k {
                        let slot = &mut seen[layout.index(k, row, col)];
                        assert!(!*slot, "[{n}, {k}] {layout:?} ({row}, {col})");
                        *slot = true;
                    }
                }
            }
        }
    }
}
