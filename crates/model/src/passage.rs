//! Saves and restores tensors that are split over ranks, piece by piece through one small buffer of the phase, the
//! passage. Ranks take a file's pieces in turn; the file equals the one that a single rank writes.

use crate::adapters::Woven;
use crate::load::Staging;
use crate::params::{Param, ParamTable};
use crate::save::{check_tensor, for_chunks, open_for_restore, tensor_decls};
use crate::terms;
use plimsoll_base::{Bytes, DType, PhaseSet, Result};
use plimsoll_device::{CODE_BLOCK, Coded, Device, HostBytes, Matrix, MatrixLayout, PANEL, Run};
use plimsoll_files::{FileRecord, SharedWriter, TensorFile};
use plimsoll_memory::{Buf, Layout, Pool};
use std::path::Path;

/// Maximum elements per piece, unless rows are wider: 16 MiB.
const PASSAGE_ELEMENTS: u64 = 4 << 20;
/// Codes on the host at a time.
const CODES_AT_A_TIME: usize = 1 << 16;

/// The storage of some elements of a flat buffer.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// f32 or bf16.
    Numbers(Buf<'a>),
    /// Codes, from the start of a block.
    Codes(Coded<'a>),
}

impl<'a> Place<'a> {
    fn slice(self, start: usize, len: usize) -> Place<'a> {
        match self {
            Place::Numbers(buf) => Place::Numbers(buf.slice(start, len)),
            Place::Codes(codes) => Place::Codes(codes.slice(start, len)),
        }
    }
}

/// One flat buffer and its tensors' names, as in `FlatTensors`, with its elements in several places.
#[derive(Clone, Debug)]
pub struct SpreadTensors<'a> {
    /// Prefix of each Hugging Face name; empty for weights.
    pub prefix: &'a str,
    /// Dtype in files: f32 or bf16.
    pub dtype: DType,
    /// Runs of the buffer and their storage: all of them to save, a rank's own to restore.
    pub places: Vec<(Run, Place<'a>)>,
}

/// Exchanges bytes: returns those of every rank, by rank. All ranks must call it equally often.
pub type Exchange<'x> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>> + 'x;

/// How this rank and the others write a file together.
pub struct Together<'x> {
    pub rank: usize,
    pub ranks: usize,
    pub exchange: &'x mut Exchange<'x>,
}

/// Returns the passage of a role in the phase of its updates.
///
/// Errors: `size-overflow`.
pub fn layout(role: &str, table: &ParamTable, pool: Pool, phases: PhaseSet) -> Result<Layout> {
    let elements = |param: &Param| param.elements.min(Step::of(param, table, PASSAGE_ELEMENTS).elements);
    let most = table.params.iter().map(elements).max().unwrap_or(0).next_multiple_of(CODE_BLOCK as u64);
    let mut layout = Layout::new();
    layout.arena(&format!("{role}.passage"), "model", pool, phases, &[most], DType::F32).map(|()| layout)
}

/// How much of a parameter passes at a time.
struct Step {
    rows: u32,
    elements: u64,
}

impl Step {
    /// Returns whole panels and whole blocks of codes, as many as `most` elements hold, but at least one.
    fn of(param: &Param, table: &ParamTable, most: u64) -> Step {
        let rows = u64::from(param.n.next_multiple_of(PANEL as u32));
        // Elements per row: a panel's over its rows, which includes the padding of a row.
        let width = if param.is_vector() {
            1
        } else if (table.device.order)(DType::F32) == MatrixLayout::Rows {
            u64::from(param.k)
        } else {
            param.elements / rows
        };
        let block = CODE_BLOCK as u64;
        let blocks = (1..=block).find(|rows| (rows * width).is_multiple_of(block)).unwrap_or(block);
        let least = blocks.max(1).next_multiple_of(PANEL as u64);
        let rows = (most / width / least).max(1) * least;
        Step { rows: u32::try_from(rows).unwrap_or(u32::MAX), elements: rows * width }
    }
}

