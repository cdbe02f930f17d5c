//! Operations without arithmetic between elements of a row: data in and out, embedding rows, SwiGLU, casts; and the one
//! way in which this and its neighbour modules split work over threads.

use super::lanes::{LANES, Lanes, Simd, by_dtype, simd_fn};
use super::{CpuDevice, Element, Real, Shared};
use half::bf16;
use plimsoll_base::DType;
use plimsoll_device::codes::by_code;
use plimsoll_device::{Batch, KEY_WORDS, KV_BLOCK, Matrix, MatrixLayout, OwnedRun, SEGMENT_FIELDS, Slots};
use plimsoll_memory::Buf;
use std::ops::Range;

/// Minimum elements of a task: some microseconds of work.
const TASK_ELEMENTS: usize = 8192;
/// Maximum tasks of an operation: enough to even out threads that are delayed.
const TASKS_MAX: usize = 64;
/// Columns whose sums a task of `embed_backward` holds.
const SUM_COLUMNS_MAX: usize = 512;
/// Rows of a panel, as in `layout`.
const PANEL: usize = 16;

/// Runs `body` on ranges that cover `0..items`, in parallel if there is enough work.
pub(super) fn split(
    dev: &CpuDevice,
    items: usize,
    elements_per_item: usize,
    body: &(dyn Fn(Range<usize>) + Sync),
) {
    let tasks = (items * elements_per_item / TASK_ELEMENTS).min(TASKS_MAX).min(items);
    if tasks <= 1 {
        return if items > 0 {
            body(0..items)
        };
    }
    dev.pool().run(tasks, &|task, _thread| body(items * task / tasks..items * (task + 1) / tasks));
}

// ---- data in and out ---------------------------------------------------------------------------------------------

pub(super) fn write_u32(dev: &CpuDevice, dst: Buf<'_>, src: &[u32]) {
    let out = dev.write(dst);
    // SAFETY: no other task runs, and the operation has claimed the buffer.
    unsafe { out.range(0, src.len()) }.copy_from_slice(src);
}

pub(super) fn write_bytes(dev: &CpuDevice, dst: Buf<'_>, src: &[u8]) {
    match dst.dtype() {
        DType::Bf16 => write_elements(dev, dst, src, bf16::from_le_bytes),
        DType::F32 => write_elements(dev, dst, src, f32::from_le_bytes),
        _ => write_elements(dev, dst, src, u32::from_le_bytes),
    }
}

fn write_elements<T: Element, const N: usize>(
    dev: &CpuDevice,
    dst: Buf<'_>,
    src: &[u8],
    read: fn([u8; N]) -> T,
) {
    let out = dev.write::<T>(dst);
    // SAFETY: no other task runs, and the operation has claimed the buffer.
    let out = unsafe { out.range(0, dst.len()) };
    for (to, from) in out.iter_mut().zip(src.as_chunks::<N>().0) {
        *to = read(*from);
    }
}

pub(super) fn write_f32(dev: &CpuDevice, dst: Buf<'_>, src: &[f32]) {
    by_dtype!(dst, T => {
        let out = dev.write::<T>(dst);
        split(dev, src.len(), 1, &|part| {
            // SAFETY: parts are disjoint, and each is one task's.
            let out = unsafe { out.range(part.start, part.len()) };
            convert::<f32, T>(dev.isa(), &src[part], out);
        });
    });
}

pub(super) fn read_f32(dev: &CpuDevice, src: Buf<'_>, dst: &mut [f32]) {
    by_dtype!(src, T => convert::<T, f32>(dev.isa(), dev.read::<T>(src), dst));
}

