//! The head and the sampler on a card, against f64: log-probabilities, entropies, gradients, draws, truncation.

use crate::both::{bend, bits, normal};
use crate::rig::{Card, on_card};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_cuda::layouts::{head_dtile_elements, head_tile_elements};
use plimsoll_device::{Device, HeadBackward, HeadOut, Logits, Matrix, Sample, Sampling};

#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    vocab: usize,
    k: usize,
    e: DType,
    /// What bends logits.
    cap: Option<f32>,
}

const fn case(rows: usize, vocab: usize, k: usize, e: DType) -> Case {
    Case { rows, vocab, k, e, cap: None }
}

const fn capped(cap: f32, case: Case) -> Case {
    Case { cap: Some(cap), ..case }
}

/// Vocabularies below a part, of one part, of several, of several tiles; odd ones; shapes that cuBLASLt takes.
const CASES: &[Case] = &[
    case(1, 15, 8, Bf16),
    case(5, 260, 16, F32),
    case(70, 4096, 9, Bf16),
    case(3, 9001, 12, F32),
    case(20, 20_008, 16, Bf16),
    case(2, 40_003, 8, F32),
    case(600, 33, 6, F32),
    capped(1.5, case(5, 260, 16, F32)),
    capped(30.0, case(70, 4096, 9, Bf16)),
    capped(3.0, case(20, 20_008, 16, Bf16)),
];

struct Head {
    gpu: Card,
    case: Case,
    x: Vec<f32>,
    w: Vec<f32>,
    targets: Vec<u32>,
}

impl Head {
    fn new(case: Case) -> Option<Head> {
        let Case { rows, vocab, k, e, .. } = case;
        let tile = head_tile_elements(rows, vocab, true) as usize;
        let gpu = on_card(&[
            ("x", e, rows * k),
            ("w", e, vocab * k),
            ("targets", U32, rows),
            ("tokens", U32, rows),
            ("keys", U32, rows * 3),
            ("tile", F32, tile),
            ("logprobs", F32, rows),
            ("lse", F32, rows),
            ("entropy", F32, rows),
            ("dlogprobs", F32, rows),
            ("dentropy", F32, rows),
            ("dtile", e, head_dtile_elements(rows, vocab) as usize),
            ("dx", F32, rows * k),
            ("grad", F32, vocab * k),
        ])?;
        // Logits of a few units, as models have them.
        let scale = 2.0 / (k as f32).sqrt();
        let (x, w) = (normal(1, rows * k, 1.0, e), normal(2, vocab * k, scale, e));
        let targets: Vec<u32> = (0..rows).map(|r| (r * 7919 % vocab) as u32).collect();
        gpu.set("x", &x);
        gpu.set("w", &w);
        gpu.set_u32("targets", &targets);
        gpu.set_u32("keys", &(0..3 * rows as u32).collect::<Vec<_>>());
        Some(Head { gpu, case, x, w, targets })
    }

