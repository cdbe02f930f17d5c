//! The bytes in use: the one place that keeps operations from overlapping.
//!
//! `Buf` is `Copy` and operations take `&self`, so neither lifetimes nor borrows keep an output off an input or two
//! threads apart. Claims do, in every build: what an operation writes overlaps nothing else that it or any operation
//! under way on another thread uses. Everything that a device does goes through `Claims::claim`.

#[cfg(all(loom, test))]
use loom::sync::{Mutex, MutexGuard};
use plimsoll_base::Result;
use plimsoll_memory::{Buf, Home};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
#[cfg(not(all(loom, test)))]
use std::sync::{Mutex, MutexGuard};

/// Brings memory of ranks on other hosts to where an operation reads it.
pub trait Away: Debug + Send + Sync {
    /// Brings bytes of other ranks' arenas, by rank; those of this host need nothing. `check` reports failures.
    fn bring(&self, wanted: &[(usize, Range<u64>)]);

    /// Returns what has kept bytes from arriving.
    ///
    /// Errors: `rank-lost`, `ranks-unreachable`.
    fn check(&self) -> Result<()>;
}

/// Access of an operation to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Written, or read and written: a checked device requires that its floats are numbers.
    Write,
    /// Written, with any content: scratch, a cache that fills, a copy, rows that are not finite.
    WriteAny,
}

/// Bytes that an operation uses.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Offsets in the arena; those of offloaded memory have `OFFLOADED` added.
    start: u64,
    end: u64,
    writes: bool,
    name: &'static str,
}

/// Keeps the addresses of offloaded memory apart from the arena's.
const OFFLOADED: u64 = 1 << 63;
/// Keeps the addresses of other ranks' arenas apart from this one's and from each other.
const RANK: u64 = 1 << 48;
/// Initial room for the buffers of operations under way, one operation per thread; more threads make it grow.
const SPANS: usize = 80;

impl Span {
    fn of(buf: Buf<'_>, access: Access, name: &'static str) -> Span {
        let start = buf.offset()
            + match buf.home() {
                Home::Arena => 0,
                Home::Offloaded => OFFLOADED,
                Home::Rank(rank) => RANK * (u64::from(rank) + 1),
            };
        assert!(access == Access::Read || !matches!(buf.home(), Home::Rank(_)), "{name} is another rank's");
        let end = start + buf.len() as u64 * buf.dtype().bytes();
        Span { start, end, writes: access != Access::Read, name }
    }

    /// Returns the bytes as another rank's, if they are.
    fn of_rank(&self) -> Option<(usize, Range<u64>)> {
        let rank = (self.start & !OFFLOADED) / RANK;
        let at = |offset: u64| offset - RANK * rank;
        (self.start < OFFLOADED && rank > 0).then(|| (rank as usize - 1, at(self.start)..at(self.end)))
    }

    fn conflicts(&self, other: &Span) -> bool {
        (self.writes || other.writes) && self.start < other.end && other.start < self.end
    }
}

/// The buffers of one operation, after those of the operations under way.
pub struct Uses<'u> {
    claimed: &'u mut Vec<Claimed>,
    first: usize,
    operation: &'static str,
    ticket: u64,
}

impl Uses<'_> {
    /// Notes a buffer. Empty ones overlap nothing.
    pub(crate) fn note(&mut self, buf: Buf<'_>, access: Access, name: &'static str) {
        if !buf.is_empty() {
            self.push(Span::of(buf, access, name));
        }
    }

    /// Permits `output` to be exactly `input`: the operation reads each element before it writes it.
    pub(crate) fn in_place(&mut self, input: Option<Buf<'_>>, output: Option<Buf<'_>>, name: &'static str) {
        if input.is_some() && input == output {
            let own = &self.claimed[self.first..];
            if let Some(read) = own.iter().position(|c| c.span.name == name && !c.span.writes) {
                self.claimed.swap_remove(self.first + read);
            }
        }
    }

    fn push(&mut self, span: Span) {
        self.claimed.push(Claimed { span, operation: self.operation, ticket: self.ticket });
    }

    /// Describes the first overlap of a span with the scratch, an operation under way, or another operand.
    fn overlap(&self, scratch: &[Range<u64>]) -> Option<String> {
        for (i, Claimed { span: a, operation, .. }) in self.claimed.iter().enumerate().skip(self.first) {
            if scratch.iter().any(|scratch| a.start < scratch.end && scratch.start < a.end) {
                return Some(format!("{operation}: {} overlaps the device's scratch", a.name));
            }
            if let Some(b) = self.claimed[..i].iter().find(|b| a.conflicts(&b.span)) {
                let when = if b.ticket == self.ticket { "" } else { " under way on another thread" };
                return Some(words((operation, a), (b.operation, &b.span), when));
            }
        }
        None
    }
}

