//! Compiles kernels with NVRTC and caches the results.
//!
//! The cache is a folder of files named by the hash of everything that a result depends on: source, options, compiler.
//! Each holds the hash of its contents; a damaged one is compiled again, and an unwritable folder only costs time.

use super::bindings::Nvrtc;
use cudarc::nvrtc::{result, sys};
use plimsoll_base::{Error, Result};
use sha2::{Digest, Sha256};
use std::ffi::CString;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A kernel file: one module on the device.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Name of the module and of the file, without `.cu`.
    pub name: &'static str,
    pub(crate) text: &'static str,
}

const COMMON: &str = include_str!("cu/common.cuh");

macro_rules! sources {
    ($($name:literal $(with $($shared:literal)+)?),* $(,)?) => {
        &[$(Source {
            name: $name,
            text: concat!($($(include_str!(concat!("cu/", $shared)),)+)? include_str!(concat!("cu/", $name, ".cu"))),
        }),*]
    };
}

pub const SOURCES: &[Source] = sources![
    "adapted_bf16" with "hopper.cuh" "ring.cuh" "adapted.cuh" "adapted_wide.cuh",
    "adapted_codes" with "hopper.cuh" "ring.cuh" "adapted.cuh" "nf4.cuh",
    "adapted_dx" with "hopper.cuh" "ring.cuh" "adapted.cuh" "adapted_wide.cuh",
    "adapted_few" with "hopper.cuh" "ring.cuh" "adapted.cuh",
    "adapted_float" with "hopper.cuh" "ring.cuh" "adapted.cuh" "adapted_wide.cuh",
    "adapted_slots" with "hopper.cuh" "ring.cuh" "adapted.cuh",
    "adapter" with "slots.cuh",
    "adapter_gradients" with "adapter_gradients.cuh",
    "adapter_gradients_hopper" with "hopper.cuh" "ring.cuh" "adapter_gradients.cuh",
    "attention" with "attention_tile.cuh" "attention_join.cuh" "hopper.cuh" "attention_hopper.cuh",
    "attention_backward" with "attention_tile.cuh" "attention_plan.cuh",
    "attention_backward_hopper" with "attention_tile.cuh" "attention_plan.cuh" "hopper.cuh" "attention_hopper.cuh",
    "attention_backward_latent" with "attention_tile.cuh" "attention_join.cuh" "attention_plan.cuh" "attention_latent.cuh" "attention_latent_plan.cuh",
    "attention_backward_latent_hopper" with "attention_tile.cuh" "attention_plan.cuh" "hopper.cuh" "attention_hopper.cuh" "attention_latent.cuh" "attention_latent_plan.cuh" "attention_latent_hopper.cuh",
    "attention_backward_wide" with "attention_tile.cuh" "attention_plan.cuh" "attention_wide.cuh",
    "attention_latent" with "attention_tile.cuh" "attention_join.cuh" "attention_latent.cuh",
    "attention_latent_hopper" with "attention_tile.cuh" "attention_join.cuh" "hopper.cuh" "attention_hopper.cuh" "attention_latent.cuh" "attention_latent_hopper.cuh",
    "attention_wide" with "attention_tile.cuh" "attention_join.cuh" "attention_wide.cuh",
    "blocks",
    "chain",
    "checks",
    "columns",
    "decode",
    "delta_chunks" with "delta.cuh",
    "delta_inputs" with "gate.cuh" "delta.cuh",
    "delta_norm" with "gate.cuh" "delta.cuh",
    "delta_reverse" with "delta.cuh" "delta_scan.cuh",
    "delta_rule" with "delta.cuh" "delta_scan.cuh",
    "experts" with "experts.cuh" "experts_tile.cuh",
    "experts_adapter" with "experts.cuh" "experts_tile.cuh",
    "experts_bias" with "experts.cuh",
    "experts_codes" with "experts.cuh" "experts_tile.cuh",
    "experts_dw" with "experts.cuh" "experts_tile.cuh",
    "experts_hopper" with "hopper.cuh" "ring.cuh" "experts.cuh" "experts_tile.cuh" "hopper_tile.cuh",
    "experts_plain" with "experts.cuh",
    "experts_route" with "gate.cuh",
    "experts_rows" with "gate.cuh",
    "few" with "gate.cuh" "hopper.cuh" "ring.cuh" "few_put.cuh",
    "fp8" with "gate.cuh" "hopper.cuh" "ring.cuh" "few_put.cuh" "fp8.cuh",
    "fp8_round" with "fp8.cuh",
    "head" with "head_parts.cuh",
    "head_divergence" with "head_parts.cuh",
    "head_gates" with "gate.cuh",
    "head_hopper" with "head_parts.cuh" "hopper.cuh",
    "head_listed" with "head_parts.cuh",
    "heads" with "hopper.cuh" "experts.cuh" "experts_tile.cuh" "hopper_tile.cuh",
    "muon",
    "nf4" with "nf4.cuh",
    "noise",
    "optimizer",
    "rotation" with "rotation_position.cuh" "rotation.cuh",
    "rotation_axes" with "rotation_places.cuh" "rotation.cuh" "rotation.cu" "rotation_eights.cu",
    "rotation_eights" with "rotation_position.cuh" "rotation.cuh",
    "rows" with "gate.cuh",
    "sampler",
    "sgemm" with "slots.cuh",
    "tower" with "gate.cuh",
];

