//! The device itself: the card, its arena, its kernels and libraries.

use crate::aside::AsideStream;
use crate::compile::SOURCES;
use crate::driver::Gpu;
use crate::driver::GpuInfo;
use crate::far::Far;
use crate::kernels::Kernels;
use crate::nccl::Cards;
use crate::peers::Peer;
use crate::queue::Queue;
use crate::side::Side;
use crate::transfers::Transfers;
use crate::{blas, driver, lt, profile};
use plimsoll_base::{Bytes, DType, Error, Phase, Result};
use plimsoll_device::{Claims, OpenOptions, SamplerNoise};
use plimsoll_memory::{Buf, CardMemory};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Allowance for what a process brings about on a card and NVML does not count as its own; it was not measured.
const SHARED_BYTES: u64 = 256 << 20;

/// Maximum bytes of scratch that cuBLASLt may use.
pub(crate) const WORKSPACE_BYTES: u64 = 8 << 20;

/// A region's place, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// `None` for a resident region.
    pub(crate) phase: Option<Phase>,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Debug)]
pub struct CudaDevice {
    // Dropped in this order: objects on the card before the card.
    pub(crate) pipeline: Queue,
    /// The stream for exchanges, if there are other ranks.
    pub(crate) aside: Option<AsideStream>,
    pub(crate) side: Side,
    pub(crate) transfers: Transfers,
    pub(crate) blas: blas::Blas,
    pub(crate) kernels: Kernels,
    pub(crate) arena: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) scratch: Option<(u64, u64)>,
    /// Scratch of what is put aside: (address, bytes).
    pub(crate) aside_scratch: Option<(u64, u64)>,
    pub(crate) others: Bytes,
    /// The arenas of the other ranks of this host, by rank.
    pub(crate) peers: Vec<Option<Peer>>,
    /// The memory of ranks on other hosts.
    pub(crate) far: Option<Far>,
    /// NCCL's connection to cards of other hosts, if it reaches them.
    pub(crate) network: Option<Cards>,
    /// True if other ranks are on this card too: memory beyond the arena is then theirs as well.
    pub(crate) is_divided: bool,
    /// The arena's address for other threads, until it is freed.
    pub(crate) shown: Option<Arc<Mutex<Option<u64>>>>,
    pub(crate) failed: AtomicBool,
    pub(crate) failure: Mutex<Option<Error>>,
    pub(crate) checked: bool,
    pub(crate) claims: Claims,
    /// Where weights were last made from their codes: the first address, and the one after the last.
    pub(crate) widened: [AtomicU64; 2],
    pub(crate) perturbed: AtomicBool,
    /// Noise on the sampler's rows; recorded passes have none.
    pub(crate) noise: Mutex<Option<SamplerNoise>>,
    pub(crate) regions: Vec<Named>,
    /// The phase under way, if it is watched.
    pub(crate) phase: Mutex<Option<Phase>>,
    pub(crate) profile: Option<profile::Profile>,
    pub(crate) gpu: Gpu,
}

/// Describes the card that a run would use, without taking any of its memory.
///
/// Errors: `cuda-driver-missing`, `cuda-driver-too-old`, `cuda-no-device`, `cuda-arch-unsupported`.
pub fn probe() -> Result<GpuInfo> {
    driver::first_device().map(|(_, info)| info)
}

/// Opens the libraries that a run on a card needs; returns their versions for display: `NVRTC 13.0, cuBLASLt 13.1.0`.
///
/// Errors: `cuda-library-missing`, `cuda-compile-failed` where NVRTC does not work.
pub fn libraries() -> Result<String> {
    let compiler = crate::compile::compiler_version()?;
    Ok(format!("NVRTC {compiler}, cuBLASLt {}", lt::dotted(lt::version()?)))
}

impl CudaDevice {
    /// Opens the card, loads all kernels, and takes the arena.
    ///
    /// Errors: those of `probe`; `cuda-library-missing`, `cuda-compile-failed`, `cuda-out-of-memory`, `cuda-failed`.
    pub fn new(arena_bytes: Bytes, options: OpenOptions) -> Result<CudaDevice> {
        let (gpu, others) = Gpu::open()?;
        let kernels = Kernels::load(&gpu, options.checked)?;
        let blas = blas::Blas::open(&gpu, !options.checked)?;
        let pipeline = Queue::new(&gpu)?;
        let transfers = Transfers::new(&gpu)?;
        let arena = gpu.allocate("the arena", arena_bytes.0.max(256))?;
        Ok(CudaDevice {
            pipeline,
            aside: None,
            side: Side::new(&gpu)?,
            transfers,
            blas,
            kernels,
            arena,
            arena_bytes: arena_bytes.0,
            scratch: None,
            aside_scratch: None,
            others,
            peers: Vec::new(),
            far: None,
            network: None,
            is_divided: false,
            shown: None,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            checked: options.checked,
            // Operations share the scratch.
            claims: Claims::new(true),
            widened: Default::default(),
            perturbed: AtomicBool::new(false),
            noise: Mutex::default(),
            regions: Vec::new(),
            phase: Mutex::new(None),
            profile: options.profile.then(|| profile::Profile::new(&gpu)).transpose()?,
            gpu,
        })
    }

