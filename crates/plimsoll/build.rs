//! Embeds the pages of `docs/errors/` and the run files of `runs/`, sorted by name, for `explain` and `init`, and the
//! files below `runs/reproduce/`, sorted by path, for `reproduce`.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    embed("docs/errors", "md", "pages.in");
    embed("runs", "toml", "runs.in");
    embed_below("runs/reproduce", "reproduce.in");
}

/// Writes `table` with a row (path from the root of the repository, text) for each file below `folder`.
fn embed_below(folder: &str, table: &str) {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let (mut folders, mut files) = (vec![PathBuf::from(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        println!("cargo::rerun-if-changed={}", root.join(&folder).display());
        for entry in fs::read_dir(root.join(&folder)).expect("the folder is there") {
            let path = folder.join(entry.expect("a readable folder").file_name());
            // What a Python interpreter leaves is no file of a reproduction.
            match (root.join(&path).is_dir(), path.ends_with("__pycache__")) {
                (true, false) => folders.push(path),
                (true, true) => {}
                (false, _) => files.push(path),
            }
        }
    }
    let names = files.iter().map(|path| path.to_str().expect("names are ASCII").to_string());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let mut text = String::from("&[\n");
    for name in names {
        let path = root.join(&name).canonicalize().expect("the folder listed it");
        println!("cargo::rerun-if-changed={}", path.display());
        writeln!(text, "    ({name:?}, include_str!({:?})),", path.display().to_string())
            .expect("a String takes any text");
    }
    text.push_str("]\n");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join(table);
    fs::write(out, text).expect("cargo's output folder can be written");
}

/// Writes `table` with a row (name, text) for each file of the repository's `folder` that ends in `.ending`.
fn embed(folder: &str, ending: &str, table: &str) {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let folder = root.join(folder);
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|err| panic!("{}: {err}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        // The list of pages is not a page.
        .filter(|path| path.file_name().is_some_and(|name| name != "README.md"))
        .collect();
    // By stem, not by file name: `a.md` sorts after `a-b.md`, but `a` before `a-b`.
    files.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut text = String::from("&[\n");
    for path in files {
        let path = path.canonicalize().expect("the folder listed it");
        println!("cargo::rerun-if-changed={}", path.display());
        let name = path.file_stem().expect("it has an ending").to_string_lossy().into_owned();
        writeln!(text, "    ({name:?}, include_str!({:?})),", path.display().to_string())
            .expect("a String takes any text");
    }
    text.push_str("]\n");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join(table);
    fs::write(out, text).expect("cargo's output folder can be written");
}
