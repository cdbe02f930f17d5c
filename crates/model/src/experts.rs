//! The feed-forward part of a layer with experts: its regions in a pass, its forward pass and its gradients.
//!
//! Legend: M rows, E experts of which each row has k, P = M k pairs, h hidden, f feed-forward width of an expert.

use crate::adapters::LayerAdapters;
use crate::weights::LayerParams;
use plimsoll_arch::{ExpertsSpec, Gate, ModelSpec, Site};
use plimsoll_base::{DType, Result};
use plimsoll_device::{
    AdaptExpertsBackward, Balance, Device, Experts, ExpertsAdapter, ExpertsBackward, GluExpertsBackward,
    Matrix, RouteBackward, Routes, Routing, RowsOf,
};
use plimsoll_memory::{Buf, Turn};

/// Handles to the regions of a pass through layers with experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertRegions<'p> {
    /// [slots, M, E] f32: what routers gave.
    logits: Buf<'p>,
    /// [slots, M, k] u32.
    chosen: Buf<'p>,
    /// [slots, M, k] f32.
    weights: Buf<'p>,
    /// [slots, P] u32.
    pairs: Buf<'p>,
    /// [slots, M, k] u32.
    places: Buf<'p>,
    /// [slots, E + 1] u32; of all layers in passes with gradients.
    starts: Buf<'p>,
    /// [P, h] f32: what experts give each pair, and the gradient of what they read.
    out: Buf<'p>,
    gradients: Option<GradientRegions<'p>>,
}

/// Handles to what only passes with gradients have.
#[derive(Clone, Copy, Debug)]
struct GradientRegions<'p> {
    /// [P] f32: derivatives by the weights of pairs.
    d_weights: Buf<'p>,
    /// [M, E] e.
    d_logits: Buf<'p>,
    /// [L, M] f32, of the layers with experts: how unequally each row is routed.
    balance: Buf<'p>,
}

/// Adds the regions, for passes of `m` rows. `slots`: layers of which routes are kept for the backward pass; `kept`: when these are in
/// use.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(
    spec: &ModelSpec,
    weights: DType,
    m: usize,
    (slots, kept): (usize, Turn),
    has_gradients: bool,
    add: &mut impl FnMut(Turn, &str, &[usize], DType) -> Result<()>,
) -> Result<()> {
    let Some(experts) = spec.experts else { return Ok(()) };
    let (e, k) = (experts.count as usize, experts.chosen as usize);
    add(kept, "experts.logits", &[slots, m, e], DType::F32)?;
    add(kept, "experts.chosen", &[slots, m, k], DType::U32)?;
    add(kept, "experts.weights", &[slots, m, k], DType::F32)?;
    add(kept, "experts.pairs", &[slots, m * k], DType::U32)?;
    add(kept, "experts.places", &[slots, m, k], DType::U32)?;
    let all = spec.expert_layers() as usize;
    match has_gradients {
        true => add(Turn::Whole, "experts.starts", &[all, e + 1], DType::U32)?,
        false => add(kept, "experts.starts", &[slots, e + 1], DType::U32)?,
    }
    let once = if has_gradients { Turn::Layers } else { Turn::Whole };
    add(once, "experts.out", &[m * k, spec.hidden as usize], DType::F32)?;
    if has_gradients {
        add(once, "experts.d_weights", &[m * k], DType::F32)?;
        add(once, "experts.d_logits", &[m, e], weights)?;
        add(Turn::Whole, "experts.balance", &[all, m], DType::F32)?;
    }
    Ok(())
}

