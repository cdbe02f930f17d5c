//! Where a role's weights are: in the arena as one buffer, in the device's host memory, or in parts on several ranks,
//! which are gathered where they are needed whole.

use crate::phases::enter;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, OwnedRun, Run, portions};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Buf, Overlay, Resident};
use plimsoll_model::{AdaptersFrom, CodeBufs, Decoder, ParamTable, Params, Source, load};
use plimsoll_plan::{RoleName, RoleShape};
use plimsoll_train::Share;

#[allow(clippy::large_enum_variant)] // A handful in a run.
pub enum Weights<'a> {
    Resident(Decoder<'a>),
    /// Weights elsewhere, whose layers stream through the arena.
    Streamed(Elsewhere<'a>),
}

/// Weights that are not in the arena as one buffer.
pub struct Elsewhere<'a> {
    pub source: Source<'a>,
    pub rope: Buf<'a>,
    /// The part of them that this rank keeps, if several ranks have them.
    pub part: Option<(Share, Buf<'a>)>,
    /// Sum of squares of the weights as they were read.
    pub sum_squares: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Loading {
    /// Seed of the weights that a model's files do not hold.
    pub seed: u64,
    /// Bytes of the buffers between file and device.
    pub staging: Bytes,
}

impl Loading {
    /// Returns the adapters that a model comes with, or those with which learning begins. A critic begins without the
    /// actor's.
    pub fn adapters(self, of: RoleName, model: &OpenModel) -> AdaptersFrom<'_> {
        let files = model.adapter.as_ref().filter(|_| of != RoleName::Critic);
        AdaptersFrom::Start { files, model, seed: self.seed }
    }
}

impl Elsewhere<'_> {
    /// Copies all weights into one buffer.
    pub fn gather(&self, dev: &dyn Device, all: Buf<'_>) {
        for portion in portions(&self.source, |(_, part)| part.bytes()) {
            dev.prefetch(&mut portion.iter().map(|(_, part)| *part));
            for (run, part) in portion {
                dev.accumulate(*part, all.slice(run.start as usize, part.len()), false);
            }
        }
    }
}

/// Returns the region of the sum of what a rank owns.
pub fn shard_region(shape: &RoleShape) -> String {
    format!("{}.shard", shape.name.name())
}

/// Returns the region in which weights that lie in parts are whole, in the phase `RoleShape::whole_in`.
pub fn whole_region(shape: &RoleShape) -> String {
    format!("{}.whole", shape.name.name())
}

/// Reads the weights and keeps a rank's part of them. Returns the sum of squares of all.
pub fn load_part(
    dev: &dyn Device,
    overlay: &mut Overlay<'_>,
    shape: &RoleShape,
    table: &ParamTable,
    (share, part): (Share, Buf<'_>),
    model: &OpenModel,
    how: Loading,
) -> Result<f64> {
    let phase = enter(dev, overlay, shape.whole_in().expect("a role that is whole in a phase"));
    let params = Params::bind(&shape.spec, table, shape.weights, phase.buf(&whole_region(shape)));
    load(dev, model, table, &params, how.seed, how.staging)?;
    keep_part(dev, table, share, params.all, part);
    Ok(params.sum_squares(dev))
}

/// Copies what a rank keeps of all weights.
pub fn keep_part(dev: &dyn Device, table: &ParamTable, share: Share, all: Buf<'_>, part: Buf<'_>) {
    for OwnedRun { run, at } in share.owned(table) {
        let len = run.elements as usize;
        dev.accumulate(all.slice(run.start as usize, len), part.slice(at as usize, len), false);
    }
    dev.sync();
}

/// Returns where a rank's own part lies.
pub fn own_source<'a>(table: &ParamTable, share: Share, part: Buf<'a>) -> Source<'a> {
    let there = |OwnedRun { run, at }| (run, part.slice(at as usize, run.elements as usize));
    share.owned(table).into_iter().map(there).collect()
}

/// Returns where all parts lie: this rank's, and those of the others, which are there after a barrier.
pub fn spread<'a>(table: &ParamTable, share: Share, part: Buf<'a>) -> Source<'a> {
    let mut source = Source::new();
    for rank in 0..share.ranks {
        let there = own_source(table, Share { rank, ..share }, part).into_iter();
        source
            .extend(there.map(|(run, buf)| (run, if rank == share.rank { buf } else { buf.of_rank(rank) })));
    }
    source.sort_unstable_by_key(|(run, _)| run.start);
    source
}

/// Returns a buffer that holds all weights of a table as their source.
pub fn whole_source<'a>(table: &ParamTable, all: Buf<'a>) -> Source<'a> {
    vec![(Run { start: 0, elements: table.elements }, all)]
}

/// Resolves the handles of weights, which are those of the role `owner`.
pub fn bind_weights<'a>(
    shape: &RoleShape,
    table: &ParamTable,
    resident: Resident<'a>,
    owner: RoleName,
    all: Buf<'a>,
) -> Params<'a> {
    if shape.quantize.is_none() {
        return Params::bind(&shape.spec, table, shape.weights, all);
    }
    let buf = |what: &str| resident.buf(&format!("{}.{what}", owner.name()));
    let bufs = CodeBufs {
        words: buf("codes"),
        scales: (table.codes.scale > 0).then(|| buf("scales")),
        widened: buf("widened"),
    };
    Params::bind_quantized(&shape.spec, table, shape.weights, all, bufs)
}
