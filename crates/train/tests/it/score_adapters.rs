//! Adapters of reward models against what peft computes in float32: scores, gradients of A, B and the head, one AdamW
//! step. The frozen weights are a language model's, as a critic shares them with its actor, or a reward model's.
//!
//! Tolerances: the same numbers computed in float64 differ from the reference by up to 2.3e-6 in scores and 3.4e-6 in
//! gradients (the README of the golden files has a table); ours may round as much again in the other direction, so the
//! bounds are about four times these.

use crate::common::{AnyDevice, Machine, Reference, Setup, golden_dir, read, resident_gradients, same_bits};
use plimsoll_arch::{Caches, LoraShape};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_device::{Matrix, MatrixLayout};
use plimsoll_files::{Adapter, Head};
use plimsoll_memory::{Arena, ArenaMap, Layout};
use plimsoll_model::{
    Activations, Adapters, AdaptersFrom, Decoder, Derivatives, Mode, Param, ParamTable, Params, Pass,
    Recompute, activations_layout, adapters_layout, backward, layers, load, load_adapters, rope, values,
};
use plimsoll_train::{
    Heads, Optimizer, OptimizerDType, PackLimits, Packer, Packing, Sequence, Share, StateDTypes, Summing,
    UpdateOptions, optimizer_layout,
};

const GOLDEN: [&str; 2] = ["llama", "qwen2"];
/// The derivatives of the reference's loss by the scores.
const WEIGHTS: [f32; 3] = [0.7, -1.1, 0.4];
const HOW: UpdateOptions = UpdateOptions {
    muon: None,
    lr: 1e-3,
    betas: (0.9, 0.95),
    epsilon: 1e-8,
    weight_decay: 0.01,
    grad_clip: 0.0,
    seed: 0,
};
const PACKING: Packing = Packing { heads: Heads::End, whole_groups: false };

/// A golden adapter over its base, with its gradients, in an arena of its own.
struct World {
    setup: Setup,
    base: ParamTable,
    table: ParamTable,
    lora: (LoraShape, f32),
    arena: Arena,
    dev: AnyDevice,
}

