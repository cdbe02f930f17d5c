//! Operations for rows of images against f64: norms by mean and variance, GELU, attention over whole segments, and
//! rotation by places of three numbers. A row's bits are its image's own.

use super::{Machine, Open, Rig, Sized, bits, check_close, close, f64s, normal};
use plimsoll_arch::{Gelu, QkNorms, RopeAxes};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{
    AttentionBackward, Axes, Batch, Heads, KV_BLOCK, Kv, LayerNorm, LayerNormGrads, NO_PARENT, QkNorm,
    QkNormBackward, RopeBackward, Rotation, Scores,
};

const EPS: f32 = 1e-6;

/// Rows of a norm by mean and variance, of one width and dtype.
#[derive(Clone, Copy)]
pub struct Norms {
    pub h: usize,
    pub rows: usize,
    pub e: DType,
}

impl Norms {
    pub fn buffers(self) -> Vec<Sized<'static>> {
        let Norms { h, rows, e } = self;
        let n = rows * h;
        let sizes = [("x", F32, n), ("out", e, n), ("dy", e, n), ("dx", F32, n), ("rounded", e, n)];
        let of_weights = [("w", e, h), ("b", e, h), ("dw", F32, h), ("db", F32, h), ("stats", F32, 2 * rows)];
        [&sizes[..], &of_weights].concat()
    }

    /// x, w, b, dy, and dx before.
    fn inputs(self) -> [Vec<f32>; 5] {
        let Norms { h, rows, e } = self;
        let x = normal(1, rows * h, 1.5, F32).iter().map(|x| x + 3.0).collect();
        let [w, b, dy] = [(2, h), (3, h), (4, rows * h)].map(|(seed, n)| normal(seed, n, 1.0, e));
        [x, w, b, dy, normal(5, rows * h, 1.0, F32)]
    }

    fn norm<D: Machine>(rig: &Rig<D>) -> LayerNorm<'static> {
        LayerNorm { w: rig.buf("w"), b: rig.buf("b"), eps: EPS }
    }

    fn backward<D: Machine>(rig: &Rig<D>, add: bool) {
        let to = LayerNormGrads {
            dx: rig.buf("dx"),
            rounded: Some(rig.buf("rounded")),
            dw_db: Some((rig.buf("dw"), rig.buf("db"))),
            add,
            stats: rig.buf("stats"),
        };
        rig.dev.layer_norm_backward(rig.buf("x"), Norms::norm(rig), rig.buf("dy"), to);
    }

    /// Returns out, dx, rounded, dw and db.
    pub fn run<D: Machine>(self, rig: &Rig<D>) -> [Vec<f32>; 5] {
        for (name, values) in ["x", "w", "b", "dy", "dx"].iter().zip(self.inputs()) {
            rig.set(name, &values);
        }
        rig.dev.layer_norm(rig.buf("x"), Norms::norm(rig), rig.buf("out"));
        Norms::backward(rig, false);
        ["out", "dx", "rounded", "dw", "db"].map(|name| rig.get(name))
    }
}

pub fn norms_by_mean_and_variance_are_close_and_rows_are_their_own<D: Machine>(open: Open<D>) {
    for (h, rows) in [(16, 5), (72, 67), (1152, 9)] {
        for (e, tolerance) in [(F32, 3e-6), (Bf16, 1.0 / 128.0)] {
            let case = Norms { h, rows, e };
            let [x, w, b, dy, dx] = case.inputs();
            let want = NormReference::of(&x, &w, &b, &dy, &dx);
            let size: Vec<f64> = want.out.iter().map(|y| y.abs().max(1.0)).collect();
            for mut rig in open(&case.buffers()) {
                let [out, dx, rounded, dw, db] = case.run(&rig);
                check_close(&out, &want.out, &size, tolerance, &format!("{e:?} {h} out"));
                close("dx", &dx, &want.dx, 3e-5);
                close("rounded", &rounded, &f64s(&dx), if e == F32 { 0.0 } else { 0.06 });
                close("dw", &dw, &want.dw, 1e-4);
                close("db", &db, &want.db, 1e-4);
                // A row alone.
                let row = (rows - 1) * h;
                let alone = rig.buf("rounded").slice(0, h);
                rig.dev.layer_norm(rig.buf("x").slice(row, h), Norms::norm(&rig), alone);
                assert_eq!(bits(&rig.get("rounded")[..h]), bits(&out[row..]), "{e:?} {h}: a row alone");
                Norms::backward(&rig, true);
                let twice = |x: &[f32]| x.iter().map(|x| (2.0 * x).to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    [bits(&rig.get("dw")), bits(&rig.get("db"))],
                    [twice(&dw), twice(&db)],
                    "added to"
                );
                rig.check_guards();
            }
        }
    }
}

