//! Experts over the rows of a pass: shapes, buffers, and checks against f64.
#![allow(dead_code)] // Each binary uses its part.

use super::experts_route::set_corrections;
use super::{Machine, Rig, Sized, bits, check_close, check_norm, f64s, normal, round};
use plimsoll_arch::Gate;
use plimsoll_base::DType::{self, Bf16, F32, U32};
use plimsoll_device::{
    Balance, CORRECTION_TERMS, Experts, ExpertsBackward, GluExpertsBackward, Layouts, MatrixLayout,
    NO_PARENT, RouteBackward, Routes, Routing, RowsOf, SEGMENT_FIELDS, Sigmoid, matrix_elements,
};
use std::ops::Range;

/// A layer of experts, and how unequally its router loads them.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub h: usize,
    pub f: usize,
    pub experts: usize,
    pub chosen: usize,
    pub normalizes: bool,
    pub load: Load,
    /// The groups, and those that a row chooses in, of a router whose scores are sigmoids.
    pub sigmoid: Option<[usize; 2]>,
}

/// The factor of routers whose scores are sigmoids.
pub const FACTOR: f32 = 2.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Chosen by random numbers.
    Even,
    /// The last expert is in every row, and the first in none.
    Skewed,
}

const fn case(m: usize, h: usize, f: usize, [experts, chosen]: [usize; 2], load: Load) -> Case {
    Case { m, h, f, experts, chosen, normalizes: true, load, sigmoid: None }
}

/// Single rows and more rows than a block, one expert and all of them, widths of half a tile and more than one, and
/// loads of all rows and of none; sigmoids in one group and in several.
pub const CASES: &[Case] = &[
    case(1, 32, 16, [4, 2], Load::Even),
    Case { normalizes: false, ..case(7, 64, 48, [6, 2], Load::Skewed) },
    case(67, 64, 32, [8, 1], Load::Even),
    case(150, 96, 80, [5, 3], Load::Skewed),
    Case { normalizes: false, ..case(40, 32, 16, [20, 20], Load::Even) },
    case(33, 48, 32, [128, 8], Load::Skewed),
    Case { sigmoid: Some([1, 1]), ..case(67, 32, 16, [6, 2], Load::Even) },
    Case { sigmoid: Some([1, 1]), normalizes: false, ..case(9, 32, 16, [5, 3], Load::Skewed) },
    Case { sigmoid: Some([4, 2]), ..case(70, 32, 16, [8, 3], Load::Even) },
    Case { sigmoid: Some([8, 4]), ..case(40, 32, 16, [256, 8], Load::Even) },
    Case { sigmoid: Some([10, 3]), ..case(33, 32, 16, [130, 6], Load::Skewed) },
];

/// The parent of a segment: the first one, of all others.
fn parent(first: usize) -> u32 {
    if first == 0 { NO_PARENT } else { 0 }
}

/// Segments of a pass: the first row and the rows of each.
pub fn segments(m: usize) -> Vec<(usize, usize)> {
    let cuts = [0, m / 4, m / 4 + m / 2, m];
    cuts.windows(2).filter(|ends| ends[0] < ends[1]).map(|ends| (ends[0], ends[1] - ends[0])).collect()
}

impl Case {
    /// P.
    pub fn pairs(&self) -> usize {
        self.m * self.chosen
    }

