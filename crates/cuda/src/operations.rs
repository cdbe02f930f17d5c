//! Which function launches an operation, and the scratch that operations need.

use crate::aside::AsideStream;
use crate::attention::attention_scratch_bytes;
use crate::attention_backward::attention_backward_scratch_bytes;
use crate::cuda_device::{CudaDevice, WORKSPACE_BYTES};
use crate::driver::Pinned;
use crate::{
    adapter, adapter_gradients, attention, attention_backward, blocks, chain, checked, columns, delta,
    delta_rows, driver, experts, experts_adapter, experts_bias, experts_codes, fp8, head, head_divergence,
    head_gates, head_listed, heads, matmul, memory, muon, optimizer, pipeline, rotation, route, rows, sample,
    slots, tower, transfer,
};
use plimsoll_arch::{AttentionSpec, ModelSpec};
use plimsoll_base::{DType, Phase, PhaseSet, Result, slugs};
use plimsoll_device::claims::Access;
use plimsoll_device::{
    Aside, Backend, Checked, Claim, Claims, Coded, Functions, HostBytes, Layouts, Matrix, MatrixLayout,
    Network, Pipeline, Run, SamplerNoise, ScratchLimits, Timed, Trade, Transfer,
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
        bytes.extend(limits.tower.iter().flat_map(tower::scratch_bytes));
        bytes.extend(limits.tower.iter().filter_map(adapter_gradients::tower_scratch_bytes));
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
        OPERATIONS.run(self, op);
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
    fn get_stored(&self, _: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [u8]) {
        let elements = dst.len() / src.buf.dtype().bytes() as usize;
        memory::receive_buf(self, memory::rows(src, first_row, elements), dst);
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

/// The function that queues each operation on the stream.
static OPERATIONS: Functions<CudaDevice> = Functions {
    embed: rows::embed,
    scale: rows::scale,
    scale_by: rows::scale_by,
    rms_norm: rows::rms_norm,
    rms_norm_add: rows::rms_norm_add,
    matmul: matmul::forward,
    matmul_add: matmul::forward_add,
    add_bias: rows::add_bias,
    adapted: adapter::forward,
    adapted_slots: slots::forward,
    adapt_down: adapter::down,
    merge: adapter::merge,
    rope: rotation::forward,
    copy_kv: rotation::copy_kv,
    attention: attention::forward,
    glu: rows::glu,
    gated: matmul::gated,
    activate: rows::activate,
    gather_rows: rows::gather_rows,
    head: head::forward,
    head_top: head_listed::top,
    head_listed: head_listed::listed,
    head_divergence: head_divergence::forward,
    sample: sample::sample,
    advance: pipeline::advance,
    matmul_codes: |dev, x, codes, w, bias, resid, out| {
        blocks::dequantize(dev, codes, w);
        match resid {
            Some(resid) => matmul::forward_add(dev, x, w, resid, out),
            None => matmul::forward(dev, x, w, bias, out, false),
        }
    },
    round_fp8: fp8::round,
    matmul_fp8: fp8::forward,
    matmul_fp8_dx: fp8::backward_x,
    dequantize: blocks::dequantize,

    cast: rows::cast,
    adapt_backward_u: adapter::backward_u,
    adapted_dx: adapter::backward_x,
    adapt_backward_w: adapter::backward_w,
    matmul_dx: matmul::backward_x,
    matmul_dw: |dev, dy, x, grad, add, _| matmul::backward_w(dev, dy, x, grad, add),
    bias_backward: rows::bias_backward,
    rms_norm_backward: rows::rms_norm_backward,
    attention_backward: attention_backward::backward,
    sink_backward: attention_backward::sinks,
    rope_backward: rotation::backward,
    glu_backward: rows::glu_backward,
    activate_backward: rows::activate_backward,
    scatter_add_rows: rows::scatter_add_rows,
    head_backward: head::backward,
    embed_backward: rows::embed_backward,

    accumulate: chain::accumulate,
    fold: chain::fold,
    embed_backward_part: chain::embed_backward_part,
    adamw: optimizer::adamw,
    momentum: muon::momentum,
    arrange: muon::arrange,
    descend: muon::descend,
    write_codes: memory::write_codes,
    zero: memory::zero,

    split_gates: head_gates::split,
    gate_heads: head_gates::forward,
    gate_heads_backward: head_gates::backward,
    join_gates: head_gates::join,

    move_columns: columns::move_columns,
    matmul_heads: heads::product,

    delta_inputs: delta_rows::inputs,
    delta_rule: delta::rule,
    norm_gated: delta_rows::norm,
    norm_gated_backward: delta_rows::norm_backward,
    delta_rule_backward: delta::rule_backward,
    delta_inputs_backward: delta_rows::inputs_backward,

    route: route::forward,
    matmul_experts: |dev, x, has, w, routes, out| experts::product(dev, (x, has), w, routes, out, false),
    matmul_experts_codes: |dev, x, has, codes, w, routes, out| {
        experts_codes::product(dev, (x, has), (codes, w), routes, out)
    },
    adapt_experts: experts_adapter::forward,
    add_expert_bias: experts_bias::add,
    glu_experts: experts::glu,
    glu_shared: experts::glu_shared,
    combine: experts::combine,
    matmul_experts_dx: |dev, dy, has, w, routes, out| experts::product(dev, (dy, has), w, routes, out, true),
    matmul_experts_dw: experts::backward_w,
    adapt_experts_dx: experts_adapter::backward_x,
    adapt_experts_dw: experts_adapter::backward_w,
    expert_bias_backward: experts_bias::backward,
    bias_weights_backward: experts_bias::weights_backward,
    glu_experts_backward: experts::glu_backward,
    glu_shared_backward: experts::glu_shared_backward,
    route_backward: route::backward,

    layer_norm: tower::layer_norm,
    layer_norm_backward: tower::layer_norm_backward,
    gelu: tower::gelu,
    gelu_backward: tower::gelu_backward,
    weigh_rows: tower::weigh_rows,
    replace_rows: tower::replace_rows,
    next_places: tower::next_places,
};
