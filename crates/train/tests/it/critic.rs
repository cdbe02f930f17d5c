//! The critic's values and their gradient: finite differences through the value head and the whole body, what a value
//! may depend on, and bits that neither threads, nor recompute, nor the cut into micro-batches change.

use crate::common::{AnyDevice, Machine, Numbers, Setup, read, resident_gradients, same_bits};
use plimsoll_arch::{Caches, ParamKind};
use plimsoll_base::{Bytes, DType, Phase, PhaseSet};
use plimsoll_memory::{Arena, ArenaMap, Layout};
use plimsoll_model::{
    Activations, Decoder, Derivatives, Mode, ParamTable, Params, Pass, Recompute, activations_layout,
    backward, layers, load, rope, values,
};
use plimsoll_train::{OptimizerDType, PackLimits, Packer, Sequence, StateDTypes, Summing, optimizer_layout};

const MODELS: [&str; 3] = ["qwen3", "qwen2", "llama3_rope"];

/// A critic with its gradients in an arena of its own.
struct World {
    setup: Setup,
    table: ParamTable,
    arena: Arena,
    dev: AnyDevice,
}

impl World {
    fn new(setup: Setup) -> World {
        let model = setup.open();
        let (spec, dtype, pool) = (model.spec, setup.dtype, setup.target().pool);
        let table = ParamTable::critic(&spec, setup.machine.kind(), dtype);
        let mut layout = Layout::new();
        layout.arena("critic.weights", "test", pool, PhaseSet::RESIDENT, &[table.elements], dtype).unwrap();
        let states = StateDTypes {
            weights: dtype,
            grads: DType::F32,
            summing: Summing::default(),
            optimizer: OptimizerDType::F32,
        };
        let states = optimizer_layout("critic", &table, states, pool, Phase::Critic, false, 1).unwrap();
        layout.extend(resident_gradients(states));
        layout.extend(rope::layout(&spec, setup.positions, pool).unwrap());
        layout.extend(setup.machine.scratch(&spec, dtype, setup.threads, setup.pass));
        let mode = Mode::Critic(setup.recompute);
        layout.extend(activations_layout(&spec, dtype, setup.target(), mode, setup.pass).unwrap());
        let mut arena = Arena::new(ArenaMap::new(&layout, setup.guard));
        let dev = setup.machine.open(&mut arena, setup.threads);
        let (resident, _) = arena.split();
        let params = Params::bind(&spec, &table, dtype, resident.buf("critic.weights"));
        load(dev.as_dyn(), &model, &table, &params, 1, Bytes(4 << 20)).unwrap();
        rope::fill(dev.as_dyn(), &spec, resident.buf("rope.table"));
        World { setup, table, arena, dev }
    }

