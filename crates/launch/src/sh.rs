//! Quoting and lines for POSIX shells.

/// Returns `word` as one shell word, whatever it contains.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) { word.to_string() } else { always_quoted(word) }
}

/// Quotes `text` as one shell word, keeping its lines.
pub(crate) fn always_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a command line of quoted words.
pub(crate) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the command that raises the soft limit on open files to `files`, and leaves a higher one as it is.
pub(crate) fn raise_open_files(files: u64) -> String {
    format!(
        "[ \"$(ulimit -S -n)\" = unlimited ] || [ \"$(ulimit -S -n)\" -ge {files} ] || ulimit -S -n {files}"
    )
}

/// Returns lines that raise the soft limit on open files, and end the script if the hard limit is lower.
pub(crate) fn open_files(files: u64) -> String {
    let raise = raise_open_files(files);
    format!(
        "{raise} || {{\n    echo \"error: the run opens up to {files} files at a time, \
         and this host allows $(ulimit -H -n)\" >&2\n    exit 2\n}}\n"
    )
}

/// A line that makes a new secret, which stays in the environment of the run's processes.
pub(crate) const TOKEN: &str = r#"PLIMSOLL_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')""#;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        let words = ["a b", "it's", "$HOME", "`id`", "\"", "\\", "*", "", "-x", "ä", "a=b", "'\\''"];
        let command = format!("printf '%s\\n' {}", line(&words.map(String::from)));
        let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), words.map(|word| format!("{word}\n")).concat());
        assert_eq!(quoted("runs/first.toml"), "runs/first.toml");
    }

    #[test]
    fn a_limit_that_cannot_be_raised_is_named() {
        // What is higher already stays, as where no limit is set.
        for (before, after) in [("-S -n 64", "100"), ("-S -n 200", "200")] {
            let script = format!("ulimit {before}\n{}ulimit -S -n\n", open_files(100));
            let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), after, "{before}");
        }
        let script = format!("ulimit -n 64\n{}echo fine\n", open_files(65));
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("opens up to 65 files at a time, and this host allows 64"), "{stderr}");
    }
}
