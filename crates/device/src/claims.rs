//! Which bytes are in use: the one place where operations are kept from overlapping.
//!
//! `Buf` is `Copy` and operations take `&self`, so neither lifetimes nor borrows keep an output off an input or two threads
//! off each other. Claims do, in every build: what an operation writes overlaps nothing else that it or any operation
//! under way on another thread uses. Everything that a device does goes through `Claims::take`.

use plimsoll_memory::Buf;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How an operation uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Written, or read and written.
    Write,
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
/// Buffers of one operation: those of `head_backward` are 14.
const SPANS_MAX: usize = 20;
/// Room for the spans of the operations under way, one a thread: it grows where more threads call at once.
const CLAIMED: usize = 4 * SPANS_MAX;

impl Span {
    fn of(buf: Buf<'_>, access: Access, name: &'static str) -> Span {
        let start = buf.offset() + if buf.is_offloaded() { OFFLOADED } else { 0 };
        let end = start + buf.len() as u64 * buf.dtype().bytes();
        Span { start, end, writes: access == Access::Write, name }
    }

    fn conflicts(&self, other: &Span) -> bool {
        (self.writes || other.writes) && self.start < other.end && other.start < self.end
    }
}

/// The buffers of one operation.
pub struct Uses {
    spans: [Span; SPANS_MAX],
    len: usize,
}

impl Default for Uses {
    fn default() -> Uses {
        Uses { spans: [Span { start: 0, end: 0, writes: false, name: "" }; SPANS_MAX], len: 0 }
    }
}

impl Uses {
    /// Notes a buffer. Empty ones overlap nothing.
    pub fn note(&mut self, buf: Buf<'_>, access: Access, name: &'static str) {
        if !buf.is_empty() {
            self.spans[self.len] = Span::of(buf, access, name);
            self.len += 1;
        }
    }

    /// Permits `output` to be exactly `input`: the operation reads each element before it writes it.
    pub(crate) fn in_place(&mut self, input: Option<Buf<'_>>, output: Option<Buf<'_>>, name: &'static str) {
        if input.is_some() && input == output {
            let spans = &mut self.spans[..self.len];
            let read = spans.iter().position(|s| s.name == name && !s.writes);
            if let Some(read) = read {
                self.len -= 1;
                self.spans[read] = self.spans[self.len];
            }
        }
    }

    fn spans(&self) -> &[Span] {
        &self.spans[..self.len]
    }
}

/// An operand of an operation: notes the buffers that it consists of. Numbers and options are operands without buffers.
pub trait Operand {
    /// `access`: that of the whole operand; one that is read in part and written in part knows its own.
    fn note(&self, access: Access, name: &'static str, uses: &mut Uses);
}

impl Operand for Buf<'_> {
    fn note(&self, access: Access, name: &'static str, uses: &mut Uses) {
        uses.note(*self, access, name);
    }
}

impl<T: Operand> Operand for Option<T> {
    fn note(&self, access: Access, name: &'static str, uses: &mut Uses) {
        if let Some(operand) = self {
            operand.note(access, name, uses);
        }
    }
}

impl<T: Operand> Operand for [T; 2] {
    fn note(&self, access: Access, name: &'static str, uses: &mut Uses) {
        self.iter().for_each(|operand| operand.note(access, name, uses));
    }
}

/// The bytes in use on one device.
#[derive(Debug)]
pub struct Claims {
    under_way: Mutex<UnderWay>,
    /// The device's own part of the arena, which no operand may touch.
    scratch: Option<Range<u64>>,
    /// At most one operation at a time: operations share the scratch.
    is_serial: bool,
}

/// What the operations under way use.
#[derive(Debug)]
struct UnderWay {
    claimed: Vec<Claimed>,
    /// Of the next claim.
    ticket: u64,
}

#[derive(Clone, Copy, Debug)]
struct Claimed {
    span: Span,
    operation: &'static str,
    /// Of the claim that it is a part of.
    ticket: u64,
}

impl Claims {
    /// `is_serial`: two operations at once, from two threads, are refused whatever they use; reading from and writing to the
    /// host is not an operation.
    pub fn new(is_serial: bool) -> Claims {
        let under_way = UnderWay { claimed: Vec::with_capacity(CLAIMED), ticket: 0 };
        Claims { under_way: Mutex::new(under_way), scratch: None, is_serial }
    }

    /// Reserves the device's own scratch.
    pub fn reserve(&mut self, scratch: Buf<'_>) {
        let span = Span::of(scratch, Access::Write, "scratch");
        self.scratch = Some(span.start..span.end);
    }

    /// Claims what `operation` uses until the claim is dropped.
    ///
    /// Panics if an output overlaps another operand, the device's scratch, or what another thread's operation uses.
    pub fn take(&self, operation: &'static str, uses: &Uses) -> Claim<'_> {
        self.claim(operation, uses, false)
    }

    pub(crate) fn claim(&self, operation: &'static str, uses: &Uses, is_operation: bool) -> Claim<'_> {
        let spans = uses.spans();
        for (i, a) in spans.iter().enumerate() {
            if let Some(b) = spans[i + 1..].iter().find(|b| a.conflicts(b)) {
                overlap(operation, a, operation, b, "");
            }
        }
        if let Some(scratch) = &self.scratch
            && let Some(a) = spans.iter().find(|a| a.start < scratch.end && scratch.start < a.end)
        {
            panic!("{operation}: {} overlaps the device's scratch", a.name);
        }
        let mut under_way = self.lock();
        let UnderWay { claimed, ticket } = &mut *under_way;
        *ticket += 1;
        let ticket = *ticket;
        for b in claimed.iter() {
            if let Some(a) = spans.iter().find(|a| a.conflicts(&b.span)) {
                overlap(operation, a, b.operation, &b.span, " under way on another thread");
            }
            let both = is_operation && b.span.end == SERIAL.end;
            assert!(!both, "{operation}: {} is under way on another thread", b.operation);
        }
        claimed.extend(spans.iter().map(|&span| Claimed { span, operation, ticket }));
        if is_operation && self.is_serial {
            claimed.push(Claimed { span: SERIAL, operation, ticket });
        }
        drop(under_way);
        Claim { claims: self, ticket }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // A panic under the lock comes before anything is claimed.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks that a serial device runs an operation; no buffer ends here.
const SERIAL: Span = Span { start: u64::MAX, end: u64::MAX, writes: false, name: "" };

#[cold]
fn overlap(operation: &str, a: &Span, other: &str, b: &Span, when: &str) -> ! {
    let (a, b, operation, other) = if a.writes { (a, b, operation, other) } else { (b, a, other, operation) };
    panic!(
        "{operation} writes {} (bytes {}..{}), which overlaps {} (bytes {}..{}) of {other}{when}",
        a.name, a.start, a.end, b.name, b.start, b.end
    );
}

/// Proof that bytes are claimed; only `Claims` makes it.
#[derive(Debug)]
pub struct Claim<'c> {
    claims: &'c Claims,
    ticket: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.lock().claimed.retain(|c| c.ticket != self.ticket);
    }
}
