//! Masks and biases of single rows against f64, and the rows next to them, whose bits they do not change.

use super::{Case, Head, Inputs, capped, case, plain, softmax, without};
use crate::both::{Machine, Open, Sized, check_close, close, normal};
use plimsoll_base::DType::{Bf16, F32, U32};
use plimsoll_device::{NO_MASK, NO_MASS, RowBiases, RowMasks, Sampling};

/// Biases of a row at most.
const BIASES: usize = 5;

/// Vocabularies below a word of a mask, with a rest of one, and of several tiles; with a cap, and with tokens that all
/// rows lack.
const OWN: &[Case] = &[
    case(5, 21, 8, Bf16),
    case(9, 260, 16, F32),
    case(20, 1301, 16, Bf16),
    case(7, 20_008, 16, Bf16),
    case(6, 9001, 12, F32),
    capped(2.0, case(9, 1040, 7, F32)),
    capped(3.0, case(5, 4100, 16, Bf16)),
    without(254, 4, case(8, 300, 16, F32)),
    without(511, 1, case(20, 512, 16, Bf16)),
];

impl Case {
    pub fn own_buffers(&self) -> [Sized<'static>; 4] {
        let &Case { rows, vocab, .. } = self;
        [
            ("masks", U32, rows * RowMasks::words_of(vocab)),
            ("mask_rows", U32, rows),
            ("bias_ids", U32, rows * BIASES),
            ("bias_values", F32, rows * BIASES),
        ]
    }

    /// The mask of a row, in another order than the rows; two rows of three have one.
    fn mask_of(&self, row: usize) -> Option<usize> {
        (row % 3 != 1).then_some(self.rows - 1 - row)
    }

    /// True if a mask has a token: about one of four, most of those in long runs, and the target of its row.
    fn has(&self, mask: usize, token: usize) -> bool {
        let row = self.rows - 1 - mask;
        let run = (token / 67 + mask).is_multiple_of(5) && token % 11 != 3;
        run || token.wrapping_mul(2_654_435_761) >> 7 & 15 == mask & 15 || token == row * 7919 % self.vocab
    }

    /// What a row adds to some logits: tokens of every tile, the first and the last; one row of three has none.
    fn biases_of(&self, row: usize) -> Vec<(usize, f32)> {
        if row % 3 == 2 {
            return Vec::new();
        }
        let vocab = self.vocab;
        let mut ids = vec![0, row * 7919 % vocab, vocab / 2, vocab - 1];
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().enumerate().map(|(i, id)| (id, [1.5, -3.0, 2.25, -100.0][(i + row) % 4])).collect()
    }
}

impl Inputs {
    /// The logits of a row with what it has of its own.
    fn own_logits(&self, row: usize, inv_t: f64, (masks, biases): (bool, bool)) -> Vec<f64> {
        let mut logits = self.logits(&self.row(row), inv_t);
        for (id, bias) in self.case.biases_of(row).into_iter().filter(|_| biases) {
            logits[id] += f64::from(bias) * inv_t;
        }
        if let Some(mask) = self.case.mask_of(row).filter(|_| masks) {
            let left_out = logits.iter_mut().enumerate().filter(|(token, _)| !self.case.has(mask, *token));
            left_out.for_each(|(_, x)| *x = NO_MASS.into());
        }
        logits
    }
}

impl<D: Machine> Head<D> {
    /// Gives the rows masks, biases or both.
    fn own(mut self, (masks, biases): (bool, bool)) -> Head<D> {
        let Head { rig, case, .. } = &self;
        let words = RowMasks::words_of(case.vocab);
        // Bits beyond the vocabulary mean nothing.
        let mut all = vec![0u32; case.rows * words];
        for mask in 0..case.rows {
            for token in (0..32 * words).filter(|token| *token >= case.vocab || case.has(mask, *token)) {
                all[mask * words + token / 32] |= 1 << (token % 32);
            }
        }
        rig.set_u32("masks", &all);
        let rows: Vec<u32> = (0..case.rows).map(|r| case.mask_of(r).map_or(NO_MASK, |m| m as u32)).collect();
        rig.set_u32("mask_rows", &rows);
        let (mut ids, mut values) = (vec![u32::MAX; case.rows * BIASES], vec![0.0; case.rows * BIASES]);
        for row in 0..case.rows {
            for (i, (id, value)) in case.biases_of(row).into_iter().enumerate() {
                (ids[row * BIASES + i], values[row * BIASES + i]) = (id as u32, value);
            }
        }
        rig.set_u32("bias_ids", &ids);
        rig.set("bias_values", &values);
        let of_masks = RowMasks { words: rig.buf("masks"), rows: rig.buf("mask_rows") };
        let of_biases = RowBiases { ids: rig.buf("bias_ids"), values: rig.buf("bias_values") };
        self.masks = masks.then_some(of_masks);
        self.biases = biases.then_some(of_biases);
        self
    }
}

