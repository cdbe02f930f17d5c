//! Launchers of `experts_route.cu`: the experts that compute each row, the order of pairs, and the gradient.

use super::experts_plain::check_routes;
use super::rows::{blocks, typed};
use super::{Arg, CudaDevice, Launch, count};
use plimsoll_arch::{EXPERT_GROUPS_MAX, EXPERTS_CHOSEN_MAX, EXPERTS_MAX};
use plimsoll_base::DType;
use plimsoll_device::{Balance, RouteBackward, Routes, Routing, SEGMENT_FIELDS, Sigmoid};
use plimsoll_memory::Buf;

/// Experts that a warp's lanes have room for, four or sixteen each.
const EXPERTS_NARROW: usize = 128;
/// Rows that one block routes, in one launch.
const FEW_ROWS: usize = 64;
/// Approximate blocks of the gradient with a balance, and minimum rows of each.
const BALANCED_BLOCKS: usize = 512;
const BALANCED_ROWS: usize = 64;

fn check(how: Routing<'_>, rows: usize, logits: Buf<'_>, routes: Routes<'_>) {
    let Routing { experts, chosen, .. } = how;
    assert!(experts <= EXPERTS_MAX, "{experts} experts: the kernels have room for {EXPERTS_MAX}");
    assert!(
        chosen <= EXPERTS_CHOSEN_MAX,
        "{chosen} experts of a row: the kernels have room for {EXPERTS_CHOSEN_MAX}"
    );
    assert!(0 < chosen && chosen <= experts, "{chosen} of {experts} experts");
    how.check_sigmoid();
    let groups = how.sigmoid.map_or(0, |sigmoid| sigmoid.groups);
    assert!(groups <= EXPERT_GROUPS_MAX, "{groups} groups: the kernels have room for {EXPERT_GROUPS_MAX}");
    check_routes(routes);
    assert_eq!((routes.count(), routes.pairs()), (experts, rows * chosen), "{rows} rows");
    assert_eq!((logits.len(), logits.dtype()), (rows * experts, DType::F32), "[{rows}, {experts}] of logits");
}

fn how_args(how: Routing<'_>, rows: usize) -> [Arg; 4] {
    [count(how.experts), count(how.chosen), Arg::U32(how.normalizes.into()), count(rows)]
}

/// Returns the name of a kernel for a number of experts and for the dtype of a buffer.
macro_rules! kernel {
    ($name:literal, $how:expr, $buf:expr) => {
        if $how.experts <= EXPERTS_NARROW {
            typed!(concat!($name, "_4"), $buf)
        } else {
            typed!(concat!($name, "_16"), $buf)
        }
    };
}

/// Chooses experts and puts pairs in order: one launch for few rows, else two.
pub(crate) fn forward(dev: &CudaDevice, logits: Buf<'_>, how: Routing<'_>, to: Routes<'_>) {
    let rows = logits.len() / how.experts;
    check(how, rows, logits, to);
    let is_narrow = how.experts <= EXPERTS_NARROW;
    let mut args = vec![dev.arg(logits)];
    args.extend(how_args(how, rows));
    if let Some(Sigmoid { correction, groups, groups_chosen, factor }) = how.sigmoid {
        args.extend([dev.arg(correction), Arg::F32(factor), count(groups), count(groups_chosen)]);
    }
    args.extend([to.experts, to.weights].map(|b| dev.arg(b)));
    let order = [to.pairs, to.places, to.starts].map(|b| dev.arg(b));
    if rows <= FEW_ROWS {
        args.extend(order);
        let kernel = match how.sigmoid {
            Some(Sigmoid { correction, .. }) => kernel!("route_sigmoid_few", how, correction),
            None if is_narrow => "route_few_4",
            None => "route_few_16",
        };
        return dev.launch("experts_route", kernel, Launch { grid: [1; 3], block: 1024, shared: 0 }, &args);
    }
    let kernel = match how.sigmoid {
        Some(Sigmoid { correction, .. }) => kernel!("route_sigmoid_rows", how, correction),
        None if is_narrow => "route_rows_4",
        None => "route_rows_16",
    };
    dev.launch("experts_route", kernel, blocks(rows, 4, 128), &args);
    let mut args = vec![dev.arg(to.experts), count(rows), count(how.chosen)];
    args.extend(order);
    dev.launch("experts_route", "route_pairs", blocks(how.experts, 1, 512), &args);
}

/// Computes the derivatives by the logits.
pub(crate) fn backward(dev: &CudaDevice, args: RouteBackward<'_>) {
    let RouteBackward { logits, how, routes, d_weights, balance, d_logits } = args;
    let rows = logits.len() / how.experts;
    check(how, rows, logits, routes);
    assert_eq!(
        (d_weights.len(), d_weights.dtype()),
        (routes.pairs(), DType::F32),
        "a derivative for each pair"
    );
    assert_eq!(d_logits.len(), logits.len(), "derivatives by {rows} rows of logits");
    let mut operands = [logits, d_weights, routes.experts, routes.places].map(|b| dev.arg(b)).to_vec();
    operands.extend(how_args(how, rows));
    operands.extend(how.sigmoid.map(|sigmoid| Arg::F32(sigmoid.factor)));
    let Some(Balance { segments, factor, rows: sums }) = balance else {
        operands.push(dev.arg(d_logits));
        let kernel = match how.sigmoid {
            Some(_) => kernel!("route_sigmoid_backward", how, d_logits),
            None => kernel!("route_backward", how, d_logits),
        };
        return dev.launch("experts_route", kernel, blocks(rows, 8, 256), &operands);
    };
    assert_eq!((sums.len(), sums.dtype()), (rows, DType::F32), "a sum for each row");
    let segments_count = super::matmul::rows(segments, SEGMENT_FIELDS);
    if segments_count == 0 {
        return;
    }
    operands.extend(args![dev, segments, factor, sums, d_logits]);
    // Each block counts its whole segment, so more of them gain nothing.
    let parts = (BALANCED_BLOCKS / segments_count).clamp(1, rows.div_ceil(BALANCED_ROWS).max(1));
    let kernel = match how.sigmoid {
        Some(_) => kernel!("route_sigmoid_backward_balanced", how, d_logits),
        None => kernel!("route_backward_balanced", how, d_logits),
    };
    let grid = [segments_count as u32, parts as u32, 1];
    dev.launch("experts_route", kernel, Launch { grid, block: 256, shared: 0 }, &operands);
}
