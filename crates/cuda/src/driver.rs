//! The card: its context, its one stream, its memory, and messages for the driver's errors.

use super::library::{self, Lib};
use super::nvml::Monitor;
use cudarc::driver::{result, sys};
use plimsoll_base::{Bytes, Error, Result, slugs};
use std::ffi::CStr;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// Minimum CUDA version, in the driver's count: it brought the copy engine's copies (`cuTensorMapEncodeTiled`).
const DRIVER_VERSION_MIN: i32 = 12_000;
/// First version that records overlapping launches into a graph.
const DRIVER_VERSION_OVERLAP: i32 = 12_030;
/// Oldest architecture whose instructions the kernels use: asynchronous copies and bf16 products.
const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// Properties of a card that are read without using it.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuInfo {
    pub name: String,
    /// Compute capability: (9, 0) is Hopper.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// Highest clock of the multiprocessors, Hz.
    pub clock_hz: f64,
    pub total: Bytes,
    /// CUDA version that the driver supports, such as 13000.
    pub driver: i32,
    /// Path of the driver's library, or a name that the loader knows.
    pub driver_library: String,
}

/// A card and a context on it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) info: GpuInfo,
    device: sys::CUdevice,
    monitor: Option<Monitor>,
    context: sys::CUcontext,
    pub(crate) stream: sys::CUstream,
}

// SAFETY: a context may be used from any thread that makes it current, which `Gpu::bind` does.
unsafe impl Send for Gpu {}
// SAFETY: a context may be current on several threads; the driver serialises calls on one stream.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the first visible card and its primary context; also returns the bytes that others held before.
    ///
    /// Errors: `cuda-driver-missing`, `cuda-driver-too-old`, `cuda-no-device`, `cuda-arch-unsupported`, `cuda-failed`.
    pub(crate) fn open() -> Result<(Gpu, Bytes)> {
        let (device, info) = first_device()?;
        Gpu::on(device, info)
    }

    /// Opens the primary context of a card; also returns the bytes that others held before.
    ///
    /// Errors: `cuda-failed`.
    pub(crate) fn on(device: sys::CUdevice, info: GpuInfo) -> Result<(Gpu, Bytes)> {
        let monitor = Monitor::open(device);
        // The context itself takes memory: what others hold is read before it is made.
        let before = monitor.as_ref().and_then(Monitor::memory);
        // SAFETY: the device was given by the driver; the context is released on drop.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed("making a context", e))?;
        // SAFETY: the context was retained above and is released once, here.
        unsafe { result::ctx::set_current(context) }.map_err(|e| failed("making a context", e))?;
        let stream = first_stream().map_err(|e| failed("making a stream", e))?;
        let gpu = Gpu { info, device, monitor, context, stream };
        let (free, total) = before.unwrap_or_else(|| gpu.memory());
        Ok((gpu, Bytes(total.0.saturating_sub(free.0))))
    }

    /// True if blocks of a launch may start before the preceding launch has ended.
    pub(crate) fn overlaps(&self) -> bool {
        self.info.capability >= (9, 0) && self.info.driver >= DRIVER_VERSION_OVERLAP
    }

    /// Makes the context current on this thread.
    pub(crate) fn bind(&self) {
        // SAFETY: the context lives as long as `self`. A failure shows at the call that follows.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }

    /// Waits for everything on the stream.
    pub(crate) fn wait(&self) -> std::result::Result<(), result::DriverError> {
        self.bind();
        // SAFETY: the stream was made in `open` and lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }
    }

    /// Returns the free and total bytes of the card: from NVML, else from the driver.
    pub(crate) fn memory(&self) -> (Bytes, Bytes) {
        if let Some(memory) = self.monitor.as_ref().and_then(Monitor::memory) {
            return memory;
        }
        self.bind();
        let (free, total) = result::mem_get_info().unwrap_or((0, 0));
        (Bytes(free as u64), Bytes(total as u64))
    }

    /// Returns the bytes that this process holds of the card, if that is known.
    pub(crate) fn own_memory(&self) -> Option<Bytes> {
        self.monitor.as_ref().and_then(Monitor::own)
    }

    /// Allocates device memory. If too little is free, the message says how much, and what the memory is for.
    ///
    /// Errors: `cuda-out-of-memory`.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Result<sys::CUdeviceptr> {
        self.bind();
        let (free, total) = self.memory();
        // SAFETY: the memory is written before it is read, as every region of a plan is.
        unsafe { result::malloc_sync(bytes as usize) }.map_err(|err| {
            let bytes = Bytes(bytes);
            out_of_memory(format!(
                "{what} of {bytes}: {free} of the card's {total} are free now: {}",
                words(err)
            ))
        })
    }

    /// Frees what `allocate` gave.
    pub(crate) fn free(&self, address: sys::CUdeviceptr) {
        self.bind();
        // SAFETY: the caller owns the memory, and has waited for what used it.
        let _ = unsafe { result::free_sync(address) };
    }
}

