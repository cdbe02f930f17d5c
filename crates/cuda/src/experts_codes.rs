//! Launcher of `experts_codes.cu`: products of experts in MXFP4, where experts have so few pairs that reading their
//! weights takes the time. Others widen the weights of all experts first. Both give the same bits.

use super::experts::{Tile, is_wide, tile};
use super::experts_plain::{check_routes, chosen, slots};
use super::rows::typed;
use super::sgemm::Columns;
use super::{CudaDevice, Launch, blocks, experts};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::{Codes, Experts, Matrix, Routes, RowsOf};
use plimsoll_memory::Buf;

/// Tiles, from the narrowest, each up to an expert's average number of pairs. Beyond the last, widening all weights is
/// a small part of their product.
const TILES: [(Tile, usize); 3] =
    [(tile(16, 64, 128, 4), 8), (tile(32, 64, 128, 4), 20), (tile(64, 128, 256, 4), 48)];

/// Computes out[p] = x W^T of each pair. `w`: room for the widened weights.
pub(crate) fn product(
    dev: &CudaDevice,
    (x, has): (Buf<'_>, RowsOf),
    (codes, w): (Codes<'_>, Matrix<'_>),
    routes: Routes<'_>,
    out: Buf<'_>,
) {
    let (pairs, count) = (routes.pairs(), routes.count());
    check_routes(routes);
    assert_eq!(codes.shape(), (w.n, w.k), "codes and the room for them");
    assert_eq!(out.len(), pairs * (w.n / count), "[{pairs}, {}]", w.n / count);
    let (n, k) = (w.n / count, w.k);
    let rows = codes.whole(Encoding::Mxfp4).filter(|_| x.dtype() == DType::Bf16 && pairs > 0);
    let tile = TILES.iter().find(|(_, each_max)| pairs.div_ceil(count) <= *each_max);
    let (Some(rows), Some((tile, _)), true) = (rows, tile, is_wide(dev, &[x, out], &[n, k])) else {
        blocks::dequantize(dev, codes, w);
        return experts::product(dev, (x, has), Experts::cut(w, count), routes, out, false);
    };
    let chosen = chosen(Columns::whole(x, k), has, routes);
    let args = args![dev, x, rows.words, routes.pairs, routes.starts, out, count, chosen, n, k];
    let kernel = match tile.rows {
        16 => typed!("codes_16", out),
        32 => typed!("codes_32", out),
        _ => typed!("codes_64", out),
    };
    let grid = [slots(pairs, count, tile.rows) as u32, n.div_ceil(tile.cols) as u32, 1];
    dev.launch("experts_codes", kernel, Launch { grid, block: tile.threads, shared: tile.shared() }, &args);
}
