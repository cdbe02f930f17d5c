//! Finds the last formula or number in a text that does not announce its answer.

use super::prose::prose_words;
use super::working_text::with_working;

/// Longest number with spaces between its groups of digits.
const GROUPED_CHARS_MAX: usize = 32;

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
