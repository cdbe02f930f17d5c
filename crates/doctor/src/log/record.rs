//! Joins lines to records before any rule reads them: an exception's name that is alone on its line belongs to the
//! message below it, and a warning's category to its text.
//!
//! A record is a byte range of the window, from the beginning of its first line to the end of its last.

use super::text::{after_prefix, clean, is_frame, message, regex, tag};
use memchr::{memchr, memrchr};
use regex::Regex;
use std::sync::LazyLock;

/// Most lines after the first.
const LINES_MAX: usize = 8;
/// Most of them that are not indented: a paragraph.
const PARAGRAPH_MAX: usize = 3;
/// Most bytes of a line to read.
const LINE_BYTES: usize = 2 << 10;
/// Most bytes of spaces and prefixes before a line's own words.
const INDENT_WITHIN: usize = 80;
/// Widths at which terminals and schedulers break lines.
const WRAP_WIDTHS: [usize; 6] = [80, 100, 120, 132, 160, 200];

/// A name without a message.
static BARE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Timeout|Died)(?:\([A-Za-z]\w*\))?:\s*$|^(?:[A-Za-z_]\w*\.)+(?:errors?|exceptions?|exc)\.[A-Z]\w+:\s*$",
    )
});
/// A warning's category, without its text.
static CATEGORY: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:^|[\s:])[A-Z]\w*Warning:\s*$"));
/// A warning whose text may go on.
static WARNED: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:^|[\s:])[A-Z]\w*Warning: \S"));
/// A line that begins something else.
static BEGINS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"^(?:Traceback \(most|During handling of|The above exception|wandb:|(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit)\b|\[|\{|Killed|Aborted)",
    )
});

/// How a record goes on after its first line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    /// The message of an exception follows.
    Exception,
    /// The text of a warning follows.
    Warning,
    /// A terminal broke a warning at its width.
    Broken,
}

/// Returns the record that holds a line: the line itself, unless it has no meaning without its neighbours.
pub fn around(bytes: &[u8], line: (usize, usize)) -> (usize, usize) {
    if let Some(head) = head(&bytes[line.0..line.1]) {
        return (line.0, end(bytes, line, head));
    }
    let (mut start, mut lines) = (line.0, 0);
    while start > 0 && bytes[start - 1] == b'\n' && lines < LINES_MAX {
        let stop = start - 1;
        let floor = stop.saturating_sub(LINE_BYTES);
        start = memrchr(b'\n', &bytes[floor..stop]).map_or(floor, |found| floor + found + 1);
        if let Some(head) = head(&bytes[start..stop]) {
            let end = end(bytes, (start, stop), head);
            return if end >= line.1 { (start, end) } else { line };
        }
        // A head is right above, or above lines that are indented.
        if !is_indented(&bytes[start..stop]) && (lines > 0 || !bytes[start..stop].trim_ascii().is_empty()) {
            break;
        }
        lines += 1;
    }
    line
}

/// Returns the text of a record: its lines without the prefixes of loggers, but for the first one's.
pub fn text(bytes: &[u8]) -> String {
    let Some(stop) = memchr(b'\n', bytes) else { return clean(bytes) };
    let first = clean(&bytes[..stop]);
    let is_broken = head(&bytes[..stop]) == Some(Head::Broken);
    let mut text = if is_broken { first } else { first.trim_end().to_string() };
    for line in bytes[stop + 1..].split(|byte| *byte == b'\n') {
        let line = clean(line);
        let rest = message(&line).trim_end();
        if !rest.is_empty() {
            text.push_str(if is_broken && !text.ends_with(' ') { "" } else { " " });
            text.push_str(rest);
        }
    }
    text
}

/// Returns the message of an exception whose name is alone on its line: the name, and what the lines below say.
pub fn message_below(name: &str, below: impl Iterator<Item = String>) -> Option<String> {
    let mut joiner = Joiner::new(Head::Exception, name);
    BARE.is_match(message(name)).then_some(())?;
    let taken = below.map_while(|line| joiner.takes(&line).then(|| message(&line).trim_end().to_string()));
    let parts: Vec<String> = taken.filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| format!("{} {}", name.trim_end(), parts.join(" ")))
}

/// Returns how a record goes on that begins with this line, or `None` for a line that is whole.
fn head(line: &[u8]) -> Option<Head> {
    let trimmed = line.trim_ascii_end();
    let width = trimmed.len();
    let is_open = trimmed.ends_with(b":");
    let is_wrapped = WRAP_WIDTHS.contains(&width) || WRAP_WIDTHS.contains(&line.len());
    if !(is_open || is_wrapped) || width > LINE_BYTES {
        return None;
    }
    if !is_open {
        return WARNED.is_match(&clean(line)).then_some(Head::Broken);
    }
    let line = clean(trimmed);
    match () {
        () if CATEGORY.is_match(&line) => Some(Head::Warning),
        () if BARE.is_match(message(&line)) => Some(Head::Exception),
        () => None,
    }
}

