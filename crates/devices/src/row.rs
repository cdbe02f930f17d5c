//! What each device answers.

use crate::rates::Rates;
use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, DType, Result};
use plimsoll_device::{CardInfo, Device, Held, Layouts, OpenOptions, ScratchLimits};
use plimsoll_memory::{Arena, Layout, Limit, Pool};
use plimsoll_ranks::Group;

/// A device before it is opened.
#[derive(Debug)]
pub struct DeviceRow {
    /// How it lays out matrices, under its name in run files.
    pub kind: &'static Layouts,
    /// The pool that its arena is in.
    pub pool: Pool,
    /// What must be installed for it, for people; none where nothing must.
    pub needs: Option<&'static str>,
    /// True if passes are recorded once and replayed, while the host runs ahead of them.
    pub runs_ahead: bool,
    /// True if operations read other ranks' arenas where they are; else what ranks have comes to regions of this one's first.
    pub reads_ranks_in_place: bool,
    /// Prompt rows of a rollout pass, in addition to the decode rows, at which its products reach their best rate.
    pub prefill_rows: usize,
    /// Rows of a micro-batch, on average, below which an update is not cut further for the sake of ranks.
    pub cut_rows: usize,
    /// Responses that a server samples at one time.
    pub slots: u32,
    /// How much longer sampling takes with adapters that are added, besides their arithmetic.
    pub added_adapters: f64,
    /// Host memory through which bytes of ranks on other hosts pass.
    pub staging: Bytes,
    /// Bytes of the (card, host) that a library takes by which ranks of different hosts exchange; none without one.
    pub network: Option<(Bytes, Bytes)>,
    /// Requires that this machine has one that works, and takes nothing of it.
    pub probe: fn() -> Result<Probe>,
    /// Opens the libraries that it computes with; their versions, for people.
    pub libraries: fn() -> Result<String>,
    /// The cards that this process could open, in the driver's order.
    pub cards: fn() -> Vec<CardInfo>,
    /// What is free of its own memory now; none without such memory.
    pub free_memory: fn() -> Option<Limit>,
    /// The rates of this machine's, on a number of threads where it computes on those.
    pub rates: fn(usize) -> Rates,
    /// Measures GFLOP/s on bf16 in registers for some seconds, and GB/s over some bytes, on the host's threads; none where others compute.
    pub peak: fn(threads: usize, seconds: f64, bytes: usize) -> Option<[f64; 2]>,
    /// True if attention takes heads of a number of elements.
    pub takes_head_dim: fn(usize) -> bool,
    /// Regions of the arena that its operations need for themselves.
    pub scratch: fn(&ModelSpec, &ScratchLimits) -> Result<Layout>,
    /// What driver and libraries hold outside the arena for a model of a width, and where that is from. `are_own`: no product is a library's.
    pub held: fn(are_own: bool, hidden: u32) -> (Held, String),
    /// Notes what they held in a run, for later plans on this machine.
    pub note: fn(Held, are_own: bool, hidden: u32),
    /// What `ranks` arenas, recorded passes and layers, and perhaps the library of `network` take of its own memory outside the arena, by name.
    pub beyond: fn(ranks: u64, arena: Bytes, passes: usize, layers: u32, network: bool) -> Sizes,
    /// Opens it with a mapped arena. Among ranks, the others' arenas can be read when it returns.
    pub open: fn(&mut Arena, &Opening<'_>) -> Result<BoxedDevice>,
}

impl DeviceRow {
    /// True if its arena is apart from the host's memory, in which bytes can then wait.
    pub fn has_own_memory(&self) -> bool {
        self.pool == Pool::Device
    }
}

/// What a machine says of a device.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// The product, or a processor's instruction path.
    pub name: String,
    /// The driver, for people.
    pub driver: String,
    /// Its own memory, free or not.
    pub total: Bytes,
}

/// What opening a device depends on besides its arena.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'g> {
    pub kind: &'static Layouts,
    /// Threads of a processor.
    pub threads: usize,
    pub options: OpenOptions,
    /// The dtype of gradients, where any are summed.
    pub grads: Option<DType>,
    /// Whether ranks of different hosts exchange by the device's library; none: if all have it.
    pub by_library: Option<bool>,
    /// The ranks that train together; none of one alone.
    pub group: Option<&'g Group>,
}

impl Opening<'_> {
    /// Returns how a device is opened alone, for what has no gradients.
    pub fn alone(kind: &'static Layouts, threads: usize, options: OpenOptions) -> Self {
        Opening { kind, threads, options, grads: None, by_library: None, group: None }
    }
}

/// Regions by name.
pub type Sizes = Vec<(&'static str, Bytes)>;
/// A device that a thread may take along.
pub type BoxedDevice = Box<dyn Device + Send>;
