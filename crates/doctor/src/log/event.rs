//! Events of a log with their verdicts, and the moment that decides one: a line with the lines around it.

use super::command;
use super::possibilities::{is_item, listed};
use super::record;
use super::signatures::{About, Level, Pattern, Rule};
use super::text::{after_prefix, clean, is_frame, is_quiet, message, regex, shown, tag};
use super::time::{Stamp, stamp};
use memchr::{memchr, memchr_iter, memchr2, memmem, memrchr, memrchr2};
use regex::Regex;
use std::cell::OnceCell;
use std::sync::LazyLock;

/// Bytes before a line that its traceback may span.
pub const BACK: usize = 64 << 10;
/// Bytes to cut out of a line before and after a literal.
const PIECE_BEFORE: usize = 1 << 10;
const PIECE_AFTER: usize = 4 << 10;
/// Most lines of a traceback to read.
const LINES_BEFORE: usize = 240;
/// Lines to read if there is no traceback.
const LINES_WITHOUT_TRACEBACK: usize = 40;
/// Most lines after the first that a message may be wrapped over.
const LINES_NEAR: usize = 3;
/// Most lines over which a terminal breaks a message whose numbers are read.
const LINES_WRAPPED: usize = 12;
const WRAP_WIDTH_MIN: usize = 40;
/// Terminal widths at which a line continues on the next.
const WRAP_WIDTHS: [usize; 6] = [80, 100, 120, 132, 160, 200];
/// Lines after a message to read for frames: some loggers print the cause first.
const LINES_AFTER: usize = 60;

const TRACEBACK: &str = "Traceback (most recent call last)";
/// Most lines of a frame, on average over a traceback.
const LINES_A_FRAME: usize = 6;
/// Lines of a frame after its first: the code, and marks under it.
const FRAME_LINES: u64 = 3;
/// Most lines to the nearest frame, including those of other processes.
const LINES_TO_FRAME: usize = 64;
/// Lines of a list of causes before one of its items.
const ITEMS_BEFORE: usize = 12;
/// Lines of code that a notebook lists before and after the failed one.
const LISTED_LINES: usize = 6;

/// A line of code in a notebook's traceback: its number, perhaps linked, after an arrow where it failed.
static LISTED: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:-+> ?)?(?:\d+|\[\d+\]\([^)\s]*\))(?: |$)"));
/// The last line of a traceback: the exception's name and message.
static RAISED: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::(?: |$)|$)"));
/// A line of code in a boxed traceback, other than the failed one.
static BOXED: LazyLock<Regex> = LazyLock::new(|| regex(r"^\d+ [│┃]"));

#[derive(Clone, Debug)]
pub struct Event {
    pub class: usize,
    pub file: usize,
    pub line: u64,
    pub text: String,
    /// Time by the clock of the file.
    pub stamp: Option<Stamp>,
    pub level: Level,
    /// Steps of the file counted before it.
    pub steps: u64,
    /// Shape of its line, or 0.
    pub shape: u64,
    pub verdict: Verdict,
}

/// Holds what the run survived: a failure of a class that ends runs.
#[derive(Clone, Debug)]
pub struct Survived {
    pub class: usize,
    pub file: usize,
    pub line: u64,
}

/// Lines before the traceback of an exception that ends no run.
const IGNORED: [&[u8]; 5] = [
    b"Exception ignored in",
    b"Error in atexit._run_exitfuncs",
    b"Exception in thread NetStatThr",
    b"Exception in thread ChkStopThr",
    b"Exception in thread IntMsgThr",
];
/// Lines before the traceback of an exception that ends a thread but not the program.
const IN_THREAD: [&[u8]; 2] = [b"Exception in thread ", b"Exception in threading."];
/// Trackers send their records from their own threads.
pub static TRACKER: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"[/\\](?:wandb|swanlab|mlflow|comet_ml|neptune|clearml|tensorboardX?|tensorboard_data_server|aim|trackio)[/\\]"#,
    )
});

