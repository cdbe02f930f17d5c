//! The arenas of other ranks, each on its own card: a process opens one by a handle (CUDA IPC), and its card reads it
//! over the link between cards, without a library or memory for it; and the marks of their streams.

use super::aside::MARKS;
use super::driver::{Mark, words};
use cudarc::driver::sys;
use plimsoll_base::{Error, Result};
use std::ffi::c_char;

/// Bytes of a handle of CUDA IPC.
pub(crate) const HANDLE_BYTES: usize = 64;
/// Bytes of an item in a window: its address, and the handle by which another process opens it.
const ITEM_BYTES: usize = 8 + HANDLE_BYTES;
/// Bytes of a window: the process, the arena, the marks.
const WINDOW_BYTES: usize = 8 + (1 + MARKS) * ITEM_BYTES;

/// An arena of another rank, for this process.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: u64,
    pub(crate) marks: [Mark; MARKS],
    /// True if opened by handles; ranks of one process have each other's addresses.
    is_opened: bool,
}

impl Peer {
    pub(crate) fn open(rank: usize, window: &[u8]) -> Result<Peer> {
        let whose = format!("the card's memory of rank {rank}");
        if window.len() != WINDOW_BYTES {
            return Err(refused(
                &whose,
                "its window",
                &format!("{} bytes, not {WINDOW_BYTES}", window.len()),
            ));
        }
        let (process, items) = window.split_at(8);
        let (items, _) = items.as_chunks::<ITEM_BYTES>();
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let handle = |index: usize| -> [c_char; HANDLE_BYTES] {
            std::array::from_fn(|at| items[index][8 + at] as c_char)
        };
        if number(process) == u64::from(std::process::id()) {
            let marks = std::array::from_fn(|mark| Mark(number(&items[1 + mark]) as sys::CUevent));
            return Ok(Peer { address: number(&items[0]), marks, is_opened: false });
        }
        let mut address = 0;
        let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let memory = sys::CUipcMemHandle { reserved: handle(0) };
        // SAFETY: a valid place for an address; a handle that names nothing is refused by the driver.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, memory, lazily) };
        opened.result().map_err(|err| refused(&whose, "cuIpcOpenMemHandle", &words(err)))?;
        let mut peer =
            Peer { address, marks: std::array::from_fn(|_| Mark(std::ptr::null_mut())), is_opened: true };
        for (index, Mark(event)) in peer.marks.iter_mut().enumerate() {
            let handle = sys::CUipcEventHandle { reserved: handle(1 + index) };
            // SAFETY: a valid place for an event; a handle that names nothing is refused by the driver.
            let opened = unsafe { sys::cuIpcOpenEventHandle(event, handle) };
            opened.result().map_err(|err| refused(&whose, "cuIpcOpenEventHandle", &words(err)))?;
        }
        Ok(peer)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.is_opened {
            // SAFETY: opened in `open`, closed once; the device that owned this has waited for its streams.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        } else {
            // They are destroyed by the rank that made them.
            self.marks.iter_mut().for_each(|mark| mark.0 = std::ptr::null_mut());
        }
    }
}

pub(crate) fn refused(what: &str, call: &str, words: &str) -> Error {
    Error::new("ranks-window", format!("{what} cannot be shared: {call}: {words}"))
        .hint("cards must reach each other (nvidia-smi topo -p2p r); MIG parts do not")
        .hint("containers need the host's processes and memory: --pid=host --ipc=host, or one container for all ranks")
}