/// Writes dst = src, of one dtype.
pub(super) fn copy_bytes(dev: &CpuDevice, src: Buf<'_>, dst: Buf<'_>) {
    fn copy<T: Element>(dev: &CpuDevice, src: Buf<'_>, dst: Buf<'_>) {
        let (x, out) = (dev.read::<T>(src), dev.write::<T>(dst));
        assert_eq!(x.len(), out.len(), "lengths of a copy");
        split(dev, x.len(), 1, &|part| {
            // SAFETY: parts are disjoint, and each is one task's.
            unsafe { out.range(part.start, part.len()) }.copy_from_slice(&x[part]);
        });
    }
    match src.dtype() {
        DType::E4M3 | DType::E5M3 => by_code!(src, C => copy::<C>(dev, src, dst)),
        _ => by_dtype!(src, T => copy::<T>(dev, src, dst)),
    }
}

/// Zeroes a gradient before a sum is added to it, unless `add`.
pub(super) fn begin_sum(dev: &CpuDevice, grad: Buf<'_>, add: bool) {
    if !add {
        zero(dev, grad);
    }
}

pub(super) fn zero(dev: &CpuDevice, dst: Buf<'_>) {
    fn fill<T: Element + Default>(dev: &CpuDevice, dst: Buf<'_>) {
        let out = dev.write::<T>(dst);
        split(dev, out.len(), 1, &|part| {
            // SAFETY: parts are disjoint, and each is one task's.
            unsafe { out.range(part.start, part.len()) }.fill(T::default());
        });
    }
    match dst.dtype() {
        DType::U32 => fill::<u32>(dev, dst),
        DType::E4M3 | DType::E5M3 => by_code!(dst, C => fill::<C>(dev, dst)),
        _ => by_dtype!(dst, T => fill::<T>(dev, dst)),
    }
}

simd_fn! {
    /// Writes out = x in the other dtype.
    pub(super) fn convert[T: Lanes, U: Lanes](s: S, x: &[T], out: &mut [U]) {
        convert_row(s, x, out);
    }
}

/// Writes out = x in the other dtype.
#[inline(always)]
pub(super) fn convert_row<S: Simd, T: Lanes, U: Lanes>(s: S, x: &[T], out: &mut [U]) {
    assert_eq!(x.len(), out.len(), "lengths of a conversion");
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
    for (x, out) in x.iter().zip(out) {
        U::store(s, out, T::load(s, x));
    }
    if !x_rest.is_empty() {
        U::store_part(s, out_rest, T::load_part(s, x_rest));
    }
}

pub(super) fn cast(dev: &CpuDevice, src: Buf<'_>, dst: Buf<'_>) {
    assert_eq!(src.len(), dst.len(), "lengths of a cast");
    by_dtype!(dst, T => {
        let (x, out) = (dev.read::<f32>(src), dev.write::<T>(dst));
        split(dev, x.len(), 1, &|part| {
            // SAFETY: parts are disjoint, and each is one task's.
            let out = unsafe { out.range(part.start, part.len()) };
            convert::<f32, T>(dev.isa(), &x[part], out);
        });
    });
}

pub(super) fn advance(
    dev: &CpuDevice,
    batch: Batch<'_>,
    window: Option<Slots<'_>>,
    ids: Buf<'_>,
    tokens: Buf<'_>,
    keys: Buf<'_>,
) {
    let rows = ids.len();
    assert_eq!((batch.positions.len(), tokens.len(), keys.len()), (rows, rows, rows * KEY_WORDS));
    assert_eq!((batch.slots.len(), batch.segments.len()), (rows, rows * SEGMENT_FIELDS), "one row a segment");
    let (tokens, tables) = (dev.read::<u32>(tokens), dev.read::<u32>(batch.tables));
    let arrays = [ids, batch.positions, batch.slots, batch.segments, keys].map(|buf| dev.write::<u32>(buf));
    // SAFETY: the only task, and the arrays are distinct regions.
    let [ids, positions, slots, segments, keys] =
        std::array::from_fn(|i| unsafe { arrays[i].range(0, arrays[i].len()) });
    for i in 0..rows {
        let segment = &mut segments[i * SEGMENT_FIELDS..][..SEGMENT_FIELDS];
        let position = positions[i] + 1;
        (ids[i], positions[i], segment[2]) = (tokens[i], position, position);
        slots[i] = slot_of(tables, segment, position);
        keys[i * KEY_WORDS + 2] += 1;
    }
    let Some(window) = window else { return };
    assert_eq!((window.slots.len(), window.tables.len()), (rows, tables.len()), "as those of the batch");
    let (tables, slots) = (dev.read::<u32>(window.tables), dev.write::<u32>(window.slots));
    // SAFETY: the only task, and a region that nothing else here uses.
    let slots = unsafe { slots.range(0, rows) };
    for ((slot, segment), &position) in
        slots.iter_mut().zip(segments.chunks_exact(SEGMENT_FIELDS)).zip(&*positions)
    {
        *slot = slot_of(tables, segment, position);
    }
}

