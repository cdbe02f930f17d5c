//! JSON that a peer wrote, read where it lies: a value is a part of the text, and what is asked for is found in it by
//! walking. No tree is built, unless its bytes are bounded: a tree of 4 MiB of small values takes 128 MiB and more.

use crate::json_tree::json_within;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt;

/// Most bytes of a string or number, unless a reader asks for more: reading one may copy it twice.
const WORD_BYTES_MAX: usize = 1 << 20;
/// Most lists and objects within each other.
const DEPTH_MAX: usize = 128;

/// A value in the text of a reply or a request.
#[derive(Clone, Copy, Debug)]
pub struct JsonPart<'r>(&'r str);

impl<'r> JsonPart<'r> {
    /// Reads a reply, which must be JSON, with lists in at most 128 others and strings of at most 1 MiB.
    ///
    /// Errors: words on what the reply is instead, after "answered".
    pub fn of(reply: &'r [u8]) -> Result<JsonPart<'r>, String> {
        JsonPart::with_words(reply, WORD_BYTES_MAX)
    }

    /// Reads a reply whose strings and numbers may have up to `word_bytes_max` bytes.
    ///
    /// Errors: those of [`JsonPart::of`].
    pub fn with_words(reply: &'r [u8], word_bytes_max: usize) -> Result<JsonPart<'r>, String> {
        within_limits(reply, word_bytes_max)?;
        let text = std::str::from_utf8(reply).map_err(|_| "no JSON: it is no UTF-8".to_string())?;
        match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => Ok(JsonPart(text.trim())),
            Err(err) => Err(format!("no JSON: line {}, column {}", err.line(), err.column())),
        }
    }

    /// Returns a field of an object; `None` for a field that is not there, and for a value that is no object.
    ///
    /// Errors: words on a field that is there twice, after "answered".
    pub fn field(self, name: &str) -> Result<Option<JsonPart<'r>>, String> {
        let mut found = None;
        let mut times = 0;
        self.each_field(name, &mut |value| {
            times += 1;
            found = Some(value);
        });
        match times {
            0 | 1 => Ok(found),
            _ => Err(format!("with `{name}` {times} times")),
        }
    }

    /// Calls `found` with each value of a field, of which a forged object has several. Returns false for a value that
    /// is no object.
    pub fn each_field(self, name: &str, found: &mut dyn FnMut(JsonPart<'r>)) -> bool {
        if !self.0.starts_with('{') {
            return false;
        }
        let walk = Walk { name, found };
        serde_json::Deserializer::from_str(self.0).deserialize_map(walk).is_ok()
    }

    /// Calls `field` with each name and value of an object; returns `None` for a value that is no object.
    ///
    /// Errors: the first of `field`.
    pub fn fields<E>(
        self,
        field: &mut dyn FnMut(String, JsonPart<'r>) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        if !self.0.starts_with('{') {
            return Ok(None);
        }
        let mut failed = None;
        let mut is_good = |name: String, part: JsonPart<'r>| match field(name, part) {
            Ok(()) => true,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let is_read = serde_json::Deserializer::from_str(self.0).deserialize_map(Names(&mut is_good)).is_ok();
        match failed {
            Some(error) => Err(error),
            None => Ok(is_read.then_some(())),
        }
    }

    /// Returns the number of items of a list; `None` for a value that is no list.
    pub fn count(self) -> Option<usize> {
        let mut count = 0;
        let is_list = self.each(&mut |_| {
            count += 1;
            Ok::<(), ()>(())
        });
        is_list.ok().flatten().map(|()| count)
    }

    /// Calls `item` with each item of a list; returns `None` for a value that is no list.
    ///
    /// Errors: the first of `item`.
    pub fn each<E>(self, item: &mut dyn FnMut(JsonPart<'r>) -> Result<(), E>) -> Result<Option<()>, E> {
        if !self.0.starts_with('[') {
            return Ok(None);
        }
        let mut failed = None;
        let mut is_good = |part: JsonPart<'r>| match item(part) {
            Ok(()) => true,
            Err(error) => {
                failed = Some(error);
                false
            }
        };
        let walk = Items(&mut is_good);
        let is_read = serde_json::Deserializer::from_str(self.0).deserialize_seq(walk).is_ok();
        match failed {
            Some(error) => Err(error),
            None => Ok(is_read.then_some(())),
        }
    }

    /// Returns the first item of a list.
    pub fn first(self) -> Option<JsonPart<'r>> {
        let mut first = None;
        let found = self.each(&mut |part| {
            first = Some(part);
            Err(())
        });
        found.is_err().then_some(first).flatten()
    }

    /// Returns a number; `None` for another value, and for a number beyond those of f64.
    pub fn number(self) -> Option<f64> {
        let begins = self.0.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        if begins { serde_json::from_str(self.0).ok() } else { None }
    }

    /// Returns a string; `None` for another value.
    pub fn string(self) -> Option<String> {
        if self.0.starts_with('"') { serde_json::from_str(self.0).ok() } else { None }
    }

    /// Returns a string without a copy; `None` for another value, and for one that is written with escapes.
    pub fn plain_string(self) -> Option<&'r str> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        (!inner.contains('\\')).then_some(inner)
    }

    /// Returns true or false; `None` for another value.
    pub fn boolean(self) -> Option<bool> {
        serde_json::from_str(self.0).ok()
    }

    /// Returns true for null.
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Returns the value's own text.
    pub fn text(self) -> &'r str {
        self.0
    }

    /// Returns the value as a tree, which takes at most `tree_bytes_max` bytes while it is built.
    ///
    /// Errors: words on what it would take, after "answered".
    pub fn tree(self, tree_bytes_max: usize) -> Result<Value, String> {
        json_within(self.0, tree_bytes_max)
    }
}

