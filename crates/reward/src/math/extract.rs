//! Finds the answer in a response: the last box, else the text announced last, else the last expression.
//!
//! One answer is chosen, never several to try: a response that lists candidates must not be right by one of them.

use super::announced::{Announced, announced, has_cue};
use super::units::UNITS;
use super::working_text::with_working;

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

/// Longest number with spaces between its groups of digits.
const GROUPED_CHARS_MAX: usize = 32;

/// Finds the answer.
pub(crate) fn answer(text: &str) -> Found {
    let text = before_markers(text);
    let said = match (text.rfind("</think>"), text.contains("<think>")) {
        (Some(at), _) => &text[at + "</think>".len()..],
        // Thinking that was cut off has no answer.
        (None, true) => return Found::Nothing,
        _ => text,
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

/// Finds the answer in what is said after the thinking.
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

/// True if the text is an answer and nothing else: no sentence around it.
pub(super) fn is_bare(text: &str) -> bool {
    let text = text.trim();
    if text.len() > 4000 {
        return false;
    }
    let words = prose_words(text);
    let mathematics = text.contains('$')
        || text.contains("\\(")
        || text.contains("\\[")
        || text.contains(|c: char| c.is_ascii_digit());
    words == 0 || (words <= 3 && !mathematics)
}

/// Counts words outside commands and their text arguments, except units, connectors, function names and capitals.
pub(super) fn prose_words(text: &str) -> usize {
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_alphabetic() || c == '\\') {
        let before = rest[..at].chars().next_back();
        rest = &rest[at..];
        if rest.starts_with('\\') {
            rest = after_command(rest);
            continue;
        }
        let end = rest.find(|c: char| !c.is_alphabetic() && c != '\'').unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let next = tail.chars().next();
        rest = tail;
        let attached = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || matches!(c, '_' | '^'));
        if word.chars().count() >= 2 && !is_known(word) && !attached(before) && !attached(next) {
            count += 1;
        }
    }
    count
}

/// True for words that formulas have: connectors, functions, units and names of capitals.
pub(super) fn is_known(word: &str) -> bool {
    let capitals = word.len() <= 4 && word.chars().all(char::is_uppercase);
    let named = matches!(
        word,
        "and" | "or" | "sin" | "cos" | "tan" | "log" | "exp" | "sqrt" | "gcd" | "lcm" | "max" | "pi"
    );
    capitals || named || UNITS.iter().any(|&(name, _)| name == word)
}

/// Returns the text after a command and, for text commands and environments, after their group.
pub(super) fn after_command(text: &str) -> &str {
    let name_end = text[1..].find(|c: char| !c.is_ascii_alphabetic()).map_or(text.len(), |at| at + 1);
    let name = &text[1..name_end];
    if name.is_empty() {
        let skip = text[1..].chars().next().map_or(0, char::len_utf8);
        return &text[1 + skip..];
    }
    let rest = &text[name_end..];
    let grouped = name.starts_with("text")
        || matches!(name, "mbox" | "hbox" | "mathrm" | "operatorname" | "begin" | "end" | "mathbf");
    match (grouped, rest.starts_with('{'), rest.find('}')) {
        (true, true, Some(end)) => &rest[end + 1..],
        _ => rest,
    }
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

/// Returns the last formula or number on its own, whichever ends later.
pub(super) fn last_expression(text: &str) -> Option<String> {
    let formula = last_formula(text);
    let search_from = formula.as_ref().map_or(0, |f| f.1);
    match (last_number(&text[search_from..], search_from == 0), formula) {
        (Some(number), _) => Some(number),
        (None, Some((formula, _))) => Some(formula),
        (None, None) => None,
    }
}

/// Returns the last `$…$`, `$$…$$`, `\(…\)` or `\[…\]` and its end.
fn last_formula(text: &str) -> Option<(String, usize)> {
    let bytes = text.as_bytes();
    let mut last = None;
    let mut at = 0;
    // Where no closing mark follows, none is searched for again: the scan stays linear.
    let mut missing = [false; 3];
    while at + 1 < bytes.len() {
        let (open, close, kind) = match (bytes[at], bytes[at + 1]) {
            (b'$', b'$') => (2, "$$", 0),
            (b'$', _) => (1, "$", 0),
            (b'\\', b'(') => (2, "\\)", 1),
            (b'\\', b'[') => (2, "\\]", 2),
            (b'\\', b'$') | (b'\\', b'\\') => {
                at += 2;
                continue;
            }
            _ => {
                at += 1;
                continue;
            }
        };
        let start = at + open;
        let found = if missing[kind] { None } else { find_unescaped(text, start, close) };
        match found {
            // `$5 and $6`: money, not a formula.
            Some(end) if !(close == "$" && is_money(&text[start..end])) => {
                if !text[start..end].trim().is_empty() {
                    let formula = &text[start..end];
                    let negative =
                        is_negated(&text[text.floor_char_boundary(at.saturating_sub(SIGN_BYTES))..at]);
                    let formula = if negative { format!("-({formula})") } else { formula.to_string() };
                    last = Some((formula, end + close.len()));
                }
                at = end + close.len();
            }
            Some(_) => at = start,
            None => {
                missing[kind] = true;
                at = start;
            }
        }
    }
    last
}

pub(super) fn find_unescaped(text: &str, start: usize, close: &str) -> Option<usize> {
    let mut from = start;
    loop {
        let end = from + text[from..].find(close)?;
        // `\$` is a sign of money inside the formula.
        if close == "$" && end > start && text.as_bytes()[end - 1] == b'\\' {
            from = end + 1;
            continue;
        }
        return Some(end);
    }
}

/// Bytes before a number in which its sign may be a word.
const SIGN_BYTES: usize = 24;

/// True for text that ends with a sign in words: `negative 42`, `is minus 42`; in `50 minus 8` it is an operation.
fn is_negated(before: &str) -> bool {
    let before = before.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '$' | '*' | '\\'));
    let before = before.to_ascii_lowercase();
    let apart = |c: char| !c.is_alphanumeric() && c != '-';
    let sign =
        |word| before.strip_suffix(word).filter(|rest: &&str| rest.ends_with(apart) || rest.is_empty());
    let operand =
        |rest: &str| rest.trim_end().ends_with(|c: char| c.is_ascii_digit() || matches!(c, ')' | '%' | '$'));
    sign("negative").is_some() || sign("minus").is_some_and(|rest| !operand(rest))
}

