//! The head and the sampler against f64 references: log-probabilities, entropies, gradients, draws, truncation.

use crate::both::{Rig, bend, check_close, matrix_len, normal, paths};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_cpu::Isa;
use plimsoll_cpu::layouts::{head_tile_elements, pack_elements};
use plimsoll_device::{Device, HEAD_TILE, HeadBackward, HeadOut, Logits, Matrix, Sample, Sampling};

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

/// Vocabularies below a tile, of one tile, and of several with a rest; more rows than a block.
const CASES: &[Case] = &[
    case(1, 15, 8, Bf16),
    case(5, 260, 16, F32),
    case(70, 512, 9, Bf16),
    case(3, 1301, 12, Bf16),
    case(600, 33, 6, F32),
    case(67, 1040, 7, F32),
    capped(1.5, case(5, 260, 16, F32)),
    capped(30.0, case(67, 1040, 7, F32)),
    capped(2.0, case(3, 1301, 12, Bf16)),
];

struct Head {
    b: Rig,
    case: Case,
    x: Vec<f32>,
    w: Vec<f32>,
    targets: Vec<u32>,
}

impl Head {
    fn new(isa: Isa, threads: usize, case: Case) -> Head {
        let Case { rows, vocab, k, e, .. } = case;
        let width = HEAD_TILE.min(vocab);
        let b = Rig::new(
            isa,
            threads,
            &[
                ("x", e, rows * k),
                ("w", e, matrix_len(vocab, k, e)),
                ("targets", U32, rows),
                ("keys", U32, 3 * rows),
                ("tokens", U32, rows),
                ("tile", F32, head_tile_elements(threads, rows, vocab, true) as usize),
                ("logprobs", F32, rows),
                ("lse", F32, rows),
                ("entropy", F32, rows),
                ("dlogprobs", F32, rows),
                ("dentropy", F32, rows),
                ("dtile", e, rows * width),
                ("pack", e, pack_elements(rows as u64, width as u64, k as u64, e) as usize),
                ("dx", F32, rows * k),
                ("grad", F32, matrix_len(vocab, k, e)),
                ("scratch", e, threads * 48 * width.next_multiple_of(2)),
            ],
        );
        let x = normal(1, rows * k, 1.0, e);
        let w = normal(2, vocab * k, 1.0, e);
        let targets: Vec<u32> = (0..rows).map(|r| ((r * 7919 + 13) % vocab) as u32).collect();
        b.set("x", &x);
        b.set_matrix("w", vocab, k, e, &w);
        b.set_u32("targets", &targets);
        b.set_u32("keys", &(0..3 * rows as u32).collect::<Vec<_>>());
        Head { b, case, x, w, targets }
    }

