//! The tensors of a model file, under Hugging Face names, whatever names the file uses.

use plimsoll_base::Encoding;

/// The order of rows in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// The model's order.
    Stored,
    /// GGUF's order for q and k of Llama: rows i and i + d/2 of a head are neighbours 2i and 2i + 1.
    RopePairs {
        /// d: rows of one head.
        head_dim: u32,
    },
    /// GGUF's order of linear attention's value heads: the first of each key head, then the second of each, and so on.
    ValueHeads {
        /// Rows before these heads, in the model's order.
        from: u32,
        heads: ValueHeads,
    },
    /// The order of `ValueHeads` for the columns of a matrix.
    ValueColumns(ValueHeads),
    /// The order of `ValueHeads` for numbers x, each stored as -e^x.
    Decays(ValueHeads),
    /// Columns: element (row, col) is value `stride` col + row from the first on.
    Columns {
        /// Values from a column to the next.
        stride: u64,
    },
    /// Matrices of experts in MXFP4, which are read as blocks of rows or expert by expert; their scales lie apart.
    Mxfp4 {
        /// Index of the file with the scales.
        scales_file: usize,
        /// First byte of the scales within that file.
        scales_offset: u64,
    },
}

/// Value heads that share key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueHeads {
    /// Number of key heads.
    pub keys: u32,
    /// Value heads per key head.
    pub each: u32,
    /// Rows, or columns, of a value head.
    pub width: u32,
}

impl ValueHeads {
    /// Returns where the file keeps a row or column.
    fn stored(self, at: u64) -> u64 {
        let [keys, each, width] = [self.keys, self.each, self.width].map(u64::from);
        let (head, within) = (at / width, at % width);
        (head % each * keys + head / each) * width + within
    }
}

impl RowOrder {
    /// Returns where the file keeps row `row`.
    pub(crate) fn stored_row(self, row: u64) -> u64 {
        match self {
            RowOrder::Stored | RowOrder::ValueColumns(_) | RowOrder::Mxfp4 { .. } => row,
            RowOrder::Columns { .. } => row,
            RowOrder::ValueHeads { from, heads } => match row.checked_sub(from.into()) {
                Some(row) => u64::from(from) + heads.stored(row),
                None => row,
            },
            RowOrder::Decays(heads) => heads.stored(row),
            RowOrder::RopePairs { head_dim } => {
                let head_dim = u64::from(head_dim);
                let (head, within, half) = (row / head_dim, row % head_dim, head_dim / 2);
                head * head_dim + 2 * (within % half) + within / half
            }
        }
    }

    /// Converts the values of a stored row to the model's.
    pub(crate) fn read(self, row: &mut [f32]) {
        match self {
            RowOrder::ValueColumns(heads) => {
                let stored = row.to_vec();
                (0..).zip(row).for_each(|(at, x)| *x = stored[heads.stored(at) as usize]);
            }
            RowOrder::Decays(_) => row.iter_mut().for_each(|x| *x = (-f64::from(*x)).ln() as f32),
            _ => {}
        }
    }

    /// Converts the values of a row to those stored: the inverse of `read`.
    pub(crate) fn write(self, row: &mut [f32]) {
        match self {
            RowOrder::ValueColumns(heads) => {
                let own = row.to_vec();
                (0..).zip(own).for_each(|(at, x)| row[heads.stored(at) as usize] = x);
            }
            RowOrder::Decays(_) => row.iter_mut().for_each(|x| *x = -f64::from(*x).exp() as f32),
            _ => {}
        }
    }
}

/// One tensor of an open model, checked to lie inside its file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Hugging Face name.
    pub name: String,
    /// Slowest axis first.
    pub shape: Vec<u64>,
    /// Encoding of its elements.
    pub encoding: Encoding,
    /// Index of its file in the model.
    pub file: usize,
    /// First byte within that file.
    pub offset: u64,
    pub bytes: u64,
    /// Order of the rows in the file.
    pub row_order: RowOrder,
    /// Constant that the file adds to each element.
    pub added: f32,
}

/// The head of a model for sequence classification.
pub const SCORE: &str = "score.weight";
