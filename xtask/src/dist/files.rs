//! The files of a release: the binary, what it generates (completions and manual pages), the Python package, and two
//! texts.

use super::programs::output;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of a release.
pub struct File {
    pub kind: Kind,
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The kind of a file, which decides where a package puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Binary,
    Bash,
    Zsh,
    Fish,
    Man,
    License,
    Readme,
    /// A file of the Python package, with its path in it; only wheels have it.
    Python,
}

/// Shells, with the file names under which they look for completions.
const SHELLS: [(Kind, &str, &str); 3] = [
    (Kind::Bash, "bash", "plimsoll"),
    (Kind::Zsh, "zsh", "_plimsoll"),
    (Kind::Fish, "fish", "plimsoll.fish"),
];

/// Where the native part of the Python package is in it.
const NATIVE: &str = "plimsoll/collect/_native.abi3.so";

/// Returns the Python package: its sources, and its native part where one was built.
pub fn python(native: Option<Vec<u8>>, root: &Path) -> Result<Vec<File>, String> {
    let home = root.join("crates/python/python");
    let (mut files, mut folders) = (Vec::new(), vec![home.clone()]);
    while let Some(folder) = folders.pop() {
        let unreadable = |err: std::io::Error| format!("{}: {err}", folder.display());
        for entry in fs::read_dir(&folder).map_err(unreadable)?.flatten() {
            let path = entry.path();
            let is_source = path.extension().is_some_and(|end| end == "py" || end == "typed");
            if path.is_dir() && path.file_name().is_some_and(|name| name != "__pycache__") {
                folders.push(path);
            } else if is_source {
                let name = path.strip_prefix(&home).unwrap_or(&path).to_string_lossy().into_owned();
                files.push(File { kind: Kind::Python, name, bytes: fs::read(&path).map_err(unreadable)? });
            }
        }
    }
    files.extend(native.map(|bytes| File { kind: Kind::Python, name: NATIVE.into(), bytes }));
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Returns all files of a release of `binary`, whose content is `bytes`.
pub fn of(binary: &Path, bytes: Vec<u8>, root: &Path) -> Result<Vec<File>, String> {
    let binary = fs::canonicalize(binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let mut files = vec![File { kind: Kind::Binary, name: "plimsoll".into(), bytes }];
    for (kind, shell, name) in SHELLS {
        let script = output(Command::new(&binary).args(["completions", shell]))?;
        files.push(File { kind, name: name.into(), bytes: script.into_bytes() });
    }
    let folder = Scratch::new()?;
    output(Command::new(&binary).arg("man").arg(&folder.0))?;
    let unreadable = |path: &Path, err: std::io::Error| format!("{}: {err}", path.display());
    let entries = fs::read_dir(&folder.0).map_err(|err| unreadable(&folder.0, err))?;
    let mut pages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pages.sort();
    let texts = [(Kind::License, root.join("LICENSE")), (Kind::Readme, root.join("README.md"))];
    for (kind, path) in pages.into_iter().map(|path| (Kind::Man, path)).chain(texts) {
        let bytes = fs::read(&path).map_err(|err| unreadable(&path, err))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(File { kind, name, bytes });
    }
    Ok(files)
}

/// A folder that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, String> {
        let path = std::env::temp_dir().join(format!("plimsoll-dist-{}", std::process::id()));
        fs::create_dir(&path).map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