/// Returns the cache slot of a position of a segment.
fn slot_of(tables: &[u32], segment: &[u32], position: u32) -> u32 {
    let block = tables[segment[3] as usize + position as usize / KV_BLOCK];
    block * KV_BLOCK as u32 + position % KV_BLOCK as u32
}

// ---- rows of matrices --------------------------------------------------------------------------------------------

/// Place of a matrix row in its panel: element c is at `first + c / per * stride + c % per`.
struct RowIndex {
    first: usize,
    stride: usize,
    per: usize,
}

impl RowIndex {
    /// Returns the place of what is left from a column on, which is a multiple of 2.
    fn after(&self, column: usize) -> RowIndex {
        RowIndex { first: self.first + column / self.per * self.stride, ..*self }
    }
}

fn row_index(m: Matrix<'_>, row: usize) -> RowIndex {
    assert!(row < m.n, "row {row} of a matrix of {}", m.n);
    let per = if m.layout == MatrixLayout::Pairs { 2 } else { 1 };
    RowIndex { first: m.layout.index(m.k, row, 0), stride: PANEL * per, per }
}

#[inline(always)]
fn read_row<T: Real>(x: &[T], at: &RowIndex, out: &mut [f32]) {
    for (i, out) in out.chunks_mut(at.per).enumerate() {
        for (j, out) in out.iter_mut().enumerate() {
            *out = x[at.first + i * at.stride + j].to_f32();
        }
    }
}

pub(super) fn panel_elements(m: Matrix<'_>) -> usize {
    m.buf.len() / m.n.div_ceil(PANEL)
}

pub(super) fn write_rows(dev: &CpuDevice, dst: Matrix<'_>, first_row: usize, src: &[f32]) {
    if src.is_empty() {
        return;
    }
    let rows = src.len() / dst.k;
    assert_eq!(src.len(), rows * dst.k, "whole rows of {} elements", dst.k);
    assert!(first_row + rows <= dst.n, "rows {first_row}+{rows} of a matrix of {}", dst.n);
    let panels = first_row / PANEL..(first_row + rows).div_ceil(PANEL);
    by_dtype!(dst.buf, T => {
        let (out, size) = (dev.write::<T>(dst.buf), panel_elements(dst));
        split(dev, panels.len(), PANEL * dst.k, &|part| {
            for panel in panels.start + part.start..panels.start + part.end {
                // SAFETY: panels are disjoint, and each is one task's.
                let out = unsafe { out.range(panel * size, size) };
                write_panel(dst, panel * PANEL, out, first_row, src);
            }
        });
    });
}

/// Writes the rows of `src` that are in the panel; padding rows and columns become zero.
fn write_panel<T: Real>(m: Matrix<'_>, panel_row: usize, out: &mut [T], first_row: usize, src: &[f32]) {
    let per = if m.layout == MatrixLayout::Pairs { 2 } else { 1 };
    let rows = src.len() / m.k;
    for lane in 0..PANEL {
        let row = panel_row + lane;
        let inside = row >= first_row && row < first_row + rows;
        if !inside && row < m.n {
            continue;
        }
        let x = if inside { &src[(row - first_row) * m.k..][..m.k] } else { &[][..] };
        for (i, group) in out.chunks_exact_mut(PANEL * per).enumerate() {
            for j in 0..per {
                group[lane * per + j] = T::from_f32(x.get(i * per + j).copied().unwrap_or(0.0));
            }
        }
    }
}

