//! The regions of latent attention in a pass, and the handles to them. Queries, keys, values and log-sum-exps of
//! attention over latents are those of softmax attention.
//!
//! Legend: as in `arch::LatentSpec`; D = R + L, and M rows.

use crate::activations::mode::Mode;
use crate::activations::shape::{Life, PassShape, Regions, Rows};
use crate::parts::attention::regions::AttentionBufs;
use plimsoll_arch::{Cache, IndexSpec, KV_BLOCK, LatentSpec};
use plimsoll_base::{DType, Result};
use plimsoll_device::Columns;
use plimsoll_memory::Buf;

/// Handles to the regions of a pass through layers with latent attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentRegions<'p> {
    adjacent: Buf<'p>,
    out: Buf<'p>,
    keys: Buf<'p>,
    wide: Buf<'p>,
    values: Buf<'p>,
    key_input: Buf<'p>,
    key: Buf<'p>,
    query: Option<QueryBufs<'p>>,
    gradients: Option<GradientBufs<'p>>,
}

/// Buffers of queries that come from a latent.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryBufs<'p> {
    /// Elements of the latent.
    pub(super) width: usize,
    /// [M, width] f32: the latent before its norm.
    pub(super) input: Buf<'p>,
    /// [M, width] e.
    pub(super) normed: Buf<'p>,
    /// [M, N (P + R)] e.
    pub(super) queries: Buf<'p>,
}

/// Buffers that only passes with gradients have.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientBufs<'p> {
    /// [M, N D] e: the gradient of what attention gives.
    pub(super) out: Buf<'p>,
    /// [M, L] f32: the gradient of latents.
    pub(super) key: Buf<'p>,
    /// [M, L] or as wide as the latent of queries, f32: the gradient of a norm's input.
    pub(super) norm: Buf<'p>,
    pub(super) query: Option<QueryGradients<'p>>,
}

/// Gradients of queries that come from a latent.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryGradients<'p> {
    /// [M, N (P + R)] e.
    pub(super) queries: Buf<'p>,
    /// [M, width] e.
    pub(super) normed: Buf<'p>,
}

/// The buffers of one layer, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentBufs<'p> {
    pub(super) attention: AttentionBufs<'p>,
    /// M.
    pub(super) rows: usize,
    /// N.
    pub(super) heads: usize,
    /// P.
    pub(super) key_dim: usize,
    /// V.
    pub(super) value_dim: usize,
    /// R.
    pub(super) rotated: usize,
    /// L.
    pub(super) latent: usize,
    /// Outputs of the input projection that queries come from.
    pub(super) query_inputs: usize,
    pub(super) eps: f32,
    /// [M, (N + 2) D] e: queries, key and value; in the backward pass their gradients.
    pub(super) adjacent: Buf<'p>,
    /// [M, N D] e: what attention gives.
    pub(super) out: Buf<'p>,
    /// [N, M, P] e: queries without their rotated part.
    pub(super) keys: Buf<'p>,
    /// [N, M, L] e: queries, or sums of latents.
    pub(super) wide: Buf<'p>,
    /// [N, M, V] e: outputs of heads.
    pub(super) values: Buf<'p>,
    /// [M, L] f32: latents before their norm.
    pub(super) key_input: Buf<'p>,
    /// [M, L] e.
    pub(super) key: Buf<'p>,
    pub(super) query: Option<QueryBufs<'p>>,
    pub(super) gradients: Option<GradientBufs<'p>>,
}

const OUT: Rows =
    Rows { life: Life::Kept, width: |of, layer| number(of, layer, |of| of.heads * of.key_width()) };
const QUERIES: Rows = Rows {
    life: Life::Kept,
    width: |of, layer| number(of, layer, |of| of.query_latent.map_or(0, |_| of.query_width())),
};

fn number(of: &PassShape<'_>, layer: u32, number: fn(&LatentSpec) -> u32) -> u32 {
    of.spec.layer(layer).latent().as_ref().map_or(0, number)
}

