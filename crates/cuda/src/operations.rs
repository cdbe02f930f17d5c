//! Which function launches an operation, and the scratch that operations need.

use crate::aside::AsideStream;
use crate::attention::attention_scratch_bytes;
use crate::attention_backward::attention_backward_scratch_bytes;
use crate::cuda_device::{CudaDevice, WORKSPACE_BYTES};
use crate::driver::Pinned;
use crate::{
    adapter, adapter_gradients, attention, attention_backward, blocks, chain, checked, delta, delta_rows,
    driver, experts, experts_adapter, head, head_divergence, head_gates, head_listed, matmul, memory, muon,
    optimizer, pipeline, rotation, route, rows, sample, transfer,
};
use plimsoll_arch::{AttentionSpec, ModelSpec};
use plimsoll_base::{DType, Phase, PhaseSet, Result, slugs};
use plimsoll_device::claims::Access;
use plimsoll_device::{
    Aside, Backend, BackwardOp, Checked, Claim, Claims, Coded, DeltaOp, ExpertsOp, ForwardOp, HeadGatesOp,
    HostBytes, Layouts, Matrix, MatrixLayout, Network, Op, Pipeline, Run, SamplerNoise, ScratchLimits, Timed,
    Trade, Transfer, UpdateOp,
};
use plimsoll_memory::{Buf, CardMemory, Layout, Pool};
use std::sync::atomic::Ordering;

impl CudaDevice {
    /// Returns the resident region `device.scratch`, which operations use in turn, and, for one of several ranks,
    /// `device.aside`, for those that it puts aside.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_layout(spec: &ModelSpec, limits: &ScratchLimits) -> Result<Layout> {
        let heads = |of: &AttentionSpec| [of.heads, of.kv_heads, of.head_dim].map(u64::from);
        let biased = spec.most(|layer| layer.dense().filter(|of| of.bias).map_or(0, |of| 2 * of.width));
        let head_dim = spec.most(|layer| layer.attention().map_or(0, |of| of.head_dim));
        let widest = u64::from(spec.hidden.max(spec.widest().0).max(biased).max(2 * head_dim));
        let mut bytes = vec![WORKSPACE_BYTES];
        bytes.extend(spec.attentions().map(|of| {
            let [heads, kv_heads, d] = heads(&of);
            attention_scratch_bytes(limits.decode_rows as u64, heads, kv_heads, d, limits.keys_max as u64)
        }));
        if let Some((rows, segments)) = limits.update {
            let (rows, segments) = (rows as u64, segments as u64);
            bytes.extend(spec.attentions().map(|of| {
                let [heads, kv_heads, d] = heads(&of);
                attention_backward_scratch_bytes(rows, segments, heads, kv_heads, d)
            }));
            bytes.extend([
                rows::sum_scratch_bytes(rows, widest),
                chain::scratch_bytes(rows),
                optimizer::SQUARES_SCRATCH_BYTES,
                optimizer::RUNS_SCRATCH_BYTES,
            ]);
            let delta = spec.each_layer().filter_map(|layer| layer.delta());
            bytes.extend(delta.map(|delta| delta_rows::scratch_bytes(delta, rows)));
        }
        bytes.extend(limits.adapters.map(|lora| adapter_gradients::scratch_bytes(spec, lora)));
        let bytes = bytes.into_iter().max().expect("there are two at least");
        let mut layout = Layout::new();
        let shape = [bytes.div_ceil(4)];
        layout.arena("device.scratch", "device", Pool::Device, PhaseSet::RESIDENT, &shape, DType::F32)?;
        if let Some((rows, _)) = limits.update.filter(|_| limits.ranks > 1) {
            let shape = [chain::scratch_bytes(rows as u64).div_ceil(4)];
            layout.arena("device.aside", "device", Pool::Device, PhaseSet::RESIDENT, &shape, DType::F32)?;
        }
        Ok(layout)
    }
}