/// Calls `each` with pieces of rows from `first` on: where one is, and its elements counted from the first row's first.
///
/// Rows of a panel lie in the same cache lines: all of them come in some columns before the columns after.
fn each_piece(m: Matrix<'_>, first: usize, rows: usize, mut each: impl FnMut(RowIndex, Range<usize>)) {
    const COLUMNS: usize = 128;
    for panel in (0..rows).step_by(PANEL) {
        for column in (0..m.k).step_by(COLUMNS) {
            for row in panel..rows.min(panel + PANEL) {
                let at = row_index(m, first + row).after(column);
                each(at, row * m.k + column..row * m.k + m.k.min(column + COLUMNS));
            }
        }
    }
}

pub(super) fn read_rows(dev: &CpuDevice, src: Matrix<'_>, first_row: usize, dst: &mut [f32]) {
    by_dtype!(src.buf, T => {
        let x = dev.read::<T>(src.buf);
        each_piece(src, first_row, dst.len() / src.k, |at, to| read_row(x, &at, &mut dst[to]));
    });
}

pub(super) fn read_stored(dev: &CpuDevice, src: Matrix<'_>, first_row: usize, dst: &mut [u8]) {
    let size = src.buf.dtype().bytes() as usize;
    by_dtype!(src.buf, T => {
        let x = dev.read::<T>(src.buf);
        each_piece(src, first_row, dst.len() / size / src.k, |at, to| {
            let out = &mut dst[to.start * size..to.end * size];
            for (i, out) in out.chunks_mut(at.per * size).enumerate() {
                for (j, out) in out.chunks_exact_mut(size).enumerate() {
                    // A bf16 number is the upper half of an f32.
                    let number = x[at.first + i * at.stride + j].to_f32().to_le_bytes();
                    out.copy_from_slice(&number[4 - size..]);
                }
            }
        });
    });
}

pub(super) fn embed(dev: &CpuDevice, table: Matrix<'_>, ids: Buf<'_>, out: Buf<'_>) {
    let (ids, out, h) = (dev.read::<u32>(ids), dev.write::<f32>(out), table.k);
    assert_eq!(out.len(), ids.len() * h, "[{}, {h}] of embeddings", ids.len());
    by_dtype!(table.buf, T => {
        let x = dev.read::<T>(table.buf);
        split(dev, ids.len(), h, &|part| {
            for m in part {
                // SAFETY: ranges of rows are disjoint, and each is one task's.
                read_row(x, &row_index(table, ids[m] as usize), unsafe { out.range(m * h, h) });
            }
        });
    });
}

pub(super) fn embed_backward(dev: &CpuDevice, d: Buf<'_>, ids: Buf<'_>, grad: Matrix<'_>) {
    let (ids, d, h) = (dev.read::<u32>(ids), dev.read::<f32>(d), grad.k);
    assert_eq!(d.len(), ids.len() * h, "[{}, {h}] of embedding gradients", ids.len());
    // Columns are split, so that rows of one token add up in the order of m whatever the threads.
    let width = h.div_ceil(dev.pool().threads()).next_multiple_of(LANES).min(SUM_COLUMNS_MAX);
    by_dtype!(grad.buf, T => {
        let out = dev.write::<T>(grad.buf);
        dev.pool().run(h.div_ceil(width), &|task, _thread| {
            let columns = task * width..((task + 1) * width).min(h);
            each_sum(ids, d, h, columns.clone(), |id, sums| {
                add_to_row(&out, &row_index(grad, id as usize), columns.start, sums);
            });
        });
    });
}

