//! Ranks that exchange by a library agree on what passes.

use super::*;
use crate::partial::Partial;
use crate::sums::Summing;
use crate::{OptimizerDType, StateDTypes, optimizer_layout};
use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_memory::{Arena, ArenaMap, Layout, Pool};

/// A buffer that goes from one rank to another in a turn: where it lies in the first one's arena.
type Passed = Vec<(usize, u64, usize)>;

/// Where a library exchanges, a rank that takes what another does not give, or in another order, waits for ever.
#[test]
fn what_a_rank_takes_of_another_is_what_that_gives() {
    let spec = ModelSpec::preset("nano").unwrap();
    let table = ParamTable::new(&spec, &plimsoll_cpu::LAYOUTS, DType::Bf16);
    let update = PhaseSet::of(&[Phase::Update]);
    for (ranks, near, fold) in
        [(3, None, 1), (4, None, 3), (4, Some(2), 2), (8, Some(4), 4), (12, Some(4), 2)]
    {
        let summing = Summing { partial: None, fold, near };
        let dtypes =
            StateDTypes { weights: DType::Bf16, grads: DType::F32, summing, optimizer: OptimizerDType::F32 };
        let mut layout = Layout::new();
        layout.arena("w", "x", Pool::Host, PhaseSet::RESIDENT, &[table.elements], DType::Bf16).unwrap();
        layout.arena("rows", "x", Pool::Host, update, &[8], DType::F32).unwrap();
        layout
            .extend(optimizer_layout("x", &table, dtypes, Pool::Host, Phase::Update, false, ranks).unwrap());
        let mut arena = Arena::new(ArenaMap::new(&layout, 0));
        let bytes = Bytes(arena.map().used_bytes());
        let (resident, mut overlay) = arena.split();
        let dev = CpuDevice::new(bytes, 1, Isa::detect()).unwrap();
        let phase = overlay.enter(Phase::Update);
        let rows = phase.buf("rows");
        let grads = Partial::bind(&phase, "x", &table);
        let levels = Levels::bind(&phase, "x", &table, summing, ranks);
        let sum = Sum { shard: phase.buf("x.shard"), folded: None, fold, count: 99 };
        let optimizers: Vec<Optimizer<'_>> = (0..ranks)
            .map(|rank| Optimizer::new(&dev, &table, resident.buf("w"), resident, "x", Share { rank, ranks }))
            .collect();
        for with_part in [ranks, ranks - 1, 1] {
            let parts_of = |own: usize| -> Vec<Part<'_>> {
                let part = |rank| Part {
                    grads,
                    layout: MatrixLayout::Rows,
                    d_input: rows,
                    ids: rows,
                    of: (rank != own).then_some(rank),
                };
                (0..with_part).map(part).collect()
            };
            let areas = crate::levels::areas(&table).filter(|(_, within)| within.start > 0);
            for at in areas.collect::<Vec<_>>() {
                let mut taken = vec![vec![Passed::new(); ranks]; ranks];
                let mut given = taken.clone();
                for (rank, optimizer) in optimizers.iter().enumerate() {
                    let parts = parts_of(rank);
                    let links = Links { parts: &parts, first: 0, sum, landing: None, levels };
                    for (turn, Turn { own, addends }) in optimizer.turns(&links, at).iter().enumerate() {
                        for Addend { there, of, .. } in addends {
                            assert_eq!(there.len() as u64, own.run.elements);
                            let Some(of) = of else { continue };
                            taken[rank][*of].push((turn, there.offset(), there.len()));
                        }
                    }
                    for (turn, all) in optimizer.given_in_turns(&links, at).iter().enumerate() {
                        for (owner, buf) in all {
                            given[*owner][rank].push((turn, buf.offset(), buf.len()));
                        }
                    }
                }
                assert_eq!(taken, given, "{ranks} {near:?} {fold}: {with_part}, {at:?}");
                // A layer of a small model may be one rank's.
                let passes = taken.iter().flatten().any(|passed| !passed.is_empty());
                assert!(passes || with_part == 1, "{ranks} {near:?} {fold}: {with_part}, {at:?}");
            }
        }
    }
}