impl Backend for CudaDevice {
    fn kind(&self) -> &'static Layouts {
        &crate::LAYOUTS
    }
    fn machine_type(&self) -> String {
        let (major, minor) = self.gpu.info.capability;
        format!("cuda-sm{major}{minor}-cublaslt{}-nvrtc{}", self.blas.version(), self.kernels.compiler)
    }
    fn peak_flops(&self, _seconds: f64) -> f64 {
        matmul::peak_flops(self)
    }
    fn take_profile(&self) -> Vec<Timed> {
        self.profile.as_ref().map(|p| p.take()).unwrap_or_default()
    }
    fn card_memory(&self) -> Option<CardMemory> {
        Some(self.memory())
    }
    fn perturb_norms(&self, on: bool) {
        self.perturbed.store(on, Ordering::Relaxed);
    }
    fn set_sampler_noise(&self, noise: Option<SamplerNoise>) {
        *self.noise.lock().unwrap_or_else(|e| e.into_inner()) = noise;
    }
    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn launch(&self, checked: Checked<'_, '_>) {
        let op = checked.op();
        if let Some(profile) = &self.profile {
            profile.begin(op.product(), op.work());
        }
        self.queue(op);
        if self.checked {
            op.each_buffer(&mut |buf, access, _| match access {
                Access::Write => self.inspect(op.name(), buf),
                Access::Read | Access::WriteAny => {}
            });
        }
    }

    fn put_u32(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[u32]) {
        memory::write_u32(self, dst, src);
    }
    fn get_u32(&self, _: &Claim<'_>, src: Buf<'_>, dst: &mut [u32]) {
        memory::read_u32(self, src, dst);
    }
    fn put_bytes(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[u8]) {
        self.send(self.address(dst), src);
        // From locked pages the copy is still under way, and the caller may write to them next.
        self.keep(self.gpu.wait(), "copying to the device");
    }
    fn host_bytes(&self, len: usize) -> HostBytes {
        match Pinned::new(&self.gpu, len) {
            Ok(pinned) => Box::new(pinned),
            // A limit on locked memory makes copies slower, not wrong.
            Err(_) => Box::new(vec![0; len]),
        }
    }
    fn put_f32(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[f32]) {
        memory::write_f32(self, dst, src);
    }
    fn get_f32(&self, _: &Claim<'_>, src: Buf<'_>, dst: &mut [f32]) {
        memory::read_f32(self, src, dst);
    }
    fn put_rows(&self, _: &Claim<'_>, dst: Matrix<'_>, first_row: usize, src: &[f32]) {
        memory::write_f32(self, memory::rows(dst, first_row, src.len()), src);
    }
    fn get_rows(&self, _: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [f32]) {
        memory::read_f32(self, memory::rows(src, first_row, dst.len()), dst);
    }
    fn get_codes(
        &self,
        _: &Claim<'_>,
        src: Coded<'_>,
        (k, layout): (usize, MatrixLayout),
        first_row: usize,
        dst: &mut [f32],
    ) {
        assert_eq!(layout, MatrixLayout::Rows);
        memory::read_codes(self, src, first_row * k, dst);
    }
    fn get_sum_squares(&self, _: &Claim<'_>, x: Buf<'_>) -> f64 {
        optimizer::sum_squares(self, x)
    }
    fn get_squares_of(
        &self,
        _: &Claim<'_>,
        x: Buf<'_>,
        runs: &mut dyn Iterator<Item = Run>,
        each: &mut dyn FnMut(f64),
    ) {
        optimizer::squares_of(self, x, runs, each);
    }

    fn sync(&self) {
        let aside = || self.aside.as_ref().map_or(Ok(()), AsideStream::wait);
        if let Err(err) = self.gpu.wait().and_then(|()| self.transfers.wait()).and_then(|()| aside()) {
            self.fail(driver::failed("waiting for the card", err));
        }
    }

    fn begin_phase(&self, phase: Phase, shared: Buf<'_>) {
        checked::begin_phase(self, phase, shared);
    }
    fn check(&self) -> Result<()> {
        if let Err(error) = self.check_network() {
            self.fail(error);
        }
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        match failure.take() {
            None => Ok(()),
            Some(error) => {
                // A context that met an illegal access is lost; other errors leave it usable, and the run may go on.
                if error.slug != slugs::CUDA_FAILED {
                    self.failed.store(false, Ordering::Relaxed);
                } else {
                    *failure = Some(error.clone());
                }
                Err(error)
            }
        }
    }
    fn pipeline(&self) -> Option<&dyn Pipeline> {
        (!self.checked && self.profile.is_none()).then_some(self)
    }

    fn aside(&self) -> Option<&dyn Aside> {
        let plain = !self.checked && self.profile.is_none();
        (plain && self.aside.is_some()).then_some(self)
    }

    fn network(&self) -> Option<Network> {
        self.nccl()
    }

    fn trade(&self) -> Option<&dyn Trade> {
        self.network.is_some().then_some(self)
    }

    fn offload_begin(&self) {
        transfer::begin(self);
    }
    fn offload_wait(&self, slot: usize) {
        transfer::wait(self, slot);
    }
    fn bring<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        transfer::bring(self, slot, copies);
    }
    fn send_back<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>) {
        transfer::send_back(self, slot, copies);
    }
}

