//! Free memory of the card without opening it, from NVML, the driver's own monitor.

use super::driver;
use cudarc::driver::{result, sys};
use libloading::os::unix::{Library, Symbol};
use plimsoll_base::Bytes;
use std::ffi::{CString, c_char, c_void};

/// nvmlMemory_t of the library's header.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// nvmlProcessInfo_t of the library's header, for the third version of its list.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: u32,
    used: u64,
    /// The parts of a divided card.
    instances: [u32; 2],
}

/// Maximum processes of a card that are listed: with more, what one of them holds is not known.
const PROCESSES_MAX: usize = 256;

/// Returns the free bytes of the first visible card, and their source; `None` without a card.
///
/// Without NVML, the card's whole memory: what others hold is then not known before the start.
pub fn free_memory() -> Option<(Bytes, String)> {
    let (device, info) = driver::first_device().ok()?;
    match Monitor::open(device).and_then(|monitor| monitor.memory()) {
        Some((free, _)) => Some((free, format!("free on {}, by NVML", info.name))),
        None => Some((info.total, format!("all memory of {}", info.name))),
    }
}

/// Returns a name that no card but the first visible one has; `None` without a card.
pub fn card_name() -> Option<String> {
    driver::first_device().ok().and_then(|(device, _)| uuid_of(device))
}

/// One card as NVML sees it. The driver's `cuMemGetInfo` differs by some MiB: compared numbers come from one source.
#[derive(Debug)]
pub(crate) struct Monitor {
    library: Library,
    handle: *mut c_void,
}

// SAFETY: NVML may be used from any thread, and a handle is a name, not a place that is written.
unsafe impl Send for Monitor {}
// SAFETY: NVML may be used from any thread, and a handle names a card: it is never written through.
unsafe impl Sync for Monitor {}

impl Monitor {
    /// Returns `None` where there is no NVML, or it does not know the card.
    pub(crate) fn open(device: sys::CUdevice) -> Option<Monitor> {
        let name = CString::new(uuid_of(device)?).ok()?;
        // SAFETY: NVML may be loaded at run time; each function has the signature of its header, and pointers are to
        // values of the sizes that it writes.
        unsafe {
            let library = Library::new("libnvidia-ml.so.1").ok()?;
            let start: Symbol<unsafe extern "C" fn() -> i32> = library.get(b"nvmlInit_v2\0").ok()?;
            if start() != 0 {
                return None;
            }
            let mut monitor = Monitor { handle: std::ptr::null_mut(), library };
            let find: Symbol<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> i32> =
                monitor.library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
            let found = find(name.as_ptr(), &mut monitor.handle) == 0;
            found.then_some(monitor)
        }
    }

    /// Returns (free, total) bytes of the card now.
    pub(crate) fn memory(&self) -> Option<(Bytes, Bytes)> {
        let mut found = Memory::default();
        // SAFETY: the function has the signature of NVML's header, and writes one `Memory`; NVML gave the handle.
        unsafe {
            let memory: Symbol<unsafe extern "C" fn(*mut c_void, *mut Memory) -> i32> =
                self.library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            (memory(self.handle, &mut found) == 0).then_some((Bytes(found.free), Bytes(found.total)))
        }
    }

    /// Returns the bytes that this process holds of the card; `None` where NVML does not tell, as in containers that
    /// number their processes themselves.
    pub(crate) fn own(&self) -> Option<Bytes> {
        let (mut found, mut count) = (vec![Process::default(); PROCESSES_MAX], PROCESSES_MAX as u32);
        // SAFETY: the function has the signature of NVML's header, and writes at most `count` entries of `found`; NVML
        // gave the handle.
        let listed = unsafe {
            let list: Symbol<unsafe extern "C" fn(*mut c_void, *mut u32, *mut Process) -> i32> =
                self.library.get(b"nvmlDeviceGetComputeRunningProcesses_v3\0").ok()?;
            list(self.handle, &mut count, found.as_mut_ptr()) == 0
        };
        found.truncate(count as usize);
        let own = found.into_iter().find(|process| process.pid == std::process::id());
        // All ones: not available.
        own.filter(|own| listed && own.used != u64::MAX).map(|own| Bytes(own.used))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: the function has the signature of NVML's header; `open` started the library once for this value.
        unsafe {
            let stop: Result<Symbol<unsafe extern "C" fn() -> i32>, _> = self.library.get(b"nvmlShutdown\0");
            if let Ok(stop) = stop {
                stop();
            }
        }
    }
}

/// Returns a card's name for NVML and for `CUDA_VISIBLE_DEVICES`.
pub(crate) fn uuid_of(device: sys::CUdevice) -> Option<String> {
    Some(uuid_text(&result::device::get_uuid(device).ok()?.bytes.map(|b| b as u8)))
}

/// Returns `GPU-` and the bytes in groups of 4, 2, 2, 2, 6.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_wants_it() {
        let uuid: [u8; 16] = std::array::from_fn(|i| i as u8 + 0xa0);
        assert_eq!(uuid_text(&uuid), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    }
}
