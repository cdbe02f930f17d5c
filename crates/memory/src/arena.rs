//! The arena's bookkeeping: the offset of each region, and the handles that may be used at a time.
//!
//! It owns offsets, not memory. Resident regions come first; the regions of each phase start after them and overlay
//! those of other phases. `Overlay::enter` borrows the overlay mutably, so handles of two phases cannot coexist:
//!
//! ```compile_fail
//! # use plimsoll_memory::*;
//! # use plimsoll_base::*;
//! # let mut layout = Layout::new();
//! # layout.arena("kv", "t", Pool::Host, PhaseSet::ROLLOUT, &[8], DType::F32).unwrap();
//! # layout.arena("act", "t", Pool::Host, PhaseSet::UPDATE, &[8], DType::F32).unwrap();
//! let mut arena = Arena::new(ArenaMap::new(&layout, 0));
//! let (_resident, mut overlay) = arena.split();
//! let rollout = overlay.enter(Phase::Rollout);
//! let update = overlay.enter(Phase::Update); // error: `overlay` is still borrowed
//! let _ = (rollout.buf("kv"), update.buf("act"));
//! ```
//!
//! Resident regions change only in `Update`, so a `ReadLease` on them may be held during the other phases:
//! `enter(Phase::Update)` waits until every lease is dropped.

use crate::{Layout, Place, REGION_ALIGN, Turn};
use plimsoll_base::{DType, Phase};
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, PoisonError};

/// A handle to elements in an arena: an offset with a length, a dtype, and the lifetime and name of its phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buf<'a> {
    offset: u64,
    len: usize,
    dtype: DType,
    phase: Option<Phase>,
    home: Home,
    lives: PhantomData<&'a ()>,
}

/// The memory that a handle points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    Arena,
    /// The device's host memory: can be copied, but not used by operations.
    Offloaded,
    /// The arena of another rank, which has the same layout: can be read.
    Rank(u8),
}

impl<'a> Buf<'a> {
    /// Returns the byte offset from the base of the arena, or of the device's host memory for an offloaded region.
    pub fn offset(self) -> u64 {
        self.offset
    }

    pub fn len(self) -> usize {
        self.len
    }

    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the phase of the handle; `None` for a resident region.
    pub fn phase(self) -> Option<Phase> {
        self.phase
    }

    pub fn home(self) -> Home {
        self.home
    }

    /// Returns the bytes of its elements.
    pub fn bytes(self) -> u64 {
        self.len as u64 * self.dtype.bytes()
    }

    /// Returns true if the region is in the device's host memory.
    pub fn is_offloaded(self) -> bool {
        self.home == Home::Offloaded
    }

    /// Returns the rank whose arena it is in; `None` for this rank's.
    pub fn rank(self) -> Option<usize> {
        match self.home {
            Home::Rank(rank) => Some(rank.into()),
            _ => None,
        }
    }

    /// Returns these elements in another rank's arena. The ranks must agree on what they hold, and for how long.
    pub fn of_rank(self, rank: usize) -> Buf<'a> {
        assert!(self.home == Home::Arena, "only arenas are shared");
        Buf { home: Home::Rank(u8::try_from(rank).expect("ranks are few")), ..self }
    }

    /// Returns `len` elements from `start`. Panics if out of bounds (a bug in Plimsoll).
    pub fn slice(self, start: usize, len: usize) -> Buf<'a> {
        assert!(start + len <= self.len, "elements {start}..{} of a buffer of {}", start + len, self.len);
        Buf { offset: self.offset + start as u64 * self.dtype.bytes(), len, ..self }
    }

    /// Returns part `index` of equal parts of `len` elements: a layer of a `[layers, ...]` region.
    pub fn part(self, index: usize, len: usize) -> Buf<'a> {
        self.slice(index * len, len)
    }
}

/// A region's place in the arena.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    pub name: String,
    /// Byte offset from the arena's base.
    pub offset: u64,
    /// Bytes, as in the plan.
    pub bytes: u64,
    /// Elements, without the padding to `REGION_ALIGN`.
    pub elements: usize,
    pub dtype: DType,
}

