//! Which function runs an operation, and the scratch that operations need.

use crate::cpu_device::CpuDevice;
use crate::{
    activation, adamw, adamw8, attention, attention_backward, blocks, delta, elementwise, experts, gate,
    head, head_divergence, head_gates, head_listed, lanes, matmul, muon, norm, peak, rope, sample,
};
use plimsoll_arch::{ModelSpec, ParamKind, Product, Site, products};
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{
    ADAPTER_BLOCKS_MAX, Backend, BackwardOp, Checked, Claim, Claims, Coded, ForwardOp, Layouts, Matrix,
    MatrixLayout, Op, Pipeline, Run, SamplerNoise, Transfer, UpdateOp,
};
use plimsoll_memory::{Buf, Layout, Pool as HostPool};
use std::sync::atomic::Ordering;

/// True if attention takes heads of `head_dim` elements: whole vectors, up to the largest that its tiles hold.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(lanes::LANES) && head_dim <= rope::HEAD_DIM_MAX
}

impl CpuDevice {
    /// Returns the resident region `device.scratch`, which the device needs if the model is trained or has experts.
    ///
    /// Each thread has room for three panels of the largest transposed matrix, and for some rows that experts gather,
    /// independent of the number of rows.
    /// Errors: `size-overflow`.
    pub fn scratch_layout(spec: &ModelSpec, weights: DType, threads: usize, update: bool) -> Result<Layout> {
        let mut layout = Layout::new();
        let has_experts = u64::from(spec.has_experts());
        let gathered = has_experts * matmul::experts::gathered_elements(spec.hidden.into());
        let elements = if update { scratch_elements(spec, weights) } else { gathered };
        if elements > 0 {
            let shape = [threads as u64, elements];
            layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, weights)?;
        }
        Ok(layout)
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
        let adapters = linear(spec).flat_map(|(n, k)| [(n, rank), (ADAPTER_BLOCKS_MAX as u64 * rank, k)]);
        let each = adapters.map(|(n, k)| matmul::transpose_elements(n, k, weights));
        // Gradients of rows are gathered while the B of an expert's down is transposed.
        let h = u64::from(spec.hidden);
        let experts = if spec.has_experts() {
            matmul::experts::gathered_elements(h) + matmul::transpose_elements(h, rank, weights)
        } else {
            0
        };
        let shape = [threads as u64, each.fold(scratch_elements(spec, weights).max(experts), u64::max)];
        let mut layout = Layout::new();
        layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, weights)?;
        Ok(layout)
    }

    /// Returns the scratch for matrices `[n, k]` of f32 weights, of any model.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_of_matrices(matrices: &[(u64, u64)], threads: usize) -> Result<Layout> {
        let each = matrices.iter().map(|&(n, k)| matmul::transpose_elements(n, k, DType::F32));
        let shape = [threads as u64, each.max().unwrap_or(0)];
        let mut layout = Layout::new();
        layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, DType::F32)?;
        Ok(layout)
    }
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
        match op.op() {
            Op::Forward(op) => forward(self, op),
            Op::Backward(op) => backward(self, op),
            Op::Update(op) => update(self, op),
            Op::HeadGates(op) => head_gates::run(self, op),
            Op::Delta(op) => delta::run(self, op),
            Op::Experts(op) => experts::run(self, op),
        }
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