    pub fn routing<D: Machine>(&self, rig: &Rig<D>) -> Routing<'static> {
        let of = |[groups, groups_chosen]: [usize; 2]| Sigmoid {
            correction: rig.buf("correction"),
            groups,
            groups_chosen,
            factor: FACTOR,
        };
        let Case { experts, chosen, normalizes, .. } = *self;
        Routing { experts, chosen, normalizes, sigmoid: self.sigmoid.map(of) }
    }

    /// Gives the router its corrections.
    pub fn correct<D: Machine>(&self, rig: &Rig<D>) {
        set_corrections(rig, &self.corrections());
    }

    /// The corrections of a router's choice.
    pub fn corrections(&self) -> Vec<f32> {
        normal(10, self.experts, 0.3, F32)
    }

    /// The buffers; `g` is the dtype of the gradients of weights.
    pub fn buffers(&self, kind: &'static Layouts, e: DType, g: DType) -> Vec<Sized<'static>> {
        let &Case { m, h, f, experts, .. } = self;
        let p = self.pairs();
        let all = |n: usize, k: usize| experts * matrix_elements(kind, n as u64, k as u64, e) as usize;
        let pack = |n: usize, k: usize| (kind.pack)(m as u64, n as u64, k as u64, e) as usize;
        vec![
            ("logits", F32, m * experts),
            ("correction", e, CORRECTION_TERMS * experts),
            ("experts", U32, p),
            ("weights", F32, p),
            ("pairs", U32, p),
            ("places", U32, p),
            ("starts", U32, experts + 1),
            ("x", e, m * h),
            ("w1", e, all(2 * f, h)),
            ("w2", e, all(h, f)),
            ("gate_up", e, p * 2 * f),
            ("product", e, p * f),
            ("y", F32, p * h),
            ("y_e", e, p * h),
            ("resid", F32, m * h),
            ("out", F32, m * h),
            ("out_e", e, m * h),
            ("dy", e, m * h),
            ("d_product", e, p * f),
            ("d_product_f32", F32, p * f),
            ("d_weights", F32, p),
            ("dx", F32, p * h),
            ("dw1", g, all(2 * f, h)),
            ("dw2", g, all(h, f)),
            ("d_logits", F32, m * experts),
            ("d_logits_e", e, m * experts),
            ("segments", U32, segments(m).len() * SEGMENT_FIELDS),
            ("rows", F32, m),
            ("pack", e, pack(2 * f, h).max(pack(h, f)).max(1)),
        ]
    }

    /// Gives logits, weights, inputs and gradients numbers.
    pub fn fill<D: Machine>(&self, rig: &Rig<D>, e: DType) {
        let &Case { m, h, f, experts, .. } = self;
        let g = rig.buf("dw1").dtype();
        rig.set("logits", &self.logits());
        self.correct(rig);
        rig.set("x", &normal(1, m * h, 1.0, e));
        rig.set("resid", &normal(2, m * h, 1.0, F32));
        rig.set("dy", &normal(3, m * h, 1.0, e));
        rig.set_matrix("w1", experts * 2 * f, h, e, &self.w1(e));
        rig.set_matrix("w2", experts * h, f, e, &self.w2(e));
        rig.set_matrix("dw1", experts * 2 * f, h, e, &normal(6, experts * 2 * f * h, 1.0, g));
        rig.set_matrix("dw2", experts * h, f, e, &normal(7, experts * h * f, 1.0, g));
        let records: Vec<u32> = segments(m)
            .iter()
            .flat_map(|&(first, n)| [first as u32, n as u32, 0, 0, parent(first)])
            .collect();
        rig.set_u32("segments", &records);
    }

    pub fn logits(&self) -> Vec<f32> {
        let mut logits = normal(8, self.m * self.experts, 2.0, F32);
        if self.load == Load::Skewed {
            for row in logits.chunks_mut(self.experts) {
                row[0] = -30.0;
                row[self.experts - 1] += 20.0;
            }
        }
        logits
    }

    pub fn w1(&self, e: DType) -> Vec<f32> {
        normal(4, self.experts * 2 * self.f * self.h, 1.0 / (self.h as f32).sqrt(), e)
    }

    pub fn w2(&self, e: DType) -> Vec<f32> {
        normal(5, self.experts * self.h * self.f, 1.0 / (self.f as f32).sqrt(), e)
    }

    /// The routes of the first `m` rows.
    pub fn routes<D: Machine>(&self, rig: &Rig<D>, m: usize) -> Routes<'static> {
        let part = |name| rig.buf(name).slice(0, m * self.chosen);
        Routes {
            experts: part("experts"),
            weights: part("weights"),
            pairs: part("pairs"),
            places: part("places"),
            starts: rig.buf("starts"),
        }
    }

    /// The matrices of all experts, or their gradients.
    pub fn all<D: Machine>(&self, rig: &Rig<D>, name: &str, e: DType) -> Experts<'static> {
        let layout = MatrixLayout::of_weights(rig.dev.kind(), e);
        let (n, k) = if name.ends_with('1') { (2 * self.f, self.h) } else { (self.h, self.f) };
        Experts::new(rig.buf(name), self.experts, n, k, layout)
    }

    /// The forward pass of the first `m` rows.
    pub fn forward<D: Machine>(&self, rig: &Rig<D>, e: DType, m: usize) {
        let &Case { h, f, experts, .. } = self;
        let p = m * self.chosen;
        let part = |name: &str, len: usize| rig.buf(name).slice(0, len);
        let routes = self.routes(rig, m);
        rig.dev.route(part("logits", m * experts), self.routing(rig), routes);
        let (gate_up, product) = (part("gate_up", p * 2 * f), part("product", p * f));
        rig.dev.matmul_experts(part("x", m * h), RowsOf::Rows, self.all(rig, "w1", e), routes, gate_up);
        rig.dev.glu_experts(Gate::Silu, gate_up, f, routes, product);
        let y = part("y", p * h);
        rig.dev.matmul_experts(product, RowsOf::Pairs, self.all(rig, "w2", e), routes, y);
        rig.dev.combine(y, routes, Some(part("resid", m * h)), part("out", m * h));
    }

    /// The gradients, after `forward` of all rows; gradients of weights are added if `add`.
    pub fn backward<D: Machine>(&self, rig: &Rig<D>, e: DType, add: bool, balance: Option<f32>) {
        let (routes, buf) = (self.routes(rig, self.m), |name| rig.buf(name));
        let d_product = buf("d_product");
        rig.dev.matmul_experts_dx(buf("dy"), RowsOf::Rows, self.all(rig, "w2", e), routes, d_product);
        rig.dev.glu_experts_backward(GluExpertsBackward {
            how: Gate::Silu,
            gate_up: buf("gate_up"),
            f: self.f,
            routes,
            dout: d_product,
            d_weights: buf("d_weights"),
        });
        rig.dev.matmul_experts_dw(ExpertsBackward {
            dy: buf("dy"),
            dy_has: RowsOf::Rows,
            x: d_product,
            x_has: RowsOf::Pairs,
            routes,
            grad: self.all(rig, "dw2", e),
            add,
            pack: buf("pack"),
        });
        rig.dev.matmul_experts_dw(ExpertsBackward {
            dy: buf("gate_up"),
            dy_has: RowsOf::Pairs,
            x: buf("x"),
            x_has: RowsOf::Rows,
            routes,
            grad: self.all(rig, "dw1", e),
            add,
            pack: buf("pack"),
        });
        rig.dev.matmul_experts_dx(buf("gate_up"), RowsOf::Pairs, self.all(rig, "w1", e), routes, buf("dx"));
        rig.dev.route_backward(self.args(rig, "d_logits", balance));
    }

    pub fn args<D: Machine>(&self, rig: &Rig<D>, to: &str, balance: Option<f32>) -> RouteBackward<'static> {
        RouteBackward {
            logits: rig.buf("logits"),
            how: self.routing(rig),
            routes: self.routes(rig, self.m),
            d_weights: rig.buf("d_weights"),
            balance: balance.map(|factor| Balance {
                segments: rig.buf("segments"),
                factor,
                rows: rig.buf("rows"),
            }),
            d_logits: rig.buf(to),
        }
    }
}

