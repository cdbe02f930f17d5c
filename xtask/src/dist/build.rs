//! Builds a release's binary: optimised, linked by zig against an old glibc's stubs, without the machine's paths.

use super::package::{GLIBC_MAX, TARGET};
use super::programs::succeed;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The linker, and its cargo command; both are Python packages that only carry programs.
const TOOLS: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.1"];

/// Builds in `target/dist`. Returns the paths of the binary and of the native part of the Python package.
pub fn build(root: &Path) -> Result<(PathBuf, PathBuf), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Fetched first, because the location of dependency sources is hidden below.
    let mut fetch = Command::new(&cargo);
    succeed(fetch.args(["fetch", "--locked", "--target", TARGET]).current_dir(root))?;
    let target = root.join("target/dist");
    let tools = tools(&target)?;
    let python = tools.join("python");
    let mut command = Command::new(tools.join("cargo-zigbuild"));
    command
        .args([
            "zigbuild",
            "--profile",
            "dist",
            "--locked",
            "--package",
            "plimsoll",
            "--package",
            "plimsoll-python",
            "--target",
        ])
        .arg(format!("{TARGET}.{}.{}", GLIBC_MAX.0, GLIBC_MAX.1))
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", python)
        .env("CARGO_ZIGBUILD_CACHE_DIR", target.join("zigbuild"))
        .env("ZIG_GLOBAL_CACHE_DIR", target.join("zig"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(root).join("\x1f"))
        .env("CARGO", &cargo)
        .current_dir(root);
    succeed(&mut command)?;
    let built = target.join(TARGET).join("dist");
    Ok((built.join("plimsoll"), built.join("lib_native.so")))
}

/// Refuses a binary that names a folder of this machine.
pub fn check_paths(bytes: &[u8], root: &Path) -> Result<(), String> {
    let folders = [root.to_path_buf(), cargo_home()];
    let holds = |folder: &&PathBuf| {
        let path = folder.as_os_str().as_encoded_bytes();
        !path.is_empty() && bytes.windows(path.len()).any(|window| window == path)
    };
    match folders.iter().find(holds) {
        Some(folder) => {
            Err(format!("the binary names {}, so other machines build another one", folder.display()))
        }
        None => Ok(()),
    }
}

/// Returns the flags that make paths in the binary the same on every machine.
fn flags(root: &Path) -> Vec<String> {
    let map = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let registry = cargo_home().join("registry/src");
    // Each registry has a folder whose name depends on the registry's location.
    let mut sources: Vec<PathBuf> =
        fs::read_dir(&registry).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    sources.sort();
    let sources = sources.iter().map(|folder| map(folder, "/registry"));
    // The last match wins.
    [map(&cargo_home(), "/cargo"), map(root, "/plimsoll")].into_iter().chain(sources).collect()
}

fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// Returns the `bin` folder of a virtual environment with the tools, made once.
fn tools(target: &Path) -> Result<PathBuf, String> {
    let (folder, done) = (target.join("tools"), target.join("tools/installed"));
    let wanted = TOOLS.join(" ");
    if fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(folder.join("bin"));
    }
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    succeed(pip.args(["-m", "pip", "install", "-q"]).args(TOOLS))?;
    fs::write(&done, wanted).map_err(|err| format!("{}: {err}", done.display()))?;
    Ok(folder.join("bin"))
}