    fn matrix(&self) -> Matrix<'static> {
        self.gpu.rows("w", self.case.vocab, self.case.k)
    }

    fn out(&self, rows: usize) -> HeadOut<'static> {
        let buf = |name: &str| self.gpu.buf(name).slice(0, rows);
        HeadOut { logprobs: buf("logprobs"), lse: buf("lse"), entropy: buf("entropy") }
    }

    fn results(&self, rows: usize) -> [Vec<u32>; 3] {
        ["logprobs", "lse", "entropy"].map(|name| bits(&self.gpu.get(name)[..rows]))
    }

    /// Rows `first..first + rows`.
    fn forward(&self, first: usize, rows: usize, inv_t: f32) -> [Vec<u32>; 3] {
        let (gpu, k) = (&self.gpu, self.case.k);
        let (x, targets) = (gpu.buf("x").slice(first * k, rows * k), gpu.buf("targets").slice(first, rows));
        gpu.dev.head(x, self.matrix(), targets, self.bent(inv_t), gpu.buf("tile"), self.out(rows));
        self.results(rows)
    }

    fn bent(&self, factor: f32) -> Logits {
        Logits { factor, cap: self.case.cap }
    }

    /// A logit as `bent` says, and its slope.
    fn bend(&self, x: f64) -> (f64, f64) {
        bend(self.case.cap, x)
    }

    fn sample(&self, first: usize, rows: usize, how: Sampling) -> (Vec<u32>, [Vec<u32>; 3]) {
        let (gpu, k) = (&self.gpu, self.case.k);
        let (x, keys) = (gpu.buf("x").slice(first * k, rows * k), gpu.buf("keys").slice(first * 3, rows * 3));
        let tokens = gpu.buf("tokens").slice(0, rows);
        let (w, tile, out) = (self.matrix(), gpu.buf("tile"), self.out(rows));
        gpu.dev.sample(Sample { x, w, keys, how, logits: self.bent(1.0), tile, tokens, out });
        (gpu.get_u32("tokens")[..rows].to_vec(), self.results(rows))
    }

    fn backward(&self, inv_t: f32, dlogp: &[f32], dh: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (gpu, Case { rows, vocab, k, .. }) = (&self.gpu, self.case);
        gpu.set("dlogprobs", dlogp);
        gpu.set("dentropy", dh);
        gpu.dev.zero(gpu.buf("grad"));
        let args = HeadBackward {
            x: gpu.buf("x"),
            w: self.matrix(),
            targets: gpu.buf("targets"),
            logits: self.bent(inv_t),
            head_out: self.out(rows),
            dlogprobs: gpu.buf("dlogprobs"),
            dentropy: gpu.buf("dentropy"),
            tile: gpu.buf("tile"),
            dtile: gpu.buf("dtile"),
            pack: gpu.buf("x").slice(0, 0),
            dx: gpu.buf("dx"),
            grad: Some(gpu.rows("grad", vocab, k)),
            add: true,
        };
        // A frozen head has no gradient, and the same dx.
        gpu.dev.head_backward(HeadBackward { grad: None, ..args });
        let alone = gpu.get("dx");
        assert!(gpu.get("grad").iter().all(|&x| x == 0.0), "the gradient of a frozen head");
        gpu.dev.head_backward(args);
        assert!(gpu.get("dx") == alone, "dx of a frozen head");
        (gpu.get("dx"), gpu.get("grad"))
    }

    /// Logits of a row, scaled.
    fn logits(&self, row: usize, inv_t: f64) -> Vec<f64> {
        let x = &self.x[row * self.case.k..][..self.case.k];
        let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>();
        self.w.chunks(self.case.k).map(|w| self.bend(dot(w)).0 * inv_t).collect()
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

fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 5 }
}

