//! The arenas of other ranks, each on a card of its own: memory that a process opens by a handle (CUDA IPC) and its card reads
//! over the link between cards, without a library and without memory of its own.

use super::CudaDevice;
use super::driver::words;
use cudarc::driver::sys;
use plimsoll_base::{Error, Result};
use plimsoll_memory::{Buf, Home};

/// Bytes of a handle of CUDA IPC.
const HANDLE_BYTES: usize = 64;
/// Bytes of a window: process, address, handle.
const WINDOW_BYTES: usize = 16 + HANDLE_BYTES;

/// An arena of another rank, as this process reaches it.
#[derive(Debug)]
pub(crate) struct Peer {
    address: u64,
    /// Whether it was opened by a handle; ranks of one process have each other's addresses.
    is_opened: bool,
}

impl CudaDevice {
    /// Returns what other ranks need to read this arena, for `join`.
    ///
    /// Errors: `ranks-window` with the words of the driver that refuses.
    pub fn window(&self) -> Result<Vec<u8>> {
        self.gpu.bind();
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: the arena is one allocation of this process, the handle a valid place.
        let got = unsafe { sys::cuIpcGetMemHandle(&mut handle, self.arena) };
        got.result().map_err(|err| refused("this card's memory", "cuIpcGetMemHandle", &words(err)))?;
        let process = u64::from(std::process::id());
        let handle = handle.reserved.map(|byte| byte as u8);
        Ok([&process.to_le_bytes()[..], &self.arena.to_le_bytes(), &handle].concat())
    }

    /// Opens the arenas of the other ranks by their windows, by rank; they have this one's layout and live as long.
    ///
    /// Errors: `ranks-window` with the words of the driver that refuses.
    pub fn join(&mut self, rank: usize, windows: &[Vec<u8>]) -> Result<()> {
        self.gpu.bind();
        for (of, window) in windows.iter().enumerate() {
            let peer = if of == rank { None } else { Some(Peer::open(of, window)?) };
            self.peers.push(peer);
        }
        Ok(())
    }

    /// The address of bytes of another rank's arena.
    pub(crate) fn address_there(&self, buf: Buf<'_>) -> u64 {
        let Home::Rank(rank) = buf.home() else { unreachable!("a buffer of another rank") };
        let peer = self.peers.get(usize::from(rank)).and_then(Option::as_ref);
        peer.expect("`join` comes before other ranks' buffers").address + buf.offset()
    }
}

impl Peer {
    fn open(rank: usize, window: &[u8]) -> Result<Peer> {
        let whose = format!("the card's memory of rank {rank}");
        let (words_of, bytes) = window.split_at_checked(16).unwrap_or((&[], &[]));
        let (Some([process, address]), Ok(handle)) =
            (words_of.as_chunks::<8>().0.first_chunk::<2>(), <[u8; HANDLE_BYTES]>::try_from(bytes))
        else {
            return Err(refused(
                &whose,
                "its window",
                &format!("{} bytes, not {WINDOW_BYTES}", window.len()),
            ));
        };
        let [process, address] = [*process, *address].map(u64::from_le_bytes);
        if process == u64::from(std::process::id()) {
            return Ok(Peer { address, is_opened: false });
        }
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
        let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: a valid place for an address; a handle that names nothing is refused by the driver.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, lazily) };
        opened.result().map_err(|err| refused(&whose, "cuIpcOpenMemHandle", &words(err)))?;
        Ok(Peer { address, is_opened: true })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.is_opened {
            // SAFETY: opened in `open`, closed once; the device that owned this has waited for its stream.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}

fn refused(what: &str, call: &str, words: &str) -> Error {
    Error::new("ranks-window", format!("{what} cannot be shared: {call}: {words}"))
        .hint("cards must reach each other (nvidia-smi topo -p2p r); MIG parts do not")
        .hint("containers need the host's processes and memory: --pid=host --ipc=host, or one container for all ranks")
}