/// Rows of a pair's operand: `[_, width]`.
struct Rows<'r> {
    data: &'r [f32],
    width: usize,
    of: Option<&'r [u32]>,
    chosen: usize,
}

impl Rows<'_> {
    fn at(&self, place: usize) -> &[f32] {
        let row = self.of.map_or(place, |pairs| pairs[place] as usize / self.chosen);
        &self.data[row * self.width..][..self.width]
    }
}

fn dot(a: &[f32], b: impl Fn(usize) -> f32) -> f64 {
    a.iter().enumerate().map(|(i, &a)| f64::from(a) * f64::from(b(i))).sum()
}

/// A relative error (2-norms) that roundings to the dtype explain, and chains of f32.
pub fn tolerance(dtype: DType) -> f64 {
    if dtype == Bf16 { 4e-3 } else { 2e-6 }
}

/// The expert of each place.
fn experts_of(starts: &[u32]) -> Vec<usize> {
    starts.windows(2).enumerate().flat_map(|(e, ends)| vec![e; (ends[1] - ends[0]) as usize]).collect()
}

/// Panics unless each operation of the forward pass gives what f64 gives from its own inputs.
pub fn check_forward<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { m, h, f, chosen, .. } = case;
    let what = |of: &str| format!("{of} of {case:?}, {}, {how}", e.name());
    case.fill(rig, e);
    case.forward(rig, e, m);
    let (pairs, places) = (rig.get_u32("pairs"), rig.get_u32("places"));
    let experts = experts_of(&rig.get_u32("starts"));
    let [x, gate_up, product, weights, y] = ["x", "gate_up", "product", "weights", "y"].map(|n| rig.get(n));
    let (w1, w2) = (case.w1(e), case.w2(e));
    let rows = Rows { data: &x, width: h, of: Some(&pairs), chosen };
    let want: Vec<f64> = (0..gate_up.len())
        .map(|i| {
            let w = &w1[(experts[i / (2 * f)] * 2 * f + i % (2 * f)) * h..][..h];
            dot(rows.at(i / (2 * f)), |k| w[k])
        })
        .collect();
    check_norm(&what("gate and up"), &gate_up, &want, tolerance(e));
    let want: Vec<f64> = (0..product.len())
        .map(|i| {
            let (g, u) = (gate_up[i / f * 2 * f + i % f], gate_up[i / f * 2 * f + f + i % f]);
            let silu = f64::from(g) / (1.0 + (-f64::from(g)).exp());
            f64::from(weights[pairs[i / f] as usize]) * silu * f64::from(u)
        })
        .collect();
    check_norm(&what("the product"), &product, &want, tolerance(e));
    let rows = Rows { data: &product, width: f, of: None, chosen };
    let want: Vec<f64> = (0..y.len())
        .map(|i| {
            let w = &w2[(experts[i / h] * h + i % h) * f..][..f];
            dot(rows.at(i / h), |k| w[k])
        })
        .collect();
    check_norm(&what("down"), &y, &want, tolerance(F32));
    // In the order of the experts, one by one, and then the residual stream: in f32 to the bit.
    let resid = rig.get("resid");
    let sum = |i: usize| {
        let places = &places[i / h * chosen..][..chosen];
        places[1..].iter().fold(y[places[0] as usize * h + i % h], |sum, &p| sum + y[p as usize * h + i % h])
    };
    let want: Vec<f32> = (0..m * h).map(|i| resid[i] + sum(i)).collect();
    assert_eq!(bits(&rig.get("out")), bits(&want), "{}", what("the sum"));
    let (routes, b) = (case.routes(rig, m), |name| rig.buf(name));
    rig.dev.combine(b("y"), routes, Some(b("resid")), b("resid"));
    assert_eq!(bits(&rig.get("resid")), bits(&want), "{}", what("the sum in place"));
    rig.dev.combine(b("y"), routes, None, b("out_e"));
    let want: Vec<f32> = (0..m * h).map(|i| round(sum(i), e)).collect();
    assert_eq!(bits(&rig.get("out_e")), bits(&want), "{}", what("the sum alone, rounded"));
    // Rounded once: the same product in e.
    rig.dev.matmul_experts(b("product"), RowsOf::Pairs, case.all(rig, "w2", e), routes, b("y_e"));
    check_norm(&what("down, rounded"), &rig.get("y_e"), &f64s(&y), tolerance(e));
    rig.check_guards();
}