impl Source {
    /// Returns the text that the compiler reads.
    pub fn program(&self) -> String {
        format!("{COMMON}\n#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }
}

/// Hint for an NVRTC that is too old.
const UPDATE: &str = "update nvidia-cuda-nvrtc (for a driver of CUDA 12 nvidia-cuda-nvrtc-cu12) or the CUDA toolkit: 12.1 is enough up to sm_90, 12.8 for all";

/// Architectures that every kernel must compile for.
pub const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"];

/// Returns the name of an architecture for the compiler: Hopper's own instructions need its `a`.
pub(crate) fn architecture(capability: (u32, u32)) -> String {
    let suffix = if capability == (9, 0) { "a" } else { "" };
    format!("sm_{}{}{suffix}", capability.0, capability.1)
}

/// Returns NVRTC's version, as `13.0`.
///
/// Errors: `cuda-library-missing`.
pub(crate) fn compiler_version() -> Result<String> {
    let nvrtc = Nvrtc::open()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are valid places for an int.
    let status = unsafe { (nvrtc.nvrtcVersion)(&mut major, &mut minor) };
    status.result().map_err(|err| Error::new("cuda-compile-failed", format!("nvrtcVersion: {err:?}")))?;
    Ok(format!("{major}.{minor}"))
}

/// Requires that NVRTC makes code for an architecture.
///
/// Errors: `cuda-library-missing`; `cuda-compile-failed` where the card is newer than the compiler.
pub fn check_architecture(architecture: &str) -> Result<()> {
    let nvrtc = Nvrtc::open()?;
    let mut count = 0;
    // SAFETY: a valid place for an int.
    unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&mut count) }.result().map_err(no_list)?;
    let mut known = vec![0i32; count.max(0) as usize];
    // SAFETY: the list has as many places as NVRTC asked for.
    unsafe { (nvrtc.nvrtcGetSupportedArchs)(known.as_mut_ptr()) }.result().map_err(no_list)?;
    // `sm_90a` is 90 in NVRTC's list.
    let number = architecture.trim_start_matches("sm_").trim_end_matches('a').parse();
    if number.is_ok_and(|number: i32| known.contains(&number)) {
        return Ok(());
    }
    let (version, newest) = (compiler_version()?, known.iter().max().copied().unwrap_or(0));
    let message =
        format!("NVRTC {version} makes code for cards up to sm_{newest}, and this one is {architecture}");
    Err(Error::new("cuda-compile-failed", message).hint(UPDATE))
}

fn no_list(err: result::NvrtcError) -> Error {
    Error::new("cuda-compile-failed", format!("NVRTC does not say which cards it knows: {err:?}"))
        .hint(UPDATE)
}

/// Compiles a kernel file for an architecture, without a GPU.
///
/// Errors: `cuda-library-missing`; `cuda-compile-failed` with the compiler's words.
pub fn compile(source: &Source, architecture: &str, checked: bool) -> Result<Vec<u8>> {
    let failed = |words: &str| {
        let message = format!("{}.cu for {architecture}: {}", source.name, words.trim());
        Error::new("cuda-compile-failed", message).hint(UPDATE)
    };
    let program = Program::new(Nvrtc::open()?, source).map_err(|err| failed(&format!("{err:?}")))?;
    match program.compile(&options(architecture, checked)) {
        Ok(()) => program.cubin().map_err(|err| failed(&format!("{err:?}"))),
        Err(err) => Err(failed(&format!("{err:?}\n{}", program.log()))),
    }
}

struct Program {
    nvrtc: &'static Nvrtc,
    program: sys::nvrtcProgram,
}

impl Program {
    fn new(nvrtc: &'static Nvrtc, source: &Source) -> std::result::Result<Program, result::NvrtcError> {
        let text = CString::new(source.program()).expect("kernel sources hold no zero byte");
        let name = CString::new(format!("{}.cu", source.name)).expect("names hold no zero byte");
        let (mut program, none) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: a valid place, two strings, which NVRTC copies, and no headers.
        unsafe { (nvrtc.nvrtcCreateProgram)(&mut program, text.as_ptr(), name.as_ptr(), 0, none, none) }
            .result()?;
        Ok(Program { nvrtc, program })
    }

