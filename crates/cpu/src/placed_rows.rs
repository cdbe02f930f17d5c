//! Rows that are weighed or put at places by number, and the places of rows of text.

use super::CpuDevice;
use super::elementwise::split;
use super::lanes::{LANES, simd_fn};
use super::norm::{load_any, store_any};
use plimsoll_memory::Buf;

pub(super) fn weigh_rows(dev: &CpuDevice, x: Buf<'_>, by: Buf<'_>, out: Buf<'_>, add: bool) {
    let rows = by.len();
    let h = x.len() / rows.max(1);
    assert_eq!([x.len(), out.len()], [rows * h; 2], "rows of {h}, each with a weight");
    let (x, by, out) = (dev.read::<f32>(x), dev.read::<f32>(by), dev.write::<f32>(out));
    split(dev, rows, h, &|part| {
        for m in part {
            // SAFETY: ranges of rows are disjoint, and each is one task's.
            let out = unsafe { out.range(m * h, h) };
            weigh(dev.isa(), &x[m * h..][..h], by[m], add, out);
        }
    });
}

simd_fn! {
    /// Writes out = by x, or adds it; the product is rounded first.
    fn weigh[](s: S, x: &[f32], by: f32, add: bool, out: &mut [f32]) {
        for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
            let y = s.mul(load_any(s, x), s.splat(by));
            let y = if add { s.add(load_any(s, out), y) } else { y };
            store_any(s, out, y);
        }
    }
}

pub(super) fn replace_rows(dev: &CpuDevice, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>) {
    let (rows, src, dst) = (dev.read::<u32>(rows), dev.read::<f32>(src), dev.write::<f32>(dst));
    let h = src.len() / rows.len().max(1);
    assert_eq!(src.len(), rows.len() * h, "a row of {h} for each number");
    split(dev, rows.len(), h, &|part| {
        for r in part {
            // SAFETY: no two numbers are alike, as the operation requires, so each row is one task's.
            unsafe { dst.range(rows[r] as usize * h, h) }.copy_from_slice(&src[r * h..][..h]);
        }
    });
}

pub(super) fn next_places(dev: &CpuDevice, places: Buf<'_>) {
    let to = dev.write::<u32>(places);
    // SAFETY: the only task, and the operation has claimed the buffer.
    unsafe { to.range(0, places.len()) }.iter_mut().for_each(|place| *place += 1);
}
