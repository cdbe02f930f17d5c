//! Finds out by trying whether memory of the card can be handed to another process. One process offers two regions that
//! begin with a mark, another opens and reads them: plain memory by a handle, as CUDA IPC does, and mapped memory
//! (PyTorch's expandable segments) by a file descriptor that the taker fetches from the offerer.

use super::driver::{Gpu, words};
use cudarc::driver::{result, sys};
use plimsoll_base::{Error, Result};
use plimsoll_device::{HandOver, Way};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// First bytes of both regions.
const MARK: [u8; 16] = *b"the load line of";
/// Bytes of the plain region; the mapped one has as many as the card's pages.
const PLAIN_BYTES: u64 = 2 << 20;
/// Bytes of a handle of CUDA IPC.
const HANDLE_BYTES: usize = 64;

/// Two regions on the card that another process may open during this value's life.
#[derive(Debug)]
pub struct Offer {
    plain: u64,
    handle: std::result::Result<[u8; HANDLE_BYTES], String>,
    mapped: std::result::Result<(Mapped, OwnedFd), String>,
    // Last: memory on the card is freed before the card.
    gpu: Gpu,
}

impl Offer {
    /// Opens the card and takes both regions.
    ///
    /// Errors: those of `probe`; `cuda-out-of-memory`.
    pub fn new() -> Result<Offer> {
        let (gpu, _) = Gpu::open()?;
        let plain = gpu.allocate("a region to hand over", PLAIN_BYTES)?;
        let handle = offer_plain(plain);
        let mapped = offer_mapped();
        Ok(Offer { plain, handle, mapped, gpu })
    }

    /// Returns the line that `take` reads: process, descriptor, bytes and handle, `-` for what could not be offered.
    pub fn line(&self) -> String {
        let handle = match &self.handle {
            Ok(handle) => handle.iter().map(|byte| format!("{byte:02x}")).collect(),
            Err(_) => "-".to_string(),
        };
        let (fd, bytes) = match &self.mapped {
            Ok((mapped, fd)) => (fd.as_raw_fd().to_string(), mapped.bytes),
            Err(_) => ("-".to_string(), 0),
        };
        format!("{} {fd} {bytes} {handle}", std::process::id())
    }

    /// Returns the taker's results, with the reasons for what it was not offered.
    pub fn found(&self, taken: HandOver) -> HandOver {
        HandOver {
            plain: self.handle.as_ref().map_err(String::clone).and(taken.plain),
            mapped: self.mapped.as_ref().map(|_| ()).map_err(String::clone).and(taken.mapped),
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.gpu.free(self.plain);
    }
}

/// Opens what the line of an offer names, in another process than the offerer's.
///
/// Errors: `bad-usage` for a line that is none; those of opening the card.
pub fn take(line: &str) -> Result<HandOver> {
    let not_a_line = || Error::usage("bad-usage", "not the line of an offer: `PID FD BYTES HANDLE`");
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [pid, fd, bytes, handle] = words[..] else { return Err(not_a_line()) };
    let pid = pid.parse().ok().and_then(Pid::from_raw).ok_or_else(not_a_line)?;
    let bytes: usize = bytes.parse().map_err(|_| not_a_line())?;
    let (_gpu, _) = Gpu::open()?;
    let not_offered = || Err("it was not offered".to_string());
    let plain = match handle {
        "-" => not_offered(),
        hex => take_plain(&bytes_of(hex).ok_or_else(not_a_line)?),
    };
    let mapped = match fd {
        "-" => not_offered(),
        fd => take_mapped(pid, fd.parse().map_err(|_| not_a_line())?, bytes),
    };
    Ok(HandOver { plain, mapped })
}

fn bytes_of(hex: &str) -> Option<[u8; HANDLE_BYTES]> {
    let pair = |index: usize| u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..HANDLE_BYTES).map(pair).collect();
    bytes.filter(|_| hex.len() == 2 * HANDLE_BYTES)?.try_into().ok()
}

fn offer_plain(address: u64) -> std::result::Result<[u8; HANDLE_BYTES], String> {
    mark(address)?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the address is of an allocation by this process, the handle a valid place.
    let got = unsafe { sys::cuIpcGetMemHandle(&mut handle, address) };
    called("cuIpcGetMemHandle", got.result())?;
    Ok(handle.reserved.map(|byte| byte as u8))
}

