//! The end of a log without a known line: the last lines often report a failure, or are frames of a traceback that was
//! cut off. Lines after which the run goes on are not last words.

use super::event::TRACKER;
use super::levels::is_loud;
use super::progress::is_step;
use super::record;
use super::text::{clean, is_frame, is_quiet, message, metrics, regex};
use memchr::{memchr_iter, memmem};
use regex::Regex;
use std::sync::LazyLock;

/// Bytes at the end of a log to read for its last words.
pub const TAIL: usize = 16 << 10;
/// Lines at the end of a log that may be its last words.
const LAST_LINES: usize = 12;
/// Lines at the end of a log, one of them a frame, if it ends within a traceback.
const FRAME_LINES: usize = 4;
/// Lines at the end of a log in which a complaint counts as last words.
const COMPLAINT_LINES: usize = 4;
/// Characters of a line to examine.
const LOOKED_AT: usize = 2000;

/// Reports of a failure, in words of any program.
static FAILED: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?:",
        r"(?i:^\W*(?:fatal|critical|severe|panic|abort(?:ed|ing)?)\b)|^\W*ERROR\b|^\W*FAILED?\b|^\W*Failed to build\b",
        r"|\b(?:FAILED|ABORTED|CRASHED|FAILURE)\b|\w[Ff]ailed\b",
        r"|(?i:\b(?:has|have|was|were|is|been|be|process|worker|job|task|actor|node|server|engine|pod|container|build|run|command|script|step|rank \d+|stage|replica|host)\s+(?:is |has |was |just |have )?(?:failed|aborted|terminated|crashed|killed|disallowed|denied|refused|dead|died|lost|evicted|unreachable|unhealthy|not ready)\b)",
        r"|(?i:\b(?:will|must|going to) (?:now )?(?:abort|exit|terminate|be (?:killed|terminated|aborted))\b)",
        r"|(?i:\bnot (?:been )?(?:registered|reachable|responding|permitted|allowed)\b|within the timeout|\btimed out\b)",
        r"|\b(?:StartError|RunContainerError|CreateContainer\w*Error|\w*BackOff|ErrImage\w+|FailedMount|FailedCreate\w*|Unhealthy|NotReady|FailedScheduling|InvalidImageName)\b",
        r"|(?i:segmentation|segfault|core dump|stack ?trace|backtrace:)|\bSIG(?:KILL|SEGV|TERM|ABRT|BUS|ILL|FPE)\b",
        r"|^\W*Illegal instruction\b|\bMPI_ERRORS_ARE_FATAL\b|^Warning +Failed\b|\bBUG: |\bOops: |(?i:kernel panic)",
        r")",
    ))
});
/// Words of a failure that is often survived: they count in the very last lines.
static COMPLAINS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^\W*(?:errors?|failed|failure)\b|\b(?:errors?|failures?|exceptions?|fail(?:ed|s|ing)?|crash(?:ed|es)?|abort(?:ed|ing)?|fatal|refused|denied|could not|no matches for|couldn't|cannot|can't|can not|unable to)\b",
    )
});
/// Reports that the work succeeded after all.
static SUCCEEDS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)\bsuccess(?:ful(?:ly)?)?\b|\bsucceeded\b|\b(?:is|now) ready\b"));
/// A frame of a traceback after what a forwarder writes, and the exception that ends it.
static FORWARDED_FRAME: LazyLock<Regex> = LazyLock::new(|| regex(r#"\S\s+File "[^"\n]+", line \d+, in "#));
static FORWARDED_RAISE: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?:^|[\s:|\]])(?P<raised>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .*|\s*)$)")
});
/// Words that runs survive: a count of none, a fallback, advice.
static HARMLESS: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r"(?i)\b(?:0|no|zero) (?:\w+ )?(?:errors?|fail\w*)\b|\b(?:errors?|failed|failures?|fail|aborts?|aborted|timed out)\w*['\x22]?\s*[:=]\s*(?:-?[\d.]|false|none|no\b|nan|\[\]|\{\})",
        r"|fall(?:s|ing)? ?back|fell back|ignor|retr(?:y|ied)|\boption(?:al|s)?\b|disabl|skipp|deprecat|instead|will not be|expected termination|corrected|\bmay\b|\bmight\b|\bwould\b|\bif\b|\bwhen\b|\bwarn|attention mask|estimate|performance|\b(?:using|to) (?:the |a )?default|NET/Plugin|libibverbs|x11|wandb|tensorboard|client socket has failed to connect|destroy_process_group|HYDRA_FULL_ERROR|parse",
        r"|\bSent SIGTERM\b|\[shutdown\]|\b[Ss]hutdown (?:complete|requested|initiated)|[Gg]raceful",
    ))
});

