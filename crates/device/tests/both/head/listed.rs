//! Several tokens of a head row against f64: the most likely ones, and gradients of a number that follows from them.

use super::{CASES, Case, Head, Inputs, bend, case, softmax};
use crate::both::{Machine, Open, bits, check_close, close, f64s, normal};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_device::{HeadSide, ListedBackward, ListedTokens};

/// Tokens of a row's list, of vocabularies that have as many: more than a panel of the CPU's.
const LISTED: usize = 33;

impl Case {
    pub fn listed(&self) -> usize {
        LISTED.min(self.vocab)
    }
}

impl<D: Machine> Head<D> {
    fn list(&self, rows: usize) -> ListedTokens<'static> {
        let buf = |name: &str| self.rig.buf(name).slice(0, rows * self.case.listed());
        ListedTokens { ids: buf("ids"), logprobs: buf("listed") }
    }

    /// Returns the most likely tokens of rows `first..first + rows` and their log-probabilities, after `forward`.
    pub fn top(&self, first: usize, rows: usize, inv_t: f32) -> (Vec<u32>, Vec<f32>) {
        self.forward(first, rows, inv_t);
        let (rig, k) = (&self.rig, self.case.k);
        let (x, lse) = (rig.buf("x").slice(first * k, rows * k), rig.buf("lse").slice(0, rows));
        let side = HeadSide {
            x,
            w: self.matrix("w"),
            lse,
            logits: self.bent_rows(inv_t, first, rows),
            tile: rig.buf("tile"),
        };
        rig.dev.head_top(side, self.list(rows));
        let n = rows * self.case.listed();
        (rig.get_u32("ids")[..n].to_vec(), rig.get("listed")[..n].to_vec())
    }

    /// Returns log-probabilities of the tokens in `ids`, after `forward`.
    pub fn logprobs_of(&self, inv_t: f32) -> Vec<f32> {
        let (rig, rows) = (&self.rig, self.case.rows);
        let ListedTokens { ids, logprobs } = self.list(rows);
        let (x, lse) = (rig.buf("x"), rig.buf("lse").slice(0, rows));
        rig.dev.head_listed(x, self.matrix("w"), lse, self.bent(inv_t), ids, logprobs);
        rig.get("listed")
    }

    fn listed_backward(&self, slopes: &[f32], rest: &[f32], d: &[f32]) -> ListedBackward<'static> {
        let rig = &self.rig;
        rig.set("slopes", slopes);
        rig.set("rest", rest);
        rig.set("dlisted", d);
        let listed = self.list(self.case.rows);
        ListedBackward { listed, slopes: rig.buf("slopes"), rest: rig.buf("rest"), d: rig.buf("dlisted") }
    }
}

pub fn the_most_likely_tokens_are_those_of_sorting<D: Machine>(open: Open<D>) {
    for &case in CASES {
        let (inputs, k) = (case.inputs(), case.listed());
        for mut head in inputs.each(open) {
            let (ids, logprobs) = head.top(0, case.rows, 0.8);
            head.rig.check_guards();
            for row in 0..case.rows {
                let (logp, _, _) = softmax(&inputs.logits(&inputs.row(row), f64::from(0.8f32)));
                let mut sorted = logp.clone();
                sorted.sort_by(|a, b| b.total_cmp(a));
                let (ids, got) = (&ids[row * k..][..k], &logprobs[row * k..][..k]);
                let what = format!("{case:?} row {row}");
                check_close(got, &sorted[..k], &vec![1.0; k], 3e-5, &what);
                let theirs: Vec<f64> = ids.iter().map(|&id| logp[id as usize]).collect();
                check_close(got, &theirs, &vec![1.0; k], 3e-5, &what);
                let mut once = ids.to_vec();
                once.sort_unstable();
                once.dedup();
                assert_eq!(once.len(), k, "{what}: a token twice");
            }
            // Given, the tokens have the same log-probabilities.
            let given = head.logprobs_of(0.8);
            check_close(&given, &f64s(&logprobs), &vec![1.0; given.len()], 3e-5, &format!("{case:?}"));
        }
    }
}

pub fn of_equal_logits_lower_ids_are_listed_first<D: Machine>(open: Open<D>) {
    // At most one product of a card each: another may round equal logits another way.
    for vocab in [1301, 9001] {
        // Rows of W repeat after 650: every logit occurs at least twice.
        let w = normal(3, 650 * 4, 1.0, F32).into_iter().cycle().take(vocab * 4).collect();
        let inputs = Inputs { w, ..case(4, vocab, 4, F32).inputs() };
        for head in inputs.each(open) {
            let (ids, _) = head.top(0, 4, 1.0);
            for (row, ids) in ids.chunks_exact(LISTED).enumerate() {
                let logits = inputs.logits(&inputs.row(row), 1.0);
                let mut order: Vec<u32> = (0..vocab as u32).collect();
                order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                assert_eq!(ids, &order[..LISTED], "row {row} of {vocab}");
            }
        }
    }
}

pub fn lists_do_not_depend_on_the_rows_beside<D: Machine>(open: Open<D>) {
    for case in [case(90, 1301, 12, Bf16), case(90, 20_008, 16, Bf16)] {
        let k = case.listed();
        for head in case.inputs().each(open) {
            let all = head.top(0, case.rows, 0.7);
            for (first, rows) in [(0, 1), (7, 1), (5, 9), (1, 65), (case.rows - 30, 30)] {
                let (ids, logprobs) = head.top(first, rows, 0.7);
                let range = first * k..(first + rows) * k;
                assert!(ids == all.0[range.clone()], "{rows} rows of {case:?}");
                assert!(bits(&logprobs) == bits(&all.1[range]), "{rows} rows of {case:?}");
            }
        }
    }
}

