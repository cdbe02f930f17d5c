//! Divergences over the whole vocabulary against f64, and their gradients, against the formula and against differences.

use super::{CASES, Case, Head, Inputs, bend, case, softmax};
use crate::both::{Machine, Open, Sized, bits, check_close, close, f64s, in_turn, normal};
use plimsoll_base::DType::{Bf16, F32};
use plimsoll_device::{
    DivergenceBackward, HeadDivergence, HeadOut, HeadSide, Logits, Matrix, Measure, NO_MASS, matrix_elements,
};

const HOW: [Measure; 4] =
    [Measure::Reverse, Measure::Forward, Measure::Jsd { beta: 0.5 }, Measure::Jsd { beta: 0.125 }];

impl Case {
    /// The teacher's hidden elements: not the student's.
    fn wide(&self) -> usize {
        2 * self.k
    }

    /// The teacher's buffers, and those of divergences.
    pub fn whole_buffers<D: Machine>(&self, threads: usize) -> Vec<Sized<'static>> {
        let (rows, wide) = (self.rows, self.wide());
        let matrix = matrix_elements(D::KIND, self.vocab as u64, wide as u64, self.e) as usize;
        let mut all = vec![
            ("teacher x", self.e, rows * wide),
            ("teacher w", self.e, matrix),
            ("teacher tile", F32, (D::KIND.head_tile)(threads, rows, self.vocab, false) as usize),
        ];
        all.extend(NUMBERS.map(|name| (name, F32, rows)));
        all
    }
}

const NUMBERS: [&str; 6] =
    ["teacher logprobs", "teacher lse", "teacher entropy", "divergences", "pulls", "d divergences"];

struct Teacher {
    x: Vec<f32>,
    w: Vec<f32>,
    logits: Logits<'static>,
    /// Its log-probabilities, by row.
    logp: Vec<Vec<f64>>,
}

impl Teacher {
    fn of(case: Case) -> Teacher {
        let (wide, scale) = (case.wide(), 2.0 / (case.wide() as f32).sqrt());
        // Bent in another way than the student's.
        let cap = case.cap.map(|cap| 2.0 * cap);
        let logits = Logits { factor: 0.6, cap, suppressed: case.suppressed, ..Logits::times(1.0) };
        let (x, w) =
            (normal(21, case.rows * wide, 1.0, case.e), normal(22, case.vocab * wide, scale, case.e));
        let teacher = Teacher { x, w, logits, logp: Vec::new() };
        Teacher { logp: (0..case.rows).map(|row| teacher.of_row(&case, row)).collect(), ..teacher }
    }

    fn of_row(&self, case: &Case, row: usize) -> Vec<f64> {
        let wide = case.wide();
        let x = f64s(&self.x[row * wide..][..wide]);
        let of = |v: usize| {
            if self.logits.suppressed.has(v as u32) {
                return f64::from(NO_MASS);
            }
            let dot: f64 = x.iter().zip(&self.w[v * wide..]).map(|(x, &w)| x * f64::from(w)).sum();
            bend(self.logits.cap, dot).0 * f64::from(self.logits.factor)
        };
        softmax(&(0..case.vocab).map(of).collect::<Vec<f64>>()).0
    }
}

/// The divergence by its definition.
fn defined(how: Measure, lp: &[f64], lq: &[f64]) -> f64 {
    let one = |(&lp, &lq): (&f64, &f64)| {
        let (p, q): (f64, f64) = (lp.exp(), lq.exp());
        match how {
            // Neither has it.
            _ if p + q == 0.0 => 0.0,
            Measure::Reverse => p * (lp - lq),
            Measure::Forward => q * (lq - lp),
            Measure::Jsd { beta } => {
                let beta = f64::from(beta);
                let lm = (beta * q + (1.0 - beta) * p).ln();
                beta * q * (lq - lm) + (1.0 - beta) * p * (lp - lm)
            }
        }
    };
    lp.iter().zip(lq).map(one).sum()
}

/// The derivatives of the divergence by the student's scaled logits.
fn slopes(how: Measure, lp: &[f64], lq: &[f64]) -> Vec<f64> {
    let pull = |(&lp, &lq): (&f64, &f64)| match how {
        _ if lp.exp() + lq.exp() == 0.0 => 0.0,
        Measure::Reverse => lp - lq,
        Measure::Forward => 1.0 - (lq - lp).exp(),
        Measure::Jsd { beta } => {
            let beta = f64::from(beta);
            (1.0 - beta) * (lp - (beta * lq.exp() + (1.0 - beta) * lp.exp()).ln())
        }
    };
    let pulls: Vec<f64> = lp.iter().zip(lq).map(pull).collect();
    let mean: f64 = pulls.iter().zip(lp).map(|(pull, lp)| lp.exp() * pull).sum();
    pulls.iter().zip(lp).map(|(pull, lp)| lp.exp() * (pull - mean)).collect()
}

