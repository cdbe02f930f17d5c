//! Sums of the pieces of a file, in addition to its SHA-256: they show where a file differs from what was written.

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

/// Bytes of a piece of a small file: a page, the smallest unit that a disk damages.
const PIECE_BYTES_MIN: u64 = 4096;
/// Most pieces of a file: a larger file has larger pieces. Their sums take 32 KiB of a manifest.
const PIECES_MAX: usize = 4096;

/// The expected contents of a file: its length, its SHA-256 in hex, and the sums of its pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    pub bytes: u64,
    /// SHA-256 of all of it, in hex.
    pub sha256: String,
    /// `None` in records of checkpoints of format 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<Pieces>,
}

/// The sums of a file's pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pieces {
    /// Bytes of a piece; the last one may be shorter.
    pub bytes: u64,
    /// CRC-32 (IEEE) of each piece, eight hexadecimal digits each, without a separator.
    pub crc32: String,
}

impl Pieces {
    /// Returns the sums; `None` unless they fit a file of `file_bytes`.
    pub(crate) fn sums(&self, file_bytes: u64) -> Option<Vec<u32>> {
        let digits = self.crc32.as_bytes();
        let num_pieces =
            file_bytes.checked_div(self.bytes)? + u64::from(!file_bytes.is_multiple_of(self.bytes));
        if digits.len() as u64 != num_pieces.checked_mul(8)? {
            return None;
        }
        let number = |digits: &[u8]| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        digits.chunks(8).map(number).collect()
    }
}

/// Sums pieces as bytes pass. The result depends on the bytes alone, not on how they are split.
pub(crate) struct PieceSums {
    piece_bytes: u64,
    pieces_max: usize,
    complete: Vec<u32>,
    open: Hasher,
    open_bytes: u64,
}

impl std::fmt::Debug for PieceSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pieces of {} bytes", self.complete.len(), self.piece_bytes)
    }
}

impl Default for PieceSums {
    fn default() -> PieceSums {
        PieceSums { pieces_max: PIECES_MAX, ..PieceSums::of(PIECE_BYTES_MIN) }
    }
}

impl PieceSums {
    /// Sums any number of pieces of a given size.
    pub(crate) fn of(piece_bytes: u64) -> PieceSums {
        let (complete, open) = (Vec::new(), Hasher::new());
        PieceSums { piece_bytes, pieces_max: usize::MAX, complete, open, open_bytes: 0 }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.open_bytes == self.piece_bytes {
                self.close();
            }
            let room = (self.piece_bytes - self.open_bytes).min(bytes.len() as u64) as usize;
            self.open.update(&bytes[..room]);
            self.open_bytes += room as u64;
            bytes = &bytes[room..];
        }
    }

    /// Ends a piece. If there are too many, every two become one.
    fn close(&mut self) {
        self.complete.push(std::mem::take(&mut self.open).finalize());
        self.open_bytes = 0;
        if self.complete.len() == self.pieces_max {
            let pair = |pair: &[u32]| joined(pair[0], pair[1], self.piece_bytes);
            self.complete = self.complete.chunks(2).map(pair).collect();
            self.piece_bytes *= 2;
        }
    }

    /// Appends the state that another process needs to continue.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.piece_bytes.to_le_bytes());
        out.extend_from_slice(&self.open_bytes.to_le_bytes());
        out.extend_from_slice(&self.open.clone().finalize().to_le_bytes());
        self.complete.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
    }

    /// Reads the output of `append_to`; `None` for anything else.
    pub(crate) fn from_bytes(of: &[u8]) -> Option<PieceSums> {
        let (piece_bytes, rest) = of.split_first_chunk()?;
        let (open_bytes, rest) = rest.split_first_chunk()?;
        let (open, rest) = rest.split_first_chunk()?;
        let (complete, &[]) = rest.as_chunks() else { return None };
        let (piece_bytes, open_bytes) = (u64::from_le_bytes(*piece_bytes), u64::from_le_bytes(*open_bytes));
        if piece_bytes < PIECE_BYTES_MIN || open_bytes > piece_bytes || complete.len() >= PIECES_MAX {
            return None;
        }
        let complete = complete.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        let open = Hasher::new_with_initial_len(u32::from_le_bytes(*open), open_bytes);
        Some(PieceSums { piece_bytes, pieces_max: PIECES_MAX, complete, open, open_bytes })
    }

    pub(crate) fn sums(mut self) -> Vec<u32> {
        if self.open_bytes > 0 {
            self.complete.push(self.open.finalize());
        }
        self.complete
    }

    pub(crate) fn finish(self) -> Pieces {
        let bytes = self.piece_bytes;
        Pieces { bytes, crc32: self.sums().iter().map(|sum| format!("{sum:08x}")).collect() }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the CRC-32 of two adjacent ranges, the second of `second_bytes`.
pub(crate) fn joined(first: u32, second: u32, second_bytes: u64) -> u32 {
    let mut sum = Hasher::new_with_initial(first);
    sum.combine(&Hasher::new_with_initial_len(second, second_bytes));
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_depend_on_the_bytes_alone_and_their_number_is_bounded() {
        let bytes: Vec<u8> =
            (0..PIECE_BYTES_MIN * PIECES_MAX as u64 + 5000).map(|i| ((i * i) >> 7) as u8).collect();
        for chunk in [1 << 12, 4099, 1 << 20, bytes.len()] {
            let mut sums = PieceSums::default();
            bytes.chunks(chunk).for_each(|chunk| sums.update(chunk));
            let pieces = sums.finish();
            let whole = bytes.chunks(8192).map(|piece| format!("{:08x}", crc32fast::hash(piece)));
            assert_eq!(pieces, Pieces { bytes: 8192, crc32: whole.collect() }, "{chunk}");
        }
        assert_eq!(PieceSums::default().finish(), Pieces { bytes: 4096, crc32: String::new() });
    }
}
