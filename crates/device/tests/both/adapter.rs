//! Adapters over a layer's outputs: shapes, buffers, and checks against f64.
#![allow(dead_code)] // Each binary uses its part.

use super::{Machine, Rig, Sized, bits, check_close, normal};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_base::Encoding;
use plimsoll_device::{
    ADAPTER_BLOCKS_MAX, AdaptBackward, Adapted, Adapter, AdapterBlock, Blocks, Codes, Layouts,
    block_elements, matrix_elements,
};

/// A layer, and its adapter's blocks: (first, n).
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub r: usize,
    pub blocks: &'static [(usize, usize)],
}

/// Single rows and more rows than a block, odd widths, ranks around a panel, and outputs that no block has.
pub const CASES: &[Case] = &[
    Case { m: 1, n: 20, k: 7, r: 1, blocks: &[(0, 20)] },
    Case { m: 3, n: 50, k: 33, r: 3, blocks: &[(5, 17)] },
    Case { m: 9, n: 40, k: 17, r: 5, blocks: &[(1, 3), (10, 7), (30, 10)] },
    Case { m: 65, n: 100, k: 50, r: 8, blocks: &[(0, 33), (40, 31)] },
    Case { m: 70, n: 112, k: 83, r: 32, blocks: &[(0, 48), (48, 16), (80, 31)] },
    Case { m: 33, n: 72, k: 40, r: 8, blocks: &[(0, 40), (40, 24), (64, 4), (68, 4)] },
    Case { m: 20, n: 160, k: 64, r: 16, blocks: &[(0, 96), (96, 32), (128, 16), (144, 16)] },
];
const SCALE: f32 = 1.7;
pub const B: [&str; ADAPTER_BLOCKS_MAX] = ["b0", "b1", "b2", "b3"];
pub const DB: [&str; ADAPTER_BLOCKS_MAX] = ["db0", "db1", "db2", "db3"];

impl Case {
    pub fn sr(&self) -> usize {
        self.blocks.len() * self.r
    }

    /// Elements of a matrix of weights.
    fn matrix(kind: &'static Layouts, n: usize, k: usize, e: DType) -> usize {
        matrix_elements(kind, n as u64, k as u64, e) as usize
    }

    /// The buffers; `out` is the dtype of outputs and of the gradient of inputs, `g` that of gradients of weights.
    pub fn buffers(&self, kind: &'static Layouts, e: DType, out: DType, g: DType) -> Vec<Sized<'static>> {
        let &Case { m, n, k, r, blocks } = self;
        let pack = |n, k| (kind.pack)(m as u64, n as u64, k as u64, e) as usize;
        let packs = blocks.iter().map(|&(_, n)| pack(n, r)).chain([pack(self.sr(), k)]);
        let mut buffers = vec![
            ("x", e, m * k),
            ("a", e, Case::matrix(kind, self.sr(), k, e)),
            ("u", e, m * self.sr()),
            ("out", out, m * n),
            ("dy", e, m * n),
            ("du", e, m * self.sr()),
            ("dx", out, m * k),
            ("da", g, Case::matrix(kind, self.sr(), k, e)),
            ("pack", e, packs.fold(1, usize::max)),
            ("w", e, Case::matrix(kind, n, k, e)),
            ("merged", e, Case::matrix(kind, n, k, e)),
            ("bias", e, n),
        ];
        for (i, &(_, n)) in blocks.iter().enumerate() {
            buffers.extend([B[i], DB[i]].map(|name| {
                let dtype = if name == B[i] { e } else { g };
                (name, dtype, Case::matrix(kind, n, r, e))
            }));
        }
        buffers
    }

    /// Those of the weights in codes.
    pub fn code_buffers(&self) -> [Sized<'static>; 2] {
        let (codes, scales) = block_elements(Encoding::Nf4, self.n as u64, self.k as u64);
        [("codes", U32, codes as usize), ("scales", F32, scales as usize)]
    }

    /// Gives x, dy, out, dx, A, B and the gradients of A and B numbers.
    pub fn fill<D: Machine>(&self, rig: &Rig<D>, e: DType) {
        let &Case { m, n, k, r, blocks } = self;
        let [out, g] = ["out", "da"].map(|name| rig.buf(name).dtype());
        rig.set("x", &normal(1, m * k, 1.0, e));
        rig.set("out", &normal(2, m * n, 1.0, out));
        rig.set("dy", &normal(3, m * n, 1.0, e));
        rig.set("dx", &normal(4, m * k, 1.0, out));
        rig.set_matrix("a", self.sr(), k, e, &self.a(e));
        rig.set_matrix("da", self.sr(), k, e, &normal(5, self.sr() * k, 1.0, g));
        rig.set_matrix("w", n, k, e, &normal(7, n * k, 1.0, e));
        rig.set("bias", &normal(8, n, 1.0, e));
        for (i, &(_, n)) in blocks.iter().enumerate() {
            rig.set_matrix(B[i], n, r, e, &self.b(i, e));
            rig.set_matrix(DB[i], n, r, e, &normal(6, n * r, 1.0, g));
        }
    }

    pub fn a(&self, e: DType) -> Vec<f32> {
        normal(10, self.sr() * self.k, 1.0, e)
    }

    pub fn b(&self, block: usize, e: DType) -> Vec<f32> {
        normal(11 + block as u64, self.blocks[block].1 * self.r, 1.0, e)
    }

    /// The adapter, or its gradient.
    pub fn adapter<D: Machine>(
        &self,
        rig: &Rig<D>,
        a: &str,
        b: &[&str; ADAPTER_BLOCKS_MAX],
        e: DType,
    ) -> Adapter<'static> {
        let mut blocks = [None; ADAPTER_BLOCKS_MAX];
        for (i, &(first, n)) in self.blocks.iter().enumerate() {
            blocks[i] = Some(AdapterBlock { b: rig.matrix(b[i], n, self.r, e), first });
        }
        Adapter { a: rig.matrix(a, self.sr(), self.k, e), blocks, scale: SCALE }
    }

