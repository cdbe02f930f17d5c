//! Finding the libraries of CUDA at run time: the driver, the compiler NVRTC, and cuBLASLt.
//!
//! One binary runs with and without them. Each is opened by its absolute path before the bindings look it up by name,
//! so that they find the one opened here; what is absent is a named error that says where it was looked for.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use plimsoll_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A library that is opened at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lib {
    Driver,
    Nvrtc,
    CublasLt,
}

impl Lib {
    /// Beginning of its file names; a version may follow.
    fn stem(self) -> &'static str {
        match self {
            Lib::Driver => "libcuda.so",
            Lib::Nvrtc => "libnvrtc.so",
            Lib::CublasLt => "libcublasLt.so",
        }
    }

    /// Names that the system's loader may know, the newest first.
    fn names(self) -> &'static [&'static str] {
        match self {
            Lib::Driver => &["libcuda.so.1", "libcuda.so"],
            Lib::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so"],
            Lib::CublasLt => &["libcublasLt.so.13", "libcublasLt.so"],
        }
    }

    /// A library that must be open before it.
    fn companion(self) -> Option<&'static str> {
        (self == Lib::Nvrtc).then_some("libnvrtc-builtins.so")
    }

    fn missing(self, looked: &[PathBuf], reason: &str) -> Error {
        let error = match self {
            Lib::Driver => Error::new(
                "cuda-driver-missing",
                format!("the NVIDIA driver's library libcuda.so.1 was not found: {reason}"),
            )
            .hint("install the NVIDIA driver (in a container: start it with the NVIDIA runtime), or set run.device = \"cpu\""),
            Lib::Nvrtc => Error::new(
                "cuda-library-missing",
                format!("NVRTC, the CUDA compiler library libnvrtc.so.13, was not found: {reason}"),
            )
            .hint("pip install nvidia-cuda-nvrtc, or install the CUDA 13 toolkit and set CUDA_HOME"),
            Lib::CublasLt => Error::new(
                "cuda-library-missing",
                format!("cuBLASLt, libcublasLt.so.13, was not found: {reason}"),
            )
            .hint("pip install nvidia-cublas, or install the CUDA 13 toolkit and set CUDA_HOME"),
        };
        let folders: Vec<String> = looked.iter().map(|p| p.display().to_string()).collect();
        let then = match folders.is_empty() {
            true => "none of the usual folders exists".to_string(),
            false => format!("then in {}", folders.join(", ")),
        };
        error.fact(format!("looked by the system's loader, {then}"))
    }
}

/// Opens a library for the whole process and returns where it was found.
///
/// Errors: `cuda-driver-missing`, `cuda-library-missing`.
pub(crate) fn open(lib: Lib) -> Result<PathBuf> {
    // An open library stays open: the bindings keep addresses of its functions.
    static OPENED: Mutex<Vec<(Lib, PathBuf)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some((_, path)) = opened.iter().find(|(l, _)| *l == lib) {
        return Ok(path.clone());
    }
    let path = find(lib)?;
    opened.push((lib, path.clone()));
    Ok(path)
}

fn find(lib: Lib) -> Result<PathBuf> {
    let folders = folders();
    let mut reason = "no file of that name".to_string();
    for name in lib.names() {
        if lib.companion().is_none() && keep_open(Path::new(name)).is_ok() {
            return Ok(PathBuf::from(name));
        }
    }
    for folder in &folders {
        let Some(file) = newest(folder, lib.stem()) else { continue };
        if let Some(companion) = lib.companion().and_then(|stem| newest(folder, stem)) {
            // Without it the library opens and then cannot compile: its own error says so.
            let _ = keep_open(&companion);
        }
        match keep_open(&file) {
            Ok(()) => return Ok(file),
            Err(err) => {
                // The source of the error, if there is one: the loader's own words.
                let words =
                    std::error::Error::source(&err).map_or_else(|| err.to_string(), |e| e.to_string());
                reason = format!("{} does not open: {words}", file.display());
            }
        }
    }
    // Last for a library with a companion: the loader's own paths, where the companion is next to it.
    for name in lib.names() {
        if keep_open(Path::new(name)).is_ok() {
            return Ok(PathBuf::from(name));
        }
    }
    Err(lib.missing(&folders, &reason))
}

fn keep_open(path: &Path) -> std::result::Result<(), libloading::Error> {
    // SAFETY: opening a library runs its initialisers; these are NVIDIA's own, made to be opened so.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }?;
    std::mem::forget(library);
    Ok(())
}

/// The file of the highest version in a folder whose name begins with `stem`.
fn newest(folder: &Path, stem: &str) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| is_named(n, stem)))
        .collect();
    files.sort_by_key(|path| version(path));
    files.pop()
}

/// `libnvrtc.so` and `libnvrtc.so.13`, but not `libnvrtc.so.debug`.
fn is_named(name: &str, stem: &str) -> bool {
    let Some(rest) = name.strip_prefix(stem) else { return false };
    rest.is_empty() || (rest.starts_with('.') && rest[1..].split('.').all(|part| part.parse::<u32>().is_ok()))
}

fn version(path: &Path) -> Vec<u32> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Where CUDA's libraries usually are: the toolkit, the system, conda, and pip's `nvidia` folders.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut add = |path: PathBuf| {
        if path.is_dir() && !folders.contains(&path) {
            folders.push(path);
        }
    };
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    for root in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| variable(name)) {
        add(root.join("lib64"));
        add(root.join("lib"));
    }
    for prefix in python_prefixes() {
        for site in site_packages(&prefix) {
            for package in ["cu13/lib", "cuda_nvrtc/lib", "cublas/lib"] {
                add(site.join("nvidia").join(package));
            }
        }
    }
    if let Some(conda) = variable("CONDA_PREFIX") {
        add(conda.join("lib"));
    }
    for folder in [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
    ] {
        add(PathBuf::from(folder));
    }
    folders
}

/// Folders with a `lib/python3.x`: the virtual environment, conda, the user's, and those of the `python3` on the path.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    if let Some(path) = std::env::var_os("PATH") {
        let pythons = std::env::split_paths(&path).filter(|dir| dir.join("python3").exists());
        prefixes.extend(pythons.filter_map(|bin| bin.parent().map(Path::to_path_buf)));
    }
    if let Some(home) = std::env::var_os("HOME") {
        prefixes.push(PathBuf::from(home).join(".local"));
    }
    prefixes
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let pythons = entries.filter_map(|e| e.ok().map(|e| e.path()));
    pythons
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("python3")))
        .flat_map(|p| [p.join("site-packages"), p.join("dist-packages")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_told_from_their_neighbours() {
        for (name, is) in [
            ("libnvrtc.so", true),
            ("libnvrtc.so.13", true),
            ("libnvrtc.so.13.0.88", true),
            ("libnvrtc.alt.so.13", false),
            ("libnvrtc.so.debug", false),
            ("libnvrtc-builtins.so.13.0", false),
        ] {
            assert_eq!(is_named(name, "libnvrtc.so"), is, "{name}");
        }
    }

    #[test]
    fn the_highest_version_of_a_folder_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libx.so.9", "libx.so.13", "libx.so", "libx.so.notes"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(newest(folder.path(), "libx.so").unwrap(), folder.path().join("libx.so.13"));
        assert_eq!(newest(folder.path(), "liby.so"), None);
    }
}