/// Panics unless a row's bits, and a pair's, are its own, whatever the other rows and its expert's load.
pub fn check_rows_are_their_own<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let &Case { m, h, f, experts, chosen, .. } = case;
    case.fill(rig, e);
    case.forward(rig, e, m);
    let of_pairs = |rig: &Rig<D>, name: &str, width: usize, rows: Range<usize>| {
        let (all, places) = (rig.get(name), rig.get_u32("places"));
        let places = &places[rows.start * chosen..rows.end * chosen];
        let row = |&p: &u32| bits(&all[p as usize * width..][..width]);
        places.iter().flat_map(row).collect::<Vec<u32>>()
    };
    let seen = |rig: &Rig<D>, rows: Range<usize>| {
        let of_rows = |name: &str, width: usize| bits(&rig.get(name)[rows.start * width..rows.end * width]);
        [
            of_rows("weights", chosen),
            of_pairs(rig, "gate_up", 2 * f, rows.clone()),
            of_pairs(rig, "product", f, rows.clone()),
            of_pairs(rig, "y", h, rows.clone()),
            of_rows("out", h),
        ]
    };
    let (logits, x, resid) = (rig.get("logits"), rig.get("x"), rig.get("resid"));
    for (first, len) in [(0, 1), (m / 2, 1), (m / 3, m / 2), (m / 2, m - m / 2)] {
        if len == 0 {
            continue;
        }
        case.forward(rig, e, m);
        let whole = seen(rig, first..first + len);
        for (name, all, width) in [("logits", &logits, experts), ("x", &x, h), ("resid", &resid, h)] {
            rig.dev.write_f32(rig.buf(name), 0, &all[first * width..][..len * width]);
        }
        case.forward(rig, e, len);
        let alone = seen(rig, 0..len);
        let names = ["weights", "gate and up", "the product", "down", "the sum"];
        for ((alone, whole), name) in alone.iter().zip(&whole).zip(names) {
            assert!(alone == whole, "{name} of rows {first}+{len} of {case:?}, {}, {how}", e.name());
        }
        case.fill(rig, e);
    }
}

