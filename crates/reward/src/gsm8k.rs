//! The grader of grade-school word problems: the number after the last `####`, else the last number.

/// Longest number in characters; a longer one is no answer.
const NUMBER_CHARS_MAX: usize = 200;
/// Most signs, currency marks, asterisks and spaces between the start of a number and its digits.
const MARKS_MAX: usize = 8;

/// Returns true if the response's number equals the ground truth's.
///
/// Numbers may carry a sign, a currency mark, thousands separators, a decimal part, a per-cent sign and markup.
/// They are compared digit by digit, so no rounding ever makes two different numbers equal.
pub fn grade_gsm8k(response: &str, ground_truth: &str) -> bool {
    match (answer_number(response), answer_number(ground_truth)) {
        (Some(response), Some(truth)) => response == truth,
        _ => false,
    }
}

/// Returns a sentence with the number read in each text.
pub(crate) fn why(response: &str, ground_truth: &str) -> String {
    let said = |text| match answer_number(text) {
        Some(Decimal { negative, whole, fraction }) => {
            let sign = if negative { "-" } else { "" };
            format!("{sign}{whole:.40}{}{fraction:.40}", if fraction.is_empty() { "" } else { "." })
        }
        None => "no number".into(),
    };
    format!("the response says {}, the ground truth {}", said(response), said(ground_truth))
}

/// A decimal number in one form: no leading or trailing zeros, no sign on zero.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    whole: String,
    fraction: String,
}

fn answer_number(text: &str) -> Option<Decimal> {
    match text.rfind("####") {
        // After the marks the first number counts; without a number there is no answer.
        Some(at) => numbers(&text[at + 4..]).next(),
        None => last_number(text),
    }
}

fn last_number(text: &str) -> Option<Decimal> {
    numbers(text).last()
}

fn numbers(text: &str) -> impl Iterator<Item = Decimal> {
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < chars.len() {
            if let Some((number, end)) = number_at(&chars, at) {
                at = end;
                return Some(number);
            }
            at += 1;
        }
        None
    })
}

/// Reads the number that starts at `start` (a sign, a digit or a point before one). Also returns the index after it.
fn number_at(chars: &[char], start: usize) -> Option<(Decimal, usize)> {
    let at = |i: usize| chars.get(i).copied().unwrap_or(' ');
    let mut i = start;
    let before = if start == 0 { ' ' } else { chars[start - 1] };
    let negative = matches!(at(i), '-' | '−' | '–');
    if negative {
        // In `7-2` the sign is a subtraction.
        if before.is_alphanumeric() || before == ')' {
            return None;
        }
        i += 1;
    }
    // Bounded: each of a megabyte of currency marks would read all those after it.
    while i < start + MARKS_MAX
        && (matches!(at(i), '$' | '€' | '£' | '¥' | '*') || (i > start && at(i) == ' '))
    {
        i += 1;
    }
    // A sign or currency mark counts only with its number; digits start one at their first.
    if !(at(i).is_ascii_digit() || (at(i) == '.' && at(i + 1).is_ascii_digit() && !before.is_ascii_digit())) {
        return None;
    }
    let mut whole = String::new();
    while at(i).is_ascii_digit() || (at(i) == ',' && group_follows(chars, i) && !whole.is_empty()) {
        if at(i) != ',' {
            whole.push(at(i));
        }
        i += 1;
    }
    let mut fraction = String::new();
    if at(i) == '.' && at(i + 1).is_ascii_digit() {
        i += 1;
        while at(i).is_ascii_digit() {
            fraction.push(at(i));
            i += 1;
        }
    } else if at(i) == ',' && at(i + 1).is_ascii_digit() {
        // `12,5`: a decimal comma, or a list; either way not the number 12.
        i += 1;
        fraction.push('?');
        while at(i).is_ascii_digit() {
            i += 1;
        }
    }
    if i - start > NUMBER_CHARS_MAX {
        fraction.push('?');
    }
    let whole = whole.trim_start_matches('0').to_string();
    let fraction = fraction.trim_end_matches('0').to_string();
    let negative = negative && !(whole.is_empty() && fraction.is_empty());
    Some((Decimal { negative, whole, fraction }, i))
}

/// True if `chars[comma]` is followed by exactly three digits, as a thousands separator is.
fn group_follows(chars: &[char], comma: usize) -> bool {
    let digit = |i: usize| chars.get(i).is_some_and(char::is_ascii_digit);
    (1..=3).all(|k| digit(comma + k)) && !digit(comma + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_after_the_marks_or_the_last_number_counts() {
        for (response, truth, expect) in [
            ("6 * 9 = <<6*9=54>>54\n#### 54", "54", true),
            ("6 * 9 = 54\n#### 55", "54", false),
            ("#### 54\nor 55", "54", true),
            ("#### 1\n#### 54", "54", true),
            ("####", "54", false),
            ("#### many", "54", false),
            ("fifty-four", "54", false),
            ("It is $54.00.", "54", true),
            ("#### **54** dollars", "54", true),
            ("#### 2,345,678", "2345678", true),
            ("#### 2.345", "2345", false),
            ("#### 23,45", "23", false),
            ("#### 23,45", "2345", false),
            ("#### -54", "54", false),
            ("#### -$54", "-54", true),
            ("#### \u{2212}54", "-54", true),
            ("20-6", "6", true),
            ("0.50", ".5", true),
            ("-0", "0", true),
            ("#### 54%", "54", true),
            ("54 pens in 3 boxes", "54", false),
            ("#### 90071992547409931", "90071992547409930", false),
            ("", "54", false),
        ] {
            assert_eq!(grade_gsm8k(response, truth), expect, "{response:?} against {truth:?}");
        }
    }

    #[test]
    fn a_megabyte_of_digits_comes_back_at_once() {
        assert!(!grade_gsm8k(&"9".repeat(1 << 20), "9"));
        assert!(!grade_gsm8k(&"9,".repeat(1 << 19), "8"));
        assert!(!grade_gsm8k(&"$".repeat(1 << 20), "8"));
    }
}
