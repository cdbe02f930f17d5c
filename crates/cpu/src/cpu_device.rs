//! The device itself: the arena's mapping, the threads, and the scratch.

use crate::isa::Isa;
use crate::pool::Pool;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::{Away, Claims, SamplerNoise};
use plimsoll_memory::{Buf, Mapping};
use std::fs::File;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// Results of passes that run ahead.
pub(crate) type Slots = [Mutex<Vec<u32>>; 2];

/// A CPU with an arena.
#[derive(Debug)]
pub struct CpuDevice {
    pub(crate) arena: Mapping,
    /// Offloaded regions: other bytes of the same memory.
    pub(crate) offloaded: Option<Mapping>,
    /// The arenas of the other ranks, by rank, for reading.
    pub(crate) others: Vec<Option<Mapping>>,
    pub(crate) pool: Pool,
    pub(crate) isa: Isa,
    pub(crate) scratch: Option<Scratch>,
    pub(crate) perturbed: AtomicBool,
    pub(crate) noise: Mutex<Option<SamplerNoise>>,
    pub(crate) claims: Claims,
    /// Results of passes, where the device runs ahead.
    pub(crate) slots: Option<Slots>,
}

/// The region `device.scratch`: one part for each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
}

impl CpuDevice {
    /// Maps and touches `arena_bytes`, and starts `threads - 1` threads in addition to the caller's.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn new(arena_bytes: Bytes, threads: usize, isa: Isa) -> Result<CpuDevice> {
        CpuDevice::over(Mapping::touched(arena_bytes)?, threads, isa)
    }

    /// Opens a device over an arena that other ranks may read: a file in memory, extended to the arena's length.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn shared(file: &File, arena_bytes: Bytes, threads: usize, isa: Isa) -> Result<CpuDevice> {
        CpuDevice::over(Mapping::shared(file, arena_bytes)?, threads, isa)
    }

    /// Takes the arenas of the other ranks, by rank, in this one's layout; none for this one. `away` brings parts of
    /// arenas on other hosts into the mappings given for them.
    pub fn join(&mut self, others: Vec<Option<Mapping>>, away: Option<Arc<dyn Away>>) {
        self.others = others;
        if let Some(away) = away {
            self.claims.read_by(away);
        }
    }

    fn over(arena: Mapping, threads: usize, isa: Isa) -> Result<CpuDevice> {
        // The kernels rely on it: they must not run without the instructions.
        assert!(isa.is_available(), "instruction path {} on a machine without it", isa.name());
        Ok(CpuDevice {
            arena,
            offloaded: None,
            others: Vec::new(),
            pool: Pool::new(threads),
            isa,
            scratch: None,
            perturbed: AtomicBool::new(false),
            noise: Mutex::default(),
            claims: Claims::new(false),
            slots: None,
        })
    }

    /// Maps and touches memory for offloaded regions, if there are any.
    ///
    /// Errors: `host-allocation-failed`.
    pub fn take_offloaded(&mut self, bytes: Bytes) -> Result<()> {
        if bytes > Bytes(0) {
            self.offloaded = Some(Mapping::touched(bytes)?);
        }
        Ok(())
    }

    /// Takes the region `device.scratch`. Without it the backward operations panic.
    pub fn bind_scratch(&mut self, buf: Buf<'_>) {
        self.claims.reserve(buf);
        self.scratch = Some(Scratch { offset: buf.offset(), len: buf.len(), dtype: buf.dtype() });
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Fills the whole arena with a byte, for tests that show which bytes are used.
    pub fn fill_raw(&mut self, byte: u8) {
        // SAFETY: the mapping is `len` bytes, and `&mut self` excludes every operation.
        unsafe { std::ptr::write_bytes(self.arena.base(), byte, self.arena.len()) };
    }

    /// Returns the raw bytes at `offset`, for tests that show which bytes are used.
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
