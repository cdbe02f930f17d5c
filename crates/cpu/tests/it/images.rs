//! Operations for rows of images against f64: norms by mean and variance, GELU, attention over whole segments, and
//! rotation by places of three numbers. A row's bits are its image's own, and threads change none.

use crate::both::{Rig, Sized, bits, check_close, close, f64s, normal, paths};
use plimsoll_arch::{Gelu, RopeAxes};
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_cpu::Isa;
use plimsoll_device::{
    AttentionBackward, Axes, Batch, Device, Heads, KV_BLOCK, Kv, LayerNorm, LayerNormGrads, NO_PARENT,
    RopeBackward, Rotation, Scores,
};

const EPS: f32 = 1e-6;

/// Runs on each instruction path, with one thread and with three; the bits must be equal.
fn on_paths(buffers: &[Sized<'_>], run: impl Fn(&Rig, Isa) -> Vec<f32>) {
    for isa in paths() {
        let outputs = [1, 3].map(|threads| {
            let mut rig = Rig::new(isa, threads, buffers);
            let out = run(&rig, isa);
            rig.check_guards();
            bits(&out)
        });
        assert!(outputs[0] == outputs[1], "{isa:?}: bits depend on threads");
    }
}

#[test]
fn norms_by_mean_and_variance_are_close_and_rows_are_their_own() {
    for (h, rows) in [(16, 5), (72, 67), (1152, 9)] {
        for (e, tolerance) in [(F32, 3e-6), (Bf16, 1.0 / 128.0)] {
            let n = rows * h;
            let sizes = [("x", F32, n), ("out", e, n), ("dy", e, n), ("dx", F32, n), ("rounded", e, n)];
            let of_weights =
                [("w", e, h), ("b", e, h), ("dw", F32, h), ("db", F32, h), ("stats", F32, 2 * rows)];
            on_paths(&[&sizes[..], &of_weights].concat(), |rig, isa| {
                let x: Vec<f32> = normal(1, n, 1.5, F32).iter().map(|x| x + 3.0).collect();
                let [w, b, dy] = [(2, h), (3, h), (4, n)].map(|(seed, n)| normal(seed, n, 1.0, e));
                let dx = normal(5, n, 1.0, F32);
                for (name, values) in [("x", &x), ("w", &w), ("b", &b), ("dy", &dy), ("dx", &dx)] {
                    rig.set(name, values);
                }
                let (dev, bufs) = rig.bufs();
                let norm = LayerNorm { w: bufs.buf("w"), b: bufs.buf("b"), eps: EPS };
                dev.layer_norm(bufs.buf("x"), norm, bufs.buf("out"));
                let to = LayerNormGrads {
                    dx: bufs.buf("dx"),
                    rounded: Some(bufs.buf("rounded")),
                    dw_db: Some((bufs.buf("dw"), bufs.buf("db"))),
                    add: false,
                    stats: bufs.buf("stats"),
                };
                dev.layer_norm_backward(bufs.buf("x"), norm, bufs.buf("dy"), to);
                let want = NormReference::of(&x, &w, &b, &dy, &dx);
                let out = rig.get("out");
                let size: Vec<f64> = want.out.iter().map(|y| y.abs().max(1.0)).collect();
                check_close(&out, &want.out, &size, tolerance, &format!("{isa:?} {e:?} out"));
                close("dx", &rig.get("dx"), &want.dx, 3e-5);
                close(
                    "rounded",
                    &rig.get("rounded"),
                    &f64s(&rig.get("dx")),
                    if e == F32 { 0.0 } else { 0.06 },
                );
                close("dw", &rig.get("dw"), &want.dw, 1e-4);
                close("db", &rig.get("db"), &want.db, 1e-4);
                // A row alone.
                let row = (rows - 1) * h;
                let alone = bufs.buf("rounded").slice(0, h);
                dev.layer_norm(bufs.buf("x").slice(row, h), norm, alone);
                assert_eq!(bits(&rig.get("rounded")[..h]), bits(&out[row..]), "{isa:?}: a row alone");
                [out, rig.get("dx"), rig.get("dw"), rig.get("db")].concat()
            });
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

#[test]
fn gelus_and_their_gradients_are_close_also_in_place() {
    let n = 10_007;
    for (e, tolerance) in [(F32, 1.5e-6), (Bf16, 1.0 / 100.0)] {
        for how in [Gelu::Tanh, Gelu::Erf] {
            on_paths(&["x", "y", "dy", "dx"].map(|name| (name, e, n)), |rig, isa| {
                let (mut x, dy) = (normal(1, n, 3.0, e), normal(2, n, 1.0, e));
                x[..6].copy_from_slice(&[0.0, -0.0, 30.0, -30.0, 1e4, -1e4]);
                rig.set("x", &x);
                rig.set("dy", &dy);
                let [bx, by, bdy, bdx] = ["x", "y", "dy", "dx"].map(|name| rig.buf(name));
                rig.dev.gelu(how, bx, by);
                rig.dev.gelu_backward(how, bx, bdy, bdx);
                let (y, dx) = (rig.get("y"), rig.get("dx"));
                let of: Vec<(f64, f64)> = x.iter().map(|&x| gelu(how, x.into())).collect();
                let size: Vec<f64> = x.iter().map(|x| f64::from(x.abs()).max(1.0)).collect();
                let want: Vec<f64> = of.iter().map(|of| of.0).collect();
                check_close(&y, &want, &size, tolerance, &format!("{isa:?} {how:?}"));
                let want: Vec<f64> = of.iter().zip(&dy).map(|(of, &d)| of.1 * f64::from(d)).collect();
                let size: Vec<f64> = dy.iter().map(|d| f64::from(d.abs()).max(1.0)).collect();
                check_close(&dx, &want, &size, 2.0 * tolerance, &format!("{isa:?} {how:?} gradient"));
                rig.dev.gelu_backward(how, bx, bdy, bdy);
                rig.dev.gelu(how, bx, bx);
                assert_eq!([bits(&rig.get("x")), bits(&rig.get("dy"))], [bits(&y), bits(&dx)], "in place");
                [y, dx].concat()
            });
        }
    }
}

/// Rows of images, one segment each.
struct Images {
    rows: Vec<usize>,
    heads: usize,
    d: usize,
    e: DType,
}

impl Images {
    fn total(&self) -> usize {
        self.rows.iter().sum()
    }
    fn blocks(&self) -> usize {
        self.rows.iter().map(|n| n.div_ceil(KV_BLOCK)).sum()
    }
    fn buffers(&self) -> Vec<Sized<'static>> {
        let (m, width) = (self.total(), self.heads * self.d);
        let cache = self.blocks() * KV_BLOCK * width;
        let of_rows = ["q", "out", "dout"].map(|name| (name, self.e, m * width));
        let rest = [
            ("keys", self.e, cache),
            ("values", self.e, cache),
            ("lse", F32, m * self.heads),
            ("dq", F32, m * width),
            ("dkv", F32, 2 * m * width),
            ("positions", U32, m),
            ("segments", U32, 5 * self.rows.len()),
            ("tables", U32, self.blocks()),
        ];
        of_rows.into_iter().chain(rest).collect()
    }

    /// Rows [m, heads, d] of a seed, the same for an image in any pass.
    fn values(&self, seed: u64) -> Vec<f32> {
        let of = |n: &usize| normal(seed * 100 + *n as u64, n * self.heads * self.d, 1.0, self.e);
        self.rows.iter().flat_map(of).collect()
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
    fn run(&self, rig: &Rig) -> [Vec<f32>; 3] {
        let [q, keys, values, dout] = [1, 2, 3, 4].map(|seed| self.values(seed));
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
        let [q, keys, values, dout] = [1, 2, 3, 4].map(|seed| f64s(&self.values(seed)));
        let (width, d) = (self.heads * self.d, self.d);
        let m = self.total();
        let mut to = [vec![0.0; m * width], vec![0.0; m * width], vec![0.0; 2 * m * width]];
        let (mut first, scale) = (0, 1.0 / (d as f64).sqrt());
        for n in &self.rows {
            for (row, head) in (0..*n).flat_map(|row| (0..self.heads).map(move |head| (row, head))) {
                let at = |row: usize| (first + row) * width + head * d;
                let product = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 {
                    a[at(i)..at(i) + d].iter().zip(&b[at(j)..at(j) + d]).map(|(a, b)| a * b).sum()
                };
                let weights: Vec<f64> =
                    (0..*n).map(|key| (product(&q, row, &keys, key) * scale).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let slopes: Vec<f64> = (0..*n).map(|key| product(&dout, row, &values, key)).collect();
                let mean: f64 = weights.iter().zip(&slopes).map(|(w, s)| w / sum * s).sum();
                for key in 0..*n {
                    let w = weights[key] / sum;
                    let ds = w * (slopes[key] - mean) * scale;
                    for i in 0..d {
                        to[0][at(row) + i] += w * values[at(key) + i];
                        to[1][at(row) + i] += ds * keys[at(key) + i];
                        let of_key = (first + key) * 2 * width + head * d + i;
                        to[2][of_key] += ds * q[at(row) + i];
                        to[2][of_key + width] += w * dout[at(row) + i];
                    }
                }
            }
            first += n;
        }
        to
    }
}

#[test]
fn rows_see_all_of_their_image_and_nothing_of_others() {
    for (d, e, last) in [(16, F32, 530), (64, F32, 70), (80, F32, 33), (64, Bf16, 70)] {
        let images = Images { rows: vec![37, last], heads: 2, d, e };
        let want = images.reference();
        on_paths(&images.buffers(), |rig, isa| {
            let got = images.run(rig);
            let tolerances = if e == F32 { [3e-6, 1e-5, 1e-5] } else { [0.02, 0.02, 0.03] };
            for (i, tolerance) in tolerances.into_iter().enumerate() {
                let what = format!("{isa:?} {d} {e:?}: {}", ["out", "dq", "dkv"][i]);
                close(&what, &got[i], &want[i], tolerance);
            }
            // Each image has the bits that it has alone.
            let mut first = 0;
            for n in &images.rows {
                let one = Images { rows: vec![*n], ..images };
                let alone = one.run(&Rig::new(isa, 2, &one.buffers()));
                for (all, own) in got.iter().zip(alone) {
                    let width = own.len() / n;
                    assert_eq!(bits(&all[first * width..][..own.len()]), bits(&own), "{isa:?}: {n} rows");
                }
                first += n;
            }
            got.concat()
        });
    }
}

#[test]
fn pairs_are_rotated_by_the_number_of_a_place_that_they_take() {
    const ROWS: usize = 21;
    const POSITIONS: usize = 40;
    for (d, width, axes) in [
        (16, 16, RopeAxes::Woven([4, 2, 2])),
        (64, 32, RopeAxes::Woven([6, 5, 5])),
        // A tower's: rows, then columns, of heads of 72 in 80.
        (80, 72, RopeAxes::Runs([0, 18, 18])),
    ] {
        let heads = Heads { heads: 2, kv_heads: 1, head_dim: d };
        let (of_q, of_k, cache) = (2 * d, d, 2 * KV_BLOCK * d);
        let sizes = [
            ("qkv", F32, ROWS * 4 * d),
            ("q", F32, ROWS * of_q),
            ("keys", F32, cache),
            ("values", F32, cache),
            ("dq", F32, ROWS * of_q),
            ("dkv", F32, ROWS * 2 * of_k),
            ("dqkv", F32, ROWS * 4 * d),
            ("rope", F32, POSITIONS * width),
            ("positions", U32, ROWS),
            ("places", U32, 3 * ROWS),
            ("slots", U32, ROWS),
        ];
        on_paths(&sizes, |rig, isa| {
            for (seed, name) in ["qkv", "dq", "dkv", "rope"].into_iter().enumerate() {
                rig.set(name, &normal(seed as u64, rig.buf(name).len(), 1.0, F32));
            }
            rig.set("keys", &vec![0.0; cache]);
            rig.set("values", &vec![0.0; cache]);
            rig.set_u32("slots", &(0..ROWS as u32).collect::<Vec<_>>());
            let places: Vec<[u32; 3]> =
                (0..ROWS as u32).map(|m| [m, m * 5 % 37, (m * 11 + 3) % POSITIONS as u32]).collect();
            rig.set_u32("places", places.as_flattened());
            let by = |axis: Option<usize>| {
                let positions: Vec<u32> = places.iter().map(|place| place[axis.unwrap_or(0)]).collect();
                rig.set_u32("positions", &positions);
                let axes = axis.is_none().then(|| Axes { places: rig.buf("places"), of: axes });
                let plain = Rotation::new(rig.buf("rope"));
                let rotation = Rotation { width: Some(width), q_scale: 1.1, axes, ..plain };
                let b = |name| rig.buf(name);
                let kv = Kv { keys: b("keys"), values: b("values"), kv_heads: 1, head_dim: d };
                let (positions, slots) = (b("positions"), b("slots"));
                let batch = Batch { positions, slots, segments: positions, tables: slots, keys_max: ROWS };
                rig.dev.rope(b("qkv"), None, rotation, batch, kv, b("q"));
                let (dq, dkv, dqkv) = (b("dq"), b("dkv"), b("dqkv"));
                rig.dev.rope_backward(RopeBackward {
                    dq,
                    dkv,
                    rotation,
                    positions,
                    heads,
                    norms: None,
                    dqkv,
                });
                [rig.get("q"), rig.get_keys("keys", d), rig.get("dqkv")]
            };
            let (got, of_axes) = (by(None), [0, 1, 2].map(|axis| by(Some(axis))));
            for (i, got) in got.iter().enumerate() {
                for (at, x) in got.iter().enumerate() {
                    // Values of dqkv are not rotated: any axis gives them.
                    let pair = if at % d < width { at % d % (width / 2) } else { 0 };
                    let want = of_axes[axes.of(pair as u32)][i][at];
                    assert_eq!(x.to_bits(), want.to_bits(), "{isa:?} {d}: element {at} of {i}");
                }
            }
            got.concat()
        });
    }
}

#[test]
fn rows_are_weighed_and_put_where_they_are_asked_for() {
    let sizes =
        [("x", F32, 3 * 20), ("by", F32, 3), ("out", F32, 5 * 20), ("rows", U32, 3), ("places", U32, 6)];
    on_paths(&sizes, |rig, _| {
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
        rig.set_u32("places", &[0, 1, 2, 7, 7, 7]);
        rig.dev.next_places(rig.buf("places"));
        assert_eq!(rig.get_u32("places"), [1, 2, 3, 8, 8, 8]);
        put
    });
}
