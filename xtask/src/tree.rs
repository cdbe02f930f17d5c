//! The repository as the checks see it: paths and texts, read once.

use std::io;
use std::path::Path;

use crate::finding::Finding;
use crate::source::Source;

/// Larger files do not belong in a repository; their text is not read.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Folders that git ignores, by path from the root.
const IGNORED: [&str; 6] = [".git", "target", "dist", "runs/out", "bench/.venv", "bench/.cache"];
/// Folders that git ignores at any depth.
const IGNORED_ANYWHERE: [&str; 2] = ["target", "__pycache__"];

pub struct File {
    /// Path from the root, with `/`.
    pub path: String,
    pub bytes: u64,
    /// Text of a file that is UTF-8 and within the size limit.
    pub text: Option<String>,
}

pub struct Tree {
    /// Every file that git does not ignore, by path.
    pub files: Vec<File>,
}

impl Tree {
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path)?.text.as_deref()
    }

    /// Returns files whose path ends with `suffix`, with their texts.
    pub fn texts<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(suffix))
            .filter_map(|file| Some((file.path.as_str(), file.text.as_deref()?)))
    }

    /// Parses every Rust file; returns a finding for each that is not Rust.
    pub fn sources(&self) -> (Vec<Source>, Vec<Finding>) {
        let (mut sources, mut findings) = (Vec::new(), Vec::new());
        for (path, text) in self.texts(".rs") {
            match Source::new(path, text) {
                Ok(source) => sources.push(source),
                Err(finding) => findings.push(finding),
            }
        }
        (sources, findings)
    }
}

/// Returns all files below a folder that tidy does not read, by relative path, sorted.
pub fn files_below(folder: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?.iter().map(|file| format!("{name}/{file}")))
        } else {
            files.push(name)
        }
    }
    files.sort();
    Ok(files)
}

fn walk(root: &Path, folder: &str, files: &mut Vec<File>) -> io::Result<()> {
    for entry in root.join(folder).read_dir()? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if IGNORED.iter().any(|ignored| path.starts_with(ignored) && !is_longer_name(&path, ignored))
            || IGNORED_ANYWHERE.contains(&name.as_str())
        {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(root, &path, files)?;
        } else if kind.is_file() {
            let bytes = entry.metadata()?.len();
            let small = bytes <= FILE_BYTES_MAX;
            let text = if small { String::from_utf8(std::fs::read(entry.path())?).ok() } else { None };
            files.push(File { path, bytes, text });
        }
    }
    Ok(())
}

/// Returns true if `path` is another folder whose name only begins with `ignored` (`.github` and `.git`).
fn is_longer_name(path: &str, ignored: &str) -> bool {
    let rest = &path[ignored.len()..];
    // `bench/.venv*` is ignored with any suffix.
    !(rest.is_empty() || rest.starts_with('/') || ignored == "bench/.venv")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A repository of these files.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File {
            path: path.to_string(),
            bytes: text.len() as u64,
            text: Some(text.to_string()),
        };
        Tree { files: files.iter().map(file).collect() }
    }

    #[test]
    fn only_ignored_folders_are_left_out() {
        for (path, ignored, longer) in [
            (".git", ".git", false),
            (".gitignore", ".git", true),
            ("bench/.venv-trl", "bench/.venv", false),
            ("targets", "target", true),
        ] {
            assert_eq!(is_longer_name(path, ignored), longer, "{path}");
        }
    }

    #[test]
    fn this_repository_is_read() {
        let tree = Tree::read(crate::repository_root()).expect("the workspace is readable");
        assert!(tree.text("xtask/src/tidy.rs").is_some());
        // The folder of releases has its name.
        assert!(tree.text("xtask/src/dist/mod.rs").is_some());
        assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
    }
}
