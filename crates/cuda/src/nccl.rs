//! Exchange between cards of different hosts by NCCL, if available: sends and receives alone, never its sums, whose
//! order may depend on sizes, channels and ranks.

use super::bindings::{Comm, Nccl, NcclId, Settings};
use super::driver::Gpu;
use cudarc::driver::sys;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_device::Network;
use plimsoll_memory::host::Rss;
use std::ffi::{CStr, c_char, c_int, c_void};

/// The oldest version that has the settings below.
const VERSION_MIN: i32 = 21_800;
/// Blocks of a copying kernel: they take multiprocessors from the backward pass, and memory.
const CTAS_MAX: c_int = 4;
/// NCCL's card memory: 444 to 461 MiB measured over sockets on an H100 with 2.28.3, with one other rank or three.
const CARD_BYTES: Bytes = Bytes::mib(480);
/// NCCL's host memory: 396 MiB were measured on two H100 of two hosts.
const HOST_BYTES: Bytes = Bytes::mib(416);
/// NCCL's number for the type of bytes.
const CHAR: c_int = 0;
/// NCCL's number for a setting that is not set.
const UNSET: c_int = c_int::MIN;

/// The ranks of a run, connected by NCCL.
#[derive(Debug)]
pub(crate) struct Cards {
    calls: &'static Nccl,
    comm: Comm,
    /// True for ranks whose cards are reached by NCCL: those of other hosts.
    pub(crate) far: Vec<bool>,
    pub(crate) taken: Network,
}

// SAFETY: a communicator may be used from any thread, by one at a time; operations of a card are serial.
unsafe impl Send for Cards {}
// SAFETY: shared references read it alone, but for calls that serial operations make.
unsafe impl Sync for Cards {}

/// Returns NCCL's version for display: `2.28.9`.
///
/// Errors: `cuda-library-missing`; `ranks-nccl` where it is too old.
pub fn nccl_version() -> Result<String> {
    version_of(Nccl::open()?).map(words_of)
}

/// Card and host memory that NCCL takes if there are cards of other hosts.
pub const NCCL_BYTES: (Bytes, Bytes) = (CARD_BYTES, HOST_BYTES);

/// Makes the id by which all ranks meet.
///
/// Errors: `cuda-library-missing`, `ranks-nccl`.
pub fn nccl_id() -> Result<NcclId> {
    let calls = Nccl::open()?;
    let mut id = NcclId([0; 128]);
    // SAFETY: a valid place for 128 bytes.
    check(calls, None, "ncclGetUniqueId", unsafe { (calls.ncclGetUniqueId)(&mut id) })?;
    Ok(id)
}

fn version_of(calls: &Nccl) -> Result<i32> {
    let mut version = 0;
    // SAFETY: a valid place for a number.
    check(calls, None, "ncclGetVersion", unsafe { (calls.ncclGetVersion)(&mut version) })?;
    if version >= VERSION_MIN {
        Ok(version)
    } else {
        Err(Error::new("ranks-nccl", format!("NCCL is {}, needed is 2.18", words_of(version)))
            .hint("pip install nvidia-nccl-cu13, or set run.exchange = \"sockets\""))
    }
}

