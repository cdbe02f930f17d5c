//! Adapters of experts: each operation against f64 from its own inputs, and bits that are a pair's own.
#![allow(dead_code)] // Each binary uses its part.

use super::experts::Case;
use super::{Machine, Rig, Sized, bits, check_norm, normal};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{
    AdaptExpertsBackward, CORRECTION_TERMS, Experts, ExpertsAdapter, Layouts, MatrixLayout, Routes, RowsOf,
    matrix_elements,
};
use plimsoll_memory::Buf;

const SCALE: f32 = 0.75;

/// A product of experts with adapters: a case's widths, and which of its outputs have one.
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'c> {
    pub case: &'c Case,
    pub rank: usize,
    pub of: Product,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// From rows to gates and ups of pairs, both with an adapter.
    GateUp,
    /// The same, with one of the ups alone.
    Up,
    /// From pairs back to f32, with the gradient of rows.
    Down,
}

/// Ranks of less than a vector, of no whole one, and of more than a tile; over every case.
pub fn each(cases: &[Case], mut check: impl FnMut(&Adapted<'_>)) {
    for (i, case) in cases.iter().enumerate() {
        for (j, of) in [Product::GateUp, Product::Up, Product::Down].into_iter().enumerate() {
            check(&Adapted { case, rank: [4, 16, 3, 8, 72, 20][(i + j) % 6], of });
        }
    }
}

impl Adapted<'_> {
    fn x_has(&self) -> RowsOf {
        if self.of == Product::Down { RowsOf::Pairs } else { RowsOf::Rows }
    }

    fn dy_has(&self) -> RowsOf {
        if self.of == Product::Down { RowsOf::Rows } else { RowsOf::Pairs }
    }

    /// N and K.
    fn widths(&self) -> (usize, usize) {
        let &Case { h, f, .. } = self.case;
        if self.of == Product::Down { (h, f) } else { (2 * f, h) }
    }

    /// The first output and the outputs of each block.
    fn blocks(&self) -> Vec<(usize, usize)> {
        let &Case { h, f, .. } = self.case;
        match self.of {
            Product::GateUp => vec![(0, f), (f, f)],
            Product::Up => vec![(f, f)],
            Product::Down => vec![(0, h)],
        }
    }

    /// The names of A and of each B, or of their gradients, with their rows and columns.
    fn matrices(&self, d: &str) -> Vec<(String, usize, usize)> {
        let blocks = self.blocks();
        let b = blocks.iter().enumerate().map(|(i, &(_, n))| (format!("{d}b{i}"), n, self.rank));
        std::iter::once((format!("{d}a"), blocks.len() * self.rank, self.widths().1)).chain(b).collect()
    }

    fn rows(&self, has: RowsOf, m: usize) -> usize {
        if has == RowsOf::Rows { m } else { m * self.case.chosen }
    }

    /// The buffers; `g` is the dtype of the gradients of A and B.
    pub fn buffers(&self, kind: &'static Layouts, e: DType, g: DType) -> Vec<(String, DType, usize)> {
        let &Case { m, experts, .. } = self.case;
        let (p, (n, k)) = (self.case.pairs(), self.widths());
        let sr = self.blocks().len() * self.rank;
        let to = if self.of == Product::Down { [F32, e] } else { [e, F32] };
        let pack =
            self.matrices("").into_iter().map(|(_, n, k)| (kind.pack)(m as u64, n as u64, k as u64, e));
        let pack = pack.max().unwrap_or(0).max(1) as usize;
        let mut all = vec![
            ("logits".to_string(), F32, m * experts),
            ("correction".into(), e, CORRECTION_TERMS * experts),
            ("experts".into(), U32, p),
            ("weights".into(), F32, p),
            ("pairs".into(), U32, p),
            ("places".into(), U32, p),
            ("starts".into(), U32, experts + 1),
            ("x".into(), e, self.rows(self.x_has(), m) * k),
            ("dy".into(), e, self.rows(self.dy_has(), m) * n),
            ("u".into(), e, p * sr),
            ("du".into(), e, p * sr),
            ("out".into(), to[0], p * n),
            ("dx".into(), to[1], p * k),
            ("pack".into(), e, pack),
        ];
        for (d, dtype) in [("", e), ("d", g)] {
            // Whole blocks of 256 elements, as parameters lie: matrices have gaps.
            let each = |n, k| matrix_elements(kind, n as u64, k as u64, e).next_multiple_of(256) as usize;
            all.extend(self.matrices(d).into_iter().map(|(name, n, k)| (name, dtype, experts * each(n, k))));
        }
        all
    }

    /// The same, as rigs take them.
    pub fn sized<'s>(all: &'s [(String, DType, usize)]) -> Vec<Sized<'s>> {
        all.iter().map(|(name, dtype, len)| (name.as_str(), *dtype, *len)).collect()
    }

    fn adapter<D: Machine>(&self, rig: &Rig<D>, e: DType, d: &str) -> ExpertsAdapter<'static> {
        let layout = MatrixLayout::of_weights(rig.dev.kind(), e);
        let of = |(name, n, k): &(String, usize, usize)| {
            Experts::apart(rig.buf(name), self.case.experts, *n, *k, layout)
        };
        let (all, mut blocks) = (self.matrices(d), [None; 2]);
        for ((block, b), (first, _)) in blocks.iter_mut().zip(&all[1..]).zip(self.blocks()) {
            *block = Some((of(b), first));
        }
        ExpertsAdapter { a: of(&all[0]), blocks, n: self.widths().0, scale: SCALE }
    }

    /// Gives inputs, matrices and their gradients numbers, and routes all rows.
    fn fill<D: Machine>(&self, rig: &Rig<D>, e: DType) {
        rig.set("logits", &self.case.logits());
        self.case.correct(rig);
        rig.dev.route(rig.buf("logits"), self.case.routing(rig), self.case.routes(rig, self.case.m));
        for (seed, name) in (30..).zip(["x", "dy", "out", "dx"]) {
            let buf = rig.buf(name);
            rig.set(name, &normal(seed, buf.len(), 1.0, buf.dtype()));
        }
        for d in ["", "d"] {
            let adapter = self.adapter(rig, e, d);
            for (seed, of) in matrices(&adapter).into_iter().enumerate() {
                rig.dev.zero(of.buf);
                for expert in 0..of.count {
                    let seed = 1000 + 3 * expert as u64 + seed as u64;
                    let values = normal(seed, of.n * of.k, 0.3, of.buf.dtype());
                    rig.dev.write_rows(of.of(expert), 0, &values);
                }
            }
        }
    }

    /// The forward pass of the first `m` rows, and the gradients by u and x.
    fn run<D: Machine>(&self, rig: &Rig<D>, e: DType, m: usize, adds: bool) {
        let (n, k) = self.widths();
        let (routes, adapter) = (self.case.routes(rig, m), self.adapter(rig, e, ""));
        rig.dev.route(rig.buf("logits").slice(0, m * self.case.experts), self.case.routing(rig), routes);
        let part = |name: &str, rows: usize, width: usize| rig.buf(name).slice(0, rows * width);
        let p = m * self.case.chosen;
        let x = part("x", self.rows(self.x_has(), m), k);
        let dy = part("dy", self.rows(self.dy_has(), m), n);
        let [u, du] = ["u", "du"].map(|name| part(name, p, adapter.a.n));
        let to = |buf: Buf<'static>| adds.then_some(buf);
        rig.dev.adapt_experts(x, self.x_has(), adapter, routes, u, to(part("out", p, n)));
        rig.dev.adapt_experts_dx(dy, self.dy_has(), adapter, routes, du, to(part("dx", p, k)));
    }

    /// Returns what a place reads: elements of its row.
    fn at<'r>(&self, data: &'r [f32], has: RowsOf, width: usize, pairs: &[u32], place: usize) -> &'r [f32] {
        let row = if has == RowsOf::Rows { pairs[place] as usize / self.case.chosen } else { place };
        &data[row * width..][..width]
    }
}

