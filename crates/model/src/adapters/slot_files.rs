//! What a slot is filled from and written to: an adapter whose rank may be lower than the slot's, and whose targets may
//! be fewer. The rest of a slot is zeros.

use super::slots::SlotTable;
use crate::load::{STAGING_BYTES_MIN, Staging, check_finite};
use crate::params::{Param, ParamTable, Part};
use plimsoll_arch::ParamKind;
use plimsoll_base::rng::{Stream, philox, unit_f32};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_files::{Adapter as AdapterFiles, FileRecord, SafetensorsWriter, TensorDecl, TensorFile};
use plimsoll_memory::Buf;
use std::path::Path;

/// Most bytes that are written to a file at a time.
const WRITTEN_BYTES: u64 = 1 << 20;

/// Gives an adapter's values, or states of the same shapes, tensor by tensor.
pub trait SlotTensors {
    /// True if it has the tensor; the slot has zeros for those that it lacks.
    fn has(&self, name: &str) -> bool;

    /// Reads values of a tensor from value `first` on, row by row. `width`: the values of a row.
    ///
    /// Errors: those of reading.
    fn read(&self, name: &str, width: usize, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()>;
}

impl SlotTensors for AdapterFiles {
    fn has(&self, name: &str) -> bool {
        AdapterFiles::has(self, name)
    }

    fn read(&self, name: &str, _width: usize, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        AdapterFiles::read(self, name, first, staging, out)
    }
}

/// Tensors of a file that `save_slot` wrote, with a prefix before each name.
#[derive(Clone, Copy, Debug)]
pub struct SlotFile<'x> {
    pub file: &'x TensorFile,
    pub prefix: &'x str,
}

impl SlotTensors for SlotFile<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.tensor(&format!("{}{name}", self.prefix)).is_some()
    }

    fn read(&self, name: &str, _width: usize, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        self.file.read(&format!("{}{name}", self.prefix), first, staging, out)
    }
}

/// An adapter that begins as in peft: A uniform within 1 / sqrt(K), B zero. Its numbers follow from the seed and the
/// names of its tensors, whatever the rank of its slot.
#[derive(Clone, Copy, Debug)]
pub struct SeededSlot {
    pub seed: u64,
    /// True if the layers of attention have an adapter.
    pub attention: bool,
    /// True if the feed-forward layers have one.
    pub mlp: bool,
}

impl SeededSlot {
    /// Returns whether the adapter has a tensor.
    pub fn trains(&self, name: &str) -> bool {
        if name.contains(".mlp.") { self.mlp } else { self.attention }
    }
}

impl SlotTensors for SeededSlot {
    fn has(&self, name: &str) -> bool {
        self.trains(name) && name.contains(".lora_A.")
    }

    fn read(&self, name: &str, width: usize, first: u64, _: &mut [u8], out: &mut [f32]) -> Result<()> {
        let (bound, key) = (1.0 / (width as f32).sqrt(), key_of(name));
        let (mut of, mut bits) = (u64::MAX, [0; 4]);
        for (index, value) in (first..).zip(out) {
            if of != index / 4 {
                of = index / 4;
                bits = philox(self.seed, Stream::Weights, key, of);
            }
            *value = bound * (2.0 * unit_f32(bits[(index % 4) as usize]) - 1.0);
        }
        Ok(())
    }
}

/// Returns the key of a tensor's random numbers: FNV-1a of its name.
fn key_of(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The buffers of a slot, all of the same shape.
#[derive(Clone, Copy)]
pub struct SlotBufs<'x, 'a> {
    pub dev: &'x dyn Device,
    pub table: &'x ParamTable,
    pub layout: MatrixLayout,
    /// Elements of `table` each, which get the same values, each in its dtype.
    pub sets: &'x [Buf<'a>],
}

/// Fills buffers of a slot with an adapter of a rank. Its targets are within those of the table.
///
/// Errors: those of reading; `model-weight-not-finite`, which leaves a slot that must be filled again.
pub fn fill_slot(to: SlotBufs<'_, '_>, rank: usize, from: &dyn SlotTensors, staging: Bytes) -> Result<()> {
    let SlotBufs { dev, table, layout, sets } = to;
    sets.iter().for_each(|buf| dev.zero(*buf));
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for param in &table.params {
        let of = Narrower { param, rank };
        of.fill(from, (&mut stored, &mut values), |first, rows| {
            sets.iter().for_each(|buf| dev.write_rows(matrix(param, *buf, layout), first, rows));
        })?;
    }
    Ok(())
}

/// Writes buffers of a slot to a safetensors file as tensors of a rank in their dtypes, those that `has` says.
/// `prefixes`: what comes before the names, by buffer.
///
/// Errors: `disk-full`, `write-failed`; those of the device.
pub fn save_slot(
    of: SlotBufs<'_, '_>,
    prefixes: &[&str],
    rank: usize,
    has: &dyn Fn(&str) -> bool,
    path: &Path,
    staging: Bytes,
) -> Result<FileRecord> {
    let SlotBufs { dev, table, layout, sets } = of;
    let mut declared = Vec::new();
    for (prefix, buf) in prefixes.iter().zip(sets) {
        for param in &table.params {
            let of = Narrower { param, rank };
            for part in param.parts.iter().filter(|part| has(&part.name)) {
                let (rows, width) = of.shape(part);
                declared.push(TensorDecl {
                    name: format!("{prefix}{}", part.name),
                    dtype: buf.dtype(),
                    shape: vec![rows as u64, width as u64],
                });
            }
        }
    }
    let mut writer = SafetensorsWriter::create(path, &declared, &[])?;
    let half = staging.0.max(STAGING_BYTES_MIN) / 2;
    let mut wide = dev.host_bytes(half.min(largest(table, sets)) as usize);
    let mut narrow = Vec::with_capacity(half.min(WRITTEN_BYTES) as usize);
    for buf in sets {
        for param in &table.params {
            let read = |first: usize, rows: &mut [u8]| {
                dev.read_stored(matrix(param, *buf, layout), first, rows);
            };
            let size = buf.dtype().bytes() as usize;
            Narrower { param, rank }.read(has, size, &read, &mut wide, &mut |row| {
                if narrow.len() + row.len() > narrow.capacity() {
                    writer.write(&narrow)?;
                    narrow.clear();
                }
                narrow.extend_from_slice(row);
                Ok(())
            })?;
        }
    }
    writer.write(&narrow)?;
    // Values from a failed device are no adapter.
    dev.check()?;
    writer.finish()
}

