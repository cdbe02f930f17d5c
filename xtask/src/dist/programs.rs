//! Runs other programs to their end.

use std::process::Command;

/// Returns the stdout of a command.
pub fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|err| format!("{name}: {err}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Runs a command; its output goes to the terminal.
pub fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let status = command.stdout(std::io::stderr()).status().map_err(|err| format!("{name}: {err}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
