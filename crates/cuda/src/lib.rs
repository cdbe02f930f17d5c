//! The CUDA device: one card, one context, one stream, one arena of plain device memory.
//!
//! It owns the card's memory from start to end: after the arena nothing else is allocated by us. Operations are put on
//! the stream and return at once; the first that fails is kept and reported by `check`, and what follows it does nothing.
//! Kernels stand in `cu/`, one file a module of this folder; their launchers check shapes before the launch.

mod attention;
mod attention_backward;
mod blas;
mod checked;
mod compile;
mod driver;
mod hand_over;
mod head;
mod held;
mod hopper;
mod launch;
mod library;
mod matmul;
mod memory;
mod nvml;
mod optimizer;
mod pipeline;
mod profile;
mod rotation;
mod rows;
mod sample;
mod sgemm;
mod transfer;

pub use attention::attention_scratch_bytes;
pub use attention_backward::attention_backward_scratch_bytes;
pub use compile::{ARCHITECTURES, SOURCES, Source, compile};
pub use driver::GpuInfo;
pub use hand_over::{HandOver, Offer, cards, take};
pub use held::Held;
pub(crate) use launch::{Arg, Launch};
pub use nvml::free_memory;

use driver::Gpu;
use plimsoll_base::{Bytes, DType, Error, ModelSpec, Phase, PhaseSet, Result};
use plimsoll_device::{
    Activation, AdamW, AdamWBufs, Batch, Coded, Device, DeviceKind, HeadOut, Heads, Kv, Matrix, MatrixLayout,
    NormGrads, Pipeline, QkNorm, QkNormBackward, Sampling,
};
use plimsoll_memory::{Buf, CardMemory, Layout, Pool};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a card is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// Wait after every kernel, check indices and values, and name what is wrong.
    pub checked: bool,
    /// Time every kernel alone.
    pub profile: bool,
}

/// What the scratch depends on beside the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchLimits {
    /// Rows of a decode pass.
    pub decode_rows: usize,
    /// Keys of a decode row.
    pub keys_max: usize,
    /// (rows, segments) of a training pass, if there are any.
    pub update: Option<(usize, usize)>,
}

/// A card with an arena.
#[derive(Debug)]
pub struct CudaDevice {
    // Dropped in this order: what lives on the card before the card.
    pipeline: pipeline::Queue,
    transfers: transfer::Transfers,
    blas: blas::Blas,
    kernels: launch::Kernels,
    arena: u64,
    arena_bytes: u64,
    scratch: Option<(u64, u64)>,
    others: Bytes,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    checked: bool,
    perturbed: AtomicBool,
    regions: Vec<checked::Named>,
    /// The phase under way, where it is watched.
    phase: Mutex<Option<Phase>>,
    profile: Option<profile::Profile>,
    gpu: Gpu,
}

/// What is known of the card that a run would use, without taking anything of it.
///
/// Errors: `cuda-driver-missing`, `cuda-driver-too-old`, `cuda-no-device`, `cuda-arch-unsupported`.
pub fn probe() -> Result<GpuInfo> {
    driver::first_device().map(|(_, info)| info)
}

impl CudaDevice {
    /// Opens the card, loads all kernels, and takes the arena.
    ///
    /// Errors: those of `probe`; `cuda-library-missing`, `cuda-compile-failed`, `cuda-out-of-memory`, `cuda-failed`.
    pub fn new(arena_bytes: Bytes, options: CudaOptions) -> Result<CudaDevice> {
        let (gpu, others) = Gpu::open()?;
        let kernels = launch::Kernels::load(&gpu, options.checked)?;
        let blas = blas::Blas::open(&gpu, !options.checked)?;
        let pipeline = pipeline::Queue::new(&gpu)?;
        let transfers = transfer::Transfers::new(&gpu)?;
        let arena = gpu.allocate("the arena", arena_bytes.0.max(256))?;
        Ok(CudaDevice {
            pipeline,
            transfers,
            blas,
            kernels,
            arena,
            arena_bytes: arena_bytes.0,
            scratch: None,
            others,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            checked: options.checked,
            perturbed: AtomicBool::new(false),
            regions: Vec::new(),
            phase: Mutex::new(None),
            profile: options.profile.then(|| profile::Profile::new(&gpu)).transpose()?,
            gpu,
        })
    }

