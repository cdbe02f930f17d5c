//! Several adapters in one pass: what a response becomes is, to the bit, what its adapter draws alone, or the model
//! without one.

use crate::common::World;
use crate::common::harness::{Parts, Setup};
use crate::live::{Drawn, Masks, clients, limits, pass, serve};
use plimsoll_arch::{Caches, LoraShape, LoraTargets, ModelSpec};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_memory::Layout;
use plimsoll_model::{
    Activations, Adapters, AdaptersFrom, Decoder, Mode, ParamTable, SlotTable, load_adapters, slots_layout,
};
use plimsoll_rollout::{Engine, Live, Model, OnFull, Request, Samples};

const LORA: LoraShape = LoraShape { rank: 8, targets: LoraTargets::ALL };
/// Factor of each slot.
const SCALES: [f32; 4] = [2.0, 0.5, 3.0, 1.0];
const MODE: Mode = Mode::Rollout { truncates: true };

/// A world with slots, each of which has an adapter of its own.
fn world(dtype: DType, sequences: usize, rows: usize, blocks: usize, threads: usize) -> (World, ParamTable) {
    let limits = limits(sequences, rows, blocks);
    let lora = Some((LORA, 1.0));
    let setup = Setup { threads, lora, ..Setup::new("random:nano", dtype, pass(Caches::paged(0))) };
    let spec = ModelSpec::preset("nano").unwrap();
    let (table, pool) = (setup.adapters(&spec).unwrap(), setup.target().pool);
    let mut more = slots_layout(MODE, limits.pass().rows, pool).unwrap();
    let elements = SCALES.len() as u64 * SlotTable::stride_of(&table);
    let add = |layout: &mut Layout, name, len: u64, dtype| {
        layout.arena(name, "test", pool, PhaseSet::RESIDENT, &[len], dtype).unwrap();
    };
    add(&mut more, "slots", elements, dtype);
    add(&mut more, "slot_scales", SCALES.len() as u64, DType::F32);
    let mut world = World::with(setup, limits, true, more);
    let parts = world.harness.parts();
    let slots = slots_of(&parts, &table);
    parts.dev.write_f32(slots.scales, 0, &SCALES);
    for slot in 0..SCALES.len() {
        let (to, from) = (slots.slot(&table, slot), AdaptersFrom::Random(10 + slot as u64));
        let layout = parts.decoder.params.embed.layout;
        load_adapters(parts.dev, &table, layout, &[to], from, Bytes(4 << 20)).unwrap();
    }
    (world, table)
}

fn slots_of<'a>(parts: &Parts<'a>, table: &ParamTable) -> SlotTable<'a> {
    let [all, scales] = ["slots", "slot_scales"].map(|name| parts.resident.buf(name));
    SlotTable { all, stride: SlotTable::stride_of(table) as usize, scales }
}

/// Returns the decoder with the adapters of a slot, with all of them (`slots`), or without.
fn decoder<'a>(parts: &Parts<'a>, table: &ParamTable, slot: Option<usize>, slots: bool) -> Decoder<'a> {
    let Decoder { spec, dtype, ref params, rope } = parts.decoder;
    let of = slots_of(parts, table);
    let bind = |slot: usize| Adapters::bind(&spec, table, dtype, LORA, SCALES[slot], of.slot(table, slot));
    let adapters = if slots { Some(bind(0).with_slots(of)) } else { slot.map(bind) };
    Decoder { spec, dtype, params: params.clone().with_adapters(adapters.as_ref()), rope }
}

#[test]
fn responses_of_mixed_adapters_are_those_of_each_alone() {
    let mut clients = clients();
    for (i, client) in clients.iter_mut().enumerate() {
        client.adapter = Some(i as u32 % 5).filter(|slot| *slot < 4);
        client.hangs_up = None;
        client.biases.clear();
    }
    for dtype in [DType::F32, DType::Bf16] {
        let (mut world, table) = world(dtype, 1, 64, 64, 1);
        let mut expect: Vec<Vec<Drawn>> = Vec::new();
        for client in &clients {
            let mut parts = world.harness.parts();
            let decoder = decoder(&parts, &table, client.adapter.map(|slot| slot as usize), false);
            let phase = parts.overlay.enter(Phase::Rollout);
            let acts = Activations::bind(&phase, MODE, world.limits.pass());
            let one = |&first_sample_id: &u64| {
                let request = Request {
                    prompts: &[&client.prompt],
                    group_size: 1,
                    max_new_tokens: client.new_tokens,
                    sampling: client.sampling,
                    eos: &client.ends,
                    first_sample_id,
                    numbers: &[],
                };
                let mut engine = Engine::new(world.limits, OnFull::WorstCase);
                let mut out = Samples::with_capacity(world.limits.samples, world.limits.new_tokens);
                let mut stop = Masks { client };
                engine.run(parts.dev, &decoder, acts, &request, &mut stop, &mut out).unwrap();
                let bits = out.logprobs(0).iter().map(|l| l.to_bits()).collect();
                (out.ids(0).to_vec(), bits, Some(out.finish(0)))
            };
            expect.push(client.ids.iter().map(one).collect());
        }
        let all: Vec<&Drawn> = expect.iter().flatten().collect();
        assert!(all.iter().any(|one| one.1 != all[0].1), "adapters are to differ");
        for (rows, blocks, on_full, threads) in [(512, 64, OnFull::WorstCase, 1), (10, 6, OnFull::Preempt, 2)]
        {
            let (mut world, table) = self::world(dtype, 6, rows, blocks, threads);
            let mut parts = world.harness.parts();
            let decoder = &decoder(&parts, &table, None, true);
            let phase = parts.overlay.enter(Phase::Rollout);
            let acts = Activations::bind(&phase, MODE, world.limits.pass());
            let mut engine = Engine::new(world.limits, on_full);
            engine.take_adapters();
            let mut out = Samples::with_capacity(world.limits.samples, world.limits.new_tokens);
            let model = Model { dev: parts.dev, decoder, acts, sight: None };
            let served = serve(&mut Live::new(model, &mut engine, &mut out), &clients);
            assert!(served == expect, "{dtype:?}, {rows} rows, {blocks} blocks: other bits than alone");
        }
    }
}