/// Panics unless each gradient is what f64 gives from its operation's own inputs.
pub fn check_backward<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, add: bool, how: &str) {
    let &Case { m, h, f, chosen, .. } = case;
    let g = rig.buf("dw1").dtype();
    let what = |of: &str| format!("{of} of {case:?}, {} to {}, add: {add}, {how}", e.name(), g.name());
    case.fill(rig, e);
    case.forward(rig, e, m);
    let pairs = rig.get_u32("pairs");
    let experts = experts_of(&rig.get_u32("starts"));
    let [x, dy, gate_up, product, weights] = ["x", "dy", "gate_up", "product", "weights"].map(|n| rig.get(n));
    let (routes, b) = (case.routes(rig, m), |name| rig.buf(name));
    let (w1, w2) = (case.w1(e), case.w2(e));
    // Through down: both kinds of output.
    let rows = Rows { data: &dy, width: h, of: Some(&pairs), chosen };
    let want: Vec<f64> = (0..product.len())
        .map(|i| {
            let expert = experts[i / f];
            dot(rows.at(i / f), |n| w2[(expert * h + n) * f + i % f])
        })
        .collect();
    rig.dev.matmul_experts_dx(b("dy"), RowsOf::Rows, case.all(rig, "w2", e), routes, b("d_product_f32"));
    check_norm(&what("d product"), &rig.get("d_product_f32"), &want, tolerance(F32));
    rig.dev.matmul_experts_dx(b("dy"), RowsOf::Rows, case.all(rig, "w2", e), routes, b("d_product"));
    check_norm(&what("d product, rounded"), &rig.get("d_product"), &want, tolerance(e));
    let d_product = rig.get("d_product");
    case.backward(rig, e, add, None);
    assert_eq!(bits(&rig.get("d_product")), bits(&product), "{}", what("the product again"));
    let weight = |p: usize| f64::from(weights[pairs[p] as usize]);
    let sigmoid = |g: f32| 1.0 / (1.0 + (-f64::from(g)).exp());
    let of = |p: usize, j: usize| (gate_up[p * 2 * f + j], f64::from(gate_up[p * 2 * f + f + j]));
    let terms = |p: usize, j: usize| {
        let (g, u) = of(p, j);
        f64::from(d_product[p * f + j]) * f64::from(g) * sigmoid(g) * u
    };
    let want: Vec<f64> = (0..case.pairs()).map(|p| (0..f).map(|j| terms(p, j)).sum()).collect();
    let size: Vec<f64> = (0..case.pairs()).map(|p| (0..f).map(|j| terms(p, j).abs()).sum()).collect();
    check_close(&rig.get("d_weights"), &want, &size, 1e-5, &what("d weights"));
    let want: Vec<f64> = (0..gate_up.len())
        .map(|i| {
            let (p, j) = (i / (2 * f), i % f);
            let ((g, u), d) = (of(p, j), weight(p) * f64::from(d_product[p * f + j]));
            let sig = sigmoid(g);
            if i % (2 * f) < f {
                d * u * sig * (1.0 + f64::from(g) * (1.0 - sig))
            } else {
                d * f64::from(g) * sig
            }
        })
        .collect();
    let d_gate_up = rig.get("gate_up");
    check_norm(&what("d gate and up"), &d_gate_up, &want, tolerance(e));
    // The gradients of weights, over an expert's pairs and over none.
    let down = Rows { data: &product, width: f, of: None, chosen };
    check_weights(case, rig, ("dw2", (h, f), 7), (&rows, &down, &experts), e, add, &what);
    let above = Rows { data: &d_gate_up, width: 2 * f, of: None, chosen };
    let inputs = Rows { data: &x, width: h, of: Some(&pairs), chosen };
    check_weights(case, rig, ("dw1", (2 * f, h), 6), (&above, &inputs, &experts), e, add, &what);
    let want: Vec<f64> = (0..case.pairs() * h)
        .map(|i| {
            let expert = experts[i / h];
            dot(above.at(i / h), |n| w1[(expert * 2 * f + n) * h + i % h])
        })
        .collect();
    check_norm(&what("dx"), &rig.get("dx"), &want, tolerance(F32));
    rig.check_guards();
}

