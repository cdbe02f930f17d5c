//! Experts in MXFP4, as gpt-oss is published: `NAME_blocks` has the codes of 32 neighbours of a row in 16 bytes, and
//! `NAME_scales` a byte for each of these blocks. Both are one tensor NAME here, whose rows are those of the matrices.
//!
//! In files of plain numbers NAME is transposed, and that is its shape here too: a reader asks for rows of the
//! matrices, or for all of an expert.

use crate::storage::Storage;
use crate::tensors::{RowOrder, TensorInfo};
use plimsoll_base::blocks::decode;
use plimsoll_base::{Encoding, Error, Result, shown};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

const CODES: &str = "_blocks";
const SCALES: &str = "_scales";
/// Values of a block.
const VALUES: u64 = Encoding::Mxfp4.block_values();
/// Bytes of a block's codes; one more is its scale.
const CODE_BYTES: usize = Encoding::Mxfp4.block_bytes() as usize - 1;

/// Returns whether a tensor of bytes may be half of one in MXFP4, by its name.
pub(crate) fn is_half(name: &str) -> bool {
    name.ends_with(CODES) || name.ends_with(SCALES)
}

/// Joins codes and scales. `is_said`: the configuration says that there are some.
///
/// Errors: `model-file-corrupt`, `model-tensor-missing`.
pub(crate) fn joined(tensors: Vec<TensorInfo>, is_said: bool, dir: &Path) -> Result<Vec<TensorInfo>> {
    let (halves, mut tensors): (Vec<TensorInfo>, Vec<TensorInfo>) =
        tensors.into_iter().partition(|tensor| tensor.encoding == Encoding::Mxfp4);
    let corrupt = |what: String| {
        Error::new("model-file-corrupt", format!("{}: {what}", dir.display()))
            .hint("fetch or copy the file again")
    };
    if let Some(half) = halves.first().filter(|_| !is_said) {
        let name = shown(&half.name);
        return Err(corrupt(format!("tensor `{name}` has dtype U8; F32, F16 and BF16 are read")));
    }
    let mut scales: BTreeMap<String, TensorInfo> = BTreeMap::new();
    let mut codes = Vec::new();
    for half in halves {
        match half.name.strip_suffix(SCALES) {
            Some(name) => drop(scales.insert(name.to_string(), half)),
            None => codes.push(half),
        }
    }
    for codes in codes {
        let name = codes.name.strip_suffix(CODES).unwrap_or(&codes.name).to_string();
        let missing = || no_half(dir, &format!("{name}{SCALES}"));
        let scales = scales.remove(&name).ok_or_else(missing)?;
        let (&[experts, n, blocks, bytes], true) =
            (codes.shape.as_slice(), codes.shape.starts_with(&scales.shape))
        else {
            let what = format!(
                "tensors `{}` and its scales have shapes {:?} and {:?}, expected [E, N, K / 32, 16] and [E, N, K / 32]",
                shown(&codes.name),
                codes.shape,
                scales.shape
            );
            return Err(corrupt(what));
        };
        if bytes != CODE_BYTES as u64 || scales.shape.len() != 3 {
            let what =
                format!("tensor `{}` has shape {:?}, blocks have 16 bytes", shown(&codes.name), codes.shape);
            return Err(corrupt(what));
        }
        let row_order = RowOrder::Mxfp4 { scales_file: scales.file, scales_offset: scales.offset };
        tensors.push(TensorInfo { name, shape: vec![experts, blocks * VALUES, n], row_order, ..codes });
    }
    match scales.into_keys().next() {
        Some(name) => Err(no_half(dir, &format!("{name}{CODES}"))),
        None => Ok(tensors),
    }
}

fn no_half(dir: &Path, name: &str) -> Error {
    let message = format!("{}: no tensor `{}`, the other half of one in MXFP4", dir.display(), shown(name));
    Error::new("model-tensor-missing", message).hint("fetch the model again")
}

/// A tensor in MXFP4 with its files.
struct Blocks<'m> {
    codes: (&'m Storage, u64),
    scales: (&'m Storage, u64),
    /// N: rows of an expert's matrix.
    n: u64,
    /// K: values of a row.
    k: u64,
}

impl<'m> Blocks<'m> {
    /// Returns the blocks of a tensor, if it has some.
    fn of(files: &'m [Storage], tensor: &TensorInfo) -> Option<Blocks<'m>> {
        let RowOrder::Mxfp4 { scales_file, scales_offset } = tensor.row_order else { return None };
        let [_, k, n] = tensor.shape[..] else { return None };
        let codes = (&files[tensor.file], tensor.offset);
        Some(Blocks { codes, scales: (&files[scales_file], scales_offset), n, k })
    }

    /// Reads rows of the matrices of all experts as blocks, each scale before its codes.
    fn read(&self, rows: Range<u64>, out: &mut [u8]) -> Result<()> {
        let of_row = self.k / VALUES;
        let (first, blocks) = (rows.start * of_row, ((rows.end - rows.start) * of_row) as usize);
        assert_eq!(out.len(), blocks * (CODE_BYTES + 1), "rows {rows:?} of {}", self.k);
        let (mut codes, mut scales) = (vec![0; blocks * CODE_BYTES], vec![0; blocks]);
        self.codes.0.read_exact_at(&mut codes, self.codes.1 + first * CODE_BYTES as u64)?;
        self.scales.0.read_exact_at(&mut scales, self.scales.1 + first)?;
        let each = codes.chunks_exact(CODE_BYTES).zip(scales);
        for (block, (codes, scale)) in out.chunks_exact_mut(CODE_BYTES + 1).zip(each) {
            block[0] = scale;
            block[1..].copy_from_slice(codes);
        }
        Ok(())
    }
}

/// Returns whether a tensor is in MXFP4, whose rows are read by `read_rows`.
pub(crate) fn read(
    files: &[Storage],
    tensor: &TensorInfo,
    rows: Range<u64>,
    out: &mut [u8],
) -> Option<Result<()>> {
    Blocks::of(files, tensor).map(|blocks| blocks.read(rows, out))
}

/// Reads whole experts in the order of plain files, [K, N] each, if a tensor is in MXFP4.
pub(crate) fn read_experts(
    files: &[Storage],
    tensor: &TensorInfo,
    experts: Range<u64>,
    out: &mut [f32],
) -> Option<Result<()>> {
    let blocks = Blocks::of(files, tensor)?;
    let (n, k) = (blocks.n as usize, blocks.k as usize);
    let mut bytes = vec![0; k / VALUES as usize * (CODE_BYTES + 1)];
    let mut row = vec![0.0; k];
    let all = || -> Result<()> {
        for (expert, out) in experts.zip(out.chunks_exact_mut(n * k)) {
            for column in 0..n {
                let at = expert * blocks.n + column as u64;
                blocks.read(at..at + 1, &mut bytes)?;
                decode(Encoding::Mxfp4, &bytes, &[], &mut row);
                row.iter().enumerate().for_each(|(i, x)| out[i * n + column] = *x);
            }
        }
        Ok(())
    };
    Some(all())
}

/// Returns the scales of a tensor in MXFP4 as bytes of a file: its number, the first byte and how many there are.
pub(crate) fn scales(tensor: &TensorInfo) -> Option<(usize, u64, u64)> {
    match tensor.row_order {
        RowOrder::Mxfp4 { scales_file, scales_offset } => {
            Some((scales_file, scales_offset, tensor.bytes / CODE_BYTES as u64))
        }
        _ => None,
    }
}
