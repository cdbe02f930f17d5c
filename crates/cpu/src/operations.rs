//! Which function runs an operation, and the scratch that operations need.

use crate::cpu_device::CpuDevice;
use crate::{
    activation, adamw, adamw8, attention, attention_backward, blocks, columns, delta, elementwise,
    expert_bias, experts, fp8, gate, gelu, head, head_divergence, head_gates, head_listed, lanes, layer_norm,
    matmul, muon, norm, peak, placed_rows, rope, sample,
};
use plimsoll_arch::{ModelSpec, ParamKind, Product, Site, products};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{
    ADAPTER_BLOCKS_MAX, Backend, Checked, Claim, Claims, Coded, Experts, Functions, Layouts, Matrix,
    MatrixLayout, Pipeline, Run, SamplerNoise, ScratchLimits, Transfer,
};
use plimsoll_memory::{Buf, Layout, Pool as HostPool};
use std::sync::atomic::Ordering;

/// True if attention takes heads of `head_dim` elements: whole vectors, up to the largest that its tiles hold.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(lanes::LANES) && head_dim <= rope::HEAD_DIM_MAX
}

impl CpuDevice {
    /// Returns the resident region `device.scratch` of a run, see `scratch_layout` and `scratch_of_adapters`.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch(spec: &ModelSpec, of: &ScratchLimits) -> Result<Layout> {
        let of_text = match of.rank_max {
            Some(rank) => elements_with_adapters(spec, of.weights, rank.into()),
            None => elements(spec, of.weights, of.trains),
        };
        let of_tower = of.tower.map_or(0, |tower| elements_of_matrices(&tower.products(), of.weights));
        region(of.threads, of_text.max(of_tower), of.weights)
    }

    /// Returns the resident region `device.scratch`, which the device needs if the model is trained or has experts.
    ///
    /// Each thread has room for three panels of the largest transposed matrix, and for some rows that experts gather,
    /// independent of the number of rows.
    /// Errors: `size-overflow`.
    pub fn scratch_layout(spec: &ModelSpec, weights: DType, threads: usize, update: bool) -> Result<Layout> {
        region(threads, elements(spec, weights, update), weights)
    }

    /// Returns the scratch for a model whose adapters of `rank` are trained: their matrices are transposed too.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_of_adapters(
        spec: &ModelSpec,
        weights: DType,
        threads: usize,
        rank: u64,
    ) -> Result<Layout> {
        region(threads, elements_with_adapters(spec, weights, rank), weights)
    }

    /// Returns the scratch for matrices `[n, k]` of f32 weights, of any model.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_of_matrices(matrices: &[(u64, u64)], threads: usize) -> Result<Layout> {
        region(threads, elements_of_matrices(matrices, DType::F32), DType::F32)
    }
}

/// Returns the region of `elements` for each thread, if it has any.
fn region(threads: usize, elements: u64, weights: DType) -> Result<Layout> {
    let mut layout = Layout::new();
    if elements > 0 {
        let shape = [threads as u64, elements];
        layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, weights)?;
    }
    Ok(layout)
}

fn elements(spec: &ModelSpec, weights: DType, update: bool) -> u64 {
    let has_experts = u64::from(spec.has_experts());
    let gathered = has_experts * matmul::experts::gathered_elements(spec.hidden.into());
    if update { scratch_elements(spec, weights) } else { gathered }
}

fn elements_with_adapters(spec: &ModelSpec, weights: DType, rank: u64) -> u64 {
    let most = if spec.has_states() { ADAPTER_BLOCKS_MAX } else { 3 } as u64;
    let adapters = linear(spec).flat_map(|(n, k)| [(n, rank), (most * rank, k)]);
    let each = adapters.map(|(n, k)| matmul::transpose_elements(n, k, weights));
    // Gradients of rows are gathered while the B of an expert's down is transposed.
    let h = u64::from(spec.hidden);
    let experts = if spec.has_experts() {
        matmul::experts::gathered_elements(h) + matmul::transpose_elements(h, rank, weights)
    } else {
        0
    };
    each.fold(scratch_elements(spec, weights).max(experts), u64::max)
}

fn elements_of_matrices(matrices: &[(u64, u64)], weights: DType) -> u64 {
    matrices.iter().map(|&(n, k)| matmul::transpose_elements(n, k, weights)).max().unwrap_or(0)
}

/// Returns the shapes [n, k] of the linear layers of all blocks; one expert stands for all of a layer.
fn linear(spec: &ModelSpec) -> impl Iterator<Item = (u64, u64)> {
    all_products(spec).map(|product| (product.n.into(), product.k.into()))
}

