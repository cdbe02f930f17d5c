//! Loads weights into the arena: from files through fixed buffers, or from a seed.

use crate::params::{Param, ParamTable, Part};
use crate::terms;
use crate::weights::{CodeBufs, Params};
use half::bf16;
use plimsoll_arch::{ModelSpec, ParamKind};
use plimsoll_base::blocks::{Encoding, decode};
use plimsoll_base::rng::{Stream, normal_pair, philox, unit_f32};
use plimsoll_base::{Bytes, DType, Error, Result, slugs};
use plimsoll_device::{Blocks, Codes, Device, HostBytes, Layouts, Matrix, MatrixLayout};
use plimsoll_files::{OpenModel, ReadAhead, RowOrder};
use plimsoll_memory::Buf;
use std::collections::HashMap;
use std::panic::resume_unwind;

/// Minimum bytes of staging: a row of the widest model, as stored and as f32.
pub const STAGING_BYTES_MIN: u64 = 1 << 20;

/// The two buffers that weights pass through: as stored, and as f32.
pub(crate) struct Staging {
    pub(crate) stored: HostBytes,
    pub(crate) values: Vec<f32>,
}

impl Staging {
    /// Splits `bytes` between the two buffers. The stored bytes are in memory that the device reads fastest.
    pub(crate) fn new(dev: &dyn Device, bytes: Bytes) -> Staging {
        let half = bytes.0.max(STAGING_BYTES_MIN) as usize / 2;
        Staging { stored: dev.host_bytes(half), values: vec![0.0; half / 4] }
    }
}

/// Standard deviation of random weights: `initializer_range` in transformers.
const RANDOM_STD: f32 = 0.02;
/// Scale of random blocks of MXFP4: 2^-7, which makes a deviation of 0.023.
const RANDOM_SCALE: u8 = 120;
/// Log of A in random linear attention: a state halves in about ten rows.
const RANDOM_DECAY: f32 = -3.0;
/// Bound of the convolution taps in random linear attention, as in torch for 4 taps.
const RANDOM_TAP: f32 = 0.5;

/// Fills `params` from the model's files, or from `seed` for `random:` models. A value head also comes from the seed if
/// the files have none.
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
    let flat = Flat { all: params.all, layout: params.embed.layout, codes: params.codes };
    load_into(dev, model, table, flat, seed, staging)
}

/// Fills a flat buffer of `table` that has nothing in codes, with matrices in an order, as `load` does.
///
/// Errors: those of `load`.
pub(crate) fn load_flat(
    dev: &dyn Device,
    model: &OpenModel,
    table: &ParamTable,
    (all, layout): (Buf<'_>, MatrixLayout),
    seed: u64,
    staging: Bytes,
) -> Result<()> {
    load_into(dev, model, table, Flat { all, layout, codes: None }, seed, staging)
}

/// A flat buffer of parameters, the order of its matrices, and the codes next to it.
#[derive(Clone, Copy)]
struct Flat<'a> {
    all: Buf<'a>,
    layout: MatrixLayout,
    codes: Option<CodeBufs<'a>>,
}

