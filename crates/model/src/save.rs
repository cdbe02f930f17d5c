//! Saves flat buffers in parameter order as safetensors with Hugging Face names, and restores them: weights, and
//! optimizer states with a prefix before each name. Files hold logical rows, never a device's element order, so they
//! mean the same on every machine.

use crate::adapters::Woven;
use crate::load::Staging;
use crate::params::{Param, ParamTable, Part};
use crate::terms;
use plimsoll_base::{Bytes, DType, Encoding, Error, Result};
use plimsoll_device::{Coded, Device, HostBytes, Matrix, MatrixLayout};
use plimsoll_files::{FileRecord, SafetensorsWriter, TensorDecl, TensorFile};
use plimsoll_memory::Buf;
use std::path::Path;

/// One flat buffer and the names of its tensors.
#[derive(Clone, Copy, Debug)]
pub struct FlatTensors<'a> {
    /// Prefix of each Hugging Face name; empty for weights.
    pub prefix: &'a str,
    /// `table.elements` elements. Files hold f32 and bf16 as they are, and codes as bf16: exact, without blocks.
    pub buf: Buf<'a>,
    pub scales: Option<Buf<'a>>,
    /// Dtype in files, if not that of `buf`.
    pub stored: Option<DType>,
}

impl<'a> FlatTensors<'a> {
    pub fn weights(buf: Buf<'a>) -> FlatTensors<'a> {
        FlatTensors { prefix: "", buf, scales: None, stored: None }
    }

    fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    pub fn dtype(&self) -> DType {
        let of = if self.scales.is_some() { DType::Bf16 } else { self.buf.dtype() };
        self.stored.unwrap_or(of)
    }

    fn read(&self, dev: &dyn Device, param: &Param, layout: MatrixLayout, first: usize, rows: &mut [f32]) {
        let buf = slice(self.buf, param);
        if let Some(scales) = self.scales {
            let codes =
                Coded { codes: self.buf, scales }.slice(param.offset as usize, param.elements as usize);
            let (k, layout) =
                if param.is_vector() { (1, MatrixLayout::Rows) } else { (param.k as usize, layout) };
            dev.read_codes(codes, k, layout, first, rows);
        } else if param.is_vector() {
            dev.read_f32(buf, first, rows);
        } else {
            dev.read_rows(Matrix::new(buf, param.n as usize, param.k as usize, layout), first, rows);
        }
    }
}

fn slice<'a>(buf: Buf<'a>, param: &Param) -> Buf<'a> {
    buf.slice(param.offset as usize, param.elements as usize)
}

fn write(dev: &dyn Device, buf: Buf<'_>, param: &Param, layout: MatrixLayout, first: usize, rows: &[f32]) {
    let buf = slice(buf, param);
    if param.is_vector() {
        dev.write_f32(buf, first, rows);
    } else {
        dev.write_rows(Matrix::new(buf, param.n as usize, param.k as usize, layout), first, rows);
    }
}

/// Returns an upper bound of the bytes of the file that `save` writes.
pub fn saved_bytes(table: &ParamTable, dtypes: &[DType]) -> u64 {
    // A header entry is a name and about 90 characters of dtype, shape and offsets.
    let header = |p: &Param| p.parts.iter().map(|part| part.name.len() as u64 + 128).sum::<u64>();
    let values = |p: &Param| u64::from(p.n) * u64::from(p.k.max(1));
    let (headers, values) = table.params.iter().fold((0, 0), |(h, v), p| (h + header(p), v + values(p)));
    dtypes.iter().map(|dtype| headers + values * dtype.bytes()).sum::<u64>() + 128
}

