//! Learns what the level words of a log are worth: what forwards another program's output gives all of it one level,
//! and then the level tells nothing about a line.

use super::text::{clean, is_frame, message, regex};
use regex::Regex;
use std::sync::LazyLock;

/// Lines of a log from which it is learnt.
const LEARN_LINES: usize = 64;
/// Least lines that are called errors, and of all lines this share, if the word means nothing.
const LOUD_MIN: usize = 8;
const LOUD_SHARE: (usize, usize) = (3, 4);
/// Bytes of a line to read.
const LINE_BYTES: usize = 512;

/// Lines that a logger calls an error: `ERROR`, glog's `E0302`, Ray's `[... E 77 77]`, `level=error`.
static LOUD: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?:^|[\[(|]|[\d)\]] | - )\s*(?:ERROR|CRITICAL|FATAL|SEVERE)\b[\s:\]|)\-]",
        r"|(?:^|[\[\s])[EF]\d{3,4} \d\d:\d\d:|\d: F [\w/.-]+:\d+\]|\[\d{4}-\d\d-\d\d [\d:,.]+ [EC] \d+ \d+\]",
        r#"|\blevel=(?:error|fatal)\b|"(?:level|severity)": ?"(?i:error|fatal|critical)"|^##\[error\]"#,
    ))
});

/// Returns true if its logger calls the line an error.
pub fn is_loud(line: &str) -> bool {
    LOUD.is_match(line)
}

/// Returns true if the first lines of a log are called errors one and all, and none is of a traceback.
pub fn is_loud_throughout(lines: &[u8]) -> bool {
    let (mut all, mut loud) = (0, 0);
    let own = lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    for line in own.take(LEARN_LINES) {
        let line = clean(&line[..line.len().min(LINE_BYTES)]);
        if line.contains("Traceback (most recent") || is_frame(message(&line)) {
            return false;
        }
        all += 1;
        loud += usize::from(is_loud(&line));
    }
    loud >= LOUD_MIN && loud * LOUD_SHARE.1 >= all * LOUD_SHARE.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_of_all_lines_means_nothing() {
        let of = |level: &str| -> String {
            (0..12).map(|n| format!("2026-03-01 10:11:{n:02} {level} loading part {n}\n")).collect()
        };
        let json: String =
            (0..12).map(|n| format!("{{\"severity\": \"ERROR\", \"message\": \"part {n}\"}}\n")).collect();
        assert!(is_loud_throughout(of("ERROR").as_bytes()));
        assert!(is_loud_throughout(json.as_bytes()));
        assert!(!is_loud_throughout(of("INFO").as_bytes()));
        assert!(!is_loud_throughout(format!("{}{}", of("INFO"), of("ERROR")).as_bytes()));
        let frame = "2026-03-01 10:11:12 ERROR Traceback (most recent call last):\n";
        assert!(!is_loud_throughout(format!("{frame}{}", of("ERROR")).as_bytes()));
    }
}