/// A frame in a notebook's format.
static NOTEBOOK: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"^\[?(?:File )?(?:[~/<]|[A-Z]:\\)[^\n]*?\.pyx?(?:\]\([^)\n]*\))?(?::\d+,)? in [^\s(]+\(")
});
/// Code with its number, as a notebook lists it.
static LISTED: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:-+> ?)?\d{1,5}(?: {4,}\S|$)|^-+> ?\d{1,5}\b"));

/// A row of Slurm's accounting, which begins with a number too.
static ACCOUNTED: LazyLock<Regex> = LazyLock::new(|| regex(r"\b[A-Z_]{6,} +\d+:\d+\s*$"));

/// A line of a log's end.
struct Line {
    /// Number of lines after it.
    after: usize,
    text: String,
}

/// Returns the line that tells how a log with this `tail` failed, and the number of lines after it. `has_levels` is
/// false if the log calls all its lines errors.
pub fn last_words(tail: &[u8], has_levels: bool) -> Option<(usize, String)> {
    let mut lines = last_lines(&tail[tail.len().saturating_sub(TAIL)..]);
    lines.retain(|line| line.after >= after_thread(tail).unwrap_or(0));
    let says = |line: &Line, words: &Regex| {
        let short: String = line.text.chars().take(LOOKED_AT).collect();
        let message = message(&short);
        let is_bar = message.contains("%|") && message.contains("it/s");
        // A heading in a note about a log.
        let is_heading = message.starts_with("##") && message.trim_start_matches('#').starts_with(' ');
        let is_listed = LISTED.is_match(message) && !ACCOUNTED.is_match(message);
        let is_told = is_bar || is_heading || is_frame(message) || is_listed || is_quiet(&short);
        !is_told && words.is_match(message) && !HARMLESS.is_match(message)
    };
    // What succeeds later is no failure.
    let begin = lines.iter().rposition(|line| SUCCEEDS.is_match(&line.text)).map_or(0, |at| at + 1);
    let lines = &lines[begin..];
    let very_last = &lines[lines.len().saturating_sub(COMPLAINT_LINES)..];
    // A line of code under a frame is no report.
    let is_code = |line: &Line| {
        lines.iter().any(|above| above.after == line.after + 1 && is_frame(message(&above.text)))
    };
    let fails = || lines.iter().find(|line| says(line, &FAILED) && !is_code(line));
    let complains = || very_last.iter().find(|line| says(line, &COMPLAINS) && !is_code(line));
    // A frame in a box has several lines of code.
    let is_boxed = lines.last().is_some_and(|line| line.text.trim_start().starts_with(['│', '┃', '╰']));
    // So does a frame of Python 3.13, with marks under them.
    let is_marked = lines.last().is_some_and(|line| is_mark(message(&line.text).trim()));
    let is_listed = lines.last().is_some_and(|line| LISTED.is_match(message(&line.text)));
    let near = if is_boxed || is_marked || is_listed { LAST_LINES } else { FRAME_LINES };
    let is_any_frame = |message: &str| is_frame(message) || NOTEBOOK.is_match(message);
    let ends_in_frames = lines.iter().rev().take(near).any(|line| is_any_frame(message(&line.text)));
    let last = |what: fn(&str) -> bool| lines.iter().rfind(|line| what(message(&line.text)));
    let raised = || last(|message| message.starts_with("raise ")).filter(|_| ends_in_frames);
    // A tracker's thread ends alone.
    let is_thread = lines.iter().any(|line| line.text.contains("Exception in thread"));
    let is_own = |line: &&Line| !(is_thread && line.text.contains("/wandb/sdk/"));
    let frame = || {
        last(|message| is_frame(message) || NOTEBOOK.is_match(message))
            .filter(|_| ends_in_frames)
            .filter(is_own)
    };
    // A line that the logger calls an error is harmless if something follows it.
    let is_loud = |line: &Line| has_levels && is_loud(&line.text);
    let loud = || {
        let first = lines.iter().find(|line| is_loud(line) && !HARMLESS.is_match(&line.text));
        first.or_else(|| lines.last().filter(|line| is_loud(line)))
    };
    if let Some(raised) = forwarded(lines) {
        return Some(raised);
    }
    let found = fails().or_else(complains).or_else(raised).or_else(frame).or_else(loud)?;
    Some((found.after, found.text.clone()))
}

/// Returns the exception that ends a log, if the frames above it have a harmless level too: loggers write one level
/// for a whole traceback, and what forwards another program's output writes one before each line.
fn forwarded(lines: &[Line]) -> Option<(usize, String)> {
    let last = lines.last().filter(|line| is_quiet(&line.text))?;
    let is_frame = |line: &Line| is_quiet(&line.text) && FORWARDED_FRAME.is_match(&line.text);
    let found = FORWARDED_RAISE.captures(&last.text).filter(|_| lines.iter().any(is_frame))?;
    Some((last.after, found["raised"].to_string()))
}

