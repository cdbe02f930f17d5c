//! JSON whose numbers keep their digits. [`Value`] holds 64 bits: larger integers and longer decimals would be rounded.

use crate::Decimal;
use serde_json::{Map, Value};

/// Characters of a number that a float always gives back.
const SAFE_CHARS: usize = 15;

/// Marks the digits of a number that a [`Value`] would round; no text that has it is read in this way.
const DIGITS: char = '\u{10fffe}';

/// Reads JSON to write it again: a number that would be rounded is a marked text, which [`marked_digits`] reads and
/// [`json_unmarked`] writes as the number.
///
/// Errors: those of `serde_json`.
pub fn json_marked(text: &str) -> serde_json::Result<Value> {
    if has_mark(text) {
        return serde_json::from_str(text);
    }
    json_exactly(text, |digits| Value::String(format!("{DIGITS}{digits}")))
}

/// True if a text has the mark of numbers, which none but a forged one has: its numbers are read as 64 bits hold them.
pub fn has_mark(text: &str) -> bool {
    let escape = || text.contains("\\ud") || text.contains("\\uD");
    text.contains(DIGITS) || (escape() && text.to_ascii_lowercase().contains("\\udbff\\udffe"))
}

/// Returns the digits of a marked number.
pub fn marked_digits(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(DIGITS)
}

/// Writes a value that was read with [`json_marked`], with all digits of its numbers.
pub fn json_unmarked(value: &Value) -> String {
    let text = value.to_string();
    let mark = format!("\"{DIGITS}");
    let mut parts = text.split(mark.as_str());
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (digits, rest) = part.split_once('"').unwrap_or((part, ""));
        out.push_str(digits);
        out.push_str(rest);
    }
    out
}

/// Reads JSON. A number that [`Value`] would round becomes what `inexact` makes of its digits.
///
/// Errors: those of `serde_json`, for the same texts.
fn json_exactly(text: &str, inexact: fn(&str) -> Value) -> serde_json::Result<Value> {
    let value: Value = serde_json::from_str(text)?;
    if !may_be_inexact(text) {
        return Ok(value);
    }
    // The text is valid and not nested too deeply, so that the walk reads all of it.
    Ok(Walk { text, at: 0, inexact }.value().unwrap_or(value))
}

/// Reads JSON; a number that would be rounded becomes the text of its digits.
///
/// Errors: those of `serde_json`.
pub fn json_with_digits(text: &str) -> serde_json::Result<Value> {
    json_exactly(text, |digits| Value::String(digits.to_string()))
}

/// True if a run of characters of numbers is long, or may have an exponent.
fn may_be_inexact(text: &str) -> bool {
    let mut run = 0;
    text.bytes().any(|byte| {
        let exponent = matches!(byte, b'e' | b'E') && run > 0;
        run = if byte.is_ascii_digit() || (byte == b'.' && run > 0) { run + 1 } else { 0 };
        exponent || run > SAFE_CHARS
    })
}

struct Walk<'t> {
    text: &'t str,
    at: usize,
    inexact: fn(&str) -> Value,
}

impl Walk<'_> {
    fn next(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.next() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Option<Value> {
        match self.next()? {
            b'{' => {
                self.at += 1;
                let mut members = Map::new();
                while !self.eat(b'}') {
                    self.eat(b',');
                    self.next()?;
                    let name = self.string()?;
                    self.eat(b':').then_some(())?;
                    members.insert(name, self.value()?);
                }
                Some(Value::Object(members))
            }
            b'[' => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.eat(b']') {
                    self.eat(b',');
                    items.push(self.value()?);
                }
                Some(Value::Array(items))
            }
            b'"' => self.string().map(Value::String),
            b't' | b'f' | b'n' => self.word(|byte| byte.is_ascii_lowercase()),
            _ => self.word(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')),
        }
    }

    fn string(&mut self) -> Option<String> {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        while *bytes.get(end)? != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        let text = &self.text[self.at..=end];
        self.at = end + 1;
        serde_json::from_str(text).ok()
    }

    fn word(&mut self, part: fn(u8) -> bool) -> Option<Value> {
        let rest = &self.text[self.at..];
        let word = &rest[..rest.bytes().take_while(|&byte| part(byte)).count()];
        self.at += word.len();
        let value: Value = serde_json::from_str(word).ok()?;
        let exact = match &value {
            Value::Number(number) => Decimal::parse(word) == Decimal::parse(&number.to_string()),
            _ => true,
        };
        Some(if exact { value } else { (self.inexact)(word) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn r_numbers_beyond_64_bits_lost_their_digits() {
        for (text, expect) in [
            ("12345678901234567890123", json!("12345678901234567890123")),
            ("18446744073709551616", json!("18446744073709551616")),
            ("18446744073709551615", json!(18446744073709551615u64)),
            ("-9223372036854775809", json!("-9223372036854775809")),
            ("-9223372036854775808", json!(i64::MIN)),
            ("3.14159265358979323846", json!("3.14159265358979323846")),
            ("0.1000000000000000055511151231257827", json!("0.1000000000000000055511151231257827")),
            ("0.10000000000000000", json!(0.1)),
            ("1e22", json!(1e22)),
            ("100000000000000000000", json!(1e20)),
            (
                "{\"a\": [1, 123456789012345678901 , \"12345678901234567890123\"], \"b\\n\": {}, \"c\": [ ]}",
                json!({"a": [1, "123456789012345678901", "12345678901234567890123"], "b\n": {}, "c": []}),
            ),
            (
                "{\"a\": 1234567890123456789012, \"a\": null, \"b\": \"\\\\\\\"12\", \"t\": [true, false]}",
                json!({"a": null, "b": "\\\"12", "t": [true, false]}),
            ),
        ] {
            assert_eq!(json_with_digits(text).ok(), Some(expect), "{text}");
        }
    }

    #[test]
    fn marked_numbers_are_written_with_their_digits() {
        for text in ["{\"a\":[12345678901234567890123,1.5,\"x\"]}", "-0.12345678901234567890", "{\"a\":\"\"}"]
        {
            let value = json_marked(text).expect("JSON");
            assert_eq!(json_unmarked(&value), text);
        }
        for text in
            ["[\"\u{10fffe}\",12345678901234567890123]", "[\"\\uDBFF\\udffe\",12345678901234567890123]"]
        {
            assert!(has_mark(text) && json_marked(text).expect("JSON")[1].is_f64(), "{text}");
        }
        assert_eq!(
            marked_digits(&json_marked("12345678901234567890123").unwrap()),
            Some("12345678901234567890123")
        );
    }

    #[test]
    fn other_texts_are_read_as_before() {
        for text in
            ["", "{", "[1,]", "1e400", "01", "{\"a\" 1}", "12345678901234567890123x", &"[".repeat(200)]
        {
            assert!(json_with_digits(text).is_err(), "{text}");
        }
        for text in ["1", "1.5", "[1, 2.5e-3, \"x\"]", "{\"a\": {\"b\": [null]}}", "-0.0", "1E5"] {
            assert_eq!(json_with_digits(text).ok(), serde_json::from_str(text).ok(), "{text}");
        }
    }
}