/// Whole rows of a parameter that pass at once.
struct Piece<'t> {
    set: usize,
    param: &'t Param,
    /// First row, or element of a vector.
    first: u32,
    rows: u32,
    /// Its elements, including the parameter's padding after the last row.
    run: Run,
    /// Offset of its first byte in the file's data; of columns of a tensor, that of the tensor's first byte.
    at: u64,
    /// Its number among the parameters that have the same tensor, and all of these; one alone if its tensors are its
    /// own.
    of: (usize, &'t [Param]),
}

/// Returns the pieces of a file in its order, for a passage of `most` elements.
fn pieces<'t>(table: &'t ParamTable, most: usize, dtypes: impl IntoIterator<Item = DType>) -> Vec<Piece<'t>> {
    let (mut out, mut at) = (Vec::new(), 0);
    for (set, dtype) in dtypes.into_iter().enumerate() {
        for params in table.by_tensor() {
            let (is_woven, start_of_tensor) = (Woven::of(params).is_some(), at);
            for (number, param) in params.iter().enumerate() {
                let step = Step::of(param, table, most as u64);
                let end = param.offset + param.elements.next_multiple_of(CODE_BLOCK as u64);
                for first in (0..param.n).step_by(step.rows as usize) {
                    let start = param.offset + u64::from(first / step.rows) * step.elements;
                    let run = Run { start, elements: step.elements.min(end - start) };
                    let rows = step.rows.min(param.n - first);
                    let begin = if is_woven { start_of_tensor } else { at };
                    out.push(Piece { set, param, first, rows, run, at: begin, of: (number, params) });
                    // Terms of a number are one in a file; they are few, and pass at once.
                    let numbers = u64::from(rows / param.kind.terms()) * u64::from(param.k.max(1));
                    at += numbers * param.stored(dtype).bytes();
                }
            }
        }
    }
    out
}

impl Piece<'_> {
    /// Calls `each` with every place that holds part of it, and that part's position in the passage.
    fn each_place<'a, 'p>(
        &self,
        places: &[(Run, Place<'a>)],
        passage: Buf<'p>,
        mut each: impl FnMut(Place<'a>, Buf<'p>),
    ) {
        let first = places.partition_point(|(run, _)| run.end() <= self.run.start);
        for (run, place) in places[first..].iter().take_while(|(run, _)| run.start < self.run.end()) {
            let (start, end) = (run.start.max(self.run.start), run.end().min(self.run.end()));
            let len = (end - start) as usize;
            let to = passage.slice((start - self.run.start) as usize, len);
            each(place.slice((start - run.start) as usize, len), to);
        }
    }

    /// Returns the elements of a row.
    fn width(&self) -> usize {
        self.param.k.max(1) as usize
    }

    /// Returns the rows that can be summed once it is written: its own, or, where files have the rows in another order,
    /// all of the parameter after its last piece, and none before. The other ranks' are written by then: a rank sums at
    /// its turn, after the exchanges of those before it.
    fn summed_rows(&self) -> u64 {
        let is_last = self.first + self.rows == self.param.n;
        if Woven::of(self.of.1).is_some() {
            // A file has no value of one expert next to another of it: all are summed after those of the last.
            let all = u64::from(self.param.n) * self.of.1.len() as u64;
            return if is_last && self.of.0 + 1 == self.of.1.len() { all } else { 0 };
        }
        match is_last {
            _ if !self.param.is_grouped() => self.rows.into(),
            true => self.param.n.into(),
            false => 0,
        }
    }

    /// Calls `each` with chunks of its rows: the index of the first row in the piece, and the space for the chunk.
    fn each_rows(&self, values: &mut [f32], each: impl FnMut(usize, &mut [f32]) -> Result<()>) -> Result<()> {
        for_chunks(self.param, self.rows, values, each)
    }

    /// Returns the passage as a matrix of rows; `None` for a vector.
    fn matrix<'p>(&self, passage: Buf<'p>, layout: MatrixLayout) -> Option<Matrix<'p>> {
        let (rows, k) = (self.rows as usize, self.param.k as usize);
        let elements = layout.elements(rows as u64, k as u64) as usize;
        (!self.param.is_vector()).then(|| Matrix::new(passage.slice(0, elements), rows, k, layout))
    }
}

