//! The trait that a device crate implements. Callers use `Device`, whose methods first claim the bytes of an operation.

use crate::claims::{Claim, Claims};
use crate::profile::Timed;
use crate::{Coded, Layouts, Matrix, MatrixLayout, Op, Run, SamplerNoise};
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

    /// Returns the host threads that operations run on; 1 if they run elsewhere.
    fn threads(&self) -> usize {
        1
    }

    /// Returns the bf16 FLOP/s of products: on the CPU measured for about `seconds`, on a card by its kind.
    fn peak_flops(&self, seconds: f64) -> f64;

    /// Returns who holds the device's own memory; `None` where that is the host's.
    fn card_memory(&self) -> Option<CardMemory> {
        None
    }

    /// Returns the kernels since the last call, longest first; none unless opened for profiling.
    fn take_profile(&self) -> Vec<Timed> {
        Vec::new()
    }

    /// Makes RMS norms sum in another order, so the exactness test can prove that it detects a difference.
    fn perturb_norms(&self, on: bool);

    /// Puts a difference between what sampler and trainer read, for `bench mismatch`; `None` takes it away.
    ///
    /// The sampler may leave its rows with the noise.
    fn set_sampler_noise(&self, noise: Option<SamplerNoise>);

    fn claims(&self) -> &Claims;

    /// Runs an operation, or queues it.
    fn launch(&self, op: Checked<'_, '_>);

    /// Returns zeroed host bytes from which `write_bytes` copies fast: page-locked where that helps the device.
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
    fn get_stored(&self, claim: &Claim<'_>, src: Matrix<'_>, first_row: usize, dst: &mut [u8]);
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
    /// Errors: those of the device; on the CPU `rank-lost` and `ranks-unreachable`, from reading ranks on other hosts.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Runs two sequences of operations, in parallel where the device can. Neither may write what the other uses.
    fn both(&self, a: &(dyn Fn() + Sync), b: &(dyn Fn() + Sync)) {
        a();
        b();
    }

    /// Returns the means to fetch results while later operations run; `None` where operations end before they return.
    fn pipeline(&self) -> Option<&dyn Pipeline> {
        None
    }

    /// Returns the means to exchange with other ranks while later operations run; `None` where ranks read each other's
    /// memory in place, after operations have ended.
    fn aside(&self) -> Option<&dyn Aside> {
        None
    }

    /// Returns the exchange with ranks of other hosts that both sides call; `None` where a rank reads by itself.
    fn trade(&self) -> Option<&dyn Trade> {
        None
    }

    /// The library that exchanges with other hosts; `None` without one.
    fn network(&self) -> Option<Network> {
        None
    }

    /// Frees the slots that copies arrive in: copies into them start after the operations so far.
    fn offload_begin(&self);
    /// Makes later operations wait for the copies of the last `offload_in` of the slot.
    fn offload_wait(&self, slot: usize);
    fn bring<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>);
    fn send_back<'a, 'c>(&self, slot: usize, copies: &mut dyn Iterator<Item = Transfer<'a, 'c>>);
}

/// Work in parallel to the operations, on results of other ranks. All ranks call the same methods in the same order.
pub trait Aside {
    /// Marks the operations so far, for all ranks; within `run`, those put aside. A mark may be set again once all
    /// ranks have called `run` for the next turn.
    fn mark(&self, turn: usize);
    /// Puts `ops` aside: they start after what came before every rank's mark of this turn, and after what was put aside
    /// earlier. Every rank must have set its mark.
    fn run(&self, turn: usize, ops: &mut dyn FnMut());
    /// Makes later operations wait for what all ranks put aside in `turn`. Every rank must have set its mark of the
    /// next turn, and no rank one of a turn after `turn + 2`.
    fn wait(&self, turn: usize);
    /// Returns the seconds that operations put aside took since the last call, by the device's clock. Waits for them.
    fn seconds(&self) -> f64;
}

/// A library by which a device exchanges with other hosts.
#[derive(Clone, Debug)]
pub struct Network {
    /// Name and version, for display.
    pub name: String,
    /// Memory it has taken on the card.
    pub card: Bytes,
    /// Memory it has taken on the host, by kind of page.
    pub host: Rss,
}

/// An exchange in which ranks give what others take. All ranks make the same calls.
pub trait Trade {
    /// True if memory of `rank` comes by this exchange.
    fn is_with(&self, rank: usize) -> bool;
    /// Copies buffers of other ranks here and gives others this rank's. Two ranks list their copies in one order.
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
