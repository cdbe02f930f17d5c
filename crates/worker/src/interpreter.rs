//! Which Python runs the code of users: that of a key, or of the virtual environment that is meant without one.

use plimsoll_base::{Error, Result};
use std::path::{Path, PathBuf};

/// Returns the folder of the virtual environment in whose `bin` a program lies: one that pip put there.
fn environment_of(program: &Path) -> Option<PathBuf> {
    let bin = program.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "bin"))?;
    let folder = bin.parent()?;
    folder.join("pyvenv.cfg").is_file().then(|| folder.to_path_buf())
}

/// Returns the virtual environment that is meant where no key names an interpreter, and what names it: that in which
/// this program lies, which need not be active, else `$VIRTUAL_ENV`.
fn environment() -> Option<(String, &'static str)> {
    let of_program = std::env::current_exe().ok().and_then(|program| environment_of(&program));
    let of_program = of_program.and_then(|folder| folder.into_os_string().into_string().ok());
    let active = || std::env::var("VIRTUAL_ENV").ok().filter(|folder| !folder.is_empty());
    of_program
        .map(|folder| (folder, "this program lies in it"))
        .or_else(|| active().map(|folder| (folder, "$VIRTUAL_ENV names it")))
}

/// Returns the interpreter of code whose key `python` names none: that of `environment`, else `python3`.
pub fn default_python() -> String {
    let python = environment().and_then(|(folder, _)| {
        let candidates = ["bin/python", "bin/python3"].map(|name| Path::new(&folder).join(name));
        candidates.into_iter().find(|path| is_executable(path))?.into_os_string().into_string().ok()
    });
    python.unwrap_or_else(|| "python3".into())
}

/// Finds the interpreter: a path, name or virtual environment; by default that of the virtual environment in which this
/// program lies, or `$VIRTUAL_ENV`'s, else `python3` in PATH.
///
/// Errors: `env-python-missing`, with the places searched.
pub fn find_python(python: Option<&str>) -> Result<PathBuf> {
    let active = environment();
    let wanted = match (python, &active) {
        (Some(python), _) => python,
        (None, Some((folder, _))) => folder,
        (None, None) => "python3",
    };
    let path = Path::new(wanted);
    let candidates: Vec<PathBuf> = if path.is_dir() {
        ["bin/python", "bin/python3"].iter().map(|name| path.join(name)).collect()
    } else if wanted.contains('/') {
        vec![path.to_path_buf()]
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join(wanted)).collect()
    };
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(std::path::absolute(found).unwrap_or_else(|_| found.clone()));
    }
    let source = match (python, &active) {
        (Some(_), _) => "`python` names it",
        (None, Some((_, named_by))) => named_by,
        (None, None) => "nothing names another",
    };
    let error = Error::usage("env-python-missing", format!("no interpreter `{wanted}` ({source})"));
    let places =
        candidates.iter().take(12).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(error
        .fact(format!("looked for {}", if places.is_empty() { "it in an empty PATH".into() } else { places }))
        .hint("set `python` to an interpreter or to the folder of a virtual environment, or activate one"))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_pip_installed_lies_in_a_virtual_environment() {
        let folder = std::env::temp_dir().join(format!("plimsoll-venv-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("bin")).expect("a folder");
        let program = folder.join("bin/plimsoll");
        assert_eq!(environment_of(&program), None);
        std::fs::write(folder.join("pyvenv.cfg"), "home = /usr/bin\n").expect("a file");
        assert_eq!(environment_of(&program), Some(folder.clone()));
        assert_eq!(environment_of(&folder.join("lib/plimsoll")), None);
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