impl<D: Machine> Head<D> {
    fn teach(&self, of: &Teacher) {
        self.rig.set("teacher x", &of.x);
        self.rig.set_matrix("teacher w", self.case.vocab, self.case.wide(), self.case.e, &of.w);
    }

    fn teacher(&self, of: &Teacher, first: usize, rows: usize) -> HeadSide<'static> {
        let (rig, wide) = (&self.rig, self.case.wide());
        let x = rig.buf("teacher x").slice(first * wide, rows * wide);
        let w: Matrix<'static> = rig.matrix("teacher w", self.case.vocab, wide, self.case.e);
        let (lse, tile) = (rig.buf("teacher lse").slice(0, rows), rig.buf("teacher tile"));
        HeadSide { x, w, lse, logits: of.logits, tile }
    }

    /// Returns the divergences of rows `first..first + rows`, after both heads.
    fn diverge(&self, of: &Teacher, how: Measure, (first, rows): (usize, usize), inv_t: f32) -> Vec<f32> {
        self.forward(first, rows, inv_t);
        let (rig, k) = (&self.rig, self.case.k);
        let [logprobs, lse, entropy, values, means, _] = NUMBERS.map(|name| rig.buf(name).slice(0, rows));
        let (teacher, targets) = (self.teacher(of, first, rows), rig.buf("targets").slice(first, rows));
        let out = HeadOut { logprobs, lse, entropy };
        rig.dev.head(teacher.x, teacher.w, targets, teacher.logits, teacher.tile, out);
        let student = HeadSide {
            x: rig.buf("x").slice(first * k, rows * k),
            w: self.matrix("w"),
            lse: self.out(rows).lse,
            logits: self.bent(inv_t),
            tile: rig.buf("tile"),
        };
        rig.dev.head_divergence(HeadDivergence { student, teacher, how, values, means });
        rig.get("divergences")[..rows].to_vec()
    }

    fn whole_backward(&self, of: &Teacher, how: Measure, d: &[f32]) -> DivergenceBackward<'static> {
        let rig = &self.rig;
        rig.set("d divergences", d);
        let teacher = self.teacher(of, 0, self.case.rows);
        DivergenceBackward { teacher, how, means: rig.buf("pulls"), d: rig.buf("d divergences") }
    }
}

pub fn divergences_agree_with_f64<D: Machine>(open: Open<D>) {
    for &case in CASES.iter().filter(|c| c.rows < 100) {
        let (inputs, teacher) = (case.inputs(), Teacher::of(case));
        for mut head in inputs.each(open) {
            head.teach(&teacher);
            for how in HOW {
                let got = head.diverge(&teacher, how, (0, case.rows), 0.8);
                head.rig.check_guards();
                let want: Vec<f64> = (0..case.rows)
                    .map(|row| {
                        let logits = inputs.logits(&inputs.row(row), f64::from(0.8f32));
                        defined(how, &softmax(&logits).0, &teacher.logp[row])
                    })
                    .collect();
                // Log-probabilities are within 2e-5 each.
                check_close(&got, &want, &vec![1.0; case.rows], 6e-5, &format!("{how:?} of {case:?}"));
            }
        }
    }
}

pub fn divergences_do_not_depend_on_the_rows_beside<D: Machine>(open: Open<D>) {
    for case in [case(90, 1301, 12, Bf16), case(90, 20_008, 16, Bf16)] {
        let teacher = Teacher::of(case);
        for head in case.inputs().each(open) {
            head.teach(&teacher);
            for how in HOW {
                let all = head.diverge(&teacher, how, (0, case.rows), 0.7);
                for (first, rows) in [(0, 1), (7, 1), (5, 9), (1, 65), (case.rows - 30, 30)] {
                    let part = head.diverge(&teacher, how, (first, rows), 0.7);
                    assert!(bits(&part) == bits(&all[first..first + rows]), "{rows} rows of {case:?}");
                }
            }
        }
    }
}

