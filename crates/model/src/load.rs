//! Weights into the arena: from files through fixed buffers, or from a seed.

use crate::params::{Param, ParamKind, ParamTable};
use crate::weights::Params;
use plimsoll_base::blocks::decode;
use plimsoll_base::rng::{Stream, normal_pair, philox, unit_f32};
use plimsoll_base::{Bytes, Error, ModelSpec, Result, slugs};
use plimsoll_device::{Blocks, Codes, Device, Matrix, MatrixLayout, Nf4};
use plimsoll_files::OpenModel;

/// Least bytes of staging: a row of the widest model, as stored and as f32.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;

/// The two buffers that weights pass through: as stored, and as f32.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) stored: Vec<u8>,
    pub(crate) values: Vec<f32>,
}

impl Staging {
    /// Both buffers together have `bytes` bytes.
    pub(crate) fn new(bytes: Bytes) -> Staging {
        let half = bytes.0.max(STAGING_BYTES_MIN) as usize / 2;
        Staging { stored: vec![0; half], values: vec![0.0; half / 4] }
    }
}

/// Standard deviation of random weights, as transformers' `initializer_range`.
const RANDOM_STD: f32 = 0.02;
/// The logarithm of A of random linear attention: with it a state halves in about ten rows.
const RANDOM_DECAY: f32 = -3.0;
/// Bound of its convolution's taps, as torch has it for 4 of them.
const RANDOM_TAP: f32 = 0.5;

/// Fills `params` from the model's files, or from `seed` for `random:` models. A value head is of the
/// seed too where the files have none: they are a reward model's, or have another head.
///
/// Errors: those of reading (`model-file-truncated`, ...); `model-weight-not-finite` names the tensor.
pub fn load(
    dev: &dyn Device,
    model: &OpenModel,
    table: &ParamTable,
    params: &Params<'_>,
    seed: u64,
    staging: Bytes,
) -> Result<()> {
    dev.zero(params.all);
    let layout = params.embed.layout;
    let mut staging = Staging::new(staging);
    for param in &table.params {
        let codes = match params.codes.and_then(|codes| codes.at(param)) {
            None => None,
            Some(Codes::Nf4(codes)) => Some(codes),
            Some(Codes::Blocks(parts)) => {
                for (part, blocks) in param.parts.iter().zip(parts.into_iter().flatten()) {
                    load_blocks(dev, model, &part.name, blocks, &mut staging)?;
                }
                continue;
            }
        };
        let Staging { stored, values } = &mut staging;
        let target = Target { dev, param, params, codes, layout };
        let width = param.k.max(1) as usize;
        let chunk_rows = values.len() / width;
        assert!(chunk_rows > 0, "staging of {} values for rows of {width}", values.len());
        let mut first = 0;
        for part in &param.parts {
            let is_made =
                model.random || (param.kind == ParamKind::ValueHead && model.tensor(&part.name).is_none());
            let mut done = 0;
            while done < part.rows as usize {
                let rows = chunk_rows.min(part.rows as usize - done);
                let out = &mut values[..rows * width];
                match is_made {
                    true => random_values(param, &model.spec, seed, (first + done) * width, out),
                    false if param.is_vector() => {
                        model.read_elements(&part.name, done as u64, stored, out)?;
                    }
                    false => model.read_rows(&part.name, done as u64..(done + rows) as u64, stored, out)?,
                }
                check_finite(&part.name, out)?;
                target.write(first + done, out);
                done += rows;
            }
            first += part.rows as usize;
        }
    }
    Ok(())
}

/// Copies rows as they are stored, after a look at what they stand for.
fn load_blocks(
    dev: &dyn Device,
    model: &OpenModel,
    name: &str,
    blocks: Blocks<'_>,
    Staging { stored, values }: &mut Staging,
) -> Result<()> {
    let row_bytes = blocks.row_bytes();
    // Two rows are whole words.
    let rows_max = (stored.len() / row_bytes).min(values.len() / blocks.k) / 2 * 2;
    assert!(rows_max > 0, "staging of {} bytes for two rows of {row_bytes}", stored.len());
    for first in (0..blocks.n).step_by(rows_max) {
        let rows = rows_max.min(blocks.n - first);
        let (bytes, values) = (&mut stored[..rows * row_bytes], &mut values[..rows * blocks.k]);
        model.read_blocks(name, blocks.encoding, first as u64..(first + rows) as u64, bytes)?;
        decode(blocks.encoding, bytes, values);
        check_finite(name, values)?;
        dev.write_blocks(blocks, first, bytes);
    }
    Ok(())
}

