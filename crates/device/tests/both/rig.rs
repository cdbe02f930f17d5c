//! A device over named buffers with guard bands, numbers to fill them with, and comparisons.
#![allow(dead_code)] // Each binary uses its part.

use plimsoll_base::rng::{self, Stream};
use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{Device, KV_BLOCK, Layouts, Matrix, MatrixLayout, matrix_elements};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool, Resident};

const GUARD: u64 = 256;
const POISON: u8 = 0xcd;
/// Threads of a device that has some, in cases of all devices.
pub const THREADS: usize = 2;

/// A buffer's name, dtype and number of elements.
pub type Sized<'s> = (&'s str, DType, usize);

/// A device, and what only tests see of it.
pub trait Machine: Device {
    /// Orders and sizes of its kind, known before one is opened.
    const KIND: &'static Layouts;
    /// Whether attention rounds its weights to bf16.
    const ROUNDS_WEIGHTS: bool;
    /// Returns where a head's block of the cache has an element of a slot's key.
    fn key_at(d: usize, slot: usize, i: usize) -> usize;
    fn bind_scratch(&mut self, scratch: Buf<'_>);
    fn fill_raw(&mut self, byte: u8);
    fn raw(&mut self, offset: u64, len: u64) -> Vec<u8>;
}

impl Machine for CpuDevice {
    const KIND: &'static Layouts = &plimsoll_cpu::LAYOUTS;
    const ROUNDS_WEIGHTS: bool = false;
    fn key_at(_: usize, slot: usize, i: usize) -> usize {
        i * KV_BLOCK + slot
    }
    fn bind_scratch(&mut self, scratch: Buf<'_>) {
        self.bind_scratch(scratch);
    }
    fn fill_raw(&mut self, byte: u8) {
        self.fill_raw(byte);
    }
    fn raw(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.raw(offset, len).to_vec()
    }
}

/// A device and its named buffers, poisoned, with guard bands.
pub struct Rig<D = CpuDevice> {
    pub dev: D,
    map: ArenaMap,
    resident: Resident<'static>,
}

impl Rig<CpuDevice> {
    pub fn new(isa: Isa, threads: usize, buffers: &[Sized<'_>]) -> Rig {
        let open = |bytes| CpuDevice::new(bytes, threads, isa).expect("a small arena");
        Rig::open(Pool::Host, buffers, open)
    }
}

impl<D: Machine> Rig<D> {
    /// A buffer named `scratch` becomes the device's.
    pub fn open(pool: Pool, buffers: &[Sized<'_>], device: impl FnOnce(Bytes) -> D) -> Rig<D> {
        let mut layout = Layout::new();
        for &(name, dtype, len) in buffers {
            layout.arena(name, "test", pool, PhaseSet::RESIDENT, &[len as u64], dtype).expect("a small size");
        }
        let map = ArenaMap::new(&layout, GUARD);
        let mut dev = device(Bytes(map.used_bytes()));
        dev.fill_raw(POISON);
        // Handles are offsets; the test keeps the device as long as it uses them.
        let arena: &'static mut Arena = Box::leak(Box::new(Arena::new(map.clone())));
        let resident = arena.split().0;
        if let Some(scratch) = resident.get("scratch") {
            dev.bind_scratch(scratch);
        }
        Rig { dev, map, resident }
    }

    pub fn bufs(&self) -> (&D, Resident<'static>) {
        (&self.dev, self.resident)
    }

    pub fn buf(&self, name: &str) -> Buf<'static> {
        self.resident.buf(name)
    }

    pub fn set(&self, name: &str, x: &[f32]) {
        assert_eq!(self.buf(name).len(), x.len(), "{name}");
        self.dev.write_f32(self.buf(name), 0, x);
    }

    pub fn set_u32(&self, name: &str, x: &[u32]) {
        self.dev.write_u32(self.buf(name), 0, x);
    }

    /// The buffer as f32, after all operations; panics if one failed.
    pub fn get(&self, name: &str) -> Vec<f32> {
        get(&self.dev, self.buf(name))
    }

    pub fn get_u32(&self, name: &str) -> Vec<u32> {
        let mut out = vec![0; self.buf(name).len()];
        self.dev.read_u32(self.buf(name), 0, &mut out);
        self.dev.check().expect("operations succeed");
        out
    }

    /// A matrix in the layout of weights of `weights`, its buffer of any dtype.
    pub fn matrix(&self, name: &str, n: usize, k: usize, weights: DType) -> Matrix<'static> {
        Matrix::new(self.buf(name), n, k, MatrixLayout::of_weights(self.dev.kind(), weights))
    }

    /// A row-major matrix.
    pub fn rows(&self, name: &str, n: usize, k: usize) -> Matrix<'static> {
        Matrix::new(self.buf(name), n, k, MatrixLayout::Rows)
    }

    /// Writes `[n, k]` row-major into a matrix; padding is zero.
    pub fn set_matrix(&self, name: &str, n: usize, k: usize, weights: DType, x: &[f32]) {
        let matrix = self.matrix(name, n, k, weights);
        let mut raw = vec![0.0; matrix.buf.len()];
        for (i, &x) in x.iter().enumerate() {
            raw[matrix.layout.index(k, i / k, i % k)] = x;
        }
        self.dev.write_f32(matrix.buf, 0, &raw);
    }