/// dx and grad by the formula in f64, and the largest logit gradient.
fn formula(
    inputs: &Inputs,
    teacher: &Teacher,
    how: Measure,
    inv_t: f64,
    [dlogp, dh, d]: [&[f32]; 3],
) -> (Vec<f64>, Vec<f64>, f64) {
    let Case { rows, vocab, k, cap, .. } = inputs.case;
    let (mut dx, mut grad, mut largest) = (vec![0.0; rows * k], vec![0.0; vocab * k], 0.0f64);
    for row in 0..rows {
        let x = inputs.row(row);
        let (logp, _, entropy) = softmax(&inputs.logits(&x, inv_t));
        let by = slopes(how, &logp, &teacher.logp[row]);
        for (v, (&logp, by)) in logp.iter().zip(by).enumerate() {
            let delta = f64::from(u8::from(inputs.targets[row] as usize == v));
            let p = logp.exp();
            let policy = f64::from(dlogp[row]) * (delta - p) - f64::from(dh[row]) * p * (logp + entropy);
            let d = bend(cap, inputs.dot(&x, v)).1 * inv_t * (policy + f64::from(d[row]) * by);
            largest = largest.max(d.abs());
            for (i, x) in x.iter().enumerate() {
                dx[row * k + i] += d * f64::from(inputs.w[v * k + i]);
                grad[v * k + i] += d * x;
            }
        }
    }
    (dx, grad, largest)
}

/// Panics unless some of the formula's dx of the divergence alone are its central differences in f64.
fn check_differences(inputs: &Inputs, teacher: &Teacher, how: Measure, inv_t: f64) {
    let Case { rows, k, .. } = inputs.case;
    let (ones, zeros) = (vec![1.0; rows], vec![0.0; rows]);
    let (dx, _, _) = formula(inputs, teacher, how, inv_t, [&zeros, &zeros, &ones]);
    for at in (0..dx.len()).step_by(dx.len() / 3 + 1) {
        let (row, i) = (at / k, at % k);
        let lq = &teacher.logp[row];
        let value = |step: f64| {
            let mut x = inputs.row(row);
            x[i] += step;
            defined(how, &softmax(&inputs.logits(&x, inv_t)).0, lq)
        };
        let slope = (value(1e-5) - value(-1e-5)) / 2e-5;
        assert!((slope - dx[at]).abs() < 1e-6 * (1.0 + slope.abs()), "dx[{at}] {} against {slope}", dx[at]);
    }
}

pub fn gradients_of_divergences_agree_with_the_formula_and_with_differences<D: Machine>(open: Open<D>) {
    let inv_t = 0.8;
    for &case in CASES.iter().filter(|c| c.rows < 100) {
        let (inputs, teacher, rows) = (case.inputs(), Teacher::of(case), case.rows);
        let [mut dlogp, mut dh, mut d] = [8, 9, 11].map(|seed| normal(seed, rows, 1.0, F32));
        if rows > 4 {
            // A row without any derivative, one with that of the divergence alone, and one without it.
            (dlogp[2], dh[2], d[2]) = (0.0, 0.0, 0.0);
            (dlogp[3], dh[3]) = (0.0, 0.0);
            d[4] = 0.0;
        }
        for how in in_turn(HOW) {
            check_differences(&inputs, &teacher, how, inv_t.into());
            let (want_dx, want_grad, largest) =
                formula(&inputs, &teacher, how, inv_t.into(), [&dlogp, &dh, &d]);
            for mut head in inputs.each(open) {
                head.teach(&teacher);
                head.diverge(&teacher, how, (0, rows), inv_t);
                let whole = head.whole_backward(&teacher, how, &d);
                let (dx, grad) = head.backward_of(inv_t, &dlogp, &dh, None, Some(whole));
                // bf16: the tile of gradients is rounded to 8 bits.
                let tolerance = 6.0 * largest * if case.e == Bf16 { 6e-3 } else { 3e-5 };
                close(&format!("dx of {how:?} of {case:?}"), &dx, &want_dx, tolerance);
                close(&format!("grad of {how:?} of {case:?}"), &grad, &want_grad, tolerance);
                head.rig.check_guards();
                let again = head.backward_of(inv_t, &dlogp, &dh, None, Some(whole));
                assert!(again == (dx, grad), "twice the same");
            }
        }
    }
}

