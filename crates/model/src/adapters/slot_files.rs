//! Reads an adapter's files into a slot, whose rank may be higher and whose targets may be more.

use super::slots::SlotTable;
use crate::load::{Staging, check_finite};
use crate::params::{Param, ParamTable};
use plimsoll_arch::ParamKind;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_files::Adapter as AdapterFiles;

impl SlotTable<'_> {
    /// Reads an adapter's files into a slot, with its factor. Its rank and targets are within those of the table.
    ///
    /// Errors: those of reading; `model-weight-not-finite`, which leaves a slot that must be read again.
    pub fn load(
        &self,
        dev: &dyn Device,
        (table, layout): (&ParamTable, MatrixLayout),
        slot: usize,
        files: &AdapterFiles,
        staging: Bytes,
    ) -> Result<()> {
        let to = self.slot(table, slot);
        dev.zero(to);
        dev.write_f32(self.scales, slot, &[files.config.scale() as f32]);
        let Staging { mut stored, mut values } = Staging::new(dev, staging);
        for param in &table.params {
            let buf = to.slice(param.offset as usize, param.elements as usize);
            let matrix = Matrix::new(buf, param.n as usize, param.k as usize, layout);
            let of = Narrower { param, files, rank: files.config.rank as usize };
            of.fill((&mut stored, &mut values), |first, rows| dev.write_rows(matrix, first, rows))?;
        }
        Ok(())
    }
}

/// A parameter of a slot, and an adapter whose rank may be lower.
struct Narrower<'x> {
    param: &'x Param,
    files: &'x AdapterFiles,
    rank: usize,
}

impl Narrower<'_> {
    /// Calls `filled` with chunks of the parameter's rows that the adapter has: the first one's index, and the rows.
    fn fill(
        &self,
        (stored, values): (&mut [u8], &mut [f32]),
        mut filled: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let Narrower { param, files, rank } = *self;
        let width = param.k as usize;
        let is_b = matches!(param.kind, ParamKind::AdapterB(_));
        // Rows of A are ranks; rows of B are as long as the rank.
        let own = if is_b { rank } else { width };
        let (chunk, mut above) = (values.len() / (width + own), 0);
        let (wide, narrow) = values.split_at_mut(chunk * width);
        for part in &param.parts {
            let all = if is_b { part.rows as usize } else { rank };
            let rows = if files.has(&part.name) { all } else { 0 };
            for first in (0..rows).step_by(chunk) {
                let count = chunk.min(rows - first);
                let read = &mut narrow[..count * own];
                if is_b {
                    param.each_stored_run((above + first, count), |before, stored_row, run| {
                        let (at, to) = ((stored_row - above) * own, &mut read[before * own..][..run * own]);
                        files.read(&part.name, at as u64, stored, to)
                    })?;
                } else {
                    files.read(&part.name, (first * own) as u64, stored, read)?;
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
}
