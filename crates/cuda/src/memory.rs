//! Copies bytes into and out of the arena, and converts dtypes on the way.

use super::CudaDevice;
use super::driver;
use cudarc::driver::{result, sys};
use half::bf16;
use plimsoll_base::DType;
use plimsoll_device::codes::{CODE_BLOCK, Coded, by_code, decode_from, encode_blocks};
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_memory::Buf;

impl CudaDevice {
    /// Fills the whole arena with a byte; for tests that show which bytes are used.
    pub fn fill_raw(&mut self, byte: u8) {
        self.gpu.bind();
        let bytes = self.arena_bytes as usize;
        // SAFETY: the arena is `arena_bytes` long.
        let done = unsafe { sys::cuMemsetD8Async(self.arena, byte, bytes, self.gpu.stream) }.result();
        self.keep(done, "filling the arena");
    }

    pub(crate) fn send<T: Copy>(&self, address: u64, src: &[T]) {
        if src.is_empty() || self.has_failed() {
            return;
        }
        self.gpu.bind();
        // SAFETY: `address` and length were checked to lie in the arena; the driver copies pageable memory first.
        let sent = unsafe { result::memcpy_htod_async(address, src, self.stream()) };
        self.keep(sent, "copying to the device");
    }

    /// Copies bytes from an address of the arena, after everything on the stream.
    pub(crate) fn receive<T: Copy>(&self, address: u64, dst: &mut [T]) {
        if dst.is_empty() || self.has_failed() {
            return;
        }
        self.gpu.bind();
        // SAFETY: `dst` outlives the copy; the caller keeps the source in the arena; the wait precedes use of `dst`.
        let received = unsafe { result::memcpy_dtoh_async(dst, address, self.gpu.stream) };
        self.keep(received, "copying from the device");
        self.keep(self.gpu.wait(), "copying from the device");
    }

    pub(crate) fn keep(&self, done: std::result::Result<(), result::DriverError>, what: &str) {
        if let Err(err) = done {
            self.fail(driver::failed(what, err));
        }
    }

    /// Copies bytes from a device address, after everything on the stream.
    pub(crate) fn read_bytes(&self, address: u64, dst: &mut [u8]) {
        self.receive(address, dst);
    }

    /// Returns `device.scratch`, at least `bytes` long, which operations share; `device.aside` for those put aside.
    pub(crate) fn scratch(&self, bytes: u64) -> u64 {
        let scratch = if self.is_aside() { self.aside_scratch } else { self.scratch };
        let (address, len) = scratch.expect("`bind_scratch` comes before the operations");
        assert!(bytes <= len, "an operation needs {bytes} bytes of a scratch of {len}");
        address
    }
}

fn element(buf: Buf<'_>, dev: &CudaDevice, start: usize, len: usize) -> u64 {
    dev.address(buf.slice(start, len))
}

pub(crate) fn write_u32(dev: &CudaDevice, dst: Buf<'_>, src: &[u32]) {
    assert_eq!(dst.dtype(), DType::U32);
    dev.send(dev.address(dst), src);
}

pub(crate) fn read_u32(dev: &CudaDevice, src: Buf<'_>, dst: &mut [u32]) {
    assert_eq!(src.dtype(), DType::U32);
    receive_buf(dev, src, dst);
}

/// Copies a buffer of this rank or another, unconverted.
pub(crate) fn receive_buf<T: Copy>(dev: &CudaDevice, src: Buf<'_>, dst: &mut [T]) {
    match dev.far_away(src) {
        None => dev.receive(dev.address(src), dst),
        Some(from) => {
            assert_eq!(size_of_val(dst) as u64, src.bytes());
            // SAFETY: that many bytes were brought, and are not written until ranks meet; any bits are a number.
            unsafe { std::ptr::copy_nonoverlapping(from, dst.as_mut_ptr().cast(), size_of_val(dst)) };
        }
    }
}

pub(crate) fn write_f32(dev: &CudaDevice, dst: Buf<'_>, src: &[f32]) {
    let address = dev.address(dst);
    match dst.dtype() {
        DType::F32 => dev.send(address, src),
        DType::Bf16 => {
            let mut part = [bf16::ZERO; 32768];
            for (i, values) in src.chunks(part.len()).enumerate() {
                for (to, &from) in part.iter_mut().zip(values) {
                    *to = bf16::from_f32(from);
                }
                dev.send(address + (i * part.len() * 2) as u64, &part[..values.len()]);
            }
        }
        other => panic!("writing f32 into {}", other.name()),
    }
}

