//! Finds the libraries of CUDA at run time: the driver, the compiler NVRTC, cuBLASLt, and NCCL.
//!
//! One binary runs with and without them, and with those of CUDA 12 and 13: the newest that the driver can use is
//! taken. A missing library is a named error that says where it was looked for. The driver is opened before cudarc
//! looks it up by name, so that it finds the one opened here.

use cudarc::driver::sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use plimsoll_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// CUDA versions whose libraries are used, newest first. A driver loads what compilers up to its own version made.
const MAJORS: [u32; 2] = [13, 12];
/// Major version of NCCL, which has its own count.
const NCCL_MAJOR: u32 = 2;

/// A library that is opened at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lib {
    Driver,
    Nvrtc,
    CublasLt,
    Nccl,
}

impl Lib {
    /// Returns the beginning of its file names; a version may follow.
    fn stem(self) -> &'static str {
        match self {
            Lib::Driver => "libcuda.so",
            Lib::Nvrtc => "libnvrtc.so",
            Lib::CublasLt => "libcublasLt.so",
            Lib::Nccl => "libnccl.so",
        }
    }

    /// True if a driver up to `newest` can use a file of this version, 0 where its name has none.
    fn takes(self, version: u32, newest: u32) -> bool {
        match self {
            Lib::Driver => true,
            Lib::Nccl => version == NCCL_MAJOR,
            _ => MAJORS.contains(&version) && version <= newest,
        }
    }

    /// Returns names that the system's loader may know, newest first.
    fn names(self, newest: u32) -> Vec<String> {
        let stem = self.stem();
        match self {
            Lib::Driver => vec![format!("{stem}.1"), stem.to_string()],
            Lib::Nccl => vec![format!("{stem}.{NCCL_MAJOR}")],
            _ => {
                let majors = MAJORS.into_iter().filter(|&major| self.takes(major, newest));
                majors.map(|major| format!("{stem}.{major}")).collect()
            }
        }
    }

    /// Returns a library that must be open first.
    fn companion(self) -> Option<&'static str> {
        (self == Lib::Nvrtc).then_some("libnvrtc-builtins.so")
    }

    fn missing(self, newest: u32, looked: &[PathBuf], reason: &str) -> Error {
        let names = self.names(newest).join(" or ");
        // Wheels of CUDA 12 carry it in their names.
        let suffix = if newest < MAJORS[0] { "-cu12" } else { "" };
        let hint = |wheel: &str| {
            let toolkit = newest.min(MAJORS[0]);
            format!("pip install {wheel}{suffix}, or install the CUDA {toolkit} toolkit and set CUDA_HOME")
        };
        let error = match self {
            Lib::Driver => Error::new(
                "cuda-driver-missing",
                format!("the NVIDIA driver's library libcuda.so.1 was not found: {reason}"),
            )
            .hint("install the NVIDIA driver (in a container: start it with the NVIDIA runtime), or set run.device = \"cpu\""),
            Lib::Nvrtc => Error::new(
                "cuda-library-missing",
                format!("NVRTC, the CUDA compiler library {names}, was not found: {reason}"),
            )
            .hint(hint("nvidia-cuda-nvrtc")),
            Lib::CublasLt => {
                Error::new("cuda-library-missing", format!("cuBLASLt, {names}, was not found: {reason}"))
                    .hint(hint("nvidia-cublas"))
            }
            Lib::Nccl => Error::new("cuda-library-missing", format!("NCCL, {names}, was not found: {reason}"))
                .hint(format!("pip install nvidia-nccl-cu{}", newest.min(MAJORS[0])))
                .hint("or set run.exchange = \"sockets\", which needs no library"),
        };
        let folders: Vec<String> = looked.iter().map(|p| p.display().to_string()).collect();
        let then = if folders.is_empty() {
            "none of the usual folders exists".to_string()
        } else {
            format!("then in {}", folders.join(", "))
        };
        error.fact(format!("looked by the system's loader, {then}"))
    }
}

/// A library that stays open for the whole process.
#[derive(Debug)]
pub(crate) struct Opened {
    lib: Lib,
    /// Path, or a name that the loader knows.
    pub(crate) path: PathBuf,
    handle: Library,
}

