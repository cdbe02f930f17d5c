//! Finds the words that announce an answer, and the sentence after them.

use super::prose::is_bare;

/// Longest name of a question between `the answer to` and `is`.
const SUBJECT_BYTES_MAX: usize = 60;
/// Words that announce an answer.
const CUES: &[&str] = &[
    "final answer is",
    "final answer:",
    "answer is",
    "answer:",
    "answer =",
    "answer equals",
    "answer would be",
    "answer will be",
    "answer must be",
    "answer should be",
    "answer comes out to be",
    "answer comes out to",
    "answer comes out as",
    "answer comes to",
    "answer works out to be",
    "answer works out to",
    "answer turns out to be",
    "answer has to be",
    "answer becomes",
    "answers are",
    "answers:",
    "answer to the problem is",
    "answer to the question is",
    "answer to this problem is",
    "answer to this question is",
    "final answer",
    "the result is",
    "correct choice is",
    "correct option is",
];

/// Words right after a value that make it another, or none.
pub(super) const CHANGING: &[&str] = &[
    "times",
    "plus",
    "minus",
    "over",
    "divided",
    "multiplied",
    "squared",
    "cubed",
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
    "dozen",
    "hundreds",
    "thousands",
    "millions",
    "billions",
    "dozens",
    "to",
    "through",
    "is",
    "was",
    "are",
    "were",
    "wrong",
    "incorrect",
    "false",
    "but",
    "nor",
    "unless",
    "maybe",
    "perhaps",
    "possibly",
    "could",
    "might",
    "may",
    "than",
    "more",
    "less",
    "fewer",
    "except",
    "either",
    "and",
];

/// Where an announced answer is.
pub(super) enum Cue<'t> {
    /// `42 is the answer`: the text up to there.
    Before(&'t str),
    /// The sentence after the words.
    After(&'t str),
}

/// Finds the last words that announce an answer.
pub(super) fn last_cue(text: &str) -> Option<Cue<'_>> {
    let lower = text.to_ascii_lowercase();
    let turned = [
        "is the answer",
        "is the final answer",
        "is the correct answer",
        "is our answer",
        "is our final answer",
    ];
    let before = turned.iter().filter_map(|cue| lower.rfind(cue)).max();
    let start = CUES.iter().filter_map(|cue| lower.rfind(cue).map(|at| at + cue.len())).max();
    // `the answer to part 2 is 42`
    let of = lower.rfind("answer to ").map(|at| at + "answer to ".len()).and_then(|at| {
        let near = &lower[at..lower.floor_char_boundary(at + SUBJECT_BYTES_MAX)];
        let is = near.find(" is ").filter(|&is| !near[..is].contains(['.', ',', '\n', ';', '$']));
        is.map(|is| at + is + " is ".len())
    });
    let start = start.max(of);
    if let Some(at) = before
        && start.is_none_or(|start| start < at + "is the correct answer".len())
        && lower[..at].trim_end().ends_with(|c: char| c.is_ascii_digit() || "$)*%}\"`".contains(c))
    {
        let clause = lower[..at].rfind(['\n', ';']).map_or(0, |at| at + 1);
        return Some(Cue::Before(&text[clause..at]));
    }
    let rest = text[start?..].trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '*' | '='));
    let rest = rest.strip_prefix("is ").unwrap_or(rest);
    let end = sentence_end(rest);
    (!rest[..end].trim().is_empty()).then(|| Cue::After(&rest[..end]))
}

/// Returns the end of the first sentence: a full stop or another such mark before white space, an empty line, or the
/// end of a line that has an answer; not in `$…$`, nor between other marks of a formula.
fn sentence_end(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    let mut dollars = 0;
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|&(_, c)| c);
        match c {
            '$' => dollars += 1,
            '.' if dollars % 2 == 0 && next.is_none_or(char::is_whitespace) => return at,
            '!' | '?' if dollars % 2 == 0 && ends_after(&text[at + 1..], c) => return at + 1,
            '\n' if next == Some('\n') && at > 0 && dollars % 2 == 0 => return at,
            '\n' if dollars % 2 == 0 && is_line(&text[..at]) => return at,
            _ => {}
        }
    }
    text.len()
}

/// True if a sentence ends before `rest`: another one begins with a capital. `42? No, 43` goes on.
fn ends_after(rest: &str, mark: char) -> bool {
    let next = rest.trim_start();
    let spaced = next.len() < rest.len() && next.starts_with(char::is_uppercase);
    let taken_back = || ["No", "Wait", "Hmm", "Actually"].iter().any(|word| next.starts_with(word));
    spaced && !(mark == '?' && taken_back())
}

/// True for a line with an answer, which the next line does not go on with.
fn is_line(line: &str) -> bool {
    let line = line.trim();
    if line.is_empty()
        || line.len() > 400
        || line.ends_with([',', ':', '=', '+', '-', '*', '/', '&', '\\', '(', '{', '['])
    {
        return false;
    }
    let same = |open: &str, close: &str| line.matches(open).count() == line.matches(close).count();
    let closed = same("\\[", "\\]") && same("\\(", "\\)") && same("\\begin", "\\end") && same("{", "}");
    let last = line.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or("").to_lowercase();
    let goes_on = CHANGING.contains(&last.as_str()) || matches!(last.as_str(), "or" | "of" | "be" | "equals");
    closed
        && !goes_on
        && (is_bare(line) || line.contains(|c: char| c.is_ascii_digit() || c == '$' || c == '\\'))
}

/// Marks around an answer that are no part of it.
pub(super) fn is_mark(c: char) -> bool {
    matches!(c, '*' | '"' | '\u{201c}' | '\u{201d}' | '\u{ab}' | '\u{bb}' | '`')
}
