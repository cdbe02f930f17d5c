//! The head and the sampler against f64: log-probabilities, entropies, gradients, draws, truncation.
#![allow(dead_code)] // Each binary uses its part.

pub mod draws;
pub mod listed;
pub mod noise;
pub mod own;
pub mod whole;

use super::{Machine, Open, Rig, Sized, bend, bits, check_close, f64s, normal};
use plimsoll_arch::TokenRun;
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{
    DivergenceBackward, HeadBackward, HeadOut, KEY_WORDS, ListedBackward, Logits, Matrix, NO_MASS, RowBiases,
    RowMasks, Sample, Sampling,
};

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub rows: usize,
    pub vocab: usize,
    pub k: usize,
    pub e: DType,
    /// The soft cap on logits.
    pub cap: Option<f32>,
    /// Tokens without probability.
    pub suppressed: TokenRun,
}

pub const fn case(rows: usize, vocab: usize, k: usize, e: DType) -> Case {
    Case { rows, vocab, k, e, cap: None, suppressed: TokenRun { first: 0, count: 0 } }
}

const fn without(first: u32, count: u32, case: Case) -> Case {
    Case { suppressed: TokenRun { first, count }, ..case }
}

const fn capped(cap: f32, case: Case) -> Case {
    Case { cap: Some(cap), ..case }
}

/// Vocabularies below a tile or part of one, of one, and of several with a rest; odd ones; more rows than a block; and
/// shapes that cuBLASLt takes.
const CASES: &[Case] = &[
    case(1, 15, 8, Bf16),
    case(5, 260, 16, F32),
    case(70, 512, 9, Bf16),
    case(70, 4096, 9, Bf16),
    case(3, 1301, 12, Bf16),
    case(3, 9001, 12, F32),
    case(20, 20_008, 16, Bf16),
    case(2, 40_003, 8, F32),
    case(600, 33, 6, F32),
    case(67, 1040, 7, F32),
    capped(1.5, case(5, 260, 16, F32)),
    capped(30.0, case(67, 1040, 7, F32)),
    capped(30.0, case(70, 4096, 9, Bf16)),
    capped(2.0, case(3, 1301, 12, Bf16)),
    capped(3.0, case(20, 20_008, 16, Bf16)),
    // Over the edges of tiles and parts, one token, the first and the last ones; targets are others.
    without(254, 4, case(5, 300, 16, F32)),
    without(4094, 5, case(20, 20_008, 16, Bf16)),
    without(511, 1, case(20, 512, 16, Bf16)),
    without(1, 3, case(67, 1040, 7, F32)),
    without(1299, 2, case(3, 1301, 12, Bf16)),
];

pub const fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 5 }
}

#[derive(Clone)]
pub struct Inputs {
    pub case: Case,
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub targets: Vec<u32>,
}

impl Case {
    /// The buffers of a device of `threads`, but for its scratch.
    pub fn buffers<D: Machine>(&self, threads: usize) -> Vec<Sized<'static>> {
        let &Case { rows, vocab, k, e, .. } = self;
        let matrix = plimsoll_device::matrix_elements(D::KIND, vocab as u64, k as u64, e) as usize;
        let width = (D::KIND.head_gradient_tile)(1, vocab);
        let mut all = vec![
            ("x", e, rows * k),
            ("w", e, matrix),
            ("targets", U32, rows),
            ("tokens", U32, rows),
            ("keys", U32, rows * KEY_WORDS),
            ("tile", F32, (D::KIND.head_tile)(threads, rows, vocab, true) as usize),
            ("logprobs", F32, rows),
            ("lse", F32, rows),
            ("entropy", F32, rows),
            ("dlogprobs", F32, rows),
            ("dentropy", F32, rows),
            ("dtile", e, (D::KIND.head_gradient_tile)(rows, vocab) as usize),
            ("pack", e, (D::KIND.pack)(rows as u64, width, k as u64, e) as usize),
            ("dx", F32, rows * k),
            ("ids", U32, rows * self.listed()),
            ("listed", F32, rows * self.listed()),
            ("slopes", F32, rows * self.listed()),
            ("rest", F32, rows),
            ("dlisted", F32, rows),
            ("grad", F32, matrix),
        ];
        all.extend(self.own_buffers());
        all.extend(self.whole_buffers::<D>(threads));
        all
    }

    pub fn inputs(self) -> Inputs {
        let Case { rows, vocab, k, e, .. } = self;
        // Logits of a few units, as models have them.
        let scale = 2.0 / (k as f32).sqrt();
        let targets = (0..rows).map(|r| (r * 7919 % vocab) as u32).collect();
        Inputs { case: self, x: normal(1, rows * k, 1.0, e), w: normal(2, vocab * k, scale, e), targets }
    }
}

