//! Asks git about the repository. Changes nothing in it.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

/// Returns what git prints, run at `root`.
///
/// Errors: those of starting git, and what it wrote to stderr when it fails.
pub fn output(root: &Path, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the number of commits of `HEAD` that `commit` does not have; `None` where git does not know `commit`.
pub fn commits_since(root: &Path, commit: &str) -> Option<usize> {
    output(root, ["rev-list", "--count", &format!("{commit}..HEAD")]).ok()?.trim().parse().ok()
}
