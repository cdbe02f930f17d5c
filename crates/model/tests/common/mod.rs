//! A decoder in an arena of its own, for tests.

#![allow(dead_code)] // Each test file uses its part.

use plimsoll_base::{DType, ModelSpec, PhaseSet};
use plimsoll_device::cpu::{CpuDevice, Isa};
use plimsoll_device::{DeviceKind, KV_BLOCK, NO_PARENT};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, ArenaMap, Layout, Pool};
use plimsoll_model::{Mode, ParamTable, PassIndex, PassLimits, Recompute, Target, activations_layout, rope};
use std::path::PathBuf;

/// Everything static that a test needs.
pub struct Fixture {
    pub model: OpenModel,
    pub spec: ModelSpec,
    pub dtype: DType,
    pub table: ParamTable,
    pub limits: PassLimits,
    pub arena: Arena,
    pub dev: CpuDevice,
}

pub fn golden_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn fixture(
    source: &str,
    dtype: DType,
    recompute: Recompute,
    threads: usize,
    isa: Isa,
    limits: PassLimits,
) -> Fixture {
    let model = OpenModel::open(source, None, false).unwrap();
    let spec = model.spec;
    let table = ParamTable::new(&spec, DeviceKind::Cpu, dtype);
    let target = Target { kind: DeviceKind::Cpu, pool: Pool::Host, threads };
    let mut layout = Layout::new();
    for what in ["actor.weights", "actor.grads", "actor.m", "actor.v"] {
        layout.arena(what, "test", Pool::Host, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
    }
    layout.extend(rope::layout(&spec, 512, Pool::Host).unwrap());
    layout.extend(CpuDevice::scratch_layout(&spec, dtype, threads, true).unwrap());
    for mode in [Mode::Score, Mode::Update(recompute)] {
        layout.extend(activations_layout(&spec, dtype, target, mode, limits).unwrap());
    }
    let mut arena = Arena::new(ArenaMap::new(&layout, 0));
    let mut dev = CpuDevice::new(plimsoll_base::Bytes(arena.map().used_bytes()), threads, isa).unwrap();
    let (resident, _) = arena.split();
    dev.bind_scratch(resident.buf("device.scratch"));
    Fixture { model, spec, dtype, table, limits, arena, dev }
}

/// Index arrays of whole sequences, each a root segment; every row goes through the head and predicts the next token.
pub fn whole_sequences(sequences: &[&[u32]]) -> PassIndex {
    let mut index = PassIndex::default();
    let mut block = 0;
    for ids in sequences {
        let first_row = index.ids.len() as u32;
        let record = [first_row, ids.len() as u32, 0, index.tables.len() as u32, NO_PARENT];
        index.segments.extend_from_slice(&record);
        for (i, &id) in ids.iter().enumerate() {
            index.ids.push(id);
            index.positions.push(i as u32);
            index.slots.push((block * KV_BLOCK + i) as u32);
            index.head_rows.push(first_row + i as u32);
            index.targets.push(ids.get(i + 1).copied().unwrap_or(0));
        }
        let blocks = ids.len().div_ceil(KV_BLOCK);
        index.tables.extend(block as u32..(block + blocks) as u32);
        block += blocks;
    }
    index
}