/// The class of an event and the reasons for it.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Empty if a sign of the class itself matched.
    pub slug: &'static str,
    pub reasons: Vec<String>,
    pub unproven: Vec<String>,
    pub first_steps: Vec<String>,
}

impl Verdict {
    pub fn of(slug: &'static str) -> Verdict {
        Verdict { slug, ..Verdict::default() }
    }

    pub fn because(mut self, reason: impl Into<String>) -> Verdict {
        self.reasons.push(reason.into());
        self
    }

    pub fn not_shown(mut self, what: impl Into<String>) -> Verdict {
        self.unproven.push(what.into());
        self
    }

    pub fn first(mut self, step: impl Into<String>) -> Verdict {
        self.first_steps.push(step.into());
        self
    }
}

/// Returns true if one of the first lines of code in `lines` has the arrow of the failed line.
fn is_pointed_at(lines: impl Iterator<Item = String>) -> bool {
    let mut code = lines.take(LISTED_LINES).map(|line| message(&line).to_string());
    code.find(|line| line.starts_with('-') || !LISTED.is_match(line))
        .is_some_and(|line| LISTED.is_match(&line))
}

/// A line in its window, or a record of several.
pub struct Moment<'w> {
    bytes: &'w [u8],
    /// Byte range of the line's piece in the window.
    range: (usize, usize),
    pub line: u64,
    /// Steps of the file counted before it.
    pub steps: u64,
    /// Shape of the piece.
    pub shape: u64,
    pub text: String,
    message_at: OnceCell<usize>,
    is_quiet: OnceCell<bool>,
    /// Place of its process's tag in `text`.
    tag: OnceCell<Option<(usize, usize)>>,
    near: OnceCell<String>,
    unwrapped: OnceCell<String>,
    before: OnceCell<Vec<String>>,
    after: OnceCell<String>,
}

/// Returns the range of the line around `at`, or the nearest part of it. A carriage return ends a line, because
/// progress bars write hundreds of states into one line.
pub fn piece_around(bytes: &[u8], at: usize) -> (usize, usize) {
    let first = at.saturating_sub(PIECE_BEFORE);
    let start = memrchr2(b'\n', b'\r', &bytes[first..at]).map_or(first, |found| first + found + 1);
    let last = bytes.len().min(at + PIECE_AFTER);
    let end = memchr2(b'\n', b'\r', &bytes[at..last]).map_or(last, |found| at + found);
    (start, end.max(at + 1))
}

