//! Tests what the operations of linear attention give is what f64 gives from their own inputs.

use super::reference::{self, Piece, Rule, Weights};
use super::{Case, EPS, Pass};
use crate::both::{Machine, Rig, bits, check_norm, f64s, normal};
use plimsoll_base::DType::{self, Bf16, F32};
use plimsoll_device::{SEGMENT_FIELDS, edges};

/// Returns that of numbers rounded once to `dtype` (2^-8 for bf16): sums of up to some 130 terms in f32, also of terms
/// that cancel.
fn tolerance(dtype: DType) -> f64 {
    if dtype == Bf16 { 4e-3 } else { 4e-6 }
}

/// Panics unless each row's columns `from..from + len` are close to f64's: to a share of their length, and of that of a
/// usual row, because what cancels in one was as large as in the others.
#[track_caller]
fn close_rows(what: &str, got: &[f32], want: &[f64], width: usize, columns: (usize, usize), tolerance: f64) {
    let mut lengths = lengths(want, width, columns);
    lengths.sort_by(f64::total_cmp);
    close_within(what, got, want, width, columns, tolerance, lengths[lengths.len() / 2]);
}

fn lengths(rows: &[f64], width: usize, (from, len): (usize, usize)) -> Vec<f64> {
    rows.chunks(width).map(|row| length(&row[from..from + len])).collect()
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Asserts that rows are off by at most the tolerance times their own length and `usual`.
#[track_caller]
fn close_within(
    what: &str,
    got: &[f32],
    want: &[f64],
    width: usize,
    (from, len): (usize, usize),
    tolerance: f64,
    usual: f64,
) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (row, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
        let (got, want) = (&got[from..from + len], &want[from..from + len]);
        let apart: Vec<f64> = got.iter().zip(want).map(|(&got, want)| f64::from(got) - want).collect();
        let (apart, allowed) = (length(&apart), tolerance * (length(want) + usual));
        // Not `>`: NaN is far from everything.
        assert!(
            apart <= allowed,
            "{what}: row {row} is off by {apart:.3e}, allowed {allowed:.3e} of {:.3e}",
            length(want)
        );
    }
}

/// The columns of q, k and v.
fn qkv_columns(case: &Case) -> [(&'static str, (usize, usize)); 3] {
    let (keys, values) = (case.heads.key_width(), case.heads.value_width());
    [("q", (0, keys)), ("k", (keys, keys)), ("v", (2 * keys, values))]
}

/// Those of g and beta.
fn gate_columns(case: &Case) -> [(&'static str, (usize, usize)); 2] {
    let h = case.heads.value_heads;
    [("g", (0, h)), ("beta", (h, h))]
}

/// The places of the edges of a pass's segments, one after the other.
fn edge_places(pass: &Pass) -> Vec<usize> {
    let records = pass.segments.chunks(SEGMENT_FIELDS).zip(pass.places.chunks(2));
    records
        .flat_map(|(record, places)| (0..edges(record[1] as usize)).map(|edge| places[1] as usize + edge))
        .collect()
}

/// The states of all edges, one after the other.
pub(super) fn of_edges<D: Machine>(case: &Case, rig: &Rig<D>, name: &str, pass: &Pass) -> Vec<f32> {
    let (all, state) = (rig.get(name), case.heads.state());
    edge_places(pass).iter().flat_map(|place| all[place * state..][..state].to_vec()).collect()
}

/// z of rows of inputs.
fn gates_of<T: Copy>(case: &Case, x: &[T]) -> Vec<T> {
    let (first, width) = (case.heads.conv_width(), case.heads.value_width());
    x.chunks(case.heads.input_width()).flat_map(|row| row[first..first + width].to_vec()).collect()
}

/// The inputs of the rule as they are, and f64's answer.
fn rule_of<D: Machine>(case: &Case, rig: &Rig<D>, pieces: &[Piece], dout: &[f64]) -> Rule {
    let [qkv, gates] = ["qkv", "gates"].map(|name| f64s(&case.get(rig, name, case.rows())));
    reference::rule(&case.heads, pieces, &qkv, &gates, dout)
}

/// Panics unless all forward operations give what f64 gives.
pub fn check_forward<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    let what = |of: &str| format!("{of} of {case:?}, {}, {how}", e.name());
    let (heads, m, x) = (&case.heads, case.rows(), case.x(e));
    case.fill(rig, e);
    let pass = case.whole(true);
    let pieces = case.pieces(rig, &pass);
    case.forward(rig, &x, &pass);
    let [conv, decay, bias, w] = ["conv", "decay", "bias", "w"].map(|name| f64s(&rig.get(name)));
    let x = f64s(&x);
    let weights = Weights { conv: &conv, decay: &decay, bias: &bias };
    let (qkv, gates) = reference::inputs(heads, &pieces, &x, weights);
    let get = |name: &str| case.get(rig, name, m);
    for (name, columns) in qkv_columns(case) {
        close_rows(&what(name), &get("qkv"), &qkv, heads.conv_width(), columns, tolerance(e));
    }
    for (name, columns) in gate_columns(case) {
        close_rows(&what(name), &get("gates"), &gates, 2 * heads.value_heads, columns, tolerance(F32));
    }
    let rule = rule_of(case, rig, &pieces, &vec![0.0; m * heads.value_width()]);
    let each = (heads.value_width(), (0, heads.value_width()));
    close_rows(&what("o"), &get("out"), &rule.out, each.0, each.1, tolerance(e));
    close_rows(&what("r"), &get("rest"), &rule.rest, each.0, each.1, tolerance(F32));
    let state = heads.state();
    close_rows(
        &what("states"),
        &of_edges(case, rig, "states", &pass),
        &rule.edges,
        state,
        (0, state),
        tolerance(F32),
    );
    let (o, z) = (f64s(&get("out")), gates_of(case, &x));
    let [y, ..] = reference::norm(heads, EPS.into(), &o, &z, &w, &vec![0.0; o.len()]);
    close_rows(&what("y"), &get("y"), &y, each.0, each.1, tolerance(e));
    rig.check_guards();
}

/// Panics unless each gradient is what f64 gives from its operation's own inputs.
pub fn check_backward<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, add: bool, how: &str) {
    let what = |of: &str| format!("{of} of {case:?}, {}, add: {add}, {how}", e.name());
    let (m, width) = (case.rows(), case.heads.input_width());
    case.fill(rig, e);
    let pass = case.whole(true);
    let pieces = case.pieces(rig, &pass);
    case.forward(rig, &case.x(e), &pass);
    rig.dev.write_f32(rig.buf("dx"), 0, &vec![7.0; m * width]);
    check_norm_backward(case, rig, e, add, &what);
    check_rule_backward(case, rig, e, (&pass, &pieces), &what);
    check_inputs_backward(case, rig, e, (&pass, &pieces), add, &what);
    rig.check_guards();
}