fn load_into(
    dev: &dyn Device,
    model: &OpenModel,
    table: &ParamTable,
    flat: Flat<'_>,
    seed: u64,
    staging: Bytes,
) -> Result<()> {
    dev.zero(flat.all);
    let mut staging = Staging::new(dev, staging);
    let names = table.params.iter().flat_map(|param| &param.parts).map(|part| part.name.as_str());
    let mut ahead = ReadAhead::new(model, names);
    for param in &table.params {
        let codes = match flat.codes.and_then(|codes| codes.at(param)) {
            None => None,
            // Files hold none of these codes: their numbers are rounded.
            Some(codes) if codes.whole(Encoding::Nf4).is_some() => codes.whole(Encoding::Nf4),
            Some(Codes { parts }) => {
                let mut runs = parts.into_iter().flatten();
                let (mut run, mut first) = (runs.next().expect("a run of rows"), 0);
                for part in &param.parts {
                    if first == run.n {
                        (run, first) = (runs.next().expect("a run for each part"), 0);
                    }
                    let made = model.random.then_some((param, seed));
                    load_blocks(dev, (model, part), made, run, first, &mut staging)?;
                    ahead.passed(bytes_of(model, part, part.rows as usize));
                    first += part.rows as usize;
                }
                continue;
            }
        };
        if param.has_terms() {
            load_terms(dev, model, (param, flat.all), &mut staging)?;
            ahead.passed(bytes_of(model, &param.parts[0], param.parts[0].rows as usize));
            continue;
        }
        let width = param.k.max(1) as usize;
        let chunk_rows = staging.values.len() / width;
        assert!(chunk_rows > 0, "staging of {} values for rows of {width}", staging.values.len());
        let target = Target { dev, param, all: flat.all, codes, layout: flat.layout };
        let mut above = 0;
        for part in &param.parts {
            let is_made =
                model.random || (param.kind == ParamKind::ValueHead && model.tensor(&part.name).is_none());
            for done in (0..part.rows as usize).step_by(chunk_rows) {
                let rows = chunk_rows.min(part.rows as usize - done);
                by_threads(rows, width, param.is_vector(), &mut staging, |first, stored, out| {
                    let (first, row) = (done + first, above + done + first);
                    if is_made {
                        random_values(param, &model.spec, seed, row * width, out);
                    } else if target.is_as_stored(part, model) {
                        return target.copy(model, part, first, row, &mut stored[..out.len() * 2]);
                    } else {
                        read(model, param, part, first, stored, out)?;
                    }
                    check_finite(&part.name, first * width, out)?;
                    target.write_by_thread(row, stored, out);
                    Ok(())
                })?;
                target.write_after(above + done, &staging.values[..rows * width]);
                ahead.passed(bytes_of(model, part, rows));
            }
            above += part.rows as usize;
        }
    }
    Ok(())
}