    /// Takes page-locked host memory for offloaded regions: exactly so much, once.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn take_offloaded(&mut self, bytes: Bytes) -> Result<()> {
        self.transfers.take(&self.gpu, bytes)
    }

    /// What the device itself needs in the arena: the resident region `device.scratch`, which operations use one after
    /// the other.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_layout(spec: &ModelSpec, limits: &ScratchLimits) -> Result<Layout> {
        let (heads, kv_heads) = (u64::from(spec.heads), u64::from(spec.kv_heads));
        let d = u64::from(spec.head_dim);
        let widest = u64::from(spec.hidden).max(u64::from(spec.q_width()) + 2 * u64::from(spec.kv_width()));
        let mut bytes = vec![
            matmul::WORKSPACE_BYTES,
            attention_scratch_bytes(limits.decode_rows as u64, heads, kv_heads, d, limits.keys_max as u64),
        ];
        if let Some((rows, segments)) = limits.update {
            let (rows, segments) = (rows as u64, segments as u64);
            bytes.extend([
                attention_backward_scratch_bytes(rows, segments, heads, kv_heads, d),
                rows::sum_scratch_bytes(rows, widest.max(2 * d)),
                rows::add_scratch_bytes(rows),
                optimizer::SQUARES_SCRATCH_BYTES,
            ]);
        }
        let bytes = bytes.into_iter().max().expect("there are two at least");
        let mut layout = Layout::new();
        let shape = [bytes.div_ceil(4)];
        layout.arena("device.scratch", "device", Pool::Device, PhaseSet::RESIDENT, &shape, DType::F32)?;
        Ok(layout)
    }

    /// Takes the region `device.scratch`. Without it most operations panic.
    pub fn bind_scratch(&mut self, buf: Buf<'_>) {
        self.scratch = Some((self.address(buf), buf.len() as u64 * buf.dtype().bytes()));
    }

    /// The card.
    pub fn info(&self) -> &GpuInfo {
        &self.gpu.info
    }

    /// Versions that a result depends on, for people: driver, compiler, cuBLASLt, and how many kernels were compiled.
    pub fn versions(&self) -> String {
        let lt = self.blas.version;
        format!(
            "driver {}.{}, NVRTC {}, cuBLASLt {}.{}.{}, {} of {} kernel files compiled now",
            self.gpu.info.driver / 1000,
            self.gpu.info.driver % 1000 / 10,
            self.kernels.compiler,
            lt / 10_000,
            lt / 100 % 100,
            lt % 100,
            self.kernels.compiled,
            SOURCES.len()
        )
    }

    /// Who holds the card's memory now.
    pub fn memory(&self) -> CardMemory {
        let (free, total) = self.gpu.memory();
        let used = total.0 - free.0;
        let libraries = used.saturating_sub(self.arena_bytes + self.others.0);
        CardMemory { others: self.others, libraries: Bytes(libraries), free, total }
    }

    /// Fills the whole arena with a byte; for tests that show which bytes are used.
    pub fn fill_raw(&mut self, byte: u8) {
        memory::fill_raw(self, byte);
    }

    /// The raw bytes at `offset`; for tests that show which bytes are used.
    pub fn raw(&mut self, offset: u64, len: u64) -> Vec<u8> {
        assert!(offset + len <= self.arena_bytes, "bytes {offset}+{len} of an arena of {}", self.arena_bytes);
        let mut bytes = vec![0; len as usize];
        self.receive(self.arena + offset, &mut bytes);
        bytes
    }

    /// Multiprocessors of the card.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.gpu.info.multiprocessors
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Keeps the first failure.
    pub(crate) fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// (address, bytes) that cuBLASLt may use: a part of the scratch.
    pub(crate) fn workspace(&self) -> (u64, u64) {
        self.scratch.map_or((0, 0), |(address, bytes)| (address, bytes.min(matmul::WORKSPACE_BYTES)))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let _ = self.gpu.wait();
        let _ = self.transfers.wait();
        self.gpu.free(self.arena);
    }
}