/// Panics unless the gradient of weights is close to `want`, added to what was there if `add`.
fn close_weights<D: Machine>(
    rig: &Rig<D>,
    name: &str,
    want: &[f64],
    (before, add): (&[f32], bool),
    what: &str,
) {
    let g = rig.buf(name).dtype();
    let was = |i: usize| if add { f64::from(before[i]) } else { 0.0 };
    let want: Vec<f64> = want.iter().enumerate().map(|(i, x)| was(i) + x).collect();
    // Sums over rows of what is rounded once, and of gradients that are sums themselves.
    check_norm(what, &rig.get(name), &want, tolerance(g).max(1e-5));
}

fn check_norm_backward<D: Machine>(
    case: &Case,
    rig: &Rig<D>,
    e: DType,
    add: bool,
    what: &impl Fn(&str) -> String,
) {
    let (heads, m) = (&case.heads, case.rows());
    let dy = normal(7, m * heads.value_width(), 1.0, e);
    let get = |name: &str| case.get(rig, name, m);
    let z = gates_of(case, &f64s(&get("x")));
    let w = f64s(&rig.get("w"));
    let [_, d_o, dz, dw] = reference::norm(heads, EPS.into(), &f64s(&get("out")), &z, &w, &f64s(&dy));
    let run = |trains: bool| {
        rig.dev.write_f32(rig.buf("d"), 0, &dy);
        case.norm_backward(rig, add, trains);
        (get("d"), get("dx"))
    };
    let before = rig.get("d_w");
    let frozen = run(false);
    assert_eq!(bits(&rig.get("d_w")), bits(&before), "{}", what("frozen weights of the norm"));
    let (d, dx) = run(true);
    assert!((bits(&d), bits(&dx)) == (bits(&frozen.0), bits(&frozen.1)), "{}", what("frozen norm"));
    let each = (heads.value_width(), (0, heads.value_width()));
    close_rows(&what("d o"), &d, &d_o, each.0, each.1, tolerance(e));
    close_rows(&what("d z"), &gates_of(case, &dx), &dz, each.0, each.1, tolerance(e));
    close_weights(rig, "d_w", &dw, (&before, add), &what("d w"));
    let of_z = heads.conv_width()..heads.conv_width() + heads.value_width();
    let is_kept = |row: &[f32]| row.iter().enumerate().all(|(i, &x)| of_z.contains(&i) || x == 7.0);
    assert!(dx.chunks(heads.input_width()).all(is_kept), "{}", what("nothing but z is written"));
}