impl<'p> ExpertRegions<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(crate) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<ExpertRegions<'p>> {
        let buf = |what: &str| get(&format!("experts.{what}"));
        Some(ExpertRegions {
            logits: buf("logits")?,
            chosen: buf("chosen")?,
            weights: buf("weights")?,
            pairs: buf("pairs")?,
            places: buf("places")?,
            starts: buf("starts")?,
            out: buf("out")?,
            gradients: buf("d_weights").map(|d_weights| GradientRegions {
                d_weights,
                d_logits: buf("d_logits").expect("gradients of logits"),
                balance: buf("balance").expect("a number for each row of each layer"),
            }),
        })
    }

    /// The first `m` rows of the buffers of a layer, the one at `index` of those with experts, whose routes are in `slot`; of regions for
    /// `all` rows.
    pub(crate) fn layer(
        &self,
        spec: &ModelSpec,
        experts: ExpertsSpec,
        (index, slot): (usize, usize),
        (all, m): (usize, usize),
    ) -> ExpertBufs<'p> {
        let (e, k) = (experts.count as usize, experts.chosen as usize);
        let rows = |buf: Buf<'p>, width: usize| buf.slice(slot * all * width, m * width);
        ExpertBufs {
            logits: rows(self.logits, e),
            routes: Routes {
                experts: rows(self.chosen, k),
                weights: rows(self.weights, k),
                pairs: rows(self.pairs, k),
                places: rows(self.places, k),
                starts: self.starts.part(if self.gradients.is_some() { index } else { slot }, e + 1),
            },
            out: self.out.slice(0, m * k * spec.hidden as usize),
            gradients: self.gradients.map(|of| GradientRegions {
                d_weights: of.d_weights.slice(0, m * k),
                d_logits: of.d_logits.slice(0, m * e),
                balance: of.balance.slice(index * all, m),
            }),
        }
    }
}

/// One layer's buffers for M rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertBufs<'p> {
    logits: Buf<'p>,
    routes: Routes<'p>,
    out: Buf<'p>,
    gradients: Option<GradientRegions<'p>>,
}

/// A layer with experts in a pass: its weights, its buffers, and those that layers without experts have too.
pub(crate) struct ExpertLayer<'x, 'a, 'p> {
    pub(crate) dev: &'x dyn Device,
    pub(crate) spec: &'x ModelSpec,
    pub(crate) experts: ExpertsSpec,
    pub(crate) w: &'x LayerParams<'a>,
    pub(crate) bufs: ExpertBufs<'p>,
    /// [M, h] e: what the part reads.
    pub(crate) input: Buf<'p>,
    /// [P, 2f] e.
    pub(crate) gate_up: Buf<'p>,
    /// [P, f] e.
    pub(crate) product: Buf<'p>,
    /// Room for u of the adapters of one product.
    pub(crate) u: Option<Buf<'p>>,
}

/// Gradients of a layer with experts.
pub(crate) struct ExpertGradients<'x, 'a, 'p> {
    /// Where those of weights go; none where they are frozen.
    pub(crate) weights: Option<&'x LayerParams<'a>>,
    /// Where those of adapters go, with room for the gradient of u and for packing.
    pub(crate) adapters: Option<(&'x LayerAdapters<'a>, Buf<'p>, Buf<'p>)>,
    pub(crate) add: bool,
    /// [M, h] e: of what the part gave.
    pub(crate) d_out: Buf<'p>,
    /// [M, h] e, written: of what it read.
    pub(crate) d_input: Buf<'p>,
    pub(crate) pack: Buf<'p>,
    /// [S, 5] u32, as `Batch::segments`.
    pub(crate) segments: Buf<'p>,
    /// As `Balance::factor`.
    pub(crate) balance: f32,
}

impl<'a> ExpertLayer<'_, 'a, '_> {
    /// Routes the rows, and makes the gates and ups of their pairs.
    pub(crate) fn to_gates(&self) {
        let Self { dev, w, bufs, .. } = *self;
        let ExpertBufs { logits, routes, .. } = bufs;
        dev.matmul(self.input, self.router(w), None, logits, false);
        dev.route(logits, self.routing(), routes);
        dev.matmul_experts(self.input, RowsOf::Rows, self.all(Site::GateUp), routes, self.gate_up);
        self.adapt(Site::GateUp, (self.input, RowsOf::Rows), self.gate_up);
    }

    /// out = resid + what the experts give, after `to_gates`.
    pub(crate) fn add_product(&self, resid: Buf<'_>, out: Buf<'_>) {
        let (dev, routes, y) = (self.dev, self.bufs.routes, self.bufs.out);
        dev.glu_experts(self.gate(), self.gate_up, self.experts.ffn as usize, routes, self.product);
        dev.matmul_experts(self.product, RowsOf::Pairs, self.all(Site::Down), routes, y);
        self.adapt(Site::Down, (self.product, RowsOf::Pairs), y);
        dev.combine(y, routes, Some(resid), out);
    }