pub fn rows_that_are_not_finite_have_lists_all_the_same<D: Machine>(open: Open<D>) {
    for case in [case(5, 700, 6, Bf16), case(5, 20_000, 8, Bf16)] {
        let mut inputs = case.inputs();
        inputs.x[2 * case.k] = f32::NAN;
        for head in inputs.each(open) {
            let (ids, logprobs) = head.top(0, 5, 1.0);
            assert!(ids.iter().all(|&id| (id as usize) < case.vocab), "{case:?}");
            for (row, logprobs) in logprobs.chunks_exact(case.listed()).enumerate() {
                assert!(logprobs.iter().all(|x| x.is_nan() == (row == 2)), "{case:?} row {row}");
            }
        }
    }
}

/// dx and grad by the formula in f64, and the largest logit gradient.
struct Wanted {
    dx: Vec<f64>,
    grad: Vec<f64>,
    largest: f64,
}

/// Derivatives by each row's numbers, and its list.
struct Given<'a> {
    dlogp: &'a [f32],
    dh: &'a [f32],
    ids: &'a [u32],
    slopes: &'a [f32],
    rest: &'a [f32],
    d: &'a [f32],
}

fn formula(inputs: &Inputs, inv_t: f64, of: &Given<'_>) -> Wanted {
    let Case { rows, vocab, k, cap, .. } = inputs.case;
    let listed = inputs.case.listed();
    let mut want = Wanted { dx: vec![0.0; rows * k], grad: vec![0.0; vocab * k], largest: 0.0 };
    for row in 0..rows {
        let x = inputs.row(row);
        let (logp, _, entropy) = softmax(&inputs.logits(&x, inv_t));
        let list = row * listed..(row + 1) * listed;
        for (v, &logp) in logp.iter().enumerate() {
            let delta = f64::from(u8::from(inputs.targets[row] as usize == v));
            let p = logp.exp();
            let policy =
                f64::from(of.dlogp[row]) * (delta - p) - f64::from(of.dh[row]) * p * (logp + entropy);
            let by = match of.ids[list.clone()].iter().position(|&id| id as usize == v) {
                Some(j) => f64::from(of.slopes[list.start + j]),
                None => f64::from(of.rest[row]) * p,
            };
            let d = bend(cap, inputs.dot(&x, v)).1 * inv_t * (policy + f64::from(of.d[row]) * by);
            want.largest = want.largest.max(d.abs());
            for (i, x) in x.iter().enumerate() {
                want.dx[row * k + i] += d * f64::from(inputs.w[v * k + i]);
                want.grad[v * k + i] += d * x;
            }
        }
    }
    want
}

pub fn gradients_of_listed_tokens_agree_with_the_formula<D: Machine>(open: Open<D>) {
    let inv_t = 0.8;
    for &case in CASES.iter().filter(|c| c.rows < 100) {
        let (inputs, rows, n) = (case.inputs(), case.rows, case.rows * case.listed());
        let [mut dlogp, mut dh, rest, mut d] = [8, 9, 10, 11].map(|seed| normal(seed, rows, 1.0, F32));
        let slopes = normal(12, n, 1.0, F32);
        if rows > 3 {
            // A row without any derivative, and one with those of the list alone.
            (dlogp[2], dh[2], d[2]) = (0.0, 0.0, 0.0);
            (dlogp[3], dh[3]) = (0.0, 0.0);
        }
        for mut head in inputs.each(open) {
            let (ids, _) = head.top(0, rows, inv_t);
            let given = Given { dlogp: &dlogp, dh: &dh, ids: &ids, slopes: &slopes, rest: &rest, d: &d };
            let want = formula(&inputs, inv_t.into(), &given);
            let listed = head.listed_backward(&slopes, &rest, &d);
            let (dx, grad) = head.backward_with(inv_t, &dlogp, &dh, Some(listed));
            // bf16: the tile of gradients is rounded to 8 bits.
            let tolerance = 6.0 * want.largest * if case.e == Bf16 { 6e-3 } else { 3e-5 };
            close(&format!("dx of {case:?}"), &dx, &want.dx, tolerance);
            close(&format!("grad of {case:?}"), &grad, &want.grad, tolerance);
            head.rig.check_guards();
            let again = head.backward_with(inv_t, &dlogp, &dh, Some(listed));
            assert!(again == (dx, grad), "twice the same");
        }
    }
}

pub fn a_list_without_a_derivative_changes_no_bit<D: Machine>(open: Open<D>) {
    for case in [case(20, 1301, 12, Bf16), case(5, 260, 16, F32)] {
        let (rows, n) = (case.rows, case.rows * case.listed());
        let (dlogp, dh) = (normal(8, rows, 1.0, F32), normal(9, rows, 1.0, F32));
        for head in case.inputs().each(open) {
            head.top(0, rows, 1.0);
            let plain = head.backward(1.0, &dlogp, &dh);
            let listed = head.listed_backward(&vec![f32::NAN; n], &vec![f32::NAN; rows], &vec![0.0; rows]);
            assert!(head.backward_with(1.0, &dlogp, &dh, Some(listed)) == plain, "{case:?}");
        }
    }
}
