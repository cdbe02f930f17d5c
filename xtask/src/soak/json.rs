//! Just enough JSON to compare lines: every leaf of an object with its path and its text as written. Numbers stay text,
//! so that a difference of the last bit is a difference.

/// Every leaf of a JSON text, in order: (`metrics.reward`, `0.25`).
///
/// `None` if the text is not JSON.
pub fn leaves(text: &str) -> Option<Vec<(String, String)>> {
    let mut reader = Reader { rest: text };
    let mut found = Vec::new();
    reader.value("", &mut found)?;
    reader.space();
    reader.rest.is_empty().then_some(found)
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn value(&mut self, path: &str, found: &mut Vec<(String, String)>) -> Option<()> {
        self.space();
        match self.rest.bytes().next()? {
            b'{' => self.members(path, found),
            b'[' => self.items(path, found),
            b'"' => {
                let text = self.string()?;
                found.push((path.to_string(), text.to_string()));
                Some(())
            }
            _ => {
                let end = self.rest.find([',', '}', ']', ' ', '\n', '\t', '\r']).unwrap_or(self.rest.len());
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                found.push((path.to_string(), text.to_string()));
                (!text.is_empty()).then_some(())
            }
        }
    }

    fn members(&mut self, path: &str, found: &mut Vec<(String, String)>) -> Option<()> {
        self.take('{')?;
        while self.take('}').is_none() {
            self.space();
            let key = self.string()?.trim_matches('"');
            self.take(':')?;
            let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
            self.value(&path, found)?;
            self.take(',');
        }
        Some(())
    }

    fn items(&mut self, path: &str, found: &mut Vec<(String, String)>) -> Option<()> {
        self.take('[')?;
        while self.take(']').is_none() {
            self.value(path, found)?;
            self.take(',');
        }
        Some(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> Option<&'t str> {
        let mut escaped = false;
        let inner = self.rest.strip_prefix('"')?;
        for (at, byte) in inner.bytes().enumerate() {
            match byte {
                b'"' if !escaped => {
                    let (text, rest) = self.rest.split_at(at + 2);
                    self.rest = rest;
                    return Some(text);
                }
                b'\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        None
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(wanted)?;
        Some(())
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_their_paths_and_their_text() {
        let text = " {\"a\": 1e-7, \"b\": {\"c/d\": \"x\\\"y\", \"e\": [true, {\"f\": null}]}, \"g\": {}, \"h\": []}\n";
        let found = leaves(text).unwrap();
        let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(found, [("a", "1e-7"), ("b.c/d", "\"x\\\"y\""), ("b.e", "true"), ("b.e.f", "null")]);
        for bad in ["", "{", "{\"a\"}", "{\"a\": 1} x", "{\"a\": \"b}"] {
            assert!(leaves(bad).is_none(), "{bad}");
        }
    }
}