    /// The gradients, after `to_gates` of the same pass. The products are made again on the way.
    pub(crate) fn backward(&self, of: &ExpertGradients<'_, '_, '_>) {
        let Self { dev, w, bufs: ExpertBufs { logits, routes, out, gradients }, .. } = *self;
        let (gate_up, product) = (self.gate_up, self.product);
        let GradientRegions { d_weights, d_logits, balance: rows } =
            gradients.expect("only the update runs backward");
        self.input_gradient(of, Site::Down, (of.d_out, RowsOf::Rows), product);
        let (how, f) = (self.gate(), self.experts.ffn as usize);
        dev.glu_experts_backward(GluExpertsBackward { how, gate_up, f, routes, dout: product, d_weights });
        self.weight_gradient(of, Site::Down, (of.d_out, RowsOf::Rows), (product, RowsOf::Pairs));
        self.input_gradient(of, Site::GateUp, (gate_up, RowsOf::Pairs), out);
        self.weight_gradient(of, Site::GateUp, (gate_up, RowsOf::Pairs), (self.input, RowsOf::Rows));
        dev.combine(out, routes, None, of.d_input);
        // The loss of balance is reported where its coefficient is 0 too.
        let balance = Some(Balance { segments: of.segments, factor: of.balance, rows });
        let how = self.routing();
        dev.route_backward(RouteBackward { logits, how, routes, d_weights, balance, d_logits });
        if let Some(grads) = of.weights {
            dev.matmul_dw(d_logits, self.input, self.router(grads), of.add, of.pack);
        }
        dev.matmul_dx(d_logits, self.router(w), of.d_input, true);
    }

    /// Adds what adapters give to a product that is there, unless its weights have them in them.
    fn adapt(&self, site: Site, (x, x_has): (Buf<'_>, RowsOf), out: Buf<'_>) {
        if let Some(adapter) = self.adapter(site).filter(|_| !self.w.adapters.are_merged) {
            self.dev.adapt_experts(x, x_has, adapter, self.bufs.routes, self.u(&adapter), Some(out));
        }
    }

    /// The gradient of a product's input, and that of u, from which `weight_gradient` goes on.
    fn input_gradient(
        &self,
        of: &ExpertGradients<'_, '_, '_>,
        site: Site,
        (dy, dy_has): (Buf<'_>, RowsOf),
        out: Buf<'_>,
    ) {
        let (dev, routes) = (self.dev, self.bufs.routes);
        dev.matmul_experts_dx(dy, dy_has, self.all(site), routes, out);
        if let Some(((_, d_u, _), adapter)) = of.adapters.zip(self.adapter(site)) {
            let du = d_u.slice(0, self.u(&adapter).len());
            let added = (!self.w.adapters.are_merged).then_some(out);
            dev.adapt_experts_dx(dy, dy_has, adapter, routes, du, added);
        }
    }

    /// The gradient of a product's weights, or of its adapters, whose u is made again.
    fn weight_gradient(
        &self,
        of: &ExpertGradients<'_, '_, '_>,
        site: Site,
        (dy, dy_has): (Buf<'_>, RowsOf),
        (x, x_has): (Buf<'_>, RowsOf),
    ) {
        let (dev, routes, add) = (self.dev, self.bufs.routes, of.add);
        if let Some(grads) = of.weights {
            let (grad, pack) = (self.cut(grads.at(site)), of.pack);
            dev.matmul_experts_dw(ExpertsBackward { dy, dy_has, x, x_has, routes, grad, add, pack });
        }
        if let Some(((grads, d_u, pack), adapter)) = of.adapters.zip(self.adapter(site)) {
            let u = self.u(&adapter);
            dev.adapt_experts(x, x_has, adapter, routes, u, None);
            let (du, grads) =
                (d_u.slice(0, u.len()), grads.of_experts(site).expect("adapters have gradients"));
            dev.adapt_experts_dw(AdaptExpertsBackward {
                x,
                x_has,
                u,
                dy,
                dy_has,
                du,
                routes,
                grads,
                add,
                pack,
            });
        }
    }

    fn adapter(&self, site: Site) -> Option<ExpertsAdapter<'a>> {
        self.w.adapters.of_experts(site)
    }

    /// Room for u of a product's adapters: [P, S r].
    fn u(&self, adapter: &ExpertsAdapter<'_>) -> Buf<'_> {
        let room = self.u.expect("a pass with adapters of experts has room for u");
        room.slice(0, self.bufs.routes.pairs() * adapter.a.n)
    }

    fn routing(&self) -> Routing {
        let ExpertsSpec { count, chosen, normalizes, .. } = self.experts;
        Routing { experts: count as usize, chosen: chosen as usize, normalizes }
    }

    fn gate(&self) -> Gate {
        self.spec.architecture().gate
    }

    fn router<'w>(&self, of: &LayerParams<'w>) -> Matrix<'w> {
        of.router.expect("a layer with experts has a router")
    }

    /// The matrices of all experts, widened if they are stored in codes.
    fn all(&self, site: Site) -> Experts<'a> {
        self.cut(self.w.ready(self.dev, site))
    }

    fn cut<'w>(&self, whole: Matrix<'w>) -> Experts<'w> {
        cut(whole, self.experts.count as usize)
    }
}

