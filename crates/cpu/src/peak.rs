//! The peak rates of this machine: arithmetic in registers and reads of memory. Shares of peak refer to them.

use super::{Isa, Pool};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Returns GFLOP/s of the path's fastest instruction in registers, on all threads, over about `seconds`.
pub fn measure_flops(pool: &Pool, isa: Isa, seconds: f64) -> f64 {
    let of = Instruction::of(isa);
    let seconds = seconds / of.len() as f64;
    of.iter().map(|instruction| measure(pool, *instruction, seconds)).fold(0.0, f64::max)
}

#[derive(Clone, Copy)]
enum Instruction {
    Tile,
    Dot512,
    Fma512,
    Fma256,
    Scalar,
}

impl Instruction {
    /// Returns those of a path that may be the fastest: some processors begin a dot product of bf16 every other cycle,
    /// but two multiply-adds of f32 in each.
    fn of(isa: Isa) -> &'static [Instruction] {
        match isa {
            Isa::Amx => &[Instruction::Tile],
            Isa::Avx512Bf16 => &[Instruction::Dot512, Instruction::Fma512],
            Isa::Avx2 => &[Instruction::Fma256],
            Isa::Scalar => &[Instruction::Scalar],
        }
    }

    fn flops(self) -> usize {
        match self {
            // A sixteenth of a product of two tiles: its rounds are as much fewer.
            Instruction::Tile => 1024,
            Instruction::Dot512 => 64,
            Instruction::Fma512 => 32,
            Instruction::Fma256 => 16,
            Instruction::Scalar => 2,
        }
    }
}

fn measure(pool: &Pool, instruction: Instruction, seconds: f64) -> f64 {
    // Many short parts, the best of which counts: other processes may share the cores.
    let limit = Duration::from_secs_f64(seconds);
    let (start, mut best) = (Instant::now(), 0.0f64);
    while start.elapsed() < limit {
        let part = Instant::now();
        let tasks = TASKS_PER_THREAD * pool.threads();
        pool.run(tasks, &|_, _| {
            black_box(rounds(instruction));
        });
        let flops = (instruction.flops() * CHAINS * ROUNDS * tasks) as f64;
        best = best.max(flops / part.elapsed().as_secs_f64() * 1e-9);
    }
    best
}

/// Returns GB/s of reading `bytes` bytes again and again on all threads: of memory, or of the cache that holds them.
pub fn measure_bandwidth(pool: &Pool, bytes: usize) -> f64 {
    let words: Vec<u64> = vec![1; bytes / 8];
    let times = (READ / bytes.max(1)).max(1);
    let mut best = 0.0f64;
    for _ in 0..5 {
        let start = Instant::now();
        let parts = pool.threads() * 16;
        let len = words.len().div_ceil(parts);
        pool.run(parts, &|part, _| {
            let from = (part * len).min(words.len());
            for _ in 0..times {
                black_box(sum(black_box(&words[from..words.len().min(from + len)])));
            }
        });
        best = best.max((times * words.len()) as f64 * 8e-9 / start.elapsed().as_secs_f64());
    }
    best
}

/// The least number of bytes of a timed read: few of them would take no longer than waking the threads.
const READ: usize = 64 << 20;
/// Rounds of a task: about a tenth of a millisecond.
const ROUNDS: usize = 1 << 15;
/// Tasks between looks at the clock: enough to make the last one's share small, few enough to find a quiet moment.
const TASKS_PER_THREAD: usize = 8;
/// Independent sums: more than latency times throughput on any known machine.
const CHAINS: usize = 12;

fn rounds(instruction: Instruction) -> f32 {
    match instruction {
        // SAFETY: `CpuDevice::new` and `Isa::parse` refuse a path that the machine does not have.
        #[cfg(target_arch = "x86_64")]
        Instruction::Tile => unsafe { crate::matmul::tile_products(CHAINS * ROUNDS / 16) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instruction::Dot512 => unsafe { rounds_dot512() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instruction::Fma512 => unsafe { rounds_fma512() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instruction::Fma256 => unsafe { rounds_fma256() },
        _ => rounds_scalar(),
    }
}

/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rounds_dot512() -> f32 {
    use std::arch::x86_64::*;
    // SAFETY: both are 64 bytes of any bits.
    let x: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi32(black_box(0))) };
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    sums.into_iter().map(|s| _mm512_reduce_add_ps(s)).sum()
}

/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn rounds_fma512() -> f32 {
    use std::arch::x86_64::*;
    let x = _mm512_set1_ps(black_box(0.5));
    let mut sums = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, x, x);
        }
    }
    sums.into_iter().map(|s| _mm512_reduce_add_ps(s)).sum()
}

/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn rounds_fma256() -> f32 {
    use std::arch::x86_64::*;
    let x = _mm256_set1_ps(black_box(0.5));
    let mut sums = [_mm256_setzero_ps(); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, x, x);
        }
    }
    sums.into_iter().map(|s| _mm256_cvtss_f32(s)).sum()
}

fn rounds_scalar() -> f32 {
    let x = black_box(0.5f32);
    let mut sums = [0.0f32; CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = *sum * x + x;
        }
    }
    sums.into_iter().sum()
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2.is_available() {
        // SAFETY: the machine has the features of the path, AVX2 among them.
        return unsafe { sum_avx2(words) };
    }
    sum_of(words)
}

/// # Safety
/// The machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(words: &[u64]) -> u64 {
    sum_of(words)
}

#[inline(always)]
fn sum_of(words: &[u64]) -> u64 {
    words.iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_positive_peak() {
        let pool = Pool::new(1);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert!(measure_flops(&pool, isa, 0.001) > 0.01, "{}", isa.name());
        }
        assert!(measure_bandwidth(&pool, 1 << 20) > 0.01);
    }
}