/// Makes the stream of the operations, first in priority where streams compete, as with the exchange between ranks.
fn first_stream() -> std::result::Result<sys::CUstream, result::DriverError> {
    let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: valid places for two numbers and a handle, under the context that `open` has made current.
    unsafe {
        sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest).result()?;
        sys::cuStreamCreateWithPriority(&mut stream, flags, greatest).result()?;
    }
    Ok(stream)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.bind();
        // SAFETY: made by `open`, and nothing runs on them: the device that owned this waited first.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Returns the first card that the driver shows, and its properties. Takes no memory on the card.
///
/// Errors: `cuda-driver-missing`, `cuda-driver-too-old`, `cuda-no-device`, `cuda-arch-unsupported`.
pub(crate) fn first_device() -> Result<(sys::CUdevice, GpuInfo)> {
    let library = library::open(Lib::Driver)?;
    result::init().map_err(|err| {
        Error::new(
            "cuda-no-device",
            format!("the driver ({}) does not start: {}", library.path.display(), words(err)),
        )
        .hint("nvidia-smi shows whether the driver sees a card; or set run.device = \"cpu\"")
    })?;
    let mut driver = 0;
    // SAFETY: `version` is a valid place for an int.
    unsafe { sys::cuDriverGetVersion(&mut driver) }
        .result()
        .map_err(|e| failed("the driver's version", e))?;
    check_driver(driver)?;
    if result::device::get_count().unwrap_or(0) < 1 {
        return Err(Error::new("cuda-no-device", "the driver shows no card")
            .hint("check CUDA_VISIBLE_DEVICES and nvidia-smi, or set run.device = \"cpu\""));
    }
    let device = result::device::get(0).map_err(|e| failed("the first card", e))?;
    let attribute = |which| {
        // SAFETY: the driver enumerated this device itself.
        unsafe { result::device::get_attribute(device, which) }.unwrap_or(0) as u32
    };
    use sys::CUdevice_attribute as A;
    let capability = (
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    );
    let name = result::device::get_name(device).unwrap_or_default();
    check_capability(&name, capability)?;
    // SAFETY: the driver enumerated this device itself.
    let total = unsafe { result::device::total_mem(device) }.unwrap_or(0);
    let info = GpuInfo {
        name,
        capability,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        clock_hz: f64::from(attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)) * 1e3,
        total: Bytes(total as u64),
        driver,
        driver_library: library.path.display().to_string(),
    };
    Ok((device, info))
}

/// Requires a driver of this `version`, in its own count: 13000 for CUDA 13.0.
fn check_driver(version: i32) -> Result<()> {
    if version >= DRIVER_VERSION_MIN {
        return Ok(());
    }
    let dotted = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    let message =
        format!("the driver speaks CUDA {}, needed is {}", dotted(version), dotted(DRIVER_VERSION_MIN));
    Err(Error::new("cuda-driver-too-old", message)
        .hint("update the NVIDIA driver to 525 or later, or set run.device = \"cpu\""))
}

fn check_capability(name: &str, (major, minor): (u32, u32)) -> Result<()> {
    if (major, minor) >= CAPABILITY_MIN {
        return Ok(());
    }
    let message = format!("{name} has compute capability {major}.{minor}, needed is 8.0");
    Err(Error::new("cuda-arch-unsupported", message)
        .hint("use an NVIDIA card of the Ampere generation or later, or set run.device = \"cpu\""))
}

/// Returns the driver's name and words for an error.
pub(crate) fn words(err: result::DriverError) -> String {
    let text = |s: std::result::Result<&CStr, result::DriverError>| {
        s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_else(|_| format!("error {}", err.0 as u32))
    };
    format!("{} ({})", text(err.error_name()), text(err.error_string()))
}

/// Returns the error of a call that has no better name.
pub(crate) fn failed(what: &str, err: result::DriverError) -> Error {
    let message = format!("{what}: {}", words(err));
    let error = Error::new(slugs::CUDA_FAILED, message.clone());
    match err.0 {
        // The context, modules and graphs need memory of their own, which a full card does not have.
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => out_of_memory(message),
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | sys::CUresult::CUDA_ERROR_LAUNCH_FAILED => error
            .fact("kernels run asynchronously: the one that failed may be any since the last wait")
            .hint("run again with --checked, which waits after every kernel and names it"),
        _ => error,
    }
}

