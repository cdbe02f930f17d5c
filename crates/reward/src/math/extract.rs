//! Finds the answer in a response: the last box, else the text announced last, else the last expression.
//!
//! One answer is chosen, never several to try: a response that lists candidates must not be right by one of them.

use super::announced::{Announced, announced, has_cue};
use super::expression::last_expression;
use super::prose::is_bare;
use crate::thinking;

/// Longest text between two boxes that belong together, as in `\boxed{1} and \boxed{2}`.
const GAP_CHARS_MAX: usize = 40;

/// An answer as written in the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// The contents of the last box, or of the last boxes where they are joined.
    Boxed(String),
    /// The whole text, or an expression out of prose.
    Text(String),
    /// An announced answer without the exclamation mark after it, which may be a factorial's.
    Exclaimed(String),
    /// No answer: nothing there, or a box that does not close.
    Nothing,
}

/// Longest answer of a box without braces.
const TOKEN_BYTES_MAX: usize = 39;

pub(crate) fn answer(text: &str) -> Found {
    let text = before_markers(text);
    let said = match thinking::said(text) {
        Some(said) => said,
        // Thinking that was cut off has no answer.
        None if thinking::thinks(text) => return Found::Nothing,
        None => text,
    };
    match said_in(said) {
        // Some end with the box in which they thought.
        Found::Nothing if said.len() < text.len() => match last_box(text) {
            Boxes::Closed(contents) if !contents.trim().is_empty() => Found::Boxed(contents),
            _ => Found::Nothing,
        },
        found => found,
    }
}

/// Finds the answer in the words after the thinking.
fn said_in(text: &str) -> Found {
    if let Some(sentence) = closing_sentence(text) {
        return sentence;
    }
    match last_box(text) {
        Boxes::Closed(contents) if contents.trim().is_empty() => return Found::Nothing,
        Boxes::Closed(contents) => return Found::Boxed(contents),
        Boxes::Open => return Found::Nothing,
        Boxes::None => {}
    }
    let text = tagged(text).unwrap_or(text);
    let bare = is_bare(text) && !has_cue(text) && text.lines().filter(|l| l.contains('=')).count() < 2;
    // `#### 5` is how solutions of GSM8K end.
    let marked = text.rsplit("####").next().unwrap_or(text);
    match if bare { Found::Text(marked.trim().to_string()) } else { from_prose(text) } {
        Found::Text(found) if found.trim().is_empty() => Found::Nothing,
        found => found,
    }
}

/// Finds `The final answer is $…$. I hope it is correct.`, which ends Minerva's prompt and counts even after a box.
fn closing_sentence(text: &str) -> Option<Found> {
    let start = text.rfind("The final answer is $")? + "The final answer is $".len();
    let (formula, rest) = text[start..].split_once('$')?;
    let closes = rest.trim_start_matches('.').trim_start().starts_with("I hope it is correct");
    (closes && !formula.trim().is_empty() && !formula.contains("\\boxed"))
        .then(|| Found::Text(formula.to_string()))
}

/// Cuts at the marks of chat templates, after which another turn begins.
fn before_markers(text: &str) -> &str {
    let marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>"];
    let end = marks.iter().filter_map(|mark| text.find(mark)).filter(|&at| at > 0).min();
    &text[..end.unwrap_or(text.len())]
}

fn tagged(text: &str) -> Option<&str> {
    let start = text.rfind("<answer>")? + "<answer>".len();
    let end = text[start..].find("</answer>").map_or(text.len(), |at| start + at);
    Some(&text[start..end])
}

enum Boxes {
    Closed(String),
    /// The last box does not close.
    Open,
    None,
}

/// A box in the text: where its command starts, its contents, and where it ends.
struct Span {
    start: usize,
    inner: (usize, usize),
    end: usize,
}

fn last_box(text: &str) -> Boxes {
    let (closed, last_open) = boxes(text);
    let Some(last) = closed.iter().max_by_key(|span| span.start) else {
        return if last_open.is_some() { Boxes::Open } else { Boxes::None };
    };
    if last_open.is_some_and(|open| open > last.start) {
        return Boxes::Open;
    }
    // A box in a box: the outer one is meant. Boxes come in the order of their ends, so one that lies in another lies
    // in a later one that starts before it.
    let mut outer: Vec<&Span> = Vec::new();
    let mut first_start = usize::MAX;
    for span in closed.iter().rev() {
        if span.start < first_start {
            outer.push(span);
        }
        first_start = first_start.min(span.start);
    }
    outer.reverse();
    let mut joined = vec![outer.len() - 1];
    for index in (0..outer.len() - 1).rev() {
        let gap = &text[outer[index].end..outer[index + 1].start];
        if !is_connector(gap) || joined.len() >= 32 {
            break;
        }
        joined.push(index);
    }
    let contents: Vec<&str> =
        joined.iter().rev().map(|&k| &text[outer[k].inner.0..outer[k].inner.1]).collect();
    Boxes::Closed(contents.join(", "))
}

