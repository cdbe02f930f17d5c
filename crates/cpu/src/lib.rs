//! The CPU device: it owns the arena's mapping and a fixed pool of threads; each operation lives in its own module.
//!
//! Operations run synchronously. An operation splits its outputs into tasks; which thread takes which task does not
//! change any bit. Nothing here allocates after construction.

mod activation;
mod adamw;
mod adamw8;
mod attention;
mod attention_backward;
mod elementwise;
mod head;
mod isa;
mod lanes;
mod matmul;
mod norm;
pub mod peak;
mod pipeline;
mod pool;
mod rope;
mod sample;
mod view;

pub use isa::Isa;
pub use pool::Pool;
pub(crate) use view::{Element, Real, Shared};

use plimsoll_device::{
    Backend, Checked, Claim, Claims, Coded, DeviceKind, Matrix, MatrixLayout, Op, Pipeline, Transfer,
};
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_base::{Bytes, DType, ModelSpec, PhaseSet, Result};
use plimsoll_memory::{Buf, Layout, Mapping, Pool as HostPool};

/// True if attention takes heads of `head_dim` elements: whole vectors, up to the largest that its tiles hold.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(lanes::LANES) && head_dim <= rope::HEAD_DIM_MAX
}

/// A CPU with an arena.
#[derive(Debug)]
pub struct CpuDevice {
    arena: Mapping,
    /// What is offloaded: other bytes of the same memory.
    offloaded: Option<Mapping>,
    pool: Pool,
    isa: Isa,
    scratch: Option<Scratch>,
    perturbed: AtomicBool,
    claims: Claims,
    /// Results of passes, where the device runs ahead.
    slots: Option<pipeline::Slots>,
}

/// The region `device.scratch`: one part for each thread.
#[derive(Clone, Copy, Debug)]
struct Scratch {
    offset: u64,
    len: usize,
    dtype: DType,
}

impl CpuDevice {
    /// Before a sum is added to a gradient that is to be written: zeros.
    fn begin_sum(&self, grad: Buf<'_>, add: bool) {
        if !add {
            elementwise::zero(self, grad);
        }
    }

    /// Maps and touches `arena_bytes`, and starts `threads - 1` threads, which work next to the caller's.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn new(arena_bytes: Bytes, threads: usize, isa: Isa) -> Result<CpuDevice> {
        // The kernels rely on it: without the instructions they must not be called.
        assert!(isa.is_available(), "instruction path {} on a machine without it", isa.name());
        Ok(CpuDevice {
            arena: Mapping::touched(arena_bytes)?,
            offloaded: None,
            pool: Pool::new(threads),
            isa,
            scratch: None,
            perturbed: AtomicBool::new(false),
            claims: Claims::new(false),
            slots: None,
        })
    }

    /// Maps and touches memory for offloaded regions.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn take_offloaded(&mut self, bytes: Bytes) -> Result<()> {
        self.offloaded = Some(Mapping::touched(bytes)?);
        Ok(())
    }

    /// What the device itself needs in the arena: the resident region `device.scratch`, if the model is trained.
    ///
    /// Each thread has room for three panels of the largest transposed matrix; independent of the number of rows.
    /// Errors: `size-overflow`.
    pub fn scratch_layout(spec: &ModelSpec, weights: DType, threads: usize, update: bool) -> Result<Layout> {
        let mut layout = Layout::new();
        if update {
            let shape = [threads as u64, scratch_elements(spec, weights)];
            layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, weights)?;
        }
        Ok(layout)
    }

    /// The same for matrices `[n, k]` of f32 weights, whatever they belong to.
    ///
    /// Errors: `size-overflow`.
    pub fn scratch_of_matrices(matrices: &[(u64, u64)], threads: usize) -> Result<Layout> {
        let each = matrices.iter().map(|&(n, k)| matmul::transpose_elements(n, k, DType::F32));
        let shape = [threads as u64, each.max().unwrap_or(0)];
        let mut layout = Layout::new();
        layout.arena("device.scratch", "device", HostPool::Host, PhaseSet::RESIDENT, &shape, DType::F32)?;
        Ok(layout)
    }

    /// Takes the region `device.scratch`. Without it the backward operations panic.
    pub fn bind_scratch(&mut self, buf: Buf<'_>) {
        self.claims.reserve(buf);
        self.scratch = Some(Scratch { offset: buf.offset(), len: buf.len(), dtype: buf.dtype() });
    }

    #[allow(clippy::mut_from_ref)] // A thread has one part and runs one task.
    pub(crate) fn thread_scratch<T: Element>(&self, thread: usize) -> &mut [T] {
        let scratch = self.scratch.expect("`bind_scratch` comes before the backward operations");
        assert_eq!(scratch.dtype, T::DTYPE, "scratch of {}", scratch.dtype.name());
        let part = scratch.len / self.pool.threads();
        let start = scratch.offset + (thread * part) as u64 * T::DTYPE.bytes();
        let end = start + part as u64 * T::DTYPE.bytes();
        assert!(thread < self.pool.threads() && end <= self.arena.len() as u64, "scratch of thread {thread}");
        // SAFETY: inside the mapping by the assertion, aligned as every region is; the part belongs to this thread,
        // and a thread runs one task at a time.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base().add(start as usize).cast(), part) }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Fills the whole arena with a byte; for tests that show which bytes are used.
    pub fn fill_raw(&mut self, byte: u8) {
        // SAFETY: the mapping is `len` bytes, and `&mut self` excludes every operation.
        unsafe { std::ptr::write_bytes(self.arena.base(), byte, self.arena.len()) };
    }

    /// The raw bytes at `offset`; for tests that show which bytes are used.
    pub fn raw(&mut self, offset: u64, len: u64) -> &[u8] {
        assert!(
            offset + len <= self.arena.len() as u64,
            "bytes {offset}+{len} of an arena of {}",
            self.arena.len()
        );
        // SAFETY: inside the mapping, and `&mut self` excludes every operation while the slice lives.
        unsafe { std::slice::from_raw_parts(self.arena.base().add(offset as usize), len as usize) }
    }
}