#[cold]
fn words(a: (&str, &Span), b: (&str, &Span), when: &str) -> String {
    let ((operation, a), (other, b)) = if a.1.writes { (a, b) } else { (b, a) };
    format!(
        "{operation} writes {} (bytes {}..{}), which overlaps {} (bytes {}..{}) of {other}{when}",
        a.name, a.start, a.end, b.name, b.start, b.end
    )
}

/// Called with each buffer of an operand, its access and its name.
pub type Each<'e> = dyn FnMut(Buf<'_>, Access, &'static str) + 'e;

/// An operand of an operation: notes the buffers that it consists of. Numbers and options are operands without buffers.
pub trait Operand {
    /// `access`: that of the whole operand; one that is read in part and written in part knows its own.
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>);
}

impl Operand for Buf<'_> {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        each(*self, access, name);
    }
}

impl Operand for &[Buf<'_>] {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        self.iter().for_each(|buf| each(*buf, access, name));
    }
}

impl<T: Operand> Operand for Option<T> {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        if let Some(operand) = self {
            operand.note(access, name, each);
        }
    }
}

impl<T: Operand, U: Operand> Operand for (T, U) {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        self.0.note(access, name, each);
        self.1.note(access, name, each);
    }
}

impl<T: Operand, const N: usize> Operand for [T; N] {
    fn note(&self, access: Access, name: &'static str, each: &mut Each<'_>) {
        self.iter().for_each(|operand| operand.note(access, name, each));
    }
}

/// The bytes in use on one device.
#[derive(Debug)]
pub struct Claims {
    under_way: Mutex<UnderWay>,
    /// The device's own part of the arena, which no operand may touch.
    scratch: Vec<Range<u64>>,
    /// True if operations run one at a time, because they share the scratch.
    is_serial: bool,
    /// Brings memory of ranks on other hosts, if there are any.
    away: Option<Arc<dyn Away>>,
}

/// Buffers of the operations under way.
#[derive(Debug)]
struct UnderWay {
    /// The buffers of one operation are next to each other.
    claimed: Vec<Claimed>,
    /// Ticket of the last claim.
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Claimed {
    span: Span,
    operation: &'static str,
    /// Ticket of its claim.
    ticket: u64,
}

impl Claims {
    /// Returns an empty table. `is_serial` refuses two operations at once, from two threads, whatever they use; copies
    /// from and to the host are not operations.
    pub fn new(is_serial: bool) -> Claims {
        let under_way = UnderWay { claimed: Vec::with_capacity(SPANS), ticket: 0 };
        Claims { under_way: Mutex::new(under_way), scratch: Vec::new(), is_serial, away: None }
    }

    /// Reserves a region as the device's own scratch.
    pub fn reserve(&mut self, scratch: Buf<'_>) {
        let span = Span::of(scratch, Access::Write, "scratch");
        self.scratch.push(span.start..span.end);
    }

    /// Makes `away` bring what operations read of other hosts' ranks, before they run.
    pub fn read_by(&mut self, away: Arc<dyn Away>) {
        self.away = Some(away);
    }

    /// Brings all of these buffers that are on ranks of other hosts at once; an operation would bring only its own.
    pub fn prefetch<'a>(&self, bufs: &mut dyn Iterator<Item = Buf<'a>>) {
        let Some(away) = &self.away else { return };
        let span = |buf: Buf<'a>| Span::of(buf, Access::Read, "what is prefetched").of_rank();
        away.bring(&bufs.filter_map(span).collect::<Vec<_>>());
    }

    /// Returns what has kept other ranks' memory from arriving.
    ///
    /// Errors: `rank-lost`, `ranks-unreachable`.
    pub fn check(&self) -> Result<()> {
        self.away.as_ref().map_or(Ok(()), |away| away.check())
    }

