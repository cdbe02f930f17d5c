//! All kernels of the device: compiled for its card, or read from the cache, and loaded.

use crate::compile::{self, SOURCES};
use crate::driver::{self, Gpu};
use crate::parameters::{self, Kind, Parameters};
use cudarc::driver::{result, sys};
use plimsoll_base::Result;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{LazyLock, RwLock};

/// Bytes of dynamic shared memory that a function gets without asking.
const SHARED_DEFAULT: u32 = 48 << 10;

/// Parameters of the kernels of each source, read once per process.
static PARAMETERS: LazyLock<HashMap<&str, Parameters>> =
    LazyLock::new(|| SOURCES.iter().map(|source| (source.name, parameters::read(source.text))).collect());

#[derive(Debug)]
pub(crate) struct Kernels {
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: RwLock<HashMap<(&'static str, &'static str), Function>>,
    /// Number of files that this start compiled because the cache lacked them.
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
    /// Compiles what is not in the cache, on all cores, and loads it.
    ///
    /// Errors: `cuda-library-missing`, `cuda-compile-failed`, `cuda-failed`.
    pub(crate) fn load(gpu: &Gpu, checked: bool) -> Result<Kernels> {
        let compiler = compile::compiler_version()?;
        let architecture = compile::architecture(gpu.info.capability);
        compile::check_architecture(&architecture)?;
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

    /// Returns a kernel's function, with room for its shared memory. Panics on first launch unless it takes `given`.
    pub(crate) fn function(
        &self,
        module: &'static str,
        kernel: &'static str,
        shared: u32,
        given: impl Iterator<Item = Kind>,
    ) -> Result<sys::CUfunction> {
        let key = (module, kernel);
        if let Some(f) = self.functions.read().unwrap_or_else(|e| e.into_inner()).get(&key)
            && f.shared >= shared
        {
            return Ok(f.handle);
        }
        parameters::check(&PARAMETERS[module], kernel, given);
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