/// Returns all closed boxes, and the start of the last open one. One pass over the text.
fn boxes(text: &str) -> (Vec<Span>, Option<usize>) {
    let bytes = text.as_bytes();
    let (mut closed, mut open): (Vec<Span>, Vec<(usize, Option<usize>)>) = (Vec::new(), Vec::new());
    let mut bad = None;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => {
                let rest = &text[at + 1..];
                let command = ["boxed", "fbox", "framebox"].into_iter().find(|name| rest.starts_with(name));
                let after = at + 1 + command.map_or(0, str::len);
                match command {
                    Some(_) if !rest[after - at - 1..].starts_with(|c: char| c.is_ascii_alphabetic()) => {
                        let brace = after + text[after..].bytes().take_while(|&b| b == b' ').count();
                        if bytes.get(brace) == Some(&b'{') {
                            open.push((brace + 1, Some(at)));
                            at = brace + 1;
                        } else {
                            match unbraced(text, after) {
                                Some(inner) => closed.push(Span { start: at, inner, end: inner.1 }),
                                None => bad = Some(at),
                            }
                            at = after;
                        }
                    }
                    // An escaped sign is not a brace.
                    _ => at += 1 + rest.chars().next().map_or(0, char::len_utf8),
                }
                continue;
            }
            b'{' => open.push((at + 1, None)),
            b'}' => {
                if let Some((inner, Some(start))) = open.pop() {
                    closed.push(Span { start, inner: (inner, at), end: at + 1 });
                }
            }
            _ => {}
        }
        at += 1;
    }
    let left = open.into_iter().filter_map(|(_, start)| start).max();
    (closed, left.max(bad))
}

/// Finds the end of `\boxed 5`: white space or a dollar sign.
fn unbraced(text: &str, after: usize) -> Option<(usize, usize)> {
    let rest = &text[after..];
    let start = after + rest.len() - rest.trim_start_matches(' ').len();
    // A longer token is not read; finding its end would be repeated for each box.
    let near = &text[start..text.floor_char_boundary(start + TOKEN_BYTES_MAX + 1)];
    let length = near.find(|c: char| c.is_whitespace() || c == '$').unwrap_or(near.len());
    let token = balanced(&near[..length]).trim_end_matches(['.', ',']);
    let readable =
        token.starts_with(|c: char| c.is_ascii_digit() || c == '-') && token.len() <= TOKEN_BYTES_MAX;
    readable.then_some((start, start + token.len()))
}

/// Cuts a token before the first brace that closes nothing in it, and before the next box; before the first brace if
/// one would stay open. So a box without braces neither holds another nor reaches out of one.
fn balanced(token: &str) -> &str {
    let (mut depth, mut first_brace) = (0usize, token.len());
    for (at, byte) in token.bytes().enumerate() {
        match byte {
            b'{' => {
                first_brace = first_brace.min(at);
                depth += 1;
            }
            b'}' if depth == 0 => return &token[..at],
            b'}' => depth -= 1,
            b'\\' if ["\\boxed", "\\fbox", "\\framebox"].iter().any(|name| token[at..].starts_with(name)) => {
                return &token[..if depth == 0 { at } else { first_brace }];
            }
            _ => {}
        }
    }
    if depth == 0 { token } else { &token[..first_brace] }
}

/// True if boxes with this between them are one answer: a comma, `and`, `or`, and marks that show nothing.
fn is_connector(gap: &str) -> bool {
    if gap.len() > GAP_CHARS_MAX {
        return false;
    }
    let mut text = gap.to_string();
    for mark in [
        "\\quad", "\\qquad", "\\text", "\\(", "\\)", "\\[", "\\]", "\\,", "\\;", "\\ ", "$", "{", "}", "~",
        "\\mathrm",
    ] {
        text = text.replace(mark, " ");
    }
    let words: Vec<&str> = text.split([' ', '\n', '\t', ',', ';']).filter(|word| !word.is_empty()).collect();
    words.iter().all(|word| matches!(*word, "and" | "or")) && (!words.is_empty() || gap.contains([',', ';']))
}

/// Returns the answer of a text in sentences.
fn from_prose(text: &str) -> Found {
    if let Some(Announced { text, exclaimed }) = announced(text) {
        return if exclaimed { Found::Exclaimed(text) } else { Found::Text(text) };
    }
    if let Some(phrase) = super::words::closing(text) {
        return Found::Text(phrase.to_string());
    }
    last_expression(text).map_or(Found::Nothing, Found::Text)
}
