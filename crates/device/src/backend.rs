//! What a device crate implements. Callers use `Device`, whose methods claim the bytes of each operation first.

use crate::claims::{Claim, Claims};
use crate::{Coded, Layouts, Matrix, MatrixLayout, Op, Run};
use plimsoll_base::{Bytes, Phase, Result};
use plimsoll_memory::host::Rss;
use plimsoll_memory::{Buf, CardMemory};
use std::ops::DerefMut;

/// An operation whose bytes are claimed: its outputs overlap nothing that is in use. Only `Device` makes it.
#[derive(Debug)]
pub struct Checked<'a, 'c> {
    op: Op<'a>,
    _claim: Claim<'c>,
}

impl<'a, 'c> Checked<'a, 'c> {
    pub(crate) fn new(op: Op<'a>, claim: Claim<'c>) -> Checked<'a, 'c> {
        Checked { op, _claim: claim }
    }

    pub fn op(&self) -> Op<'a> {
        self.op
    }
}

/// A copy between the arena and offloaded memory, its bytes claimed until it is dropped.
#[derive(Debug)]
pub struct Transfer<'a, 'c> {
    pub src: Buf<'a>,
    pub dst: Buf<'a>,
    pub(crate) _claim: Claim<'c>,
}

/// Bytes of the host that a device allocated.
pub type HostBytes = Box<dyn DerefMut<Target = [u8]> + Send>;

/// A device. Methods that touch the arena get a `Claim` as proof that nothing else uses the bytes.
pub trait Backend: Sync {
    /// Returns the kind of device, which decides the layout of matrices.
    fn kind(&self) -> &'static Layouts;

    /// Instruction path or compute capability: part of the run's fingerprint.
    fn machine_type(&self) -> String;

    /// Threads of the host that operations run on: 1 where they run elsewhere.
    fn threads(&self) -> usize {
        1
    }

    /// FLOP/s of bf16 products that the device reaches: on the CPU measured for about `seconds`, on a card by its kind.
    fn peak_flops(&self, seconds: f64) -> f64;

    /// Who holds the device's own memory; `None` where that is the host's.
    fn card_memory(&self) -> Option<CardMemory> {
        None
    }

    /// (kernel, launches, seconds) since the last call, the longest first; empty unless opened for profiling.
    fn take_profile(&self) -> Vec<(String, u64, f64)> {
        Vec::new()
    }

    /// Makes RMS norms sum in another order, so the exactness test can prove that it detects a difference.
    fn perturb_norms(&self, on: bool);

    fn claims(&self) -> &Claims;

    /// Runs an operation, or queues it.
    fn launch(&self, op: Checked<'_, '_>);

    /// Zeroed bytes of the host from which `write_bytes` copies fast: page-locked where the device gains by it.
    fn host_bytes(&self, len: usize) -> HostBytes {
        Box::new(vec![0; len])
    }

    fn put_u32(&self, claim: &Claim<'_>, dst: Buf<'_>, src: &[u32]);
    fn get_u32(&self, claim: &Claim<'_>, src: Buf<'_>, dst: &mut [u32]);
    fn put_bytes(&self, claim: &Claim<'_>, dst: Buf<'_>, src: &[u8]);
    fn put_f32(&self, claim: &Claim<'_>, dst: Buf<'_>, src: &[f32]);
    fn get_f32(&self, claim: &Claim<'_>, src: Buf<'_>, dst: &mut [f32]);
    fn put_rows(&self, claim: &Claim<'_>, dst: Matrix<'_>, first_row: usize, src: &[f32]);
    fn get_rows(&self, claim: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [f32]);
    fn get_codes(
        &self,
        claim: &Claim<'_>,
        src: Coded<'_>,
        shape: (usize, MatrixLayout),
        first_row: usize,
        dst: &mut [f32],
    );
    fn get_sum_squares(&self, claim: &Claim<'_>, x: Buf<'_>) -> f64;
    fn get_squares_of(
        &self,
        claim: &Claim<'_>,
        x: Buf<'_>,
        runs: &mut dyn Iterator<Item = Run>,
        each: &mut dyn FnMut(f64),
    );