impl Inputs {
    /// Writes the numbers into a rig of the case's buffers.
    pub fn on<D: Machine>(&self, rig: Rig<D>) -> Head<D> {
        let Case { vocab, k, e, .. } = self.case;
        rig.set("x", &self.x);
        rig.set_matrix("w", vocab, k, e, &self.w);
        rig.set_u32("targets", &self.targets);
        Head { rig, case: self.case, biases: None, masks: None }
    }

    /// The head on each of a device's rigs.
    pub fn each<D: Machine>(&self, open: Open<D>) -> Vec<Head<D>> {
        open(&self.case.buffers::<D>(super::THREADS)).into_iter().map(|rig| self.on(rig)).collect()
    }

    fn dot(&self, x: &[f64], v: usize) -> f64 {
        x.iter().zip(&self.w[v * x.len()..]).map(|(x, &w)| x * f64::from(w)).sum()
    }

    /// Logits of a row `x`, scaled.
    fn logits(&self, x: &[f64], inv_t: f64) -> Vec<f64> {
        let of = |v| {
            let suppressed = self.case.suppressed.has(v as u32);
            if suppressed { f64::from(NO_MASS) } else { bend(self.case.cap, self.dot(x, v)).0 * inv_t }
        };
        (0..self.case.vocab).map(of).collect()
    }

    fn row(&self, row: usize) -> Vec<f64> {
        f64s(&self.x[row * self.case.k..][..self.case.k])
    }

    /// Log-probability of its target, log-sum-exp and entropy of each row.
    fn reference(&self, inv_t: f32) -> Vec<[f64; 3]> {
        let of_row = |(row, &target): (usize, &u32)| {
            let (logp, lse, entropy) = softmax(&self.logits(&self.row(row), inv_t.into()));
            [logp[target as usize], lse, entropy]
        };
        self.targets.iter().enumerate().map(of_row).collect()
    }

    /// dx and grad by the formula in f64, and the largest logit gradient.
    fn formula(&self, inv_t: f64, dlogp: &[f32], dh: &[f32]) -> (Vec<f64>, Vec<f64>, f64) {
        let Case { rows, vocab, k, cap, .. } = self.case;
        let (mut dx, mut grad, mut largest) = (vec![0.0; rows * k], vec![0.0; vocab * k], 0.0f64);
        for row in 0..rows {
            let x = self.row(row);
            let (logp, _, entropy) = softmax(&self.logits(&x, inv_t));
            for v in 0..vocab {
                let slope = bend(cap, self.dot(&x, v)).1;
                let delta = f64::from(u8::from(self.targets[row] as usize == v));
                let p = logp[v].exp();
                let d = slope
                    * inv_t
                    * (f64::from(dlogp[row]) * (delta - p) - f64::from(dh[row]) * p * (logp[v] + entropy));
                largest = largest.max(d.abs());
                for i in 0..k {
                    dx[row * k + i] += d * f64::from(self.w[v * k + i]);
                    grad[v * k + i] += d * x[i];
                }
            }
        }
        (dx, grad, largest)
    }

    /// Panics unless some of the formula's dx are central differences of dlogp logp + dH H in f64.
    fn check_differences(&self, inv_t: f64, dlogp: &[f32], dh: &[f32], dx: &[f64]) {
        for at in (0..dx.len()).step_by(dx.len() / 3 + 1) {
            let (row, i) = (at / self.case.k, at % self.case.k);
            let loss = |step: f64| {
                let mut x = self.row(row);
                x[i] += step;
                let (logp, _, entropy) = softmax(&self.logits(&x, inv_t));
                f64::from(dlogp[row]) * logp[self.targets[row] as usize] + f64::from(dh[row]) * entropy
            };
            let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
            assert!(
                (slope - dx[at]).abs() < 1e-6 * (1.0 + slope.abs()),
                "dx[{at}] {} against {slope}",
                dx[at]
            );
        }
    }
}

/// (log-probabilities, log-sum-exp, entropy) of logits.
fn softmax(logits: &[f64]) -> (Vec<f64>, f64, f64) {
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let lse = max + logits.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
    let logp: Vec<f64> = logits.iter().map(|x| x - lse).collect();
    let entropy = -logp.iter().map(|p| p.exp() * p).sum::<f64>();
    (logp, lse, entropy)
}