/// Returns a field of what may not be there.
pub fn json_field<'r>(of: Option<JsonPart<'r>>, name: &str) -> Result<Option<JsonPart<'r>>, String> {
    of.map_or(Ok(None), |of| of.field(name))
}

/// Refuses what would need more memory to read than is planned: long strings and numbers, and deep nesting.
fn within_limits(reply: &[u8], word_bytes_max: usize) -> Result<(), String> {
    let (mut depth, mut word, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for &byte in reply {
        word += 1;
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else {
            match byte {
                b'"' => (quoted, word) = (true, 0),
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if !quoted && !matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') {
                word = 0;
            }
        }
        if depth > DEPTH_MAX {
            return Err(format!("with more than {DEPTH_MAX} lists and objects within each other"));
        }
        if word > word_bytes_max {
            return Err(format!("with a string or a number of more than {word_bytes_max} bytes"));
        }
    }
    Ok(())
}

struct Walk<'w, 'r> {
    name: &'w str,
    found: &'w mut dyn FnMut(JsonPart<'r>),
}

impl<'r> Visitor<'r> for Walk<'_, 'r> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'r>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_it) = map.next_key_seed(Is(self.name))? {
            if is_it {
                (self.found)(JsonPart(map.next_value::<&RawValue>()?.get()))
            } else {
                let _ = map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Walks an object by name, until it is answered false.
struct Names<'w, 'r>(&'w mut dyn FnMut(String, JsonPart<'r>) -> bool);

impl<'r> Visitor<'r> for Names<'_, 'r> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'r>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if !(self.0)(name, JsonPart(map.next_value::<&RawValue>()?.get())) {
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

/// Compares a key, without a copy.
struct Is<'n>(&'n str);

impl<'r> DeserializeSeed<'r> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'r>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Walks a list, until it is answered false.
struct Items<'w, 'r>(&'w mut dyn FnMut(JsonPart<'r>) -> bool);

impl<'r> Visitor<'r> for Items<'_, 'r> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'r>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<&RawValue>()? {
            if !(self.0)(JsonPart(item.get())) {
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_and_other_things_are_none() {
        let reply =
            JsonPart::of(br#" {"a": [1, {"b": "x\n"}, null], "a\u0062": true, "n": -1.5e3} "#).expect("JSON");
        let of = |name| reply.field(name).expect("once");
        let list = of("a").expect("it is there");
        assert_eq!((list.count(), list.first().and_then(JsonPart::number)), (Some(3), Some(1.0)));
        let mut texts = Vec::new();
        let walked = list.each(&mut |item| {
            texts.push((item.text(), item.is_null()));
            Ok::<(), ()>(())
        });
        assert_eq!(walked, Ok(Some(())));
        assert_eq!(texts, [("1", false), ("{\"b\": \"x\\n\"}", false), ("null", true)]);
        assert_eq!(
            (of("ab").and_then(JsonPart::boolean), of("n").and_then(JsonPart::number)),
            (Some(true), Some(-1500.0))
        );
        let inner = JsonPart::of(br#"{"b": "x\n"}"#).expect("JSON").field("b").expect("once").expect("there");
        assert_eq!((inner.string().as_deref(), inner.number(), inner.count()), (Some("x\n"), None, None));
        let mut names = Vec::new();
        let walked = reply.fields(&mut |name, value| {
            names.push((name, value.text()));
            Ok::<(), ()>(())
        });
        assert_eq!(walked, Ok(Some(())));
        assert_eq!(names[1..], [("ab".into(), "true"), ("n".into(), "-1.5e3")]);
        assert_eq!(list.fields(&mut |_, _| Err(())), Ok(None));
        assert_eq!(reply.fields(&mut |_, _| Err("first")), Err("first"));
        let strings = JsonPart::of(br#"["a/b", "a\/b", 1, ""]"#).expect("JSON");
        let mut plain = Vec::new();
        let _ = strings.each(&mut |item| {
            plain.push(item.plain_string());
            Ok::<(), ()>(())
        });
        assert_eq!(plain, [Some("a/b"), None, None, Some("")]);
        assert_eq!(list.tree(4096).map(|tree| tree.to_string()), Ok(r#"[1,{"b":"x\n"},null]"#.into()));
        assert!(list.tree(100).expect_err("too large").contains("more than 100 bytes as a tree"));
        assert!(of("missing").is_none() && list.field("b").expect("no object").is_none());
        assert_eq!(JsonPart::of(b"[]").expect("JSON").first().map(JsonPart::text), None);
    }

    #[test]
    fn what_is_no_json_or_beyond_the_limits_is_named() {
        let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
        let long = format!("[\"{}\"]", "x".repeat(WORD_BYTES_MAX + 1));
        let digits = format!("[0.{}]", "1".repeat(WORD_BYTES_MAX + 1));
        for (reply, words) in [
            ("", "no JSON"),
            ("{\"a\": }", "no JSON: line 1, column 7"),
            ("{} {}", "no JSON"),
            (deep.as_str(), "more than 128 lists"),
            (long.as_str(), "more than 1048576 bytes"),
            (digits.as_str(), "more than 1048576 bytes"),
        ] {
            assert!(JsonPart::of(reply.as_bytes()).expect_err("bad").contains(words), "{words}");
        }
        assert!(JsonPart::of(b"\"\xff\"").expect_err("bad").contains("UTF-8"));
        let twice = JsonPart::of(br#"{"a": 1, "a": 1}"#).expect("JSON").field("a");
        assert_eq!(twice.expect_err("twice"), "with `a` 2 times");
        let most = format!("[\"{}\", {}]", "\\\"".repeat(WORD_BYTES_MAX / 2 - 1), &deep[2..256]);
        assert!(JsonPart::of(most.as_bytes()).is_ok());
    }
}
