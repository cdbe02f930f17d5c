//! A decoder in an arena of its own, for tests.

#![allow(dead_code)] // Each test file uses its part.

use plimsoll_arch::{Cache, ModelSpec};
use plimsoll_base::{DType, Phase, PhaseSet};
use plimsoll_device::{KV_BLOCK, NO_PARENT, NO_STATE, edges};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, ArenaMap, Layout};
use plimsoll_model::{
    Mode, ParamTable, PassIndex, PassLimits, Recompute, activations_layout, rope, streamed_layout,
};

mod machine;

#[allow(unused_imports)] // Each test file uses its part.
pub use machine::{AnyDevice, GOLDEN, Machine, golden_dir};

/// Everything static that a test needs.
pub struct Fixture {
    pub model: OpenModel,
    pub spec: ModelSpec,
    pub dtype: DType,
    pub table: ParamTable,
    pub limits: PassLimits,
    pub arena: Arena,
    pub dev: AnyDevice,
}

pub fn fixture(
    source: &str,
    dtype: DType,
    recompute: Recompute,
    threads: usize,
    machine: Machine,
    limits: PassLimits,
) -> Fixture {
    let model = OpenModel::open(source, None, false).unwrap();
    let spec = model.spec;
    let table = ParamTable::new(&spec, machine.kind(), dtype);
    let target = machine.target(threads);
    let mut layout = Layout::new();
    for what in ["actor.weights", "actor.grads", "actor.m", "actor.v"] {
        layout.arena(what, "test", target.pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
    }
    layout.extend(rope::layout(&spec, machine::positions_of(source, 512), target.pool).unwrap());
    layout.extend(machine.scratch(&spec, dtype, threads, limits));
    for mode in [Mode::Score, Mode::Update(recompute)] {
        layout.extend(activations_layout(&spec, dtype, target, mode, limits).unwrap());
    }
    // For a decoder that streams its layers in an update.
    layout.offloaded("offload.actor.weights", "test", &[table.elements], dtype).unwrap();
    let phases = PhaseSet::of(&[Phase::Update]);
    layout.extend(streamed_layout("actor", &table, dtype, target.pool, phases).unwrap());
    let mut arena = Arena::new(ArenaMap::new(&layout, 0));
    let dev = machine.open(&mut arena, threads);
    Fixture { model, spec, dtype, table, limits, arena, dev }
}

/// Index arrays of whole sequences, each a root segment; every row goes through the head and predicts the next token.
pub fn whole_sequences(sequences: &[&[u32]]) -> PassIndex {
    let mut index = PassIndex::default();
    let (mut block, mut place) = (0, 0);
    for ids in sequences {
        index.caches[Cache::STATE].slots.extend([NO_STATE, place as u32]);
        place += edges(ids.len());
        let first_row = index.ids.len() as u32;
        let record =
            [first_row, ids.len() as u32, 0, index.caches[Cache::PAGED].tables.len() as u32, NO_PARENT];
        index.segments.extend_from_slice(&record);
        for (i, &id) in ids.iter().enumerate() {
            index.ids.push(id);
            index.positions.push(i as u32);
            index.caches[Cache::PAGED].slots.push((block * KV_BLOCK + i) as u32);
            index.head_rows.push(first_row + i as u32);
            index.targets.push(ids.get(i + 1).copied().unwrap_or(0));
        }
        let blocks = ids.len().div_ceil(KV_BLOCK);
        index.caches[Cache::PAGED].tables.extend(block as u32..(block + blocks) as u32);
        block += blocks;
    }
    index
}
