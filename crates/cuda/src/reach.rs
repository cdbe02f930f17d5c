//! A device among ranks of other hosts: it copies what has arrived from them, and shows its own arena.

use super::CudaDevice;
use super::driver::{Gpu, Mark, Pinned};
use super::far::{Far, PART_BYTES, SHOWN_BYTES, ShownArena, Staging, lock};
use cudarc::driver::{result, sys};
use plimsoll_base::Result;
use plimsoll_device::Away;
use plimsoll_memory::{Buf, Home, Mapping};
use std::sync::{Arc, Mutex};

impl CudaDevice {
    /// Takes the copies of other hosts' arenas, by rank, and `away`, which brings what operations read into them.
    ///
    /// Errors: `host-allocation-failed`, `cuda-failed`.
    pub fn join_far(&mut self, views: Vec<Option<Mapping>>, away: Arc<dyn Away>) -> Result<()> {
        let (part, mark) = (|| Pinned::new(&self.gpu, PART_BYTES), || Mark::new(&self.gpu));
        let staging = Staging { parts: [part()?, part()?], taken: [mark()?, mark()?], turn: 0 };
        self.far = Some(Far { views, staging: Mutex::new(staging) });
        self.claims.read_by(away);
        Ok(())
    }

    /// Returns a view of this arena for a thread that answers ranks of other hosts.
    ///
    /// Errors: `cuda-failed`, `host-allocation-failed`.
    pub fn shown(&mut self) -> Result<ShownArena> {
        let (gpu, _) = Gpu::open()?;
        let memory = Pinned::new(&gpu, SHOWN_BYTES)?;
        let arena = self.shown.get_or_insert_with(|| Arc::new(Mutex::new(Some(self.arena))));
        Ok(ShownArena { arena: Arc::clone(arena), bytes: self.arena_bytes, memory, gpu })
    }

    /// Returns where in host memory the copy of a buffer of another host's rank is; `None` for other buffers.
    pub(crate) fn far_away(&self, buf: Buf<'_>) -> Option<*const u8> {
        let (Home::Rank(rank), Some(far)) = (buf.home(), &self.far) else { return None };
        let view = far.views.get(usize::from(rank))?.as_ref()?;
        let end = buf.offset() + buf.bytes();
        assert!(end <= view.len() as u64, "bytes {}..{end} of {} of rank {rank}", buf.offset(), view.len());
        Some(view.base().cast_const().wrapping_add(buf.offset() as usize))
    }

    /// Copies bytes from another host onto this card, on a stream. The source may be overwritten once it returns.
    pub(crate) fn copy_far(&self, mut from: *const u8, mut to: u64, bytes: u64, stream: sys::CUstream) {
        let far = self.far.as_ref().expect("a buffer of another host");
        let mut staging = lock(&far.staging);
        self.gpu.bind();
        let mut left = bytes as usize;
        while left > 0 && !self.has_failed() {
            let turn = staging.turn % 2;
            staging.turn += 1;
            self.keep(staging.taken[turn].wait(), "copying from another host");
            let part = staging.parts[turn].bytes();
            let len = left.min(part.len());
            // SAFETY: `from` has `left` bytes, brought and not written until ranks meet; this process owns the part.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), len) };
            // SAFETY: `to` was checked to lie in the arena; the part is not written before its mark has passed.
            let sent = unsafe { result::memcpy_htod_async(to, &part[..len], stream) };
            self.keep(sent, "copying from another host");
            self.record(&staging.taken[turn], stream);
            (from, to, left) = (from.wrapping_add(len), to + len as u64, left - len);
        }
    }

    /// Stops other hosts from reading the arena from here on: it is about to be freed.
    pub(crate) fn hide(&self) {
        if let Some(shown) = &self.shown {
            *lock(shown) = None;
        }
    }
}