/// Formats a version: 22809 is 2.28.9.
fn words_of(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn check(calls: &Nccl, comm: Option<Comm>, call: &str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: NCCL returns text that it owns, or nothing.
    let text = |text: *const c_char| unsafe {
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    // SAFETY: any code has words.
    let words = text(unsafe { (calls.ncclGetErrorString)(code) }).unwrap_or_default();
    let error = Error::new("ranks-nccl", format!("{call}: {words}"));
    // SAFETY: a communicator that lives, or none.
    let last = text(unsafe { (calls.ncclGetLastError)(comm.unwrap_or(std::ptr::null_mut())) });
    let error = last
        .filter(|last| !last.trim().is_empty())
        .into_iter()
        .fold(error, |error, last| error.fact(last.trim().to_string()));
    Err(error
        .hint("NCCL_DEBUG=INFO shows what it tries; NCCL_SOCKET_IFNAME names the interface")
        .hint("or set run.exchange = \"sockets\", which needs no library"))
}

impl Cards {
    /// Connects all ranks: each must call it. NCCL takes the memory it needs here.
    pub(crate) fn open(gpu: &Gpu, id: NcclId, rank: usize, far: Vec<bool>) -> Result<Cards> {
        gpu.bind();
        let calls = Nccl::open()?;
        let version = version_of(calls)?;
        let mut settings = Settings {
            size: size_of::<Settings>(),
            magic: 0xcafe_beef,
            version: VERSION_MIN as u32,
            blocking: 1,
            cga_cluster_size: UNSET,
            min_ctas: 1,
            max_ctas: CTAS_MAX,
            network: std::ptr::null(),
            split_share: 0,
        };
        let mut comm: Comm = std::ptr::null_mut();
        // SAFETY: the settings have the layout that their version names; a valid place for a communicator.
        let made = unsafe {
            (calls.ncclCommInitRankConfig)(&mut comm, far.len() as c_int, id, rank as c_int, &mut settings)
        };
        check(calls, None, "ncclCommInitRankConfig", made)?;
        let name = format!("NCCL {}", words_of(version));
        Ok(Cards { calls, comm, far, taken: Network { name, card: Bytes(0), host: Rss::default() } })
    }

    /// Receives and sends as one operation of a stream: (address, bytes, rank) each.
    pub(crate) fn exchange(
        &self,
        stream: sys::CUstream,
        taken: impl Iterator<Item = (u64, u64, usize)>,
        given: impl Iterator<Item = (u64, u64, usize)>,
    ) -> Result<()> {
        let Cards { calls, comm, .. } = *self;
        let all = given.map(|one| (one, true)).chain(taken.map(|one| (one, false)));
        // SAFETY: this thread begins and ends the group. Addresses and lengths were checked to be in the arena, or in a
        // link's buffers, which outlive the communicator; claims keep others off the arena, and a link has none.
        unsafe {
            check(calls, Some(comm), "ncclGroupStart", (calls.ncclGroupStart)())?;
            for ((address, bytes, rank), is_given) in all {
                let (address, bytes, rank) = (address as *mut c_void, bytes as usize, rank as c_int);
                let (call, code) = if is_given {
                    ("ncclSend", (calls.ncclSend)(address, bytes, CHAR, rank, comm, stream))
                } else {
                    ("ncclRecv", (calls.ncclRecv)(address, bytes, CHAR, rank, comm, stream))
                };
                check(calls, Some(comm), call, code)?;
            }
            check(calls, Some(comm), "ncclGroupEnd", (calls.ncclGroupEnd)())
        }
    }

    /// Returns errors that NCCL's own threads have met meanwhile.
    pub(crate) fn failed(&self) -> Result<()> {
        let mut code = 0;
        // SAFETY: the communicator lives; a valid place for a code.
        let asked = unsafe { (self.calls.ncclCommGetAsyncError)(self.comm, &mut code) };
        check(self.calls, Some(self.comm), "ncclCommGetAsyncError", asked)?;
        check(self.calls, Some(self.comm), "an exchange between hosts", code)
    }
}

impl Drop for Cards {
    fn drop(&mut self) {
        // Without notice to the others: they may be gone.
        // SAFETY: made in `open`, ended once; the device that owned it has waited for its streams.
        let _ = unsafe { (self.calls.ncclCommAbort)(self.comm) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_written_as_nvidia_does() {
        assert_eq!((words_of(22_809), words_of(21_800)), ("2.28.9".to_string(), "2.18.0".to_string()));
    }

    #[test]
    fn settings_have_the_layout_of_their_version() {
        assert_eq!((size_of::<Settings>(), size_of::<NcclId>()), (48, 128));
        assert_eq!(std::mem::offset_of!(Settings, network), 32);
    }
}