struct NormReference {
    out: Vec<f64>,
    dx: Vec<f64>,
    dw: Vec<f64>,
    db: Vec<f64>,
}

impl NormReference {
    fn of(x: &[f32], w: &[f32], b: &[f32], dy: &[f32], dx: &[f32]) -> NormReference {
        let h = w.len();
        let [x, w, b, dy] = [x, w, b, dy].map(f64s);
        let mut to = NormReference { out: vec![], dx: f64s(dx), dw: vec![0.0; h], db: vec![0.0; h] };
        for (m, (x, dy)) in x.chunks(h).zip(dy.chunks(h)).enumerate() {
            let mean = x.iter().sum::<f64>() / h as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / h as f64;
            let r = 1.0 / (variance + f64::from(EPS)).sqrt();
            let hat: Vec<f64> = x.iter().map(|x| (x - mean) * r).collect();
            let g: Vec<f64> = dy.iter().zip(&w).map(|(d, w)| d * w).collect();
            let [of_g, of_hat] = [g.iter().sum::<f64>(), g.iter().zip(&hat).map(|(g, x)| g * x).sum()];
            for i in 0..h {
                to.out.push(hat[i] * w[i] + b[i]);
                to.dx[m * h + i] += r * (g[i] - of_g / h as f64 - hat[i] * of_hat / h as f64);
                to.dw[i] += dy[i] * hat[i];
                to.db[i] += dy[i];
            }
        }
        to
    }
}