/// A file of tensors that are spread over ranks.
#[derive(Clone, Copy)]
pub struct SpreadFile<'x, 'a> {
    pub path: &'x Path,
    pub table: &'x ParamTable,
    /// The layout of matrices in the sets.
    pub layout: MatrixLayout,
    pub sets: &'x [SpreadTensors<'a>],
    /// Bytes of the buffers between the file and the device.
    pub staging: Bytes,
}

/// Writes the file of `save` together with other ranks. Only rank 0 creates it and gets its record.
///
/// Errors: as `save`; those of `exchange`.
pub fn save_together(
    dev: &dyn Device,
    of: SpreadFile<'_, '_>,
    passage: Buf<'_>,
    with: Together<'_>,
) -> Result<Option<FileRecord>> {
    let SpreadFile { path, table, layout, sets, staging } = of;
    let Together { rank, ranks, exchange } = with;
    let declared: Vec<_> = sets.iter().flat_map(|set| tensor_decls(set.prefix, set.dtype, table)).collect();
    let created = if rank == 0 { Some(SharedWriter::create(path, &declared)?) } else { None };
    let link = created.as_ref().map(SharedWriter::link);
    let links = exchange(link.unwrap_or_default().as_bytes())?;
    let mut writer = match created {
        Some(writer) => writer,
        None => SharedWriter::join(&String::from_utf8_lossy(&links[0]), &declared)?,
    };
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for round in pieces(table, passage.len(), sets.iter().map(|set| set.dtype)).chunks(ranks) {
        let mut own_bytes = 0;
        if let Some(piece) = round.get(rank) {
            let set = &sets[piece.set];
            bring(dev, piece, &set.places, passage);
            own_bytes = if piece.param.has_terms() {
                let values = &mut values[..piece.rows as usize];
                dev.read_f32(passage, 0, values);
                writer.put_f32_as(piece.at, DType::F32, terms::join(values), &mut stored)? - piece.at
            } else {
                put_rows(dev, piece, (passage, layout), (&mut writer, set.dtype), (&mut stored, &mut values))?
            };
            // Values from a failed device must not be summed.
            dev.check()?;
        }
        for turn in 0..round.len() {
            if turn == rank {
                writer.sum(own_bytes, &mut stored)?;
            }
            let sums = exchange(&if turn == rank { writer.sums() } else { Vec::new() })?;
            writer.set_sums(&sums[turn])?;
        }
        writer.settle()?;
    }
    // The last exchange ensures that the other ranks' pieces are written.
    if rank == 0 { writer.finish().map(Some) } else { Ok(None) }
}

