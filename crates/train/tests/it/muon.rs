//! Muon's steps against the formula in f64, the formula against PyTorch's, and what it leaves to AdamW.

use crate::adamw::write;
use crate::common::{Harness, Machine, Reference, Setup, dtypes, tensors};
use plimsoll_algo::update::{MuonOptions, MuonRate, UpdateOptions};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{DType, Phase, PhaseSet};
use plimsoll_memory::Layout;
use plimsoll_model::PassLimits;
use plimsoll_train::{MuonBufs, Optimizer, Share, muon_layout};
use serde_json::Value;

const PASS: PassLimits = PassLimits {
    rows: 320,
    head_rows: 320,
    segments: 6,
    table_entries: 64,
    copies: 3,
    caches: Caches::paged(32).and(Cache::State, 18),
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
};
const LR: f64 = 0.02;
/// Models with tensors stored as one, published as one, of experts, and of linear attention.
const MODELS: [&str; 4] = ["qwen3", "phi3", "qwen3_moe", "qwen3_5"];
/// Lists what of the gradient each step has.
const STEPS: [f32; 3] = [1.0, -0.5, 2.0];

/// A tensor in f64, as PyTorch's Muon updates it.
struct Formula {
    rows: usize,
    cols: usize,
    weight: Vec<f64>,
    momentum: Vec<f64>,
}

impl Formula {
    fn new(rows: usize, cols: usize, weight: &[f64]) -> Formula {
        assert_eq!(weight.len(), rows * cols);
        Formula { rows, cols, weight: weight.to_vec(), momentum: vec![0.0; rows * cols] }
    }

    fn step(&mut self, grad: &[f64], how: MuonOptions) {
        let (beta, rest) = (how.momentum, 1.0 - how.momentum);
        self.momentum.iter_mut().zip(grad).for_each(|(m, g)| *m = beta * *m + rest * g);
        let mixed = |(m, g): (&f64, &f64)| if how.nesterov { beta * m + rest * g } else { *m };
        let update: Vec<f64> = self.momentum.iter().zip(grad).map(mixed).collect();
        let direction = orthogonalized(&update, self.rows, self.cols, how);
        let rate = how.lr * how.rate.factor(self.rows, self.cols);
        let keep = 1.0 - how.lr * how.weight_decay;
        self.weight.iter_mut().zip(&direction).for_each(|(w, o)| *w = *w * keep - rate * o);
    }
}

/// a [n, k] times b, or its transpose, [k, m].
fn product(a: &[f64], b: &[f64], [n, k, m]: [usize; 3], turned: bool) -> Vec<f64> {
    let of = |x: usize, j: usize| if turned { b[j * k + x] } else { b[x * m + j] };
    let element = |i: usize| (0..k).map(|x| a[i / m * k + x] * of(x, i % m)).sum();
    (0..n * m).map(element).collect()
}

