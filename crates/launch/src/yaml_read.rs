//! YAML in the part of it that people write manifests in: maps and lists by indentation or in brackets, texts on one
//! line. What a reader could take for something else is refused by its line, and not guessed.

use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};

/// Deepest nesting: a container in a pod of a JobSet is at 16.
const DEPTH_MAX: usize = 64;

/// Words that some readers of YAML take for truth values.
const UNCLEAR: [&str; 6] = ["yes", "no", "on", "off", "y", "n"];

struct Line<'t> {
    number: usize,
    indent: usize,
    text: &'t str,
}

/// Reads the documents of a file, which `---` separates.
///
/// Errors: `launch-patch`.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let mut parts: Vec<Vec<Line<'_>>> = vec![Vec::new()];
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let content = without_comment(line);
        let text = content.trim_start_matches(' ');
        let indent = content.len() - text.len();
        let text = text.trim_end();
        match text {
            "" => {}
            "---" if indent == 0 => parts.push(Vec::new()),
            _ if text.starts_with('\t') => {
                return Err(refused(number, "a tab is no indentation: write spaces"));
            }
            _ => parts.last_mut().expect("one is there").push(Line { number, indent, text }),
        }
    }
    let read = |mut lines: Vec<Line<'_>>| {
        let mut reader = Reader { lines: &mut lines, at: 0, depth: 0 };
        let indent = reader.lines[0].indent;
        let value = reader.block(indent)?;
        match reader.lines.get(reader.at) {
            None => Ok(value),
            Some(line) => Err(refused(line.number, "its indentation fits nothing before it")),
        }
    };
    parts.into_iter().filter(|lines| !lines.is_empty()).map(read).collect()
}

struct Reader<'l, 't> {
    lines: &'l mut [Line<'t>],
    at: usize,
    depth: usize,
}