/// A student that has reached its teacher stays there.
pub fn a_student_that_is_its_teacher_has_no_divergence_and_no_gradient<D: Machine>(open: Open<D>) {
    for case in [case(20, 1301, 12, Bf16), case(5, 260, 16, F32), case(20, 20_008, 16, Bf16)] {
        // The student's numbers, then zeros, as one wide row.
        let inputs = case.inputs();
        let wide = |from: &[f32]| -> Vec<f32> {
            from.chunks(case.k).flat_map(|row| row.iter().copied().chain(vec![0.0; case.k])).collect()
        };
        let teacher =
            Teacher { x: wide(&inputs.x), w: wide(&inputs.w), logits: Logits::times(0.8), logp: Vec::new() };
        let zeros = vec![0.0; case.rows];
        for head in inputs.each(open) {
            head.teach(&teacher);
            for how in HOW {
                let mut got = head.diverge(&teacher, how, (0, case.rows), 0.8);
                let whole = head.whole_backward(&teacher, how, &vec![1.0; case.rows]);
                let (dx, grad) = head.backward_of(0.8, &zeros, &zeros, None, Some(whole));
                got.extend(dx.into_iter().chain(grad));
                let most = got.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                // A longer product may add its zeros elsewhere: then logits differ in their last bits.
                assert!(most < 1e-5, "{how:?} of {case:?}: {most}");
            }
        }
    }
}

pub fn a_divergence_without_a_derivative_reads_nothing_of_the_teacher<D: Machine>(open: Open<D>) {
    for case in [case(20, 1301, 12, Bf16), case(5, 260, 16, F32)] {
        let (rows, mut teacher) = (case.rows, Teacher::of(case));
        let (dlogp, dh) = (normal(8, rows, 1.0, F32), normal(9, rows, 1.0, F32));
        teacher.x.fill(f32::NAN);
        for head in case.inputs().each(open) {
            head.teach(&teacher);
            head.diverge(&teacher, Measure::Reverse, (0, rows), 1.0);
            let plain = head.backward(1.0, &dlogp, &dh);
            let whole = head.whole_backward(&teacher, Measure::Reverse, &vec![0.0; rows]);
            let got = head.backward_of(1.0, &dlogp, &dh, None, Some(whole));
            // Another kernel of a card may round the last bit another way.
            let most = plain.0.iter().chain(&plain.1).fold(0.0f32, |most, x| most.max(x.abs()));
            let tolerance = f64::from(most) * if case.e == Bf16 { 6e-3 } else { 3e-5 };
            close(&format!("dx of {case:?}"), &got.0, &f64s(&plain.0), tolerance);
            close(&format!("grad of {case:?}"), &got.1, &f64s(&plain.1), tolerance);
        }
    }
}

/// TRL's code, with autograd in f64: the rows of a unit matrix make given numbers the logits of both heads.
pub fn values_and_gradients_are_those_of_trl<D: Machine>(open: Open<D>) {
    const VOCAB: usize = 40;
    let text = include_str!("../../../../algo/tests/golden/divergence_whole.txt");
    let numbers =
        |line: &str| -> Vec<f64> { line.split_whitespace().map(|x| x.parse().expect("a number")).collect() };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5 * 20, "cases of five lines");
    let case = case(1, VOCAB, VOCAB, F32);
    let unit = |width: usize| -> Vec<f32> {
        (0..VOCAB * width).map(|at| f32::from(u8::from(at / width == at % width))).collect()
    };
    for lines in lines.chunks_exact(5) {
        let (name, beta) = lines[0].split_once(' ').expect("a name and a number");
        let how = match name {
            "reverse" => Measure::Reverse,
            "forward" => Measure::Forward,
            _ => Measure::Jsd { beta: beta.parse().expect("a number") },
        };
        let [student, other, value, slopes] = [1, 2, 3, 4].map(|at| numbers(lines[at]));
        let f32s = |x: &[f64]| -> Vec<f32> { x.iter().map(|&x| x as f32).collect() };
        let inputs = Inputs { x: f32s(&student), w: unit(VOCAB), ..case.inputs() };
        let mut x = f32s(&other);
        x.resize(2 * VOCAB, 0.0);
        let teacher = Teacher { x, w: unit(2 * VOCAB), logits: Logits::times(1.0), logp: Vec::new() };
        for head in inputs.each(open) {
            head.teach(&teacher);
            let got = head.diverge(&teacher, how, (0, 1), 1.0);
            let whole = head.whole_backward(&teacher, how, &[1.0]);
            let (dx, _) = head.backward_of(1.0, &[0.0], &[0.0], None, Some(whole));
            // Logits of up to 30 are given in f32, within 1e-6 each.
            let largest = slopes.iter().fold(1.0, |most: f64, d| most.max(d.abs()));
            check_close(&got, &value, &[1.0], 4e-6 * (1.0 + value[0]), &format!("{how:?}"));
            close(&format!("gradient of {how:?}"), &dx, &slopes, 4e-6 * largest * 4.0);
        }
    }
}
