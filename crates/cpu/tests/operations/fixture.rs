//! A device over named buffers, and numbers to fill them with.

use plimsoll_base::{DType, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::Device;
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool, Resident};

/// Buffers of a test and the device that holds them.
pub struct Rig {
    pub dev: CpuDevice,
    arena: Arena,
}

impl Rig {
    /// `regions`: name, dtype, elements.
    pub fn new(isa: Isa, threads: usize, regions: &[(&str, DType, usize)]) -> Rig {
        let mut layout = Layout::new();
        for &(name, dtype, len) in regions {
            let shape = [len as u64];
            layout.arena(name, "test", Pool::Host, PhaseSet::RESIDENT, &shape, dtype).expect("a small size");
        }
        let map = ArenaMap::new(&layout, 0);
        let bytes = plimsoll_base::Bytes(map.used_bytes());
        Rig { dev: CpuDevice::new(bytes, threads, isa).expect("a small arena"), arena: Arena::new(map) }
    }

    /// The handles.
    pub fn bufs(&mut self) -> (&CpuDevice, Resident<'_>) {
        (&self.dev, self.arena.split().0)
    }
}

/// The instruction paths of this machine.
pub fn paths() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// A buffer's elements as f32.
pub fn get(dev: &CpuDevice, buf: Buf<'_>) -> Vec<f32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out
}

/// Their bits.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
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

/// The numbers as the dtype holds them.
pub fn stored(dtype: DType, x: &[f32]) -> Vec<f32> {
    match dtype {
        DType::Bf16 => x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect(),
        _ => x.to_vec(),
    }
}

/// Fails unless |ours - reference| <= tolerance for each element.
#[track_caller]
pub fn close(what: &str, ours: &[f32], reference: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), reference.len(), "{what}: lengths");
    for (i, (&x, &r)) in ours.iter().zip(reference).enumerate() {
        let error = (f64::from(x) - r).abs();
        assert!(
            error <= tolerance,
            "{what}[{i}]: {x:e} against {r:e}, error {error:.2e}, allowed {tolerance:.2e}"
        );
    }
}