fn orthogonalized(x: &[f64], rows: usize, cols: usize, how: MuonOptions) -> Vec<f64> {
    let flip = |x: &[f64], rows: usize, cols: usize| -> Vec<f64> {
        (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
    };
    if rows > cols {
        return flip(&orthogonalized(&flip(x, rows, cols), cols, rows, how), cols, rows);
    }
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-7);
    let mut x: Vec<f64> = x.iter().map(|x| x / norm).collect();
    let [a, b, c] = how.coefficients;
    for _ in 0..how.iterations {
        let gram = product(&x, &x, [rows, cols, rows], true);
        let square = product(&gram, &gram, [rows; 3], false);
        let sum: Vec<f64> = gram.iter().zip(&square).map(|(g, s)| b * g + c * s).collect();
        let more = product(&sum, &x, [rows, rows, cols], false);
        x.iter_mut().zip(&more).for_each(|(x, more)| *x = a * *x + more);
    }
    x
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/muon.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn rate_of(case: &Value) -> MuonRate {
    let name = case["adjust_lr_fn"].as_str();
    MuonRate::ALL.into_iter().find(|rate| Some(rate.name()) == name).expect("a rate's name")
}

#[test]
fn the_formula_is_pytorch_s_but_for_its_bf16() {
    let golden = golden();
    for case in golden["cases"].as_array().expect("cases") {
        let [rows, cols] = ["rows", "cols"].map(|name| case[name].as_u64().unwrap() as usize);
        let how = MuonOptions {
            lr: golden["lr"].as_f64().unwrap(),
            momentum: golden["momentum"].as_f64().unwrap(),
            nesterov: case["nesterov"].as_bool().unwrap(),
            weight_decay: case["weight_decay"].as_f64().unwrap(),
            rate: rate_of(case),
            ..MuonOptions::default()
        };
        let mut formula = Formula::new(rows, cols, &numbers(&case["weight"]));
        for grad in case["grads"].as_array().unwrap() {
            formula.step(&numbers(grad), how);
        }
        let far = |other: &str| {
            let other = numbers(&case[other]);
            formula.weight.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        };
        assert!(far("formula") < 1e-12, "[{rows}, {cols}]: {}", far("formula"));
        // Three steps of 0.02 times about one, each with the 8 bits of bf16 in five iterations.
        assert!(far("torch") < 1e-3, "[{rows}, {cols}]: {}", far("torch"));
    }
}

fn how(muon: Option<MuonOptions>) -> UpdateOptions {
    let (betas, epsilon) = ((0.9, 0.95), 1e-8);
    UpdateOptions { lr: 1e-3, betas, epsilon, weight_decay: 0.01, grad_clip: 1.0, seed: 0, muon }
}

/// Returns the tensors after the steps, by Muon and AdamW or by AdamW alone, and what their gradients are scaled by.
fn updated(name: &str, machine: Machine, dtype: DType, threads: usize, muon: Option<MuonOptions>) -> Run {
    let reference = Reference::open(name);
    let setup = Setup { machine, threads, ..Setup::new(name, dtype, PASS) };
    let at = (setup.target().pool, PhaseSet::of(&[Phase::Update]));
    let model = setup.open();
    let table = plimsoll_model::ParamTable::new(&model.spec, machine.kind(), dtype);
    let layout = muon_layout("actor", &table, [dtype, dtypes(dtype).grads], at, 1).unwrap();
    let mut h = Harness::new(setup, if muon.is_some() { layout } else { Layout::new() });
    let mut parts = h.parts();
    let (dev, params) = (parts.dev, &parts.decoder.params);
    let mut optimizer = Optimizer::new(dev, parts.table, params.all, parts.resident, "actor", Share::WHOLE);
    if muon.is_some() {
        optimizer = optimizer.with_muon(parts.table, dtype);
    }
    let before = tensors(dev, parts.table, params);
    let mut scales = Vec::new();
    for factor in STEPS {
        let scaled =
            |tensor: &str| reference.f32s(&format!("grad.{tensor}")).iter().map(|g| g * factor).collect();
        write(dev, parts.table, &parts.grads, scaled);
        let norm = optimizer.grad_norm(dev, parts.grads.all);
        scales.push(f64::from(how(muon).grad_scale(norm)));
        let phase = parts.overlay.enter(Phase::Update);
        if let Some(bufs) = MuonBufs::bind(&phase, "actor") {
            optimizer.add_momentum(dev, parts.grads.all, how(muon), norm);
            optimizer.step_matrices(dev, params.all, parts.grads.all, bufs, how(muon));
        }
        optimizer.update(dev, params.all, parts.grads.all, None, how(muon), norm);
    }
    Run { before, after: tensors(dev, parts.table, params), scales, reference }
}

struct Run {
    before: Vec<(String, Vec<f32>)>,
    after: Vec<(String, Vec<f32>)>,
    scales: Vec<f64>,
    reference: Reference,
}

/// Returns the columns of a tensor that Muon updates: a matrix of a layer.
fn columns(table: &plimsoll_model::ParamTable, tensor: &str) -> Option<usize> {
    let has = |param: &&plimsoll_model::Param| param.parts.iter().any(|part| part.name == tensor);
    let param = table.params.iter().find(has).expect("a tensor of the table");
    (param.is_of_layer() && !param.is_vector()).then_some(param.k as usize)
}

#[test]
fn steps_of_matrices_are_those_of_the_formula_and_the_rest_is_adamw_s() {
    let muon = MuonOptions { lr: LR, weight_decay: 0.1, ..MuonOptions::default() };
    for name in MODELS {
        for machine in Machine::all() {
            let ours = updated(name, machine, DType::F32, 2, Some(muon));
            let adamw = updated(name, machine, DType::F32, 2, None);
            let model = Setup::new(name, DType::F32, PASS).open();
            let table = plimsoll_model::ParamTable::new(&model.spec, machine.kind(), DType::F32);
            let mut matrices = 0;
            for (i, (tensor, after)) in ours.after.iter().enumerate() {
                let Some(cols) = columns(&table, tensor) else {
                    assert!(after == &adamw.after[i].1, "{name} {machine:?} {tensor} is AdamW's");
                    continue;
                };
                matrices += 1;
                let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
                let mut formula = Formula::new(after.len() / cols, cols, &wide(&ours.before[i].1));
                let grad = wide(&ours.reference.f32s(&format!("grad.{tensor}")));
                for (factor, scale) in STEPS.iter().zip(&ours.scales) {
                    let grad: Vec<f64> = grad.iter().map(|g| g * f64::from(*factor) * scale).collect();
                    formula.step(&grad, muon);
                }
                let far = after.iter().zip(&formula.weight).map(|(a, b)| (f64::from(*a) - b).abs());
                let far = far.fold(0.0, f64::max);
                // An iteration multiplies errors of small singular values by up to 3.4: 500 times f32's 6e-8 in five,
                // of elements below one, times a rate of about 0.04, in three steps.
                assert!(far < 5e-6, "{name} {machine:?} {tensor}: {far}");
            }
            assert!(matrices > 0, "{name}");
        }
    }
}

#[test]
fn threads_and_repetition_change_no_bit_and_bf16_weights_round_once() {
    let muon = MuonOptions { lr: LR, ..MuonOptions::default() };
    for name in ["qwen3", "qwen3_moe"] {
        for dtype in [DType::F32, DType::Bf16] {
            let machine = Machine::detect();
            let one = updated(name, machine, dtype, 1, Some(muon));
            let two = updated(name, machine, dtype, 2, Some(muon));
            assert!(one.after == two.after, "{name} {dtype:?}");
            let moved = one.before.iter().zip(&one.after).filter(|(a, b)| a != b).count();
            assert!(moved > one.before.len() / 2, "{name} {dtype:?}");
        }
    }
}