struct Target<'x, 'a> {
    dev: &'x dyn Device,
    param: &'x Param,
    params: &'x Params<'a>,
    codes: Option<Nf4<'a>>,
    layout: MatrixLayout,
}

impl Target<'_, '_> {
    fn write(&self, first_row: usize, values: &[f32]) {
        if let Some(codes) = self.codes {
            return self.dev.write_nf4(codes, first_row, values);
        }
        let buf = self.params.all.slice(self.param.offset as usize, self.param.elements as usize);
        if self.param.is_vector() {
            return self.dev.write_f32(buf, first_row, values);
        }
        let matrix = Matrix::new(buf, self.param.n as usize, self.param.k as usize, self.layout);
        self.dev.write_rows(matrix, first_row, values);
    }
}

/// Norms multiply by 1, biases are 0, value heads as `value_head_values` says, other matrices uniform with standard deviation `RANDOM_STD`, keyed by their place in the table.
fn random_values(param: &Param, spec: &ModelSpec, seed: u64, first: usize, out: &mut [f32]) {
    match param.kind {
        ParamKind::AttnNorm
        | ParamKind::AttnPostNorm
        | ParamKind::FfnNorm
        | ParamKind::FfnPostNorm
        | ParamKind::FinalNorm
        | ParamKind::QNorm
        | ParamKind::KNorm => {
            return out.fill(1.0 - spec.architecture().norm_offset);
        }
        ParamKind::QkvBias | ParamKind::OutputBias | ParamKind::GateUpBias | ParamKind::DownBias => {
            return out.fill(0.0);
        }
        ParamKind::DeltaNorm => return out.fill(1.0),
        ParamKind::DeltaDecay => return out.fill(RANDOM_DECAY),
        ParamKind::DeltaBias => return out.fill(1.0),
        ParamKind::DeltaConv => return uniform(param, RANDOM_TAP, seed, first, out),
        ParamKind::ValueHead => return value_head_values(param, seed, first, out),
        _ => {}
    }
    uniform(param, RANDOM_STD * 3f32.sqrt(), seed, first, out);
}

/// Uniform between -bound and bound, keyed by their place in the table; `first`: the first one's place in the parameter.
pub(crate) fn uniform(param: &Param, bound: f32, seed: u64, first: usize, out: &mut [f32]) {
    // A number is a function of its place: threads change nothing but the time, which is minutes for billions.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = out.len().div_ceil(threads).next_multiple_of(4).max(1 << 14);
    std::thread::scope(|scope| {
        for (t, out) in out.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                let (mut of, mut bits) = (u64::MAX, [0; 4]);
                for (i, value) in out.iter_mut().enumerate() {
                    let index = (first + t * part + i) as u64;
                    if of != index / 4 {
                        of = index / 4;
                        bits = philox(seed, Stream::Weights, param.key, of);
                    }
                    *value = bound * (2.0 * unit_f32(bits[(index % 4) as usize]) - 1.0);
                }
            });
        }
    });
}

/// Normal with standard deviation 1 / (h + 1), so that a new critic's values are near 0. Source: TRL's and OpenRLHF's critics.
pub(crate) fn value_head_values(param: &Param, seed: u64, first: usize, out: &mut [f32]) {
    let std = 1.0 / (param.k as f32 + 1.0);
    for (index, value) in (first as u64..).zip(out) {
        let bits = philox(seed, Stream::Weights, param.key, index / 2);
        let (even, odd) = normal_pair(bits[0], bits[1]);
        *value = std * if index % 2 == 0 { even } else { odd };
    }
}

pub(crate) fn check_finite(name: &str, values: &[f32]) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(Error::new(
            slugs::MODEL_WEIGHT_NOT_FINITE,
            format!("tensor `{name}` holds {} at element {i}", values[i]),
        )
        .hint("the file is damaged or was saved from a run that diverged; fetch it again")),
    }
}