/// Elements of one thread's scratch: the largest transposed group of panels among the model's matrices.
fn scratch_elements(spec: &ModelSpec, weights: DType) -> u64 {
    let (h, f, q) = (u64::from(spec.hidden), u64::from(spec.ffn), u64::from(spec.q_width()));
    let qkv = q + 2 * u64::from(spec.kv_width());
    let head = u64::from(spec.vocab).min(plimsoll_device::HEAD_TILE as u64);
    let matrices = [(qkv, h), (h, q), (2 * f, h), (h, f), (head, h)];
    matrices.map(|(n, k)| matmul::transpose_elements(n, k, weights)).into_iter().max().expect("five matrices")
}

impl Backend for CpuDevice {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
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
    fn claims(&self) -> &Claims {
        &self.claims
    }

    fn launch(&self, op: Checked<'_, '_>) {
        match op.op() {
            Op::Embed { table, ids, out } => elementwise::embed(self, table, ids, out),
            Op::RmsNorm { x, w, eps, out } => norm::rms_norm(self, x, w, eps, out),
            Op::Matmul { x, w, bias, out, add } => matmul::forward(self, x, w, bias, out, add),
            Op::MatmulAdd { x, w, resid, out } => {
                if out != resid {
                    elementwise::cast(self, resid, out);
                }
                matmul::forward(self, x, w, None, out, true);
            }
            Op::Rope { qkv, norms, rope, batch, kv, q_out } => {
                rope::forward(self, qkv, norms, rope, batch, kv, q_out);
            }
            Op::CopyKv { kv, copies } => rope::copy_kv(self, kv, copies),
            Op::Attention { q, kv, batch, out, lse } => attention::forward(self, q, kv, batch, out, lse),
            Op::Swiglu { gate_up, f, out } => elementwise::swiglu(self, gate_up, f, out),
            Op::Activate { how, x, out } => activation::activate(self, how, x, out),
            Op::GatherRows { x, rows, out } => elementwise::gather_rows(self, x, rows, out),
            Op::Head { x, w, targets, inv_temperature, tile, out } => {
                head::forward(self, x, w, targets, inv_temperature, tile, out);
            }
            Op::Sample { args } => sample::sample(self, args),
            Op::Advance { batch, ids, tokens, keys } => elementwise::advance(self, batch, ids, tokens, keys),
            Op::Cast { src, dst } => elementwise::cast(self, src, dst),
            Op::MatmulDx { dy, w, out, add } => matmul::backward_x(self, dy, w, out, add),
            Op::MatmulDw { dy, x, grad, add, pack } => {
                self.begin_sum(grad.buf, add);
                matmul::backward_w(self, dy, x, grad, pack);
            }
            Op::BiasBackward { dy, grad, add } => {
                self.begin_sum(grad, add);
                norm::bias_backward(self, dy, grad);
            }
            Op::RmsNormBackward { x, w, eps, dy, to } => {
                self.begin_sum(to.dw, to.add);
                norm::rms_norm_backward(self, x, w, eps, dy, to);
                if let Some(rounded) = to.rounded {
                    elementwise::cast(self, to.dx, rounded);
                }
            }
            Op::AttentionBackward { args } => attention_backward::backward(self, args),
            Op::RopeBackward { args } => rope::backward(self, args),
            Op::SwigluBackward { gate_up, f, dout, d_gate_up, out } => {
                elementwise::swiglu_backward(self, gate_up, f, dout, d_gate_up, out);
            }
            Op::ActivateBackward { how, y, dy, dx } => activation::activate_backward(self, how, y, dy, dx),
            Op::ScatterAddRows { src, rows, dst } => elementwise::scatter_add_rows(self, src, rows, dst),
            Op::HeadBackward { args } => {
                self.begin_sum(args.grad.buf, args.add);
                head::backward(self, args);
            }
            Op::EmbedBackward { d, ids, grad } => elementwise::embed_backward(self, d, ids, grad),
            Op::AdamW { how, bufs } => match bufs.scales {
                Some(scales) => adamw8::adamw(self, how, bufs, scales),
                None => adamw::adamw(self, how, bufs),
            },
            Op::WriteCodes { src, dst } => adamw8::write_codes(self, src, dst),
            Op::Zero { dst } => elementwise::zero(self, dst),
        }
    }

    fn put_u32(&self, _: &Claim<'_>, dst: Buf<'_>, src: &[u32]) {
        elementwise::write_u32(self, dst, src);
    }
    fn get_u32(&self, _: &Claim<'_>, src: Buf<'_>, dst: &mut [u32]) {
        dst.copy_from_slice(self.read(src));
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