/// Reads numbers that a model has in f32, and writes their terms; those of a random model are 0.
fn load_terms(
    dev: &dyn Device,
    model: &OpenModel,
    (param, all): (&Param, Buf<'_>),
    Staging { stored, values }: &mut Staging,
) -> Result<()> {
    let (name, values) = (&param.parts[0].name, &mut values[..param.n as usize]);
    let numbers = &mut values[..param.parts[0].rows as usize];
    if model.random {
        numbers.fill(0.0);
    } else {
        model.read_elements(name, 0, stored, numbers)?;
    }
    check_finite(name, 0, numbers)?;
    terms::split(values);
    dev.write_f32(all.slice(param.offset as usize, param.elements as usize), 0, values);
    Ok(())
}

/// Returns the stored bytes of `rows` rows of a part; 0 if the model does not have it.
fn bytes_of(model: &OpenModel, part: &Part, rows: usize) -> u64 {
    model.tensor(&part.name).map_or(0, |tensor| tensor.bytes / u64::from(part.rows.max(1)) * rows as u64)
}

/// The weights of a `random:` model by tensor name, equal to those of `load`.
#[derive(Debug)]
pub struct RandomWeights {
    spec: ModelSpec,
    seed: u64,
    table: ParamTable,
    /// By tensor name: the index of its parameter, and the number of rows before it there.
    places: HashMap<String, (usize, usize)>,
}

impl RandomWeights {
    /// Indexes the tensors. A row's values depend only on its index among rows, so any device gives the same.
    pub fn new(spec: &ModelSpec, seed: u64, device: &'static Layouts) -> RandomWeights {
        let table = ParamTable::new(spec, device, DType::F32);
        let mut places = HashMap::with_capacity(table.params.len());
        for (index, param) in table.params.iter().enumerate() {
            let mut above = 0;
            for part in &param.parts {
                places.insert(part.name.clone(), (index, above));
                above += part.rows as usize;
            }
        }
        RandomWeights { spec: *spec, seed, table, places }
    }

    /// Fills `out` with rows of a tensor, starting at row `first`; a row is everything after the first axis.
    pub fn rows(&self, name: &str, first: u64, out: &mut [f32]) {
        let (index, above) = self.places[name];
        let param = &self.table.params[index];
        let (k, part) = (param.k.max(1) as usize, param.parts.iter().find(|part| part.name == name));
        let part = part.expect("a place is of a part");
        let width: u64 = if param.is_vector() { 1 } else { part.shape[1..].iter().product() };
        if let Some(of) = part.transposed() {
            return of.stored_rows((first as usize) * k, out, &mut vec![0.0; k], |row, values| {
                random_values(param, &self.spec, self.seed, (above + row) * k, values);
            });
        }
        let (mut stored, mut left) = ((first * width) as usize / k, out);
        while !left.is_empty() {
            let (row, run) = part.run_of_stored(stored);
            let (rows, rest) = left.split_at_mut((run * k).min(left.len()));
            random_values(param, &self.spec, self.seed, (above + row) * k, rows);
            (stored, left) = (stored + run, rest);
        }
    }
}

/// Reads rows of a tensor as f32, starting at row `first`.
fn read(
    model: &OpenModel,
    param: &Param,
    part: &Part,
    first: usize,
    stored: &mut [u8],
    out: &mut [f32],
) -> Result<()> {
    if param.is_vector() {
        return model.read_elements(&part.name, first as u64, stored, out);
    }
    if let Some(of) = part.transposed() {
        let (encoding, rows) = (Encoding::Mxfp4, out.len() / param.k as usize);
        if model.tensor(&part.name).is_some_and(|tensor| tensor.encoding == encoding) {
            // Blocks are those of rows.
            let row_bytes = u64::from(param.k) / encoding.block_values() * encoding.block_bytes();
            let bytes = &mut stored[..rows * row_bytes as usize];
            model.read_blocks(&part.name, encoding, first as u64..(first + rows) as u64, bytes)?;
            decode(encoding, bytes, &[], out);
            return Ok(());
        }
        return of.read(first, out, |at, out| model.read_elements(&part.name, at, stored, out));
    }
    let k = param.k as usize;
    let (mut row, mut left) = (first, out);
    while !left.is_empty() {
        let (at, run) = part.stored_run(row);
        let run = run.min(left.len() / k);
        let (rows, rest) = left.split_at_mut(run * k);
        if part.shape.len() == 2 {
            model.read_rows(&part.name, at as u64..(at + run) as u64, stored, rows)?;
        } else {
            model.read_elements(&part.name, (at * k) as u64, stored, rows)?;
        }
        (row, left) = (row + run, rest);
    }
    Ok(())
}

/// Rows of blocks that are whole words, whatever the bytes of one.
const WORD_ROWS: usize = 4;
/// Values worth a thread: about a millisecond of reading.
const THREAD_VALUES: usize = 1 << 18;

/// Splits `rows` rows of `width` values of the staging among threads, in runs of whole words; a vector is one run.
/// `fill` gets a run's first row, four bytes per value, and the values. Returns the first run's error, if any.
fn by_threads(
    rows: usize,
    width: usize,
    is_vector: bool,
    staging: &mut Staging,
    fill: impl Fn(usize, &mut [u8], &mut [f32]) -> Result<()> + Sync,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let run = rows.div_ceil(threads).max(THREAD_VALUES.div_ceil(width)).next_multiple_of(WORD_ROWS);
    let Staging { stored, values } = staging;
    let values = &mut values[..rows * width];
    if is_vector || run >= rows {
        return fill(0, stored, values);
    }
    std::thread::scope(|scope| {
        let mut filling = Vec::new();
        for (i, (stored, values)) in
            stored.chunks_mut(run * width * 4).zip(values.chunks_mut(run * width)).enumerate()
        {
            let fill = &fill;
            filling.push(scope.spawn(move || fill(i * run, stored, values)));
        }
        filling.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Copies the stored rows of a tensor to blocks, starting at block row `at`, and checks that their values are finite;
/// those of a random model are `made` of a parameter and a seed.
fn load_blocks(
    dev: &dyn Device,
    (model, Part { name, rows: all, .. }): (&OpenModel, &Part),
    made: Option<(&Param, u64)>,
    blocks: Blocks<'_>,
    at: usize,
    staging: &mut Staging,
) -> Result<()> {
    let (row_bytes, k) = (blocks.row_bytes(), blocks.k);
    let rows_max = staging.values.len() / k / WORD_ROWS * WORD_ROWS;
    assert!(rows_max > 0, "staging of {} values for {WORD_ROWS} rows of {k}", staging.values.len());
    let all = *all as usize;
    for done in (0..all).step_by(rows_max) {
        let rows = rows_max.min(all - done);
        by_threads(rows, k, false, staging, |first, stored, values| {
            let (first, rows) = (done + first, values.len() / k);
            let bytes = &mut stored[..rows * row_bytes];
            if let Some((param, seed)) = made {
                random_blocks(param, seed, (at + first) * k, bytes);
                dev.write_blocks(blocks, at + first, bytes);
                return Ok(());
            }
            model.read_blocks(name, blocks.encoding, first as u64..(first + rows) as u64, bytes)?;
            decode(blocks.encoding, bytes, &[], values);
            check_finite(name, first * k, values)?;
            dev.write_blocks(blocks, at + first, bytes);
            Ok(())
        })?;
    }
    Ok(())
}

struct Target<'x, 'a> {
    dev: &'x dyn Device,
    param: &'x Param,
    all: Buf<'a>,
    codes: Option<Blocks<'a>>,
    layout: MatrixLayout,
}

impl<'a> Target<'_, 'a> {
    fn buf(&self) -> Buf<'a> {
        self.all.slice(self.param.offset as usize, self.param.elements as usize)
    }

    /// True if rows are contiguous, so that threads can round and write their own.
    fn is_plain(&self) -> bool {
        self.param.is_vector() || self.layout == MatrixLayout::Rows
    }

    /// True if the file's bytes are exactly those that the device stores.
    fn is_as_stored(&self, part: &Part, model: &OpenModel) -> bool {
        let is_bf16 = model.tensor(&part.name).is_some_and(|tensor| {
            let is_plain = tensor.row_order == RowOrder::Stored && tensor.added == 0.0;
            is_plain && part.groups.is_none() && !part.is_transposed && tensor.encoding == Encoding::Bf16
        });
        is_bf16
            && self.codes.is_none()
            && self.layout == MatrixLayout::Rows
            && !self.param.is_vector()
            && self.buf().dtype() == DType::Bf16
    }

    /// Copies stored rows of a tensor from `first` on to rows of the parameter from `row` on, unchanged.
    fn copy(&self, model: &OpenModel, part: &Part, first: usize, row: usize, bytes: &mut [u8]) -> Result<()> {
        let k = self.param.k as usize;
        let end = first + bytes.len() / (2 * k);
        model.read_blocks(&part.name, Encoding::Bf16, first as u64..end as u64, bytes)?;
        check_finite_bf16(&part.name, first * k, bytes)?;
        self.dev.write_bytes(self.buf(), row * k, bytes);
        Ok(())
    }

    /// Writes the layouts that loading threads write. `scratch` has at least four bytes per value.
    fn write_by_thread(&self, first_row: usize, scratch: &mut [u8], values: &[f32]) {
        if let Some(codes) = self.codes {
            return self.dev.write_rounded(codes, first_row, values);
        }
        if !self.is_plain() {
            return;
        }
        let (buf, size) = (self.buf(), self.buf().dtype().bytes() as usize);
        let bytes = &mut scratch[..values.len() * size];
        match buf.dtype() {
            DType::Bf16 => {
                for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                    *to = bf16::from_f32(*from).to_le_bytes();
                }
            }
            _ => {
                for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                    *to = from.to_le_bytes();
                }
            }
        }
        self.dev.write_bytes(buf, first_row * self.param.k.max(1) as usize, bytes);
    }

    /// Writes the layouts that the device's own threads make: panels.
    fn write_after(&self, first_row: usize, values: &[f32]) {
        if self.codes.is_none() && !self.is_plain() {
            let matrix = Matrix::new(self.buf(), self.param.n as usize, self.param.k as usize, self.layout);
            self.dev.write_rows(matrix, first_row, values);
        }
    }
}

