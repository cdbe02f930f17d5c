//! Products of many rounded rows by cuBLASLt, where it gives the bits of our own kernel.
//!
//! Versions from 12.9 on scale blocks of 128. An algorithm is taken once a probe through both has the same bits: codes
//! and scales of all sizes, whose sums in another order, or kept in another number of bits, would round otherwise.

use super::CudaDevice;
use super::fp8_tiles::{Fp8Operands, launch};
use super::lt::{Description, Fp8Shape, Operands, failed};
use super::trial::{forget, output};
use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use cudarc::driver::result as cuda;
use plimsoll_base::Result;
use plimsoll_base::rng::{Stream, philox};
use plimsoll_device::{FP8_BLOCK, fp8_pitch};

/// Choices requested from the library.
const CANDIDATES: usize = 4;
/// Rows of a product for which the library has a choice.
const MANY_ROWS: usize = 4096;
/// Rows and outputs of a probe, and the fewest.
const PROBED: (usize, usize) = (128, 128);
const PROBED_MIN: usize = 16;
/// Alignment of what a probe places.
const ALIGN: usize = 256;

/// Queues a product by an algorithm that `algorithm` returned.
///
/// Errors: `cuda-failed`.
pub(super) fn put(
    dev: &CudaDevice,
    of: &Fp8Shape,
    operands: &Fp8Operands,
    algorithm: &Algorithm,
    workspace: (u64, u64),
) -> Result<()> {
    let lt = &dev.blas.lt;
    let what = || format!("{of:?}");
    let scales = (operands.w.1, operands.x.1);
    let description =
        Description::fp8(lt.calls, of, scales, operands.summand).map_err(|e| failed(&what(), e))?;
    dev.gpu.bind();
    let addresses = Operands {
        a: operands.w.0,
        b: operands.x.0,
        added: if of.add { operands.summand } else { operands.out },
        out: operands.out,
        bias: operands.summand,
        scale: 1.0,
    };
    let beta = if of.add { 1.0 } else { 0.0 };
    lt.put(&dev.gpu, &description, addresses, beta, algorithm, workspace).map_err(|e| failed(&what(), e))
}

/// Returns the algorithm by which the library computes a shape, M rounded up, with our bits; found once.
pub(super) fn algorithm(dev: &CudaDevice, of: &Fp8Shape) -> Option<Algorithm> {
    let rounded = Fp8Shape { m: of.m.next_power_of_two(), ..*of };
    let mut found = dev.blas.of_fp8.lock().unwrap_or_else(|e| e.into_inner());
    *found.entry(rounded).or_insert_with(|| {
        let workspace = dev.workspace();
        let choices = |m: usize| {
            let shape = Fp8Shape { m, ..rounded };
            let description = Description::fp8(dev.blas.lt.calls, &shape, (16, 16), 16).ok()?;
            dev.blas.lt.choices_of(&description, workspace.1 / 2, CANDIDATES).ok()
        };
        // Of few rows and many inputs it offers nothing that adds them in one sum; what it does with many rows will do.
        let choices = choices(rounded.m).or_else(|| choices(MANY_ROWS))?;
        let probe = Probe::new(dev, &rounded)?;
        choices.into_iter().find(|choice| probe.has_our_bits(dev, choice))
    })
}

/// A small product of the same contraction, in the upper half of the workspace.
struct Probe {
    shape: Fp8Shape,
    ours: Fp8Operands,
    theirs: Fp8Operands,
    bytes: usize,
    workspace: (u64, u64),
}

