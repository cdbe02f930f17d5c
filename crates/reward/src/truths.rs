//! The answers of a row, for verifiers that compare texts: one, or a list of several of which any is right.

use crate::case::text_of;
use plimsoll_base::Decimal;
use serde_json::Value;

/// Most answers of a row.
const TRUTHS_MAX: usize = 256;

/// An answer of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Truth {
    pub(crate) text: String,
    /// The value, if the data has a number and not a text.
    number: Option<Decimal>,
}

impl Truth {
    fn new(value: &Value) -> Truth {
        let number = match value {
            Value::Number(number) => Decimal::parse(&number.to_string()),
            _ => None,
        };
        // Without an exponent, which not every verifier reads.
        let text = number.as_ref().map_or_else(|| text_of(value), Decimal::to_string);
        Truth { text, number }
    }

    /// True if the answer is a number, and the response that number alone: 42 is 42.0.
    pub(crate) fn is_number(&self, response: &str) -> bool {
        self.number.is_some() && Decimal::parse(response.trim()) == self.number
    }
}

/// Reads the answers of a row.
///
/// A list has several, also as JSON text in a column of texts, which then counts itself as well. Errors: a sentence
/// about a list that has none, too many, or more than texts, numbers and booleans.
pub(crate) fn truths(answer: &Value) -> Result<Vec<Truth>, String> {
    let (items, whole) = match answer {
        Value::Array(items) => (items.clone(), None),
        Value::String(text) => match listed(text) {
            Some(items) => (items, Some(answer)),
            None => return Ok(vec![Truth::new(answer)]),
        },
        other => return Ok(vec![Truth::new(other)]),
    };
    if items.is_empty() || items.len() > TRUTHS_MAX {
        return Err(format!("there are {} answers; 1 to {TRUTHS_MAX} are compared", items.len()));
    }
    if let Some(other) = items.iter().find(|item| item.is_array() || item.is_object() || item.is_null()) {
        return Err(format!("one of several answers is `{:.40}`", other.to_string()));
    }
    Ok(items.iter().chain(whole).map(Truth::new).collect())
}

/// Returns the answers of a list that is written as JSON or as Python writes it; mathematics has no text in quotes.
fn listed(text: &str) -> Option<Vec<Value>> {
    let text = text.trim();
    if !text.starts_with('[') || !text.contains(['"', '\'']) {
        return None;
    }
    let items: Vec<Value> = match serde_json::from_str(text) {
        Ok(items) => items,
        Err(_) => python_list(text)?,
    };
    items.iter().any(Value::is_string).then_some(items)
}

/// Reads `['5', "five", 5]`.
fn python_list(text: &str) -> Option<Vec<Value>> {
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut items = Vec::new();
    while !rest.is_empty() && items.len() <= TRUTHS_MAX {
        let after = match rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            Some(quote) => {
                let (mut text, mut chars) = (String::new(), rest.char_indices().skip(1));
                let end = loop {
                    match chars.next()? {
                        (at, c) if c == quote => break at + 1,
                        (_, '\\') => match chars.next()?.1 {
                            'n' => text.push('\n'),
                            't' => text.push('\t'),
                            c @ ('\\' | '\'' | '"') => text.push(c),
                            _ => return None,
                        },
                        (_, c) => text.push(c),
                    }
                };
                items.push(Value::String(text));
                &rest[end..]
            }
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                items.push(match rest[..end].trim() {
                    "True" => Value::Bool(true),
                    "False" => Value::Bool(false),
                    number => serde_json::from_str(number).ok().filter(Value::is_number)?,
                });
                &rest[end..]
            }
        };
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{grade_exact, grade_gsm8k, math::grade_math};
    use serde_json::json;

    type Grade = fn(&str, &str) -> bool;

    fn is_right(grade: Grade, response: &str, answer: &Value) -> bool {
        let truths = truths(answer).expect("answers");
        truths.iter().any(|truth| grade(response, &truth.text) || truth.is_number(response))
    }

    /// `["5"]` was the text of a list for one verifier, and a number within it for another.
    #[test]
    fn r_a_list_of_answers_meant_something_else_to_each_verifier() {
        for (response, answer, expect) in [
            ("5", json!(["5"]), true),
            ("5", json!([5]), true),
            ("5", json!([5.0]), true),
            ("5", json!(["5", "6"]), true),
            ("6", json!(["5", "6"]), true),
            ("6", json!([5, 6]), true),
            ("7", json!(["5", "6"]), false),
            ("6", json!(["5"]), false),
            ("5", json!("[\"5\"]"), true),
            ("5", json!("[\"4\", \"5\"]"), true),
            ("6", json!("[\"4\", \"5\"]"), false),
            ("5", json!("[\"4\", 5]"), true),
            ("5", json!("[5, \"five\"]"), true),
            ("5", json!("['5']"), true),
            ("6", json!("['5', '6']"), true),
            ("7", json!("['5', '6']"), false),
            ("5", json!("['five', 5]"), true),
            ("5", json!("[\"it's\", '5']"), true),
            ("5", json!("5"), true),
            ("5", json!(5), true),
            ("5", json!(6), false),
        ] {
            for (name, grade) in
                [("exact", grade_exact as Grade), ("math", grade_math), ("gsm8k", grade_gsm8k)]
            {
                assert_eq!(is_right(grade, response, &answer), expect, "{name}: {response} for {answer}");
            }
        }
        assert!(is_right(grade_exact, "[\"a\"]", &json!("[\"a\"]")));
        assert!(is_right(grade_math, "[1,2]", &json!("[1,2]")), "a text is an interval");
        for answer in [json!([]), json!([[1]]), json!(["5", null]), json!([{"a": 1}])] {
            assert!(truths(&answer).is_err(), "{answer}");
        }
    }

    /// A column of numbers with a gap holds 42.0 for 42, which no response was equal to.
    #[test]
    fn r_a_number_was_compared_as_it_was_written() {
        for (response, answer, expect) in [
            ("42", json!(42.0), true),
            (" 42.0\n", json!(42), true),
            ("42.5", json!(42.5), true),
            ("42", json!(42.5), false),
            ("10000000000000000000000", json!(1e22), true),
            ("042", json!("42"), false),
            ("42.0", json!("42"), false),
            ("x", json!(42), false),
        ] {
            assert_eq!(is_right(grade_exact, response, &answer), expect, "{response} for {answer}");
        }
        assert!(is_right(grade_gsm8k, "#### 10000000000000000000000", &json!(1e22)));
        assert!(!is_right(grade_gsm8k, "#### 1", &json!(1e22)));
    }
}