/// Fills norms with 1, biases with 0, value heads with `value_head_values`, experts that files have in MXFP4 with what
/// random blocks of it stand for, others uniformly; keyed by table offset.
fn random_values(param: &Param, spec: &ModelSpec, seed: u64, first: usize, out: &mut [f32]) {
    match param.kind {
        ParamKind::AttnNorm
        | ParamKind::AttnPostNorm
        | ParamKind::FfnNorm
        | ParamKind::FfnPostNorm
        | ParamKind::ExpertsNorm
        | ParamKind::ExpertsPostNorm
        | ParamKind::DensePostNorm
        | ParamKind::InputNorm
        | ParamKind::InputPostNorm
        | ParamKind::FinalNorm
        | ParamKind::QNorm
        | ParamKind::KNorm => {
            return out.fill(1.0 - spec.architecture().norm_offset);
        }
        ParamKind::Tower(of) if of.is_norm() => return out.fill(1.0),
        ParamKind::Tower(of) if of.is_bias() => return out.fill(0.0),
        ParamKind::Bias(_) | ParamKind::RouterBias | ParamKind::RouterCorrection => return out.fill(0.0),
        ParamKind::DeltaNorm | ParamKind::LayerScale | ParamKind::RouterScale | ParamKind::ExpertScale => {
            return out.fill(1.0);
        }
        ParamKind::DeltaDecay => return out.fill(RANDOM_DECAY),
        ParamKind::DeltaBias => return out.fill(1.0),
        ParamKind::DeltaConv => return uniform(param, RANDOM_TAP, seed, first, out),
        ParamKind::ValueHead => return value_head_values(param, seed, first, out),
        ParamKind::Weight(site) if site.is_of_experts() && has_blocks(param, spec) => {
            return block_values(param, seed, first, out);
        }
        _ => {}
    }
    uniform(param, RANDOM_STD * 3f32.sqrt(), seed, first, out);
}

