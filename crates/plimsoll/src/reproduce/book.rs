//! The reproductions of `runs/reproduce/`, by name, and those in files. Each is copied into its folder with everything
//! that its run files name, so that the folder is a record that needs no repository.

use plimsoll_base::{Error, Result, open_regular};
use plimsoll_config::{Reproduction, load_reproduction, reproduction_of_text};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// (path from the root of the repository, text) of every file below `runs/reproduce/`, sorted.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/reproduce.in"));
/// Bounds what is read of a file at a time.
const BUFFER_BYTES: usize = 1 << 20;
const FOLDER: &str = "runs/reproduce/";

/// A reproduction, and where its files come from.
pub struct Book {
    pub name: String,
    pub what: Reproduction,
    /// By paths as run files write them.
    files: Vec<(String, Content)>,
}

enum Content {
    Embedded(&'static str),
    Disk(PathBuf),
}

/// Returns the names of the embedded reproductions, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().filter_map(|(path, _)| name_of(path))
}

fn name_of(path: &str) -> Option<&str> {
    path.strip_prefix(FOLDER)?.strip_suffix(".toml").filter(|name| !name.contains('/'))
}

impl Book {
    /// Opens an embedded reproduction by its name, or that in the file `name`, if it ends in `.toml`.
    ///
    /// Errors: `reproduction-unknown`, `run-file-missing`; those of reading.
    pub fn open(name: &str) -> Result<Book> {
        let path = Path::new(name);
        if path.extension().is_some_and(|ending| ending == "toml") {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Book::with(stem, load_reproduction(path)?, Content::Disk(path.into()), &|file| {
                Some(Content::Disk(file.into())).filter(|_| Path::new(file).is_file())
            });
        }
        let path = format!("{FOLDER}{name}.toml");
        let find = |file: &str| FILES.iter().find(|(path, _)| *path == file).map(|(_, text)| *text);
        let text = find(&path).ok_or_else(|| unknown(name))?;
        let what = reproduction_of_text(text.to_string(), Path::new(&path))?;
        Book::with(name.into(), what, Content::Embedded(text), &|file| find(file).map(Content::Embedded))
    }

    fn with(
        name: String,
        what: Reproduction,
        own: Content,
        find: &dyn Fn(&str) -> Option<Content>,
    ) -> Result<Book> {
        let mut files = vec![(format!("{name}.toml"), own)];
        for file in what.stage.iter().map(|stage| &stage.run).chain(&what.files) {
            let content = find(file).ok_or_else(|| {
                Error::usage("run-file-missing", format!("{name}: there is no file {file}"))
                    .hint("paths are from the folder in which the command runs, as those in run files are")
            })?;
            files.push((file.clone(), content));
        }
        Ok(Book { name, what, files })
    }

    /// Returns the sha256 of each file that a stage reads. The claim may change: it is compared anew at each call.
    ///
    /// Errors: `data-missing`.
    pub fn hashes(&self) -> Result<BTreeMap<String, String>> {
        let hash = |(name, content): &(String, Content)| {
            let hash = match content {
                Content::Embedded(text) => hexadecimal(&Sha256::digest(text)),
                Content::Disk(path) => sha256(path)?,
            };
            Ok((name.clone(), hash))
        };
        let own = format!("{}.toml", self.name);
        self.files.iter().filter(|(name, _)| *name != own).map(hash).collect()
    }

    /// Writes the files into `folder`.
    ///
    /// Errors: `write-failed`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for (name, content) in &self.files {
            let path = folder.join(name);
            let failed = |err: io::Error| {
                Error::io("write-failed", &path, &err).hint("give --out a folder that can be written")
            };
            fs::create_dir_all(path.parent().expect("it is in a folder")).map_err(failed)?;
            match content {
                Content::Embedded(text) => fs::write(&path, text).map_err(failed)?,
                // The folder may be the one that the files are in.
                Content::Disk(from) if is_same(from, &path) => {}
                Content::Disk(from) => fs::copy(from, &path).map(|_| ()).map_err(failed)?,
            }
        }
        Ok(())
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// Returns the sha256 of a file, in hexadecimal.
///
/// Errors: `data-missing`.
pub fn sha256(path: &Path) -> Result<String> {
    let failed = |err: io::Error| {
        Error::io("data-missing", path, &err).hint("put the file there; paths are from the folder of the run")
    };
    let (mut hasher, mut file) = (Sha256::new(), open_regular(path).map_err(failed)?);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            length => hasher.update(&buffer[..length]),
        }
    }
    Ok(hexadecimal(&hasher.finalize()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unknown(name: &str) -> Error {
    let error = Error::usage("reproduction-unknown", format!("no reproduction is called `{name}`"));
    let nearest = names().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    match nearest {
        Some((distance, known)) if distance <= (known.len() / 3).max(2) => {
            error.hint(format!("did you mean `{known}`?"))
        }
        _ => error.hint("`plimsoll reproduce --list` lists them; FILE.toml is one of your own"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn every_embedded_reproduction_opens_and_its_stages_are_run_files() {
        assert!(names().count() >= 12 && FILES.is_sorted_by_key(|(path, _)| *path));
        for name in names() {
            let book = Book::open(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            let places = ["https://", "hf:", "own "];
            assert!(places.iter().any(|place| book.what.source.starts_with(place)), "{name}");
            for (path, content) in &book.files {
                let Content::Embedded(text) = content else { panic!("{path} is embedded") };
                if book.what.stage.iter().any(|stage| stage.run == *path) {
                    plimsoll_config::load_text(text.to_string(), Path::new(path), &[], iter::empty())
                        .unwrap_or_else(|error| panic!("{path}: {error}"));
                }
            }
        }
    }

    #[test]
    fn a_misspelt_name_is_corrected() {
        let hints = |name: &str| Book::open(name).err().map(|error| error.hints.concat()).unwrap_or_default();
        assert!(hints("arithmetik").contains("`arithmetic`"), "{}", hints("arithmetik"));
        assert!(hints("zzzzzzzzzzzzzz").contains("--list"));
    }
}