impl<'w> Moment<'w> {
    pub fn new(bytes: &'w [u8], range: (usize, usize), line: u64, steps: u64, shape: u64) -> Moment<'w> {
        let text = record::text(&bytes[range.0..range.1]);
        let (near, unwrapped, before, after) =
            (OnceCell::new(), OnceCell::new(), OnceCell::new(), OnceCell::new());
        let (message_at, is_quiet, tag) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Moment {
            bytes,
            range,
            line,
            steps,
            shape,
            text,
            message_at,
            is_quiet,
            tag,
            near,
            unwrapped,
            before,
            after,
        }
    }

    /// Returns the line's message, after the prefixes of loggers.
    pub fn message(&self) -> &str {
        let at = || self.text.len() - message(&self.text).len();
        &self.text[*self.message_at.get_or_init(at)..]
    }

    /// Returns possible metrics. A table row looks like the prefix of some loggers.
    pub fn metrics(&self) -> &str {
        let text = self.text.trim_start();
        if text.starts_with('|') { text } else { self.message() }
    }

    /// Returns true if its logger calls the line information or a warning.
    pub fn is_quiet(&self) -> bool {
        *self.is_quiet.get_or_init(|| is_quiet(&self.text))
    }

    /// Returns the message and its continuation, joined without a space where a terminal broke it, else with one.
    pub fn unwrapped(&self) -> &str {
        self.unwrapped.get_or_init(|| {
            let mut lines = vec![self.message().to_string()];
            let width = self.text.trim_end().chars().count();
            let own = self.tag().map(str::to_string);
            let rest = |line: &String| {
                let message = message(line);
                let is_tagged = message.trim_start().len() + 4 < line.trim_start().len();
                (!is_tagged || own.is_some() && tag(line) == own.as_deref())
                    && !message.trim().is_empty()
                    && !is_frame(message)
                    && !message.starts_with(TRACEBACK)
            };
            let (mut is_hard, mut widths) = (width >= WRAP_WIDTH_MIN, Vec::new());
            for line in self.lines_ahead().take(LINES_WRAPPED).take_while(rest) {
                widths.push(line.trim_end().chars().count());
                lines.push(message(&line).trim_end().to_string());
            }
            let inner = widths.len().saturating_sub(1);
            is_hard &= inner > 0 && widths[..inner].iter().all(|own| own.abs_diff(width) <= 1)
                || inner == 0
                    && widths.first().is_some_and(|last| *last < width && WRAP_WIDTHS.contains(&width));
            lines.join(if is_hard { "" } else { " " })
        })
    }

    /// Returns the message and up to `LINES_NEAR` lines of the same process after it.
    pub fn near(&self) -> &str {
        self.near.get_or_init(|| {
            let lines = self.lines_ahead().take(LINES_NEAR).filter(|line| self.is_own(line));
            let lines: Vec<String> = lines.map(|line| message(&line).trim_end().to_string()).collect();
            let own = self.message().to_string();
            std::iter::once(own).chain(lines).collect::<Vec<String>>().join("\n")
        })
    }

    /// Returns the lines of the same process after it, up to `LINES_AFTER`.
    pub fn after(&self) -> &str {
        self.after.get_or_init(|| {
            let lines = self.lines_ahead().take(LINES_AFTER).filter(|line| self.is_own(line));
            lines.map(|line| message(&line).trim_end().to_string()).collect::<Vec<String>>().join("\n")
        })
    }

    /// Returns the line as evidence: with its continuation if a match of the rule needs it.
    pub fn shown(&self, rule: &Rule) -> String {
        let own = self.message();
        let continues = rule.spans_lines && rule.regex.as_ref().is_some_and(|regex| !regex.is_match(own));
        let matched = rule.regex.as_ref().and_then(|regex| regex.regex().find(self.near()));
        match matched.filter(|_| continues) {
            Some(matched) => {
                let end = self.near()[matched.end()..]
                    .find('\n')
                    .map_or(self.near().len(), |at| matched.end() + at);
                shown(&self.near()[..end].replace('\n', " "))
            }
            None => shown(&self.text),
        }
    }

    fn is_own(&self, line: &str) -> bool {
        let own = self.tag();
        own.is_none() || tag(line) == own
    }

    /// Returns the tag of the process that wrote the line.
    fn tag(&self) -> Option<&str> {
        let range = || {
            let found = tag(&self.text)?;
            let start = found.as_ptr() as usize - self.text.as_ptr() as usize;
            Some((start, start + found.len()))
        };
        self.tag.get_or_init(range).map(|(start, end)| &self.text[start..end])
    }

    /// Returns the lines after this one, cleaned, as far as the window reaches.
    fn lines_ahead(&self) -> impl Iterator<Item = String> {
        let (bytes, mut at) = (self.bytes, self.range.1);
        std::iter::from_fn(move || {
            let start = at + memchr(b'\n', &bytes[at..])? + 1;
            let rest = &bytes[start..bytes.len().min(start + PIECE_AFTER)];
            at = start;
            Some(clean(&rest[..memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())]))
        })
    }