pub(crate) fn read_f32(dev: &CudaDevice, src: Buf<'_>, dst: &mut [f32]) {
    match src.dtype() {
        DType::F32 => receive_buf(dev, src, dst),
        DType::Bf16 => {
            // One copy into the upper half of `dst`, widened from the front: a place is read before it is written.
            let half = dst.len();
            // SAFETY: f32 may be seen as pairs of u16, and any bits are both.
            let (_, words, _) = unsafe { dst.align_to_mut::<u16>() };
            receive_buf(dev, src, &mut words[half..]);
            widen(words);
        }
        other => panic!("reading {} as f32", other.name()),
    }
}

/// Widens bf16 in the upper half of `words` to little-endian f32 in all of it, in place.
fn widen(words: &mut [u16]) {
    let n = words.len() / 2;
    let mut i = 0;
    // Through a part on the stack, so that the loop within has no two names for one place.
    let mut part = [0u16; 1024];
    while i < n {
        let count = part.len().min(n - i);
        part[..count].copy_from_slice(&words[n + i..n + i + count]);
        for (to, &from) in words[2 * i..2 * (i + count)].chunks_exact_mut(2).zip(&part[..count]) {
            (to[0], to[1]) = (0, from);
        }
        i += count;
    }
}

/// Returns the buffer of `elements` elements of whole rows from `first_row`.
pub(crate) fn rows(of: Matrix<'_>, first_row: usize, elements: usize) -> Buf<'_> {
    assert_eq!((of.layout, elements % of.k), (MatrixLayout::Rows, 0));
    of.buf.slice(first_row * of.k, elements)
}

/// Elements converted at a time.
const PART: usize = 64 * CODE_BLOCK;

pub(crate) fn read_codes(dev: &CudaDevice, src: Coded<'_>, start: usize, dst: &mut [f32]) {
    src.check();
    by_code!(src.codes, C => {
        let (mut codes, mut scales) = ([C::default(); PART], [0.0; PART / CODE_BLOCK + 1]);
        for (i, values) in dst.chunks_mut(PART).enumerate() {
            let start = start + i * PART;
            let blocks = start / CODE_BLOCK..(start + values.len()).div_ceil(CODE_BLOCK);
            let (codes, scales) = (&mut codes[..values.len()], &mut scales[..blocks.len()]);
            receive_buf(dev, src.codes.slice(start, codes.len()), codes);
            receive_buf(dev, src.scales.slice(blocks.start, scales.len()), scales);
            decode_from(codes, scales, start, values);
        }
    });
}

pub(crate) fn write_codes(dev: &CudaDevice, src: Buf<'_>, dst: Coded<'_>) {
    dst.check();
    assert_eq!(src.len(), dst.codes.len(), "lengths of what becomes codes");
    let mut values = [0.0; PART];
    by_code!(dst.codes, C => {
        let (mut codes, mut scales) = ([C::default(); PART], [0.0; PART / CODE_BLOCK]);
        for start in (0..src.len()).step_by(PART) {
            let n = PART.min(src.len() - start);
            let (codes, scales) = (&mut codes[..n], &mut scales[..n.div_ceil(CODE_BLOCK)]);
            read_f32(dev, src.slice(start, n), &mut values[..n]);
            encode_blocks(&values[..n], codes, scales);
            dev.send(element(dst.codes, dev, start, n), codes);
            dev.send(element(dst.scales, dev, start / CODE_BLOCK, scales.len()), scales);
        }
    });
}

pub(crate) fn zero(dev: &CudaDevice, dst: Buf<'_>) {
    fill(dev, dst, 0);
}

pub(crate) fn fill(dev: &CudaDevice, dst: Buf<'_>, byte: u8) {
    if dst.is_empty() || dev.has_failed() {
        return;
    }
    dev.gpu.bind();
    let bytes = dst.len() * dst.dtype().bytes() as usize;
    // SAFETY: the bytes lie in the arena, as `address` checks.
    let done = unsafe { sys::cuMemsetD8Async(dev.address(dst), byte, bytes, dev.stream()) }.result();
    dev.keep(done, "filling a region");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_widened_in_place() {
        for n in [0, 1, 2, 1023, 1024, 1025, 5000] {
            let values: Vec<bf16> = (0..n).map(|i| bf16::from_f32(i as f32 - 7.5)).collect();
            let mut words = vec![0u16; n];
            words.extend(values.iter().map(|v| v.to_bits()));
            widen(&mut words);
            let wide: Vec<f32> =
                words.chunks(2).map(|w| f32::from_bits(u32::from(w[1]) << 16 | u32::from(w[0]))).collect();
            assert_eq!(wide, values.iter().map(|v| v.to_f32()).collect::<Vec<_>>(), "{n}");
        }
    }
}