/// Adds the regions.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (of, weights) = (to.of, to.weights);
    let most = |number: fn(&LatentSpec) -> u32| {
        of.spec.each_layer().filter_map(|layer| layer.latent()).map(|latent| number(&latent)).max()
    };
    let Some(key) = most(|of| of.latent) else { return Ok(()) };
    let width = |number| most(number).unwrap_or(0) as usize;
    let (m, latent, query) = (of.limits.rows, key as usize, width(|of| of.query_latent.unwrap_or(0)));
    let adjacent = width(|of| (of.heads + 2) * of.key_width());
    to.add(Life::Layer, "latent.adjacent", &[m, adjacent], weights)?;
    to.rows("latent.out", OUT, weights)?;
    to.add(Life::Layer, "latent.keys", &[m, width(|of| of.heads * of.key_dim)], weights)?;
    to.add(Life::Layer, "latent.wide", &[m, width(|of| of.heads * of.latent)], weights)?;
    to.add(Life::Layer, "latent.values", &[m, width(|of| of.value_width())], weights)?;
    to.add(Life::Layer, "latent.key_input", &[m, latent], DType::F32)?;
    to.add(Life::Layer, "latent.key", &[m, latent], weights)?;
    if query > 0 {
        to.add(Life::Layer, "latent.query_input", &[m, query], DType::F32)?;
        to.add(Life::Layer, "latent.query", &[m, query], weights)?;
        to.rows("latent.queries", QUERIES, weights)?;
    }
    add_index(to)?;
    if of.mode.recompute().is_none() {
        return Ok(());
    }
    to.add(Life::Layer, "latent.d_out", &[m, width(|of| of.heads * of.key_width())], weights)?;
    to.add(Life::Layer, "latent.d_key", &[m, latent], DType::F32)?;
    to.add(Life::Layer, "latent.d_norm", &[m, latent.max(query)], DType::F32)?;
    if query > 0 {
        to.add(Life::Layer, "latent.d_queries", &[m, width(|of| of.query_width())], weights)?;
        to.add(Life::Layer, "latent.d_query", &[m, query], weights)?;
    }
    Ok(())
}

/// Adds queries and cached keys of what chooses the keys of rows, which plans alone have.
fn add_index(to: &mut Regions<'_>) -> Result<()> {
    let (of, weights) = (to.of, to.weights);
    let indexes = || of.spec.each_layer().filter_map(|layer| layer.latent()?.index);
    let Some(IndexSpec { heads, width, .. }) = indexes().next() else { return Ok(()) };
    let (width, blocks) = (width as usize, of.limits.caches.units(Cache::PAGED));
    to.add(Life::Layer, "latent.index_queries", &[of.limits.rows, heads as usize * width], weights)?;
    if matches!(of.mode, Mode::Rollout { .. }) {
        to.add(Life::Cached, "latent.index_keys", &[indexes().count(), blocks, width, KV_BLOCK], weights)?;
    }
    Ok(())
}

