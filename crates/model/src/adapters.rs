//! Low-rank adapters: what a decoder learns while its weights stay as they are.
//!
//! A layer has four products: q, k and v are one, gate and up another. The adapters of a product's targets have their A in one
//! matrix, so that its input is read once, and a B each. All of them lie in a flat buffer with a table of its own: loading, saving
//! and AdamW treat it as they treat weights.
//!
//! Legend: r rank, S adapters of a product, M rows; a product has K inputs and N outputs.

use crate::activations::{Mode, PassLimits, Target, kept_slots};
use crate::load::{Staging, check_finite, uniform};
use crate::params::{Param, ParamKind, ParamTable};
use crate::weights::LayerParams;
use plimsoll_base::{Bytes, DType, LoraShape, LoraTarget, ModelSpec, PhaseSet, Result};
use plimsoll_device::{
    ADAPTER_BLOCKS_MAX, Adapter, AdapterBlock, Device, DeviceKind, Matrix, MatrixLayout, sizes,
};
use plimsoll_files::{Adapter as AdapterFiles, LoraPart, adapter_tensor_name};
use plimsoll_memory::{Buf, Layout, Turn};

/// A product of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    Qkv,
    Output,
    GateUp,
    Down,
}

impl Site {
    pub const ALL: [Site; 4] = [Site::Qkv, Site::Output, Site::GateUp, Site::Down];

    /// Returns the linear layers that it consists of, by their outputs.
    fn layers(self) -> &'static [LoraTarget] {
        match self {
            Site::Qkv => &[LoraTarget::Q, LoraTarget::K, LoraTarget::V],
            Site::Output => &[LoraTarget::O],
            Site::GateUp => &[LoraTarget::Gate, LoraTarget::Up],
            Site::Down => &[LoraTarget::Down],
        }
    }

    /// Returns those that have an adapter, each with the first of its outputs.
    fn targets(self, spec: &ModelSpec, lora: LoraShape) -> impl Iterator<Item = (LoraTarget, usize)> {
        let mut first = 0;
        let each = self.layers().iter().map(move |&target| {
            let start = first;
            first += target.widths(spec).1 as usize;
            (target, start)
        });
        each.filter(move |(target, _)| lora.targets.contains(*target))
    }

    /// Returns the weights of the product among a layer's.
    pub(crate) fn of<'a>(self, layer: &LayerParams<'a>) -> Matrix<'a> {
        match self {
            Site::Qkv => layer.qkv,
            Site::Output => layer.output,
            Site::GateUp => layer.gate_up,
            Site::Down => layer.down,
        }
    }

    /// Returns S r, the width of u; 0 without an adapter.
    fn width(self, spec: &ModelSpec, lora: LoraShape) -> usize {
        self.targets(spec, lora).count() * lora.rank as usize
    }

    /// Returns the name of its region of u.
    fn region(self) -> &'static str {
        match self {
            Site::Qkv => "adapt.qkv",
            Site::Output => "adapt.output",
            Site::GateUp => "adapt.gate_up",
            Site::Down => "adapt.down",
        }
    }
}

impl ParamTable {
    /// The table of a decoder's adapters, under the names that peft gives them.
    pub fn adapters(spec: &ModelSpec, kind: DeviceKind, weights: DType, lora: LoraShape) -> ParamTable {
        let mut table = ParamTable { device: kind, params: Vec::new(), elements: 0 };
        for layer in 0..spec.layers {
            for site in Site::ALL {
                let down: Vec<(String, u32)> = site
                    .targets(spec, lora)
                    .map(|(target, _)| (adapter_tensor_name(layer, target, LoraPart::A), lora.rank))
                    .collect();
                if down.is_empty() {
                    continue;
                }
                let inputs = site.layers()[0].widths(spec).0;
                table.add(kind, weights, ParamKind::AdapterA(site), layer, inputs, down);
                for (target, _) in site.targets(spec, lora) {
                    let up = vec![(adapter_tensor_name(layer, target, LoraPart::B), target.widths(spec).1)];
                    table.add(kind, weights, ParamKind::AdapterB(target), layer, lora.rank, up);
                }
            }
        }
        table
    }
}

/// The adapters of one layer; also the shape of their gradients.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerAdapters<'a>([Option<Adapter<'a>>; 4]);

impl<'a> LayerAdapters<'a> {
    pub fn at(&self, site: Site) -> Option<Adapter<'a>> {
        self.0[site as usize]
    }
}

/// All adapters of a decoder over one flat buffer; also the shape of their gradients.
#[derive(Clone, Debug)]
pub struct Adapters<'a> {
    pub all: Buf<'a>,
    pub layers: Vec<LayerAdapters<'a>>,
}

impl<'a> Adapters<'a> {
    /// Resolves the handles. `all` holds `table.elements` elements; `weights` is the dtype of the decoder's weights, which decides
    /// the element order of gradients too.
    pub fn bind(
        spec: &ModelSpec,
        table: &ParamTable,
        weights: DType,
        lora: LoraShape,
        scale: f32,
        all: Buf<'a>,
    ) -> Adapters<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat buffer of adapters");
        let layout = MatrixLayout::of_weights(table.device, weights);
        let matrix = |param: &Param| {
            let buf = all.slice(param.offset as usize, param.elements as usize);
            Matrix::new(buf, param.n as usize, param.k as usize, layout)
        };
        let at = |layer, site: Site| {
            let a = matrix(table.find(ParamKind::AdapterA(site), layer)?);
            let mut blocks = [None; ADAPTER_BLOCKS_MAX];
            for (block, (target, first)) in blocks.iter_mut().zip(site.targets(spec, lora)) {
                let b = table.find(ParamKind::AdapterB(target), layer).expect("an A has its B");
                *block = Some(AdapterBlock { b: matrix(b), first });
            }
            Some(Adapter { a, blocks, scale })
        };
        let layers =
            (0..spec.layers).map(|layer| LayerAdapters(Site::ALL.map(|site| at(layer, site)))).collect();
        Adapters { all, layers }
    }
}

