//! Rows that a teacher's head read, on their way from a pass to the step's arrays of every rank.
//!
//! Legend: R head rows, t the teacher's hidden elements, e the storage of activations.

use plimsoll_base::{DType, Result};
use plimsoll_device::Device;
use plimsoll_memory::Buf;
use plimsoll_plan::KEPT_PIECE_BYTES;
use plimsoll_ranks::Group;

/// Head rows of some sequences on the host as they are stored, [R, t] e; empty if none are kept.
#[derive(Clone, Debug, Default)]
pub struct HostRows(Vec<u8>);

impl HostRows {
    /// Adds the rows of a micro-batch, if its pass keeps any.
    pub(super) fn add(&mut self, dev: &dyn Device, rows: Option<Buf<'_>>) {
        let Some(rows) = rows else { return };
        let start = self.0.len();
        self.0.resize(start + rows.bytes() as usize, 0);
        read_stored(dev, rows, &mut self.0[start..]);
    }

    /// Returns the rows of every rank, by rank. Ranks exchange a piece at a time.
    ///
    /// Errors: `rank-lost`.
    pub(super) fn gather(self, group: &Group) -> Result<Vec<HostRows>> {
        let lengths = group.all_gather(&(self.0.len() as u64).to_le_bytes())?;
        let length = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes) as usize;
        let lengths: Vec<usize> = lengths.iter().map(length).collect();
        let mut all: Vec<HostRows> =
            lengths.iter().map(|&length| HostRows(Vec::with_capacity(length))).collect();
        let most = lengths.into_iter().max().unwrap_or(0);
        for first in (0..most).step_by(KEPT_PIECE_BYTES) {
            let own = first.min(self.0.len())..(first + KEPT_PIECE_BYTES).min(self.0.len());
            for (rows, piece) in all.iter_mut().zip(group.all_gather(&self.0[own])?) {
                rows.0.extend_from_slice(&piece);
            }
        }
        Ok(all)
    }

    /// Copies the rows.
    pub(super) fn read(&self, to: &mut [u8]) {
        to.copy_from_slice(&self.0);
    }
}

/// Copies a buffer of f32 or bf16 to the host as it is stored, a piece at a time.
pub(super) fn read_stored(dev: &dyn Device, from: Buf<'_>, to: &mut [u8]) {
    let size = from.dtype().bytes() as usize;
    assert_eq!(to.len(), from.len() * size, "the bytes of {} elements", from.len());
    let mut widened = vec![0.0f32; (KEPT_PIECE_BYTES / 4).min(from.len())];
    for (index, to) in to.chunks_mut(KEPT_PIECE_BYTES / 4 * size).enumerate() {
        let values = &mut widened[..to.len() / size];
        dev.read_f32(from, index * (KEPT_PIECE_BYTES / 4), values);
        for (to, value) in to.chunks_exact_mut(size).zip(values) {
            // Widening a bf16 adds zeros below its bits.
            let bytes = value.to_le_bytes();
            to.copy_from_slice(if from.dtype() == DType::Bf16 { &bytes[2..] } else { &bytes });
        }
    }
}