    /// The `[n, k]` elements row-major, and whether all padding is zero.
    pub fn get_matrix(&self, name: &str, n: usize, k: usize, weights: DType) -> (Vec<f32>, bool) {
        let matrix = self.matrix(name, n, k, weights);
        let mut raw = self.get(name);
        let mut take = |i: usize| std::mem::take(&mut raw[matrix.layout.index(k, i / k, i % k)]);
        let out = (0..n * k).map(&mut take).collect();
        (out, raw.iter().all(|&x| x == 0.0))
    }

    /// Writes keys [blocks, k, 16, d] in the order of the device's cache.
    pub fn set_keys(&self, name: &str, d: usize, keys: &[f32]) {
        let mut raw = vec![0.0; keys.len()];
        for (raw, keys) in raw.chunks_mut(KV_BLOCK * d).zip(keys.chunks(KV_BLOCK * d)) {
            each_key(d, |at, slot, i| raw[D::key_at(d, slot, i)] = keys[at]);
        }
        self.set(name, &raw);
    }

    /// Returns the keys of a cache as [blocks, k, 16, d].
    pub fn get_keys(&self, name: &str, d: usize) -> Vec<f32> {
        let mut raw = self.get(name);
        for raw in raw.chunks_mut(KV_BLOCK * d) {
            let keys = raw.to_vec();
            each_key(d, |at, slot, i| raw[at] = keys[D::key_at(d, slot, i)]);
        }
        raw
    }

    /// Share of a buffer's elements that no longer hold the poison.
    pub fn share_written(&mut self, name: &str) -> f64 {
        let buf = self.buf(name);
        let size = buf.dtype().bytes() as usize;
        let raw = self.dev.raw(buf.offset(), (buf.len() * size) as u64);
        let written = raw.chunks(size).filter(|x| x.iter().any(|&b| b != POISON)).count();
        written as f64 / buf.len() as f64
    }

    /// Panics if anything was written between the buffers.
    pub fn check_guards(&mut self) {
        for b in self.map.resident() {
            let guard = self.dev.raw(b.offset + b.bytes, GUARD);
            assert!(guard.iter().all(|&b| b == POISON), "bytes after {} were written", b.name);
        }
    }
}

/// Calls with the place in [16, d], the slot and the element of each element of a block's keys.
fn each_key(d: usize, mut f: impl FnMut(usize, usize, usize)) {
    (0..KV_BLOCK).for_each(|slot| (0..d).for_each(|i| f(slot * d + i, slot, i)));
}

/// The instruction paths of this machine.
pub fn paths() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// Elements of a matrix of weights on the CPU.
pub fn matrix_len(n: usize, k: usize, weights: DType) -> usize {
    matrix_elements(&plimsoll_cpu::LAYOUTS, n as u64, k as u64, weights) as usize
}

/// A buffer's elements as f32, after all operations; panics if one failed.
pub fn get(dev: &dyn Device, buf: Buf<'_>) -> Vec<f32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    dev.check().expect("operations succeed");
    out
}

/// A score or a logit that a soft-cap bends, and its slope.
pub fn bend(cap: Option<f32>, x: f64) -> (f64, f64) {
    let Some(cap) = cap.map(f64::from) else { return (x, 1.0) };
    let t = (x / cap).tanh();
    (cap * t, 1.0 - t * t)
}

/// `n` normal numbers times `scale`, rounded to `dtype`.
pub fn normal(seed: u64, n: usize, scale: f32, dtype: DType) -> Vec<f32> {
    let number = |i: usize| {
        let r = rng::philox(seed, Stream::Bench, i as u64, 0);
        round(scale * rng::normal_pair(r[0], r[1]).0, dtype)
    };
    (0..n).map(number).collect()
}

/// Uniform numbers in -1..1 that depend on the seed alone.
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Rounds to nearest even.
pub fn round(x: f32, dtype: DType) -> f32 {
    if dtype == DType::Bf16 { half::bf16::from_f32(x).to_f32() } else { x }
}

/// The numbers as the dtype holds them.
pub fn stored(dtype: DType, x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| round(x, dtype)).collect()
}

pub fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// Bits, for comparisons of exactness.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Panics unless |got - want| <= tolerance for each element.
#[track_caller]
pub fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    check_close(got, want, &vec![1.0; want.len()], tolerance, what);
}

/// Panics unless `got` is within `tolerance * scale[i]` of `want`.
#[track_caller]
pub fn check_close(got: &[f32], want: &[f64], scale: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, ((&g, &w), &s)) in got.iter().zip(want).zip(scale).enumerate() {
        let err = (f64::from(g) - w).abs();
        assert!(err <= tolerance * s, "{what}: element {i} is {g}, wanted {w}, off by {err:e} of {s:e}");
    }
}

/// Panics unless |got - want| / |want| (2-norms) is at most `tolerance`.
#[track_caller]
pub fn check_norm(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let error: f64 = got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - w).powi(2)).sum();
    let size: f64 = want.iter().map(|w| w * w).sum();
    let relative = (error / size.max(1e-300)).sqrt();
    assert!(relative <= tolerance, "{what}: relative error {relative:.3e}, allowed {tolerance:.1e}");
}
