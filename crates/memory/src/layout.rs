//! Regions and layouts: the memory of a component, as plain data.

use plimsoll_base::{Bytes, DType, Phase, PhaseSet, Result};
use serde::Serialize;

/// Every arena region starts on a multiple of this: four cache lines on a CPU, one sector group on a GPU.
pub const REGION_ALIGN: u64 = 256;

/// The memory that bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    Device,
    /// Page-locked host memory.
    Pinned,
    /// Host memory. On the CPU the device's arena is part of it.
    Host,
    /// /dev/shm and memfds.
    Shm,
    Disk,
}

impl Pool {
    /// All pools, in the order of `plan --json`.
    pub const ALL: [Pool; 5] = [Pool::Host, Pool::Device, Pool::Pinned, Pool::Shm, Pool::Disk];

    pub const fn name(self) -> &'static str {
        match self {
            Pool::Device => "device",
            Pool::Pinned => "pinned",
            Pool::Host => "host",
            Pool::Shm => "shm",
            Pool::Disk => "disk",
        }
    }
}

/// How a region gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// An offset in the device's arena: equal to the plan to the byte.
    Arena,
    /// An offset in a device's host memory, page-locked if the device is a card: equal to the plan to the byte.
    Offloaded,
    /// An ordinary allocation of a size fixed at start.
    Heap,
    /// The process itself: code, stacks, tokenizer; a measured upper bound.
    Process,
    /// Other processes of the run: its supervisor, and workers up to their own limits.
    Workers,
    /// The kernel, for the run: page tables, stacks, files. Charged to a container, but shown by no process.
    Kernel,
    File,
}

/// When a region is in use within its phases. Layers and head take turns in a training pass, so they share bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Turn {
    #[default]
    Whole,
    Layers,
    /// While the head runs.
    Head,
    /// While the optimizer runs, after the last backward pass.
    Optimizer,
}

impl Turn {
    /// Turns that exclude each other.
    pub const EXCLUSIVE: [Turn; 3] = [Turn::Layers, Turn::Head, Turn::Optimizer];

    fn is_whole(&self) -> bool {
        *self == Turn::Whole
    }
}

/// One named piece of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// `owner.part`, unique in a layout.
    pub name: String,
    /// The component that needs it.
    pub owner: &'static str,
    pub pool: Pool,
    pub phases: PhaseSet,
    /// Axes, outermost first.
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Size, rounded up to `REGION_ALIGN` for arena regions.
    pub bytes: Bytes,
    pub place: Place,
    #[serde(skip_serializing_if = "Turn::is_whole")]
    pub turn: Turn,
}

/// The regions of a component, in the order in which they are bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    pub regions: Vec<Region>,
}

impl Layout {
    pub fn new() -> Layout {
        Layout::default()
    }

    /// Adds an arena region. `pool` is `Host` on the CPU and `Device` on a GPU.
    ///
    /// Errors: `size-overflow`.
    pub fn arena(
        &mut self,
        name: &str,
        owner: &'static str,
        pool: Pool,
        phases: PhaseSet,
        shape: &[u64],
        dtype: DType,
    ) -> Result<()> {
        let bytes = Bytes::checked(shape, dtype.bytes())?.align_up(REGION_ALIGN);
        self.push(name, owner, pool, phases, shape, dtype, bytes, Place::Arena);
        Ok(())
    }

    /// Adds an arena region that is in use in only one turn of some phases.
    ///
    /// Errors: `size-overflow`.
    #[allow(clippy::too_many_arguments)] // An arena region, and its turn.
    pub fn arena_in_turn(
        &mut self,
        name: &str,
        owner: &'static str,
        pool: Pool,
        phases: PhaseSet,
        turn: Turn,
        shape: &[u64],
        dtype: DType,
    ) -> Result<()> {
        assert!(!phases.is_resident(), "{name}: a resident region has no turn");
        self.arena(name, owner, pool, phases, shape, dtype)?;
        self.regions.last_mut().expect("one was added").turn = turn;
        Ok(())
    }

    /// Adds a resident region of the device's host memory.
    ///
    /// Errors: `size-overflow`.
    pub fn offloaded(&mut self, name: &str, owner: &'static str, shape: &[u64], dtype: DType) -> Result<()> {
        self.arena(name, owner, Pool::Host, PhaseSet::RESIDENT, shape, dtype)?;
        self.regions.last_mut().expect("one was added").place = Place::Offloaded;
        Ok(())
    }

    /// Sums the bytes of some regions; of regions that take turns, the largest turn counts.
    pub fn sum(&self, keep: impl Fn(&Region) -> bool) -> Bytes {
        let of = |turn: Turn| -> Bytes {
            self.regions.iter().filter(|r| r.turn == turn && keep(r)).map(|r| r.bytes).sum()
        };
        of(Turn::Whole) + Turn::EXCLUSIVE.map(of).into_iter().max().unwrap_or_default()
    }

    /// Returns the bytes of the arena: resident regions and the largest phase.
    pub fn arena_bytes(&self) -> Bytes {
        let in_arena = |phase: Phase| self.sum(|r| r.place == Place::Arena && r.phases.contains(phase));
        Phase::ALL.into_iter().map(in_arena).max().unwrap_or_default()
    }

    /// Adds a resident row outside the arena, of `bytes` bytes.
    pub fn outside(&mut self, name: &str, owner: &'static str, pool: Pool, place: Place, bytes: Bytes) {
        self.push(name, owner, pool, PhaseSet::RESIDENT, &[bytes.0], DType::U8, bytes, place);
    }

    #[allow(clippy::too_many_arguments)] // The fields of a region, once.
    fn push(
        &mut self,
        name: &str,
        owner: &'static str,
        pool: Pool,
        phases: PhaseSet,
        shape: &[u64],
        dtype: DType,
        bytes: Bytes,
        place: Place,
    ) {
        debug_assert!(self.find(name).is_none(), "region {name} is twice in a layout");
        let (name, shape) = (name.to_string(), shape.to_vec());
        let turn = Turn::Whole;
        self.regions.push(Region { name, owner, pool, phases, shape, dtype, bytes, place, turn });
    }

    /// Appends another component's regions.
    pub fn extend(&mut self, other: Layout) {
        self.regions.extend(other.regions);
    }

    /// Makes every region of the arena that is not resident one of `phase` alone, so that none overlays another that
    /// phases had kept apart.
    pub fn side_by_side(&mut self, phase: Phase) {
        let of_phases = |region: &&mut Region| region.place == Place::Arena && !region.phases.is_resident();
        self.regions.iter_mut().filter(of_phases).for_each(|region| region.phases = PhaseSet::of(&[phase]));
    }

    pub fn find(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|r| r.name == name)
    }
}
