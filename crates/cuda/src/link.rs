//! A card that only measures, before a run, what NCCL passes between it and the cards of other hosts.

use super::bindings::NcclId;
use super::driver::{Gpu, failed, first_device};
use super::nccl::Cards;
use super::{cards, nccl_id};
use cudarc::driver::sys;
use plimsoll_base::Result;

/// A card that NCCL connects with those of all ranks, and two buffers of it. It has no kernel and no arena.
#[derive(Debug)]
pub struct CardLink {
    network: Cards,
    buffers: sys::CUdeviceptr,
    bytes: u64,
    gpu: Gpu,
}

impl CardLink {
    /// Opens the card with this UUID, and connects it with the cards of all ranks, which must call it together. `bytes`: the most that it
    /// sends or receives at once.
    ///
    /// Errors: those of `probe`; `cuda-out-of-memory`, `cuda-failed`, `cuda-library-missing`, `ranks-nccl`.
    pub fn open(uuid: &str, name: &[u8], rank: usize, ranks: usize, bytes: u64) -> Result<CardLink> {
        let (first, info) = first_device()?;
        let (gpu, _) = Gpu::on(cards::device_of(uuid).unwrap_or(first), info)?;
        let mut id = NcclId([0; 128]);
        id.0.iter_mut().zip(name).for_each(|(to, byte)| *to = *byte);
        let network = Cards::open(&gpu, id, rank, vec![true; ranks])?;
        let buffers = gpu.allocate("two buffers to measure with", 2 * bytes)?;
        Ok(CardLink { network, buffers, bytes, gpu })
    }

    /// Makes the name under which all ranks meet.
    ///
    /// Errors: `cuda-library-missing`, `ranks-nccl`.
    pub fn name() -> Result<Vec<u8>> {
        nccl_id().map(|id| id.0.to_vec())
    }

    /// Sends `given` bytes to the card of `rank`, receives `taken` of it, and waits for both.
    ///
    /// Errors: `ranks-nccl`, `cuda-failed`.
    pub fn exchange(&self, rank: usize, given: u64, taken: u64) -> Result<()> {
        assert!(given.max(taken) <= self.bytes, "the length of a buffer");
        let part = |address: u64, bytes: u64| (bytes > 0).then_some((address, bytes, rank)).into_iter();
        let (from, to) = (self.buffers, self.buffers + self.bytes);
        self.gpu.bind();
        self.network.exchange(self.gpu.stream, part(to, taken), part(from, given))?;
        self.gpu.wait().map_err(|err| failed("an exchange between cards", err))?;
        self.network.failed()
    }
}

impl Drop for CardLink {
    fn drop(&mut self) {
        self.gpu.free(self.buffers);
    }
}
