//! Products that are computed with numbers of eight bits: a rounded copy of their weights, made anew after each update.
//!
//! Rollout, scoring and update read the copy, so they are one policy; the optimizer reads and writes the weights.

use crate::activations::mode::Mode;
use crate::activations::shape::{Life, PassLimits, PassShape, Regions, Target};
use crate::weights::Params;
use plimsoll_arch::{ModelSpec, Product, Site, SiteMap, products};
use plimsoll_base::{DType, Result};
use plimsoll_device::{
    Device, FP8_UNIT, FP8_WIDTH_MAX, Fp8, Fp8Room, Layouts, fp8_dtype, fp8_elements, fp8_row_scales,
    fp8_turned,
};
use plimsoll_memory::{Buf, Layout};

/// Elements at which a matrix begins: cards copy whole units of 16 bytes.
const ALIGN: u64 = 64;

/// Returns whether a product is computed so. Those of experts, of single heads and of the gates of linear attention are
/// not, nor are those whose sizes are no whole units, or larger than devices take.
fn is_rounded(product: &Product) -> bool {
    let site = product.kind.site().filter(|site| !matches!(site, Site::LatentUp | Site::Delta));
    let is_taken = |n: u32| (n as usize).is_multiple_of(FP8_UNIT) && n as usize <= FP8_WIDTH_MAX;
    site.is_some() && product.experts.is_none() && is_taken(product.n) && is_taken(product.k)
}

/// The products of a model that are computed with numbers of eight bits, and where the rounded weights of each are.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8Table {
    places: Vec<Fp8Place>,
    /// Elements of `Fp8Bufs::codes`.
    pub codes: u64,
    /// Elements of `Fp8Bufs::scales`.
    pub scales: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Fp8Place {
    layer: u32,
    site: Site,
    n: u32,
    k: u32,
    codes: u64,
    scales: u64,
}

impl Fp8Table {
    /// Returns the table of a model on a kind of device.
    pub fn new(spec: &ModelSpec, kind: &Layouts, weights: DType) -> Fp8Table {
        let mut table = Fp8Table { places: Vec::new(), codes: 0, scales: 0 };
        for layer in 0..spec.layers.len() {
            for product @ Product { n, k, .. } in products(spec, layer).into_iter().filter(is_rounded) {
                let site = product.kind.site().expect("a rounded product has a site");
                let (codes, scales) = fp8_elements(kind, n.into(), k.into(), weights);
                let place = Fp8Place { layer, site, n, k, codes: table.codes, scales: table.scales };
                table.places.push(place);
                table.codes += codes.next_multiple_of(ALIGN);
                table.scales += scales.next_multiple_of(ALIGN);
            }
        }
        table
    }

    /// Returns whether no product of the model is computed so.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// The buffers of a model's rounded weights.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Bufs<'a> {
    /// [`Fp8Table::codes`] of `fp8_dtype`.
    pub codes: Buf<'a>,
    /// [`Fp8Table::scales`] f32, if the device multiplies codes.
    pub scales: Option<Buf<'a>>,
}

/// The rounded weights of each layer.
#[derive(Clone, Debug)]
pub struct Fp8Weights<'a> {
    layers: Vec<SiteMap<Fp8<'a>>>,
}

impl<'a> Fp8Weights<'a> {
    /// Resolves the handles.
    pub fn bind(
        spec: &ModelSpec,
        table: &Fp8Table,
        kind: &Layouts,
        weights: DType,
        bufs: Fp8Bufs<'a>,
    ) -> Fp8Weights<'a> {
        let mut layers = vec![SiteMap::default(); spec.layers.len() as usize];
        for &Fp8Place { layer, site, n, k, codes, scales } in &table.places {
            let (len, len_of_scales) = fp8_elements(kind, n.into(), k.into(), weights);
            let of_codes = bufs.codes.slice(codes as usize, len as usize);
            let of_scales = bufs.scales.map(|all| all.slice(scales as usize, len_of_scales as usize));
            let of = Fp8::new(kind, weights, (of_codes, of_scales), n as usize, k as usize);
            *layers[layer as usize].get_mut(site) = Some(of);
        }
        Fp8Weights { layers }
    }

    /// Rounds the weights: after they were read or have changed.
    pub fn update(&self, dev: &dyn Device, weights: &Params<'a>) {
        for (rounded, weights) in self.layers.iter().zip(&weights.layers) {
            for site in Site::ALL {
                if let Some(to) = rounded.get(site) {
                    dev.round_fp8(weights.at(site), to);
                }
            }
        }
    }
}

impl<'a> Params<'a> {
    /// Returns the weights with rounded ones for the products that are computed so.
    pub fn with_fp8(mut self, rounded: &Fp8Weights<'a>) -> Params<'a> {
        for (layer, rounded) in self.layers.iter_mut().zip(&rounded.layers) {
            for site in Site::ALL {
                if let Some(product) = layer.products.get_mut(site) {
                    product.fp8 = rounded.get(site);
                }
            }
        }
        self
    }
}

/// Returns the regions that such products add to a pass.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: PassLimits,
) -> Result<Layout> {
    let mut to = Regions::new(PassShape { spec, mode, limits }, weights, target);
    let learns = mode.recompute().is_some();
    let all: Vec<Product> =
        (0..spec.layers.len()).flat_map(|layer| products(spec, layer)).filter(is_rounded).collect();
    let width = |of: &Product| if learns { of.n.max(of.k) } else { of.k } as usize;
    let widest = all.iter().map(width).max().unwrap_or(0);
    to.add(Life::Layer, "fp8.rows", &[limits.rows, widest], fp8_dtype(target.kind, weights))?;
    if target.kind.multiplies_fp8 {
        let scales = fp8_row_scales(limits.rows as u64, widest as u64) as usize;
        to.add(Life::Layer, "fp8.row_scales", &[scales], DType::F32)?;
        if learns {
            let largest =
                all.iter().map(|of| fp8_turned(of.n.into(), of.k.into()) as usize).max().unwrap_or(0);
            to.add(Life::Layer, "fp8.turned", &[largest], fp8_dtype(target.kind, weights))?;
        }
    }
    Ok(to.layout)
}

/// Returns the room of a pass that has those regions.
pub(crate) fn room<'p>(get: impl Fn(&str) -> Option<Buf<'p>>) -> Option<Fp8Room<'p>> {
    get("fp8.rows").map(|rows| Fp8Room { rows, scales: get("fp8.row_scales"), turned: get("fp8.turned") })
}