    /// Claims what `operation` uses, which `note` lists, until the claim is dropped.
    ///
    /// Panics if an output overlaps another operand, the device's scratch, or what another thread's operation uses.
    pub(crate) fn claim(
        &self,
        operation: &'static str,
        is_operation: bool,
        note: impl FnOnce(&mut Uses<'_>),
    ) -> Claim<'_> {
        let mut under_way = self.lock();
        let UnderWay { claimed, ticket } = &mut *under_way;
        *ticket += 1;
        let (ticket, first) = (*ticket, claimed.len());
        let other = claimed.iter().find(|c| is_operation && c.span.end == SERIAL.end);
        let other = other.map(|c| format!("{operation}: {} is under way on another thread", c.operation));
        let mut uses = Uses { claimed, first, operation, ticket };
        note(&mut uses);
        if let Some(refusal) = uses.overlap(&self.scratch).or(other) {
            claimed.truncate(first);
            drop(under_way);
            panic!("{refusal}");
        }
        if is_operation && self.is_serial {
            uses.push(SERIAL);
        }
        let wanted = self.away.as_ref().map(|away| {
            let spans = claimed[first..].iter().filter_map(|claimed| claimed.span.of_rank());
            (away, spans.collect::<Vec<_>>())
        });
        drop(under_way);
        if let Some((away, wanted)) = wanted.filter(|(_, wanted)| !wanted.is_empty()) {
            away.bring(&wanted);
        }
        Claim { claims: self, ticket }
    }

    /// Claims buffers that a device copies to the host.
    pub fn fetch(&self, bufs: &[Buf<'_>]) -> Claim<'_> {
        self.claim("fetch", false, |uses| {
            bufs.iter().for_each(|buf| uses.note(*buf, Access::Read, "a result"))
        })
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // Nothing under the lock panics.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks that a serial device runs an operation; no buffer ends here.
const SERIAL: Span = Span { start: u64::MAX, end: u64::MAX, writes: false, name: "" };

/// Proof that bytes are claimed; only `Claims` makes it.
#[derive(Debug)]
pub struct Claim<'c> {
    claims: &'c Claims,
    ticket: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let claimed = &mut self.claims.lock().claimed;
        if let Some(last) = claimed.iter().rposition(|c| c.ticket == self.ticket) {
            let before = claimed[..last].iter().rposition(|c| c.ticket != self.ticket);
            claimed.drain(before.map_or(0, |i| i + 1)..=last);
        }
    }
}

/// Under loom: every order in which threads take and drop claims.
#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use plimsoll_base::{DType, PhaseSet};
    use plimsoll_memory::{Arena, ArenaMap, Layout, Pool};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// More than all readers.
    const WRITER: usize = 100;

    /// Uses a buffer in a thread for each access, if its claim is granted, and returns how many were.
    fn used(is_serial: bool, accesses: &'static [Access]) -> usize {
        let shared = Arc::new((Claims::new(is_serial), AtomicUsize::new(0)));
        let threads = accesses.iter().map(|&access| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                let mut layout = Layout::new();
                layout
                    .arena("all", "test", Pool::Host, PhaseSet::RESIDENT, &[8], DType::F32)
                    .expect("a small region");
                let mut arena = Arena::new(ArenaMap::new(&layout, 0));
                let (resident, _) = arena.split();
                let (claims, users) = &*shared;
                let note = |uses: &mut Uses<'_>| uses.note(resident.buf("all"), access, "x");
                let Ok(claim) = catch_unwind(AssertUnwindSafe(|| claims.claim("an operation", true, note)))
                else {
                    return 0;
                };
                let own = if access == Access::Read { 1 } else { WRITER };
                let others = users.fetch_add(own, Ordering::Relaxed);
                assert!(others == 0 || others.max(own) < WRITER, "{own} and {others} use the bytes");
                users.fetch_sub(own, Ordering::Relaxed);
                drop(claim);
                1
            })
        });
        let threads: Vec<_> = threads.collect();
        let granted = threads.into_iter().map(|thread| thread.join().expect("it caught its panic")).sum();
        assert!(shared.0.lock().claimed.is_empty(), "claims that were dropped or refused leave nothing");
        granted
    }

    #[test]
    fn bytes_that_one_writes_no_other_uses() {
        use Access::{Read, Write, WriteAny};
        for accesses in [&[Write, WriteAny][..], &[Write, Read], &[Read, Read]] {
            loom::model(move || {
                let granted = used(false, accesses);
                assert!(
                    granted >= 1 && (granted == 2 || accesses != [Read, Read]),
                    "{granted} of {accesses:?}"
                );
            });
        }
    }

    #[test]
    fn a_serial_device_grants_one_operation_at_a_time() {
        loom::model(|| assert!(used(true, &[Access::Read, Access::Read]) >= 1));
    }

    #[test]
    fn three_threads() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| assert!(used(false, &[Access::Read, Access::Write, Access::Read]) >= 1));
    }
}