    /// Each response token's value, and the gradient of sum(weight value), flat as it is stored.
    fn run(
        &mut self,
        sequences: &[Sequence<'_>],
        weight: impl Fn(usize, usize) -> f32,
    ) -> (Vec<Vec<f32>>, Vec<f32>) {
        let (spec, dtype, dev) = (self.setup.open().spec, self.setup.dtype, self.dev.as_dyn());
        let (resident, mut overlay) = self.arena.split();
        let bind = |name| Params::bind(&spec, &self.table, dtype, resident.buf(name));
        let grads = bind("critic.grads");
        let critic =
            Decoder { spec, dtype, params: bind("critic.weights"), rope: resident.buf("rope.table") };
        let phase = overlay.enter(Phase::Critic);
        let acts = Activations::bind(&phase, Mode::Critic(self.setup.recompute), self.setup.pass);
        let mut packer = Packer::new(self.setup.pass, 0);
        let mut out: Vec<Vec<f32>> = sequences.iter().map(|s| vec![f32::NAN; s.response.len()]).collect();
        let mut first = 0;
        while first < sequences.len() {
            let batch = packer.pack(sequences, first).unwrap();
            let pass = Pass::upload(dev, acts, batch.index);
            layers(dev, &critic, &pass);
            values(dev, &critic, &pass);
            for (row, value) in batch.head.iter().zip(read(dev, pass.values())) {
                out[row.sequence as usize][row.token as usize] = value;
            }
            let d: Vec<f32> =
                batch.head.iter().map(|r| weight(r.sequence as usize, r.token as usize)).collect();
            backward(dev, &critic, &grads, first > 0, &pass, Derivatives::Values(&d));
            first = batch.sequences.end;
        }
        assert!(out.iter().flatten().all(|v| v.is_finite()), "every token has one value");
        (out, read(dev, grads.all))
    }

    fn weights(&mut self) -> Vec<f32> {
        read(self.dev.as_dyn(), self.arena.split().0.buf("critic.weights"))
    }

    fn set(&mut self, start: usize, weights: &[f32]) {
        self.dev.as_dyn().write_f32(self.arena.split().0.buf("critic.weights"), start, weights);
    }
}

struct Texts {
    prompts: Vec<Vec<u32>>,
    responses: Vec<Vec<u32>>,
}

const GROUP: usize = 3;

fn texts() -> Texts {
    let mut numbers = Numbers::new(3);
    let prompts = [19, 16, 3].map(|n| numbers.tokens(n, 260)).to_vec();
    let responses = [4, 1, 9, 7, 20, 2, 2, 14, 5].map(|n| numbers.tokens(n, 260)).to_vec();
    Texts { prompts, responses }
}

impl Texts {
    fn sequences(&self) -> Vec<Sequence<'_>> {
        let each = self.responses.iter().enumerate();
        each.map(|(i, response)| Sequence { group: i / GROUP, prompt: &self.prompts[i / GROUP], response })
            .collect()
    }
}

fn setup(name: &str, dtype: DType, rows: usize) -> Setup {
    let segments = PackLimits::segments_of(rows, 3, 9);
    let pass =
        PackLimits { micro_batch_tokens: rows, prompt_tokens: 64, segments, caches: Caches::paged(0) }.pass();
    Setup::new(name, dtype, pass)
}

/// Derivatives that differ from token to token.
fn weight(sequence: usize, token: usize) -> f32 {
    0.1 * ((sequence * 7 + token * 3) % 11) as f32 - 0.4
}

fn weighted(values: &[Vec<f32>]) -> f64 {
    let row = |(s, v): (usize, &Vec<f32>)| -> f64 {
        v.iter().enumerate().map(|(t, &v)| f64::from(weight(s, t)) * f64::from(v)).sum()
    };
    values.iter().enumerate().map(row).sum()
}

#[test]
fn finite_differences_agree_for_every_parameter() {
    let texts = texts();
    let all = texts.sequences();
    for (name, machine) in MODELS.into_iter().flat_map(|n| Machine::all().into_iter().map(move |m| (n, m))) {
        let mut world = World::new(Setup { machine, ..setup(name, DType::F32, 160) });
        let head = world.table.find(ParamKind::ValueHead, 0).expect("a critic has a value head").clone();
        // A head of a size that the differences of all parameters can be seen in.
        let large: Vec<f32> = (0..head.k).map(|i| if i % 3 == 0 { 0.4 } else { -0.3 }).collect();
        world.set(head.offset as usize, &large);
        let (_, grads) = world.run(&all, weight);
        let weights = world.weights();
        for param in world.table.params.clone() {
            let (start, len) = (param.offset as usize, param.elements as usize);
            let (grad, base) = (&grads[start..start + len], &weights[start..start + len]);
            let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            assert!(norm > 1e-3, "{name} {:?}: a gradient of norm {norm}", param.kind);
            let step = 2e-3;
            let mut at = |sign: f64| {
                let along = |(w, g): (&f32, &f32)| w + (sign * step * f64::from(*g) / norm) as f32;
                let moved: Vec<f32> = base.iter().zip(grad).map(along).collect();
                world.set(start, &moved);
                weighted(&world.run(&all, weight).0)
            };
            let got = (at(1.0) - at(-1.0)) / (2.0 * step);
            world.set(start, base);
            // Sums of values of about 64 tokens carry 1e-5 or so; the rest is curvature.
            assert!(
                (got - norm).abs() < 5e-3 + 6e-3 * norm,
                "{name} {machine:?} {:?}: {got}, norm {norm}",
                param.kind
            );
        }
    }
}

