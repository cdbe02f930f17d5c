//! Adapters into the arena: from files through fixed buffers, or from a seed.

use crate::load::{Staging, check_finite, uniform};
use crate::params::{ParamKind, ParamTable};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_files::Adapter as AdapterFiles;
use plimsoll_memory::Buf;

/// Where the numbers of adapters come from.
#[derive(Clone, Copy, Debug)]
pub enum AdaptersFrom<'x> {
    Files(&'x AdapterFiles),
    /// As peft begins: A uniform within 1 / sqrt(K), B zero.
    Seed(u64),
    /// A and B uniform within 1 / sqrt(K), for measurements: with a B of zeros nothing is added.
    Random(u64),
}

/// Fills adapters. `sets`: buffers of the table's elements, each with the same values in its dtype.
///
/// Errors: those of reading; `model-weight-not-finite`.
pub fn load_adapters(
    dev: &dyn Device,
    table: &ParamTable,
    layout: MatrixLayout,
    sets: &[Buf<'_>],
    from: AdaptersFrom<'_>,
    staging: Bytes,
) -> Result<()> {
    sets.iter().for_each(|buf| dev.zero(*buf));
    let Staging { mut stored, mut values } = Staging::new(staging);
    for param in &table.params {
        let width = param.k as usize;
        let chunk = values.len() / width;
        let mut above = 0;
        for part in &param.parts {
            for first in (0..part.rows as usize).step_by(chunk) {
                let rows = chunk.min(part.rows as usize - first);
                let out = &mut values[..rows * width];
                match (from, param.kind) {
                    (AdaptersFrom::Files(files), _) => {
                        files.read(&part.name, (first * width) as u64, &mut stored, out)?;
                        check_finite(&part.name, out)?;
                    }
                    (AdaptersFrom::Seed(_), ParamKind::AdapterB(_)) => out.fill(0.0),
                    (AdaptersFrom::Seed(seed) | AdaptersFrom::Random(seed), _) => {
                        uniform(param, 1.0 / (width as f32).sqrt(), seed, (above + first) * width, out);
                    }
                }
                for buf in sets {
                    let buf = buf.slice(param.offset as usize, param.elements as usize);
                    dev.write_rows(Matrix::new(buf, param.n as usize, width, layout), above + first, out);
                }
            }
            above += part.rows as usize;
        }
    }
    Ok(())
}