    fn compile(&self, options: &[String]) -> std::result::Result<(), result::NvrtcError> {
        let options: Vec<CString> =
            options.iter().map(|option| CString::new(option.as_str()).expect("no zero byte")).collect();
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and the options are as many strings.
        unsafe { (self.nvrtc.nvrtcCompileProgram)(self.program, options.len() as i32, options.as_ptr()) }
            .result()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: a compiled program; `size` is a valid place.
        unsafe { (self.nvrtc.nvrtcGetCUBINSize)(self.program, &mut size) }.result()?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that NVRTC asked for.
        unsafe { (self.nvrtc.nvrtcGetCUBIN)(self.program, bytes.as_mut_ptr().cast()) }.result()?;
        Ok(bytes)
    }

    /// Returns the compiler's messages, if there are any.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive; `size` is a valid place.
        let _ = unsafe { (self.nvrtc.nvrtcGetProgramLogSize)(self.program, &mut size) };
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that NVRTC asked for.
        let _ = unsafe { (self.nvrtc.nvrtcGetProgramLog)(self.program, bytes.as_mut_ptr().cast()) };
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and destroyed once.
        let _ = unsafe { (self.nvrtc.nvrtcDestroyProgram)(&mut self.program) };
    }
}

fn options(architecture: &str, checked: bool) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_string(),
        // Bits must not depend on which products the compiler fuses; where they need one rounding, sources say `fma`.
        "--fmad=false".to_string(),
        "-diag-suppress=177".to_string(),
    ];
    if checked {
        options.push("-DPLIMSOLL_CHECKED".to_string());
    }
    options
}

/// Returns the folder of compiled kernels: `PLIMSOLL_KERNEL_CACHE`, else `plimsoll/kernels` in the user's cache folder.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("PLIMSOLL_KERNEL_CACHE").or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        Some(cache?.join("plimsoll").join("kernels"))
    })
}

/// Returns a module from the cache, or compiles and keeps it. True if it was compiled.
///
/// Errors: those of `compile`.
pub(crate) fn load_or_compile(
    source: &Source,
    architecture: &str,
    checked: bool,
    cache: Option<&Path>,
    compiler: &str,
) -> Result<(Vec<u8>, bool)> {
    let mut key = Sha256::new();
    for part in [source.program().as_str(), &options(architecture, checked).join(" "), compiler] {
        key.update((part.len() as u64).to_le_bytes());
        key.update(part);
    }
    let file =
        cache.map(|folder| folder.join(format!("{}-{}.cubin", source.name, hex(&key.finalize()[..12]))));
    if let Some(bytes) = file.as_deref().and_then(read_cached) {
        return Ok((bytes, false));
    }
    let bytes = compile(source, architecture, checked)?;
    if let Some(file) = file {
        // Best effort: without the file the next start compiles again.
        let _ = write_cached(&file, &bytes);
    }
    Ok((bytes, true))
}

/// Returns the contents of a file of the cache, unless it is damaged.
pub(crate) fn read_cached(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (hash, payload) = bytes.split_at_checked(32)?;
    (Sha256::digest(payload)[..] == *hash).then(|| payload.to_vec())
}