/// Offsets of all arena regions.
#[derive(Clone, Debug, PartialEq)]
pub struct ArenaMap {
    resident: Vec<Binding>,
    /// Regions in the device's host memory.
    offloaded: Vec<Binding>,
    offloaded_end: u64,
    phases: [Vec<Binding>; Phase::ALL.len()],
    overlay: u64,
    end: u64,
    guard: u64,
}

impl ArenaMap {
    /// Binds the arena regions of `layout`. `guard_bytes` (0 outside tests) follow each; then turns share no bytes.
    pub fn new(layout: &Layout, guard_bytes: u64) -> ArenaMap {
        assert_eq!(guard_bytes % REGION_ALIGN, 0, "guard bands keep the regions aligned");
        let mut offloaded_end = 0;
        let offloaded = bind(layout, &mut offloaded_end, guard_bytes, |r| r.place == Place::Offloaded);
        let mut next = 0;
        let in_arena = |r: &crate::Region| r.place == Place::Arena;
        let resident = bind(layout, &mut next, guard_bytes, |r| in_arena(r) && r.phases.is_resident());
        let overlay_base = next;
        let mut end = next;
        let phases = Phase::ALL.map(|phase| {
            next = overlay_base;
            let here = |r: &crate::Region| in_arena(r) && !r.phases.is_resident() && r.phases.contains(phase);
            let mut bound = bind(layout, &mut next, guard_bytes, |r| here(r) && r.turn == Turn::Whole);
            let turns_base = next;
            end = end.max(next);
            for turn in Turn::EXCLUSIVE {
                // With guard bytes turns do not overlap, so writes past a region's end are detected.
                next = if guard_bytes == 0 { turns_base } else { next };
                bound.extend(bind(layout, &mut next, guard_bytes, |r| here(r) && r.turn == turn));
                end = end.max(next);
            }
            bound
        });
        ArenaMap {
            resident,
            offloaded,
            offloaded_end,
            phases,
            overlay: overlay_base,
            end,
            guard: guard_bytes,
        }
    }

    /// Returns the highest bound offset.
    pub fn used_bytes(&self) -> u64 {
        self.end
    }

    /// Returns the bytes of the device's host memory.
    pub fn offloaded_bytes(&self) -> u64 {
        self.offloaded_end
    }

    /// Returns the resident regions.
    pub fn resident(&self) -> &[Binding] {
        &self.resident
    }

    /// Returns the regions of one phase, without resident ones.
    pub fn phase(&self, phase: Phase) -> &[Binding] {
        &self.phases[phase as usize]
    }

    pub fn guard_bytes(&self) -> u64 {
        self.guard
    }
}

fn bind(layout: &Layout, next: &mut u64, guard: u64, keep: impl Fn(&crate::Region) -> bool) -> Vec<Binding> {
    let mut bound = Vec::new();
    for region in layout.regions.iter().filter(|r| keep(r)) {
        let elements = region.shape.iter().product::<u64>() as usize;
        bound.push(Binding {
            name: region.name.clone(),
            offset: *next,
            bytes: region.bytes.0,
            elements,
            dtype: region.dtype,
        });
        *next += region.bytes.0 + guard;
    }
    bound
}

/// The arena of one device.
#[derive(Debug)]
pub struct Arena {
    map: ArenaMap,
    readers: Readers,
}

impl Arena {
    pub fn new(map: ArenaMap) -> Arena {
        Arena { map, readers: Readers::default() }
    }

    pub fn map(&self) -> &ArenaMap {
        &self.map
    }

    /// Returns the resident handles, which live as long as the arena, and the overlay, which is entered phase by phase.
    pub fn split(&mut self) -> (Resident<'_>, Overlay<'_>) {
        let (map, readers) = (&self.map, &self.readers);
        (Resident { map, readers }, Overlay { map, readers })
    }
}

/// Access to resident regions.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    map: &'a ArenaMap,
    readers: &'a Readers,
}

