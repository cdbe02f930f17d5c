//! A card that only measures, before a run, the rate of NCCL between it and the cards of other hosts.

use super::bindings::NcclId;
use super::cards;
use super::driver::{Gpu, failed, first_device};
use super::nccl::Cards;
use cudarc::driver::sys;
use plimsoll_base::Result;

/// A card that NCCL connects with those of all ranks, and two buffers in it. It has no kernel and no arena.
#[derive(Debug)]
pub struct CardLink {
    // Fields are dropped in their order: NCCL ends before the buffers do.
    network: Cards,
    buffers: Buffers,
}

/// Two buffers of a card, one after the other, of `bytes` each.
#[derive(Debug)]
struct Buffers {
    gpu: Gpu,
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl CardLink {
    /// Opens the card with this UUID and connects it with the cards of all ranks, which must make this call together.
    /// `bytes`: the most that it sends or receives at once.
    ///
    /// Errors: those of `probe`; `cuda-out-of-memory`, `cuda-failed`, `cuda-library-missing`, `ranks-nccl`.
    pub fn open(uuid: &str, id: NcclId, rank: usize, ranks: usize, bytes: u64) -> Result<CardLink> {
        let (first, info) = first_device()?;
        let (gpu, _) = Gpu::on(cards::device_of(uuid).unwrap_or(first), info)?;
        let address = gpu.allocate("two buffers to measure with", 2 * bytes)?;
        let buffers = Buffers { gpu, address, bytes };
        let network = Cards::open(&buffers.gpu, id, rank, vec![true; ranks])?;
        Ok(CardLink { network, buffers })
    }

    /// Sends `given` bytes to the card of `rank`, receives `taken` bytes from it, and waits for both.
    ///
    /// Errors: `ranks-nccl`, `cuda-failed`.
    pub fn exchange(&self, rank: usize, given: u64, taken: u64) -> Result<()> {
        let Buffers { ref gpu, address, bytes } = self.buffers;
        assert!(given.max(taken) <= bytes, "the length of a buffer");
        let part = |address: u64, bytes: u64| (bytes > 0).then_some((address, bytes, rank)).into_iter();
        gpu.bind();
        self.network.exchange(gpu.stream, part(address + bytes, taken), part(address, given))?;
        gpu.wait().map_err(|err| failed("an exchange between cards", err))?;
        self.network.failed()
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.gpu.free(self.address);
    }
}