/// erf by its series; beyond 4 it is 1 to 1.5e-8.
fn erf(x: f64) -> f64 {
    if x.abs() > 4.0 {
        return x.signum();
    }
    let (mut sum, mut term) = (0.0, x);
    for n in 0..120 {
        sum += term / f64::from(2 * n + 1);
        term *= -x * x / f64::from(n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// GELU and its slope.
fn gelu(how: Gelu, x: f64) -> (f64, f64) {
    match how {
        Gelu::Erf => {
            let share = (1.0 + erf(x / 2f64.sqrt())) / 2.0;
            let bell = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
            (x * share, share + x * bell)
        }
        Gelu::Tanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let t = (root * (x + 0.044715 * x.powi(3))).tanh();
            let inner = root * (1.0 + 3.0 * 0.044715 * x * x);
            (x * (1.0 + t) / 2.0, (1.0 + t) / 2.0 + x * (1.0 - t * t) * inner / 2.0)
        }
    }
}

/// Gates of both kinds and their gradients, also in place; buffers `x`, `y`, `dy`, `dx`. Returns y and dx.
pub fn run_gelu<D: Machine>(how: Gelu, rig: &Rig<D>, x: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
    rig.set("x", x);
    rig.set("dy", dy);
    let [bx, by, bdy, bdx] = ["x", "y", "dy", "dx"].map(|name| rig.buf(name));
    rig.dev.gelu(how, bx, by);
    rig.dev.gelu_backward(how, bx, bdy, bdx);
    let (y, dx) = (rig.get("y"), rig.get("dx"));
    rig.dev.gelu_backward(how, bx, bdy, bdy);
    rig.dev.gelu(how, bx, bx);
    assert_eq!([bits(&rig.get("x")), bits(&rig.get("dy"))], [bits(&y), bits(&dx)], "in place");
    [y, dx]
}

pub fn gelus_and_their_gradients_are_close_also_in_place<D: Machine>(open: Open<D>) {
    let n = 10_007;
    for (e, tolerance) in [(F32, 1.5e-6), (Bf16, 1.0 / 100.0)] {
        for how in [Gelu::Tanh, Gelu::Erf] {
            let (mut x, dy) = (normal(1, n, 3.0, e), normal(2, n, 1.0, e));
            x[..6].copy_from_slice(&super::stored(e, &[0.0, -0.0, 30.0, -30.0, 1e4, -1e4]));
            let of: Vec<(f64, f64)> = x.iter().map(|&x| gelu(how, x.into())).collect();
            for mut rig in open(&["x", "y", "dy", "dx"].map(|name| (name, e, n))) {
                let [y, dx] = run_gelu(how, &rig, &x, &dy);
                let size: Vec<f64> = x.iter().map(|x| f64::from(x.abs()).max(1.0)).collect();
                let want: Vec<f64> = of.iter().map(|of| of.0).collect();
                check_close(&y, &want, &size, tolerance, &format!("{e:?} {how:?}"));
                let want: Vec<f64> = of.iter().zip(&dy).map(|(of, &d)| of.1 * f64::from(d)).collect();
                let size: Vec<f64> = dy.iter().map(|d| f64::from(d.abs()).max(1.0)).collect();
                check_close(&dx, &want, &size, 2.0 * tolerance, &format!("{e:?} {how:?} gradient"));
                rig.check_guards();
            }
        }
    }
}

/// Rows of images, one segment each.
#[derive(Clone)]
pub struct Images {
    pub rows: Vec<usize>,
    pub heads: usize,
    /// Query heads of each of them.
    pub group: usize,
    pub d: usize,
    pub e: DType,
}

impl Images {
    fn total(&self) -> usize {
        self.rows.iter().sum()
    }
    fn blocks(&self) -> usize {
        self.rows.iter().map(|n| n.div_ceil(KV_BLOCK)).sum()
    }
    pub fn buffers(&self) -> Vec<Sized<'static>> {
        let (m, width) = (self.total(), self.heads * self.d);
        let cache = self.blocks() * KV_BLOCK * width;
        let of_rows = ["q", "out", "dout"].map(|name| (name, self.e, m * self.group * width));
        let rest = [
            ("keys", self.e, cache),
            ("values", self.e, cache),
            ("lse", F32, m * self.group * self.heads),
            ("dq", F32, m * self.group * width),
            ("dkv", F32, 2 * m * width),
            ("positions", U32, m),
            ("segments", U32, 5 * self.rows.len()),
            ("tables", U32, self.blocks()),
        ];
        of_rows.into_iter().chain(rest).collect()
    }

    /// Rows [m, heads, d] of a seed, the same for an image in any pass.
    fn values(&self, seed: u64, heads: usize) -> Vec<f32> {
        let of = |n: &usize| normal(seed * 100 + *n as u64, n * heads * self.d, 1.0, self.e);
        self.rows.iter().flat_map(of).collect()
    }

    /// q, keys, values, dout.
    fn inputs(&self) -> [Vec<f32>; 4] {
        let (k, a) = (self.heads, self.group * self.heads);
        [(1, a), (2, k), (3, k), (4, a)].map(|(seed, heads)| self.values(seed, heads))
    }

    /// Returns rows as blocks of a cache, [blocks, heads, 16, d], with NaN where no row is.
    fn cached(&self, rows: &[f32]) -> Vec<f32> {
        let (width, d) = (self.heads * self.d, self.d);
        let mut cache = vec![f32::NAN; self.blocks() * KV_BLOCK * width];
        let (mut first, mut block) = (0, 0);
        for n in &self.rows {
            for i in 0..*n {
                for head in 0..self.heads {
                    let at = (((block + i / KV_BLOCK) * self.heads + head) * KV_BLOCK + i % KV_BLOCK) * d;
                    cache[at..at + d].copy_from_slice(&rows[(first + i) * width + head * d..][..d]);
                }
            }
            (first, block) = (first + n, block + n.div_ceil(KV_BLOCK));
        }
        cache
    }

    /// Returns outputs and gradients: out, dq, dkv.
    pub fn run<D: Machine>(&self, rig: &Rig<D>) -> [Vec<f32>; 3] {
        let [q, keys, values, dout] = self.inputs();
        rig.set("q", &q);
        rig.set_keys("keys", self.d, &self.cached(&keys));
        rig.set("values", &self.cached(&values));
        rig.set("dout", &dout);
        let (mut segments, mut first, mut block) = (vec![], 0, 0);
        for n in &self.rows {
            segments.extend([first, *n as u32, 0, block, NO_PARENT]);
            (first, block) = (first + *n as u32, block + n.div_ceil(KV_BLOCK) as u32);
        }
        rig.set_u32("segments", &segments);
        rig.set_u32("tables", &(0..block).collect::<Vec<_>>());
        let b = |name| rig.buf(name);
        let kv = Kv { keys: b("keys"), values: b("values"), kv_heads: self.heads, head_dim: self.d };
        let (positions, keys_max) = (b("positions"), *self.rows.iter().max().unwrap());
        let batch =
            Batch { positions, slots: positions, segments: b("segments"), tables: b("tables"), keys_max };
        let (q, out, lse) = (b("q"), b("out"), b("lse"));
        rig.dev.attention(q, kv, batch, Scores::of_whole(), out, Some(lse));
        let (dout, dq, dkv) = (b("dout"), b("dq"), b("dkv"));
        let scores = Scores::of_whole();
        rig.dev.attention_backward(AttentionBackward { q, kv, batch, scores, out, lse, dout, dq, dkv });
        ["out", "dq", "dkv"].map(|name| rig.get(name))
    }

    /// The same in f64, for the f32 numbers that the device has.
    fn reference(&self) -> [Vec<f64>; 3] {
        let [q, keys, values, dout] = self.inputs().map(|x| f64s(&x));
        let (k, a, d) = (self.heads, self.group * self.heads, self.d);
        let m = self.total();
        let mut to = [vec![0.0; m * a * d], vec![0.0; m * a * d], vec![0.0; 2 * m * k * d]];
        let (mut first, scale) = (0, 1.0 / (d as f64).sqrt());
        for n in &self.rows {
            for (row, head) in (0..*n).flat_map(|row| (0..a).map(move |head| (row, head))) {
                let at = ((first + row) * a + head) * d;
                let of_key = |key: usize| ((first + key) * k + head / self.group) * d;
                let product = |x: &[f64], y: &[f64], key: usize| -> f64 {
                    x[at..at + d].iter().zip(&y[of_key(key)..][..d]).map(|(x, y)| x * y).sum()
                };
                let weights: Vec<f64> = (0..*n).map(|key| (product(&q, &keys, key) * scale).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let slopes: Vec<f64> = (0..*n).map(|key| product(&dout, &values, key)).collect();
                let mean: f64 = weights.iter().zip(&slopes).map(|(w, s)| w / sum * s).sum();
                for key in 0..*n {
                    let w = weights[key] / sum;
                    let ds = w * (slopes[key] - mean) * scale;
                    let (from, dk) = (of_key(key), of_key(key) + (first + key) * k * d);
                    for i in 0..d {
                        to[0][at + i] += w * values[from + i];
                        to[1][at + i] += ds * keys[from + i];
                        to[2][dk + i] += ds * q[at + i];
                        to[2][dk + k * d + i] += w * dout[at + i];
                    }
                }
            }
            first += n;
        }
        to
    }
}

/// Images of 37 rows and of `last`, of `heads` heads of d elements with `group` queries each.
pub fn images(last: usize, heads: usize, group: usize, d: usize, e: DType) -> Images {
    Images { rows: vec![37, last], heads, group, d, e }
}

/// On a card heads of 64, 128 and 256 elements in bf16 have kernels on tensor cores.
pub fn rows_see_all_of_their_image_and_nothing_of_others<D: Machine>(open: Open<D>) {
    for case in [
        images(530, 2, 1, 16, F32),
        images(70, 2, 1, 64, F32),
        images(33, 2, 1, 80, F32),
        images(33, 2, 1, 80, Bf16),
        images(70, 2, 1, 64, Bf16),
        images(530, 1, 2, 64, Bf16),
        images(130, 1, 1, 128, Bf16),
        images(130, 1, 1, 256, Bf16),
    ] {
        let want = case.reference();
        for (path, mut rig) in open(&case.buffers()).into_iter().enumerate() {
            let got = case.run(&rig);
            rig.check_guards();
            let tolerances = if case.e == F32 { [5e-6, 2e-5, 2e-5] } else { [0.02, 0.02, 0.03] };
            for (i, tolerance) in tolerances.into_iter().enumerate() {
                let what = format!("{} {:?}: {}", case.d, case.e, ["out", "dq", "dkv"][i]);
                close(&what, &got[i], &want[i], tolerance);
            }
            // Each image has the bits that it has alone.
            let mut first = 0;
            for n in &case.rows {
                let one = Images { rows: vec![*n], ..case.clone() };
                let rig = &open(&one.buffers())[path];
                for (all, own) in got.iter().zip(one.run(rig)) {
                    let of_image = &all[first * own.len() / n..][..own.len()];
                    assert!(bits(of_image) == bits(&own), "{} {:?}: {n} rows", case.d, case.e);
                }
                first += n;
            }
        }
    }
}

const ROWS: usize = 21;
const POSITIONS: usize = 40;

/// Heads of d elements, the first `width` of which are rotated by places of three numbers.
#[derive(Clone, Copy)]
pub struct Turned {
    pub d: usize,
    pub width: usize,
    pub axes: RopeAxes,
    pub norms: Option<QkNorms>,
}

impl Turned {
    fn heads(self) -> Heads {
        Heads { heads: 2, kv_heads: 1, head_dim: self.d }
    }

    pub fn buffers(self) -> Vec<Sized<'static>> {
        let Turned { d, width, .. } = self;
        let cache = 2 * KV_BLOCK * d;
        vec![
            ("qkv", F32, ROWS * 4 * d),
            ("q", F32, ROWS * 2 * d),
            ("keys", F32, cache),
            ("values", F32, cache),
            ("dq", F32, ROWS * 2 * d),
            ("dkv", F32, ROWS * 2 * d),
            ("dqkv", F32, ROWS * 4 * d),
            ("rope", F32, POSITIONS * width),
            ("norm q", F32, self.weights()[0]),
            ("norm k", F32, self.weights()[1]),
            ("d norm q", F32, self.weights()[0]),
            ("d norm k", F32, self.weights()[1]),
            ("positions", U32, ROWS),
            ("places", U32, 3 * ROWS),
            ("slots", U32, ROWS),
        ]
    }

    /// Elements of the norms' weights of queries and of keys.
    fn weights(self) -> [usize; 2] {
        if self.norms == Some(QkNorms::Rows) { [2 * self.d, self.d] } else { [self.d; 2] }
    }

    pub fn fill<D: Machine>(self, rig: &Rig<D>) {
        for (seed, name) in ["qkv", "dq", "dkv", "rope", "norm q", "norm k"].into_iter().enumerate() {
            rig.set(name, &normal(seed as u64, rig.buf(name).len(), 1.0, F32));
        }
        for name in ["keys", "values"] {
            rig.set(name, &vec![0.0; rig.buf(name).len()]);
        }
        rig.set_u32("slots", &(0..ROWS as u32).collect::<Vec<_>>());
    }

    /// Returns q, keys, dqkv and the gradients of the norms' weights, by positions or by places.
    pub fn run<D: Machine>(
        self,
        rig: &Rig<D>,
        positions: &[u32],
        places: Option<&[[u32; 3]]>,
    ) -> [Vec<f32>; 5] {
        rig.set_u32("positions", positions);
        places.into_iter().for_each(|places| rig.set_u32("places", places.as_flattened()));
        for name in ["d norm q", "d norm k"] {
            rig.set(name, &vec![0.0; rig.buf(name).len()]);
        }
        let b = |name| rig.buf(name);
        let axes = places.map(|_| Axes { places: b("places"), of: self.axes });
        let rotation = Rotation { width: Some(self.width), q_scale: 1.1, axes, ..Rotation::new(b("rope")) };
        let kv = Kv { keys: b("keys"), values: b("values"), kv_heads: 1, head_dim: self.d };
        let (positions, slots, qkv) = (b("positions"), b("slots"), b("qkv"));
        let batch = Batch { positions, slots, segments: positions, tables: slots, keys_max: ROWS };
        let norm = self.norms.map(|of| QkNorm { q: b("norm q"), k: b("norm k"), eps: EPS, offset: 0.0, of });
        rig.dev.rope(qkv, norm, rotation, batch, kv, b("q"));
        let (dq, dkv, dqkv, heads) = (b("dq"), b("dkv"), b("dqkv"), self.heads());
        let (dq_weight, dk_weight) = (Some(b("d norm q")), Some(b("d norm k")));
        let norms = norm.map(|norm| QkNormBackward { norm, qkv, dq_weight, dk_weight });
        rig.dev.rope_backward(RopeBackward { dq, dkv, rotation, positions, heads, norms, dqkv });
        let of_norms = ["d norm q", "d norm k"].map(|name| rig.get(name));
        let [dq_norm, dk_norm] = of_norms;
        [rig.get("q"), rig.get_keys("keys", self.d), rig.get("dqkv"), dq_norm, dk_norm]
    }
}

/// Places in which all three numbers differ.
pub fn scattered() -> Vec<[u32; 3]> {
    (0..ROWS as u32).map(|m| [m, m * 5 % 37, (m * 11 + 3) % POSITIONS as u32]).collect()
}

pub fn pairs_are_rotated_by_the_number_of_a_place_that_they_take<D: Machine>(open: Open<D>) {
    let (woven, heads) = (RopeAxes::Woven([4, 2, 2]), Some(QkNorms::Heads));
    let part = RopeAxes::Woven([6, 5, 5]);
    for case in [
        Turned { d: 16, width: 16, axes: woven, norms: None },
        Turned { d: 16, width: 16, axes: woven, norms: heads },
        Turned { d: 16, width: 16, axes: woven, norms: Some(QkNorms::Rows) },
        Turned { d: 64, width: 32, axes: part, norms: None },
        Turned { d: 64, width: 32, axes: part, norms: heads },
        // A tower's: rows, then columns, of heads of 72 in 80.
        Turned { d: 80, width: 72, axes: RopeAxes::Runs([0, 18, 18]), norms: None },
    ] {
        let Turned { d, width, axes, norms } = case;
        let places = scattered();
        for mut rig in open(&case.buffers()) {
            case.fill(&rig);
            let by = |axis: usize| -> Vec<u32> { places.iter().map(|place| place[axis]).collect() };
            let got = case.run(&rig, &by(0), Some(&places));
            let of_axes = [0, 1, 2].map(|axis| case.run(&rig, &by(axis), None));
            // A norm mixes the pairs of a head in the backward pass.
            for (i, got) in got.iter().enumerate().take(if norms.is_some() { 2 } else { 3 }) {
                for (at, x) in got.iter().enumerate() {
                    // Values of dqkv are not rotated: any axis gives them.
                    let within = at % d;
                    let pair = if within < width { within % (width / 2) } else { 0 };
                    let want = of_axes[axes.of(pair as u32)][i][at];
                    assert_eq!(x.to_bits(), want.to_bits(), "{d} {norms:?}: element {at} of {i}");
                }
            }
            let equal: Vec<[u32; 3]> = by(2).iter().map(|&position| [position; 3]).collect();
            let same = case.run(&rig, &by(2), Some(&equal));
            let is_same = same.iter().zip(&of_axes[2]).all(|(a, b)| bits(a) == bits(b));
            assert!(is_same, "{d} {norms:?}: one number");
            rig.check_guards();
        }
    }
}

pub fn rows_are_weighed_and_put_where_they_are_asked_for<D: Machine>(open: Open<D>) {
    let sizes =
        [("x", F32, 3 * 20), ("by", F32, 3), ("out", F32, 5 * 20), ("rows", U32, 3), ("places", U32, 6)];
    for mut rig in open(&sizes) {
        let x = normal(1, 60, 1.0, F32);
        rig.set("x", &x);
        rig.set("by", &[0.5, 0.0, -2.0]);
        rig.set("out", &[1.0; 100]);
        rig.set_u32("rows", &[4, 0, 2]);
        let out = rig.buf("out").slice(0, 60);
        rig.dev.weigh_rows(rig.buf("x"), rig.buf("by"), out, true);
        let added = rig.get("out");
        assert!((0..60).all(|i| added[i] == 1.0 + x[i] * [0.5, 0.0, -2.0][i / 20]));
        rig.dev.replace_rows(rig.buf("x"), rig.buf("rows"), rig.buf("out"));
        let put = rig.get("out");
        assert_eq!([&put[80..], &put[..20], &put[40..60]], [&x[..20], &x[20..40], &x[40..]]);
        assert_eq!((&put[20..40], &put[60..80]), (&added[20..40], &added[60..80]));
        rig.dev.weigh_rows(rig.buf("x"), rig.buf("by"), out, false);
        let written = rig.get("out");
        assert!((0..60).all(|i| written[i] == x[i] * [0.5, 0.0, -2.0][i / 20]));
        rig.set_u32("places", &[0, 1, 2, 7, 7, 7]);
        rig.dev.next_places(rig.buf("places"));
        assert_eq!(rig.get_u32("places"), [1, 2, 3, 8, 8, 8]);
        rig.check_guards();
    }
}
