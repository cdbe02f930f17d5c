//! The folder in which the pages' commands run, laid out like a clone, and the ways to run or parse one.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// An unknown flag: clap reads from left to right, so it complains of this one only if all before it is right.
const UNKNOWN_FLAG: &str = "--no-such-flag";

/// A clone without its sources, and what was run in it.
pub struct Shell {
    folder: tempfile::TempDir,
    ran: HashMap<String, (i32, String)>,
    seconds: Vec<(f64, String)>,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

impl Shell {
    /// `runs/` and `examples/` are copies, so that nothing is written into the repository.
    pub fn new() -> Shell {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = repository();
        for name in ["runs", "examples"] {
            fs::create_dir(folder.path().join(name)).expect("a folder in it");
            for entry in fs::read_dir(root.join(name)).expect("a folder of the repository").flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    fs::copy(entry.path(), folder.path().join(name).join(entry.file_name())).expect("a copy");
                }
            }
        }
        Shell { folder, ran: HashMap::new(), seconds: Vec::new() }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of a page. One name has one content, or what was run before would not be what is shown.
    pub fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.path(name);
        if let Ok(there) = fs::read_to_string(&path)
            && there != text
        {
            return Err(format!("`file={name}`: another block has this name and another text"));
        }
        fs::create_dir_all(path.parent().expect("a folder")).map_err(|err| format!("{name}: {err}"))?;
        fs::write(path, text).map_err(|err| format!("{name}: {err}"))
    }

    /// Exit code and output, both streams in the order of writing. A command that ran before is not run again.
    pub fn run(&mut self, command: &str) -> (i32, String) {
        let command = command[..end(command, "#")].trim_end();
        if let Some(ran) = self.ran.get(command) {
            return ran.clone();
        }
        let begun = Instant::now();
        let output = self.start(&["sh", "-c", &format!("exec 2>&1\n{command}")]);
        self.seconds.push((begun.elapsed().as_secs_f64(), command.to_string()));
        let code = output.status.code().unwrap_or(-1);
        let ran = (code, String::from_utf8_lossy(&output.stdout).into_owned());
        self.ran.insert(command.to_string(), ran.clone());
        ran
    }

    /// How many commands ran, and those that took longest.
    pub fn summary(&mut self) -> String {
        self.seconds.sort_by(|a, b| b.0.total_cmp(&a.0));
        let slowest =
            self.seconds.iter().take(5).map(|(seconds, command)| format!("\n  {seconds:.1} s  {command}"));
        format!("{} commands were run; the slowest:{}", self.ran.len(), slowest.collect::<String>())
    }

    /// Whether the parser knows the words of a Plimsoll command: the verb, the flags, and the form of their values.
    pub fn parse(&self, command: &str) -> Result<(), String> {
        let mut words = words(command)?;
        words.push(UNKNOWN_FLAG.into());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = self.start(&words);
        let error = String::from_utf8_lossy(&output.stderr);
        // `--samples N` in a sentence: a name in capitals is a placeholder.
        let is_placeholder = error.split("invalid value '").nth(1).and_then(|rest| rest.split('\'').next());
        let is_placeholder =
            is_placeholder.is_some_and(|value| value.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        if error.contains(UNKNOWN_FLAG) || is_placeholder {
            Ok(())
        } else {
            Err(error.lines().next().unwrap_or("it was not refused").to_string())
        }
    }

    fn start(&self, words: &[&str]) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
        let path = std::env::var("PATH").unwrap_or_default();
        let folder = binary.parent().expect("cargo's folder").display();
        // Rates that this machine's user has measured would choose other plans than those that are shown.
        Command::new(if words[0] == "plimsoll" { binary.as_os_str() } else { words[0].as_ref() })
            .args(&words[1..])
            .current_dir(self.folder.path())
            .env("PATH", format!("{folder}:{path}"))
            .env("XDG_CACHE_HOME", self.path(".cache"))
            .env("RUST_BACKTRACE", "0")
            .env("PYTHONPATH", repository().join("crates/python/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PLIMSOLL_PROGRAM", binary)
            .env("COLUMNS", "120")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap_or_else(|err| panic!("{}: {err}", words[0]))
    }
}

/// Returns the leading Plimsoll command, without shell syntax; `cargo run --release --` is the binary.
pub fn ours(command: &str) -> Option<String> {
    let command = command.trim();
    let rest = match command.strip_prefix("cargo run --release -- ") {
        Some(rest) => format!("plimsoll {rest}"),
        None => command.to_string(),
    };
    let (first, _) = rest.split_once(' ').unwrap_or((&rest, ""));
    (first == "plimsoll").then(|| rest[..end(&rest, "#|><;&")].trim_end().to_string())
}

/// Finds the first of these characters after a space and outside quotes: a comment, a pipe or a redirection.
fn end(command: &str, marks: &str) -> usize {
    let mut quote = None;
    for (index, c) in command.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, _) if marks.contains(c) && command[..index].ends_with(' ') => return index,
            _ => {}
        }
    }
    command.len()
}

/// Words of a command, quotes taken off.
fn words(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote that is never closed".into()) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_part_of_a_command() {
        for (command, expect) in [
            ("plimsoll plan a.toml   # why", Some("plimsoll plan a.toml")),
            ("cargo run --release -- train a.toml", Some("plimsoll train a.toml")),
            ("plimsoll import trl a > b.toml", Some("plimsoll import trl a")),
            ("plimsoll generate --prompt \"a # b\" | head", Some("plimsoll generate --prompt \"a # b\"")),
            ("kubectl logs x | plimsoll doctor --log -", None),
            ("cargo test", None),
        ] {
            assert_eq!(ours(command).as_deref(), expect, "{command}");
        }
    }

    #[test]
    fn words_of_a_command() {
        assert_eq!(
            words("a  'b c' \"d\"e ''"),
            Ok(vec!["a".into(), "b c".into(), "de".into(), String::new()])
        );
        assert!(words("a 'b").is_err());
    }

    #[test]
    fn a_wrong_command_does_not_parse() {
        let shell = Shell::new();
        for (command, fine) in [
            ("plimsoll plan RUN --min", true),
            ("plimsoll eval --model M --data D --samples N", true),
            ("plimsoll doctor --log a.log", true),
            ("plimsoll plam RUN", false),
            ("plimsoll plan RUN --mim", false),
            ("plimsoll eval --samples some --data D", false),
            ("plimsoll eval --samples N --data D", true),
        ] {
            assert_eq!(shell.parse(command).is_ok(), fine, "{command}: {:?}", shell.parse(command));
        }
    }
}
