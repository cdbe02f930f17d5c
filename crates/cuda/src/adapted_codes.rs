//! Launcher of `adapted_codes.cu`: products of few rows with 4-bit weights, widened where the product reads them.
//!
//! Legend: M rows, N outputs, K inputs, S blocks of rank r. Bits are those of the product with the widened matrix.

use super::adapted::{FEW_ROWS, STEP, STEP_BYTES, blocks_of, layer, takes, three, tiles_of};
use super::boxes::{SHARED_MAX, tensor_map};
use super::matmul::rows;
use super::{Arg, CudaDevice, Launch};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::Adapted;
use plimsoll_memory::Buf;

/// A kernel: groups of four warps with 64 outputs each, and the room that it has for the rank.
struct Kernel {
    name: &'static str,
    groups: usize,
    room: usize,
}

const KERNELS: [Kernel; 2] = [
    Kernel { name: "adapted_codes_3_32", groups: 3, room: 32 },
    Kernel { name: "adapted_codes_2_64", groups: 2, room: 64 },
];

/// Bytes of the kernel's table of pairs of numbers, with its alignment.
const PAIRS_BYTES: usize = 256 * 16 * 8 + 1024;
/// Lines of 128 bytes of codes that an output has room for, and one of its B.
const LINES: usize = 2 + 1;
/// Minimum buffers of a ring: fewer would not hide the latency of a copy.
const STAGES_MIN: usize = 3;

impl Kernel {
    /// Returns the buffers of the ring and the shared memory, if it fits. `k`: K.
    fn shared(&self, k: usize) -> Option<(usize, u32)> {
        let outputs = self.groups * 64;
        let scales = outputs * k.div_ceil(STEP) * 4;
        // Besides these u, and what its product reads after A's rows.
        let fixed = PAIRS_BYTES + outputs * LINES * 128 + (2 * FEW_ROWS - self.room) * STEP_BYTES + scales;
        let stage = (FEW_ROWS + self.room) * STEP_BYTES;
        let stages = (SHARED_MAX.checked_sub(fixed)? / stage).min(12);
        (stages >= STAGES_MIN).then_some((stages, (fixed + stages * stage) as u32))
    }
}

/// Computes u and the layer's outputs, adapters included. False if the kernel does not take the shapes, or widening the
/// matrix first is faster: many rows widen a tile's codes often, and few tiles each take their steps in sequence.
pub(crate) fn forward(
    dev: &CudaDevice,
    x: Buf<'_>,
    of: &Adapted<'_>,
    resid: Option<Buf<'_>>,
    u: Buf<'_>,
    out: Buf<'_>,
) -> bool {
    let Adapted { w, bias, adapter, codes, .. } = *of;
    let Some(nf4) = codes.and_then(|codes| codes.whole(Encoding::Nf4)) else { return false };
    let scales = nf4.scales.expect("NF4 has scales");
    let (m, rank) = (rows(x, w.k), adapter.rank());
    let Some(kernel) = KERNELS.iter().find(|kernel| rank <= kernel.room) else { return false };
    let Some((stages, shared)) = kernel.shared(w.k) else { return false };
    let outputs = kernel.groups * 64;
    let tiles = tiles_of(of, outputs);
    let aligned = |buf: Buf<'_>| dev.address(buf).is_multiple_of(16);
    let is_fast = (1..=FEW_ROWS).contains(&m) && 2 * tiles >= dev.multiprocessors() as usize;
    let whole = [nf4.words, scales, out].into_iter().all(aligned);
    let plain = resid.is_none() && out.dtype() == DType::Bf16 && bias.is_none_or(|b| b.dtype() == x.dtype());
    if !is_fast || !whole || !plain || !takes(dev, &adapter, w.n, &[x, u]) {
        return false;
    }
    let map = |b: Buf<'_>, rows, width, boxed| tensor_map(dev, dev.address(b), rows, width, boxed);
    let b = adapter.blocks().map(|(_, of)| map(of.b.buf, of.b.n, rank, outputs)).collect();
    let mut args = vec![
        Arg::Map(map(x, m, w.k, FEW_ROWS)),
        // Four codes are as long as an element.
        Arg::Map(map(nf4.words, w.n, w.k / 4, outputs)),
        Arg::Map(map(adapter.a.buf, adapter.a.n, w.k, kernel.room)),
    ];
    args.extend(three(b));
    args.extend(layer(m, w.n, w.k, (rank, &blocks_of(&adapter))));
    args.extend(args![dev, stages, scales, adapter.scale, u]);
    args.extend([bias.map_or(Arg::Ptr(0), |b| dev.arg(b)), dev.arg(out)]);
    let block = (kernel.groups * 128 + 256) as u32;
    dev.launch("adapted_codes", kernel.name, Launch { grid: [tiles as u32, 1, 1], block, shared }, &args);
    true
}
