//! Loads adapters into the arena: from files through fixed buffers, or from a seed.

use super::Woven;
use crate::load::{Staging, check_finite, uniform, value_head_values};
use crate::params::{Param, ParamTable};
use plimsoll_arch::ParamKind;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, Matrix, MatrixLayout};
use plimsoll_files::{ADAPTER_SCORE, Adapter as AdapterFiles, Head, OpenModel, SCORE};
use plimsoll_memory::Buf;

/// Source of the adapters' initial values.
#[derive(Clone, Copy, Debug)]
pub enum AdaptersFrom<'x> {
    Files(&'x AdapterFiles),
    /// Starts as peft does: A uniform within 1 / sqrt(K), B zero.
    Seed(u64),
    /// A and B uniform within 1 / sqrt(K), for measurements: with a zero B, adapters would add nothing.
    Random(u64),
    /// From files if given, else as `Seed`. A head that they lack starts as the model's, else from the seed.
    Start {
        files: Option<&'x AdapterFiles>,
        model: &'x OpenModel,
        seed: u64,
    },
}

#[derive(Clone, Copy)]
enum ScoreFrom<'x> {
    Adapter(&'x AdapterFiles),
    Model(&'x OpenModel),
    Seed(u64),
}

impl<'x> AdaptersFrom<'x> {
    fn score(self) -> ScoreFrom<'x> {
        let held = |files: &&AdapterFiles| files.config.head == Head::Score;
        match self {
            AdaptersFrom::Files(files) => ScoreFrom::Adapter(files),
            AdaptersFrom::Seed(seed) | AdaptersFrom::Random(seed) => ScoreFrom::Seed(seed),
            AdaptersFrom::Start { files, model, seed } => match files.filter(held) {
                Some(files) => ScoreFrom::Adapter(files),
                None if model.tensor(SCORE).is_some() => ScoreFrom::Model(model),
                None => ScoreFrom::Seed(seed),
            },
        }
    }

    /// Drops the model, which only the head needs.
    fn matrices(self) -> AdaptersFrom<'x> {
        match self {
            AdaptersFrom::Start { files: Some(files), .. } => AdaptersFrom::Files(files),
            AdaptersFrom::Start { files: None, seed, .. } => AdaptersFrom::Seed(seed),
            other => other,
        }
    }

    /// Returns where a parameter's values come from: an adapter of a text alone has none of a tower, whose begin anew.
    fn values_of(self, param: &Param) -> AdaptersFrom<'x> {
        match self {
            AdaptersFrom::Start { files: Some(files), seed, .. }
                if param.is_of_tower() && files.config.tower.is_none() =>
            {
                AdaptersFrom::Seed(seed)
            }
            other => other.matrices(),
        }
    }

    /// Fills the head's only row.
    fn read_score(self, param: &Param, stored: &mut [u8], out: &mut [f32]) -> Result<()> {
        match self.score() {
            ScoreFrom::Adapter(files) => files.read(ADAPTER_SCORE, 0, stored, out)?,
            ScoreFrom::Model(model) => model.read_rows(SCORE, 0..1, stored, out)?,
            ScoreFrom::Seed(seed) => value_head_values(param, seed, 0, out),
        }
        check_finite(SCORE, 0, out)
    }
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
    let Staging { mut stored, mut values } = Staging::new(dev, staging);
    for params in table.by_tensor() {
        if let (AdaptersFrom::Files(files), Some(woven)) = (from.matrices(), Woven::of(params)) {
            woven.each_chunk(&mut values, |first, rows, own| {
                let at = first * woven.width();
                files.read(woven.name(), at as u64, &mut stored, rows)?;
                check_finite(woven.name(), at, rows)?;
                for (expert, param) in params.iter().enumerate() {
                    woven.pick(expert, rows, own);
                    write(dev, param, (layout, sets), first, own);
                }
                Ok(())
            })?;
            continue;
        }
        for (before, param) in params.iter().enumerate() {
            let filled = |first, rows: &mut [f32]| write(dev, param, (layout, sets), first, rows);
            fill((param, before), from, (&mut stored, &mut values), filled)?;
        }
    }
    Ok(())
}

/// Writes rows of a parameter from `first` on into each buffer.
fn write(
    dev: &dyn Device,
    param: &Param,
    (layout, sets): (MatrixLayout, &[Buf<'_>]),
    first: usize,
    rows: &[f32],
) {
    for buf in sets {
        let buf = buf.slice(param.offset as usize, param.elements as usize);
        dev.write_rows(Matrix::new(buf, param.n as usize, param.k as usize, layout), first, rows);
    }
}

/// Calls `filled` with chunks of a parameter's rows: the first one's index, and the rows. Of a tensor that has those of
/// all experts, some are `before` it.
fn fill(
    (param, before): (&Param, usize),
    from: AdaptersFrom<'_>,
    (stored, values): (&mut [u8], &mut [f32]),
    mut filled: impl FnMut(usize, &mut [f32]),
) -> Result<()> {
    let width = param.k as usize;
    let chunk = values.len() / width;
    let mut above = 0;
    for part in &param.parts {
        let start = before * part.rows as usize;
        for first in (0..part.rows as usize).step_by(chunk) {
            let rows = chunk.min(part.rows as usize - first);
            let out = &mut values[..rows * width];
            match (from.values_of(param), param.kind) {
                (_, ParamKind::ValueHead) => from.read_score(param, stored, out)?,
                (AdaptersFrom::Files(files), _) => {
                    param.each_stored_run((above + first, rows), |before, stored_row, run| {
                        let at = ((start + stored_row - above) * width) as u64;
                        files.read(&part.name, at, stored, &mut out[before * width..][..run * width])
                    })?;
                    check_finite(&part.name, (start + first) * width, out)?;
                }
                (AdaptersFrom::Seed(_), ParamKind::AdapterB(_) | ParamKind::TowerB(..)) => out.fill(0.0),
                (AdaptersFrom::Seed(seed) | AdaptersFrom::Random(seed), _) => {
                    uniform(param, 1.0 / (width as f32).sqrt(), seed, (above + first) * width, out);
                }
                (AdaptersFrom::Start { .. }, _) => unreachable!("matrices are of files or of a seed"),
            }
            filled(above + first, out);
        }
        above += part.rows as usize;
    }
    Ok(())
}
