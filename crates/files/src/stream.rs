//! Streams a large file to the disk. Bytes are hashed as they pass, an unfinished file is removed, and written pages
//! leave the page cache: a save costs its caller's buffer, not the size of its files.

use crate::pieces::{FileRecord, PieceSums, hex};
use plimsoll_base::{DType, Error, Result};
use rustix::fs::{Advice, fadvise};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes after which a streamed file is flushed to the disk and its pages are freed. Dirty pages count against a
/// container's limit and cannot be reclaimed, so they are bounded too; 16 MiB takes a few milliseconds to write.
pub(crate) const WINDOW_BYTES: u64 = 16 << 20;

/// Counts and sums the bytes of a file as they pass.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    sha256: Sha256,
    pieces: PieceSums,
    bytes: u64,
}

impl Sums {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.pieces.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Returns the bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the state that another process needs to continue.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.bytes.to_le_bytes().to_vec();
        out.extend_from_slice(&self.sha256.serialize());
        self.pieces.append_to(&mut out);
        out
    }

    /// Reads the output of `to_bytes`; `None` for anything else.
    pub(crate) fn from_bytes(of: &[u8]) -> Option<Sums> {
        let (bytes, rest) = of.split_first_chunk()?;
        let (sha256, pieces) = rest.split_at_checked(size_of::<SerializedState<Sha256>>())?;
        let sha256 = Sha256::deserialize(sha256.try_into().ok()?).ok()?;
        Some(Sums { sha256, pieces: PieceSums::from_bytes(pieces)?, bytes: u64::from_le_bytes(*bytes) })
    }

    pub(crate) fn finish(self) -> FileRecord {
        let (sha256, pieces) = (hex(&self.sha256.finalize()), Some(self.pieces.finish()));
        FileRecord { bytes: self.bytes, sha256, pieces }
    }
}

/// A file being written from beginning to end.
#[derive(Debug)]
pub(crate) struct Stream {
    file: Option<File>,
    path: PathBuf,
    sums: Sums,
    /// Bytes on the disk and out of the page cache.
    settled_bytes: u64,
}

impl Stream {
    /// Creates the file.
    ///
    /// Errors: `disk-full`, `write-failed`.
    pub(crate) fn create(path: &Path) -> Result<Stream> {
        let file = File::create(path).map_err(|e| write_error(path, &e))?;
        Ok(Stream { file: Some(file), path: path.to_path_buf(), sums: Sums::default(), settled_bytes: 0 })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.sums.bytes
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("the file is open until finish");
        file.write_all(bytes).map_err(|e| write_error(&self.path, &e))?;
        self.sums.update(bytes);
        if self.sums.bytes - self.settled_bytes >= WINDOW_BYTES {
            file.sync_data().map_err(|e| write_error(&self.path, &e))?;
            forget_pages(file);
            self.settled_bytes = self.sums.bytes;
        }
        Ok(())
    }

    /// Flushes to the disk and returns the file's record.
    pub(crate) fn finish(mut self) -> Result<FileRecord> {
        let file = self.file.as_ref().expect("the file is open until finish");
        file.sync_all().map_err(|e| write_error(&self.path, &e))?;
        forget_pages(file);
        self.file = None; // kept: drop removes only what is still open
        Ok(std::mem::take(&mut self.sums).finish())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Passes on values as `dtype` (f32 or bf16, round to nearest even), through `scratch`, which may be small.
pub(crate) fn each_stored(
    dtype: DType,
    values: &[f32],
    scratch: &mut [u8],
    mut put: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let width = dtype.bytes() as usize;
    assert!(scratch.len() >= width, "scratch of {} bytes holds no element", scratch.len());
    assert!(matches!(dtype, DType::F32 | DType::Bf16), "weights are written as f32 or bf16");
    for chunk in values.chunks(scratch.len() / width) {
        let out = &mut scratch[..chunk.len() * width];
        match dtype {
            DType::F32 => {
                for (bytes, value) in out.chunks_exact_mut(4).zip(chunk) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            _ => {
                for (bytes, &value) in out.chunks_exact_mut(2).zip(chunk) {
                    bytes.copy_from_slice(&to_bf16(value).to_le_bytes());
                }
            }
        }
        put(out)?;
    }
    Ok(())
}

/// Returns a value as stored in the dtype: bf16 rounds to nearest, ties to even.
pub fn stored(dtype: DType, x: f32) -> f32 {
    if dtype == DType::Bf16 { half::bf16::from_bits(to_bf16(x)).to_f32() } else { x }
}

/// Returns the bf16 bits of a number, rounded to nearest even, without a branch, so billions of them are vectorised.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // A NaN keeps its sign and becomes quiet; rounding could carry it over into infinity.
    let nan = (bits >> 16) as u16 | 0x40;
    if value.is_nan() { nan } else { rounded }
}

/// Drops a file's clean pages from the page cache. If the system ignores the advice they stay, reclaimable.
pub(crate) fn forget_pages(file: &File) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Returns `disk-full` if the system says so, else `write-failed`.
pub fn write_error(path: &Path, err: &std::io::Error) -> Error {
    match err.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::io("disk-full", path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => Error::io("write-failed", path, err).hint("check that the directory exists and may be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_half_does() {
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN_POSITIVE];
        let payload = f32::from_bits(0x7f80_0001);
        let spread = (0..=u32::MAX).step_by(65_521).map(f32::from_bits);
        for value in special.into_iter().chain([payload]).chain(spread) {
            assert_eq!(
                to_bf16(value),
                half::bf16::from_f32(value).to_bits(),
                "{value} {:#x}",
                value.to_bits()
            );
        }
    }
}