    pub fn layer<D: Machine>(&self, rig: &Rig<D>, e: DType) -> Adapted<'static> {
        let (w, adapter) = (rig.matrix("w", self.n, self.k, e), self.adapter(rig, "a", &B, e));
        Adapted { w, codes: None, fp8: None, bias: None, adapter }
    }

    pub fn adapt<D: Machine>(&self, rig: &Rig<D>, e: DType) {
        rig.dev.adapted(rig.buf("x"), self.layer(rig, e), None, rig.buf("u"), rig.buf("out"));
    }

    /// All of the gradients.
    pub fn backward<D: Machine>(&self, rig: &Rig<D>, e: DType, add: bool) {
        let (layer, buf) = (self.layer(rig, e), |name| rig.buf(name));
        rig.dev.adapt_backward_u(buf("dy"), layer.adapter, buf("du"));
        rig.dev.adapt_backward_w(self.args(rig, e, add));
        rig.dev.adapted_dx(buf("dy"), layer, buf("du"), buf("dx"));
    }

    pub fn args<D: Machine>(&self, rig: &Rig<D>, e: DType, add: bool) -> AdaptBackward<'static> {
        let [x, u, dy, du, pack] = ["x", "u", "dy", "du", "pack"].map(|name| rig.buf(name));
        AdaptBackward { x, u, dy, du, pack, grads: self.adapter(rig, "da", &DB, e), add }
    }

    /// The block of an output, and the output's row of B.
    pub fn block_of(&self, output: usize) -> Option<(usize, usize)> {
        let block = self.blocks.iter().position(|&(first, n)| (first..first + n).contains(&output))?;
        Some((block, output - self.blocks[block].0))
    }
}

/// Panics unless each element is `start` plus `scale` times the sum of its `len` terms, within the rounding of a chain
/// and of the result.
#[track_caller]
fn check(
    what: &str,
    got: &[f32],
    (len, dtype): (usize, DType),
    start: impl Fn(usize) -> f32,
    scale: f32,
    term: impl Fn(usize, usize) -> f64,
) {
    let rounding = if dtype == Bf16 { 4.0e-3 } else { 2.4e-7 };
    check_within(what, got, len as f64 * 1.2e-7 + rounding, start, |i| {
        (0..len).map(|j| f64::from(scale) * term(i, j)).collect()
    });
}

/// Works as `check`, of what is rounded twice: a gradient rounded to its dtype before a card adds it, or a product
/// before an adapter's is added.
fn check_twice(
    what: &str,
    got: &[f32],
    (len, dtype): (usize, DType),
    start: impl Fn(usize) -> f32,
    term: impl Fn(usize, usize) -> f64,
) {
    let rounding = if dtype == Bf16 { 8.0e-3 } else { 2.4e-7 };
    check_within(what, got, len as f64 * 1.2e-7 + rounding, start, |i| {
        (0..len).map(|j| term(i, j)).collect()
    });
}

/// Terms of sums that a check in f64 adds up at most, about.
const TERMS_MAX: usize = 1 << 24;

