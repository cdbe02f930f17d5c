//! Plays a case with one binary: its commands in order, in an empty folder.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::artefacts::{Artefacts, Kind};
use super::cases::{AGENT, Case, LANGUAGE};

/// Time limit of one command.
const COMMAND_SECONDS_MAX: u64 = 120;

/// Runs the commands of a case and returns what they leave and print.
///
/// `old` runs the commands that begin with `old:`. Errors: a command that fails, with the end of its output.
pub fn play(case: &Case, old: &Path, binary: &Path, folder: &Path, root: &Path) -> Result<Artefacts, String> {
    let text = |path: &Path| path.display().to_string();
    for path in [folder.to_path_buf(), folder.join("out"), folder.join("home")] {
        fs::create_dir_all(&path).map_err(|err| format!("{}: {err}", text(&path)))?;
    }
    for (name, content) in case.files {
        fs::write(folder.join(name), content).map_err(|err| format!("{name}: {err}"))?;
    }
    let mut artefacts = Artefacts::default();
    for (index, command) in case.commands.iter().enumerate() {
        let (binary, command) = match command.strip_prefix("old:") {
            Some(rest) => (old, rest),
            None => (binary, *command),
        };
        let words = expand(command, folder);
        let name = format!("command {} ({})", index + 1, words[0]);
        let run =
            |words: &[String]| execute(binary, words, folder, root).map_err(|err| format!("{name}: {err}"));
        if matches!(words[0].as_str(), "train" | "collect") && !words.iter().any(|word| word == "--resume") {
            let mut words: Vec<String> = words.iter().filter(|word| *word != "-q").cloned().collect();
            words[0] = "plan".into();
            artefacts.add_plan(&format!("{name} plan"), &run(&words)?)?;
        }
        let output = run(&words)?;
        match words[0].as_str() {
            "plan" if !words.contains(&"--table".to_string()) => artefacts.add_plan(&name, &output)?,
            "plan" => artefacts.add_output(Kind::Plan, &name, &output),
            _ => artefacts.add_output(Kind::Summary, &name, &output),
        }
    }
    artefacts.add_folder(&folder.join("out"))?;
    Ok(artefacts)
}

/// Expands a command: `@llm` and `@agent` are settings that such cases share, `DIR` is the case's folder.
fn expand(command: &str, folder: &Path) -> Vec<String> {
    let command = command
        .replace("@llm", LANGUAGE)
        .replace("@agent", AGENT)
        .replace("DIR", &folder.display().to_string());
    command.split_whitespace().map(str::to_string).collect()
}

/// Runs a command to its end; returns its output.
fn execute(binary: &Path, words: &[String], folder: &Path, root: &Path) -> Result<String, String> {
    let file = |name: &str| fs::File::create(folder.join(name)).map_err(|err| format!("{name}: {err}"));
    let mut child = Command::new(binary)
        .args(words)
        .current_dir(root)
        // Keeps this user's settings away from a case: no calibration, no cache, no token.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", folder.join("home"))
        .stdin(Stdio::null())
        .stdout(file("stdout")?)
        .stderr(file("stderr")?)
        .spawn()
        .map_err(|err| format!("{}: {err}", binary.display()))?;
    let code = wait(&mut child)?;
    let read =
        |name: &str| fs::read(folder.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let said = read("stderr").unwrap_or_default();
    match code {
        0 => read("stdout").map_err(|err| err.to_string()),
        // `doctor --run` exits with 1 if the run it plans would not fit.
        1 if words[0] == "doctor" => read("stdout").map_err(|err| err.to_string()),
        code => {
            let error =
                said.lines().find(|line| line.starts_with("error")).or(said.lines().last()).unwrap_or("");
            Err(format!("exit {code}: {error}: {}", words.join(" ")))
        }
    }
}

fn wait(child: &mut Child) -> Result<i32, String> {
    let end = Instant::now() + Duration::from_secs(COMMAND_SECONDS_MAX);
    loop {
        if let Some(status) = child.try_wait().map_err(|err| err.to_string())? {
            return status.code().ok_or_else(|| format!("it was killed: {status}"));
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no end after {COMMAND_SECONDS_MAX} s"));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_expanded() {
        let words = expand("train a.toml @agent --set run.dir=DIR/out/run", Path::new("/t"));
        assert_eq!(words[..2], ["train", "a.toml"]);
        assert_eq!(words.last().map(String::as_str), Some("run.dir=/t/out/run"));
        assert!(words.contains(&"--json".to_string()));
    }
}
