//! Embeds the pages of `docs/errors/` into the binary, sorted by slug, so that `explain` needs no files.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let pages = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../docs/errors");
    println!("cargo::rerun-if-changed={}", pages.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&pages)
        .unwrap_or_else(|err| panic!("{}: {err}", pages.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        // The list of the pages is no page.
        .filter(|path| path.file_name().is_some_and(|name| name != "README.md"))
        .collect();
    // By slug, not by file name: `a.md` sorts after `a-b.md`, but `a` before `a-b`.
    files.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut table = String::from("&[\n");
    for path in files {
        let path = path.canonicalize().expect("the folder listed it");
        println!("cargo::rerun-if-changed={}", path.display());
        let slug = path.file_stem().expect("it ends in .md").to_string_lossy().into_owned();
        writeln!(table, "    ({slug:?}, include_str!({:?})),", path.display().to_string())
            .expect("a String takes any text");
    }
    table.push_str("]\n");
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("pages.in");
    fs::write(out, table).expect("cargo's output folder can be written");
}