pub fn rows_with_masks_and_biases_agree_with_f64_and_others_keep_their_bits<D: Machine>(open: Open<D>) {
    let truncated = Sampling { top_k: 7, top_p: 0.8, ..plain(1.3) };
    for &case in OWN {
        let inputs = case.inputs();
        for own in [(true, false), (false, true), (true, true)] {
            for head in inputs.each(open) {
                let bare = head.forward(0, case.rows, 0.8);
                let mut head = head.own(own);
                let got = head.forward(0, case.rows, 0.8);
                for row in 0..case.rows {
                    let logits = inputs.own_logits(row, f64::from(0.8f32), own);
                    let (logp, lse, entropy) = softmax(&logits);
                    let mine = [0, 1, 2].map(|i| f32::from_bits(got[i][row]));
                    let want = [logp[inputs.targets[row] as usize], lse, entropy];
                    check_close(&mine, &want, &[1.0; 3], 2e-5, &format!("{case:?} {own:?} row {row}"));
                    let has =
                        own.0 && case.mask_of(row).is_some() || own.1 && !case.biases_of(row).is_empty();
                    let same = (0..3).all(|i| got[i][row] == bare[i][row]);
                    assert!(has || same, "{case:?} {own:?}: row {row} has nothing of its own");
                }
                // In other company.
                let part = head.forward(2, 3, 0.8);
                assert!((0..3).all(|i| part[i] == got[i][2..5]), "{case:?} {own:?}");
                for how in [plain(0.8), plain(0.0), truncated] {
                    let (tokens, sampled) = head.sample(0, case.rows, how);
                    for (row, &token) in tokens.iter().enumerate() {
                        let logits = inputs.own_logits(row, 1.0, own);
                        let can_be = |t: usize| logits[t] > f64::from(NO_MASS) / 2.0;
                        assert!(can_be(token as usize), "{case:?} {own:?} {how:?} row {row}: {token}");
                    }
                    head.rig.set_u32("targets", &tokens);
                    let scored = head.forward(0, case.rows, how.inv_temperature());
                    assert!(sampled == scored, "{case:?} {own:?} {how:?}");
                }
                head.rig.set_u32("targets", &inputs.targets);
                let (ids, listed) = head.top(0, case.rows, 0.8);
                for (row, (ids, listed)) in
                    ids.chunks(case.listed()).zip(listed.chunks(case.listed())).enumerate()
                {
                    let (logp, _, _) = softmax(&inputs.own_logits(row, f64::from(0.8f32), own));
                    for (&id, &mine) in ids.iter().zip(listed).filter(|(id, _)| logp[**id as usize] > -1e9) {
                        let what = format!("{case:?} {own:?} row {row} token {id}");
                        check_close(&[mine], &[logp[id as usize]], &[1.0], 3e-5, &what);
                    }
                }
                close("logprobs of given ids", &head.logprobs_of(0.8), &widen(&listed), 1e25);
                head.rig.check_guards();
            }
        }
    }
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

pub fn masked_tokens_have_no_gradient<D: Machine>(open: Open<D>) {
    let inv_t = 0.8f32;
    for &case in OWN {
        let inputs = case.inputs();
        let (dlogp, dh) = (normal(8, case.rows, 1.0, F32), normal(9, case.rows, 1.0, F32));
        let (want_dx, want_grad, scale) = inputs.own_formula(inv_t.into(), &dlogp, &dh);
        for head in inputs.each(open) {
            head.forward(0, case.rows, inv_t);
            let (bare, _) = head.backward(inv_t, &dlogp, &dh);
            let head = head.own((true, false));
            head.forward(0, case.rows, inv_t);
            let (dx, grad) = head.backward(inv_t, &dlogp, &dh);
            let tolerance = 4.0 * scale * if case.e == Bf16 { 6e-3 } else { 3e-5 };
            close(&format!("dx of {case:?}"), &dx, &want_dx, tolerance);
            close(&format!("grad of {case:?}"), &grad, &want_grad, tolerance);
            for row in (0..case.rows).filter(|row| case.mask_of(*row).is_none()) {
                let part = row * case.k..(row + 1) * case.k;
                assert!(dx[part.clone()] == bare[part], "{case:?}: row {row} has no mask");
            }
        }
    }
}

impl Inputs {
    /// `formula` over what masks leave.
    fn own_formula(&self, inv_t: f64, dlogp: &[f32], dh: &[f32]) -> (Vec<f64>, Vec<f64>, f64) {
        let Case { rows, vocab, k, cap, .. } = self.case;
        let (mut dx, mut grad, mut largest) = (vec![0.0; rows * k], vec![0.0; vocab * k], 0.0f64);
        for row in 0..rows {
            let x = self.row(row);
            let logits = self.own_logits(row, inv_t, (true, false));
            let (logp, _, entropy) = softmax(&logits);
            for v in (0..vocab).filter(|v| logits[*v] > f64::from(NO_MASS) / 2.0) {
                let delta = f64::from(u8::from(self.targets[row] as usize == v));
                let p = logp[v].exp();
                let by_logit =
                    f64::from(dlogp[row]) * (delta - p) - f64::from(dh[row]) * p * (logp[v] + entropy);
                let d = super::bend(cap, self.dot(&x, v)).1 * inv_t * by_logit;
                largest = largest.max(d.abs());
                for i in 0..k {
                    dx[row * k + i] += d * f64::from(self.w[v * k + i]);
                    grad[v * k + i] += d * x[i];
                }
            }
        }
        (dx, grad, largest)
    }
}