impl<'t> Reader<'_, 't> {
    /// Reads what begins at the current line, whose indentation is `indent`.
    fn block(&mut self, indent: usize) -> Result<Value> {
        let Line { number, text, .. } = self.lines[self.at];
        if self.depth == DEPTH_MAX {
            return Err(refused(number, &format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let value = match (is_item(text), key_of(text)) {
            (true, _) => self.list(indent),
            (false, Some(_)) => self.map(indent),
            (false, None) => {
                self.at += 1;
                inline(text, number)
            }
        };
        self.depth -= 1;
        value
    }

    fn list(&mut self, indent: usize) -> Result<Value> {
        let mut items = Vec::new();
        while let Some(&mut Line { number, indent: own, text }) = self.lines.get_mut(self.at) {
            if own != indent || !is_item(text) {
                break;
            }
            let rest = text[1..].trim_start_matches(' ');
            items.push(match rest {
                "" => {
                    self.at += 1;
                    self.below(indent + 1)?
                }
                _ => {
                    // What follows the dash is a line of its own, further in.
                    let inner = indent + (text.len() - rest.len());
                    self.lines[self.at] = Line { number, indent: inner, text: rest };
                    self.block(inner)?
                }
            });
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self, indent: usize) -> Result<Value> {
        let mut map = Map::new();
        while let Some(&Line { number, indent: own, text }) = self.lines.get(self.at) {
            if own != indent || is_item(text) {
                break;
            }
            let Some((key, rest)) = key_of(text) else {
                return Err(refused(number, "neither `key: value` nor an item of a list"));
            };
            let Value::String(key) = word(key, number)? else {
                return Err(refused(number, &format!("the key {key} is no text: put it into quotes")));
            };
            self.at += 1;
            let value = if rest.is_empty() { self.of_key(indent)? } else { inline(rest, number)? };
            if map.insert(key.clone(), value).is_some() {
                return Err(refused(number, &format!("`{key}` is there twice")));
            }
        }
        Ok(Value::Object(map))
    }

    /// Reads the value of a key at `indent` that is on further lines: a list may be as far in as its key.
    fn of_key(&mut self, indent: usize) -> Result<Value> {
        match self.lines.get(self.at) {
            Some(line) if line.indent == indent && is_item(line.text) => self.block(indent),
            _ => self.below(indent + 1),
        }
    }

    /// Reads a block that is at least `least` in; null if there is none.
    fn below(&mut self, least: usize) -> Result<Value> {
        match self.lines.get(self.at) {
            Some(line) if line.indent >= least => self.block(line.indent),
            _ => Ok(Value::Null),
        }
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Returns a line's key and what follows its colon, if it has one outside of quotes and brackets.
fn key_of(text: &str) -> Option<(&str, &str)> {
    if text.starts_with(['{', '[']) {
        return None;
    }
    let start = match text.chars().next() {
        Some(quote @ ('"' | '\'')) => 1 + end_of_quote(&text[1..], quote)? + 1,
        _ => 0,
    };
    let colon = start + colon_in(&text[start..])?;
    Some((text[..colon].trim_end(), text[colon + 1..].trim_start()))
}

/// Returns the place of a colon that ends a word: one before a space or the end.
fn colon_in(text: &str) -> Option<usize> {
    text.match_indices(':')
        .map(|(at, _)| at)
        .find(|at| text[at + 1..].is_empty() || text[at + 1..].starts_with(' '))
}

/// Returns the place of the quote that ends a quoted text, of which `text` is the rest.
fn end_of_quote(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quote == '"' => drop(chars.next()),
            _ if c != quote => {}
            '\'' if chars.peek().is_some_and(|&(_, next)| next == '\'') => drop(chars.next()),
            _ => return Some(at),
        }
    }
    None
}

/// Cuts a comment off, which begins the line or follows a space, outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut at = 0;
    while let Some(c) = line[at..].chars().next() {
        let begins = at == 0 || line[..at].ends_with([' ', '\t', '{', '[', ',', ':']);
        match c {
            '#' if at == 0 || line[..at].ends_with([' ', '\t']) => return &line[..at],
            '"' | '\'' if begins => {
                at += 1 + end_of_quote(&line[at + 1..], c).map_or(line.len() - at - 1, |end| end + 1);
            }
            _ => at += c.len_utf8(),
        }
    }
    line
}

/// Reads a value that is on one line.
fn inline(text: &str, number: usize) -> Result<Value> {
    if !text.starts_with(['{', '[']) {
        return word(text, number);
    }
    let mut flow = Flow { rest: text, number, depth: 0 };
    let value = flow.value()?;
    match flow.rest.trim_start() {
        "" => Ok(value),
        rest => Err(refused(number, &format!("`{rest}` follows the end of the brackets"))),
    }
}

/// A value in brackets.
struct Flow<'t> {
    rest: &'t str,
    number: usize,
    depth: usize,
}

impl<'t> Flow<'t> {
    fn value(&mut self) -> Result<Value> {
        self.rest = self.rest.trim_start();
        if self.depth == DEPTH_MAX {
            return Err(refused(self.number, &format!("nested more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let value = match self.rest.chars().next() {
            Some('{') => self.map()?,
            Some('[') => self.list()?,
            _ => {
                let text = self.word(&[',', ']', '}'])?;
                word(text, self.number)?
            }
        };
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Value> {
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        while !self.closes(']')? {
            items.push(self.value()?);
            self.comma(']')?;
        }
        Ok(Value::Array(items))
    }

    fn map(&mut self) -> Result<Value> {
        self.rest = &self.rest[1..];
        let mut map = Map::new();
        while !self.closes('}')? {
            let key = self.word(&[':'])?;
            let Value::String(key) = word(key, self.number)? else {
                return Err(refused(self.number, &format!("the key {key} is no text: put it into quotes")));
            };
            self.rest = self.rest.trim_start();
            self.rest = self
                .rest
                .strip_prefix(':')
                .ok_or_else(|| refused(self.number, &format!("`{key}` in braces has no `: value`")))?;
            let value = self.value()?;
            if map.insert(key.clone(), value).is_some() {
                return Err(refused(self.number, &format!("`{key}` is there twice")));
            }
            self.comma('}')?;
        }
        Ok(Value::Object(map))
    }

    fn closes(&mut self, close: char) -> Result<bool> {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(close) {
            Some(rest) => {
                self.rest = rest;
                Ok(true)
            }
            None if self.rest.is_empty() => {
                Err(refused(self.number, "brackets end on the line on which they begin"))
            }
            None => Ok(false),
        }
    }

    fn comma(&mut self, close: char) -> Result<()> {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(',') {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None if self.rest.starts_with(close) => Ok(()),
            None => Err(refused(self.number, &format!("a comma or `{close}` is missing"))),
        }
    }

    /// Takes a word, quoted or up to one of `ends`.
    fn word(&mut self, ends: &[char]) -> Result<&'t str> {
        self.rest = self.rest.trim_start();
        let length = match self.rest.chars().next() {
            Some(quote @ ('"' | '\'')) => end_of_quote(&self.rest[1..], quote).map(|end| end + 2),
            _ => self.rest.find(ends),
        };
        let length =
            length.ok_or_else(|| refused(self.number, "brackets end on the line on which they begin"))?;
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(word.trim_end())
    }
}

/// Reads a text, a number, a truth value or null.
fn word(text: &str, number: usize) -> Result<Value> {
    let whole = |quote: char| end_of_quote(&text[1..], quote) == Some(text.len() - 2);
    match text.chars().next() {
        None => return Ok(Value::Null),
        Some('"') if text.len() > 1 && whole('"') => {
            return serde_json::from_str(text)
                .map_err(|err| refused(number, &format!("{text} is no text in quotes: {err}")));
        }
        Some('\'') if text.len() > 1 && whole('\'') => {
            return Ok(text[1..text.len() - 1].replace("''", "'").into());
        }
        Some('"' | '\'') => return Err(refused(number, "a quote is not closed on its line")),
        Some('|' | '>') => {
            return Err(refused(number, "texts of several lines are not read: write it in quotes, with \\n"));
        }
        Some('&' | '*' | '!' | '%' | '@' | '`' | '?') => {
            return Err(refused(number, &format!("{text} is not read: anchors, tags and the like")));
        }
        Some(_) => {}
    }
    let is_unclear = UNCLEAR.contains(&text.to_ascii_lowercase().as_str())
        || text.len() > 1
            && text.starts_with('0')
            && text.chars().all(|c| c.is_ascii_digit() || "xob_".contains(c));
    if is_unclear {
        return Err(refused(
            number,
            &format!(
                "{text} means several things: put it into quotes, or write true, false or a decimal number"
            ),
        ));
    }
    Ok(match text {
        "null" | "~" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        _ => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => Value::Number(number),
            Err(_) => text.into(),
        },
    })
}

fn refused(number: usize, what: &str) -> Error {
    Error::usage("launch-patch", format!("line {number}: {what}"))
        .hint("mend the line: the patch is YAML without anchors, tags and texts of several lines")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_again() {
        let value = json!({
            "a": { "b": 1, "c": [], "d": {}, "e": null, "f": true, "g": 1.5 },
            "list": ["x", { "k": "no", "l": ["1", "-"] }, ["p", "q"]],
            "nvidia.com/gpu": "4",
            "words": ["--ranks", "-c", "---", "-1", "true", "it's: $(RANK)", "a b", "", "1e3", "# no", "a #b"],
            "on": "0644",
        });
        let text = crate::yaml::text(&value);
        assert_eq!(documents(&text).expect(&text), [value]);
    }

    #[test]
    fn people_write_in_several_ways() {
        let text = "\
# a patch
spec:   # of the pod
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists}   # as far in as its key
  - key: 'it''s'
    values: [a, \"b, c\", 3]
  -
    key: last
  image: registry.example/a:1
  url: http://x/#y
  empty:
---
kind: Other
";
        let expect = json!({ "spec": {
            "tolerations": [
                { "key": "nvidia.com/gpu", "operator": "Exists" },
                { "key": "it's", "values": ["a", "b, c", 3] },
                { "key": "last" },
            ],
            "image": "registry.example/a:1",
            "url": "http://x/#y",
            "empty": null,
        }});
        assert_eq!(documents(text).unwrap(), [expect, json!({ "kind": "Other" })]);
        assert!(documents("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn what_could_be_misread_is_refused_by_its_line() {
        for (text, line, words) in [
            ("a: 1\na: 2\n", 2, "`a` is there twice"),
            ("a:\n\tb: 1\n", 2, "a tab"),
            ("a: yes\n", 1, "means several things"),
            ("mode: 0644\n", 1, "means several things"),
            ("a: |\n  text\n", 1, "several lines"),
            ("a: *b\n", 1, "anchors"),
            ("a: 'b\n", 1, "not closed"),
            ("a: [1, 2\n", 1, "on the line"),
            ("a: {b 1}\n", 1, "on the line"),
            ("a: [1 2] 3\n", 1, "follows the end"),
            ("a: 1\n  b: 2\n", 2, "fits nothing"),
            ("a: 1\nb\n", 2, "neither"),
            ("1: b\n", 1, "no text"),
        ] {
            let error = documents(text).expect_err(text);
            assert_eq!(error.slug, "launch-patch");
            assert!(
                error.message.starts_with(&format!("line {line}: ")) && error.message.contains(words),
                "{text}: {error}"
            );
        }
        let deep = "[".repeat(DEPTH_MAX + 1);
        assert!(documents(&deep).unwrap_err().message.contains("deep"));
    }
}