impl<'p> LatentRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<LatentRegions<'p>> {
        let buf = |what: &str| get(&format!("latent.{what}"));
        let query = buf("query").map(|normed| QueryBufs {
            width: 0,
            input: buf("query_input").expect("a latent of queries"),
            normed,
            queries: buf("queries").expect("a latent of queries"),
        });
        let d_query = buf("d_query")
            .map(|normed| QueryGradients { queries: buf("d_queries").expect("their gradient"), normed });
        Some(LatentRegions {
            adjacent: buf("adjacent")?,
            out: buf("out")?,
            keys: buf("keys")?,
            wide: buf("wide")?,
            values: buf("values")?,
            key_input: buf("key_input")?,
            key: buf("key")?,
            query,
            gradients: buf("d_out")
                .zip(buf("d_key"))
                .zip(buf("d_norm"))
                .map(|((out, key), norm)| GradientBufs { out, key, norm, query: d_query }),
        })
    }

    /// Returns the first `m` rows of a layer's buffers; `attention` has those of attention over latents.
    pub(crate) fn layer(
        &self,
        of: &PassShape<'_>,
        (spec, attention): (LatentSpec, AttentionBufs<'p>),
        layer: u32,
        m: usize,
    ) -> LatentBufs<'p> {
        let [heads, key_dim, value_dim, rotated, latent, query_inputs] =
            [spec.heads, spec.key_dim, spec.value_dim, spec.rotated, spec.latent, spec.query_inputs()]
                .map(|n| n as usize);
        let d = rotated + latent;
        let rows = |buf: Buf<'p>, width: usize| buf.slice(0, m * width);
        let queries = heads * (key_dim + rotated);
        let query_of = |of_all: QueryBufs<'p>| {
            let width = spec.query_latent? as usize;
            Some(QueryBufs {
                width,
                input: rows(of_all.input, width),
                normed: rows(of_all.normed, width),
                queries: QUERIES.layer(of, of_all.queries, layer, m),
            })
        };
        let query_gradients = |d: QueryGradients<'p>| {
            let width = spec.query_latent? as usize;
            Some(QueryGradients { queries: rows(d.queries, queries), normed: rows(d.normed, width) })
        };
        LatentBufs {
            attention,
            rows: m,
            heads,
            key_dim,
            value_dim,
            rotated,
            latent,
            query_inputs,
            eps: spec.eps,
            adjacent: rows(self.adjacent, (heads + 2) * d),
            out: OUT.layer(of, self.out, layer, m),
            keys: rows(self.keys, heads * key_dim),
            wide: rows(self.wide, heads * latent),
            values: rows(self.values, heads * value_dim),
            key_input: rows(self.key_input, latent),
            key: rows(self.key, latent),
            query: self.query.and_then(query_of),
            gradients: self.gradients.map(|all| GradientBufs {
                out: rows(all.out, heads * d),
                key: rows(all.key, latent),
                norm: all.norm,
                query: all.query.and_then(query_gradients),
            }),
        }
    }
}

impl<'p> LatentBufs<'p> {
    /// Returns D.
    pub(super) fn key_width(&self) -> usize {
        self.rotated + self.latent
    }

    /// Returns the outputs of the input projection.
    pub(super) fn first_width(&self) -> usize {
        self.query_inputs + self.key_width()
    }

    /// Returns the queries of heads: those of their latent, or the first outputs of the input projection.
    pub(super) fn queries<'b>(&self, first: Buf<'b>) -> Columns<'b>
    where
        'p: 'b,
    {
        let head = self.key_dim + self.rotated;
        match self.query {
            Some(query) => Columns { buf: query.queries, first: 0, row: self.heads * head, head },
            None => Columns { buf: first, first: 0, row: self.first_width(), head },
        }
    }

    /// Returns the latent part of each head in rows of `parts` times D.
    pub(super) fn latents<'b>(&self, buf: Buf<'b>, parts: usize) -> Columns<'b> {
        let d = self.key_width();
        Columns { buf, first: self.rotated, row: parts * d, head: d }
    }

    /// Returns matrices `[M, L]`, one of each head.
    pub(super) fn by_head<'b>(&self, buf: Buf<'b>) -> Columns<'b> {
        Columns::by_head(buf, self.rows, self.latent)
    }

    /// Returns outputs of heads as matrices `[M, V]`.
    pub(super) fn values_by_head(&self) -> Columns<'p> {
        Columns::by_head(self.values, self.rows, self.value_dim)
    }

    /// Returns outputs of heads in rows `[M, N V]`.
    pub(super) fn values_in_rows<'b>(&self, buf: Buf<'b>) -> Columns<'b> {
        Columns { buf, first: 0, row: self.heads * self.value_dim, head: self.value_dim }
    }

    pub(super) fn key_of(&self, head: usize) -> Buf<'p> {
        self.keys.part(head, self.rows * self.key_dim)
    }

    pub(super) fn wide_of(&self, head: usize) -> Buf<'p> {
        self.wide.part(head, self.rows * self.latent)
    }

    pub(super) fn value_of(&self, head: usize) -> Buf<'p> {
        self.values.part(head, self.rows * self.value_dim)
    }
}