/// Returns the lines of a tracker thread's traceback at the end of a log: the run had ended before.
fn after_thread(tail: &[u8]) -> Option<usize> {
    let tail = &tail[tail.len().saturating_sub(TAIL)..];
    let at = memmem::rfind(tail, b"Exception in thread ")?;
    let text =
        clean(&tail[at..].iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect::<Vec<u8>>());
    let ended = tail.strip_suffix(b"\n").unwrap_or(tail);
    TRACKER.is_match(&text).then(|| memchr_iter(b'\n', &ended[at..]).count() + 1)
}

/// Returns what code raises, as Python prints it: `raise ValueError(f"x of {y}")` is `ValueError: x of {y}")`.
pub fn raised_by(code: &str) -> Option<String> {
    let (name, rest) = code.strip_prefix("raise ")?.split_once('(')?;
    let text = rest.trim_start_matches(['f', 'r', '"', '\'']);
    Some(format!("{name}: {text}"))
}

/// Returns true for Python's marks under a line of code.
fn is_mark(message: &str) -> bool {
    message.starts_with("...<")
        || !message.is_empty() && message.chars().all(|c| matches!(c, '^' | '~' | ' '))
}

/// Returns the last nonempty lines, cleaned, from the run's last step on.
fn last_lines(tail: &[u8]) -> Vec<Line> {
    let tail = tail.strip_suffix(b"\n").unwrap_or(tail);
    let of = |(after, bytes): (usize, &[u8])| {
        let bytes = bytes.rsplit(|byte| *byte == b'\r').find(|part| !part.trim_ascii().is_empty())?;
        let start = bytes.as_ptr() as usize - tail.as_ptr() as usize;
        let (from, to) = record::around(tail, (start, start + bytes.len()));
        Some(Line { after, text: record::text(&tail[from..to]) })
    };
    let lines = tail.rsplit(|byte| *byte == b'\n').enumerate().filter_map(of);
    // A table row may be a step, and has no message.
    let since_step = lines.take_while(|line| !is_step(metrics(&line.text)));
    let says = |line: &Line| !message(&line.text).trim().is_empty();
    let mut lines: Vec<Line> = since_step.filter(says).take(LAST_LINES).collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Option<(usize, String)> {
        last_words(text.as_bytes(), true)
    }

    #[test]
    fn a_log_that_ends_in_a_failure_of_no_known_kind() {
        for (text, after) in [
            ("building\nFailed to build fastkernels\n", 0),
            (
                "(raylet) [2026-03-01 10:11:12,847 E 7 7] pool.cc:5: Workers have not registered within the timeout.\n",
                0,
            ),
            (
                "*** The Barrier() function was called before INIT.\n*** This is disallowed by the standard.\n*** Your job will now abort.\n",
                1,
            ),
            ("    State:     Terminated\n      Reason:    StartError\n      Message:   x\n", 1),
            ("{\"state\": \"FAILED\", \"rank\": 3}", 0),
            ("time=\"2026-03-01T10:11:12Z\" level=error msg=\"x\"", 0),
            ("E0302 10:11:12.5 77 a.cc:5] x\n", 0),
            (
                "[rank6]:   File \"/opt/a.py\", line 5, in load\n[rank6]:     raise ValueError(f\"no valid x at {path}\")\n",
                0,
            ),
            (
                "ERROR 07-15 01:39:25 [core.py:3]   File \"/opt/a.py\", line 5, in step\nERROR 07-15 01:39:25 [core.py:3]     return x\n",
                1,
            ),
            (
                "File ~/env/lib/a.py:22, in Tokens.load(cls, path, **kwargs)\n     20 try:\n---> 22     return cls(path)\n     23 except OSError:\n     24     log(\"a file error: try again\")\n",
                4,
            ),
            (
                "  File \"/opt/a.py\", line 5, in step\n    self.run(\n    ~~~~~~~~^\n        a=a,\n        ^^^^\n        b=b,\n        ^^^^\n",
                6,
            ),
        ] {
            assert_eq!(words(text).map(|(after, _)| after), Some(after), "{text}");
        }
    }

    #[test]
    fn a_log_that_ends_as_runs_do() {
        for text in [
            "",
            "loading the model\nready\n",
            "failed: 0, errors: 0\n",
            "Could not load x, falling back to y\n",
            "WARNING 03-02 10:00:00 [a.py:1] Failed to load x\n",
            "Failed to save the sample\n{'loss': 0.4, 'grad_norm': 1.2, 'epoch': 0.01}\nready\n",
            "Could not estimate the number of tokens of the input\n",
            "eval_error: 0.12\n",
            "Error reading a.parquet: not implemented\nSuccessfully loaded a.json\n",
            "A matching x is not there.\nError caught was: No module named 'x'\na\nb\nc\nd\ne\n",
        ] {
            assert_eq!(words(text), None, "{text}");
        }
    }
}