/// Returns true for a number followed by words: the text between two dollar signs of money.
fn is_money(inner: &str) -> bool {
    inner.starts_with(|c: char| c.is_ascii_digit()) && prose_words(inner) >= 2
}

/// Returns the last number outside words and exponents: sign, separators, decimals, fraction, per cent.
///
/// An equation of numbers that ends with it is read with it, where the text does not begin `whole` only in part.
fn last_number(text: &str, whole: bool) -> Option<String> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |k: usize| chars.get(k).is_some_and(char::is_ascii_digit);
    let mut last = None;
    let mut at = 0;
    while at < chars.len() {
        if !digit(at) {
            at += 1;
            continue;
        }
        let mut start = at;
        while digit(at)
            || (chars.get(at) == Some(&',')
                && digit(at + 1)
                && digit(at + 2)
                && digit(at + 3)
                && !digit(at + 4))
            || (matches!(chars.get(at), Some('.' | '/')) && digit(at + 1))
            || group_after(&chars, start, at).is_some()
        {
            at += group_after(&chars, start, at).unwrap_or(1);
        }
        let before = if start == 0 { ' ' } else { chars[start - 1] };
        if before.is_alphabetic() || matches!(before, '^' | '_' | '\\' | '{' | '}') {
            continue;
        }
        if before == '.' && (start < 2 || !chars[start - 2].is_alphanumeric()) {
            start -= 1;
        }
        while start > 0
            && matches!(chars[start - 1], '$' | '€' | '£' | ' ')
            && start > 1
            && chars[start - 2] == '-'
        {
            start -= 1;
        }
        let signed = start > 0
            && chars[start - 1] == '-'
            && (start < 2 || !(chars[start - 2].is_alphanumeric() || matches!(chars[start - 2], ')' | '-')));
        let before: String = chars[start.saturating_sub(SIGN_BYTES)..start].iter().collect();
        let mut number: String = chars[start..at].iter().filter(|c| !matches!(c, '$' | ' ')).collect();
        if signed || is_negated(&before) {
            number.insert(0, '-');
        }
        let rest: String = chars[at..].iter().take(10).collect();
        if rest.trim_start().starts_with('%')
            || rest.trim_start().starts_with("\\%")
            || rest.trim_start().starts_with("percent")
        {
            number.push('%');
        }
        last = Some((number, start - usize::from(signed)));
    }
    let (number, start) = last?;
    Some(with_working(&chars, start, whole).map_or(number.clone(), |working| working + &number))
}

/// Returns the length of a space or thin space at `at` and the digit after it, between groups of three digits.
fn group_after(chars: &[char], start: usize, at: usize) -> Option<usize> {
    let space = match (chars.get(at)?, chars.get(at + 1)?) {
        (' ', _) => 1,
        ('\\', ',') => 2,
        _ => return None,
    };
    // Each group looks back over earlier ones, of which a number has few.
    if at - start > GROUPED_CHARS_MAX {
        return None;
    }
    let digit = |k: usize| chars.get(k).is_some_and(char::is_ascii_digit);
    let three = (0..3).all(|k| digit(at + space + k)) && !digit(at + space + 3);
    let fraction = chars.get(at + space + 3) == Some(&'/');
    let group = chars[start..at].iter().rev().take_while(|c| c.is_ascii_digit()).count();
    let grouped = chars[start..at].iter().all(|c| c.is_ascii_digit() || matches!(c, ' ' | '\\' | ','));
    let first = group == at - start && (1..=3).contains(&group);
    (three && !fraction && (first || (group == 3 && grouped))).then_some(space + 1)
}