impl SlotTable<'_> {
    /// Reads an adapter's files into a slot, with its factor. Its rank and targets are within those of the table.
    ///
    /// Errors: those of `fill_slot`.
    pub fn load(
        &self,
        dev: &dyn Device,
        (table, layout): (&ParamTable, MatrixLayout),
        slot: usize,
        files: &AdapterFiles,
        staging: Bytes,
    ) -> Result<()> {
        let sets = &[self.slot(table, slot)];
        dev.write_f32(self.scales, slot, &[files.config.scale() as f32]);
        fill_slot(SlotBufs { dev, table, layout, sets }, files.config.rank as usize, files, staging)
    }
}

fn matrix<'a>(param: &Param, buf: Buf<'a>, layout: MatrixLayout) -> Matrix<'a> {
    let buf = buf.slice(param.offset as usize, param.elements as usize);
    Matrix::new(buf, param.n as usize, param.k as usize, layout)
}

/// A parameter of a slot, and an adapter whose rank may be lower.
struct Narrower<'x> {
    param: &'x Param,
    rank: usize,
}

impl Narrower<'_> {
    /// True if columns are ranks; otherwise rows are.
    fn is_b(&self) -> bool {
        matches!(self.param.kind, ParamKind::AdapterB(_))
    }

    /// Returns the rows and columns of a part as the adapter has it.
    fn shape(&self, part: &Part) -> (usize, usize) {
        if self.is_b() { (part.rows as usize, self.rank) } else { (self.rank, self.param.k as usize) }
    }

    /// Calls `filled` with chunks of the parameter's rows that the adapter has: the first one's index, and the rows.
    fn fill(
        &self,
        from: &dyn SlotTensors,
        (stored, values): (&mut [u8], &mut [f32]),
        mut filled: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let param = self.param;
        let width = param.k as usize;
        let mut above = 0;
        for part in &param.parts {
            let (all, own) = self.shape(part);
            let chunk = values.len() / (width + own);
            let (wide, narrow) = values.split_at_mut(chunk * width);
            let rows = if from.has(&part.name) { all } else { 0 };
            for first in (0..rows).step_by(chunk) {
                let count = chunk.min(rows - first);
                let read = &mut narrow[..count * own];
                if self.is_b() {
                    param.each_stored_run((above + first, count), |before, stored_row, run| {
                        let (at, to) = ((stored_row - above) * own, &mut read[before * own..][..run * own]);
                        from.read(&part.name, own, at as u64, stored, to)
                    })?;
                } else {
                    from.read(&part.name, own, (first * own) as u64, stored, read)?;
                }
                check_finite(&part.name, first * own, read)?;
                let out = &mut wide[..count * width];
                out.fill(0.0);
                for (to, from) in out.chunks_mut(width).zip(read.chunks(own)) {
                    to[..own].copy_from_slice(from);
                }
                filled(above + first, out);
            }
            above += part.rows as usize;
        }
        Ok(())
    }

    /// Calls `each` with the rows of each part that the adapter has, in their order on disk. `size`: bytes of an
    /// element; `wide` holds rows of the slot.
    fn read(
        &self,
        has: &dyn Fn(&str) -> bool,
        size: usize,
        read: &dyn Fn(usize, &mut [u8]),
        wide: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let param = self.param;
        let row_bytes = param.k as usize * size;
        // Rows that are grouped otherwise on disk come in short runs: where all fit, the device is asked once.
        let fit = wide.len() / row_bytes;
        let are_kept = param.n as usize <= fit;
        if are_kept {
            read(0, &mut wide[..param.n as usize * row_bytes]);
        }
        let mut above = 0;
        for part in &param.parts {
            let (rows, own) = self.shape(part);
            let (rows, mut stored) = (if has(&part.name) { rows } else { 0 }, 0);
            while stored < rows {
                let (row, run) = if self.is_b() { part.run_of_stored(stored) } else { (stored, rows) };
                let (row, run) = (above + row, run.min(rows - stored).min(fit));
                let at = if are_kept { row * row_bytes } else { 0 };
                let of = &mut wide[at..at + run * row_bytes];
                if !are_kept {
                    read(row, of);
                }
                of.chunks_exact(row_bytes).try_for_each(|row| each(&row[..own * size]))?;
                stored += run;
            }
            above += part.rows as usize;
        }
        Ok(())
    }
}

/// Returns the bytes of the largest parameter of a table in these buffers.
fn largest(table: &ParamTable, sets: &[Buf<'_>]) -> u64 {
    let elements = table.params.iter().map(|param| param.elements).max();
    elements.unwrap_or(0) * sets.iter().map(|buf| buf.dtype().bytes()).max().unwrap_or(0)
}