/// Runs an operation of the forward pass.
fn forward(dev: &CpuDevice, op: ForwardOp<'_>) {
    match op {
        ForwardOp::Embed { table, ids, out } => elementwise::embed(dev, table, ids, out),
        ForwardOp::Scale { x, by } => elementwise::scale(dev, x, by),
        ForwardOp::RmsNorm { x, norm, out } => norm::rms_norm(dev, x, norm, out),
        ForwardOp::RmsNormAdd { x, norm, resid, out } => norm::rms_norm_add(dev, x, norm, resid, out),
        ForwardOp::Matmul { x, w, bias, out, add } => matmul::forward(dev, x, w, bias, out, add),
        ForwardOp::MatmulAdd { x, w, resid, out } => matmul::forward_add(dev, x, w, resid, out),
        ForwardOp::AddBias { x, bias } => elementwise::add_bias(dev, x, bias),
        ForwardOp::Adapted { x, of, resid, u, out } => matmul::adapted(dev, x, of, resid, u, out),
        ForwardOp::AdaptDown { x, adapter, u } => matmul::adapt_down(dev, x, adapter, u),
        ForwardOp::Merge { w, adapter, out } => matmul::merge(dev, w, adapter, out),
        ForwardOp::Rope { qkv, norms, rotation, batch, kv, q_out } => {
            rope::forward(dev, qkv, norms, rotation, batch, kv, q_out);
        }
        ForwardOp::CopyKv { kv, copies } => rope::copy_kv(dev, kv, copies),
        ForwardOp::Attention { q, kv, batch, scores, out, lse } => {
            attention::forward(dev, q, kv, (batch, scores), out, lse);
        }
        ForwardOp::Glu { how, gate_up, f, out } => gate::glu(dev, how, gate_up, f, out),
        ForwardOp::Gated { x, w, how, gate_up, out } => {
            matmul::forward(dev, x, w, None, gate_up, false);
            gate::glu(dev, how, gate_up, w.n / 2, out);
        }
        ForwardOp::Activate { how, x, out } => activation::activate(dev, how, x, out),
        ForwardOp::GatherRows { x, rows, out } => elementwise::gather_rows(dev, x, rows, out),
        ForwardOp::Head { x, w, targets, logits, tile, out } => {
            head::forward(dev, x, w, targets, logits, tile, out);
        }
        ForwardOp::HeadTop { x, w, lse, logits, tile, out } => {
            head_listed::top(dev, x, w, lse, logits, tile, out);
        }
        ForwardOp::HeadListed { x, w, lse, logits, ids, logprobs } => {
            head_listed::listed(dev, x, w, lse, logits, ids, logprobs);
        }
        ForwardOp::HeadDivergence { args } => head_divergence::forward(dev, args),
        ForwardOp::Sample { args } => sample::sample(dev, args),
        ForwardOp::Advance { batch, window, ids, tokens, keys } => {
            elementwise::advance(dev, (batch, window), ids, tokens, keys);
        }
        ForwardOp::MatmulCodes { x, codes, w, bias, resid, out } => {
            matmul::coded(dev, x, (codes, w), bias, resid, out);
        }
        ForwardOp::Dequantize { w, out } => blocks::dequantize(dev, w, out),
    }
}

/// Runs an operation of the backward pass.
fn backward(dev: &CpuDevice, op: BackwardOp<'_>) {
    match op {
        BackwardOp::Cast { src, dst } => elementwise::cast(dev, src, dst),
        BackwardOp::AdaptBackwardU { dy, adapter, du } => matmul::adapt_backward_u(dev, dy, adapter, du),
        BackwardOp::AdaptedDx { dy, of, du, out } => matmul::adapted_dx(dev, dy, of, du, out),
        BackwardOp::AdaptBackwardW { args } => matmul::adapt_backward_w(dev, args),
        BackwardOp::MatmulDx { dy, w, out, add } => matmul::backward_x(dev, dy, w, out, add),
        BackwardOp::MatmulDw { dy, x, grad, add, pack } => matmul::gradient(dev, dy, x, grad, add, pack),
        BackwardOp::BiasBackward { dy, grad, add } => norm::bias_backward(dev, dy, grad, add),
        BackwardOp::RmsNormBackward { x, norm, dy, to } => norm::rms_norm_backward(dev, x, norm, dy, to),
        BackwardOp::AttentionBackward { args } => attention_backward::backward(dev, args),
        BackwardOp::RopeBackward { args } => rope::backward(dev, args),
        BackwardOp::GluBackward { how, gate_up, f, dout, d_gate_up, out } => {
            gate::glu_backward(dev, how, gate_up, f, dout, d_gate_up, out);
        }
        BackwardOp::ActivateBackward { how, y, dy, dx } => activation::activate_backward(dev, how, y, dy, dx),
        BackwardOp::ScatterAddRows { src, rows, dst } => elementwise::scatter_add_rows(dev, src, rows, dst),
        BackwardOp::HeadBackward { args } => head::backward(dev, args),
        BackwardOp::EmbedBackward { d, ids, grad } => elementwise::embed_backward(dev, d, ids, grad),
    }
}

/// Runs an operation on gradients or weights.
fn update(dev: &CpuDevice, op: UpdateOp<'_>) {
    match op {
        UpdateOp::Accumulate { src, dst, add } => elementwise::accumulate(dev, src, dst, add),
        UpdateOp::Fold { parts, dst, add } => elementwise::fold(dev, parts, dst, add),
        UpdateOp::EmbedBackwardPart { d, ids, k, layout, owned, shard } => {
            elementwise::embed_backward_part(dev, d, ids, (k, layout), owned, shard);
        }
        UpdateOp::AdamW { how, bufs } => match bufs.scales {
            Some(scales) => adamw8::adamw(dev, how, bufs, scales),
            None => adamw::adamw(dev, how, bufs),
        },
        UpdateOp::Momentum { how, grad, m } => muon::momentum(dev, how, grad, m),
        UpdateOp::Arrange { src, dst, what } => muon::arrange(dev, src, dst, what),
        UpdateOp::Descend { how, direction, weights, master } => {
            muon::descend(dev, how, direction, weights, master);
        }
        UpdateOp::WriteCodes { src, dst } => adamw8::write_codes(dev, src, dst),
        UpdateOp::Zero { dst } => elementwise::zero(dev, dst),
    }
}