impl CudaDevice {
    /// Queues an operation on the stream.
    fn queue(&self, op: Op<'_>) {
        match op {
            Op::Forward(op) => self.forward(op),
            Op::Backward(op) => self.backward(op),
            Op::Update(op) => self.update(op),
            Op::HeadGates(op) => self.head_gates(op),
            Op::Delta(op) => self.delta(op),
            Op::Experts(op) => self.experts(op),
        }
    }

    fn forward(&self, op: ForwardOp<'_>) {
        match op {
            ForwardOp::Embed { table, ids, out } => rows::embed(self, table, ids, out),
            ForwardOp::Scale { x, by } => rows::scale(self, x, by),
            ForwardOp::RmsNorm { x, norm, out } => rows::rms_norm(self, x, norm, out),
            ForwardOp::RmsNormAdd { x, norm, resid, out } => rows::rms_norm_add(self, x, norm, resid, out),
            ForwardOp::Matmul { x, w, bias, out, add } => matmul::forward(self, x, w, bias, out, add),
            ForwardOp::MatmulAdd { x, w, resid, out } => matmul::forward_add(self, x, w, resid, out),
            ForwardOp::AddBias { x, bias } => rows::add_bias(self, x, bias),
            ForwardOp::Adapted { x, of, resid, u, out } => adapter::forward(self, x, of, resid, u, out),
            ForwardOp::AdaptDown { x, adapter, u } => adapter::down(self, x, adapter, u),
            ForwardOp::Merge { w, adapter, out } => adapter::merge(self, w, adapter, out),
            ForwardOp::Rope { qkv, norms, rotation, batch, kv, q_out } => {
                rotation::forward(self, qkv, norms, rotation, batch, kv, q_out);
            }
            ForwardOp::CopyKv { kv, copies } => rotation::copy_kv(self, kv, copies),
            ForwardOp::Attention { q, kv, batch, scores, out, lse } => {
                attention::forward(self, q, kv, (batch, scores), out, lse);
            }
            ForwardOp::Glu { how, gate_up, f, out } => rows::glu(self, how, gate_up, f, out),
            ForwardOp::Gated { x, w, how, gate_up, out } => matmul::gated(self, x, w, how, gate_up, out),
            ForwardOp::Activate { how, x, out } => rows::activate(self, how, x, out),
            ForwardOp::GatherRows { x, rows, out } => rows::gather_rows(self, x, rows, out),
            ForwardOp::Head { x, w, targets, logits, tile, out } => {
                head::forward(self, x, w, targets, logits, tile, out);
            }
            ForwardOp::HeadTop { x, w, lse, logits, tile, out } => {
                head_listed::top(self, x, w, lse, logits, tile, out);
            }
            ForwardOp::HeadListed { x, w, lse, logits, ids, logprobs } => {
                head_listed::listed(self, x, w, lse, logits, ids, logprobs);
            }
            ForwardOp::HeadDivergence { args } => head_divergence::forward(self, args),
            ForwardOp::Sample { args } => sample::sample(self, args),
            ForwardOp::Advance { batch, window, ids, tokens, keys } => {
                pipeline::advance(self, (batch, window), ids, tokens, keys);
            }
            ForwardOp::MatmulCodes { x, codes, w, bias, resid, out } => {
                blocks::dequantize(self, codes, w);
                match resid {
                    Some(resid) => matmul::forward_add(self, x, w, resid, out),
                    None => matmul::forward(self, x, w, bias, out, false),
                }
            }
            ForwardOp::Dequantize { w, out } => blocks::dequantize(self, w, out),
        }
    }

    fn backward(&self, op: BackwardOp<'_>) {
        match op {
            BackwardOp::Cast { src, dst } => rows::cast(self, src, dst),
            BackwardOp::AdaptBackwardU { dy, adapter, du } => adapter::backward_u(self, dy, adapter, du),
            BackwardOp::AdaptedDx { dy, of, du, out } => adapter::backward_x(self, dy, of, du, out),
            BackwardOp::AdaptBackwardW { args } => adapter::backward_w(self, args),
            BackwardOp::MatmulDx { dy, w, out, add } => matmul::backward_x(self, dy, w, out, add),
            BackwardOp::MatmulDw { dy, x, grad, add, pack: _ } => matmul::backward_w(self, dy, x, grad, add),
            BackwardOp::BiasBackward { dy, grad, add } => rows::bias_backward(self, dy, grad, add),
            BackwardOp::RmsNormBackward { x, norm, dy, to } => rows::rms_norm_backward(self, x, norm, dy, to),
            BackwardOp::AttentionBackward { args } => attention_backward::backward(self, args),
            BackwardOp::RopeBackward { args } => rotation::backward(self, args),
            BackwardOp::GluBackward { how, gate_up, f, dout, d_gate_up, out } => {
                rows::glu_backward(self, how, gate_up, f, dout, d_gate_up, out);
            }
            BackwardOp::ActivateBackward { how, y, dy, dx } => rows::activate_backward(self, how, y, dy, dx),
            BackwardOp::ScatterAddRows { src, rows, dst } => rows::scatter_add_rows(self, src, rows, dst),
            BackwardOp::HeadBackward { args } => head::backward(self, args),
            BackwardOp::EmbedBackward { d, ids, grad } => rows::embed_backward(self, d, ids, grad),
        }
    }