    fn matrix(&self) -> Matrix<'_> {
        self.b.matrix("w", self.case.vocab, self.case.k, self.case.e)
    }

    fn out(&self) -> HeadOut<'_> {
        HeadOut { logprobs: self.b.buf("logprobs"), lse: self.b.buf("lse"), entropy: self.b.buf("entropy") }
    }

    fn forward(&self, inv_t: f32) -> [Vec<f32>; 3] {
        self.b.dev.head(
            self.b.buf("x"),
            self.matrix(),
            self.b.buf("targets"),
            self.bent(inv_t),
            self.b.buf("tile"),
            self.out(),
        );
        ["logprobs", "lse", "entropy"].map(|name| self.b.get(name))
    }

    fn bent(&self, factor: f32) -> Logits {
        Logits { factor, cap: self.case.cap }
    }

    /// A logit as `bent` says, and its slope.
    fn bend(&self, x: f64) -> (f64, f64) {
        bend(self.case.cap, x)
    }

    fn sample(&self, how: Sampling) -> (Vec<u32>, [Vec<f32>; 3]) {
        let (b, tokens) = (&self.b, self.b.buf("tokens"));
        b.dev.sample(Sample {
            x: b.buf("x"),
            w: self.matrix(),
            keys: b.buf("keys"),
            how,
            logits: self.bent(1.0),
            tile: b.buf("tile"),
            tokens,
            out: self.out(),
        });
        (b.get_u32("tokens"), ["logprobs", "lse", "entropy"].map(|name| b.get(name)))
    }

    fn backward(&self, inv_t: f32, dlogp: &[f32], dh: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let b = &self.b;
        b.set("dlogprobs", dlogp);
        b.set("dentropy", dh);
        b.dev.zero(b.buf("grad"));
        let grad = b.matrix("grad", self.case.vocab, self.case.k, self.case.e);
        let args = HeadBackward {
            x: b.buf("x"),
            w: self.matrix(),
            targets: b.buf("targets"),
            logits: self.bent(inv_t),
            head_out: self.out(),
            dlogprobs: b.buf("dlogprobs"),
            dentropy: b.buf("dentropy"),
            tile: b.buf("tile"),
            dtile: b.buf("dtile"),
            pack: b.buf("pack"),
            dx: b.buf("dx"),
            grad: Some(grad),
            add: true,
        };
        // A frozen head has no gradient, needs no room to pack for it, and gives the same dx.
        b.dev.head_backward(HeadBackward { grad: None, pack: b.buf("pack").slice(0, 0), ..args });
        let alone = b.get("dx");
        assert!(b.get("grad").iter().all(|&x| x == 0.0), "the gradient of a frozen head");
        b.dev.head_backward(args);
        assert!(b.get("dx") == alone, "dx of a frozen head");
        let (grad, padding_is_zero) = b.get_matrix("grad", self.case.vocab, self.case.k, self.case.e);
        assert!(padding_is_zero, "padding of the gradient");
        (b.get("dx"), grad)
    }

    /// Logits of a row, scaled.
    fn logits(&self, row: usize, inv_t: f64, x: &[f64]) -> Vec<f64> {
        let k = self.case.k;
        let dot = |v: usize| (0..k).map(|i| x[row * k + i] * f64::from(self.w[v * k + i])).sum::<f64>();
        (0..self.case.vocab).map(|v| self.bend(dot(v)).0 * inv_t).collect()
    }

    fn x64(&self) -> Vec<f64> {
        self.x.iter().map(|&x| f64::from(x)).collect()
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

#[test]
fn logprobs_and_entropies_agree_with_f64() {
    for isa in paths() {
        for &case in CASES {
            for inv_t in [1.0, 0.5, 2.0] {
                let mut head = Head::new(isa, 2, case);
                let [logprobs, lse, entropy] = head.forward(inv_t);
                let x = head.x64();
                for row in 0..case.rows {
                    let (logp, want_lse, want_entropy) = softmax(&head.logits(row, f64::from(inv_t), &x));
                    let want = [logp[head.targets[row] as usize], want_lse, want_entropy];
                    let what = format!("{} V={} row {row}", isa.name(), case.vocab);
                    check_close(&[logprobs[row], lse[row], entropy[row]], &want, &[1.0; 3], 2e-5, &what);
                }
                head.b.check_guards();
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_rows_or_threads() {
    for isa in paths() {
        for e in [Bf16, F32] {
            let all = case(90, 1301, 12, e);
            let whole = Head::new(isa, 1, all).forward(0.7);
            let grads = |threads: usize| {
                let head = Head::new(isa, threads, all);
                head.forward(0.7);
                head.backward(0.7, &normal(8, 90, 1.0, F32), &normal(9, 90, 1.0, F32))
            };
            assert!(grads(1) == grads(3), "gradients on {}", isa.name());
            for rows in [1, 2, 9, 65] {
                let part = Head::new(isa, 2, Case { rows, ..all });
                for (part, whole) in part.forward(0.7).iter().zip(&whole) {
                    assert!(part[..] == whole[..rows], "{} of {rows} rows", isa.name());
                }
            }
        }
    }
}

#[test]
fn gradients_agree_with_the_formula_and_with_differences() {
    for isa in paths() {
        for &case in CASES.iter().filter(|c| c.rows < 100) {
            let head = Head::new(isa, 2, case);
            let inv_t = 0.8;
            head.forward(inv_t);
            let (dlogp, dh) = (normal(8, case.rows, 1.0, F32), normal(9, case.rows, 1.0, F32));
            let (dx, grad) = head.backward(inv_t, &dlogp, &dh);
            let (want_dx, want_grad, scale) = formula(&head, f64::from(inv_t), &dlogp, &dh);
            // bf16: the tile of gradients is rounded to 8 bits.
            let tolerance = if case.e == Bf16 { 6e-3 } else { 3e-5 };
            let what = format!("{} V={} {}", isa.name(), case.vocab, case.e.name());
            check_close(&dx, &want_dx, &vec![scale * 4.0; dx.len()], tolerance, &format!("dx {what}"));
            check_close(&grad, &want_grad, &vec![scale * 4.0; grad.len()], tolerance, &format!("dw {what}"));
            differences(&head, f64::from(inv_t), &dlogp, &dh, &want_dx);
        }
    }
}

/// dx and grad by the formula in f64, and the largest logit gradient.
fn formula(head: &Head, inv_t: f64, dlogp: &[f32], dh: &[f32]) -> (Vec<f64>, Vec<f64>, f64) {
    let Case { rows, vocab, k, .. } = head.case;
    let (x, mut dx, mut grad, mut largest) = (head.x64(), vec![0.0; rows * k], vec![0.0; vocab * k], 0.0f64);
    for row in 0..rows {
        let (logp, _, entropy) = softmax(&head.logits(row, inv_t, &x));
        for v in 0..vocab {
            let slope = head.bend((0..k).map(|i| x[row * k + i] * f64::from(head.w[v * k + i])).sum()).1;
            let delta = f64::from(u8::from(head.targets[row] as usize == v));
            let p = logp[v].exp();
            let d = slope
                * inv_t
                * (f64::from(dlogp[row]) * (delta - p) - f64::from(dh[row]) * p * (logp[v] + entropy));
            largest = largest.max(d.abs());
            for i in 0..k {
                dx[row * k + i] += d * f64::from(head.w[v * k + i]);
                grad[v * k + i] += d * x[row * k + i];
            }
        }
    }
    (dx, grad, largest)
}

/// The formula itself against central differences of dlogp logp + dH H in f64, for some inputs.
fn differences(head: &Head, inv_t: f64, dlogp: &[f32], dh: &[f32], dx: &[f64]) {
    let k = head.case.k;
    for at in (0..dx.len()).step_by(dx.len() / 3 + 1) {
        let row = at / k;
        let loss = |step: f64| {
            let mut x = head.x64();
            x[at] += step;
            let (logp, _, entropy) = softmax(&head.logits(row, inv_t, &x));
            f64::from(dlogp[row]) * logp[head.targets[row] as usize] + f64::from(dh[row]) * entropy
        };
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        assert!((slope - dx[at]).abs() < 1e-6 * (1.0 + slope.abs()), "dx[{at}] {} against {slope}", dx[at]);
    }
}

fn plain(temperature: f32) -> Sampling {
    Sampling { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 5 }
}

#[test]
fn what_is_recorded_equals_the_head_to_the_bit() {
    for isa in paths() {
        for &case in CASES {
            for how in [
                plain(1.0),
                plain(0.0),
                plain(0.6),
                Sampling { top_k: 7, top_p: 0.8, min_p: 0.05, ..plain(1.3) },
            ] {
                let mut head = Head::new(isa, 2, case);
                let (tokens, sampled) = head.sample(how);
                head.b.check_guards();
                assert!(tokens.iter().all(|&t| (t as usize) < case.vocab));
                head.b.set_u32("targets", &tokens);
                let scored = head.forward(how.inv_temperature());
                assert!(sampled == scored, "{} V={} {how:?}", isa.name(), case.vocab);
            }
        }
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_the_largest() {
    for isa in paths() {
        let case = case(4, 1301, 4, F32);
        let mut head = Head::new(isa, 2, case);
        // Rows of W repeat after 650: every logit occurs two or three times.
        head.w = (0..case.vocab * 4).map(|i| normal(3, 650 * 4, 1.0, F32)[i % (650 * 4)]).collect();
        head.b.set_matrix("w", case.vocab, 4, F32, &head.w);
        let x = head.x64();
        for (row, &token) in head.sample(plain(0.0)).0.iter().enumerate() {
            let logits = head.logits(row, 1.0, &x);
            let best = (0..650).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(token as usize, best, "{} row {row}", isa.name());
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_marked() {
    for isa in paths() {
        for how in [plain(1.0), plain(0.0), Sampling { top_k: 3, ..plain(1.0) }] {
            let case = case(5, 700, 6, Bf16);
            let mut head = Head::new(isa, 1, case);
            head.x[2 * 6] = f32::NAN;
            head.b.set("x", &head.x);
            let (tokens, [logprobs, lse, _]) = head.sample(how);
            for row in 0..5 {
                assert_eq!(
                    (tokens[row] == u32::MAX, logprobs[row].is_nan(), lse[row].is_nan()),
                    (row == 2, row == 2, row == 2)
                );
            }
        }
    }
}

/// One row whose logits are `logits`: K = 1 and x = 1; drawn `rows` times.
fn drawn(logits: &[f32], how: Sampling, rows: usize) -> Vec<u32> {
    let case = case(rows, logits.len(), 1, F32);
    let mut head = Head::new(Isa::detect(), 2, case);
    head.x = vec![1.0; rows];
    head.w = logits.to_vec();
    head.b.set("x", &head.x);
    head.b.set_matrix("w", logits.len(), 1, F32, logits);
    head.sample(how).0
}

#[test]
fn frequencies_follow_the_softmax() {
    for vocab in [4, 700] {
        let logits = normal(4, vocab, 2.0, F32);
        for how in [plain(1.0), plain(0.5), Sampling { top_p: 0.9999999, ..plain(1.0) }] {
            let rows = 20_000;
            let mut counts = vec![0.0; vocab];
            drawn(&logits, how, rows).iter().for_each(|&t| counts[t as usize] += 1.0);
            let scaled: Vec<f64> =
                logits.iter().map(|&x| f64::from(x) / f64::from(how.temperature)).collect();
            for (token, logp) in softmax(&scaled).0.into_iter().enumerate() {
                let (expected, n) = (logp.exp(), rows as f64);
                // Five standard errors, and one draw for the rarest.
                let bound = 5.0 * (expected * (1.0 - expected) / n).sqrt() + 1.0 / n;
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
        let mut seen = drawn(&logits, how, 4000);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, kept, "{how:?}");
    }
}

#[test]
fn draws_stay_inside_the_set_that_sorting_gives() {
    for (vocab, spread) in [(3001, 1.0), (3001, 6.0), (520, 3.0)] {
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
            let mut seen = drawn(&logits, how, 2000);
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
    for (rows, vocab) in [(1, 15), (70, 260), (300, 1301), (5, 700)] {
        let mut head = Head::new(Isa::detect(), 1, case(rows, vocab, 64, Bf16));
        head.forward(1.0);
        head.backward(1.0, &vec![1.0; rows], &vec![0.0; rows]);
        head.sample(Sampling { top_k: 3, ..plain(1.0) });
        for name in ["tile", "pack", "dtile", "scratch"] {
            assert!(
                head.b.share_written(name) > 0.99,
                "{name}: {} of {rows} x {vocab}",
                head.b.share_written(name)
            );
        }
    }
}

#[test]
fn a_draw_depends_on_its_key_alone() {
    let case = case(40, 1301, 12, Bf16);
    let head = Head::new(Isa::detect(), 2, case);
    let (tokens, _) = head.sample(plain(1.0));
    let part = Head::new(Isa::detect(), 1, Case { rows: 7, ..case });
    assert_eq!(part.sample(plain(1.0)).0, tokens[..7]);
    assert_ne!(head.sample(Sampling { seed: 6, ..plain(1.0) }).0, tokens);
}