impl World {
    fn new(name: &str, setup: Setup, base: fn(&Setup) -> ParamTable) -> World {
        let model = setup.open();
        let (spec, dtype, pool) = (model.spec, setup.dtype, setup.target().pool);
        let files = Adapter::open(&golden_dir(&format!("lora_score/{name}")), &spec).unwrap();
        assert_eq!((files.config.head, files.config.base.as_deref()), (Head::Score, Some(name)));
        let lora = (files.config.shape(), files.config.scale() as f32);
        let table = ParamTable::adapters_and_score(&spec, setup.machine.kind(), dtype, lora.0);
        let base = base(&setup);
        let mut layout = Layout::new();
        for (region, table) in [("weights", &base), ("adapters", &table)] {
            layout.arena(region, "test", pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
        }
        let states = StateDTypes {
            weights: dtype,
            grads: DType::F32,
            summing: Summing::default(),
            optimizer: OptimizerDType::F32,
        };
        let states = optimizer_layout("adapters", &table, states, pool, Phase::Critic, false, 1).unwrap();
        layout.extend(resident_gradients(states));
        layout.extend(rope::layout(&spec, setup.positions, pool).unwrap());
        layout.extend(setup.machine.scratch(&spec, dtype, setup.threads, setup.pass));
        let mode = Mode::Critic(setup.recompute);
        layout.extend(activations_layout(&spec, dtype, setup.target(), mode, setup.pass).unwrap());
        layout
            .extend(adapters_layout(&spec, dtype, setup.target(), mode, setup.pass, lora.0, false).unwrap());
        let mut arena = Arena::new(ArenaMap::new(&layout, setup.guard));
        let dev = setup.machine.open(&mut arena, setup.threads);
        let (resident, _) = arena.split();
        let params = Params::bind(&spec, &base, dtype, resident.buf("weights"));
        load(dev.as_dyn(), &model, &base, &params, 1, Bytes::mib(4)).unwrap();
        rope::fill(dev.as_dyn(), &spec, resident.buf("rope.table"));
        let (to, layout) = (resident.buf("adapters"), params.embed.layout);
        let from = AdaptersFrom::Start { files: Some(&files), model: &model, seed: 1 };
        load_adapters(dev.as_dyn(), &table, layout, &[to], from, Bytes::mib(1)).unwrap();
        World { setup, base, table, lora, arena, dev }
    }

    /// The score of each sequence, and the gradient of sum(weight score), flat as it is stored.
    fn run(&mut self, sequences: &[Sequence<'_>], add: bool) -> (Vec<f32>, Vec<f32>) {
        let (spec, dtype, dev) = (self.setup.open().spec, self.setup.dtype, self.dev.as_dyn());
        let (resident, mut overlay) = self.arena.split();
        let (shape, scale) = self.lora;
        let bind = |name| Adapters::bind(&spec, &self.table, dtype, shape, scale, resident.buf(name));
        let (adapters, grads) = (bind("adapters"), bind("adapters.grads"));
        let params = Params::bind(&spec, &self.base, dtype, resident.buf("weights"));
        let params = params.with_adapters(Some(&adapters));
        let decoder = Decoder { spec, dtype, params, rope: resident.buf("rope.table") };
        let phase = overlay.enter(Phase::Critic);
        let acts = Activations::bind(&phase, Mode::Critic(self.setup.recompute), self.setup.pass);
        let mut packer = Packer::new(self.setup.pass, 0);
        if add {
            dev.zero(grads.all);
        }
        let (mut scores, mut first) = (Vec::new(), 0);
        while first < sequences.len() {
            let batch = packer.pack_as(PACKING, sequences, first).unwrap();
            let pass = Pass::upload(dev, acts, batch.index);
            layers(dev, &decoder, &pass);
            values(dev, &decoder, &pass);
            scores.extend(read(dev, pass.values()));
            let of = Derivatives::Values(&WEIGHTS[batch.sequences.clone()]);
            backward(dev, &decoder, &grads, add || first > 0, &pass, of);
            first = batch.sequences.end;
        }
        (scores, read(dev, grads.all))
    }

    /// Each tensor under peft's name, row-major, in a region.
    fn tensors(&mut self, region: &str) -> Vec<(String, Vec<f32>)> {
        let layout = MatrixLayout::of_weights(self.table.device, self.setup.dtype);
        let (dev, all) = (self.dev.as_dyn(), self.arena.split().0.buf(region));
        let mut out = Vec::new();
        for param in &self.table.params {
            let matrix = matrix(all, param, layout);
            let mut row = 0;
            for part in &param.parts {
                let mut values = vec![0.0; part.rows as usize * matrix.k];
                dev.read_rows(matrix, row, &mut values);
                row += part.rows as usize;
                out.push((part.name.clone(), values));
            }
        }
        out
    }

    fn step(&mut self) {
        let (dev, resident) = (self.dev.as_dyn(), self.arena.split().0);
        let [all, grads] = ["adapters", "adapters.grads"].map(|name| resident.buf(name));
        let mut optimizer = Optimizer::new(dev, &self.table, all, resident, "adapters", Share::WHOLE);
        let norm = optimizer.grad_norm(dev, grads);
        optimizer.update(dev, all, grads, None, HOW, norm);
    }
}

fn matrix<'a>(all: plimsoll_memory::Buf<'a>, param: &Param, layout: MatrixLayout) -> Matrix<'a> {
    let buf = all.slice(param.offset as usize, param.elements as usize);
    Matrix::new(buf, param.n as usize, param.k as usize, layout)
}

fn language_model(setup: &Setup) -> ParamTable {
    ParamTable::new(&setup.open().spec, setup.machine.kind(), setup.dtype)
}

