//! The kernel of AMX: tiles of up to 16 rows by 16 columns in registers of a kilobyte, multiplied 32 elements of K at a
//! time. A block is one or two tiles of rows by three panels.
//!
//! `tdpbf16ps` adds 32 products to an output so: one sum over the even elements and one over the odd ones, both from
//! zero and ascending, then the two are added, and the result to the output. Each operation rounds to nearest even,
//! takes subnormal numbers as zero and gives zero for them. K is cut at multiples of 32 and its rest is filled up with
//! zeros, so the bits of an output depend on its row of A, its lane of B and K alone.

use super::shapes::ROW_BYTES;
use super::tile::{ALayout, Operands, TILE_PANELS, TILE_WIDTH, Tile};
use crate::Isa;
use crate::lanes::{LANES, simd_fn};
use half::bf16;
use plimsoll_device::PANEL;
use std::arch::asm;

/// Elements of K of a step.
const STEP: usize = 32;
/// Bytes of a whole tile.
const TILE_BYTES: usize = PANEL * ROW_BYTES;
/// Bytes from row to row of a `Tile`.
const OUT_BYTES: usize = TILE_WIDTH * size_of::<f32>();

/// Computes the tile of pairs.
///
/// # Safety
/// Requires what `Operand::tile` requires, and AMX.
pub(super) unsafe fn pairs(rows: usize, panels: usize, ops: &Operands<bf16>, out: &mut Tile) {
    let two = rows > PANEL;
    // Two tiles of rows have equal shapes; where the rows are odd, both compute the one in the middle. Packed panels
    // have all their rows.
    let (here, second, second_a, stride) = match ops.a_layout {
        ALayout::Rows(stride) => {
            let here = if two { rows.div_ceil(2) } else { rows };
            (here, rows - here, (rows - here) * stride, stride)
        }
        ALayout::Packed => (PANEL, PANEL, ops.len * PANEL, STEP),
    };
    let panel = |p: usize| ops.b.wrapping_add(if p < panels { p * ops.b_panel } else { 0 });
    let whole = ops.len / STEP;
    let block = Block {
        a: [ops.a, ops.a.wrapping_add(second_a)],
        a_row_bytes: stride * size_of::<bf16>(),
        b: std::array::from_fn(panel),
        steps: whole,
        second: two.then_some(second),
        panels,
        begins: true,
    };
    let packed = ops.a_layout == ALayout::Packed;
    let rest = Rest { len: ops.len % STEP, rows: here, packed };
    // SAFETY: the caller promises the path and operands that reach over rows, panels and `len`; the rest is the last
    // `len` elements of K, which are copied.
    unsafe {
        out.shapes.set(here);
        if whole > 0 {
            block.run(packed, out);
        }
        if rest.len > 0 {
            rest.run(&block, out);
        }
    }
}

/// Operands of a block whose K is whole steps.
struct Block {
    /// The first row of each tile of rows.
    a: [*const bf16; 2],
    a_row_bytes: usize,
    b: [*const bf16; TILE_PANELS],
    steps: usize,
    /// The second tile's first row of the output, if there are two.
    second: Option<usize>,
    /// Panels of B; those beyond repeat the first.
    panels: usize,
    /// The sums begin at zero; otherwise at what the output holds.
    begins: bool,
}

impl Block {
    /// # Safety
    /// The path is there and shapes are set; the operands reach over them and over `steps`.
    unsafe fn run(&self, packed: bool, out: &mut Tile) {
        // SAFETY: the caller's promises.
        unsafe {
            match (self.second, packed) {
                (None, false) => one::<ROW_BYTES>(self, out),
                (None, true) => one::<TILE_BYTES>(self, out),
                (Some(second), false) => both::<ROW_BYTES>(self, second, out),
                (Some(second), true) => both::<TILE_BYTES>(self, second, out),
            }
        }
    }
}

/// The end of K that fills no step.
struct Rest {
    len: usize,
    rows: usize,
    packed: bool,
}

#[repr(align(64))]
struct Padded<const N: usize>([[bf16; STEP]; N]);