    /// Returns the traceback before the line, oldest frame first, else the last lines; skips other processes' lines.
    pub fn before(&self) -> &[String] {
        self.before.get_or_init(|| {
            let (mut lines, mut has_traceback) = (Vec::new(), false);
            // Without a traceback the last lines are enough.
            let back = &self.bytes[self.range.0.saturating_sub(BACK)..self.range.0];
            let is_marked = memmem::rfind(back, TRACEBACK.as_bytes()).is_some();
            let lines_max = if is_marked { LINES_BEFORE } else { LINES_WITHOUT_TRACEBACK };
            for raw in self.lines_back() {
                let line = clean(&raw[..raw.len().min(PIECE_AFTER)]);
                if !self.is_own(&line) {
                    continue;
                }
                has_traceback = line.contains(TRACEBACK);
                lines.push(message(&line).to_string());
                if has_traceback || lines.len() == lines_max {
                    break;
                }
            }
            // A traceback further back, with other lines since, belongs to something else.
            let frames = lines.iter().filter(|line| is_frame(line)).count();
            if !has_traceback || frames * LINES_A_FRAME < lines.len().saturating_sub(LINES_A_FRAME) {
                lines.truncate(LINES_WITHOUT_TRACEBACK);
            }
            lines.reverse();
            lines
        })
    }

    /// Returns the last `count` lines of `before`, joined: the innermost frames.
    pub fn innermost(&self, count: usize) -> String {
        let before = self.before();
        before[before.len().saturating_sub(count)..].join("\n")
    }

    /// Returns true in a traceback that runs survive: one that Python ignored (destructor, exit), or of a wandb thread.
    pub fn is_ignored(&self) -> bool {
        self.before_traceback(1, &IGNORED)
            || self.is_in_thread() && self.before().iter().any(|line| TRACKER.is_match(line))
            || self.is_in_thread() && self.text.contains(TRACEBACK) && TRACKER.is_match(self.after())
    }

    /// Returns true in the traceback of an exception that ends a thread: the main thread goes on.
    pub fn is_in_thread(&self) -> bool {
        self.before_traceback(1, &IN_THREAD)
    }

    /// Returns true for code that a traceback lists around the failed line: its strings are messages of other failures.
    pub fn is_listed(&self) -> bool {
        let own = self.message();
        if BOXED.is_match(own) {
            return true;
        }
        let back = self.lines_back().map(|raw| clean(&raw[..raw.len().min(PIECE_AFTER)]));
        LISTED.is_match(own)
            && !own.starts_with('-')
            && (is_pointed_at(back) || is_pointed_at(self.lines_ahead()))
    }

    /// Returns true if its traceback follows from another exception.
    pub fn is_chained(&self) -> bool {
        self.before_traceback(3, &[b"During handling of the above", b"was the direct cause of the following"])
    }

    /// Returns true if one of `words` is in the `count` lines before the head of this line's traceback.
    fn before_traceback(&self, count: usize, words: &[&[u8]]) -> bool {
        let is_near = |raw: &[u8]| {
            memmem::find(raw, b"File \"").is_some() || memmem::find(raw, "\u{2771}".as_bytes()).is_some()
        };
        if !self.text.contains(TRACEBACK) && !self.lines_back().take(LINES_TO_FRAME).any(is_near) {
            return false;
        }
        let frames = (self.line - self.traceback_from()) as usize;
        let is_head = self.text.contains(TRACEBACK);
        let holds = |raw: &[u8]| words.iter().any(|words| memmem::find(raw, words).is_some());
        // The head precedes the frames, and the remark the head.
        (is_head || frames > 0)
            && self.lines_back().skip(if is_head { 0 } else { frames + 1 }).take(count).any(holds)
    }

    /// Returns the first line of the frames before this one, or this line.
    pub fn traceback_from(&self) -> u64 {
        let (mut frames, mut others) = (0, 0);
        for (index, line) in self.before().iter().rev().enumerate() {
            others += 1;
            if is_frame(line) {
                (frames, others) = (index as u64 + 1, 0);
            } else if others > FRAME_LINES {
                break;
            }
        }
        self.line.saturating_sub(frames)
    }