#[test]
fn a_value_depends_on_what_stands_before_its_token_alone() {
    let texts = texts();
    let mut world = World::new(setup("qwen3", DType::F32, 160));
    let (before, _) = world.run(&texts.sequences(), weight);
    let changed = |change: &dyn Fn(&mut Texts)| {
        let mut other = Texts { prompts: texts.prompts.clone(), responses: texts.responses.clone() };
        change(&mut other);
        World::new(setup("qwen3", DType::F32, 160)).run(&other.sequences(), weight).0
    };
    // The last token of a response is predicted and never read: not even its own value sees it.
    let last = changed(&|t| *t.responses[4].last_mut().unwrap() ^= 1);
    assert!(before.iter().zip(&last).all(|(a, b)| same_bits(a, b)));
    // A token in the middle moves the values after it and no others.
    let middle = changed(&|t| t.responses[4][10] ^= 1);
    assert!(same_bits(&before[4][..=10], &middle[4][..=10]) && !same_bits(&before[4], &middle[4]));
    assert!(before.iter().zip(&middle).enumerate().all(|(s, (a, b))| s == 4 || same_bits(a, b)));
    // The prompt moves every value of its group and of no other.
    let prompt = changed(&|t| t.prompts[1][0] ^= 1);
    for (s, (a, b)) in before.iter().zip(&prompt).enumerate() {
        assert_eq!(a.iter().zip(b).all(|(a, b)| a == b), s / GROUP != 1, "sequence {s}");
    }
}

#[test]
fn a_sequence_that_is_left_out_leaves_no_gradient() {
    let texts = texts();
    let all = texts.sequences();
    let mut world = World::new(setup("qwen2", DType::F32, 160));
    let (_, with) = world.run(&all, weight);
    let (_, without) = world.run(&all, |s, t| if s == 8 { 0.0 } else { weight(s, t) });
    let (_, alone) = world.run(&all[..8], weight);
    let largest = alone.iter().fold(0f32, |m, x| m.max(x.abs()));
    let d = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Rows of zeros are added: only the order of sums may differ.
    assert!(d(&without, &alone) < 1e-6 * largest, "{} of {largest}", d(&without, &alone));
    assert!(d(&with, &alone) > 1e-3 * largest);
}

#[test]
fn threads_recompute_and_cuts_change_no_value_and_threads_no_gradient() {
    let texts = texts();
    let all = texts.sequences();
    for (dtype, machine) in
        [DType::F32, DType::Bf16].into_iter().flat_map(|d| Machine::all().into_iter().map(move |m| (d, m)))
    {
        let mut first: Option<(Vec<Vec<f32>>, Vec<f32>)> = None;
        for (threads, recompute, rows) in [
            (1, Recompute::None, 160),
            (2, Recompute::None, 160),
            (2, Recompute::Cheap, 160),
            (1, Recompute::Layer, 160),
            (2, Recompute::None, 64),
        ] {
            let setup = Setup { machine, threads, recompute, ..setup("qwen3", dtype, rows) };
            let got = World::new(setup).run(&all, weight);
            let (values, grads) = first.get_or_insert_with(|| got.clone());
            let words = format!("{dtype:?} {machine:?} {threads} threads, {recompute:?}, {rows} rows");
            assert!(values.iter().zip(&got.0).all(|(a, b)| same_bits(a, b)), "{words}: a value differs");
            assert!(rows < 160 || same_bits(grads, &got.1), "{words}: a gradient differs");
        }
    }
}