    /// Takes page-locked host memory for offloaded regions, if there are any: exactly `bytes`, once.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn take_offloaded(&mut self, bytes: Bytes) -> Result<()> {
        if bytes > Bytes(0) { self.transfers.take(&self.gpu, bytes) } else { Ok(()) }
    }

    /// Takes the region `device.scratch`. Without it most operations panic.
    pub fn bind_scratch(&mut self, buf: Buf<'_>) {
        self.claims.reserve(buf);
        self.scratch = Some((self.address(buf), buf.len() as u64 * buf.dtype().bytes()));
    }

    /// Takes the region `device.aside`, the scratch of operations that one of several ranks puts aside.
    pub fn bind_aside(&mut self, buf: Buf<'_>) {
        self.claims.reserve(buf);
        self.aside_scratch = Some((self.address(buf), buf.len() as u64 * buf.dtype().bytes()));
    }

    /// Requires that gradients of `dtype` do not depend on whether one rank adds products or several ranks add parts.
    ///
    /// Errors: `ranks-method`, as cuBLASLt 12 adds to a bf16 gradient before rounding (12.4.5, all of its algorithms).
    pub fn require_equal_parts(&self, dtype: DType) -> Result<()> {
        const ROUNDS_FIRST: usize = 130_000;
        if dtype != DType::Bf16 || self.blas.version() >= ROUNDS_FIRST {
            return Ok(());
        }
        let found = lt::dotted(self.blas.version());
        let message = format!(
            "gradients in bf16 on several cards with cuBLASLt {found}, which gives one rank other bits"
        );
        Err(Error::usage("ranks-method", message)
            .hint("set train.grad_dtype = \"f32\"")
            .hint("or install cuBLASLt 13: pip install nvidia-cublas"))
    }

    pub fn info(&self) -> &GpuInfo {
        &self.gpu.info
    }

    /// Returns the versions that results depend on: driver, compiler, cuBLASLt, and the kernels compiled now.
    pub fn versions(&self) -> String {
        format!(
            "driver {}.{}, NVRTC {}, cuBLASLt {}{}, {} of {} kernel files compiled now",
            self.gpu.info.driver / 1000,
            self.gpu.info.driver % 1000 / 10,
            self.kernels.compiler,
            lt::dotted(self.blas.version()),
            self.nccl().map_or(String::new(), |network| format!(", {}", network.name)),
            self.kernels.compiled,
            SOURCES.len()
        )
    }

    /// Notes that other ranks are on this card too.
    pub fn divide(&mut self) {
        self.is_divided = true;
    }

    /// Returns who holds the card's memory now. If ranks share the card, only the arena is counted apart.
    pub fn memory(&self) -> CardMemory {
        let (free, total) = self.gpu.memory();
        let used = total.0 - free.0;
        if self.is_divided {
            let others = Bytes(used.saturating_sub(self.arena_bytes));
            return CardMemory { others, libraries: Bytes(0), free, total };
        }
        let libraries = used.saturating_sub(self.arena_bytes + self.others.0);
        // What came to the card since it was opened is not all ours.
        // Less than the arena is of another process, whose number in another container is this one's.
        let own =
            self.gpu.own_memory().and_then(|own| own.0.checked_sub(self.arena_bytes)).unwrap_or(u64::MAX);
        let libraries = libraries.min(own.saturating_add(SHARED_BYTES));
        let others = Bytes(used.saturating_sub(self.arena_bytes + libraries));
        CardMemory { others: others.max(self.others), libraries: Bytes(libraries), free, total }
    }

    /// Returns the raw bytes at `offset`, for tests that show which bytes are used.
    pub fn raw(&mut self, offset: u64, len: u64) -> Vec<u8> {
        assert!(offset + len <= self.arena_bytes, "bytes {offset}+{len} of an arena of {}", self.arena_bytes);
        let mut bytes = vec![0; len as usize];
        self.receive(self.arena + offset, &mut bytes);
        bytes
    }

    pub(crate) fn multiprocessors(&self) -> u32 {
        self.gpu.info.multiprocessors
    }

    /// Notes that weights are made from their codes here: products read them after what precedes it.
    pub(crate) fn note_widened(&self, weights: Buf<'_>) {
        let first = self.address(weights);
        let ends = [first, first + weights.len() as u64 * weights.dtype().bytes()];
        self.widened.iter().zip(ends).for_each(|(kept, end)| kept.store(end, Ordering::Relaxed));
    }

    /// Returns whether the weights at an address were last made from their codes.
    pub(crate) fn is_widened(&self, address: u64) -> bool {
        let [first, end] = [0, 1].map(|i: usize| self.widened[i].load(Ordering::Relaxed));
        (first..end).contains(&address)
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

    /// Returns the (address, bytes) that cuBLASLt may use: a part of the scratch.
    pub(crate) fn workspace(&self) -> (u64, u64) {
        self.scratch.map_or((0, 0), |(address, bytes)| (address, bytes.min(WORKSPACE_BYTES)))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.has_failed() {
            // Ends what waits for ranks that are gone.
            self.network = None;
        }
        let _ = self.gpu.wait();
        let _ = self.transfers.wait();
        let _ = self.side.wait();
        let _ = self.aside.as_ref().map(AsideStream::wait);
        self.network = None;
        self.peers.clear();
        self.hide();
        self.gpu.free(self.arena);
    }
}