/// A case's numbers in a device's buffers.
pub struct Head<D> {
    pub rig: Rig<D>,
    case: Case,
    /// What single rows have of their own.
    biases: Option<RowBiases<'static>>,
    masks: Option<RowMasks<'static>>,
}

impl<D: Machine> Head<D> {
    fn matrix(&self, name: &str) -> Matrix<'static> {
        self.rig.matrix(name, self.case.vocab, self.case.k, self.case.e)
    }

    fn out(&self, rows: usize) -> HeadOut<'static> {
        let buf = |name: &str| self.rig.buf(name).slice(0, rows);
        HeadOut { logprobs: buf("logprobs"), lse: buf("lse"), entropy: buf("entropy") }
    }

    fn results(&self, rows: usize) -> [Vec<u32>; 3] {
        ["logprobs", "lse", "entropy"].map(|name| bits(&self.rig.get(name)[..rows]))
    }

    fn bent(&self, factor: f32) -> Logits<'static> {
        let Case { cap, suppressed, .. } = self.case;
        Logits { factor, cap, suppressed, biases: self.biases, masks: self.masks }
    }

    /// Returns the `bent` of some of the rows.
    fn bent_rows(&self, factor: f32, first: usize, rows: usize) -> Logits<'static> {
        let masks = self.masks.map(|of| of.of_rows(first, rows));
        Logits {
            masks,
            biases: self.biases.map(|of| of.of_rows(self.case.rows, first, rows)),
            ..self.bent(factor)
        }
    }

    /// Returns the bits of log-probabilities, log-sum-exps and entropies of rows `first..first + rows`.
    pub fn forward(&self, first: usize, rows: usize, inv_t: f32) -> [Vec<u32>; 3] {
        let (rig, k) = (&self.rig, self.case.k);
        let (x, targets) = (rig.buf("x").slice(first * k, rows * k), rig.buf("targets").slice(first, rows));
        let logits = self.bent_rows(inv_t, first, rows);
        rig.dev.head(x, self.matrix("w"), targets, logits, rig.buf("tile"), self.out(rows));
        self.results(rows)
    }

    /// Returns the tokens that rows `first..first + rows` draw, and their results.
    pub fn sample(&self, first: usize, rows: usize, how: Sampling) -> (Vec<u32>, [Vec<u32>; 3]) {
        let (rig, k) = (&self.rig, self.case.k);
        let key = |row: u32| [3 * row, 3 * row + 1, 3 * row + 2, how.seed as u32, (how.seed >> 32) as u32];
        rig.set_u32("keys", (0..self.case.rows as u32).map(key).collect::<Vec<_>>().as_flattened());
        let keys = rig.buf("keys").slice(first * KEY_WORDS, rows * KEY_WORDS);
        let x = rig.buf("x").slice(first * k, rows * k);
        let tokens = rig.buf("tokens").slice(0, rows);
        let (w, tile, out) = (self.matrix("w"), rig.buf("tile"), self.out(rows));
        let logits = self.bent_rows(1.0, first, rows);
        rig.dev.sample(Sample { x, w, keys, how, logits, tile, tokens, out });
        (rig.get_u32("tokens")[..rows].to_vec(), self.results(rows))
    }

    /// Returns dx and the gradient of the weights, after the forward pass.
    pub fn backward(&self, inv_t: f32, dlogp: &[f32], dh: &[f32]) -> (Vec<f32>, Vec<f32>) {
        self.backward_with(inv_t, dlogp, dh, None)
    }

    fn backward_with(
        &self,
        inv_t: f32,
        dlogp: &[f32],
        dh: &[f32],
        listed: Option<ListedBackward<'_>>,
    ) -> (Vec<f32>, Vec<f32>) {
        self.backward_of(inv_t, dlogp, dh, listed, None)
    }

    fn backward_of(
        &self,
        inv_t: f32,
        dlogp: &[f32],
        dh: &[f32],
        listed: Option<ListedBackward<'_>>,
        whole: Option<DivergenceBackward<'_>>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (rig, Case { rows, vocab, k, e, .. }) = (&self.rig, self.case);
        rig.set("dlogprobs", dlogp);
        rig.set("dentropy", dh);
        rig.dev.zero(rig.buf("grad"));
        let args = HeadBackward {
            x: rig.buf("x"),
            w: self.matrix("w"),
            targets: rig.buf("targets"),
            logits: self.bent(inv_t),
            head_out: self.out(rows),
            dlogprobs: rig.buf("dlogprobs"),
            dentropy: rig.buf("dentropy"),
            listed,
            whole,
            tile: rig.buf("tile"),
            dtile: rig.buf("dtile"),
            pack: rig.buf("pack"),
            dx: rig.buf("dx"),
            grad: Some(self.matrix("grad")),
            add: true,
        };
        // A frozen head has no gradient, needs no room to pack for it, and gives the same dx.
        rig.dev.head_backward(HeadBackward { grad: None, pack: rig.buf("pack").slice(0, 0), ..args });
        let alone = rig.get("dx");
        assert!(rig.get("grad").iter().all(|&x| x == 0.0), "the gradient of a frozen head");
        rig.dev.head_backward(args);
        assert!(rig.get("dx") == alone, "dx of a frozen head");
        let (grad, padding_is_zero) = rig.get_matrix("grad", vocab, k, e);
        assert!(padding_is_zero, "padding of the gradient");
        (alone, grad)
    }

    /// Panics unless buffers were written to the end after all of the head's operations.
    pub fn check_planned(&mut self, names: &[&str]) {
        let Case { rows, vocab, .. } = self.case;
        self.forward(0, rows, 1.0);
        self.backward(1.0, &vec![1.0; rows], &vec![0.0; rows]);
        self.sample(0, rows, Sampling { top_k: 3, ..plain(1.0) });
        for name in names {
            let share = self.rig.share_written(name);
            assert!(share > 0.99, "{name}: {share} of {rows} x {vocab}");
        }
    }
}

