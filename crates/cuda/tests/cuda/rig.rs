//! Named buffers on a card, with guard bands, and the same buffers on the CPU.
#![allow(dead_code)] // Each module uses its part.

use plimsoll_base::rng::{self, Stream};
use plimsoll_base::{Bytes, DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_cuda::{CudaDevice, CudaOptions, probe};
use plimsoll_device::{Device, DeviceKind, Matrix, MatrixLayout};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};

const GUARD: u64 = 256;
const POISON: u8 = 0xcd;
/// Bytes of `device.scratch` in tests.
const SCRATCH: usize = 64 << 20;

/// A card and its buffers.
pub struct GpuBench {
    pub dev: CudaDevice,
    arena: Arena,
}

/// Why a test on a card is skipped, said once a test.
fn skipped() -> Option<String> {
    probe().err().map(|error| format!("skipped: {error}"))
}

impl GpuBench {
    /// Buffers of (name, dtype, elements), poisoned, and a scratch; `None` without a card.
    pub fn new(buffers: &[(&str, DType, usize)]) -> Option<GpuBench> {
        GpuBench::with(buffers, CudaOptions::default())
    }

    pub fn with(buffers: &[(&str, DType, usize)], options: CudaOptions) -> Option<GpuBench> {
        if let Some(why) = skipped() {
            eprintln!("{why}");
            return None;
        }
        let arena = arena(buffers, Pool::Device, SCRATCH);
        let mut dev = CudaDevice::new(Bytes(arena.map().used_bytes()), options).unwrap();
        dev.fill_raw(POISON);
        let bench = GpuBench { dev, arena };
        let scratch = bench.buf("device.scratch");
        let mut dev = bench.dev;
        dev.bind_scratch(Buf::clone(&scratch));
        Some(GpuBench { dev, arena: bench.arena })
    }

    pub fn buf(&self, name: &str) -> Buf<'static> {
        handle(&self.arena, name)
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
        let mut out = vec![0.0; self.buf(name).len()];
        self.dev.read_f32(self.buf(name), 0, &mut out);
        self.dev.check().unwrap();
        out
    }

    pub fn get_u32(&self, name: &str) -> Vec<u32> {
        let mut out = vec![0; self.buf(name).len()];
        self.dev.read_u32(self.buf(name), 0, &mut out);
        self.dev.check().unwrap();
        out
    }

    /// A row-major matrix.
    pub fn matrix(&self, name: &str, n: usize, k: usize) -> Matrix<'static> {
        Matrix::new(self.buf(name), n, k, MatrixLayout::Rows)
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

    /// Share of a buffer's elements that no longer hold the poison.
    pub fn share_written(&mut self, name: &str) -> f64 {
        let buf = self.buf(name);
        let size = buf.dtype().bytes() as usize;
        let raw = self.dev.raw(buf.offset(), (buf.len() * size) as u64);
        let written = raw.chunks(size).filter(|x| x.iter().any(|&b| b != POISON)).count();
        written as f64 / buf.len() as f64
    }
}

/// The twin on the CPU.
pub struct CpuBench {
    pub dev: CpuDevice,
    arena: Arena,
}

impl CpuBench {
    pub fn new(buffers: &[(&str, DType, usize)]) -> CpuBench {
        let arena = arena(buffers, Pool::Host, 1 << 20);
        let mut dev = CpuDevice::new(Bytes(arena.map().used_bytes()), 1, Isa::detect()).unwrap();
        dev.fill_raw(POISON);
        dev.bind_scratch(handle(&arena, "device.scratch"));
        CpuBench { dev, arena }
    }

    pub fn buf(&self, name: &str) -> Buf<'static> {
        handle(&self.arena, name)
    }

    pub fn set(&self, name: &str, x: &[f32]) {
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

    /// A matrix in the CPU's order; its buffer has `cpu_matrix_len` elements.
    pub fn matrix(&self, name: &str, n: usize, k: usize, weights: DType) -> Matrix<'static> {
        Matrix::new(self.buf(name), n, k, MatrixLayout::of_weights(DeviceKind::Cpu, weights))
    }

    /// Writes `[n, k]` row-major into a matrix.
    pub fn set_matrix(&self, name: &str, n: usize, k: usize, weights: DType, x: &[f32]) {
        let matrix = self.matrix(name, n, k, weights);
        self.dev.zero(matrix.buf);
        self.dev.write_rows(matrix, 0, x);
    }
}

/// Elements of a matrix on the CPU.
pub fn cpu_matrix_len(n: usize, k: usize, weights: DType) -> usize {
    plimsoll_device::matrix_elements(DeviceKind::Cpu, n as u64, k as u64, weights) as usize
}

fn arena(buffers: &[(&str, DType, usize)], pool: Pool, scratch: usize) -> Arena {
    let mut layout = Layout::new();
    let scratch = ("device.scratch", DType::Bf16, scratch / 2);
    for &(name, dtype, len) in buffers.iter().chain([&scratch]) {
        layout.arena(name, "test", pool, PhaseSet::RESIDENT, &[len as u64], dtype).unwrap();
    }
    Arena::new(ArenaMap::new(&layout, GUARD))
}

fn handle(arena: &Arena, name: &str) -> Buf<'static> {
    // A handle is an offset; the tests keep the arena as long as they use it.
    let arena: &'static mut Arena = Box::leak(Box::new(Arena::new(arena.map().clone())));
    arena.split().0.buf(name)
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

/// Bits, for comparisons of exactness.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
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