/// Keeps a file in the cache, with the hash of its contents.
pub(crate) fn write_cached(file: &Path, payload: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().expect("a file in the cache folder");
    std::fs::create_dir_all(folder)?;
    // Renamed when complete: two starts at once may both write it, and a reader sees one or the other.
    let part = file.with_extension(format!("part-{}", std::process::id()));
    let mut bytes = Sha256::digest(payload).to_vec();
    bytes.extend_from_slice(payload);
    // What is there is of a start that was killed, or a link of somebody who may write here too.
    let _ = std::fs::remove_file(&part);
    let written = std::fs::File::create_new(&part)
        .and_then(|mut made| made.write_all(&bytes))
        .and_then(|()| std::fs::rename(&part, file));
    written.inspect_err(|_| {
        // A full disk must not keep half a file.
        let _ = std::fs::remove_file(&part);
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_of_the_cache_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("k/rows-1.cubin");
        write_cached(&file, b"machine code").unwrap();
        assert_eq!(read_cached(&file).unwrap(), b"machine code");
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(read_cached(&file), None);
        std::fs::write(&file, b"short").unwrap();
        assert_eq!(read_cached(&file), None);
    }

    /// NVRTC's version; without it a test says so and passes.
    fn compiler() -> Option<String> {
        compiler_version().inspect_err(|error| eprintln!("skipped: {error}")).ok()
    }

    fn smallest() -> &'static Source {
        SOURCES.iter().min_by_key(|source| source.text.len()).expect("there are kernels")
    }

    /// A kernel that did not wait would read what the one before it has not written yet.
    #[test]
    fn every_kernel_waits_before_it_does_anything() {
        // Those that read what nothing writes before they wait begin by `call_others` alone.
        const EARLY: [(&str, [&str; 3]); 5] = [
            ("adapted_few", ["void send_columns(", "void send_rows(", "void consume("]),
            // Its wide tiles copy what the kernel of u, which precedes them, has waited for.
            ("adapted_slots", ["void send_columns(", "void send_rows(", "void consume("]),
            ("adapted_codes", ["void send_rows(", "void make_u(", "void consume("]),
            // What copies W does not wait for kernels that do not write it.
            (
                "few",
                ["if (warp == 4 * GROUPS) {", "if (warp == 4 * GROUPS + 1) {", "const u32 first = GROUPS"],
            ),
            (
                "fp8",
                ["if (warp == 4 * GROUPS) {", "if (warp == 4 * GROUPS + 1) {", "const u32 group = GROUPS"],
            ),
        ];
        let is_early = |name: &str| EARLY.iter().any(|(early, _)| *early == name);
        let early = |name: &str| if is_early(name) { "call_others();" } else { "begin();" };
        for source in SOURCES {
            let kernels = source.text.split("__global__").skip(1);
            let body = |kernel: &'static str| kernel.split_once('{').expect("a kernel has a body").1;
            let first = |kernel| body(kernel).trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
            let waits = |body: &str| {
                let begins = ["begin();", "wait_for_others();", early(source.name)];
                begins.iter().any(|first| body.starts_with(first))
            };
            assert!(kernels.map(first).all(waits), "{}.cu", source.name);
        }
        for (name, roles) in EARLY {
            let text = SOURCES.iter().find(|source| source.name == name).expect("it is one of them").text;
            for role in roles {
                let bodies: Vec<&str> = text.split(role).skip(1).collect();
                let waits = |of: &&str| {
                    of.split("\n    }").next().is_some_and(|of| of.contains("wait_for_others();"))
                };
                assert!(!bodies.is_empty() && bodies.iter().all(waits), "{name}: {role}");
            }
        }
    }

    #[test]
    fn a_damaged_cache_is_compiled_again_and_mended() {
        let Some(version) = compiler() else { return };
        let folder = tempfile::tempdir().unwrap();
        let load = || load_or_compile(smallest(), "sm_80", false, Some(folder.path()), &version).unwrap();
        let (code, compiled) = load();
        assert!(compiled && !load().1, "kept by the first, taken by the second");
        let files: Vec<PathBuf> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("one file, and no part of one: {files:?}") };
        let whole = std::fs::read(file).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        for bytes in [&[][..], &whole[..31], &whole[..whole.len() - 1], &flipped] {
            std::fs::write(file, bytes).unwrap();
            assert_eq!(load(), (code.clone(), true), "{} bytes", bytes.len());
            assert_eq!(load(), (code.clone(), false), "mended");
        }
        // Another compiler, architecture or mode is another file.
        for (architecture, checked, version) in
            [("sm_90a", false, &version), ("sm_80", true, &version), ("sm_80", false, &"0.0".to_string())]
        {
            let made =
                load_or_compile(smallest(), architecture, checked, Some(folder.path()), version).unwrap();
            assert!(made.1, "{architecture} {checked} {version}");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_costs_time_only() {
        let Some(version) = compiler() else { return };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let expect = compile(smallest(), "sm_80", false).unwrap();
        for cache in [Some(file.join("kernels")), Some("/proc/plimsoll".into()), None] {
            for _ in 0..2 {
                let made = load_or_compile(smallest(), "sm_80", false, cache.as_deref(), &version).unwrap();
                assert_eq!(made, (expect.clone(), true), "{cache:?}");
            }
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"x");
    }

    #[test]
    fn what_does_not_compile_is_named_with_the_compilers_words() {
        if compiler().is_none() {
            return;
        }
        let broken = Source { name: "broken", text: "__global__ void f(int x) { return y; }" };
        for (source, architecture, contains) in
            [(&broken, "sm_80", "broken.cu(1): error"), (smallest(), "sm_20", "--gpu-architecture")]
        {
            let error = compile(source, architecture, false).unwrap_err();
            assert_eq!(error.slug, "cuda-compile-failed");
            assert!(error.message.contains(contains) && error.message.contains(architecture), "{error}");
        }
    }

    #[test]
    fn architectures_have_the_compilers_names() {
        assert_eq!(architecture((9, 0)), "sm_90a");
        assert_eq!(architecture((8, 0)), "sm_80");
        assert_eq!(architecture((12, 0)), "sm_120");
    }
}