pub fn logprobs_and_entropies_agree_with_f64<D: Machine>(open: Open<D>) {
    for &case in CASES {
        let inputs = case.inputs();
        for inv_t in [1.0, 0.5, 2.0] {
            let want = inputs.reference(inv_t);
            for mut head in inputs.each(open) {
                let got = head.forward(0, case.rows, inv_t);
                for (row, want) in want.iter().enumerate() {
                    let got = [0, 1, 2].map(|i| f32::from_bits(got[i][row]));
                    check_close(&got, want, &[1.0; 3], 2e-5, &format!("{case:?} row {row}"));
                }
                head.rig.check_guards();
            }
        }
    }
}

/// Panics unless rows have the same bits in other company.
pub fn check_rows<D: Machine>(open: Open<D>, case: Case) {
    for head in case.inputs().each(open) {
        let all = head.forward(0, case.rows, 0.7);
        for (first, rows) in [(0, 1), (7, 1), (3, 2), (5, 9), (1, 65), (case.rows - 30, 30)] {
            for (part, all) in head.forward(first, rows, 0.7).iter().zip(&all) {
                assert!(part[..] == all[first..first + rows], "{rows} rows of {case:?}");
            }
        }
    }
}

pub fn bits_do_not_depend_on_the_rows_beside<D: Machine>(open: Open<D>) {
    for (vocab, k, e) in [(1301, 12, Bf16), (1301, 12, F32), (9001, 12, F32), (20_008, 16, Bf16)] {
        check_rows(open, case(90, vocab, k, e));
    }
}

pub fn gradients_agree_with_the_formula_and_with_differences<D: Machine>(open: Open<D>) {
    let inv_t = 0.8;
    for &case in CASES.iter().filter(|c| c.rows < 100) {
        let inputs = case.inputs();
        let (mut dlogp, mut dh) = (normal(8, case.rows, 1.0, F32), normal(9, case.rows, 1.0, F32));
        if case.rows > 2 {
            (dlogp[2], dh[2]) = (0.0, 0.0);
        }
        let (want_dx, want_grad, scale) = inputs.formula(inv_t.into(), &dlogp, &dh);
        inputs.check_differences(inv_t.into(), &dlogp, &dh, &want_dx);
        for mut head in inputs.each(open) {
            head.forward(0, case.rows, inv_t);
            let (dx, grad) = head.backward(inv_t, &dlogp, &dh);
            // bf16: the tile of gradients is rounded to 8 bits.
            let tolerance = 4.0 * scale * if case.e == Bf16 { 6e-3 } else { 3e-5 };
            super::close(&format!("dx of {case:?}"), &dx, &want_dx, tolerance);
            super::close(&format!("grad of {case:?}"), &grad, &want_grad, tolerance);
            head.rig.check_guards();
            assert!(head.backward(inv_t, &dlogp, &dh) == (dx, grad), "twice the same");
        }
    }
}