/// Returns the end of a record that begins with `first`.
fn end(bytes: &[u8], first: (usize, usize), head: Head) -> usize {
    let mut joiner = Joiner::new(head, &clean(&bytes[first.0..first.1]));
    let (mut end, mut at) = (first.1, first.1);
    while let Some(found) = memchr(b'\n', &bytes[at..]) {
        let start = at + found + 1;
        let rest = &bytes[start..bytes.len().min(start + LINE_BYTES)];
        at = start + memchr(b'\n', rest).unwrap_or(rest.len());
        let raw = &bytes[start..at];
        if memchr(b'\r', raw.trim_ascii_end()).is_some() || !joiner.takes(&clean(raw)) {
            break;
        }
        if !raw.trim_ascii().is_empty() {
            end = start + raw.trim_ascii_end().len();
        }
    }
    end
}

/// Returns true for a line whose own words are not at its beginning.
fn is_indented(line: &[u8]) -> bool {
    let line = &line[..line.len().min(INDENT_WITHIN)];
    line.starts_with(b" ") || line.starts_with(b"\t") || line.windows(2).any(|pair| pair == b"  ")
}

/// Takes the lines of a record one by one.
struct Joiner {
    head: Head,
    tag: Option<String>,
    is_prefixed: bool,
    lines: usize,
    /// Lines that are not indented.
    plain: usize,
}

impl Joiner {
    fn new(head: Head, first: &str) -> Joiner {
        let is_prefixed = after_prefix(first).len() < first.len();
        Joiner { head, tag: tag(first).map(str::to_string), is_prefixed, lines: 0, plain: 0 }
    }

    /// Returns true if the next line belongs to the record.
    fn takes(&mut self, line: &str) -> bool {
        let rest = after_prefix(line);
        let words = rest.trim();
        self.lines += 1;
        // One empty line may part a name from its message.
        if words.is_empty() {
            return self.lines == 1 && self.head == Head::Exception;
        }
        let is_other = tag(line) != self.tag.as_deref() || is_frame(words) || BEGINS.is_match(words);
        if self.lines > LINES_MAX || is_other || (rest.len() < line.len()) != self.is_prefixed {
            return false;
        }
        if rest.starts_with("  ") {
            return self.head != Head::Broken && !words.starts_with("warnings.warn");
        }
        self.plain += 1;
        let is_sentence = words.contains(' ') && !words.starts_with(['-', '=', '*', '#', '|', '+']);
        match self.head {
            Head::Exception => is_sentence && self.plain <= PARAGRAPH_MAX,
            Head::Warning => is_sentence && self.plain == 1 && self.lines == 1,
            Head::Broken => self.plain <= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the texts of the records of each line of `log`.
    fn records(log: &str) -> Vec<String> {
        let bytes = log.as_bytes();
        let mut at = 0;
        let mut found = Vec::new();
        for line in log.split('\n') {
            let record = around(bytes, (at, at + line.trim_end_matches('\r').len()));
            found.push(text(&bytes[record.0..record.1]));
            at += line.len() + 1;
        }
        found
    }

    #[test]
    fn a_name_and_the_message_below_it_are_one_record() {
        for log in [
            "ValueError:\n    unknown optimizer 'x'",
            "ValueError:\r\n    unknown optimizer 'x'\r",
            "ValueError:\n\nunknown optimizer 'x'\n",
            "[rank0]: ValueError:\n[rank0]:     unknown optimizer\n[rank0]:     'x'",
            "ERROR 03-02 10:00:00 [core.py:3] ValueError:\nERROR 03-02 10:00:00 [core.py:3]   unknown optimizer 'x'",
        ] {
            let found = records(log);
            assert!(found[0].ends_with("ValueError: unknown optimizer 'x'"), "{log}: {found:?}");
            let of_rest: Vec<&String> = found.iter().filter(|text| text.contains("'x'")).collect();
            assert!(of_rest.len() >= 2 && of_rest.iter().all(|text| **text == found[0]), "{log}: {found:?}");
        }
    }

    #[test]
    fn what_is_whole_or_of_something_else_stays_alone() {
        for log in [
            "ValueError: x\n    y",
            "ValueError:\n[rank1]:     unknown optimizer",
            "ValueError:\nTraceback (most recent call last):",
            "ValueError:\n  File \"/a.py\", line 3, in f",
            "ValueError:\nRuntimeError: x y",
            "ValueError:\n2026-03-01 10:11:12 INFO x y",
            "The settings:\n    optimizer: x",
            "ValueError:\nwandb: x y",
        ] {
            let found = records(log);
            assert!(found.iter().all(|text| !text.contains('\n')), "{log}");
            assert_eq!(found[0], log.split('\n').next().unwrap_or_default(), "{log}");
        }
    }

    #[test]
    fn the_text_of_a_warning_belongs_to_its_category() {
        let found =
            records("/opt/a.py:3: UserWarning:\nRuntime failed to load x\n  warnings.warn(\nRuntime y");
        assert_eq!(found[1], "/opt/a.py:3: UserWarning: Runtime failed to load x");
        assert_eq!(found[3], "Runtime y");
        let long = format!("/opt/a.py:3: UserWarning: {}", "x".repeat(54));
        let found = records(&format!("{long}\nfailed to load y\nz failed"));
        assert_eq!(found[1], format!("{long}failed to load y"));
        assert_eq!(found[2], "z failed");
    }
}