fn check_within(
    what: &str,
    got: &[f32],
    tolerance: f64,
    start: impl Fn(usize) -> f32,
    terms: impl Fn(usize) -> Vec<f64>,
) {
    // Of wide layers every n-th element, n odd: a tile that is wrong has hundreds of them.
    let step = (got.len() * got.first().map_or(0, |_| terms(0).len()) / TERMS_MAX) | 1;
    let some: Vec<usize> = (0..got.len()).step_by(step).collect();
    let of = |i: &usize, f: &dyn Fn(f64) -> f64| {
        f(f64::from(start(*i))) + terms(*i).into_iter().map(f).sum::<f64>()
    };
    let got: Vec<f32> = some.iter().map(|i| got[*i]).collect();
    let want: Vec<f64> = some.iter().map(|i| of(i, &|x| x)).collect();
    let size: Vec<f64> = some.iter().map(|i| of(i, &f64::abs)).collect();
    check_close(&got, &want, &size, tolerance, what);
}

fn at(x: &[f32], i: usize) -> f64 {
    x[i].into()
}

/// Panics unless `adapted` gives what f64 gives, and the bits of the layer alone at the outputs of no block. `how`: the
/// way the device runs it.
pub fn check_outputs<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { n, k, r, .. } = case;
    let (sr, out) = (case.sr(), rig.buf("out").dtype());
    case.fill(rig, e);
    let (x, w, a, before) = (rig.get("x"), normal(7, n * k, 1.0, e), case.a(e), rig.get("out"));
    let b: Vec<Vec<f32>> = (0..case.blocks.len()).map(|i| case.b(i, e)).collect();
    let (layer, buf) = (case.layer(rig, e), |rig: &Rig<D>, name| rig.buf(name));
    // Alone, over a residual stream, and with a bias.
    for (adds, biased) in [(false, false), (true, false), (false, true)] {
        if adds && out != DType::F32 || biased && out != e {
            continue;
        }
        let layer = Adapted { bias: biased.then(|| rig.buf("bias")), ..layer };
        let what =
            |of: &str| format!("{of} of {case:?}, {} to {}, {how}, adds: {adds}", e.name(), out.name());
        case.fill(rig, e);
        if adds {
            rig.dev.matmul_add(buf(rig, "x"), layer.w, buf(rig, "out"), buf(rig, "out"))
        } else {
            rig.dev.matmul(buf(rig, "x"), layer.w, layer.bias, buf(rig, "out"), false)
        }
        let alone = rig.get("out");
        case.fill(rig, e);
        let resid = adds.then(|| rig.buf("out"));
        rig.dev.adapted(buf(rig, "x"), layer, resid, buf(rig, "u"), buf(rig, "out"));
        let (u, got) = (rig.get("u"), rig.get("out"));
        let product = |i: usize, j: usize| at(&x, i / sr * k + j) * at(&a, i % sr * k + j);
        check(&what("u"), &u, (k, e), |_| 0.0, SCALE, product);
        let product = |i: usize, j: usize| match case.block_of(i % n) {
            _ if j < k => at(&x, i / n * k + j) * at(&w, i % n * k + j),
            Some((block, row)) => at(&u, i / n * sr + block * r + j - k) * at(&b[block], row * r + j - k),
            None => 0.0,
        };
        let bias = rig.get("bias");
        let start = |i: usize| if adds { before[i] } else { f32::from(u8::from(biased)) * bias[i % n] };
        check_twice(&what("out"), &got, (k + r, out), start, product);
        for i in (0..got.len()).filter(|i| case.block_of(i % n).is_none()) {
            assert_eq!(got[i].to_bits(), alone[i].to_bits(), "{}", what("an output of no block"));
        }
        rig.check_guards();
    }
}

/// Panics unless adapters whose B is zero leave every bit of the outputs: an actor whose training begins is its
/// reference.
pub fn check_zeros<D: Machine>(case: &Case, rig: &Rig<D>, e: DType) {
    case.fill(rig, e);
    rig.dev.matmul(rig.buf("x"), case.layer(rig, e).w, None, rig.buf("out"), false);
    let alone = rig.get("out");
    for (i, &(_, n)) in case.blocks.iter().enumerate() {
        rig.set_matrix(B[i], n, case.r, e, &vec![0.0; n * case.r]);
    }
    case.adapt(rig, e);
    assert!(
        alone.iter().zip(rig.get("out")).all(|(x, y)| x.to_bits() == y.to_bits()),
        "{case:?}, {}",
        e.name()
    );
}

/// Panics unless `merge` gives what f64 gives, and the weights' own bits at the other outputs.
pub fn check_merge<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { n, k, r, .. } = case;
    let what = |of: &str| format!("{of} of {case:?}, {}, {how}", e.name());
    case.fill(rig, e);
    let [w, merged] = ["w", "merged"].map(|name| rig.matrix(name, n, k, e));
    rig.dev.merge(w, case.adapter(rig, "a", &B, e), merged);
    let (w, a) = (normal(7, n * k, 1.0, e), case.a(e));
    let b: Vec<Vec<f32>> = (0..case.blocks.len()).map(|i| case.b(i, e)).collect();
    let (got, padding_is_zero) = rig.get_matrix("merged", n, k, e);
    let product = |i: usize, j: usize| match case.block_of(i / k) {
        Some((block, row)) => at(&b[block], row * r + j) * at(&a, (block * r + j) * k + i % k),
        None => 0.0,
    };
    check(&what("a merged weight"), &got, (r, e), |i| w[i], SCALE, product);
    assert!(padding_is_zero, "{}", what("padding"));
    for i in (0..got.len()).filter(|i| case.block_of(i / k).is_none()) {
        assert_eq!(got[i].to_bits(), w[i].to_bits(), "{}", what("a weight of no block"));
    }
    rig.check_guards();
}