/// Runs `embed_backward` for the elements that `shard` holds: element (row, column) is at `layout.index`.
pub(super) fn embed_backward_part(
    dev: &CpuDevice,
    d: Buf<'_>,
    ids: Buf<'_>,
    k: usize,
    layout: MatrixLayout,
    owned: &[OwnedRun],
    shard: Buf<'_>,
) {
    let (ids, d) = (dev.read::<u32>(ids), dev.read::<f32>(d));
    assert_eq!(d.len(), ids.len() * k, "[{}, {k}] of embedding gradients", ids.len());
    let width = k.div_ceil(dev.pool().threads()).next_multiple_of(LANES).min(SUM_COLUMNS_MAX);
    let place = |index: usize| {
        let of = owned[..owned.partition_point(|owned| owned.run.start <= index as u64)].last()?;
        (index as u64)
            .checked_sub(of.run.start)
            .filter(|at| *at < of.run.elements)
            .map(|at| (of.at + at) as usize)
    };
    by_dtype!(shard, T => {
        let out = dev.write::<T>(shard);
        dev.pool().run(k.div_ceil(width), &|task, _thread| {
            let columns = task * width..((task + 1) * width).min(k);
            each_sum(ids, d, k, columns.clone(), |id, sums| {
                for (column, x) in columns.clone().zip(sums) {
                    let Some(at) = place(layout.index(k, id as usize, column)) else { continue };
                    // SAFETY: ranges of columns are disjoint, and each is one task's.
                    let to = unsafe { out.range(at, 1) };
                    to[0] = T::from_f32(to[0].to_f32() + x);
                }
            });
        });
    });
}

pub(super) fn fold(dev: &CpuDevice, parts: &[Buf<'_>], dst: Buf<'_>, add: bool) {
    for (index, part) in parts.iter().enumerate() {
        accumulate(dev, *part, dst, add || index > 0);
    }
}

pub(super) fn accumulate(dev: &CpuDevice, src: Buf<'_>, dst: Buf<'_>, add: bool) {
    assert_eq!(src.len(), dst.len(), "lengths of a sum");
    by_dtype!(src, X => by_dtype!(dst, T => {
        let (x, out) = (dev.read::<X>(src), dev.write::<T>(dst));
        split(dev, x.len().div_ceil(LANES), LANES, &|part| {
            let (start, end) = (part.start * LANES, (part.end * LANES).min(x.len()));
            // SAFETY: parts are disjoint, and each is one task's.
            let out = unsafe { out.range(start, end - start) };
            if add {
                add_part::<X, T>(dev.isa(), &x[start..end], out)
            } else {
                convert::<X, T>(dev.isa(), &x[start..end], out)
            }
        });
    }));
}

simd_fn! {
    /// Adds x to out, each element rounded once.
    fn add_part[X: Lanes, T: Lanes](s: S, x: &[X], out: &mut [T]) {
        let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<LANES>());
        for (x, out) in x.iter().zip(out) {
            T::store(s, out, s.add(T::load(s, out), X::load(s, x)));
        }
        if !x_rest.is_empty() {
            T::store_part(s, out_rest, s.add(T::load_part(s, out_rest), X::load_part(s, x_rest)));
        }
    }
}