fn take_plain(handle: &[u8; HANDLE_BYTES]) -> Way {
    let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
    let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut address = 0;
    // SAFETY: a valid place for an address; a handle that names nothing is refused by the driver.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, lazily) };
    called("cuIpcOpenMemHandle", opened.result())?;
    let read = is_marked(address);
    // SAFETY: it was opened above, and nothing uses it any more.
    let _ = unsafe { sys::cuIpcCloseMemHandle(address) };
    read
}

fn offer_mapped() -> std::result::Result<(Mapped, OwnedFd), String> {
    let kind = sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: first_card(),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let (mut bytes, mut handle, mut fd) = (0usize, 0, -1i32);
    let least = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: valid places, and properties that are complete.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, least) };
    called("cuMemGetAllocationGranularity", asked.result())?;
    // SAFETY: a valid place, and properties that are complete; `Mapped` releases what is made.
    let made = unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) };
    called("cuMemCreate", made.result())?;
    let mapped = Mapped::new(handle, bytes)?;
    mark(mapped.address)?;
    // SAFETY: the driver writes one int, the descriptor.
    let exported = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0) };
    called("cuMemExportToShareableHandle", exported.result())?;
    // SAFETY: the driver has just opened it for us.
    Ok((mapped, unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn take_mapped(pid: Pid, fd: i32, bytes: usize) -> Way {
    let process =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|e| format!("pidfd_open: {e}"))?;
    let ours = rustix::process::pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())
        .map_err(|e| format!("pidfd_getfd: {e}"))?;
    let kind = sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let mut handle = 0;
    let name = ours.as_raw_fd() as usize as *mut std::ffi::c_void;
    // SAFETY: the driver takes the descriptor as the number in the pointer, and dereferences nothing.
    let imported = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, name, kind) };
    called("cuMemImportFromShareableHandle", imported.result())?;
    is_marked(Mapped::new(handle, bytes)?.address)
}

/// Card memory mapped at its own address.
#[derive(Debug)]
struct Mapped {
    handle: sys::CUmemGenericAllocationHandle,
    address: u64,
    bytes: usize,
    is_mapped: bool,
}

impl Mapped {
    /// Takes the handle over, even if it fails.
    fn new(handle: sys::CUmemGenericAllocationHandle, bytes: usize) -> std::result::Result<Mapped, String> {
        let mut mapped = Mapped { handle, address: 0, bytes, is_mapped: false };
        // SAFETY: a valid place for an address; 0 asks for no particular one.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut mapped.address, bytes, 0, 0, 0) };
        called("cuMemAddressReserve", reserved.result())?;
        // SAFETY: the range was reserved above, as large as the memory.
        called("cuMemMap", unsafe { sys::cuMemMap(mapped.address, bytes, 0, handle, 0) }.result())?;
        mapped.is_mapped = true;
        let access = sys::CUmemAccessDesc {
            location: first_card(),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped, and one description is given.
        let allowed = unsafe { sys::cuMemSetAccess(mapped.address, bytes, &access, 1) };
        called("cuMemSetAccess", allowed.result())?;
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: each is given back once, and only if it was taken; copies into it were synchronous.
        unsafe {
            if self.is_mapped {
                let _ = sys::cuMemUnmap(self.address, self.bytes);
            }
            if self.address != 0 {
                let _ = sys::cuMemAddressFree(self.address, self.bytes);
            }
            let _ = sys::cuMemRelease(self.handle);
        }
    }
}

fn first_card() -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 }
}

fn mark(address: u64) -> Way {
    // SAFETY: both regions are larger than the mark.
    called("writing", unsafe { result::memcpy_htod_sync(address, &MARK) })
}

fn is_marked(address: u64) -> Way {
    let mut read = [0u8; MARK.len()];
    // SAFETY: both regions are larger than the mark.
    called("reading", unsafe { result::memcpy_dtoh_sync(&mut read, address) })?;
    if read == MARK { Ok(()) } else { Err("other bytes were read than were written".into()) }
}

fn called(what: &str, result: std::result::Result<(), result::DriverError>) -> Way {
    result.map_err(|err| format!("{what}: {}", words(err)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_back_and_nothing_else_is() {
        let handle: [u8; HANDLE_BYTES] = std::array::from_fn(|index| (index * 7) as u8);
        let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes_of(&hex), Some(handle));
        for wrong in [&hex[1..], "", "zz", &format!("{hex}00"), &"é".repeat(64)] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_line_that_is_none_is_refused_before_a_card_is_opened() {
        for line in ["", "1 2 3", "x 2 3 -", "0 - 0 - -", "1 - x -"] {
            assert_eq!(take(line).unwrap_err().slug, "bad-usage", "{line}");
        }
    }
}
