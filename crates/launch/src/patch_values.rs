//! The values of a patch as JSON. What `kubectl` and others read differently, such as `yes` and `0644`, is refused by
//! its line and not guessed.

use plimsoll_base::{Error, Result, Yaml, YamlValue, yaml_documents};
use serde_json::{Map, Number, Value};

/// Words that some readers of YAML take for truth values.
const UNCLEAR: [&str; 6] = ["yes", "no", "on", "off", "y", "n"];
/// Words that mean the same to all readers in small letters alone.
const CLEAR: [&str; 3] = ["true", "false", "null"];

/// Reads the documents of a patch.
///
/// Errors: `launch-patch`.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = yaml_documents(text).map_err(|fault| refused(fault.line, &fault.what))?;
    documents.into_iter().map(value).collect()
}

fn value(yaml: Yaml<'_>) -> Result<Value> {
    match yaml.value {
        YamlValue::Word { text, is_plain: false } => Ok(text.into()),
        YamlValue::Word { text, .. } => word(text, yaml.line),
        YamlValue::List(items) => items.into_iter().map(value).collect(),
        YamlValue::Map(entries) => map(entries, yaml.in_brackets.is_some()),
    }
}

fn map(entries: Vec<(Yaml<'_>, Yaml<'_>)>, is_in_braces: bool) -> Result<Value> {
    let mut map = Map::new();
    for (key, given) in entries {
        let line = key.line;
        let key = match value(key)? {
            Value::String(key) => key,
            key => return Err(refused(line, &format!("the key {key} is no text: put it into quotes"))),
        };
        // `{b 1}` is a key `b 1` without a value.
        let is_missing = matches!(&given.value, YamlValue::Word { text, is_plain: true } if text.is_empty());
        if is_in_braces && is_missing {
            return Err(refused(line, &format!("`{key}` in braces has no `: value`")));
        }
        let given = value(given)?;
        if map.insert(key.clone(), given).is_some() {
            return Err(refused(line, &format!("`{key}` is there twice")));
        }
    }
    Ok(Value::Object(map))
}

/// Reads a word without quotes: a text, a number, a truth value or null.
fn word(text: String, line: usize) -> Result<Value> {
    if is_unclear(&text) {
        let what = "means several things: put it into quotes, or write true, false, null or a decimal number";
        return Err(refused(line, &format!("{text} {what}")));
    }
    Ok(match text.as_str() {
        "" | "null" | "~" => Value::Null,
        "true" => true.into(),
        "false" => false.into(),
        _ => match serde_json::from_str::<Number>(&text) {
            Ok(number) => Value::Number(number),
            Err(_) => text.into(),
        },
    })
}

/// Returns true for a word that readers of YAML disagree about: `No`, `True`, `0644`, `0x1f`, `1_000`, `+1`, `1:30`.
fn is_unclear(text: &str) -> bool {
    let small = text.to_ascii_lowercase();
    let is_other_case = CLEAR.contains(&small.as_str()) && small != text;
    let digits = small.trim_start_matches(['-', '+']);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || "xob_:".contains(c))
        && !digits.chars().all(|c| c.is_ascii_digit());
    let is_octal = digits.len() > 1 && digits.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit());
    let is_hexadecimal =
        digits.strip_prefix("0x").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit() || c == '_'));
    let is_float = small.starts_with(['+', '.']) || small.starts_with("-.");
    let is_special = [".inf", ".nan"].contains(&digits);
    UNCLEAR.contains(&small.as_str())
        || is_other_case
        || is_number
        || is_octal
        || is_hexadecimal
        || is_special
        || is_float && small.trim_start_matches(['-', '+', '.']).parse::<f64>().is_ok()
}

fn refused(line: usize, what: &str) -> Error {
    Error::usage("launch-patch", format!("line {line}: {what}"))
        .hint("mend the line: the patch is YAML without anchors, aliases and tags")
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
            "script": "a\n\n  b: 'c'",
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
    values: [a, \"b, c\", 3,
      d]
  -
    key: last
  image: registry.example/a:1
  url: http://x/#y
  script: |
    a: *b
    yes
  empty:
---
kind: Other
";
        let expect = json!({ "spec": {
            "tolerations": [
                { "key": "nvidia.com/gpu", "operator": "Exists" },
                { "key": "it's", "values": ["a", "b, c", 3, "d"] },
                { "key": "last" },
            ],
            "image": "registry.example/a:1",
            "url": "http://x/#y",
            "script": "a: *b\nyes\n",
            "empty": null,
        }});
        assert_eq!(documents(text).unwrap(), [expect, json!({ "kind": "Other" })]);
        assert!(documents("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn what_could_be_misread_is_refused_by_its_line() {
        let cases = [
            ("a: 1\na: 2\n", 2, "`a` is there twice"),
            ("a:\n\tb: 1\n", 2, "tab"),
            ("a: yes\n", 1, "means several things"),
            ("mode: 0644\n", 1, "means several things"),
            ("a: 1\nb: True\n", 2, "means several things"),
            ("a: 1_000\n", 1, "means several things"),
            ("a: 0x1F\n", 1, "means several things"),
            ("a: +1\n", 1, "means several things"),
            ("a: .5\n", 1, "means several things"),
            ("a: 1:30\n", 1, "means several things"),
            ("a: -.inf\n", 1, "means several things"),
            ("a: *b\n", 1, "anchor"),
            ("a: &b 1\n", 1, "anchors"),
            ("a: !b 1\n", 1, "tags"),
            ("a: {b 1}\n", 1, "`b 1` in braces has no"),
            ("a: [1 2] 3\n", 1, ""),
            ("a: 1\n  b: 2\n", 2, ""),
            ("1: b\n", 1, "no text"),
            ("[a]: b\n", 1, "no text"),
        ];
        let other = cases.iter().filter_map(|(text, line, words)| {
            let error = documents(text).expect_err(text);
            let line = format!("line {line}: ");
            let is_it = error.slug == "launch-patch"
                && error.message.starts_with(&line)
                && error.message.contains(words);
            (!is_it).then(|| format!("{text:?}: {error}"))
        });
        assert_eq!(other.collect::<Vec<_>>(), [""; 0]);
        for clear in [
            "10.0.0.1",
            "1.2.3",
            "a:1",
            "+a",
            "..",
            "-",
            "0",
            "-0",
            "0.5",
            "1e3",
            "NVIDIA-H100",
            "2026-01-02",
            "x_0",
        ] {
            assert!(!is_unclear(clear), "{clear}");
        }
    }
}
