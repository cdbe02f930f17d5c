//! Names the program of a command that failed: what follows interpreters, shells and wrappers.

use super::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// Finds what comes before a command that failed, in the words of Python, setuptools and pip.
static FAILED: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?:\b[Cc]ommand:? |CalledProcessError: [Cc]ommand )(?:errored out with exit status \d+: |failed: )?(?P<command>\[[^\n]{1,2000}|'[^\n]{1,2000}|"[^\n]{1,2000}|`[^\n]{1,2000}|(?:git|/)[^\n]{1,2000})"#,
    )
});
/// A word of a command, with its quotes.
static WORD: LazyLock<Regex> = LazyLock::new(|| regex(r#"[^\s,'"\[\]`]+"#));
/// Programs that run the one after them.
const WRAPPERS: [&str; 16] = [
    "env", "sudo", "nice", "nohup", "time", "timeout", "stdbuf", "setsid", "exec", "bash", "sh", "zsh",
    "ionice", "xargs", "numactl", "ccache",
];
/// Words that a shell runs before the command that matters.
const PREPARES: [&str; 5] = ["cd", "export", "set", "source", "."];

/// Returns the program of the command that a message says failed: its name without folder, version and target.
pub fn program(message: &str) -> Option<String> {
    let found = FAILED.captures(message)?;
    let words: Vec<&str> = WORD.find_iter(&found["command"]).map(|word| word.as_str()).collect();
    of(&words)
}

fn of(words: &[&str]) -> Option<String> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let name = base(word);
        let is_option = word.starts_with('-');
        let is_assignment =
            word.split_once('=').is_some_and(|(name, _)| !name.is_empty() && !name.contains('/'));
        let is_number = word.chars().all(|c| c.is_ascii_digit() || c == '.')
            || word.ends_with('s') && word[..word.len() - 1].parse::<u32>().is_ok();
        if PREPARES.contains(&name.as_str()) {
            let next = words[at..]
                .iter()
                .position(|word| matches!(*word, "&&" | ";" | "||") || word.ends_with(';'))?;
            at += next + 1;
        } else if is_option || is_assignment || is_number || WRAPPERS.contains(&name.as_str()) {
            at += 1;
        } else {
            return Some(named(&name, &words[at + 1..]));
        }
    }
    None
}

/// Returns what a program stands for: the module that Python runs, or what is asked for of a search.
fn named(name: &str, rest: &[&str]) -> String {
    let module = || rest.iter().position(|word| *word == "-m").and_then(|at| rest.get(at + 1));
    match name {
        "python" | "pypy" if rest.iter().any(|word| word.ends_with("setup.py")) => "setup.py".into(),
        "python" | "pypy" => match module().map(|module| module.split('.').next().unwrap_or_default()) {
            Some("pip" | "ensurepip") => "pip".into(),
            _ => "python".into(),
        },
        // A compiler that is looked for and not there.
        "which" | "where" | "command" => {
            rest.iter().find(|word| !word.starts_with('-')).map_or(name.into(), |word| base(word))
        }
        _ => name.into(),
    }
}

/// Returns a program's name: `/usr/bin/x86_64-linux-gnu-gcc-12` is `gcc`.
fn base(word: &str) -> String {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word).to_ascii_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let name = name.strip_suffix('-').unwrap_or(name);
    // The target of a cross compiler.
    let plain = ["gcc", "g++", "cc", "c++", "ld", "as", "clang", "clang++"];
    match name.rsplit_once('-') {
        Some((_, last)) if plain.contains(&last) && name.contains("linux") => last.into(),
        _ if name.is_empty() => word.into(),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_command_that_failed() {
        for (message, expect) in [
            (
                "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/a/main.c', '-O3']' returned non-zero exit status 1.",
                Some("gcc"),
            ),
            (
                "CalledProcessError: Command '['C:\\\\tdm\\\\bin\\\\gcc.EXE', 'main.c']' returned non-zero exit status 1.",
                Some("gcc"),
            ),
            (
                "CalledProcessError: Command '['/opt/conda/bin/x86_64-conda-linux-gnu-cc', 'main.c']' returned",
                Some("cc"),
            ),
            (
                "CalledProcessError: Command '['git', 'clone', 'https://x']' returned non-zero exit status 128.",
                Some("git"),
            ),
            (
                "CalledProcessError: Command 'git clone https://x' returned non-zero exit status 128.",
                Some("git"),
            ),
            (
                "CalledProcessError: Command '['/opt/venv/bin/python3.11', '-m', 'pip', 'install', 'x']' returned non-zero",
                Some("pip"),
            ),
            (
                "CalledProcessError: Command '['/opt/venv/bin/python', 'train.py', '--out=a']' returned non-zero exit status 1.",
                Some("python"),
            ),
            (
                "CalledProcessError: Command 'cd /tmp/a && CUDA_HOME=/opt nvcc -c k.cu' returned non-zero exit status 2.",
                Some("nvcc"),
            ),
            (
                "CalledProcessError: Command '['bash', '-c', 'make -j8']' died with <Signals.SIGKILL: 9>.",
                Some("make"),
            ),
            ("error: command '/usr/bin/g++-12' failed with exit code 1", Some("g++")),
            ("ERROR: Command errored out with exit status 128: git clone -q https://x /tmp/y", Some("git")),
            ("CalledProcessError: Command '['which', 'c++']' returned non-zero exit status 1.", Some("c++")),
            (
                "CalledProcessError: Command '['timeout', '60', 'ffmpeg', '-i', 'a']' returned non-zero exit status 1",
                Some("ffmpeg"),
            ),
            ("ValueError: no command was given", None),
        ] {
            assert_eq!(program(message).as_deref(), expect, "{message}");
        }
    }
}