impl Device for CudaDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda
    }
    fn machine_type(&self) -> String {
        let (major, minor) = self.gpu.info.capability;
        format!("cuda-sm{major}{minor}-cublaslt{}", self.blas.version)
    }

    fn peak_flops(&self, _seconds: f64) -> f64 {
        matmul::peak_flops(self)
    }
    fn take_profile(&self) -> Vec<(String, u64, f64)> {
        self.profile.as_ref().map(|p| p.take()).unwrap_or_default()
    }
    fn card_memory(&self) -> Option<CardMemory> {
        Some(self.memory())
    }
    fn perturb_norms(&self, on: bool) {
        self.perturbed.store(on, Ordering::Relaxed);
    }

    fn write_u32(&self, dst: Buf<'_>, start: usize, src: &[u32]) {
        memory::write_u32(self, dst, start, src);
    }
    fn read_u32(&self, src: Buf<'_>, start: usize, dst: &mut [u32]) {
        memory::read_u32(self, src, start, dst);
    }
    fn write_f32(&self, dst: Buf<'_>, start: usize, src: &[f32]) {
        memory::write_f32(self, dst, start, src);
    }
    fn read_f32(&self, src: Buf<'_>, start: usize, dst: &mut [f32]) {
        memory::read_f32(self, src, start, dst);
    }
    fn write_rows(&self, dst: Matrix<'_>, first_row: usize, src: &[f32]) {
        memory::write_rows(self, dst, first_row, src);
    }
    fn read_rows(&self, src: Matrix<'_>, first_row: usize, dst: &mut [f32]) {
        memory::read_rows(self, src, first_row, dst);
    }
    fn read_codes(&self, src: Coded<'_>, k: usize, layout: MatrixLayout, first_row: usize, dst: &mut [f32]) {
        assert_eq!(layout, MatrixLayout::Rows);
        memory::read_codes(self, src, first_row * k, dst);
    }
    fn write_codes(&self, src: Buf<'_>, dst: Coded<'_>) {
        memory::write_codes(self, src, dst);
    }
    fn zero(&self, dst: Buf<'_>) {
        memory::zero(self, dst);
    }
    fn sync(&self) {
        if let Err(err) = self.gpu.wait().and_then(|()| self.transfers.wait()) {
            self.fail(driver::failed("waiting for the card", err));
        }
    }
    fn begin_phase(&self, phase: Phase, shared: Buf<'_>) {
        checked::begin_phase(self, phase, shared);
    }
    fn check(&self) -> Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        match failure.take() {
            None => Ok(()),
            Some(error) => {
                // A context that met an illegal access is lost; an error of ours is not, and the run may go on.
                if error.slug != "cuda-failed" {
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

    fn offload_begin(&self) {
        transfer::begin(self);
    }
    fn offload_in<'b>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'b>, Buf<'b>)>) {
        transfer::bring(self, slot, copies);
    }
    fn offload_wait(&self, slot: usize) {
        transfer::wait(self, slot);
    }
    fn offload_out<'b>(&self, slot: usize, copies: &mut dyn Iterator<Item = (Buf<'b>, Buf<'b>)>) {
        transfer::send_back(self, slot, copies);
    }

    fn embed(&self, table: Matrix<'_>, ids: Buf<'_>, out: Buf<'_>) {
        rows::embed(self, table, ids, out);
        self.inspect("embed", &[out]);
    }
    fn rms_norm(&self, x: Buf<'_>, w: Buf<'_>, eps: f32, out: Buf<'_>) {
        rows::rms_norm(self, x, w, eps, out);
        self.inspect("rms_norm", &[out]);
    }
    fn matmul(&self, x: Buf<'_>, w: Matrix<'_>, bias: Option<Buf<'_>>, out: Buf<'_>, add: bool) {
        matmul::forward(self, x, w, bias, out, add);
        self.inspect("matmul", &[out]);
    }
    fn matmul_add(&self, x: Buf<'_>, w: Matrix<'_>, resid: Buf<'_>, out: Buf<'_>) {
        matmul::forward_add(self, x, w, resid, out);
        self.inspect("matmul_add", &[out]);
    }
    fn rope(
        &self,
        qkv: Buf<'_>,
        norms: Option<QkNorm<'_>>,
        rope: Buf<'_>,
        batch: Batch<'_>,
        kv: Kv<'_>,
        q_out: Buf<'_>,
    ) {
        rotation::forward(self, qkv, norms, rope, batch, kv, q_out);
        self.inspect("rope", &[q_out]);
    }
    fn copy_kv(&self, kv: Kv<'_>, copies: Buf<'_>) {
        rotation::copy_kv(self, kv, copies);
    }
    fn attention(&self, q: Buf<'_>, kv: Kv<'_>, batch: Batch<'_>, out: Buf<'_>, lse: Option<Buf<'_>>) {
        attention::forward(self, q, kv, batch, out, lse);
        self.inspect("attention", &[out]);
    }
    fn swiglu(&self, gate_up: Buf<'_>, f: usize, out: Buf<'_>) {
        rows::swiglu(self, gate_up, f, out);
        self.inspect("swiglu", &[out]);
    }
    fn activate(&self, how: Activation, x: Buf<'_>, out: Buf<'_>) {
        rows::activate(self, how, x, out);
        self.inspect("activate", &[out]);
    }
    fn gather_rows(&self, x: Buf<'_>, rows: Buf<'_>, out: Buf<'_>) {
        rows::gather_rows(self, x, rows, out);
        self.inspect("gather_rows", &[out]);
    }
    fn head(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        targets: Buf<'_>,
        inv_temperature: f32,
        tile: Buf<'_>,
        out: HeadOut<'_>,
    ) {
        head::forward(self, x, w, targets, inv_temperature, tile, out);
        self.inspect("head", &[out.logprobs, out.entropy]);
    }
    fn sample(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        keys: Buf<'_>,
        how: Sampling,
        tile: Buf<'_>,
        tokens: Buf<'_>,
        out: HeadOut<'_>,
    ) {
        sample::sample(self, x, w, keys, how, tile, tokens, out);
    }
    fn advance(&self, batch: Batch<'_>, ids: Buf<'_>, tokens: Buf<'_>, keys: Buf<'_>) {
        pipeline::advance(self, batch, ids, tokens, keys);
    }

    fn cast(&self, src: Buf<'_>, dst: Buf<'_>) {
        rows::cast(self, src, dst);
    }
    fn matmul_dx(&self, dy: Buf<'_>, w: Matrix<'_>, out: Buf<'_>, add: bool) {
        matmul::backward_x(self, dy, w, out, add);
        self.inspect("matmul_dx", &[out]);
    }
    fn matmul_dw(&self, dy: Buf<'_>, x: Buf<'_>, grad: Matrix<'_>, add: bool, _pack: Buf<'_>) {
        matmul::backward_w(self, dy, x, grad, add);
        self.inspect("matmul_dw", &[grad.buf]);
    }
    fn bias_backward(&self, dy: Buf<'_>, grad: Buf<'_>, add: bool) {
        rows::bias_backward(self, dy, grad, add);
        self.inspect("bias_backward", &[grad]);
    }
    fn rms_norm_backward(&self, x: Buf<'_>, w: Buf<'_>, eps: f32, dy: Buf<'_>, to: NormGrads<'_>) {
        rows::rms_norm_backward(self, x, w, eps, dy, to);
        self.inspect("rms_norm_backward", &[to.dx, to.dw]);
    }
    fn attention_backward(
        &self,
        q: Buf<'_>,
        kv: Kv<'_>,
        batch: Batch<'_>,
        out: Buf<'_>,
        lse: Buf<'_>,
        dout: Buf<'_>,
        dq: Buf<'_>,
        dkv: Buf<'_>,
    ) {
        attention_backward::backward(self, q, kv, batch, out, lse, dout, dq, dkv);
        self.inspect("attention_backward", &[dq, dkv]);
    }
    fn rope_backward(
        &self,
        dq: Buf<'_>,
        dkv: Buf<'_>,
        rope: Buf<'_>,
        positions: Buf<'_>,
        heads: Heads,
        norms: Option<QkNormBackward<'_>>,
        dqkv: Buf<'_>,
    ) {
        rotation::backward(self, dq, dkv, rope, positions, heads, norms, dqkv);
        self.inspect("rope_backward", &[dqkv]);
    }
    fn swiglu_backward(
        &self,
        gate_up: Buf<'_>,
        f: usize,
        dout: Buf<'_>,
        d_gate_up: Buf<'_>,
        out: Option<Buf<'_>>,
    ) {
        rows::swiglu_backward(self, gate_up, f, dout, d_gate_up, out);
        self.inspect("swiglu_backward", &[d_gate_up]);
    }
    fn activate_backward(&self, how: Activation, y: Buf<'_>, dy: Buf<'_>, dx: Buf<'_>) {
        rows::activate_backward(self, how, y, dy, dx);
        self.inspect("activate_backward", &[dx]);
    }
    fn scatter_add_rows(&self, src: Buf<'_>, rows: Buf<'_>, dst: Buf<'_>) {
        rows::scatter_add_rows(self, src, rows, dst);
    }
    fn head_backward(
        &self,
        x: Buf<'_>,
        w: Matrix<'_>,
        targets: Buf<'_>,
        inv_temperature: f32,
        head_out: HeadOut<'_>,
        dlogprobs: Buf<'_>,
        dentropy: Buf<'_>,
        tile: Buf<'_>,
        dtile: Buf<'_>,
        _pack: Buf<'_>,
        dx: Buf<'_>,
        grad: Matrix<'_>,
        add: bool,
    ) {
        let d = head::HeadGrads { dlogprobs, dentropy, dtile, dx, grad, add };
        head::backward(self, x, w, targets, inv_temperature, tile, head_out, d);
        self.inspect("head_backward", &[dx, grad.buf]);
    }
    fn embed_backward(&self, d: Buf<'_>, ids: Buf<'_>, grad: Matrix<'_>) {
        rows::embed_backward(self, d, ids, grad);
        self.inspect("embed_backward", &[grad.buf]);
    }

    fn sum_squares(&self, x: Buf<'_>) -> f64 {
        optimizer::sum_squares(self, x)
    }
    fn adamw(&self, how: AdamW, bufs: AdamWBufs<'_>) {
        match bufs.scales {
            Some(scales) => optimizer::adamw8(self, how, bufs, scales),
            None => optimizer::adamw(self, how, bufs),
        }
    }
}
