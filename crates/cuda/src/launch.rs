//! Launching kernels: modules, functions, arguments, and what is checked after a launch of a checked build.

use super::CudaDevice;
use super::compile::{self, SOURCES};
use super::driver::{self, Gpu};
use cudarc::driver::{result, sys};
use plimsoll_base::{Error, Result};
use plimsoll_memory::Buf;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::RwLock;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// An address on the device; 0 for none.
    Ptr(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    /// By value.
    Map(TensorMap),
}

/// A matrix as the copy engine takes it: the driver's CUtensorMap, a kernel's parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorMap(pub(crate) [u64; 16]);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub grid: [u32; 3],
    pub block: u32,
    /// Dynamic shared memory, bytes.
    pub shared: u32,
}

/// Bytes of dynamic shared memory that a function may have without asking.
const SHARED_DEFAULT: u32 = 48 << 10;

/// All kernels, compiled for this card and loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: RwLock<HashMap<(&'static str, &'static str), Function>>,
    /// Files that were compiled at this start, and not found in the cache.
    pub(crate) compiled: usize,
    pub(crate) compiler: String,
}

// SAFETY: module and function handles are valid on every thread whose context is current.
unsafe impl Send for Kernels {}
// SAFETY: handles are valid on every thread whose context is current; a lock guards the map of functions.
unsafe impl Sync for Kernels {}

#[derive(Clone, Copy, Debug)]
struct Function {
    handle: sys::CUfunction,
    shared: u32,
}

impl Kernels {
    /// Compiles what the cache does not hold, on all cores, and loads it.
    ///
    /// Errors: `cuda-library-missing`, `cuda-compile-failed`, `cuda-failed`.
    pub(crate) fn load(gpu: &Gpu, checked: bool) -> Result<Kernels> {
        let compiler = compile::compiler_version()?;
        let architecture = compile::architecture(gpu.info.capability);
        let cache = compile::cache_folder();
        let made: Vec<Result<(Vec<u8>, bool)>> = std::thread::scope(|scope| {
            let jobs: Vec<_> = SOURCES
                .iter()
                .map(|source| {
                    let (architecture, cache, compiler) = (&architecture, cache.as_deref(), &compiler);
                    scope.spawn(move || {
                        compile::load_or_compile(source, architecture, checked, cache, compiler)
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join().expect("the compiler's thread")).collect()
        });
        gpu.bind();
        let (mut modules, mut compiled) = (HashMap::new(), 0);
        for (source, made) in SOURCES.iter().zip(made) {
            let (image, fresh) = made?;
            compiled += usize::from(fresh);
            // SAFETY: a whole cubin of NVRTC's making, kept with its hash.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
                .map_err(|e| driver::failed(&format!("loading {}.cu", source.name), e))?;
            modules.insert(source.name, module);
        }
        Ok(Kernels { modules, functions: RwLock::default(), compiled, compiler })
    }

    /// The function of a kernel, with room for its shared memory.
    fn function(&self, module: &'static str, kernel: &'static str, shared: u32) -> Result<sys::CUfunction> {
        let key = (module, kernel);
        if let Some(f) = self.functions.read().unwrap_or_else(|e| e.into_inner()).get(&key)
            && f.shared >= shared
        {
            return Ok(f.handle);
        }
        let loaded = *self.modules.get(module).unwrap_or_else(|| panic!("no module {module}"));
        let name = CString::new(kernel).expect("kernel names hold no zero byte");
        // SAFETY: the module is loaded and stays so.
        let handle = unsafe { result::module::get_function(loaded, name) }
            .map_err(|e| driver::failed(&format!("finding {module}/{kernel}"), e))?;
        if shared > SHARED_DEFAULT {
            use sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SIZE;
            // SAFETY: the function was found above.
            unsafe { result::function::set_function_attribute(handle, SIZE, shared as i32) }
                .map_err(|e| driver::failed(&format!("{shared} bytes of shared memory for {kernel}"), e))?;
        }
        let function = Function { handle, shared: shared.max(SHARED_DEFAULT) };
        self.functions.write().unwrap_or_else(|e| e.into_inner()).insert(key, function);
        Ok(handle)
    }

    /// Reads and clears a module's record of the first bad index: code, value, limit, block.
    pub(crate) fn take_fault(&self, module: &'static str) -> Option<[u32; 4]> {
        let name = CString::new("plimsoll_fault").expect("no zero byte");
        // SAFETY: the module is loaded; every kernel file defines the symbol.
        let (address, _) = unsafe { result::module::get_global(self.modules[module], name) }.ok()?;
        let mut fault = [0u32; 4];
        // SAFETY: four words, as common.cuh defines it.
        unsafe { result::memcpy_dtoh_sync(&mut fault, address) }.ok()?;
        if fault[0] == 0 {
            return None;
        }
        // SAFETY: four words at the symbol's address, as common.cuh defines it.
        let _ = unsafe { result::memcpy_htod_sync(address, &[0u32; 4]) };
        Some(fault)
    }
}

impl CudaDevice {
    /// The address of a buffer's first byte, for a kernel.
    #[track_caller]
    pub(crate) fn arg(&self, buf: Buf<'_>) -> Arg {
        assert!(!buf.is_offloaded(), "a kernel on host memory");
        Arg::Ptr(self.address(buf))
    }

    /// The same, for copies: page-locked host memory has its address on the device too.
    #[track_caller]
    pub(crate) fn address(&self, buf: Buf<'_>) -> u64 {
        if buf.is_offloaded() {
            return self.transfers.address(buf);
        }
        self.check_phase(buf);
        let end = buf.offset() + buf.len() as u64 * buf.dtype().bytes();
        assert!(end <= self.arena_bytes, "bytes {}..{end} of an arena of {}", buf.offset(), self.arena_bytes);
        self.arena + buf.offset()
    }

    /// Puts a kernel on the stream. A failure is kept for `check`; what follows it is left out.
    pub(crate) fn launch(&self, module: &'static str, kernel: &'static str, how: Launch, args: &[Arg]) {
        if how.grid.contains(&0) || self.has_failed() {
            return;
        }
        let function = match self.kernels.function(module, kernel, how.shared) {
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
        // SAFETY: the launcher gives the kernel's own parameters, in order; buffers were checked to lie in the arena.
        let mut put = || unsafe {
            let params = &mut params[..args.len()];
            result::launch_kernel(function, (x, y, z), (how.block, 1, 1), how.shared, self.gpu.stream, params)
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
            return self
                .fail(Error::new("cuda-failed", message).fact("found by --checked, right after the launch"));
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
