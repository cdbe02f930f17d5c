//! Launches kernels: their arguments, and the checks of a checked build after a launch.

use super::CudaDevice;
use super::driver::{self};
use super::parameters::Kind;
use cudarc::driver::sys;
use plimsoll_base::{Error, slugs};
use plimsoll_memory::{Buf, Home};
use std::ffi::c_void;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// An address on the device; 0 for none.
    Ptr(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    /// Passed by value.
    Map(TensorMap),
}

impl Arg {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Arg::Ptr(_) => Kind::Ptr,
            Arg::U32(_) => Kind::U32,
            Arg::U64(_) => Kind::U64,
            Arg::F32(_) => Kind::F32,
            Arg::Map(_) => Kind::Map,
        }
    }
}

/// Returns a number that kernels count in 32 bits.
pub(crate) fn count(n: usize) -> Arg {
    Arg::U32(u32::try_from(n).expect("counts of rows and columns stay below 2^32"))
}

/// A value that kernels take as an argument.
pub(crate) trait KernelArg {
    fn on(&self, dev: &CudaDevice) -> Arg;
}

/// Makes a kernel's arguments: buffers by their addresses (0 for none), counts in 32 bits, flags as 0 or 1.
macro_rules! args {
    ($dev:expr, $($value:expr),+ $(,)?) => {
        [$($crate::launch::KernelArg::on(&$value, $dev)),+]
    };
}

impl KernelArg for Arg {
    fn on(&self, _: &CudaDevice) -> Arg {
        *self
    }
}

impl KernelArg for Buf<'_> {
    #[track_caller]
    fn on(&self, dev: &CudaDevice) -> Arg {
        dev.arg(*self)
    }
}

impl KernelArg for Option<Buf<'_>> {
    #[track_caller]
    fn on(&self, dev: &CudaDevice) -> Arg {
        self.map_or(Arg::Ptr(0), |buf| dev.arg(buf))
    }
}

impl KernelArg for usize {
    fn on(&self, _: &CudaDevice) -> Arg {
        count(*self)
    }
}

impl KernelArg for bool {
    fn on(&self, _: &CudaDevice) -> Arg {
        Arg::U32((*self).into())
    }
}

macro_rules! numbers_are_args {
    ($($number:ty: $Kind:ident),+) => {
        $(impl KernelArg for $number {
            fn on(&self, _: &CudaDevice) -> Arg {
                Arg::$Kind(*self)
            }
        })+
    };
}

numbers_are_args!(u32: U32, u64: U64, f32: F32);

/// A matrix description for the copy engine: the driver's CUtensorMap, a kernel's parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorMap(pub(crate) [u64; 16]);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub grid: [u32; 3],
    pub block: u32,
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}

impl CudaDevice {
    /// Returns the address of a buffer's first byte, for a kernel.
    #[track_caller]
    pub(crate) fn arg(&self, buf: Buf<'_>) -> Arg {
        assert!(!buf.is_offloaded(), "a kernel on host memory");
        Arg::Ptr(self.address(buf))
    }

    /// Returns the address of a buffer for copies: page-locked host memory has its address on the device too.
    #[track_caller]
    pub(crate) fn address(&self, buf: Buf<'_>) -> u64 {
        if buf.is_offloaded() {
            return self.transfers.address(buf);
        }
        self.check_phase(buf);
        let end = buf.offset() + buf.bytes();
        assert!(end <= self.arena_bytes, "bytes {}..{end} of an arena of {}", buf.offset(), self.arena_bytes);
        match buf.home() {
            Home::Rank(_) => self.address_there(buf),
            _ => self.arena + buf.offset(),
        }
    }

    /// Queues a kernel on the stream. A failure is kept for `check`; launches after it are skipped.
    pub(crate) fn launch(&self, module: &'static str, kernel: &'static str, how: Launch, args: &[Arg]) {
        if how.grid.contains(&0) || self.has_failed() {
            return;
        }
        let function = match self.kernels.function(module, kernel, how.shared, args.iter().map(Arg::kind)) {
            Ok(function) => function,
            Err(error) => return self.fail(error),
        };
        // The driver takes an address for each parameter.
        let mut words: [u64; 32] = [0; 32];
        let mut params: [*mut c_void; 32] = [std::ptr::null_mut(); 32];
        assert!(args.len() <= words.len(), "{kernel} has {} parameters", args.len());
        for (i, arg) in args.iter().enumerate() {
            words[i] = match arg {
                Arg::Ptr(address) => *address,
                Arg::U32(x) => u64::from(*x),
                Arg::U64(x) => *x,
                Arg::F32(x) => u64::from(x.to_bits()),
                Arg::Map(map) => {
                    // The driver only reads it.
                    params[i] = map.0.as_ptr().cast_mut().cast();
                    continue;
                }
            };
            params[i] = (&raw mut words[i]).cast();
        }
        self.gpu.bind();
        let [x, y, z] = how.grid;
        // Hopper may start blocks before the preceding kernel ends: kernels wait for that before reading others' data.
        let mut overlaps = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: how.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: how.shared,
            hStream: self.stream(),
            attrs: &raw mut overlaps,
            numAttrs: u32::from(self.gpu.overlaps()),
        };
        // SAFETY: the arguments are of the kinds that the kernel's source takes; buffers were checked to be in arenas.
        let mut put = || unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), std::ptr::null_mut())
                .result()
        };
        let launched = match &self.profile {
            Some(profile) => profile.time(&self.gpu, || kernel.to_string(), put),
            None => put(),
        };
        if let Err(err) = launched {
            return self.fail(driver::failed(&shape_words(module, kernel, how), err));
        }
        if self.checked {
            self.check_launch(module, kernel, how);
        }
    }

    /// Waits for a launch, and names it if it failed or met a bad index.
    fn check_launch(&self, module: &'static str, kernel: &'static str, how: Launch) {
        let what = shape_words(module, kernel, how);
        if let Err(err) = self.gpu.wait() {
            let message = format!("{what}: {}", driver::words(err));
            return self.fail(
                Error::new(slugs::CUDA_FAILED, message).fact("found by --checked, right after the launch"),
            );
        }
        if module == "checks" {
            return; // Its finding is the caller's.
        }
        if let Some([code, value, limit, block]) = self.kernels.take_fault(module) {
            let message =
                format!("{what}, block {block}: {} {value}, the limit is {limit}", index_words(code));
            self.fail(
                Error::new("cuda-bad-index", message)
                    .hint("this is a bug in Plimsoll: please report it with the run file"),
            );
        }
    }
}

fn shape_words(module: &str, kernel: &str, how: Launch) -> String {
    let [x, y, z] = how.grid;
    format!(
        "kernel {module}/{kernel}, grid {x} x {y} x {z}, {} threads, {} bytes shared",
        how.block, how.shared
    )
}

fn index_words(code: u32) -> &'static str {
    match code {
        1 => "token id",
        2 => "cache slot",
        3 => "cache block",
        4 => "position",
        5 => "row",
        6 => "segment",
        _ => "index",
    }
}