fn check_rule_backward<D: Machine>(
    case: &Case,
    rig: &Rig<D>,
    e: DType,
    (pass, pieces): (&Pass, &[Piece]),
    what: &impl Fn(&str) -> String,
) {
    let (heads, m) = (&case.heads, case.rows());
    case.rule_backward(rig, pass);
    let get = |name: &str| case.get(rig, name, m);
    let want = rule_of(case, rig, pieces, &f64s(&get("d")));
    // A card multiplies what it computes of bf16 inputs in two parts, which leave 2^-17 of each factor.
    let parts = if e == Bf16 && rig.dev.kind().name == "cuda" { 4.0 } else { 1.0 };
    let tolerance = 4.0 * parts * tolerance(F32);
    let (width, state) = (heads.value_width(), heads.state());
    close_rows(&what("d beta r"), &get("d_rest"), &want.d_rest, width, (0, width), tolerance);
    let states = of_edges(case, rig, "d_states", pass);
    close_rows(&what("d states"), &states, &want.d_edges, state, (0, state), tolerance);
    for (name, columns) in qkv_columns(case) {
        let name = what(&format!("d {name}"));
        close_rows(&name, &get("d_qkv"), &want.d_qkv, heads.conv_width(), columns, tolerance);
    }
    for (name, columns) in gate_columns(case) {
        let (got, width) = (get("d_gates"), 2 * heads.value_heads);
        if name == "g" && rig.dev.kind().name == "cuda" {
            // A sum of differences over later rows: where those cancel, what is left is off by a share of the largest,
            // of f32 inputs too (3.3e-5 of 4.2e-2 was measured).
            let largest = lengths(&want.d_gates, width, columns).into_iter().fold(0.0, f64::max);
            close_within(&what("d g"), &got, &want.d_gates, width, columns, tolerance, largest);
        } else {
            close_rows(&what(&format!("d {name}")), &got, &want.d_gates, width, columns, tolerance);
        }
    }
}

fn check_inputs_backward<D: Machine>(
    case: &Case,
    rig: &Rig<D>,
    e: DType,
    (pass, pieces): (&Pass, &[Piece]),
    add: bool,
    what: &impl Fn(&str) -> String,
) {
    let (heads, m) = (&case.heads, case.rows());
    let get = |name: &str| case.get(rig, name, m);
    let [conv, decay, bias] = ["conv", "decay", "bias"].map(|name| f64s(&rig.get(name)));
    let weights = Weights { conv: &conv, decay: &decay, bias: &bias };
    let (d_qkv, d_gates, x, z) = (get("d_qkv"), get("d_gates"), f64s(&get("x")), gates_of(case, &get("dx")));
    let want = reference::inputs_backward(heads, pieces, &x, weights, (&f64s(&d_qkv), &f64s(&d_gates)));
    let names = ["d_conv", "d_decay", "d_bias"];
    let before = names.map(|name| rig.get(name));
    case.inputs_backward(rig, pass, add, false);
    let frozen = bits(&get("dx"));
    assert!(names.map(|name| rig.get(name)) == before, "{}", what("frozen weights"));
    rig.dev.write_f32(rig.buf("d_qkv"), 0, &d_qkv);
    case.inputs_backward(rig, pass, add, true);
    let dx = get("dx");
    assert!(bits(&dx) == frozen, "{}", what("dx with frozen weights"));
    assert!(bits(&gates_of(case, &dx)) == bits(&z), "{}", what("z is not written"));
    for (name, columns) in qkv_columns(case) {
        let name = what(&format!("d inputs of {name}"));
        close_rows(&name, &dx, &want.dx, heads.input_width(), columns, tolerance(e));
    }
    let (first, h) = (heads.conv_width() + heads.value_width(), heads.value_heads);
    close_rows(&what("d b"), &dx, &want.dx, heads.input_width(), (first, h), tolerance(e));
    close_rows(&what("d a"), &dx, &want.dx, heads.input_width(), (first + h, h), tolerance(e));
    for ((name, want), before) in names.into_iter().zip([&want.conv, &want.decay, &want.bias]).zip(&before) {
        close_weights(rig, name, want, (before, add), &what(name));
    }
}
