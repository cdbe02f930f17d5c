//! Launchers of `optimizer.cu`: AdamW and the sum of squares. The update's constants are the CPU's.

use super::rows::{blocks, typed, wide};
use super::{Arg, CudaDevice, count};
use plimsoll_base::DType;
use plimsoll_device::{AdamW, AdamWBufs, CODE_BLOCK, Coded, Run, Update};
use plimsoll_memory::Buf;

/// Maximum blocks of `sum_squares`: a card has room for them all at once.
const BLOCKS_MAX: usize = 1024;
/// Minimum elements of a block of `sum_squares`; larger blocks are multiples of it.
const BLOCK_ELEMENTS: usize = 4096;
/// Bytes of scratch that `sum_squares` needs: a sum for each block, and the whole.
pub(crate) const SQUARES_SCRATCH_BYTES: u64 = (BLOCKS_MAX as u64 + 1) * 8;

/// Returns the sum of squares, in fixed blocks, in f64.
pub(crate) fn sum_squares(dev: &CudaDevice, x: Buf<'_>) -> f64 {
    if x.is_empty() {
        return 0.0;
    }
    let block = x.len().div_ceil(BLOCKS_MAX).next_multiple_of(BLOCK_ELEMENTS);
    let num_blocks = x.len().div_ceil(block);
    let sums = dev.scratch(SQUARES_SCRATCH_BYTES);
    let args = args![dev, x, Arg::Ptr(sums), x.len() as u64, block as u64, wide(dev, 8, 8, &[x])];
    dev.launch("optimizer", typed!("sum_squares", x), blocks(num_blocks, 1, 256), &args);
    dev.launch("optimizer", "add_sums", blocks(1, 1, 256), &[Arg::Ptr(sums), count(num_blocks)]);
    let mut bytes = [0; 8];
    dev.read_bytes(sums + 8 * num_blocks as u64, &mut bytes);
    f64::from_le_bytes(bytes)
}

/// Maximum runs of a launch of `squares_of`.
const RUNS_MAX: usize = 4096;
/// Bytes of scratch that `squares_of` needs: places of runs, and their sums.
pub(crate) const RUNS_SCRATCH_BYTES: u64 = RUNS_MAX as u64 * 3 * 8;

/// Gives the sum of squares of each run, in f64.
pub(crate) fn squares_of(
    dev: &CudaDevice,
    x: Buf<'_>,
    all: &mut dyn Iterator<Item = Run>,
    each: &mut dyn FnMut(f64),
) {
    let mut runs = [[0u64; 2]; RUNS_MAX];
    loop {
        let (mut len, mut aligned) = (0, true);
        for (slot, run) in runs.iter_mut().zip(&mut *all) {
            *slot = [run.start, run.elements];
            aligned &= run.start.is_multiple_of(8);
            len += 1;
        }
        if len > 0 {
            let scratch = dev.scratch(RUNS_SCRATCH_BYTES);
            let sums = scratch + 16 * RUNS_MAX as u64;
            dev.send(scratch, &runs[..len]);
            let wide = aligned && wide(dev, 8, 8, &[x]);
            let args = args![dev, x, Arg::Ptr(scratch), Arg::Ptr(sums), wide];
            dev.launch("optimizer", typed!("squares_of", x), blocks(len, 1, 256), &args);
            let mut bytes = [0; RUNS_MAX * 8];
            let bytes = &mut bytes[..len * 8];
            dev.read_bytes(sums, bytes);
            bytes.as_chunks().0.iter().for_each(|sum| each(f64::from_le_bytes(*sum)));
        }
        if len < RUNS_MAX {
            return;
        }
    }
}

pub(crate) fn adamw(dev: &CudaDevice, how: AdamW, bufs: AdamWBufs<'_>) {
    if let Some(scales) = bufs.scales {
        return adamw8(dev, how, bufs, scales);
    }
    let AdamWBufs { weights, grad, m, v, master, .. } = bufs;
    assert!(how.step >= 1, "steps count from 1");
    let n = weights.len();
    assert_eq!(
        [grad.len(), m.len(), v.len(), master.map_or(n, |b| b.len())],
        [n; 4],
        "lengths of a parameter"
    );
    assert_eq!(m.dtype(), v.dtype(), "moments of one dtype");
    assert!(master.is_none_or(|b| b.dtype() == DType::F32), "a master copy in f32");
    let update = Update::new(how);
    let wide = wide(dev, 8, 8, &[weights, grad, m, v, master.unwrap_or(weights)]);
    let args = args![dev, weights, grad, m, v, master, n as u64, update.first_element, wide];
    let kernel = typed!("adamw", weights, grad, m);
    dev.launch("optimizer", kernel, blocks(n, 8 * 256, 256), &[&args[..], &constants(&update)[..]].concat());
}

/// Runs AdamW with 8-bit moments: a warp for each block of them.
fn adamw8(dev: &CudaDevice, how: AdamW, bufs: AdamWBufs<'_>, scales: [Buf<'_>; 2]) {
    let AdamWBufs { weights, grad, m, v, master, .. } = bufs;
    assert!(how.step >= 1, "steps count from 1");
    assert!(master.is_none(), "8-bit moments have no master copy");
    let n = weights.len();
    assert_eq!([grad.len(), m.len(), v.len()], [n; 3], "lengths of a parameter");
    assert_eq!([m.dtype(), v.dtype()], [DType::E4M3, DType::E5M3], "dtypes of the moments");
    for (codes, scales) in [m, v].into_iter().zip(scales) {
        Coded { codes, scales }.check();
    }
    assert!(wide(dev, 8, 8, &[weights, grad, m, v]), "parts of parameters start at a block");
    let update = Update::new(how);
    let args = args![dev, weights, grad, m, v, scales[0], scales[1], n as u64, update.first_element];
    let kernel = typed!("adamw8", weights, grad);
    dev.launch(
        "optimizer",
        kernel,
        blocks(n, 8 * CODE_BLOCK, 256),
        &[&args[..], &constants(&update)[..]].concat(),
    );
}

/// Returns the parameters from which a kernel makes its `Update`.
fn constants(of: &Update) -> Vec<Arg> {
    let betas = [of.beta1, 1.0 - of.beta1, of.beta2, 1.0 - of.beta2];
    let others = [of.eps, of.keep, of.rate, of.correction2, of.grad_scale];
    let numbers = betas.into_iter().chain(others).map(Arg::F32);
    numbers.chain(of.keys.map(Arg::U32)).collect()
}