/// Writes the rows of a piece that is in the passage, and returns the bytes that can be summed.
fn put_rows(
    dev: &dyn Device,
    piece: &Piece<'_>,
    (passage, layout): (Buf<'_>, MatrixLayout),
    (writer, dtype): (&mut SharedWriter, DType),
    (stored, values): (&mut HostBytes, &mut [f32]),
) -> Result<u64> {
    let matrix = piece.matrix(passage, layout);
    let (width, row_bytes) = (piece.width(), piece.width() as u64 * dtype.bytes());
    let woven = Woven::of(piece.of.1);
    let start = piece.at - if woven.is_some() { 0 } else { u64::from(piece.first) * row_bytes };
    piece.each_rows(values, |first, rows| {
        match matrix {
            Some(matrix) => dev.read_rows(matrix, first, rows),
            None => dev.read_f32(passage, first, rows),
        }
        if let Some(woven) = woven {
            let before = (piece.first as usize + first) * width;
            for (index, value) in rows.iter().enumerate() {
                let at = ((before + index) * woven.params.len() + piece.of.0) as u64 * dtype.bytes();
                writer.put_f32_as(start + at, dtype, std::slice::from_ref(value), stored)?;
            }
            return Ok(());
        }
        if let Some(of) = piece.param.transposed() {
            return of.write(piece.first as usize + first, rows, |at, column| {
                writer.put_f32_as(start + at * dtype.bytes(), dtype, column, stored).map(drop)
            });
        }
        let of = (piece.first as usize + first, rows.len() / width);
        piece.param.each_stored_run(of, |before, stored_row, run| {
            let rows = &rows[before * width..][..run * width];
            writer.put_f32_as(start + stored_row as u64 * row_bytes, dtype, rows, stored)?;
            Ok(())
        })
    })?;
    Ok(piece.summed_rows() * row_bytes)
}

/// Copies a piece from its places into the passage, as numbers.
fn bring(dev: &dyn Device, piece: &Piece<'_>, places: &[(Run, Place<'_>)], passage: Buf<'_>) {
    piece.each_place(places, passage, |place, to| match place {
        Place::Numbers(from) => dev.accumulate(from, to, false),
        Place::Codes(codes) => {
            let mut values = vec![0f32; CODES_AT_A_TIME.min(to.len())];
            for start in (0..to.len()).step_by(CODES_AT_A_TIME) {
                let n = CODES_AT_A_TIME.min(to.len() - start);
                let values = &mut values[..n];
                dev.read_codes(codes.slice(start, n), 1, MatrixLayout::Rows, 0, values);
                dev.write_f32(to, start, values);
            }
        }
    });
}

/// Fills a rank's own places from a file of `save` or `save_together`, bit for bit, as `restore`.
///
/// Errors: as `restore`.
pub fn restore_own(dev: &dyn Device, of: SpreadFile<'_, '_>, passage: Buf<'_>) -> Result<()> {
    let SpreadFile { path, table, layout, sets, staging } = of;
    let file = open_for_restore(path, table, sets.len())?;
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for piece in pieces(table, passage.len(), sets.iter().map(|set| set.dtype)) {
        let (set, param) = (&sets[piece.set], piece.param);
        if piece.first == 0 && piece.of.0 == 0 {
            for part in &param.parts {
                let name = format!("{}{}", set.prefix, part.name);
                check_tensor(&file, &name, param.stored(set.dtype), &part.shape, path)?;
            }
        }
        let mut has_some = false;
        piece.each_place(&set.places, passage, |_, _| has_some = true);
        if !has_some {
            continue;
        }
        dev.zero(passage);
        let matrix = piece.matrix(passage, layout);
        read_piece(&file, set.prefix, &piece, (&mut stored, &mut values), |first, rows| match matrix {
            Some(matrix) => dev.write_rows(matrix, first, rows),
            None => dev.write_f32(passage, first, rows),
        })?;
        piece.each_place(&set.places, passage, |place, from| match place {
            Place::Numbers(to) => dev.accumulate(from, to, false),
            Place::Codes(codes) => dev.write_codes(from, codes),
        });
    }
    dev.sync();
    dev.check()
}

/// Calls `each` with chunks of a piece's rows from a file: the index of the first row in the piece, and the rows.
fn read_piece(
    file: &TensorFile,
    prefix: &str,
    piece: &Piece<'_>,
    (stored, values): (&mut HostBytes, &mut [f32]),
    mut each: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let ((number, params), param) = (piece.of, piece.param);
    let begin = piece.first as usize;
    if let Some(woven) = Woven::of(params) {
        // Picked from whole rows.
        let (name, width) = (format!("{prefix}{}", woven.name()), woven.width());
        let room = values.len() / (width + piece.width());
        let (whole, own) = values.split_at_mut(room * width);
        return piece.each_rows(&mut own[..room * piece.width()], |first, rows| {
            let whole = &mut whole[..rows.len() / piece.width() * width];
            file.read(&name, ((begin + first) * width) as u64, stored, whole)?;
            woven.pick(number, whole, rows);
            each(first, rows);
            Ok(())
        });
    }
    piece.each_rows(values, |first, rows| {
        if param.has_terms() {
            let name = format!("{prefix}{}", param.parts[0].name);
            file.read(&name, 0, stored, &mut rows[..param.parts[0].rows as usize])?;
            terms::split(rows);
        } else {
            read_rows_of(file, prefix, (param, number), begin + first, stored, rows)?;
        }
        each(first, rows);
        Ok(())
    })
}