impl<'a> Resident<'a> {
    /// Returns the region of that name. Panics if the layout has none (a bug in Plimsoll).
    pub fn buf(&self, name: &str) -> Buf<'a> {
        self.get(name).unwrap_or_else(|| panic!("no resident region {name}"))
    }

    /// Returns the region of that name, if the layout has it.
    pub fn get(&self, name: &str) -> Option<Buf<'a>> {
        let offloaded =
            || find(&self.map.offloaded, name, None).map(|buf| Buf { home: Home::Offloaded, ..buf });
        find(&self.map.resident, name, None).or_else(offloaded)
    }

    /// Returns a lease to read resident regions during Rollout and Score, also from another thread.
    pub fn lease(&self) -> ReadLease<'a> {
        *self.readers.lock() += 1;
        ReadLease { readers: self.readers }
    }
}

/// The number of live leases.
#[derive(Debug, Default)]
struct Readers {
    count: Mutex<u32>,
    returned: Condvar,
}

impl Readers {
    /// Locks the count, which is valid even after a panic of the thread that held the lock.
    fn lock(&self) -> std::sync::MutexGuard<'_, u32> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps resident regions unchanged while it lives.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct ReadLease<'a> {
    readers: &'a Readers,
}

impl Drop for ReadLease<'_> {
    fn drop(&mut self) {
        *self.readers.lock() -= 1;
        self.readers.returned.notify_all();
    }
}

/// The bytes that phases share.
#[derive(Debug)]
pub struct Overlay<'a> {
    map: &'a ArenaMap,
    readers: &'a Readers,
}

impl Overlay<'_> {
    /// Begins a phase, whose handles end with the guard. `Critic` and `Update` write resident regions: they wait for
    /// leases.
    pub fn enter(&mut self, phase: Phase) -> InPhase<'_> {
        if matches!(phase, Phase::Critic | Phase::Update) {
            self.take_back();
        }
        InPhase { map: self.map, phase }
    }

    /// Begins a phase without waiting for leases. Lease holders must not write resident regions meanwhile.
    pub fn enter_leased(&mut self, phase: Phase) -> InPhase<'_> {
        InPhase { map: self.map, phase }
    }

    /// Returns all bytes that phases share, between phases.
    pub fn bytes(&mut self) -> Buf<'_> {
        let (offset, len) = (self.map.overlay, (self.map.end - self.map.overlay) as usize);
        Buf { offset, len, dtype: DType::U8, phase: None, home: Home::Arena, lives: PhantomData }
    }

    /// Waits until all leases on resident regions are dropped. `&mut self` keeps new ones from being taken
    /// by the thread that enters phases.
    pub fn take_back(&mut self) {
        let mut count = self.readers.lock();
        while *count > 0 {
            count = self.readers.returned.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A phase in progress.
#[derive(Debug)]
pub struct InPhase<'p> {
    map: &'p ArenaMap,
    phase: Phase,
}

impl<'p> InPhase<'p> {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the region of that name in this phase. Panics if there is none (a bug in Plimsoll).
    pub fn buf(&self, name: &str) -> Buf<'p> {
        self.get(name).unwrap_or_else(|| panic!("no region {name} in phase {}", self.phase.name()))
    }

    /// Returns the region of that name in this phase, if the layout has it.
    pub fn get(&self, name: &str) -> Option<Buf<'p>> {
        find(&self.map.phases[self.phase as usize], name, Some(self.phase))
    }

    /// Returns the region of that name in the device's host memory, if the layout has it.
    pub fn offloaded(&self, name: &str) -> Option<Buf<'p>> {
        find(&self.map.offloaded, name, None).map(|buf| Buf { home: Home::Offloaded, ..buf })
    }
}

