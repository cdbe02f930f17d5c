//! A device as one of several that exchange by NCCL.

use super::CudaDevice;
use super::bindings::NcclId;
use super::nccl::Cards;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Backend, Claim, Network, Trade};
use plimsoll_memory::Buf;
use plimsoll_memory::host::Host;

/// Bytes that every pair of ranks exchanges before the first step, so that NCCL takes its memory then.
const REHEARSED_BYTES: u64 = 1 << 20;

impl CudaDevice {
    /// Connects with the cards of other hosts by NCCL, and exchanges with each of them once. `near`: the ranks of this
    /// host. All ranks must call it; it takes memory of the card, which `NCCL_BYTES` bounds.
    ///
    /// Errors: `cuda-library-missing`, `ranks-nccl`.
    pub fn join_nccl(&mut self, id: NcclId, rank: usize, ranks: usize, near: &[usize]) -> Result<()> {
        let ((before, _), host) = (self.gpu.memory(), Host::this().rss());
        let far: Vec<bool> = (0..ranks).map(|rank| !near.contains(&rank)).collect();
        let mut network = Cards::open(&self.gpu, id, rank, far)?;
        let scratch = self.scratch(2 * REHEARSED_BYTES);
        let peers = |address: u64| {
            let far = network.far.iter().enumerate().filter(|(_, far)| **far);
            far.map(move |(rank, _)| (address, REHEARSED_BYTES, rank)).collect::<Vec<_>>()
        };
        // The data is not used, so all of it arrives in one place.
        let (given, taken) = (peers(scratch), peers(scratch + REHEARSED_BYTES));
        network.exchange(self.gpu.stream, taken.into_iter(), given.into_iter())?;
        self.keep(self.gpu.wait(), "the first exchange between hosts");
        self.has_failed().then(|| Backend::check(self)).transpose()?;
        network.taken.card = Bytes(before.0.saturating_sub(self.gpu.memory().0.0));
        network.taken.host = Host::this().rss().since(host);
        self.network = Some(network);
        Ok(())
    }

    /// Returns NCCL, if this device exchanges with cards of other hosts by it.
    pub(crate) fn nccl(&self) -> Option<Network> {
        self.network.as_ref().map(|network| network.taken.clone())
    }

    /// Returns errors that NCCL's own threads have met.
    pub(crate) fn check_network(&self) -> Result<()> {
        self.network.as_ref().map_or(Ok(()), Cards::failed)
    }
}

impl Trade for CudaDevice {
    fn is_with(&self, rank: usize) -> bool {
        self.network.as_ref().is_some_and(|network| network.far[rank])
    }

    fn trade(&self, _: &Claim<'_>, taken: &[(Buf<'_>, Buf<'_>)], given: &[(usize, Buf<'_>)]) {
        let Some(network) = self.network.as_ref().filter(|_| !self.has_failed()) else { return };
        self.gpu.bind();
        let taken = taken.iter().map(|(from, to)| {
            let rank = from.rank().expect("a buffer of another rank");
            assert_eq!(from.bytes(), to.bytes(), "lengths of a copy");
            (self.address(*to), to.bytes(), rank)
        });
        let given = given.iter().map(|(rank, buf)| (self.address(*buf), buf.bytes(), *rank));
        if let Err(error) = network.exchange(self.stream(), taken, given) {
            self.fail(error);
        }
    }
}