    /// Returns the last line of the traceback that this line begins, and its distance: the exception, whatever its
    /// name. Strips a logger's prefix as in the head, if `message` leaves some of it.
    pub fn raised(&self) -> Option<(u64, String)> {
        let column = self.text.find(TRACEBACK)?;
        let shape =
            |text: &str| text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect::<String>();
        let before = shape(&self.text[..column]);
        let mut frames = 0;
        for (index, line) in self.lines_ahead().enumerate().take(LINES_BEFORE) {
            let own = line.get(..column).is_some_and(|start| column > 0 && shape(start) == before);
            let rest = if own { &line[column..] } else { after_prefix(&line) };
            let is_code = rest.starts_with("  ") || rest.trim().is_empty();
            if is_frame(rest.trim_start()) {
                frames += 1;
            } else if !is_code && (own || self.is_own(&line)) {
                let is_raised = frames > 0 && RAISED.is_match(rest.trim());
                let whole = || record::message_below(rest.trim(), self.lines_ahead().skip(index + 1));
                return is_raised.then(|| (index as u64 + 1, whole().unwrap_or(rest.trim().to_string())));
            }
        }
        None
    }

    /// Returns the line's time, or the nearest earlier one; nothing before `known`, the last answer, is read again.
    pub fn stamp(&self, known: &mut (u64, Option<Stamp>)) -> Option<Stamp> {
        let of = |raw: &[u8]| stamp(&clean(&raw[..raw.len().min(512)]));
        let lines = if known.0 > 0 && known.0 <= self.line {
            LINES_BEFORE.min((self.line - known.0) as usize)
        } else {
            LINES_BEFORE
        };
        let found = stamp(&self.text).or_else(|| self.lines_back().take(lines).find_map(of));
        let found = found.or_else(|| known.1.filter(|_| lines < LINES_BEFORE));
        if known.0 <= self.line {
            *known = (self.line, found);
        }
        found
    }

