//! A row of the device table: what is known of a device before it is opened.

use crate::rates::Rates;
use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::{CardInfo, Device, DriverMemory, Layouts, OpenOptions, ScratchLimits};
use plimsoll_memory::{Arena, Layout, Limit, Pool};
use plimsoll_ranks::Group;

/// A device before it is opened.
#[derive(Debug)]
pub struct DeviceRow {
    /// Matrix layouts and name in run files.
    pub kind: &'static Layouts,
    /// Memory pool of the arena.
    pub pool: Pool,
    /// The software that the user must install for it, for display; none if nothing.
    pub needs: Option<&'static str>,
    /// True if passes are recorded once and replayed, while the host runs ahead of them.
    pub runs_ahead: bool,
    /// True if operations read other ranks' arenas in place; else what they read is first copied to this rank's.
    pub reads_ranks_in_place: bool,
    /// Prompt rows of a rollout pass, in addition to the decode rows, at which its products reach their best rate.
    pub prefill_rows: usize,
    /// Rows of a micro-batch, on average, below which an update is not cut further for the sake of ranks.
    pub cut_rows: usize,
    /// Responses that a server samples at one time.
    pub slots: u32,
    /// Factor on sampling time with added adapters, besides their arithmetic.
    pub added_adapters: f64,
    /// Host memory through which bytes of ranks on other hosts pass.
    pub staging: Bytes,
    /// Bytes of (card, host) that the library for exchanges between hosts takes; none without one.
    pub network: Option<(Bytes, Bytes)>,
    /// Requires a working device on this machine; takes none of its memory.
    pub probe: fn() -> Result<Probe>,
    /// Opens the libraries that it computes with; returns their versions, for display.
    pub libraries: fn() -> Result<String>,
    /// Cards that this process could open, in the driver's order.
    pub cards: fn() -> Vec<CardInfo>,
    /// Free part of the device's own memory; none if it has none.
    pub free_memory: fn() -> Option<Limit>,
    /// Rates on this machine, for a number of threads if it computes on them.
    pub rates: fn(usize) -> Rates,
    /// Measures bf16 GFLOP/s in registers and GB/s on the host's threads; none if the device computes elsewhere.
    pub peak: fn(threads: usize, seconds: f64, bytes: usize) -> Option<[f64; 2]>,
    /// True if attention takes heads of this many elements.
    pub takes_head_dim: fn(usize) -> bool,
    /// Requires that products of numbers of eight bits are computed with weights of a dtype; where no device is here,
    /// that they are on some.
    pub takes_fp8: fn(DType) -> Result<()>,
    /// Scratch regions of the arena for its operations.
    pub scratch: fn(&ModelSpec, &ScratchLimits) -> Result<Layout>,
    /// Memory of driver and libraries outside the arena, and its source. `are_own`: no product is by a library.
    pub held: fn(are_own: bool, hidden: u32) -> (DriverMemory, String),
    /// Notes what driver and libraries held in a run, for later plans on this machine.
    pub note: fn(DriverMemory, are_own: bool, hidden: u32),
    /// Its own memory outside the arena, by name: for `ranks` arenas, recorded passes, and a `network` library.
    pub beyond: fn(ranks: u64, arena: Bytes, passes: usize, layers: u32, network: bool) -> Sizes,
    /// Opens it with a mapped arena. Among ranks, the others' arenas can be read when it returns.
    pub open: fn(&mut Arena, &Opening<'_>) -> Result<BoxedDevice>,
}

impl DeviceRow {
    /// True if the arena is not in host memory, where bytes can then wait.
    pub fn has_own_memory(&self) -> bool {
        self.pool == Pool::Device
    }
}

/// A device as this machine reports it.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// Product name, or a CPU's instruction path.
    pub name: String,
    /// Driver version, for display.
    pub driver: String,
    /// The device's own memory, free or not.
    pub total: Bytes,
}

/// Options for opening a device.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'g> {
    pub kind: &'static Layouts,
    /// Threads, if the device is the CPU.
    pub threads: usize,
    pub options: OpenOptions,
    /// Dtype of gradients, if any are summed.
    pub grads: Option<DType>,
    /// True if ranks of different hosts must exchange by the device's library; `None`: if all have it.
    pub by_library: Option<bool>,
    /// Ranks that train together.
    pub group: &'g Group,
}

impl Opening<'_> {
    /// Returns options for a device without other ranks or gradients.
    pub fn alone(kind: &'static Layouts, threads: usize, options: OpenOptions) -> Self {
        Opening { kind, threads, options, grads: None, by_library: None, group: Group::alone() }
    }
}

/// Regions and their sizes, by name.
pub type Sizes = Vec<(&'static str, Bytes)>;
/// A device that may move to another thread.
pub type BoxedDevice = Box<dyn Device + Send>;
