//! An arena of named buffers with guard bands for the tests of the CPU device, and numbers to fill them with.
#![allow(dead_code)] // Each test uses its part.

use plimsoll_base::rng::{self, Stream};
use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};

const GUARD: u64 = 256;
const POISON: u8 = 0xcd;

/// A device and its buffers.
pub struct Bench {
    pub dev: CpuDevice,
    arena: Arena,
}

impl Bench {
    /// Buffers of (name, dtype, elements), poisoned.
    pub fn new(isa: Isa, threads: usize, buffers: &[(&str, DType, usize)]) -> Bench {
        let mut layout = Layout::new();
        for &(name, dtype, len) in buffers {
            layout.arena(name, "test", Pool::Host, PhaseSet::RESIDENT, &[len as u64], dtype).unwrap();
        }
        let arena = Arena::new(ArenaMap::new(&layout, GUARD));
        let mut dev = CpuDevice::new(Bytes(arena.map().used_bytes()), threads, isa).unwrap();
        dev.fill_raw(POISON);
        let mut bench = Bench { dev, arena };
        if buffers.iter().any(|b| b.0 == "scratch") {
            let scratch = bench.arena.split().0.buf("scratch");
            bench.dev.bind_scratch(scratch);
        }
        bench
    }

    pub fn buf(&self, name: &str) -> Buf<'_> {
        // A handle is an offset: two residents may be alive at once.
        let binding = self.arena.map().resident().iter().find(|b| b.name == name).unwrap();
        let arena: &mut Arena = Box::leak(Box::new(Arena::new(self.arena.map().clone())));
        arena.split().0.buf(&binding.name)
    }

    pub fn set(&self, name: &str, x: &[f32]) {
        assert_eq!(self.buf(name).len(), x.len(), "{name}");
        self.dev.write_f32(self.buf(name), 0, x);
    }

    pub fn set_u32(&self, name: &str, x: &[u32]) {
        self.dev.write_u32(self.buf(name), 0, x);
    }

    pub fn get(&self, name: &str) -> Vec<f32> {
        let mut out = vec![0.0; self.buf(name).len()];
        self.dev.read_f32(self.buf(name), 0, &mut out);
        out
    }

    pub fn get_u32(&self, name: &str) -> Vec<u32> {
        let mut out = vec![0; self.buf(name).len()];
        self.dev.read_u32(self.buf(name), 0, &mut out);
        out
    }

    /// A matrix in the layout of weights of `weights`, its buffer of any dtype.
    pub fn matrix(&self, name: &str, n: usize, k: usize, weights: DType) -> Matrix<'_> {
        Matrix::new(self.buf(name), n, k, MatrixLayout::of_weights(plimsoll_device::DeviceKind::Cpu, weights))
    }

    /// Writes `[n, k]` row-major into a matrix; padding is zero.
    pub fn set_matrix(&self, name: &str, n: usize, k: usize, weights: DType, x: &[f32]) {
        let matrix = self.matrix(name, n, k, weights);
        self.dev.zero(matrix.buf);
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
        let out =
            (0..n * k).map(|i| std::mem::take(&mut raw[matrix.layout.index(k, i / k, i % k)])).collect();
        (out, raw.iter().all(|&x| x == 0.0))
    }

    /// Share of a buffer's elements that no longer hold the poison.
    pub fn share_written(&mut self, name: &str) -> f64 {
        let binding = self.arena.map().resident().iter().find(|b| b.name == name).unwrap().clone();
        let size = binding.dtype.bytes() as usize;
        let raw = self.dev.raw(binding.offset, (binding.elements * size) as u64);
        let written = raw.chunks(size).filter(|x| x.iter().any(|&b| b != POISON)).count();
        written as f64 / binding.elements as f64
    }

    /// Panics if anything was written between the buffers.
    pub fn check_guards(&mut self) {
        let ends: Vec<_> =
            self.arena.map().resident().iter().map(|b| (b.name.clone(), b.offset + b.bytes)).collect();
        for (name, end) in ends {
            assert!(
                self.dev.raw(end, GUARD).iter().all(|&b| b == POISON),
                "bytes behind {name} were written"
            );
        }
    }
}

/// The paths of this machine.
pub fn paths() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

/// `n` normal numbers times `scale`, rounded to `dtype`.
pub fn normal(seed: u64, n: usize, scale: f32, dtype: DType) -> Vec<f32> {
    let number = |i: usize| {
        let r = rng::philox(seed, Stream::Bench, i as u64, 0);
        round(scale * rng::normal_pair(r[0], r[1]).0, dtype)
    };
    (0..n).map(number).collect()
}

/// Rounds to nearest even.
pub fn round(x: f32, dtype: DType) -> f32 {
    if dtype == DType::Bf16 { half::bf16::from_f32(x).to_f32() } else { x }
}

/// Elements of a matrix of weights.
pub fn matrix_len(n: usize, k: usize, weights: DType) -> usize {
    plimsoll_device::matrix_elements(plimsoll_device::DeviceKind::Cpu, n as u64, k as u64, weights) as usize
}

/// Panics unless `got` is within `tolerance * scale[i]` of `want`.
pub fn check_close(got: &[f32], want: &[f64], scale: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, ((&g, &w), &s)) in got.iter().zip(want).zip(scale).enumerate() {
        let err = (f64::from(g) - w).abs();
        assert!(err <= tolerance * s, "{what}: element {i} is {g}, wanted {w}, off by {err:e} of {s:e}");
    }
}