/// Returns whether the experts of a parameter are in MXFP4 in published files, and their rows whole blocks of it.
fn has_blocks(param: &Param, spec: &ModelSpec) -> bool {
    let values = Encoding::Mxfp4.block_values();
    spec.architecture().has_biased_experts && u64::from(param.k).is_multiple_of(values)
}

/// Fills `out` with the numbers of random blocks, of which value `first` of the parameter begins one.
fn block_values(param: &Param, seed: u64, first: usize, out: &mut [f32]) {
    const VALUES: usize = Encoding::Mxfp4.block_values() as usize;
    let mut block = [0; Encoding::Mxfp4.block_bytes() as usize];
    for (index, values) in out.chunks_exact_mut(VALUES).enumerate() {
        random_blocks(param, seed, first + index * VALUES, &mut block);
        decode(Encoding::Mxfp4, &block, &[], values);
    }
}

/// Makes the blocks of MXFP4 from value `first` of a parameter on: random codes under one scale.
fn random_blocks(param: &Param, seed: u64, first: usize, bytes: &mut [u8]) {
    let first = first as u64 / Encoding::Mxfp4.block_values();
    let blocks = bytes.chunks_exact_mut(Encoding::Mxfp4.block_bytes() as usize);
    for (index, block) in (first..).zip(blocks) {
        block[0] = RANDOM_SCALE;
        let words = block[1..].as_chunks_mut().0;
        let bits = philox(seed, Stream::Weights, param.key, index);
        words.iter_mut().zip(bits).for_each(|(word, bits)| *word = bits.to_le_bytes());
    }
}

/// Fills `out` uniformly within +-bound, keyed by offset in the table; `first`: index of its first value in `param`.
pub(crate) fn uniform(param: &Param, bound: f32, seed: u64, first: usize, out: &mut [f32]) {
    let (mut of, mut bits) = (u64::MAX, [0; 4]);
    for (index, value) in (first as u64..).zip(out) {
        if of != index / 4 {
            of = index / 4;
            bits = philox(seed, Stream::Weights, param.key, of);
        }
        *value = bound * (2.0 * unit_f32(bits[(index % 4) as usize]) - 1.0);
    }
}

/// Fills `out` with normals of deviation 1 / (h + 1): new critics give values near 0. Source: TRL, OpenRLHF (critics).
pub(crate) fn value_head_values(param: &Param, seed: u64, first: usize, out: &mut [f32]) {
    let std = 1.0 / (param.k as f32 + 1.0);
    for (index, value) in (first as u64..).zip(out) {
        let bits = philox(seed, Stream::Weights, param.key, index / 2);
        let (even, odd) = normal_pair(bits[0], bits[1]);
        *value = std * if index % 2 == 0 { even } else { odd };
    }
}

/// Refuses NaN and infinity among a tensor's values, the first of which is element `first`.
pub(crate) fn check_finite(name: &str, first: usize, values: &[f32]) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(not_finite(name, first + i, values[i])),
    }
}

/// Refuses NaN and infinity among stored bf16 values, the first of which is element `first`.
fn check_finite_bf16(name: &str, first: usize, stored: &[u8]) -> Result<()> {
    let values = stored.as_chunks().0;
    // All exponents are compared, so that the loop has no branch.
    let highest = values.iter().fold(0, |highest, value| highest.max(u16::from_le_bytes(*value) & 0x7fff));
    if highest < 0x7f80 {
        return Ok(());
    }
    let broken = values
        .iter()
        .map(|value| bf16::from_le_bytes(*value).to_f32())
        .enumerate()
        .find(|(_, v)| !v.is_finite());
    broken.map_or(Ok(()), |(i, value)| Err(not_finite(name, first + i, value)))
}

fn not_finite(name: &str, element: usize, value: f32) -> Error {
    Error::new(slugs::MODEL_WEIGHT_NOT_FINITE, format!("tensor `{name}` holds {value} at element {element}"))
        .hint("the file is damaged or was saved from a run that diverged; fetch it again")
}
