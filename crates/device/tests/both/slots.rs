//! Layers of which each row has the adapter of its slot, against each adapter alone, to the bit.

use super::adapter::{B, Case};
use super::{Machine, Open, Rig, bits, normal};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{Adapted, Adapter, AdapterSlots, most_slots};

/// Odd widths, and those of Hopper's kernels: outputs of no block, several tiles of rows, more slots than 32, a rank of
/// two steps.
const CASES: &[(Case, usize)] = &[
    (Case { m: 9, n: 40, k: 17, r: 5, blocks: &[(1, 3), (10, 7), (30, 10)] }, 3),
    (Case { m: 33, n: 72, k: 40, r: 8, blocks: &[(0, 40), (40, 24), (64, 4), (68, 4)] }, 4),
    (Case { m: 70, n: 192, k: 320, r: 16, blocks: &[(0, 192)] }, 2),
    (Case { m: 150, n: 256, k: 64, r: 8, blocks: &[(64, 64), (136, 96)] }, 40),
    (Case { m: 200, n: 960, k: 128, r: 32, blocks: &[(0, 576), (576, 192), (768, 192)] }, 5),
    (Case { m: 140, n: 64, k: 64, r: 72, blocks: &[(0, 64)] }, 3),
    (Case { m: 130, n: 320, k: 192, r: 16, blocks: &[(0, 128), (160, 64), (224, 96)] }, 9),
];

/// Rows counted for each order of slots.
const ROWS: [usize; 4] = [1, 7, 65, usize::MAX];

/// A case's slots on a device, with what each adapter alone gives for all rows.
struct Bound {
    slots: AdapterSlots<'static>,
    layer: Adapted<'static>,
    /// Bits of u and of outputs of each slot, then of no adapter.
    alone: Vec<[Vec<u32>; 2]>,
}

pub fn rows_have_the_bits_of_their_own_adapter<D: Machine>(open: Open<D>) {
    for &(case, count) in CASES {
        for [e, out] in [[Bf16, Bf16], [Bf16, F32], [F32, F32]] {
            let mut buffers = case.buffers(D::KIND, e, out, F32);
            let len = |name: &str| buffers.iter().find(|of| of.0 == name).expect("a buffer of the case").2;
            let names: Vec<&str> =
                std::iter::once("a").chain(B.into_iter().take(case.blocks.len())).collect();
            // As tables of parameters align them.
            let stride = names.iter().map(|name| len(name).next_multiple_of(16)).sum::<usize>();
            buffers.extend([("all", e, count * stride), ("of_row", U32, case.m), ("scales", F32, count)]);
            for mut rig in open(&buffers) {
                case.fill(&rig, e);
                let bound = bind(&case, &rig, e, &names, stride);
                check(&case, &rig, &bound);
                rig.check_guards();
            }
        }
    }
}

/// Fills the slots, one of them with zeros, and computes what each adapter alone gives.
fn bind<D: Machine>(case: &Case, rig: &Rig<D>, e: DType, names: &[&str], stride: usize) -> Bound {
    let count = rig.buf("scales").len();
    let (mut all, mut starts) = (vec![0.0; count * stride], Vec::new());
    for slot in 0..count {
        let mut start = slot * stride;
        for (i, name) in names.iter().enumerate() {
            let (n, k) = if i == 0 { (case.sr(), case.k) } else { (case.blocks[i - 1].1, case.r) };
            let size = if slot == 1 { 0.0 } else { 1.0 };
            rig.set_matrix(name, n, k, e, &normal((100 * slot + i) as u64, n * k, size, e));
            let stored = rig.get(name);
            all[start..start + stored.len()].copy_from_slice(&stored);
            if slot == 0 {
                starts.push((start, stored.len()));
            }
            start += stored.len().next_multiple_of(16);
        }
    }
    rig.set("all", &all);
    let scales: Vec<f32> = (0..count).map(|slot| 0.5 + slot as f32).collect();
    rig.set("scales", &scales);
    let part = |i: usize| rig.buf("all").slice(starts[i].0, starts[i].1);
    let mut layer = case.layer(rig, e);
    layer.adapter.a.buf = part(0);
    for (i, block) in layer.adapter.blocks.iter_mut().flatten().enumerate() {
        block.b.buf = part(i + 1);
    }
    let [of_row, scales_at] = ["of_row", "scales"].map(|name| rig.buf(name));
    let slots = AdapterSlots { all: rig.buf("all"), stride, of_row, scales: scales_at, most: 1 };
    let buf = |name| rig.buf(name);
    let mut alone: Vec<[Vec<u32>; 2]> = (0..count)
        .map(|slot| {
            let adapter = Adapter { scale: scales[slot], ..slots.adapter(layer.adapter, slot) };
            rig.dev.adapted(buf("x"), Adapted { adapter, ..layer }, None, buf("u"), buf("out"));
            ["u", "out"].map(|name| bits(&rig.get(name)))
        })
        .collect();
    rig.dev.matmul(buf("x"), layer.w, None, buf("out"), false);
    alone.push(["u", "out"].map(|name| bits(&rig.get(name))));
    Bound { slots, layer, alone }
}

/// Panics unless rows in any order of slots, and any number of them, have the bits of their adapter alone.
fn check<D: Machine>(case: &Case, rig: &Rig<D>, bound: &Bound) {
    let count = bound.slots.count();
    let orders: [&dyn Fn(usize) -> usize; 3] =
        [&|row| row * (count + 1) / case.m, &|row| (row * 7 + row / 5) % (count + 2), &|_| count - 1];
    for (number, order) in orders.iter().enumerate() {
        for m in ROWS.map(|m| m.min(case.m)) {
            let of_row: Vec<u32> = (0..m).map(|row| order(row) as u32).collect();
            let part = |name: &str| rig.buf(name).slice(0, rig.buf(name).len() / case.m * m);
            rig.dev.write_u32(bound.slots.of_row, 0, &of_row);
            let most = most_slots(&of_row);
            let slots = AdapterSlots { of_row: bound.slots.of_row.slice(0, m), most, ..bound.slots };
            rig.dev.adapted_slots(part("x"), bound.layer, slots, None, part("u"), part("out"));
            for (of, name) in ["u", "out"].into_iter().enumerate() {
                let got = bits(&rig.get(name));
                let width = got.len() / case.m;
                for (row, slot) in of_row.iter().enumerate() {
                    let (slot, at) = ((*slot as usize).min(count), row * width..(row + 1) * width);
                    // Rows without an adapter have no u.
                    let is_same = (of == 0 && slot == count) || got[at.clone()] == bound.alone[slot][of][at];
                    assert!(is_same, "{name} of row {row} of {m}, slot {slot}, order {number}, {case:?}");
                }
            }
        }
    }
}