    /// Returns the lines within `BACK` bytes before this one, the nearest first.
    fn lines_back(&self) -> impl Iterator<Item = &'w [u8]> {
        let (bytes, floor) = (self.bytes, self.range.0.saturating_sub(BACK));
        let mut end = self.range.0.saturating_sub(1);
        std::iter::from_fn(move || {
            let before = bytes.get(floor..end).filter(|before| !before.is_empty())?;
            let start = memrchr(b'\n', before).map_or(floor, |found| floor + found + 1);
            let line = &bytes[start..end];
            end = start.saturating_sub(1);
            Some(line)
        })
    }

    /// Returns the line with the neighbours that a rule that spans lines reads.
    pub fn surroundings(&self) -> &'w [u8] {
        let end = self.range.0.saturating_sub(1);
        let floor = end.saturating_sub(PIECE_AFTER);
        let start = memrchr(b'\n', &self.bytes[floor..end]).map_or(floor, |found| floor + found + 1);
        let rest = &self.bytes[self.range.1..self.bytes.len().min(self.range.1 + LINES_NEAR * PIECE_AFTER)];
        let stop = memchr_iter(b'\n', rest).nth(LINES_NEAR).unwrap_or(rest.len());
        &self.bytes[start..self.range.1 + stop]
    }

    /// Returns true if a rule that spans lines finds nothing here, whatever is further away.
    pub fn fails_nearby(&self, rule: &Rule) -> bool {
        rule.spans_lines && !self.is_found(rule)
    }

    /// Returns true if the rule cannot match, whatever is around the line.
    pub fn fails_alone(&self, rule: &Rule) -> bool {
        let text = if matches!(rule.about, About::Mark(_)) { self.metrics() } else { self.message() };
        rule.is_loud && self.is_quiet()
            || !rule.spans_lines && rule.regex.as_ref().is_some_and(|regex| !regex.is_match(text))
            || !rule.programs.is_empty()
                && !command::program(text).is_some_and(|program| rule.programs.contains(&program))
    }

    /// Returns true if the rule matches, but only within a list of causes that the message calls possible.
    pub fn is_possibility(&self, rule: &Rule) -> bool {
        if rule.lists || !self.matches(rule) {
            return false;
        }
        let near = self.near();
        let lists = listed(near);
        let is_fact = |at: usize| !lists.iter().any(|(from, to)| (*from..*to).contains(&at));
        if !lists.is_empty() {
            let own = self.message().len();
            let mut found = match &rule.regex {
                Some(regex) => {
                    regex.regex().find_iter(near).map(|found| found.start()).collect::<Vec<usize>>()
                }
                None => rule
                    .words
                    .iter()
                    .flat_map(|words| near.match_indices(words.as_str()))
                    .map(|(at, _)| at)
                    .collect(),
            };
            found.retain(|at| *at <= own);
            if !found.is_empty() && !found.into_iter().any(is_fact) {
                return true;
            }
        }
        let back = self.lines_back().take(ITEMS_BEFORE);
        is_item(
            self.message(),
            back.map(|raw| message(&clean(&raw[..raw.len().min(PIECE_AFTER)])).to_string()),
        )
    }

    /// Returns true if a rule matches that does not fail alone.
    pub fn matches(&self, rule: &Rule) -> bool {
        self.is_found(rule)
            && rule.needs.as_ref().is_none_or(|regex| self.around(regex))
            && rule.unless.as_ref().is_none_or(|regex| !self.says(regex))
            && rule.unless_before.as_ref().is_none_or(|regex| !self.around(regex))
            && rule.unless_after.as_ref().is_none_or(|regex| !regex.is_match(self.after()))
            && !self.is_listed()
    }

    /// Returns true unless the expression of a rule that spans lines is absent here and in the neighbours.
    fn is_found(&self, rule: &Rule) -> bool {
        let Some(pattern) = rule.regex.as_ref().filter(|_| rule.spans_lines) else { return true };
        let (near, own, regex) = (self.near(), self.message().len(), pattern.regex());
        regex.find(near).is_some_and(|found| found.start() <= own)
            || rule.wraps && self.wrapped(near).is_some_and(|text| regex.is_match(&text))
    }

    /// Returns true if the message matches, or what may be its rest: a terminal that wraps a line repeats no tag.
    fn says(&self, regex: &Pattern) -> bool {
        let is_rest = |line: &String| tag(line).is_none();
        let rest = || self.lines_ahead().take(LINES_NEAR).filter(is_rest).collect::<Vec<String>>().join("\n");
        regex.is_match(self.near()) || self.tag().is_some() && regex.is_match(&rest())
    }

    fn around(&self, regex: &Pattern) -> bool {
        regex.is_match(self.near()) || regex.is_match(&self.before().join("\n"))
    }

    /// Returns the message with the line before it, for messages that a terminal wrapped.
    fn wrapped(&self, near: &str) -> Option<String> {
        let end = self.range.0.checked_sub(1)?;
        let floor = end.saturating_sub(PIECE_AFTER);
        let start = memrchr(b'\n', &self.bytes[floor..end]).map_or(floor, |found| floor + found + 1);
        let line = clean(&self.bytes[start..end]);
        Some(format!("{}\n{near}", message(&line).trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_a_line_is_bounded() {
        let mut bytes = vec![b'x'; 100_000];
        bytes[50_000] = b'Y';
        assert_eq!(piece_around(&bytes, 50_000), (50_000 - PIECE_BEFORE, 50_000 + PIECE_AFTER));
        bytes[49_990] = b'\r';
        bytes[50_010] = b'\n';
        assert_eq!(piece_around(&bytes, 50_000), (49_991, 50_010));
    }
}