impl Probe {
    /// Returns the largest that fits; none if none does, or the driver refuses.
    fn new(dev: &CudaDevice, of: &Fp8Shape) -> Option<Probe> {
        let (address, bytes) = dev.workspace();
        let half = bytes / 2 / ALIGN as u64 * ALIGN as u64;
        let (mut m, mut n) = PROBED;
        while Places::new(of, m, n).bytes > half as usize {
            (m, n) = (n, m / 2);
            if m.min(n) < PROBED_MIN {
                return None;
            }
        }
        let places = Places::new(of, m, n);
        let at = |place: usize| address + half + place as u64;
        let shape = Fp8Shape { m, n, ..*of };
        let operands = |out: usize| Fp8Operands {
            w: (at(places.w), at(places.w_scales)),
            x: (at(places.x), at(places.x_scales)),
            pitch: m,
            summand: if of.add || of.bias { at(places.summand) } else { 0 },
            out: at(out),
        };
        dev.gpu.wait().ok()?;
        let steps = of.k.div_ceil(FP8_BLOCK);
        let summand = if of.add { m * n } else { n };
        let (x, w) = (codes(1, m * of.k), codes(2, n * of.k));
        let (x_scales, w_scales) =
            (scales(3, steps * m), scales(4, n.div_ceil(FP8_BLOCK) * fp8_pitch(of.k as u64) as usize));
        let (floats, narrow) = (scales(5, summand), vec![0x3f80u16; summand]);
        copy(at(places.x), &x)?;
        copy(at(places.w), &w)?;
        copy(at(places.x_scales), &x_scales)?;
        copy(at(places.w_scales), &w_scales)?;
        if of.bias {
            copy(at(places.summand), &narrow)?;
        } else {
            copy(at(places.summand), &floats)?;
        }
        Some(Probe {
            shape,
            ours: operands(places.ours),
            theirs: operands(places.theirs),
            bytes: m * n * of.out.bytes() as usize,
            workspace: (address, half),
        })
    }

    fn has_our_bits(&self, dev: &CudaDevice, algorithm: &Algorithm) -> bool {
        let bits = |out: u64, put: &dyn Fn() -> Option<()>| {
            forget(&dev.gpu, out, self.bytes)?;
            put()?;
            output(&dev.gpu, out, self.bytes)
        };
        let ours = bits(self.ours.out, &|| {
            launch(dev, &self.shape, &self.ours);
            Some(())
        });
        let theirs =
            bits(self.theirs.out, &|| put(dev, &self.shape, &self.theirs, algorithm, self.workspace).ok());
        ours.is_some() && ours == theirs
    }
}

/// Where a probe's matrices begin, in bytes.
struct Places {
    x: usize,
    w: usize,
    x_scales: usize,
    w_scales: usize,
    summand: usize,
    ours: usize,
    theirs: usize,
    bytes: usize,
}

impl Places {
    fn new(of: &Fp8Shape, m: usize, n: usize) -> Places {
        let mut bytes = 0;
        let mut place = |len: usize| {
            let here = bytes;
            bytes += len.next_multiple_of(ALIGN);
            here
        };
        let (steps, out) = (of.k.div_ceil(FP8_BLOCK), m * n * of.out.bytes() as usize);
        let w_scales = n.div_ceil(FP8_BLOCK) * fp8_pitch(of.k as u64) as usize;
        let (x, w) = (place(m * of.k), place(n * of.k));
        let (x_scales, w_scales) = (place(4 * steps * m), place(4 * w_scales));
        let (summand, ours, theirs) = (place(4 * m * n), place(out), place(out));
        Places { x, w, x_scales, w_scales, summand, ours, theirs, bytes }
    }
}

/// Returns random codes, none of which is NaN.
fn codes(seed: u64, count: usize) -> Vec<u8> {
    let four = |i: usize| philox(seed, Stream::Bench, i as u64, 0).map(|r| r as u8);
    let code = |code: u8| if code & 0x7f == 0x7f { code ^ 1 } else { code };
    (0..count.div_ceil(4)).flat_map(four).map(code).take(count).collect()
}

/// Returns random powers of two, 2^-4 to 2^3.
fn scales(seed: u64, count: usize) -> Vec<f32> {
    let one = |i: usize| f32::from_bits((123 + (philox(seed, Stream::Bench, i as u64, 0)[0] & 7)) << 23);
    (0..count).map(one).collect()
}

fn copy<T>(to: u64, from: &[T]) -> Option<()> {
    // SAFETY: `Places` leaves room for it in the workspace, which nothing uses now.
    unsafe { cuda::memcpy_htod_sync(to, from) }.ok()
}