fn all_products(spec: &ModelSpec) -> impl Iterator<Item = Product> {
    (0..spec.layers.len()).flat_map(|layer| products(spec, layer))
}

/// Returns the elements of one thread's scratch: the largest transposed group of panels of the model's matrices.
fn scratch_elements(spec: &ModelSpec, weights: DType) -> u64 {
    let head = u64::from(spec.vocab).min(plimsoll_device::HEAD_TILE as u64);
    let matrices = linear(spec).chain([(head, u64::from(spec.hidden))]);
    let each = matrices.map(|(n, k)| matmul::transpose_elements(n, k, weights));
    // Gradients of rows are gathered for the pairs of an expert while its down is transposed.
    let of_expert =
        |product: &Product| product.kind == ParamKind::Weight(Site::Down) && product.experts.is_some();
    let gathered = |Product { n, k, .. }: Product| {
        matmul::experts::gathered_elements(n.into()) + matmul::transpose_elements(n.into(), k.into(), weights)
    };
    let experts = all_products(spec).filter(of_expert).map(gathered).max().unwrap_or(0);
    each.fold(experts, u64::max)
}

impl Backend for CpuDevice {
    fn kind(&self) -> &'static Layouts {
        &crate::LAYOUTS
    }
    fn machine_type(&self) -> String {
        self.isa.name().to_string()
    }
    fn threads(&self) -> usize {
        self.pool.threads()
    }
    fn peak_flops(&self, seconds: f64) -> f64 {
        peak::measure_flops(&self.pool, self.isa, seconds) * 1e9
    }
    fn perturb_norms(&self, on: bool) {
        self.perturbed.store(on, Ordering::Relaxed);
    }
    fn set_sampler_noise(&self, noise: Option<SamplerNoise>) {
        *self.noise.lock().expect("no thread panics with it") = noise;
    }
    fn claims(&self) -> &Claims {
        &self.claims
    }
    fn check(&self) -> Result<()> {
        self.claims.check()
    }

    fn launch(&self, op: Checked<'_, '_>) {
        OPERATIONS.run(self, op.op());
    }

    fn put_u32(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[u32]) {
        elementwise::write_u32(self, dst, src);
    }
    fn get_u32(&self, _: &Claim<'_>, src: Buf<'_>, dst: &mut [u32]) {
        dst.copy_from_slice(self.read(src));
    }
    fn put_bytes(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[u8]) {
        elementwise::write_bytes(self, dst, src);
    }
    fn put_f32(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[f32]) {
        elementwise::write_f32(self, dst, src);
    }
    fn get_f32(&self, _: &Claim<'_>, src: Buf<'_>, dst: &mut [f32]) {
        elementwise::read_f32(self, src, dst);
    }
    fn put_rows(&self, _: &Claim<'_>, dst: Matrix<'_>, first_row: usize, src: &[f32]) {
        elementwise::write_rows(self, dst, first_row, src);
    }
    fn get_rows(&self, _: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [f32]) {
        elementwise::read_rows(self, src, first_row, dst);
    }
    fn get_stored(&self, _: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [u8]) {
        elementwise::read_stored(self, src, first_row, dst);
    }
    fn get_codes(
        &self,
        _: &Claim<'_>,
        src: Coded<'_>,
        (k, layout): (usize, MatrixLayout),
        first_row: usize,
        dst: &mut [f32],
    ) {
        adamw8::read_codes(self, src, k, layout, first_row, dst);
    }
    fn get_sum_squares(&self, _: &Claim<'_>, x: Buf<'_>) -> f64 {
        adamw::sum_squares(self, x)
    }
    fn get_squares_of(
        &self,
        _: &Claim<'_>,
        x: Buf<'_>,
        runs: &mut dyn Iterator<Item = Run>,
        each: &mut dyn FnMut(f64),
    ) {
        adamw::squares_of(self, x, runs, each);
    }

    fn sync(&self) {}
    fn both(&self, a: &(dyn Fn() + Sync), b: &(dyn Fn() + Sync)) {
        self.pool.run(2, &|task, _| if task == 0 { a() } else { b() });
    }
    fn pipeline(&self) -> Option<&dyn Pipeline> {
        self.slots.is_some().then_some(self)
    }

    fn offload_begin(&self) {}
    fn offload_wait(&self, _slot: usize) {}
    fn bring<'a, 'c>(&self, _slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        copies.for_each(|copy| elementwise::copy_bytes(self, copy.src, copy.dst));
    }
    fn send_back<'a, 'c>(&self, _slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        copies.for_each(|copy| elementwise::copy_bytes(self, copy.src, copy.dst));
    }
}

