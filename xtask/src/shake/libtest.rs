//! What a test program said: reads the lines of libtest's harness, one at a time.
//!
//! A test's child processes may write into the middle of a line, so the summary and the last list of failures count,
//! not the lines of single tests: these only tell which tests had ended when a program died.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

/// A longer line is read as several.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The report of the harness.
#[derive(Debug, Default, PartialEq)]
pub struct Said {
    /// Names of the last list of failures.
    pub failed: Vec<String>,
    /// Tests that ended, ignored ones among them.
    pub ended: BTreeSet<String>,
    /// Ended tests that were not ignored.
    pub num_ended: usize,
    /// Tests that began, or ran for over a minute, and have no result.
    pub begun: BTreeSet<String>,
    /// Passed and failed tests of the summary; none if the program ended without.
    pub summary: Option<(usize, usize)>,
}

#[derive(Default)]
struct Reader {
    said: Said,
    /// A test whose line has no result yet: with one thread, its name is printed before it runs.
    open: Option<String>,
    is_in_list: bool,
    is_after_tests: bool,
}

/// Reads the output of a program.
pub fn read(mut output: impl BufRead) -> io::Result<Said> {
    let (mut reader, mut bytes) = (Reader::default(), Vec::new());
    loop {
        bytes.clear();
        if output.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        reader.line(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
    }
    let Reader { mut said, open, .. } = reader;
    said.begun.extend(open);
    said.begun.retain(|name| !said.ended.contains(name));
    Ok(said)
}

/// Reads the tests that a program lists with `--list --format terse`.
pub fn listed(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_string).collect()
}

impl Reader {
    fn line(&mut self, line: &str) {
        if line == "failures:" {
            (self.is_in_list, self.is_after_tests) = (true, true);
            self.said.failed.clear();
            return;
        }
        if self.is_in_list {
            match line.strip_prefix("    ") {
                Some(name) => self.said.failed.push(name.trim().to_string()),
                None => self.is_in_list = false,
            }
        }
        if let Some(summary) = line.strip_prefix("test result: ").and_then(summary) {
            self.said.summary = Some(summary);
        } else if !self.is_after_tests {
            self.test(line);
        }
    }

    fn test(&mut self, line: &str) {
        let after = line.strip_prefix("test ");
        if let Some((name, _)) = after.and_then(|text| text.split_once(" has been running for over ")) {
            self.said.begun.insert(name.to_string());
        } else if let Some((name, result)) = after.and_then(|text| text.split_once(" ... ")) {
            self.said.begun.extend(self.open.take());
            // `- should panic` and the like follow the name.
            let name = name.split(" - ").next().unwrap_or(name).to_string();
            let is_ignored = result.starts_with("ignored");
            if is_ignored || result.ends_with("ok") || result.ends_with("FAILED") {
                self.end(name, is_ignored)
            } else {
                self.open = Some(name)
            }
        } else if ["ok", "FAILED"].contains(&line)
            && let Some(name) = self.open.take()
        {
            self.end(name, false);
        }
    }

    fn end(&mut self, name: String, is_ignored: bool) {
        self.said.num_ended += usize::from(!is_ignored);
        self.said.ended.insert(name);
    }
}

/// Parses `ok. 3 passed; 1 failed; …` as passed and failed.
fn summary(text: &str) -> Option<(usize, usize)> {
    let (_, counts) = text.split_once(". ")?;
    let mut counts = counts.split("; ");
    let mut count = |word: &str| counts.next()?.strip_suffix(word)?.parse().ok();
    Some((count(" passed")?, count(" failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Said {
        read(text.as_bytes()).expect("a text")
    }

    fn names(set: &BTreeSet<String>) -> String {
        set.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_whole_run_is_read() {
        let found = said(
            "\nrunning 4 tests\ntest a::one ... ok\ntest a::two ... FAILED\ntest slow ... ignored, needs a card\n\
             test b - should panic ... ok\n\nfailures:\n\n---- a::two stdout ----\nfailures:\n    told ... by it\n\n\
             test result: ok. 9 passed; 9 failed\ntest of ... ok\n\n\nfailures:\n    a::two\n\n\
             test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\n",
        );
        assert_eq!((found.summary, found.failed), (Some((2, 1)), vec!["a::two".to_string()]));
        assert_eq!((names(&found.ended).as_str(), found.num_ended), ("a::one a::two b slow", 3));
        assert_eq!(names(&found.begun), "");
    }

    #[test]
    fn a_run_that_passes_has_no_failures() {
        let found = said("running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n");
        assert_eq!((found.summary, found.failed.len(), found.num_ended), (Some((1, 0)), 0, 1));
        assert_eq!(said("").summary, None);
        assert_eq!(said("test result: mine is good\n").summary, None);
    }

    #[test]
    fn lines_that_others_write_into_are_read() {
        let found = said("test a ... a child's line\nok\ntest b ... wordsok\ntest c ... more\nFAILED\n");
        assert_eq!((names(&found.ended), names(&found.begun)), ("a b c".into(), String::new()));
    }

    #[test]
    fn tests_that_were_running_are_named() {
        let found = said("test a ... ok\ntest b has been running for over 60 seconds\ntest c ... words\n");
        assert_eq!((names(&found.ended), names(&found.begun)), ("a".into(), "b c".into()));
        // One that ended after all is none of them.
        let found = said("test b has been running for over 60 seconds\ntest b ... ok\n");
        assert_eq!(names(&found.begun), "");
    }

    #[test]
    fn long_lines_and_other_bytes_are_read() {
        let mut bytes = vec![b'x'; 3 * LINE_BYTES_MAX as usize + 5];
        bytes.extend(b"\n\xff\xfe\ntest a ... ok\n");
        assert_eq!(names(&read(&bytes[..]).expect("a text").ended), "a");
    }

    #[test]
    fn a_list_is_read() {
        assert_eq!(listed("a::b: test\nc: benchmark\nd: test\n"), ["a::b", "d"]);
    }
}