/// Writes a safetensors file at `path` through buffers of `staging` bytes; returns its record.
///
/// `layout`: element order of the matrices, in every buffer that of the weights. Errors: `disk-full`, `write-failed`.
pub fn save(
    dev: &dyn Device,
    table: &ParamTable,
    layout: MatrixLayout,
    sets: &[FlatTensors<'_>],
    path: &Path,
    staging: Bytes,
) -> Result<FileRecord> {
    let declared: Vec<_> = sets.iter().flat_map(|set| tensor_decls(set.prefix, set.dtype(), table)).collect();
    let mut writer = SafetensorsWriter::create(path, &declared, &[])?;
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for set in sets {
        for params in table.by_tensor() {
            if let Some(woven) = Woven::of(params) {
                woven.each_chunk(&mut values, |first, rows, own| {
                    for (expert, param) in params.iter().enumerate() {
                        set.read(dev, param, layout, first, own);
                        woven.put(expert, own, rows);
                    }
                    writer.write_f32_as(set.dtype(), rows, &mut stored)
                })?;
                continue;
            }
            for param in params {
                save_param(dev, (set, param, layout), &mut writer, (&mut stored, &mut values))?;
            }
        }
    }
    // Values from a failed device are no checkpoint.
    dev.check()?;
    writer.finish()
}

/// Writes the tensors of a parameter, or what follows in the one that has those of all experts.
fn save_param(
    dev: &dyn Device,
    (set, param, layout): (&FlatTensors<'_>, &Param, MatrixLayout),
    writer: &mut SafetensorsWriter,
    (stored, values): (&mut HostBytes, &mut [f32]),
) -> Result<()> {
    if param.has_terms() {
        let values = &mut values[..param.n as usize];
        set.read(dev, param, layout, 0, values);
        return writer.write_f32_as(DType::F32, terms::join(values), stored);
    }
    if let Some(of) = param.transposed() {
        let half = values.len() / 2;
        let (tile, through) = values.split_at_mut(half);
        let (count, width) = of.stored();
        let at_once = tile.len() / width;
        assert!(at_once > 0, "staging of {half} values for rows of {width}");
        for first in (0..count).step_by(at_once) {
            let tile = &mut tile[..at_once.min(count - first) * width];
            of.stored_rows(first, tile, through, |row, rows| set.read(dev, param, layout, row, rows));
            writer.write_f32_as(set.dtype(), tile, stored)?;
        }
        return Ok(());
    }
    if !param.is_grouped() {
        return for_chunks(param, param.n, values, |first, rows| {
            set.read(dev, param, layout, first, rows);
            writer.write_f32_as(set.dtype(), rows, stored)
        });
    }
    let mut above = 0;
    for part in &param.parts {
        for_chunks(param, part.rows, values, |first, rows| {
            each_run(part, param, first, rows, |row, rows| {
                set.read(dev, param, layout, above + row, rows);
            });
            writer.write_f32_as(set.dtype(), rows, stored)
        })?;
        above += part.rows as usize;
    }
    Ok(())
}

/// Fills the buffers from a file that `save` wrote, bit for bit: codes keep their values, however they were coded.
///
/// `through`: scratch of f32 or bf16 with `table.elements` elements that gathers codes, because a block may hold parts
/// of many rows. Errors: `checkpoint-damaged` if a tensor is missing or has another shape or dtype; those of reading.
pub fn restore(
    dev: &dyn Device,
    table: &ParamTable,
    layout: MatrixLayout,
    sets: &[FlatTensors<'_>],
    through: Option<Buf<'_>>,
    path: &Path,
    staging: Bytes,
) -> Result<()> {
    let file = open_for_restore(path, table, sets.len())?;
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for set in sets {
        let into = match set.scales {
            Some(_) => through.expect("codes are gathered in a buffer of numbers"),
            None => set.buf,
        };
        dev.zero(into);
        for params in table.by_tensor() {
            for part in &params[0].parts {
                let dtype = params[0].stored(set.dtype());
                check_tensor(&file, &set.name(&part.name), dtype, &part.shape, path)?;
            }
            if let Some(woven) = Woven::of(params) {
                let (name, width) = (set.name(woven.name()), woven.width());
                woven.each_chunk(&mut values, |first, rows, own| {
                    file.read(&name, (first * width) as u64, &mut stored, rows)?;
                    for (expert, param) in params.iter().enumerate() {
                        woven.pick(expert, rows, own);
                        write(dev, into, param, layout, first, own);
                    }
                    Ok(())
                })?;
                continue;
            }
            for (before, param) in params.iter().enumerate() {
                let of = (set, param, layout, before);
                restore_param(dev, into, of, &file, (&mut stored, &mut values))?;
            }
        }
        if let Some(scales) = set.scales {
            dev.write_codes(into, Coded { codes: set.buf, scales });
        }
    }
    Ok(())
}

/// Fills a parameter from its tensors, or from one that has those of all experts, of which some are `before` it.
fn restore_param(
    dev: &dyn Device,
    into: Buf<'_>,
    (set, param, layout, before): (&FlatTensors<'_>, &Param, MatrixLayout, usize),
    file: &TensorFile,
    (stored, values): (&mut HostBytes, &mut [f32]),
) -> Result<()> {
    let mut above = 0;
    for part in &param.parts {
        let name = set.name(&part.name);
        if param.has_terms() {
            let values = &mut values[..param.n as usize];
            file.read(&name, 0, stored, &mut values[..part.rows as usize])?;
            terms::split(values);
            write(dev, into, param, layout, 0, values);
            continue;
        }
        let (width, start) = (param.k.max(1) as usize, before * part.rows as usize);
        for_chunks(param, part.rows, values, |first, rows| {
            if let Some(of) = part.transposed() {
                of.read(first, rows, |at, out| file.read(&name, at, stored, out))?;
                write(dev, into, param, layout, first, rows);
                return Ok(());
            }
            file.read(&name, ((start + first) * width) as u64, stored, rows)?;
            each_run(part, param, first, rows, |row, rows| {
                write(dev, into, param, layout, above + row, rows);
            });
            Ok(())
        })?;
        above += part.rows as usize;
    }
    Ok(())
}

/// Calls `each` with the rows of a tensor on disk from `first` on, in runs of rows that are neighbours in the parameter
/// too: the first one's index among the part's rows, and the run.
pub(crate) fn each_run(
    part: &Part,
    param: &Param,
    first: usize,
    rows: &mut [f32],
    mut each: impl FnMut(usize, &mut [f32]),
) {
    let width = param.k.max(1) as usize;
    let (mut stored, mut left) = (first, rows);
    while !left.is_empty() {
        let (row, run) = part.run_of_stored(stored);
        let (run, rest) = left.split_at_mut((run * width).min(left.len()));
        each(row, run);
        (stored, left) = (stored + run.len() / width, rest);
    }
}

/// Returns the declarations of a set's tensors.
pub fn tensor_decls<'t>(
    prefix: &'t str,
    dtype: DType,
    table: &'t ParamTable,
) -> impl Iterator<Item = TensorDecl> + 't {
    table.by_tensor().map(|params| &params[0]).flat_map(move |param| {
        param.parts.iter().map(move |part| {
            let (name, dtype) = (format!("{prefix}{}", part.name), param.stored(dtype));
            TensorDecl { name, dtype, shape: part.shape.clone() }
        })
    })
}

/// Opens a file that must hold exactly the tensors of `sets` sets.
pub(crate) fn open_for_restore(path: &Path, table: &ParamTable, sets: usize) -> Result<TensorFile> {
    let file = TensorFile::open(path)?;
    let wanted = sets * table.by_tensor().map(|params| params[0].parts.len()).sum::<usize>();
    if file.num_tensors() != wanted {
        return Err(other_run(path, &format!("{} tensors, this run has {wanted}", file.num_tensors())));
    }
    Ok(file)
}

/// Calls `each` with the first row of a chunk and space for its rows, as many as fit in `values`, until all are done.
pub(crate) fn for_chunks(
    param: &Param,
    rows: u32,
    values: &mut [f32],
    mut each: impl FnMut(usize, &mut [f32]) -> Result<()>,
) -> Result<()> {
    let width = param.k.max(1) as usize;
    let chunk_rows = values.len() / width;
    assert!(chunk_rows > 0, "staging of {} values for rows of {width}", values.len());
    let mut first = 0;
    while first < rows as usize {
        let n = chunk_rows.min(rows as usize - first);
        each(first, &mut values[..n * width])?;
        first += n;
    }
    Ok(())
}

pub(crate) fn check_tensor(
    file: &TensorFile,
    name: &str,
    dtype: DType,
    shape: &[u64],
    path: &Path,
) -> Result<()> {
    let encoding = if dtype == DType::Bf16 { Encoding::Bf16 } else { Encoding::F32 };
    match file.tensor(name) {
        None => Err(other_run(path, &format!("no tensor `{name}`"))),
        Some(t) if t.encoding != encoding || t.shape != shape => Err(other_run(
            path,
            &format!(
                "tensor `{name}` is {} {:?}, this run has {} {shape:?}",
                t.encoding.name(),
                t.shape,
                encoding.name()
            ),
        )),
        Some(_) => Ok(()),
    }
}

fn other_run(path: &Path, what: &str) -> Error {
    Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
        .hint("the file is of another run: restore the checkpoint from where it was copied")
}