    /// Waits until all operations and copies have ended.
    fn sync(&self);

    /// Called when a phase begins: the contents of `shared`, the bytes that phases share, are no longer needed.
    ///
    /// A checked device fills them with NaN to expose stale reads, and from then on names handles of other phases.
    fn begin_phase(&self, _phase: Phase, _shared: Buf<'_>) {}

    /// Returns the first failure of an operation since the last check. Operations after it did nothing.
    ///
    /// Errors: those of the device; of the CPU those of reading other hosts' ranks, `rank-lost` and `ranks-unreachable`.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Runs two sequences of operations, in parallel where the device can. Neither may write what the other uses.
    fn both(&self, a: &(dyn Fn() + Sync), b: &(dyn Fn() + Sync)) {
        a();
        b();
    }

    /// How to fetch results while later operations run; `None` where operations have ended when they return.
    fn pipeline(&self) -> Option<&dyn Pipeline> {
        None
    }

    /// How to exchange with other ranks while later operations run; `None` where a rank reads others' memory in place, after they
    /// have ended.
    fn aside(&self) -> Option<&dyn Aside> {
        None
    }

    /// How it exchanges with ranks of other hosts, if each gives what others take; `None` where every rank takes what it needs by itself.
    fn trade(&self) -> Option<&dyn Trade> {
        None
    }

    /// The library that exchanges with other hosts; `None` without one.
    fn network(&self) -> Option<Network> {
        None
    }

    /// Frees the slots that copies arrive in: copies into them start after the operations so far.
    fn offload_begin(&self);
    /// Makes the operations from here on wait for what the last `offload_in` started for the slot.
    fn offload_wait(&self, slot: usize);
    fn bring<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>);
    fn send_back<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>);
}

/// Work next to the operations, on what other ranks have computed. All ranks call the same methods in the same order.
pub trait Aside {
    /// Marks the operations so far, for all ranks; within `run` those that are put aside. A mark may be set again once all ranks have called `run` for the turn after it.
    fn mark(&self, turn: usize);
    /// Puts `ops` aside: they start after what came before every rank's mark of this turn, and after what was put aside before.
    /// Every rank must have set its mark.
    fn run(&self, turn: usize, ops: &mut dyn FnMut());
    /// Makes the operations from here on wait for what all ranks have put aside in a turn. Every rank must have set the mark of the turn after
    /// it, and that of no turn more than two after it.
    fn wait(&self, turn: usize);
}

/// A library by which a device exchanges with other hosts.
#[derive(Clone, Debug)]
pub struct Network {
    /// For people, with its version.
    pub name: String,
    /// What it has taken of the card.
    pub card: Bytes,
    /// What it has taken of the host, by kinds of pages.
    pub host: Rss,
}

/// An exchange in which a rank gives what another takes. All ranks call it alike.
pub trait Trade {
    /// Whether what a rank has comes so.
    fn is_with(&self, rank: usize) -> bool;
    /// Copies buffers of other ranks here, and gives each rank what it copies of this one: for two ranks in the same order on both.
    fn trade(&self, claim: &Claim<'_>, taken: &[(Buf<'_>, Buf<'_>)], given: &[(usize, Buf<'_>)]);
}

/// Running ahead of the host: operations recorded once and replayed, results fetched while the next pass runs.
pub trait Pipeline {
    /// Runs `ops`, or replays what they did on the first call with this key. Everything that their launches depend on
    /// on the host (buffers, lengths, options) must be the same for a key.
    fn replay(&self, key: u64, ops: &mut dyn FnMut());
    /// Starts copying 4-byte elements of some buffers to the host, after the operations so far. `slot` is 0 or 1.
    fn fetch(&self, slot: usize, bufs: &[Buf<'_>]);
    /// Waits for a fetch and hands out its words, buffer after buffer.
    fn fetched(&self, slot: usize, take: &mut dyn FnMut(&[u32]));
}
