//! `launch --submit`: runs the launcher's own tool on the files, and reports what it refuses.

use crate::output;
use plimsoll_base::{Error, Result};
use plimsoll_launch::k8s::Controller;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Output};

/// Lines of a tool's message that are shown.
const LINES_MAX: usize = 8;

/// A command that submits, or a part of it.
pub struct Submit {
    words: Vec<String>,
    how: How,
}

enum How {
    /// A tool whose output is passed on; a refusal is an error.
    Tool,
    /// A dry run, which changes nothing; a refusal is an error of this controller or of the cluster.
    Asked(Controller),
    /// The script that is the run; it replaces this process.
    Script,
}

impl Submit {
    pub fn tool(words: &[&str]) -> Submit {
        Submit::new(words, How::Tool)
    }

    pub fn asked(words: &[&str], controller: Controller) -> Submit {
        Submit::new(words, How::Asked(controller))
    }

    pub fn script(words: &[&str]) -> Submit {
        Submit::new(words, How::Script)
    }

    fn new(words: &[&str], how: How) -> Submit {
        Submit { words: words.iter().map(|word| word.to_string()).collect(), how }
    }

    /// Returns the command as a user would type it.
    pub fn shown(&self) -> String {
        let quoted = |word: &String| {
            if word.contains(|c: char| c.is_whitespace() || "'\"$`\\".contains(c)) {
                format!("'{}'", word.replace('\'', r"'\''"))
            } else {
                word.clone()
            }
        };
        self.words.iter().map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// Requires that `tool` is installed, before anything is written.
///
/// Errors: `launch-tool-missing`.
pub fn check_tool(tool: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if is_in(&path, tool) {
        Ok(())
    } else {
        Err(Error::new("launch-tool-missing", format!("--submit runs `{tool}`, which is not in PATH"))
            .hint("leave out --submit, and submit the files from a machine that has it"))
    }
}

fn is_in(path: &OsStr, tool: &str) -> bool {
    let runs = |file: std::path::PathBuf| {
        file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).any(|folder| runs(folder.join(tool)))
}

/// Runs the commands in order. Returns the exit code of a script that is the run.
///
/// Errors: `launch-refused`, `launch-crd-missing`.
pub fn submit(commands: &[Submit], quiet: bool) -> Result<ExitCode> {
    for command in commands {
        output::note(quiet, &format!("runs: {}", command.shown()));
        let mut process = Command::new(&command.words[0]);
        process.args(&command.words[1..]);
        let not_started = |err: std::io::Error| {
            Error::new("launch-refused", format!("`{}`: {err}", command.shown()))
                .hint("run the command yourself")
        };
        if let How::Script = command.how {
            return Err(not_started(process.exec()));
        }
        let output = process.output().map_err(not_started)?;
        if !output.status.success() {
            return Err(refused(command, &output));
        }
        if let How::Tool = command.how {
            output::text(&String::from_utf8_lossy(&output.stdout))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn refused(command: &Submit, output: &Output) -> Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let error = match command.how {
        How::Asked(controller) if said.contains("no matches for kind") => {
            let (kind, crd) = (controller.name(), controller.crd());
            let message = format!("this cluster has no {kind}: the definition {crd} is not installed");
            let other = match controller {
                Controller::JobSet => "pytorchjob",
                Controller::PyTorchJob => "jobset",
            };
            Error::new("launch-crd-missing", message)
                .hint(format!("ask for its controller to be installed, or try --kind {other}"))
        }
        _ => {
            let code = output.status.code().map_or("a signal".into(), |code| format!("exit code {code}"));
            Error::new("launch-refused", format!("`{}` ended with {code}", command.shown()))
                .hint("the files are written: change them, and run the command yourself")
        }
    };
    lines.into_iter().take(LINES_MAX).fold(error, |error, line| error.fact(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_a_file_that_may_be_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sbatch");
        assert!(!is_in(folder.path().as_os_str(), "sbatch"));
        std::fs::write(&file, "").expect("a file");
        assert!(!is_in(folder.path().as_os_str(), "sbatch"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        assert!(is_in(folder.path().as_os_str(), "sbatch"));
        assert!(!is_in(OsStr::new(""), "sbatch"));
    }

    #[test]
    fn a_command_is_shown_as_one_types_it() {
        assert_eq!(Submit::tool(&["sbatch", "launch-a/a.sbatch"]).shown(), "sbatch launch-a/a.sbatch");
        assert_eq!(Submit::script(&["sh", "it's a/start.sh"]).shown(), r"sh 'it'\''s a/start.sh'");
    }
}