impl Opened {
    /// Returns a function of the library.
    ///
    /// Errors: `cuda-library-missing`, where the library has none of this name.
    ///
    /// # Safety
    /// `F` is a function pointer with the signature of the library's header.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F> {
        // SAFETY: the caller promises the signature.
        let found = unsafe { self.handle.get::<F>(name.as_bytes()) };
        found.map(|symbol| *symbol).map_err(|err| {
            Error::new("cuda-library-missing", format!("{}: {err}", self.path.display()))
                .hint("plimsoll doctor shows which libraries are found")
        })
    }
}

/// Opens a library, unless it is open.
///
/// Errors: `cuda-driver-missing`, `cuda-library-missing`.
pub(crate) fn open(lib: Lib) -> Result<&'static Opened> {
    static OPENED: Mutex<Vec<&'static Opened>> = Mutex::new(Vec::new());
    let newest = if lib == Lib::Driver { MAJORS[0] } else { newest_major() };
    let mut opened = OPENED.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(found) = opened.iter().find(|found| found.lib == lib) {
        return Ok(found);
    }
    // Never closed: callers keep the addresses of its functions.
    let found: &'static Opened = Box::leak(Box::new(find(lib, newest)?));
    opened.push(found);
    Ok(found)
}

/// Returns the major CUDA version that the driver speaks; without a driver, as to compile alone, the newest of all.
fn newest_major() -> u32 {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> sys::CUresult;
    let ask = || -> Option<u32> {
        let driver = open(Lib::Driver).ok()?;
        // SAFETY: the signature is that of the driver's header.
        let get_version: GetVersion = unsafe { driver.function("cuDriverGetVersion") }.ok()?;
        let mut version = 0;
        // SAFETY: `version` is a valid place for an int.
        unsafe { get_version(&mut version) }.result().ok()?;
        Some(version as u32 / 1000)
    };
    ask().unwrap_or(MAJORS[0])
}

fn find(lib: Lib, newest: u32) -> Result<Opened> {
    let (chosen, usual) = (chosen_folders(), usual_folders());
    let mut reason = "no file of that name".to_string();
    let names = lib.names(newest);
    let by_loader = |names: &[String]| {
        names.iter().find_map(|name| {
            let handle = open_file(Path::new(name)).ok()?;
            Some(Opened { lib, path: PathBuf::from(name), handle })
        })
    };
    // First the user's folders, then the loader's name, unless a library's companion must be found too.
    let first = open_one(lib, newest, &chosen, &mut reason);
    let found = first.or_else(|| if lib.companion().is_none() { by_loader(&names[..1]) } else { None });
    let found = found.or_else(|| open_one(lib, newest, &usual, &mut reason)).or_else(|| by_loader(&names));
    found.ok_or_else(|| lib.missing(newest, &[chosen, usual].concat(), &reason))
}

/// Opens the best file of a library in these folders. `reason` gets why one did not open.
fn open_one(lib: Lib, newest: u32, folders: &[PathBuf], reason: &mut String) -> Option<Opened> {
    files(lib, newest, folders).into_iter().find_map(|path| {
        let folder = path.parent().expect("a file of a folder");
        if let Some(companion) = lib.companion().and_then(|stem| companion(folder, stem, &path)) {
            // Without it the library opens and then cannot compile: its own error says so.
            let _ = open_file(&companion).map(std::mem::forget);
        }
        match open_file(&path) {
            Ok(handle) => Some(Opened { lib, path, handle }),
            Err(err) => {
                // The source of the error, if there is one: the loader's own words.
                let words =
                    std::error::Error::source(&err).map_or_else(|| err.to_string(), |e| e.to_string());
                *reason = format!("{} does not open: {words}", path.display());
                None
            }
        }
    })
}

/// Returns the files of a library in these folders, those of the newest version in any folder first.
fn files(lib: Lib, newest: u32, folders: &[PathBuf]) -> Vec<PathBuf> {
    let major = |file: &Path| version(file).first().copied().unwrap_or(0);
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| named(folder, lib.stem()))
        .filter(|file| lib.takes(major(file), newest))
        .collect();
    // Stable: of files of one version the one of the earlier folder stays first.
    files.sort_by_key(|file| std::cmp::Reverse(major(file)));
    files
}

/// Returns the newest file in a folder whose name begins with `stem`, of the major version of `file`.
fn companion(folder: &Path, stem: &str, file: &Path) -> Option<PathBuf> {
    let major = version(file).first().copied();
    named(folder, stem).into_iter().find(|found| version(found).first().copied() == major)
}

fn open_file(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: opening a library runs its initialisers; these are NVIDIA's own, made to be opened so.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
}

