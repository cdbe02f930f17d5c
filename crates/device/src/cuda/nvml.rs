//! What is free on the card, without opening it: NVML, the driver's own monitor.

use super::driver;
use cudarc::driver::result;
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

/// Free bytes of the first visible card, and where that was read; `None` without a card.
///
/// Without NVML it is the card's whole memory: what others hold is then not known before the start.
pub fn free_memory() -> Option<(Bytes, String)> {
    let (device, info) = driver::first_device().ok()?;
    let uuid = result::device::get_uuid(device).ok().map(|uuid| uuid.bytes.map(|b| b as u8));
    match uuid.and_then(|uuid| ask(&uuid_text(&uuid))) {
        Some(memory) => Some((Bytes(memory.free), format!("free on {}, by NVML", info.name))),
        None => Some((info.total, format!("all memory of {}", info.name))),
    }
}

/// `GPU-` and the bytes in groups of 4, 2, 2, 2, 6.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!("GPU-{}-{}-{}-{}-{}", part(0, 4), part(4, 6), part(6, 8), part(8, 10), part(10, 16))
}

fn ask(uuid: &str) -> Option<Memory> {
    // SAFETY: NVML is made to be opened so; each function has the signature of its header, and pointers are to values
    // of the sizes that it writes.
    unsafe {
        let library = Library::new("libnvidia-ml.so.1").ok()?;
        let start: Symbol<unsafe extern "C" fn() -> i32> = library.get(b"nvmlInit_v2\0").ok()?;
        let stop: Symbol<unsafe extern "C" fn() -> i32> = library.get(b"nvmlShutdown\0").ok()?;
        let find: Symbol<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> i32> =
            library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
        let memory: Symbol<unsafe extern "C" fn(*mut c_void, *mut Memory) -> i32> =
            library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
        if start() != 0 {
            return None;
        }
        let (mut handle, mut found) = (std::ptr::null_mut(), Memory::default());
        let name = CString::new(uuid).ok()?;
        let read = find(name.as_ptr(), &mut handle) == 0 && memory(handle, &mut found) == 0;
        stop();
        read.then_some(found)
    }
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