/// Reads rows of a parameter from `first` on, which may span several tensors; of a tensor that has those of all
/// experts, some are `before` it.
fn read_rows_of(
    file: &TensorFile,
    prefix: &str,
    (param, before): (&Param, usize),
    first: usize,
    stored: &mut [u8],
    rows: &mut [f32],
) -> Result<()> {
    if let Some(of) = param.transposed() {
        let name = format!("{prefix}{}", param.parts[0].name);
        return of.read(first, rows, |at, column| file.read(&name, at, stored, column));
    }
    let width = param.k.max(1) as usize;
    let (mut above, end) = (0, first + rows.len() / width);
    for part in &param.parts {
        let below = above + part.rows as usize;
        let (from, to) = (first.max(above), end.min(below));
        let (name, mut row) = (format!("{prefix}{}", part.name), from);
        while row < to {
            let (at, run) = part.stored_run(row - above);
            let end = to.min(row + run);
            let out = &mut rows[(row - first) * width..(end - first) * width];
            let start = before * part.rows as usize;
            file.read(&name, ((start + at) * width) as u64, stored, out)?;
            row = end;
        }
        above = below;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::ModelSpec;

    #[test]
    fn pieces_are_the_file_in_order_and_fit_the_passage() {
        for name in ["nano", "smollm2-135m", "qwen2.5-0.5b", "qwen2.5-7b", "phi-4-mini"] {
            let spec = ModelSpec::preset(name).unwrap();
            for (kind, weights) in [
                (&plimsoll_cpu::LAYOUTS, DType::F32),
                (&plimsoll_cpu::LAYOUTS, DType::Bf16),
                (&plimsoll_cuda::LAYOUTS, DType::Bf16),
            ] {
                let table = ParamTable::critic(&spec, kind, weights);
                let layout = MatrixLayout::of_weights(kind, weights);
                let regions = super::layout("x", &table, Pool::Host, PhaseSet::RESIDENT).unwrap();
                let most = regions.find("x.passage").unwrap().shape[0] as usize;
                let (mut at, mut rows, mut end) = (0, 0, 0);
                for piece in pieces(&table, most, [DType::F32, DType::Bf16]) {
                    let Piece { set, param, first, run, .. } = piece;
                    if first == 0 {
                        (rows, end) = (0, param.offset);
                    }
                    assert_eq!((piece.at, first, run.start), (at, rows, end), "{name} {kind:?}");
                    assert!(run.start.is_multiple_of(CODE_BLOCK as u64) && run.elements <= most as u64);
                    let of_rows = if param.is_vector() {
                        u64::from(piece.rows)
                    } else {
                        layout.elements(u64::from(piece.rows), u64::from(param.k))
                    };
                    assert!(of_rows <= run.elements, "{name} {kind:?}");
                    (rows, end) = (rows + piece.rows, run.end());
                    at += u64::from(piece.rows) * u64::from(param.k.max(1)) * [4, 2][set];
                    if rows == param.n {
                        assert!(end >= param.offset + param.elements, "{name} {kind:?}");
                    }
                }
                assert_eq!(at, spec.parameters().wrapping_sub(spec_head(&spec)) * 6, "{name} {kind:?}");
            }
        }
    }

    /// Parameters that a critic does not have, less those that only it has.
    fn spec_head(spec: &ModelSpec) -> u64 {
        let head = u64::from(spec.vocab) * u64::from(spec.hidden);
        (if spec.tied { 0 } else { head }).wrapping_sub(u64::from(spec.hidden))
    }
}