/// Returns the error of a card with less memory than planned: others took it since.
fn out_of_memory(message: String) -> Error {
    Error::does_not_fit("cuda-out-of-memory", message)
        .hint("nvidia-smi shows who holds the rest; the same command plans again with what is free then")
}

/// Page-locked host memory of a fixed size.
#[derive(Debug)]
pub(crate) struct Pinned {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain memory that this value alone owns.
unsafe impl Send for Pinned {}
// SAFETY: sharing it shares its address only; `bytes` asks for `&mut self`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Errors: `host-allocation-failed`.
    pub(crate) fn new(gpu: &Gpu, len: usize) -> Result<Pinned> {
        gpu.bind();
        // SAFETY: the driver owns the memory until `drop` frees it, and nothing reads it before `write_bytes` below.
        let base = unsafe { result::malloc_host(len, 0) }.map_err(|err| {
            Error::new(
                "host-allocation-failed",
                format!("{} of pinned memory: {}", Bytes(len as u64), words(err)),
            )
            .hint("raise the limit on locked memory (ulimit -l), or take an entry out of memory.offload")
        })?;
        // SAFETY: the driver allocated `len` bytes at `base`, which nothing else uses yet.
        unsafe { std::ptr::write_bytes(base.cast::<u8>(), 0, len) };
        Ok(Pinned { base: base.cast(), len })
    }

    /// Returns the first byte's address, the same for the host and the card.
    pub(crate) fn address(&self) -> u64 {
        self.base as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes, initialised in `new`; `&mut self` excludes other slices of it. What the card writes
        // there is waited for before it is read.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes, initialised in `new`; the card writes to them under `bytes` alone.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver in `new`.
        let _ = unsafe { result::free_host(self.base.cast()) };
    }
}

/// An event on the stream.
#[derive(Debug)]
pub(crate) struct Mark(pub(crate) sys::CUevent);

// SAFETY: an event handle may be used from any thread whose context is current.
unsafe impl Send for Mark {}
// SAFETY: an event handle may be used from any thread whose context is current.
unsafe impl Sync for Mark {}

impl Mark {
    pub(crate) fn new(gpu: &Gpu) -> Result<Mark> {
        gpu.bind();
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        event.map(Mark).map_err(|e| failed("making an event", e))
    }

    /// Waits until the card has passed the event, if it was ever recorded. The caller has bound the context.
    pub(crate) fn wait(&self) -> std::result::Result<(), result::DriverError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.0) }
    }

    /// Returns the seconds from `begin`, on the same stream, once the card has passed this. None if the driver failed.
    pub(crate) fn seconds_since(&self, begin: &Mark) -> Option<f64> {
        // SAFETY: both events are alive.
        unsafe { result::event::synchronize(self.0) }.ok()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and past, and the place is valid.
        unsafe { elapsed_time()?(&mut milliseconds, begin.0, self.0) }.result().ok()?;
        Some(f64::from(milliseconds) * 1e-3)
    }
}

type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// Returns the driver's function `cuEventElapsedTime`, which all drivers have. cudarc knows only its second version,
/// which drivers before CUDA 12.8 lack.
fn elapsed_time() -> Option<ElapsedTime> {
    static FUNCTION: OnceLock<Option<ElapsedTime>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let driver = library::open(Lib::Driver).ok()?;
        // SAFETY: the signature is that of the header of CUDA 12.
        unsafe { driver.function("cuEventElapsedTime") }.ok()
    })
}

impl Drop for Mark {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made in `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_refused_with_both_versions() {
        for version in [12_000, 12_020, 13_000, 14_000] {
            check_driver(version).unwrap();
        }
        for (version, words) in [(11_080, "CUDA 11.8"), (9_000, "CUDA 9.0"), (0, "CUDA 0.0")] {
            let error = check_driver(version).unwrap_err();
            assert_eq!(error.slug, "cuda-driver-too-old");
            assert!(error.message.contains(words) && error.message.ends_with("needed is 12.0"), "{error}");
        }
    }

    #[test]
    fn an_old_card_is_refused_by_name() {
        for capability in [(8, 0), (8, 6), (9, 0), (10, 0), (12, 1)] {
            check_capability("card", capability).unwrap();
        }
        for capability in [(7, 5), (7, 0), (5, 2), (0, 0)] {
            let error = check_capability("Tesla", capability).unwrap_err();
            assert_eq!(error.slug, "cuda-arch-unsupported");
            let number = format!("Tesla has compute capability {}.{}", capability.0, capability.1);
            assert!(error.message.contains(&number), "{error}");
        }
    }
}
