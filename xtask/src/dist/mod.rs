//! `cargo xtask dist`: packs a release in `dist/`: a Python wheel that carries the binary and the package, an archive
//! for cargo-binstall and people, and their checksums. The same commit gives the same bytes, wherever it is built.

mod archive;
mod build;
mod elf;
mod files;
pub mod notes;
mod package;
mod programs;
mod wheel;

use package::{GLIBC_MAX, Package, Packed};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub const USAGE: &str = "cargo xtask dist [--binary FILE [--native FILE]] [--any-glibc] [--out DIR]";

/// Largest wheel, in bytes.
const WHEEL_BYTES_MAX: usize = 40 << 20;
const SUMS: &str = "SHA256SUMS";

struct Options {
    /// A binary to pack unchanged, instead of building one.
    binary: Option<PathBuf>,
    /// The native part of the Python package, next to such a binary; a wheel without it has no collectors.
    native: Option<PathBuf>,
    /// Accepts a binary that needs a newer glibc or names folders of this machine, to try out a package.
    any_glibc: bool,
    out: PathBuf,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let options = options(arguments, root)?;
    Some(match dist(&options, root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("dist: {what}");
            ExitCode::FAILURE
        }
    })
}

fn options(arguments: &[String], root: &Path) -> Option<Options> {
    let mut options = Options { binary: None, native: None, any_glibc: false, out: root.join("dist") };
    let mut flags = arguments.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "--binary" => options.binary = Some(flags.next()?.into()),
            "--native" => options.native = Some(flags.next()?.into()),
            "--any-glibc" => options.any_glibc = true,
            "--out" => options.out = flags.next()?.into(),
            _ => return None,
        }
    }
    Some(options)
}

fn dist(options: &Options, root: &Path) -> Result<(), String> {
    let package = Package::read(root)?;
    let epoch = epoch(root)?;
    let (binary, native) = match &options.binary {
        Some(binary) => (binary.clone(), options.native.clone()),
        None => build::build(root).map(|(binary, native)| (binary, Some(native)))?,
    };
    let (bytes, mut glibc) = read(&binary, options, root)?;
    let native = native.map(|native| read(&native, options, root)).transpose()?;
    let files = files::of(&binary, bytes, root)?;
    let python = files::python(
        native.map(|(bytes, needed)| {
            glibc = glibc.max(needed);
            bytes
        }),
        root,
    )?;
    let of_wheel: Vec<_> = files.iter().chain(&python).collect();
    let wheel = wheel::pack(&package, &of_wheel, glibc.max(GLIBC_MAX), epoch)?;
    if wheel.bytes.len() > WHEEL_BYTES_MAX {
        return Err(format!("{} has {} bytes, at most {WHEEL_BYTES_MAX}", wheel.name, wheel.bytes.len()));
    }
    let archive = archive::pack(&package, &files, epoch)?;
    write(&options.out, &[wheel, archive])
}

/// Reads a built file, and the glibc that it needs. Refuses one that other machines could not run, or would build
/// otherwise.
fn read(path: &Path, options: &Options, root: &Path) -> Result<(Vec<u8>, elf::Version), String> {
    let failed = |what: String| format!("{}: {what}", path.display());
    let bytes = fs::read(path).map_err(|err| failed(err.to_string()))?;
    let needs = elf::needs(&bytes).map_err(failed)?;
    eprintln!("dist: {} of {} bytes needs {needs}", path.display(), bytes.len());
    if !options.any_glibc {
        elf::check(&needs, GLIBC_MAX)?;
        build::check_paths(&bytes, root)?;
    }
    Ok((bytes, needs.glibc))
}

/// Writes the files and their checksums. Does not remove packages of other versions.
fn write(out: &Path, packed: &[Packed]) -> Result<(), String> {
    let failed = |path: &Path, err: std::io::Error| format!("{}: {err}", path.display());
    fs::create_dir_all(out).map_err(|err| failed(out, err))?;
    let mut sums = String::new();
    for Packed { name, bytes } in packed {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(|err| failed(&path, err))?;
        let digest = Sha256::digest(bytes);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("dist: {} has {} bytes", path.display(), bytes.len());
        sums += &format!("{hex}  {name}\n");
    }
    print!("{sums}");
    let path = out.join(SUMS);
    fs::write(&path, sums).map_err(|err| failed(&path, err))
}

/// Returns the timestamp of all packed files, in seconds since 1970: SOURCE_DATE_EPOCH, or the commit's.
fn epoch(root: &Path) -> Result<i64, String> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut git = Command::new("git");
            git.args(["log", "-1", "--format=%ct"]).current_dir(root);
            programs::output(&mut git)
                .map_err(|what| format!("{what}; without git, set SOURCE_DATE_EPOCH"))?
        }
    };
    text.trim().parse().map_err(|_| format!("`{}` is not a number of seconds", text.trim()))
}

#[cfg(test)]
mod tests;