/// Cuts a matrix whose rows are those of all experts.
pub(crate) fn cut(whole: Matrix<'_>, count: usize) -> Experts<'_> {
    Experts::new(whole.buf, count, whole.n / count, whole.k, whole.layout)
}

/// Rows whose balance is read at a time.
const ROWS_READ: usize = 1024;

/// What the experts of a model got in the passes of an update.
#[derive(Clone, Debug)]
pub struct ExpertLoad {
    experts: ExpertsSpec,
    /// [L, E] pairs, then of each pass the sum over rows of how unequally they are routed: what ranks exchange.
    numbers: Vec<f64>,
    starts: Vec<u32>,
}

/// How equally experts were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertUse {
    /// The loss of balance, with the coefficient 1: E times the mean over layers and rows of the sum over experts of a row's probability
    /// times the share of its segment's rows. It is k where experts are equally loaded.
    pub balance: f64,
    /// Pairs of the expert that got most, over the mean of its layer; of all layers the largest.
    pub load_max: f64,
    /// Experts that got no pair, of all layers.
    pub idle: u32,
}

impl ExpertLoad {
    /// Nothing so far; none of a model without experts.
    pub fn of(spec: &ModelSpec) -> Option<ExpertLoad> {
        let experts = spec.experts?;
        let (layers, count) = (experts.layers.len() as usize, experts.count as usize);
        let (numbers, starts) = (vec![0.0; layers * count], vec![0; layers * (count + 1)]);
        Some(ExpertLoad { experts, numbers, starts })
    }

    /// Adds a pass, after its backward pass.
    pub(crate) fn add(&mut self, dev: &dyn Device, regions: &ExpertRegions<'_>, m: usize) {
        let GradientRegions { balance, .. } = regions.gradients.expect("only the update runs backward");
        let (layers, count) = (self.experts.layers.len() as usize, self.experts.count as usize);
        dev.read_u32(regions.starts, 0, &mut self.starts);
        for (layer, starts) in self.starts.chunks(count + 1).enumerate() {
            for (expert, ends) in starts.windows(2).enumerate() {
                self.numbers[layer * count + expert] += f64::from(ends[1] - ends[0]);
            }
        }
        let (mut sum, mut rows) = (0.0, [0.0; ROWS_READ]);
        for layer in 0..layers {
            let of_layer = layer * (balance.len() / layers);
            let mut of_rows = 0.0;
            for first in (0..m).step_by(ROWS_READ) {
                let rows = &mut rows[..ROWS_READ.min(m - first)];
                dev.read_f32(balance, of_layer + first, rows);
                rows.iter().for_each(|row| of_rows += f64::from(*row));
            }
            sum += of_rows;
        }
        self.numbers.push(sum);
    }

    /// Returns what ranks exchange.
    pub fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    /// Returns the use of experts from the numbers of all ranks, which had the passes of an update in turn.
    pub fn used(&self, ranks: &[Vec<f64>]) -> ExpertUse {
        let (layers, count) = (self.experts.layers.len() as usize, self.experts.count as usize);
        let pairs = |i: usize| ranks.iter().map(|numbers| numbers[i]).sum::<f64>();
        let pairs: Vec<f64> = (0..layers * count).map(pairs).collect();
        let total: f64 = pairs.iter().sum();
        if total == 0.0 {
            return ExpertUse::default();
        }
        let passes = ranks.iter().map(|numbers| numbers.len() - layers * count).max().unwrap_or(0);
        let in_turn =
            (0..passes).flat_map(|pass| ranks.iter().filter_map(move |of| of.get(layers * count + pass)));
        let rows = total / f64::from(self.experts.chosen);
        let mean = total / (layers * count) as f64;
        ExpertUse {
            balance: count as f64 * in_turn.sum::<f64>() / rows,
            load_max: pairs.iter().fold(0.0, |most, &n| f64::max(most, n)) / mean,
            idle: pairs.iter().filter(|&&n| n == 0.0).count() as u32,
        }
    }
}