impl Rest {
    /// Adds the products of a step that zeros fill up.
    ///
    /// # Safety
    /// Requires what `Block::run` requires, over `steps` and the rest.
    unsafe fn run(&self, before: &Block, out: &mut Tile) {
        let mut a = Padded([[bf16::ZERO; STEP]; 2 * PANEL]);
        let mut b = Padded([[bf16::ZERO; STEP]; TILE_PANELS * PANEL]);
        // Packed rows of A follow each other; those of the rest are shorter.
        let (step, row) = if self.packed {
            (PANEL * STEP, self.len)
        } else {
            (STEP, before.a_row_bytes / size_of::<bf16>())
        };
        for (to, from) in
            a.0.chunks_exact_mut(PANEL).zip(&before.a[..1 + usize::from(before.second.is_some())])
        {
            for (r, to) in to[..self.rows].iter_mut().enumerate() {
                let from = from.wrapping_add(before.steps * step + r * row);
                // SAFETY: the caller promises rows that reach over the rest.
                to[..self.len].copy_from_slice(unsafe { std::slice::from_raw_parts(from, self.len) });
            }
        }
        let pairs = self.len.div_ceil(2);
        for (to, from) in b.0.chunks_exact_mut(PANEL).zip(before.b) {
            let from = from.wrapping_add(before.steps * STEP * PANEL).cast::<[bf16; STEP]>();
            // SAFETY: the caller promises panels that reach over the rest, and panels are padded to pairs.
            to[..pairs].copy_from_slice(unsafe { std::slice::from_raw_parts(from, pairs) });
        }
        let block = Block {
            a: [a.0.as_ptr().cast(), a.0[PANEL..].as_ptr().cast()],
            a_row_bytes: ROW_BYTES,
            b: std::array::from_fn(|p| b.0[p * PANEL..].as_ptr().cast()),
            steps: 1,
            second: before.second,
            panels: before.panels,
            begins: before.steps == 0,
        };
        // SAFETY: one step of whole tiles, of which the shapes take the first rows.
        unsafe { block.run(false, out) };
    }
}

