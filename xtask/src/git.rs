//! Asks git about the repository. Changes nothing in it.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

/// Returns what git prints, run at `root`.
///
/// Errors: those of starting git, and what it wrote to stderr when it fails.
pub fn output(root: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<String> {
    bytes(root, arguments).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns what git prints as `output` does, for commands whose output is not text.
pub fn bytes(root: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<Vec<u8>> {
    let output = Command::new("git").args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    Ok(output.stdout)
}

/// Returns the number of commits of `HEAD` that `commit` does not have; `None` where git does not know `commit`.
pub fn commits_since(root: &Path, commit: &str) -> Option<usize> {
    output(root, ["rev-list", "--count", &format!("{commit}..HEAD")]).ok()?.trim().parse().ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Makes a repository below the system's temporary folder, with a commit of files, by path and text, for each list.
    pub fn repository(name: &str, commits: &[&[(&str, &str)]]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).expect("the folder can be made");
        git(&root, &["init", "-q"]);
        for (index, files) in commits.iter().enumerate() {
            write(&root, files);
            git(&root, &["add", "."]);
            git(&root, &["commit", "-q", "--allow-empty", "-m", &format!("commit {index}")]);
        }
        root
    }

    pub fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
            fs::write(path, text).expect("the file can be written");
        }
    }

    /// Runs git as an author of its own, without the hooks of this machine.
    pub fn git(root: &Path, arguments: &[&str]) {
        let set = ["user.name=a", "user.email=a@b", "core.hooksPath=none", "commit.gpgSign=false"];
        let words = set.iter().flat_map(|set| ["-c", set]).chain(arguments.iter().copied());
        output(root, words).expect("git does as it is asked");
    }

    #[test]
    fn commits_are_counted_where_git_knows_them() {
        let root = repository("git", &[&[("a", "1")], &[("a", "2")], &[("a", "3")]]);
        assert_eq!(commits_since(&root, "HEAD~2"), Some(2));
        assert_eq!(commits_since(&root, "HEAD"), Some(0));
        assert_eq!(commits_since(&root, "no-commit"), None);
        assert!(
            output(&root, ["no-command"])
                .expect_err("git has no such command")
                .to_string()
                .contains("no-command")
        );
        fs::remove_dir_all(&root).expect("the folder can be removed");
    }
}