/// Where the numbers of adapters come from.
#[derive(Clone, Copy, Debug)]
pub enum AdaptersFrom<'x> {
    Files(&'x AdapterFiles),
    /// As peft begins: A uniform within 1 / sqrt(K), B zero.
    Seed(u64),
    /// A and B uniform within 1 / sqrt(K), for measurements: with a B of zeros nothing is added.
    Random(u64),
}

/// Fills adapters. `sets`: buffers of the table's elements, each with the same values in its dtype.
///
/// Errors: those of reading; `model-weight-not-finite`.
pub fn load_adapters(
    dev: &dyn Device,
    table: &ParamTable,
    layout: MatrixLayout,
    sets: &[Buf<'_>],
    from: AdaptersFrom<'_>,
    staging: Bytes,
) -> Result<()> {
    sets.iter().for_each(|buf| dev.zero(*buf));
    let Staging { mut stored, mut values } = Staging::new(staging);
    for param in &table.params {
        let width = param.k as usize;
        let chunk = values.len() / width;
        let mut above = 0;
        for part in &param.parts {
            for first in (0..part.rows as usize).step_by(chunk) {
                let rows = chunk.min(part.rows as usize - first);
                let out = &mut values[..rows * width];
                match (from, param.kind) {
                    (AdaptersFrom::Files(files), _) => {
                        files.read(&part.name, (first * width) as u64, &mut stored, out)?;
                        check_finite(&part.name, out)?;
                    }
                    (AdaptersFrom::Seed(_), ParamKind::AdapterB(_)) => out.fill(0.0),
                    (AdaptersFrom::Seed(seed) | AdaptersFrom::Random(seed), _) => {
                        uniform(param, 1.0 / (width as f32).sqrt(), seed, (above + first) * width, out);
                    }
                }
                for buf in sets {
                    let buf = buf.slice(param.offset as usize, param.elements as usize);
                    dev.write_rows(Matrix::new(buf, param.n as usize, width, layout), above + first, out);
                }
            }
            above += part.rows as usize;
        }
    }
    Ok(())
}

/// The regions that adapters add to those of a pass: u of each product, and what the backward pass takes.
///
/// Errors: `size-overflow`.
pub fn layout(
    spec: &ModelSpec,
    weights: DType,
    target: Target,
    mode: Mode,
    limits: PassLimits,
    lora: LoraShape,
) -> Result<Layout> {
    let mut regions = Layout::new();
    let (prefix, phases, rows) = (mode.prefix(), PhaseSet::of(&[mode.phase()]), limits.rows as u64);
    let mut add = |turn, name: &str, shape: &[u64]| {
        let name = format!("{prefix}.{name}");
        regions.arena_in_turn(&name, "model", target.pool, phases, turn, shape, weights)
    };
    let (mut widest, mut pack) = (0, 0);
    for site in Site::ALL {
        let width = site.width(spec, lora);
        if width == 0 {
            continue;
        }
        widest = widest.max(width);
        add(Turn::Whole, site.region(), &[slots(spec, mode, site) as u64, rows, width as u64])?;
        let of = |n: usize, k: usize| sizes::pack(target.kind, rows, n as u64, k as u64, weights);
        pack = pack.max(of(width, site.layers()[0].widths(spec).0 as usize));
        for (target, _) in site.targets(spec, lora) {
            pack = pack.max(of(target.widths(spec).1 as usize, lora.rank as usize));
        }
    }
    if mode.recompute().is_some() {
        add(Turn::Layers, "adapt.d_u", &[rows, widest as u64])?;
        if pack > 0 {
            add(Turn::Layers, "adapt.pack", &[pack])?;
        }
    }
    Ok(regions)
}

/// How many layers' worth of u a mode holds. The last product's is never computed again.
fn slots(spec: &ModelSpec, mode: Mode, site: Site) -> usize {
    match site {
        Site::Down if mode.recompute().is_some() => spec.layers as usize,
        _ => kept_slots(spec, mode),
    }
}

/// Handles to those regions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptBufs<'p> {
    u: [Option<Buf<'p>>; 4],
    pub(crate) d_u: Option<Buf<'p>>,
    pub(crate) pack: Option<Buf<'p>>,
}

impl<'p> AdaptBufs<'p> {
    pub(crate) fn bind(get: impl Fn(&str) -> Option<Buf<'p>>) -> AdaptBufs<'p> {
        AdaptBufs {
            u: Site::ALL.map(|site| get(site.region())),
            d_u: get("adapt.d_u"),
            pack: get("adapt.pack"),
        }
    }

    /// Returns u of each product for the first `m` of `all` rows of a layer.
    pub(crate) fn layer(
        &self,
        spec: &ModelSpec,
        mode: Mode,
        layer: usize,
        all: usize,
        m: usize,
    ) -> [Option<Buf<'p>>; 4] {
        Site::ALL.map(|site| {
            let (slots, buf) = (slots(spec, mode, site), self.u[site as usize]?);
            let width = buf.len() / (slots * all);
            Some(buf.slice(if slots > 1 { layer * all * width } else { 0 }, m * width))
        })
    }
}