/// Returns the files of a folder whose names begin with `stem`, highest version first.
fn named(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| is_named(n, stem)))
        .collect();
    files.sort_by_key(|path| std::cmp::Reverse(version(path)));
    files
}

/// True for `libnvrtc.so` and `libnvrtc.so.13`, but not `libnvrtc.so.debug`.
fn is_named(name: &str, stem: &str) -> bool {
    let Some(rest) = name.strip_prefix(stem) else { return false };
    rest.is_empty() || (rest.starts_with('.') && rest[1..].split('.').all(|part| part.parse::<u32>().is_ok()))
}

fn version(path: &Path) -> Vec<u32> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Returns the library folders of the toolkit that the user names.
fn chosen_folders() -> Vec<PathBuf> {
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
    folders_of(roots.flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib))))
}

/// Returns the usual folders of CUDA's libraries: pip's `nvidia` folders, conda, the toolkit, and the system.
fn usual_folders() -> Vec<PathBuf> {
    let sites = python_prefixes().into_iter().flat_map(|prefix| site_packages(&prefix));
    let packages = ["cu13/lib", "cuda_nvrtc/lib", "cublas/lib", "nccl/lib"];
    let pip = sites.flat_map(|site| packages.map(|package| site.join("nvidia").join(package)));
    let conda = variable("CONDA_PREFIX").map(|conda| conda.join("lib"));
    let system = [
        "/usr/local/cuda/lib64",
        "/usr/local/cuda/targets/x86_64-linux/lib",
        "/usr/local/nvidia/lib64",
        "/usr/local/nvidia/lib",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
    ];
    folders_of(pip.chain(conda).chain(system.map(PathBuf::from)))
}

/// Returns those that exist, each once.
fn folders_of(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for path in paths {
        if path.is_dir() && !folders.contains(&path) {
            folders.push(path);
        }
    }
    folders
}

/// Returns the path in an environment variable, unless it is empty.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns folders with a `lib/python3.x`: of the virtual environment, conda, the user, and the path's `python3`.
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

    fn names_of(files: &[PathBuf]) -> Vec<&str> {
        files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn the_newest_version_that_the_driver_can_use_comes_first() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in
            ["libnvrtc.so.12", "libnvrtc.so.12.8.93", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.txt"]
        {
            std::fs::write(old.path().join(name), "").unwrap();
        }
        std::fs::write(new.path().join("libnvrtc.so.13"), "").unwrap();
        std::fs::write(new.path().join("libnvrtc.so.14"), "").unwrap();
        let folders = [old.path().to_path_buf(), new.path().to_path_buf()];
        let found = |newest| files(Lib::Nvrtc, newest, &folders);
        assert_eq!(names_of(&found(13)), ["libnvrtc.so.13", "libnvrtc.so.12.8.93", "libnvrtc.so.12"]);
        assert_eq!(names_of(&found(14)), names_of(&found(13)), "14 is not known");
        assert_eq!(names_of(&found(12)), ["libnvrtc.so.12.8.93", "libnvrtc.so.12"]);
        assert_eq!(files(Lib::CublasLt, 13, &folders), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_library_is_opened_with_the_companion_of_its_version() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["libnvrtc-builtins.so.12.8", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"]
        {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let of = |file: &str| companion(folder.path(), "libnvrtc-builtins.so", Path::new(file));
        assert_eq!(of("libnvrtc.so.12").unwrap(), folder.path().join("libnvrtc-builtins.so.12.8"));
        assert_eq!(of("libnvrtc.so.13.0.88").unwrap(), folder.path().join("libnvrtc-builtins.so.13.0"));
        assert_eq!(of("libnvrtc.so.11.2"), None);
    }

    #[test]
    fn what_is_missing_is_named_for_the_driver_that_there_is() {
        let of = |newest| Lib::Nvrtc.missing(newest, &[], "no file of that name");
        let (new, old) = (of(13), of(12));
        assert!(new.message.contains("libnvrtc.so.13 or libnvrtc.so.12"), "{new}");
        assert!(new.hints[0].starts_with("pip install nvidia-cuda-nvrtc,"), "{new}");
        assert!(old.message.contains("library libnvrtc.so.12, was"), "{old}");
        let hint = "pip install nvidia-cuda-nvrtc-cu12, or install the CUDA 12 toolkit";
        assert!(old.hints[0].starts_with(hint), "{old}");
    }
}