/// The function of each operation.
static OPERATIONS: Functions<CpuDevice> = Functions {
    embed: elementwise::embed,
    scale: elementwise::scale,
    scale_by: elementwise::scale_by,
    rms_norm: norm::rms_norm,
    rms_norm_add: norm::rms_norm_add,
    matmul: matmul::forward,
    matmul_add: matmul::forward_add,
    add_bias: elementwise::add_bias,
    adapted: matmul::adapted,
    adapted_slots: matmul::adapted_slots,
    adapt_down: matmul::adapt_down,
    merge: matmul::merge,
    rope: rope::forward,
    copy_kv: rope::copy_kv,
    attention: attention::forward,
    glu: gate::glu,
    gated: |dev, x, w, how, gate_up, out| {
        matmul::forward(dev, x, w, None, gate_up, false);
        gate::glu(dev, how, gate_up, w.n / 2, out);
    },
    activate: activation::activate,
    gather_rows: elementwise::gather_rows,
    head: head::forward,
    head_top: head_listed::top,
    head_listed: head_listed::listed,
    head_divergence: head_divergence::forward,
    sample: sample::sample,
    advance: elementwise::advance,
    matmul_codes: matmul::coded,
    dequantize: blocks::dequantize,
    round_fp8: fp8::round,
    matmul_fp8: fp8::forward,

    cast: elementwise::cast,
    adapt_backward_u: matmul::adapt_backward_u,
    adapted_dx: matmul::adapted_dx,
    adapt_backward_w: matmul::adapt_backward_w,
    matmul_fp8_dx: fp8::backward_x,
    matmul_dx: matmul::backward_x,
    matmul_dw: matmul::gradient,
    bias_backward: norm::bias_backward,
    rms_norm_backward: norm::rms_norm_backward,
    attention_backward: attention_backward::backward,
    sink_backward: attention_backward::sinks,
    rope_backward: rope::backward,
    glu_backward: gate::glu_backward,
    activate_backward: activation::activate_backward,
    scatter_add_rows: elementwise::scatter_add_rows,
    head_backward: head::backward,
    embed_backward: elementwise::embed_backward,

    accumulate: elementwise::accumulate,
    fold: elementwise::fold,
    embed_backward_part: elementwise::embed_backward_part,
    adamw: |dev, how, bufs| match bufs.scales {
        Some(scales) => adamw8::adamw(dev, how, bufs, scales),
        None => adamw::adamw(dev, how, bufs),
    },
    momentum: muon::momentum,
    arrange: muon::arrange,
    descend: muon::descend,
    write_codes: adamw8::write_codes,
    zero: elementwise::zero,

    split_gates: head_gates::split_gates,
    gate_heads: head_gates::gate_heads,
    gate_heads_backward: head_gates::backward,
    join_gates: head_gates::join_gates,

    move_columns: columns::move_columns,
    matmul_heads: columns::matmul_heads,

    delta_inputs: delta::inputs::forward,
    delta_rule: delta::rule::forward,
    norm_gated: delta::norm::forward,
    norm_gated_backward: delta::norm::backward,
    delta_rule_backward: delta::rule_backward::backward,
    delta_inputs_backward: delta::inputs_backward::backward,

    route: experts::route,
    matmul_experts: |dev, x, has, w, routes, out| {
        matmul::experts::product(dev, (x, has), w, routes, out, false)
    },
    matmul_experts_codes: |dev, x, has, codes, w, routes, out| {
        blocks::dequantize(dev, codes, w);
        matmul::experts::product(dev, (x, has), Experts::cut(w, routes.count()), routes, out, false)
    },
    adapt_experts: matmul::experts::adapt,
    add_expert_bias: expert_bias::add,
    glu_experts: experts::glu,
    glu_shared: experts::glu_shared,
    combine: experts::combine,
    matmul_experts_dx: |dev, dy, has, w, routes, out| {
        matmul::experts::product(dev, (dy, has), w, routes, out, true)
    },
    matmul_experts_dw: matmul::experts::backward_w,
    adapt_experts_dx: matmul::experts::adapt_dx,
    adapt_experts_dw: matmul::experts::adapt_dw,
    expert_bias_backward: expert_bias::backward,
    bias_weights_backward: expert_bias::weights_backward,
    glu_experts_backward: experts::glu_backward,
    glu_shared_backward: experts::glu_shared_backward,
    route_backward: experts::route_backward,

    layer_norm: layer_norm::forward,
    layer_norm_backward: layer_norm::backward,
    gelu: gelu::forward,
    gelu_backward: gelu::backward,
    weigh_rows: placed_rows::weigh_rows,
    replace_rows: placed_rows::replace_rows,
    next_places: placed_rows::next_places,
};
