//! Rows that a teacher's head read, on their way from a pass to the step's arrays.

use plimsoll_base::DType;
use plimsoll_device::Device;
use plimsoll_memory::Buf;
use plimsoll_plan::KEPT_PIECE_BYTES;

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