fn reward_model(setup: &Setup) -> ParamTable {
    ParamTable::critic(&setup.open().spec, setup.machine.kind(), setup.dtype)
}

fn setup(name: &str, dtype: DType, rows: usize) -> Setup {
    let pass =
        PackLimits { micro_batch_tokens: rows, prompt_tokens: 8, segments: 8, caches: Caches::paged(0) }
            .pass();
    Setup { threads: 2, ..Setup::new(name, dtype, pass) }
}

fn ids_of(reference: &Reference) -> Vec<Vec<u32>> {
    (0..3).map(|i| reference.ids(&format!("seq{i}.input_ids"))).collect()
}

fn sequences(ids: &[Vec<u32>]) -> Vec<Sequence<'_>> {
    let whole = ids.iter().enumerate();
    whole.map(|(group, s)| Sequence { group, prompt: &s[..1], response: &s[1..] }).collect()
}

fn largest_difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn scores_and_gradients_agree_with_peft() {
    for (name, machine) in GOLDEN.into_iter().flat_map(|n| Machine::all().into_iter().map(move |m| (n, m))) {
        for base in [language_model, reward_model] {
            let reference = Reference::open(&format!("lora_score/{name}"));
            let ids = ids_of(&reference);
            let mut world = World::new(name, Setup { machine, ..setup(name, DType::F32, 160) }, base);
            let (scores, _) = world.run(&sequences(&ids), false);
            for (i, ours) in scores.iter().enumerate() {
                let theirs = reference.f32s(&format!("seq{i}.score"))[0];
                assert!((ours - theirs).abs() < 1e-5, "{name} {machine:?} seq{i}: {ours}, peft has {theirs}");
            }
            let found = world.tensors("adapters.grads");
            assert_eq!(found.last().map(|(name, _)| name.as_str()), Some("base_model.model.score.weight"));
            for (tensor, ours) in found {
                let d = largest_difference(&ours, &reference.f32s(&format!("grad.{tensor}")));
                assert!(d < 1e-5, "{name} {machine:?} {tensor}: gradients differ by {d}");
            }
            world.step();
            for (tensor, ours) in world.tensors("adapters") {
                let (theirs, grad) =
                    (reference.f32s(&format!("adamw.{tensor}")), reference.f32s(&format!("grad.{tensor}")));
                for ((ours, theirs), grad) in ours.iter().zip(&theirs).zip(&grad) {
                    // The first step is the sign of a gradient, which rounding decides where there is hardly one.
                    let near = if grad.abs() > 1e-4 { 2e-5 } else { 2.1e-3 };
                    assert!((ours - theirs).abs() < near, "{name} {machine:?} {tensor}: {ours}, {theirs}");
                }
            }
        }
    }
}

#[test]
fn recomputation_and_cuts_change_no_bit_of_a_score_and_the_first_write_none_of_a_gradient() {
    for (name, dtype) in GOLDEN.into_iter().flat_map(|n| [DType::F32, DType::Bf16].map(|d| (n, d))) {
        let ids = ids_of(&Reference::open(&format!("lora_score/{name}")));
        let mut first: Option<(Vec<f32>, Vec<f32>)> = None;
        for (recompute, rows, add) in [
            (Recompute::None, 160, false),
            (Recompute::Cheap, 160, true),
            (Recompute::Layer, 160, false),
            (Recompute::None, 72, false),
        ] {
            let setup = Setup { recompute, ..setup(name, dtype, rows) };
            let got = World::new(name, setup, language_model).run(&sequences(&ids), add);
            let (scores, grads) = first.get_or_insert_with(|| got.clone());
            assert!(same_bits(scores, &got.0), "{name} {dtype:?} {recompute:?} {rows}: a score differs");
            assert!(rows < 160 || same_bits(grads, &got.1), "{name} {dtype:?} {recompute:?}: a gradient");
        }
    }
}