fn find<'a>(bindings: &'a [Binding], name: &str, phase: Option<Phase>) -> Option<Buf<'a>> {
    let b = bindings.iter().find(|b| b.name == name)?;
    let (offset, len, dtype) = (b.offset, b.elements, b.dtype);
    Some(Buf { offset, len, dtype, phase, home: Home::Arena, lives: PhantomData })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Plan, Pool};
    use plimsoll_base::PhaseSet;

    fn layout() -> Layout {
        let mut layout = Layout::new();
        for (name, phases, n) in [
            ("a", PhaseSet::RESIDENT, 100),
            ("b", PhaseSet::RESIDENT, 300),
            ("kv", PhaseSet::ROLLOUT, 1000),
            ("act", PhaseSet::UPDATE, 500),
            ("tile", PhaseSet::of(&Phase::ALL), 10),
        ] {
            layout.arena(name, "test", Pool::Host, phases, &[n], DType::F32).unwrap();
        }
        layout
    }

    #[test]
    fn bound_bytes_equal_the_plan() {
        let layout = layout();
        let map = ArenaMap::new(&layout, 0);
        let plan = Plan { layout, limits: Limits::default() };
        assert_eq!(map.used_bytes(), plan.arena_bytes().0);
    }

    #[test]
    fn phases_overlay_and_residents_do_not() {
        let mut arena = Arena::new(ArenaMap::new(&layout(), 0));
        let (resident, mut overlay) = arena.split();
        let (a, b) = (resident.buf("a"), resident.buf("b"));
        assert_eq!((a.offset(), b.offset(), a.len()), (0, 512, 100));
        let kv = overlay.enter(Phase::Rollout).buf("kv").offset();
        let act = overlay.enter(Phase::Update).buf("act").offset();
        assert_eq!((kv, act), (512 + 1280, 512 + 1280));
        let shared = overlay.bytes();
        // The largest phase: 4,000 bytes of `kv`, then 40 of `tile`, each rounded up.
        assert_eq!((shared.offset(), shared.len()), (512 + 1280, 4096 + 256));
        assert_eq!(b.part(2, 100).offset(), 512 + 800);
        let part = overlay.enter(Phase::Update).buf("act").slice(1, 2);
        assert_eq!((part.phase(), b.phase(), overlay.bytes().phase()), (Some(Phase::Update), None, None));
    }

    #[test]
    fn offloaded_regions_have_offsets_of_their_own() {
        let mut layout = layout();
        layout.offloaded("m", "test", &[100], DType::F32).unwrap();
        layout.offloaded("v", "test", &[7], DType::F32).unwrap();
        let plan = Plan { layout: layout.clone(), limits: Limits::default() };
        let mut arena = Arena::new(ArenaMap::new(&layout, 0));
        assert_eq!(arena.map().used_bytes(), plan.arena_bytes().0);
        assert_eq!(arena.map().offloaded_bytes(), 512 + 256);
        let (resident, _) = arena.split();
        let (m, v, a) = (resident.buf("m"), resident.buf("v"), resident.buf("a"));
        assert_eq!((m.offset(), v.offset(), a.offset()), (0, 512, 0));
        assert!(m.slice(1, 2).is_offloaded() && v.is_offloaded() && !a.is_offloaded());
    }

    #[test]
    fn update_waits_for_leases_and_other_phases_do_not() {
        let mut arena = Arena::new(ArenaMap::new(&layout(), 0));
        let (resident, mut overlay) = arena.split();
        let (lease, second) = (resident.lease(), resident.lease());
        let read = std::sync::atomic::AtomicBool::new(false);
        assert_eq!(overlay.enter(Phase::Rollout).phase(), Phase::Rollout);
        assert_eq!(overlay.enter(Phase::Score).phase(), Phase::Score);
        drop(second);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                read.store(true, std::sync::atomic::Ordering::SeqCst);
                drop(lease);
            });
            let _update = overlay.enter(Phase::Update);
            assert!(read.load(std::sync::atomic::Ordering::SeqCst), "Update began under a lease");
        });
    }

    #[test]
    #[should_panic(expected = "elements 90..110 of a buffer of 100")]
    fn a_slice_outside_its_region_panics() {
        let mut arena = Arena::new(ArenaMap::new(&layout(), 0));
        let _ = arena.split().0.buf("a").slice(90, 20);
    }
}