    fn update(&self, op: UpdateOp<'_>) {
        match op {
            UpdateOp::Accumulate { src, dst, add } => chain::accumulate(self, src, dst, add),
            UpdateOp::Fold { parts, dst, add } => chain::fold(self, parts, dst, add),
            UpdateOp::EmbedBackwardPart { d, ids, k, layout, owned, shard } => {
                chain::embed_backward_part(self, d, ids, (k, layout), owned, shard);
            }
            UpdateOp::AdamW { how, bufs } => optimizer::adamw(self, how, bufs),
            UpdateOp::Momentum { how, grad, m } => muon::momentum(self, how, grad, m),
            UpdateOp::Arrange { src, dst, what } => muon::arrange(self, src, dst, what),
            UpdateOp::Descend { how, direction, weights, master } => {
                muon::descend(self, how, direction, weights, master);
            }
            UpdateOp::WriteCodes { src, dst } => memory::write_codes(self, src, dst),
            UpdateOp::Zero { dst } => memory::zero(self, dst),
        }
    }

    fn head_gates(&self, op: HeadGatesOp<'_>) {
        match op {
            HeadGatesOp::SplitGates { x, heads, out } => head_gates::split(self, x, heads, out),
            HeadGatesOp::GateHeads { x, heads, attn, out } => head_gates::forward(self, x, heads, attn, out),
            HeadGatesOp::GateHeadsBackward { args } => head_gates::backward(self, args),
            HeadGatesOp::JoinGates { d_qkv, heads, dx } => head_gates::join(self, d_qkv, heads, dx),
        }
    }

    fn delta(&self, op: DeltaOp<'_>) {
        match op {
            DeltaOp::DeltaInputs { args } => delta_rows::inputs(self, args),
            DeltaOp::DeltaRule { args } => delta::rule(self, args),
            DeltaOp::NormGated { args } => delta_rows::norm(self, args),
            DeltaOp::NormGatedBackward { args } => delta_rows::norm_backward(self, args),
            DeltaOp::DeltaRuleBackward { args } => delta::rule_backward(self, args),
            DeltaOp::DeltaInputsBackward { args } => delta_rows::inputs_backward(self, args),
        }
    }

    fn experts(&self, op: ExpertsOp<'_>) {
        match op {
            ExpertsOp::Route { logits, how, to } => route::forward(self, logits, how, to),
            ExpertsOp::MatmulExperts { x, x_has, w, routes, out } => {
                experts::forward(self, x, x_has, w, routes, out)
            }
            ExpertsOp::AdaptExperts { x, x_has, adapter, routes, u, out } => {
                experts_adapter::forward(self, (x, x_has), adapter, routes, u, out);
            }
            ExpertsOp::GluExperts { how, gate_up: x, f, routes, out } => {
                experts::glu(self, how, x, f, routes, out)
            }
            ExpertsOp::Combine { y, routes, resid, out } => experts::combine(self, y, routes, resid, out),
            ExpertsOp::MatmulExpertsDx { dy, dy_has, w, routes, out } => {
                experts::backward_x(self, dy, dy_has, w, routes, out);
            }
            ExpertsOp::MatmulExpertsDw { args } => experts::backward_w(self, args),
            ExpertsOp::AdaptExpertsDx { dy, dy_has, adapter, routes, du, out } => {
                experts_adapter::backward_x(self, (dy, dy_has), adapter, routes, du, out);
            }
            ExpertsOp::AdaptExpertsDw { args } => experts_adapter::backward_w(self, args),
            ExpertsOp::GluExpertsBackward { args } => experts::glu_backward(self, args),
            ExpertsOp::RouteBackward { args } => route::backward(self, args),
        }
    }
}