/// Runs a block of one tile of rows, panel by panel: few rows wait for B, which is asked for in the order of memory,
/// 6 KiB ahead. `A_STEP`: bytes of A from step to step.
///
/// # Safety
/// Requires what `Block::run` requires.
unsafe fn one<const A_STEP: usize>(of: &Block, out: &mut Tile) {
    for p in 0..of.panels {
        // SAFETY: the caller promises operands of that reach; the output has 16 rows of three tiles; a prefetch may
        // point anywhere.
        unsafe {
            asm!(
                "test {begins:e}, {begins:e}",
                "jz 3f",
                "tilezero tmm0",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{out} + {out_row}]",
                "2:",
                "tileloadd tmm6, [{a} + {a_row}]",
                "tileloadd tmm7, [{b} + {row}]",
                "tdpbf16ps tmm0, tmm6, tmm7",
                ".irp line, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
                "prefetcht0 [{b} + 6144 + 64 * \\line]",
                ".endr",
                "add {a}, {a_step}",
                "add {b}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {out_row}], tmm0",
                a = inout(reg) of.a[0] => _,
                b = inout(reg) of.b[p] => _,
                steps = inout(reg) of.steps => _,
                a_row = in(reg) of.a_row_bytes,
                a_step = const A_STEP,
                row = in(reg) ROW_BYTES,
                out = in(reg) out.rows[0].as_mut_ptr().wrapping_add(p * LANES),
                out_row = in(reg) OUT_BYTES,
                begins = in(reg) u32::from(of.begins),
                out("tmm0") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Runs a block of two tiles of rows; `A_STEP`: bytes of A from step to step.
///
/// # Safety
/// Requires what `Block::run` requires.
unsafe fn both<const A_STEP: usize>(of: &Block, second: usize, out: &mut Tile) {
    let to = out.rows.as_mut_ptr();
    // SAFETY: the caller promises operands of that reach; the output has two tiles of rows by three, `second` being 16
    // at most.
    unsafe {
        asm!(
            "test {begins:e}, {begins:e}",
            "jz 3f",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{out} + {out_row}]",
            "tileloadd tmm1, [{out} + {out_row} + 64]",
            "tileloadd tmm2, [{out} + {out_row} + 128]",
            "tileloadd tmm3, [{out1} + {out_row}]",
            "tileloadd tmm4, [{out1} + {out_row} + 64]",
            "tileloadd tmm5, [{out1} + {out_row} + 128]",
            "2:",
            "tileloadd tmm6, [{a} + {a_row}]",
            "tileloadd tmm7, [{b0} + {row}]",
            "tdpbf16ps tmm0, tmm6, tmm7",
            "tileloadd tmm7, [{b1} + {row}]",
            "tdpbf16ps tmm1, tmm6, tmm7",
            "tileloadd tmm7, [{b2} + {row}]",
            "tdpbf16ps tmm2, tmm6, tmm7",
            "tileloadd tmm6, [{a1} + {a_row}]",
            "tdpbf16ps tmm5, tmm6, tmm7",
            "tileloadd tmm7, [{b1} + {row}]",
            "tdpbf16ps tmm4, tmm6, tmm7",
            "tileloadd tmm7, [{b0} + {row}]",
            "tdpbf16ps tmm3, tmm6, tmm7",
            "add {a}, {a_step}", "add {a1}, {a_step}",
            "add {b0}, 1024", "add {b1}, 1024", "add {b2}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {out_row}], tmm0",
            "tilestored [{out} + {out_row} + 64], tmm1",
            "tilestored [{out} + {out_row} + 128], tmm2",
            "tilestored [{out1} + {out_row}], tmm3",
            "tilestored [{out1} + {out_row} + 64], tmm4",
            "tilestored [{out1} + {out_row} + 128], tmm5",
            a = inout(reg) of.a[0] => _,
            a1 = inout(reg) of.a[1] => _,
            b0 = inout(reg) of.b[0] => _,
            b1 = inout(reg) of.b[1] => _,
            b2 = inout(reg) of.b[2] => _,
            steps = inout(reg) of.steps => _,
            a_row = in(reg) of.a_row_bytes,
            a_step = const A_STEP,
            row = in(reg) ROW_BYTES,
            out = in(reg) to,
            out1 = in(reg) to.wrapping_add(second),
            out_row = in(reg) OUT_BYTES,
            begins = in(reg) u32::from(of.begins),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies tiles in registers, `times` times, a multiple of six, and returns a sum.
///
/// # Safety
/// The machine has the path.
pub(crate) unsafe fn tile_products(times: usize) -> f32 {
    let mut tile = Tile::new();
    // SAFETY: the caller promises the path; the instructions touch registers alone.
    unsafe {
        tile.shapes.set(PANEL);
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
            "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm6, tmm7",
            "tdpbf16ps tmm1, tmm6, tmm7",
            "tdpbf16ps tmm2, tmm6, tmm7",
            "tdpbf16ps tmm3, tmm6, tmm7",
            "tdpbf16ps tmm4, tmm6, tmm7",
            "tdpbf16ps tmm5, tmm6, tmm7",
            "sub {times}, 6",
            "jg 2b",
            "tilestored [{out} + {out_row}], tmm0",
            times = inout(reg) times => _,
            out = in(reg) tile.rows.as_mut_ptr(),
            out_row = in(reg) OUT_BYTES,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
    tile.rows[0][0]
}

/// Turns a packed part of a panel, `[pairs][16][2]`, into rows of A: `[16][pairs][2]`.
pub(super) fn turn(isa: Isa, part: &mut [bf16]) {
    if let Ok(part) = <&mut [bf16; PANEL * STEP]>::try_from(&mut *part) {
        return turn_whole(isa, part);
    }
    let pairs = part.len() / (2 * PANEL);
    let mut from = [bf16::ZERO; PANEL * STEP];
    from[..part.len()].copy_from_slice(part);
    for (i, to) in part.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let at = 2 * (i % pairs * PANEL + i / pairs);
        *to = [from[at], from[at + 1]];
    }
}

simd_fn! {
    /// Turns sixteen pairs by sixteen.
    fn turn_whole[](s: S, part: &mut [bf16; PANEL * STEP]) {
        let at = part.as_mut_ptr().cast::<f32>();
        let mut rows = [s.splat(0.0); LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: the part is 16 vectors of 16 pairs, which have the size of f32; loads need no alignment.
            *row = unsafe { s.load(at.add(i * LANES)) };
        }
        for (i, row) in s.transpose(rows).into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { s.store(at.add(i * LANES), row) };
        }
    }
}