#[test]
fn logprobs_and_entropies_agree_with_f64() {
    for &case in CASES {
        for inv_t in [1.0, 2.0] {
            let Some(mut head) = Head::new(case) else { return };
            let got = head.forward(0, case.rows, inv_t);
            for row in 0..case.rows {
                let (logp, lse, entropy) = softmax(&head.logits(row, f64::from(inv_t)));
                let want = [logp[head.targets[row] as usize], lse, entropy];
                for (got, want) in got.iter().zip(want) {
                    let got = f64::from(f32::from_bits(got[row]));
                    assert!((got - want).abs() < 2e-5, "V = {} row {row}: {got}, wanted {want}", case.vocab);
                }
            }
            head.gpu.check_guards();
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_rows_beside() {
    // The last has more rows than a chunk of logits.
    for case in [case(90, 9001, 12, F32), case(90, 20_008, 16, Bf16), case(1100, 20_008, 16, Bf16)] {
        let Some(head) = Head::new(case) else { return };
        let all = head.forward(0, case.rows, 0.7);
        for (first, rows) in [(0, 1), (7, 1), (3, 2), (5, 9), (1, 65), (case.rows - 30, 30)] {
            for (part, all) in head.forward(first, rows, 0.7).iter().zip(&all) {
                assert!(part[..] == all[first..first + rows], "{rows} rows of V = {}", case.vocab);
            }
        }
    }
}

#[test]
fn what_is_recorded_equals_the_head_to_the_bit() {
    for &case in CASES {
        for how in
            [plain(1.0), plain(0.0), plain(0.6), Sampling { top_k: 7, top_p: 0.8, min_p: 0.05, ..plain(1.3) }]
        {
            let Some(mut head) = Head::new(case) else { return };
            let (tokens, sampled) = head.sample(0, case.rows, how);
            head.gpu.check_guards();
            assert!(tokens.iter().all(|&t| (t as usize) < case.vocab), "V = {} {how:?}", case.vocab);
            head.gpu.set_u32("targets", &tokens);
            assert!(
                sampled == head.forward(0, case.rows, how.inv_temperature()),
                "V = {} {how:?}",
                case.vocab
            );
        }
    }
}

#[test]
fn a_draw_depends_on_its_key_alone() {
    for how in [plain(1.0), Sampling { top_p: 0.9, ..plain(1.0) }] {
        let Some(head) = Head::new(case(700, 20_008, 16, Bf16)) else { return };
        let (tokens, _) = head.sample(0, 700, how);
        for (first, rows) in [(0, 7), (33, 1), (500, 200)] {
            assert_eq!(head.sample(first, rows, how).0, tokens[first..first + rows], "{how:?}");
        }
        assert_ne!(head.sample(0, 700, Sampling { seed: 6, ..how }).0, tokens);
    }
}

#[test]
fn gradients_agree_with_the_formula() {
    for &case in CASES.iter().filter(|c| c.rows < 100) {
        let Some(mut head) = Head::new(case) else { return };
        let inv_t = 0.8;
        head.forward(0, case.rows, inv_t);
        let (mut dlogp, mut dh) = (normal(8, case.rows, 1.0, F32), normal(9, case.rows, 1.0, F32));
        if case.rows > 2 {
            (dlogp[2], dh[2]) = (0.0, 0.0);
        }
        let (dx, grad) = head.backward(inv_t, &dlogp, &dh);
        let (want_dx, want_grad, scale) = formula(&head, f64::from(inv_t), &dlogp, &dh);
        // bf16: the tile of gradients is rounded to 8 bits.
        let tolerance = 4.0 * scale * if case.e == Bf16 { 6e-3 } else { 3e-5 };
        for (what, got, want) in [("dx", &dx, &want_dx), ("grad", &grad, &want_grad)] {
            for (i, (&got, want)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(got) - want).abs();
                assert!(error <= tolerance, "{what}[{i}] of V = {}: {got}, wanted {want}", case.vocab);
            }
        }
        head.gpu.check_guards();
        assert!(head.backward(inv_t, &dlogp, &dh) == (dx, grad), "twice the same");
    }
}

/// dx and grad by the formula in f64, and the largest logit gradient.
fn formula(head: &Head, inv_t: f64, dlogp: &[f32], dh: &[f32]) -> (Vec<f64>, Vec<f64>, f64) {
    let Case { rows, vocab, k, .. } = head.case;
    let (mut dx, mut grad, mut largest) = (vec![0.0; rows * k], vec![0.0; vocab * k], 0.0f64);
    for row in 0..rows {
        let (logp, _, entropy) = softmax(&head.logits(row, inv_t));
        for v in 0..vocab {
            let dot = (0..k).map(|i| f64::from(head.x[row * k + i]) * f64::from(head.w[v * k + i])).sum();
            let slope = head.bend(dot).1;
            let delta = f64::from(u8::from(head.targets[row] as usize == v));
            let p = logp[v].exp();
            let d = slope
                * inv_t
                * (f64::from(dlogp[row]) * (delta - p) - f64::from(dh[row]) * p * (logp[v] + entropy));
            largest = largest.max(d.abs());
            for i in 0..k {
                dx[row * k + i] += d * f64::from(head.w[v * k + i]);
                grad[v * k + i] += d * f64::from(head.x[row * k + i]);
            }
        }
    }
    (dx, grad, largest)
}

#[test]
fn greedy_takes_the_lowest_id_of_the_largest() {
    let case = case(4, 20_001, 4, F32);
    let Some(mut head) = Head::new(case) else { return };
    // Rows of W repeat after 650: every logit occurs about thirty times.
    let few = normal(3, 650 * 4, 1.0, F32);
    head.w = few.iter().copied().cycle().take(case.vocab * 4).collect();
    head.gpu.set("w", &head.w);
    for (row, &token) in head.sample(0, 4, plain(0.0)).0.iter().enumerate() {
        let logits = head.logits(row, 1.0);
        let best = (0..650).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(token as usize, best, "row {row}");
    }
}

#[test]
fn rows_that_are_not_finite_are_marked() {
    for how in [plain(1.0), plain(0.0), Sampling { top_k: 3, ..plain(1.0) }] {
        for bad in [f32::NAN, f32::INFINITY] {
            let case = case(5, 9000, 8, Bf16);
            let Some(mut head) = Head::new(case) else { return };
            head.x[2 * 8] = bad;
            head.gpu.set("x", &head.x);
            let (tokens, [logprobs, lse, _]) = head.sample(0, 5, how);
            for row in 0..5 {
                let nan = |x: &[u32]| f32::from_bits(x[row]).is_nan();
                assert_eq!(
                    (tokens[row] == u32::MAX, nan(&logprobs), nan(&lse)),
                    (row == 2, row == 2, row == 2)
                );
            }
        }
    }
}

/// One row whose logits are `logits`: K = 1 and x = 1; drawn `rows` times.
fn drawn(logits: &[f32], how: Sampling, rows: usize) -> Option<Vec<u32>> {
    let head = Head::new(case(rows, logits.len(), 1, F32))?;
    head.gpu.set("x", &vec![1.0; rows]);
    head.gpu.set("w", logits);
    Some(head.sample(0, rows, how).0)
}

#[test]
fn frequencies_follow_the_softmax() {
    for vocab in [4, 700, 9003] {
        let logits = normal(4, vocab, 2.0, F32);
        for how in [plain(1.0), plain(0.5), Sampling { top_p: 0.9999999, ..plain(1.0) }] {
            let rows = 20_000;
            let Some(tokens) = drawn(&logits, how, rows) else { return };
            let mut counts = vec![0.0; vocab];
            tokens.iter().for_each(|&t| counts[t as usize] += 1.0);
            let scaled: Vec<f64> =
                logits.iter().map(|&x| f64::from(x) / f64::from(how.temperature)).collect();
            for (token, logp) in softmax(&scaled).0.into_iter().enumerate() {
                let (expected, n) = (logp.exp(), rows as f64);
                // Six standard errors (10,000 tokens are looked at), and two draws for the rarest.
                let bound = 6.0 * (expected * (1.0 - expected) / n).sqrt() + 2.0 / n;
                let got = counts[token] / n;
                assert!((got - expected).abs() < bound, "{how:?} token {token}: {got} of {expected}");
            }
        }
    }
}

#[test]
fn truncation_keeps_the_sets_that_the_definitions_name() {
    let logits = [1.0f32, 3.0, 3.0, 0.0, 2.5, -1.0, 2.9, -30.0];
    // (top_k, top_p, min_p, kept): probabilities are about .043 .321 .321 .016 .195 .006 .290 0 before normalisation.
    let cases: &[(u32, f32, f32, &[u32])] = &[
        (1, 1.0, 0.0, &[1, 2]), // equal logits at the edge of top-k stay
        (2, 1.0, 0.0, &[1, 2]),
        (3, 1.0, 0.0, &[1, 2, 6]),
        (100, 1.0, 0.0, &[0, 1, 2, 3, 4, 5, 6]),
        (0, 0.1, 0.0, &[1]), // equal masses at the edge of top-p: the first
        (0, 0.3, 0.0, &[1, 2]),
        (0, 0.7, 0.0, &[1, 2, 6]),
        (0, 0.9, 0.0, &[1, 2, 4, 6]),
        (2, 0.9, 0.0, &[1, 2]),
        (4, 0.9, 0.0, &[1, 2, 4, 6]), // of the four: .285 .285 .258 .173
        (4, 0.8, 0.0, &[1, 2, 6]),
        (0, 1.0, 0.5, &[1, 2, 4, 6]),
        (0, 1.0, 1.0, &[1, 2]),
        (3, 0.99, 0.95, &[1, 2]),
    ];
    for &(top_k, top_p, min_p, kept) in cases {
        let how = Sampling { top_k, top_p, min_p, ..plain(1.0) };
        let Some(mut seen) = drawn(&logits, how, 4000) else { return };
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, kept, "{how:?}");
    }
}

#[test]
fn draws_stay_inside_the_set_that_sorting_gives() {
    for (vocab, spread) in [(3001, 1.0), (3001, 6.0), (520, 3.0), (20_004, 2.0)] {
        let logits = normal(11, vocab, spread, F32);
        for (top_k, top_p, min_p) in [
            (50, 1.0, 0.0),
            (2000, 1.0, 0.0),
            (0, 0.6, 0.0),
            (50, 0.9, 0.0),
            (0, 1.0, 0.02),
            (300, 0.95, 0.01),
        ] {
            let how = Sampling { top_k, top_p, min_p, ..plain(0.9) };
            let kept = kept_by_sorting(&logits, &how);
            let Some(mut seen) = drawn(&logits, how, 2000) else { return };
            assert!(seen.iter().all(|token| kept.contains(token)), "{how:?} of {vocab}");
            seen.sort_unstable();
            seen.dedup();
            // Every token of one per cent or more of the kept mass shows up in 2,000 draws.
            let mass = |t: u32| (f64::from(logits[t as usize]) / 0.9).exp();
            let total: f64 = kept.iter().map(|&t| mass(t)).sum();
            assert!(kept.iter().all(|t| mass(*t) < 0.01 * total || seen.contains(t)), "{how:?} of {vocab}");
        }
    }
}

/// The definition: sort, cut by number, by cumulated mass, by share of the largest.
fn kept_by_sorting(logits: &[f32], how: &Sampling) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    if how.top_k > 0 {
        order.truncate(how.top_k as usize);
    }
    let mass = |t: u32| (f64::from(logits[t as usize]) / f64::from(how.temperature)).exp();
    let (total, mut before) = (order.iter().map(|&t| mass(t)).sum::<f64>(), 0.0);
    let largest = mass(order[0]);
    order.retain(|&t| {
        let keep = before < f64::from(how.top_p) * total && mass(t) >= f64::from(how.min_p) * largest;
        before += mass(t);
        keep
    });
    order
}

#[test]
fn planned_buffers_are_used_to_the_end() {
    for (rows, vocab) in [(1, 15), (70, 264), (5, 20_008)] {
        // Rows of no whole 16-byte units, so that logits are written on Hopper too.
        let Some(mut head) = Head::new(case(rows, vocab, 60, Bf16)) else { return };
        head.forward(0, rows, 1.0);
        head.backward(1.0, &vec![1.0; rows], &vec![0.0; rows]);
        head.sample(0, rows, Sampling { top_k: 3, ..plain(1.0) });
        for name in ["tile", "dtile"] {
            let share = head.gpu.share_written(name);
            assert!(share > 0.99, "{name}: {share} of {rows} x {vocab}");
        }
    }
}