/// Calls `give` with each id of `ids` and the sum of its rows of `d`, m ascending, in `columns`.
fn each_sum(ids: &[u32], d: &[f32], h: usize, columns: Range<usize>, mut give: impl FnMut(u32, &[f32])) {
    for (m, &id) in ids.iter().enumerate() {
        // A token's rows are summed at its first row.
        if num_equal(&ids[..m], id) > 0 {
            continue;
        }
        let mut sums = [0.0f32; SUM_COLUMNS_MAX];
        let sums = &mut sums[..columns.len()];
        sums.copy_from_slice(&d[m * h..][columns.clone()]);
        let mut left = num_equal(&ids[m + 1..], id);
        for (other, _) in ids.iter().enumerate().skip(m + 1).filter(|&(_, &other)| other == id) {
            for (sum, x) in sums.iter_mut().zip(&d[other * h..][columns.clone()]) {
                *sum += x;
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        give(id, sums);
    }
}

/// Counts `id` in `ids`, without an early end, so that it runs on vectors.
fn num_equal(ids: &[u32], id: u32) -> u32 {
    ids.iter().map(|&x| u32::from(x == id)).sum()
}

/// Adds `x` to the elements of a row from column `start`. The calling task alone writes these columns.
fn add_to_row<T: Real>(out: &Shared<'_, T>, at: &RowIndex, start: usize, x: &[f32]) {
    for (c, x) in (start..).zip(x) {
        // SAFETY: ranges of columns are disjoint, and each is one task's.
        let to = unsafe { out.range(at.first + c / at.per * at.stride + c % at.per, 1) };
        to[0] = T::from_f32(to[0].to_f32() + x);
    }
}

/// Writes x = by x.
pub(super) fn scale(dev: &CpuDevice, x: Buf<'_>, by: f32) {
    let x = dev.write::<f32>(x);
    split(dev, x.len().div_ceil(SUM_COLUMNS_MAX), SUM_COLUMNS_MAX, &|part| {
        let (start, end) = (part.start * SUM_COLUMNS_MAX, (part.end * SUM_COLUMNS_MAX).min(x.len()));
        // SAFETY: ranges are disjoint, and each is one task's.
        unsafe { x.range(start, end - start) }.iter_mut().for_each(|x| *x *= by);
    });
}

/// Writes x = by x, where `by` is a number of the device.
pub(super) fn scale_by(dev: &CpuDevice, x: Buf<'_>, by: Buf<'_>) {
    assert_eq!(by.len(), 1, "a number");
    let factor = by_dtype!(by, T => Real::to_f32(dev.read::<T>(by)[0]));
    scale(dev, x, factor);
}

/// Adds the bias to each row.
pub(super) fn add_bias(dev: &CpuDevice, x: Buf<'_>, bias: Buf<'_>) {
    let n = bias.len();
    assert_eq!(x.len() % n, 0, "rows of {n}");
    by_dtype!(bias, T => {
        let (x, bias) = (dev.write::<f32>(x), dev.read::<T>(bias));
        split(dev, x.len() / n, n, &|part| {
            // SAFETY: ranges of rows are disjoint, and each is one task's.
            let rows = unsafe { x.range(part.start * n, part.len() * n) };
            for row in rows.chunks_exact_mut(n) {
                row.iter_mut().zip(bias).for_each(|(x, &b)| *x += Real::to_f32(b));
            }
        });
    });
}

pub(super) fn gather_rows(dev: &CpuDevice, x: Buf<'_>, rows: Buf<'_>, out: Buf<'_>) {
    let (x, rows, out) = (dev.read::<f32>(x), dev.read::<u32>(rows), dev.write::<f32>(out));
    if rows.is_empty() {
        return;
    }
    let h = out.len() / rows.len();
    assert_eq!(out.len(), rows.len() * h, "whole rows");
    split(dev, rows.len(), h, &|part| {
        for r in part {
            // SAFETY: ranges of rows are disjoint, and each is one task's.
            unsafe { out.range(r * h, h) }.copy_from_slice(&x[rows[r] as usize * h..][..h]);
        }
    });
}

pub(super) fn scatter_add_rows(dev: &CpuDevice, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>) {
    let (src, rows, dst) = (dev.read::<f32>(src), dev.read::<u32>(rows), dev.write::<f32>(dst));
    if rows.is_empty() {
        return;
    }
    let h = src.len() / rows.len();
    assert_eq!(src.len(), rows.len() * h, "whole rows");
    split(dev, h.div_ceil(LANES), rows.len() * LANES, &|part| {
        let columns = part.start * LANES..(part.end * LANES).min(h);
        for (r, &row) in rows.iter().enumerate() {
            let x = &src[r * h..][columns.clone()];
            // SAFETY: ranges of columns are disjoint, and each is one task's.
            let to = unsafe { dst.range(row as usize * h + columns.start, columns.len()) };
            for (to, x) in to.iter_mut().zip(x) {
                *to += x;
            }
        }
    });
}

// ---- SwiGLU ------------------------------------------------------------------------------------------------------