/// Panics unless the gradient of all experts' weights is dy^T x over their pairs, added to what was there if `add`.
fn check_weights<D: Machine>(
    case: &Case,
    rig: &Rig<D>,
    (name, (n, k), seed): (&str, (usize, usize), u64),
    (dy, x, experts): (&Rows<'_>, &Rows<'_>, &[usize]),
    e: DType,
    add: bool,
    what: &impl Fn(&str) -> String,
) {
    let g = rig.buf(name).dtype();
    let before = normal(seed, case.experts * n * k, 1.0, g);
    let mut want: Vec<f64> = before.iter().map(|&x| if add { x.into() } else { 0.0 }).collect();
    for (place, &expert) in experts.iter().enumerate() {
        let (dy, x) = (dy.at(place), x.at(place));
        for (row, to) in want[expert * n * k..][..n * k].chunks_mut(k).enumerate() {
            to.iter_mut().zip(x).for_each(|(to, &x)| *to += f64::from(dy[row]) * f64::from(x));
        }
    }
    let (got, padding_is_zero) = rig.get_matrix(name, case.experts * n, k, e);
    // A card may round a sum before it adds it.
    check_norm(&what(name), &got, &want, tolerance(g).max(tolerance(F32)));
    assert!(padding_is_zero, "{}", what("padding"));
    for expert in (0..case.experts).filter(|expert| !experts.contains(expert)) {
        let (got, before) = (&got[expert * n * k..][..n * k], &before[expert * n * k..][..n * k]);
        let is_kept = got.iter().zip(before).all(|(&x, &was)| x == if add { was } else { 0.0 });
        assert!(is_kept, "{} of expert {expert}, which got no pair", what(name));
    }
}