/// A, then each B.
fn matrices(of: &ExpertsAdapter<'static>) -> Vec<Experts<'static>> {
    std::iter::once(of.a).chain(of.blocks().map(|(_, b, _)| b)).collect()
}

fn rows_of<D: Machine>(rig: &Rig<D>, of: Experts<'_>) -> Vec<Vec<f32>> {
    let read = |expert| {
        let mut rows = vec![0.0; of.n * of.k];
        rig.dev.read_rows(of.of(expert), 0, &mut rows);
        rows
    };
    (0..of.count).map(read).collect()
}

/// A relative error (2-norms) that roundings to the dtype explain, and chains of f32.
fn tolerance(dtype: DType) -> f64 {
    if dtype == Bf16 { 4e-3 } else { 2e-6 }
}

fn dot(a: &[f32], b: impl Fn(usize) -> f32) -> f64 {
    a.iter().enumerate().map(|(i, &a)| f64::from(a) * f64::from(b(i))).sum()
}

fn experts_of(routes: Routes<'_>, starts: &[u32]) -> Vec<usize> {
    let each = starts.windows(2).enumerate();
    let all: Vec<usize> = each.flat_map(|(e, ends)| vec![e; (ends[1] - ends[0]) as usize]).collect();
    assert_eq!(all.len(), routes.pairs());
    all
}

/// Panics unless u, its sum into the product, and the gradients by u and x are those of f64.
pub fn check<D: Machine>(of: &Adapted<'_>, rig: &mut Rig<D>, e: DType, how: &str) {
    let ((n, k), r, &Case { m, .. }) = (of.widths(), of.rank, of.case);
    let what = |part: &str| format!("{part} of {of:?}, {}, {how}", e.name());
    of.fill(rig, e);
    let (routes, adapter) = (of.case.routes(rig, m), of.adapter(rig, e, ""));
    let (sr, blocks) = (adapter.a.n, of.blocks());
    let (pairs, experts) = (rig.get_u32("pairs"), experts_of(routes, &rig.get_u32("starts")));
    let [x, dy, out, dx] = ["x", "dy", "out", "dx"].map(|name| rig.get(name));
    let all: Vec<Vec<Vec<f32>>> = matrices(&adapter).into_iter().map(|of| rows_of(rig, of)).collect();
    let (a, b) = (&all[0], &all[1..]);
    of.run(rig, e, m, true);
    let x_at = |p: usize| of.at(&x, of.x_has(), k, &pairs, p);
    let dy_at = |p: usize| of.at(&dy, of.dy_has(), n, &pairs, p);
    let (u, du) = (rig.get("u"), rig.get("du"));
    let want = |i: usize| f64::from(SCALE) * dot(x_at(i / sr), |l| a[experts[i / sr]][i % sr * k + l]);
    check_norm(&what("u"), &u, &(0..u.len()).map(want).collect::<Vec<_>>(), tolerance(e));
    let added = |i: usize| {
        let (p, col) = (i / n, i % n);
        let block = blocks.iter().position(|&(first, n)| (first..first + n).contains(&col));
        let sum = block.map_or(0.0, |block| {
            let row = (col - blocks[block].0) * r;
            dot(&u[p * sr + block * r..][..r], |j| b[block][experts[p]][row + j])
        });
        f64::from(out[i]) + sum
    };
    let got = rig.get("out");
    check_norm(
        &what("the sum"),
        &got,
        &(0..got.len()).map(added).collect::<Vec<_>>(),
        tolerance(rig.buf("out").dtype()),
    );
    let want = |i: usize| {
        let (p, block, j) = (i / sr, i % sr / r, i % r);
        let (first, n) = blocks[block];
        f64::from(SCALE) * dot(&dy_at(p)[first..first + n], |l| b[block][experts[p]][l * r + j])
    };
    check_norm(&what("du"), &du, &(0..du.len()).map(want).collect::<Vec<_>>(), tolerance(e));
    let want = |i: usize| {
        let p = i / k;
        f64::from(dx[i]) + dot(&du[p * sr..][..sr], |j| a[experts[p]][j * k + i % k])
    };
    let got = rig.get("dx");
    check_norm(
        &what("dx"),
        &got,
        &(0..got.len()).map(want).collect::<Vec<_>>(),
        tolerance(rig.buf("dx").dtype()),
    );
    rig.check_guards();
}

/// Panics unless the gradients by A and B are those of f64, after `check` of the same rig.
pub fn check_gradients<D: Machine>(of: &Adapted<'_>, rig: &mut Rig<D>, e: DType, add: bool, how: &str) {
    let ((n, k), r, &Case { m, .. }) = (of.widths(), of.rank, of.case);
    let what = |part: &str| format!("{part} of {of:?}, {}, {how}", e.name());
    let (routes, grads) = (of.case.routes(rig, m), of.adapter(rig, e, "d"));
    let (sr, blocks) = (grads.a.n, of.blocks());
    let (pairs, experts) = (rig.get_u32("pairs"), experts_of(routes, &rig.get_u32("starts")));
    let [x, dy, u, du] = ["x", "dy", "u", "du"].map(|name| rig.get(name));
    let x_at = |p: usize| of.at(&x, of.x_has(), k, &pairs, p);
    let dy_at = |p: usize| of.at(&dy, of.dy_has(), n, &pairs, p);
    // Over an expert's pairs, and over none.
    let before: Vec<_> = matrices(&grads).into_iter().map(|of| rows_of(rig, of)).collect();
    rig.dev.adapt_experts_dw(AdaptExpertsBackward {
        x: rig.buf("x"),
        x_has: of.x_has(),
        u: rig.buf("u"),
        dy: rig.buf("dy"),
        dy_has: of.dy_has(),
        du: rig.buf("du"),
        routes,
        grads,
        add,
        pack: rig.buf("pack"),
    });
    for (index, grad) in matrices(&grads).into_iter().enumerate() {
        let mut want: Vec<Vec<f64>> = before[index]
            .iter()
            .map(|rows| rows.iter().map(|&x| if add { x.into() } else { 0.0 }).collect())
            .collect();
        for (p, &expert) in experts.iter().enumerate() {
            let (left, right) = match index {
                0 => (&du[p * sr..][..sr], x_at(p)),
                b => {
                    let (first, n) = blocks[b - 1];
                    (&dy_at(p)[first..first + n], &u[p * sr + (b - 1) * r..][..r])
                }
            };
            for (row, left) in want[expert].chunks_mut(grad.k).zip(left) {
                row.iter_mut().zip(right).for_each(|(to, &x)| *to += f64::from(*left) * f64::from(x));
            }
        }
        let got = rows_of(rig, grad);
        // A card may round a sum before it adds it.
        let within = tolerance(grad.buf.dtype()).max(tolerance(F32));
        check_norm(&what("gradients"), &got.concat(), &want.concat(), within);
        for expert in (0..grad.count).filter(|expert| !experts.contains(expert)) {
            let was = |x: f32| if add { x } else { 0.0 };
            let is_kept =
                got[expert].iter().zip(&before[index][expert]).all(|(&x, &before)| x == was(before));
            assert!(is_kept, "{}", what("gradients without a pair"));
        }
    }
    rig.check_guards();
}

/// Panics unless a pair's bits are its own, whatever other rows and its expert's load, and u's without a sum too.
pub fn check_pairs_are_their_own<D: Machine>(of: &Adapted<'_>, rig: &mut Rig<D>, e: DType, how: &str) {
    let ((n, k), &Case { m, chosen, .. }) = (of.widths(), of.case);
    let sr = of.blocks().len() * of.rank;
    let seen = |rig: &Rig<D>, rows: usize| {
        let places = rig.get_u32("places")[..rows * chosen].to_vec();
        [("u", sr), ("du", sr), ("out", n), ("dx", k)].map(|(name, width)| {
            let all = rig.get(name);
            places.iter().flat_map(|&p| bits(&all[p as usize * width..][..width])).collect::<Vec<u32>>()
        })
    };
    // Places move with the number of rows: what lies at a place is the same for all of them.
    let begin = |rig: &Rig<D>| {
        of.fill(rig, e);
        for name in ["x", "dy", "out", "dx"] {
            let (width, buf) = (if matches!(name, "x" | "dx") { k } else { n }, rig.buf(name));
            let rows_differ =
                (name == "x" && of.x_has() == RowsOf::Rows) || (name == "dy" && of.dy_has() == RowsOf::Rows);
            if !rows_differ {
                rig.set(name, &normal(40, width, 1.0, buf.dtype()).repeat(buf.len() / width));
            }
        }
    };
    for rows in [1, m / 2, m - m / 3].into_iter().filter(|&rows| rows > 0) {
        begin(rig);
        of.run(rig, e, m, true);
        let whole = seen(rig, rows);
        begin(rig);
        of.run(rig, e, rows, true);
        assert_eq!(seen(rig, rows), whole, "{rows} rows of {of:?}, {}, {how}", e.name());
        let with = ["u", "du"].map(|name| bits(&rig.get(name)[..rows * chosen * sr]));
        of.run(rig, e, rows, false);
        let without = ["u", "du"].map(|name| bits(&rig.get(name)[..rows * chosen * sr]));
        assert_eq!(with, without, "without a sum: {rows} rows of {of:?}, {}, {how}", e.name());
    }
    rig.check_guards();
}
