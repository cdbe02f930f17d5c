//! The copies of `builtin:nano` that the cases damage.

use crate::run::{Run, SMALL};
use std::path::{Path, PathBuf};

/// The files of `builtin:nano`, as a model directory.
pub const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../files/assets/nano");

pub fn folder() -> Run {
    Run::new(&SMALL.replace("1e-6", "1e-5"))
}

/// Makes a directory `name` with a fresh copy of the nano model.
pub fn nano(folder: &Run, name: &str) -> PathBuf {
    let dir = folder.path(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).expect("a directory");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(NANO).join(file), dir.join(file)).expect("a copy");
    }
    dir
}

/// Requires that no file under `name` has the name of one that is being written.
pub fn check_whole(folder: &Run, name: &str) {
    let mut open = vec![folder.path(name)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).expect("readable").flatten() {
            let path = entry.path();
            assert!(!path.to_string_lossy().ends_with(".part"), "{} is left", path.display());
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            }
        }
    }
}