/// Panics unless the gradients are those of f64.
pub fn check_gradients<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, add: bool, how: &str) {
    let [out, g] = ["out", "da"].map(|name| rig.buf(name).dtype());
    let name = format!("{case:?}, {} to {}, {how}", e.name(), g.name());
    let what = |of: &str| format!("{of} of {name}");
    let &Case { m, n, k, r, blocks } = case;
    let sr = case.sr();
    case.fill(rig, e);
    case.adapt(rig, e);
    let [x, u, dy] = ["x", "u", "dy"].map(|name| rig.get(name));
    let (da, _) = rig.get_matrix("da", sr, k, e);
    case.backward(rig, e, add);
    let (du, a) = (rig.get("du"), case.a(e));
    for (block, &(first, of)) in blocks.iter().enumerate() {
        let b = case.b(block, e);
        let got: Vec<f32> = (0..m * r).map(|i| du[i / r * sr + block * r + i % r]).collect();
        let product = |i: usize, j: usize| at(&dy, i / r * n + first + j) * at(&b, j * r + i % r);
        check(&what("du"), &got, (of, e), |_| 0.0, SCALE, product);
        let start = normal(6, of * r, 1.0, g);
        let start = |i: usize| if add { start[i] } else { 0.0 };
        let product =
            |i: usize, j: usize| at(&dy, j * n + first + i / r) * at(&u, j * sr + block * r + i % r);
        let (got, padding_is_zero) = rig.get_matrix(DB[block], of, r, e);
        check_twice(&what("dB"), &got, (m, g), start, product);
        assert!(padding_is_zero, "{}", what("padding of dB"));
    }
    let product = |i: usize, j: usize| at(&du, j * sr + i / k) * at(&x, j * k + i % k);
    let (got, padding_is_zero) = rig.get_matrix("da", sr, k, e);
    check_twice(&what("dA"), &got, (m, g), |i| if add { da[i] } else { 0.0 }, product);
    assert!(padding_is_zero, "{}", what("padding of dA"));
    let w = normal(7, n * k, 1.0, e);
    let product = |i: usize, j: usize| match j.checked_sub(n) {
        Some(j) => at(&du, i / k * sr + j) * at(&a, j * k + i % k),
        None => at(&dy, i / k * n + j) * at(&w, j * k + i % k),
    };
    check_twice(&what("dx"), &rig.get("dx"), (n + sr, out), |_| 0.0, product);
    rig.check_guards();
}

/// Panics unless products with weights in codes have the widened matrix's bits. `rows`: the first ones of x and dy.
pub fn check_codes<D: Machine>(case: &Case, rig: &Rig<D>, e: DType, rows: &[usize]) {
    let &Case { m, n, k, .. } = case;
    let nf4 = Blocks::new(Encoding::Nf4, (rig.buf("codes"), Some(rig.buf("scales"))), n, k);
    rig.dev.write_rounded(nf4, 0, &normal(9, n * k, 1.0, F32));
    let layer = case.layer(rig, e);
    for &rows in rows {
        let run = |layer: Adapted<'static>| {
            let part = |name: &str| rig.buf(name).slice(0, rows * (rig.buf(name).len() / m));
            let bias = (part("out").dtype() == e).then(|| rig.buf("bias"));
            rig.dev.adapted(part("x"), Adapted { bias, ..layer }, None, part("u"), part("out"));
            rig.dev.adapt_backward_u(part("dy"), layer.adapter, part("du"));
            rig.dev.adapted_dx(part("dy"), layer, part("du"), part("dx"));
            ["u", "out", "dx"].map(|name| bits(&rig.get(name)[..part(name).len()]))
        };
        rig.dev.dequantize(Codes::of(nf4), layer.w);
        let widened = run(layer);
        rig.set_matrix("w", n, k, e, &vec![f32::NAN; n * k]);
        let coded = run(Adapted { codes: Some(Codes::of(nf4)), ..layer });
        for ((coded, widened), name) in coded.iter().zip(&widened).zip(["u", "out", "dx"]) {
            let differ = coded.iter().zip(widened).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{name} of {case:?}, {e:?}, {rows} rows");
        }
    }
}
