//! Values as YAML in block style, for `kubectl` and people. Ambiguous text is quoted as in JSON, which is also YAML.

use serde_json::Value;

/// Returns a document without its `---`.
pub(crate) fn text(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

fn block(value: &Value, indent: usize, text: &mut String) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                text.push_str(&format!("{margin}{}:", scalar(&Value::from(key.as_str()))));
                nested(value, indent + 2, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                if is_block(item) {
                    block(item, indent + 2, &mut inner)
                } else {
                    inner = format!("{margin}  {}\n", scalar_at(item, indent + 2))
                }
                // The first line of an item follows its dash.
                text.push_str(&format!("{margin}- {}", &inner[indent + 2..]));
            }
        }
        _ => text.push_str(&format!("{margin}{}\n", scalar(value))),
    }
}

fn nested(value: &Value, indent: usize, text: &mut String) {
    if is_block(value) {
        text.push('\n');
        block(value, indent, text);
    } else {
        text.push_str(&format!(" {}\n", scalar_at(value, indent)))
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

/// Returns a value; a text of several lines as a literal block that is `indent` in.
fn scalar_at(value: &Value, indent: usize) -> String {
    let Some(lines) = value.as_str().filter(|text| is_lines(text)) else { return scalar(value) };
    let margin = " ".repeat(indent);
    let line = |line: &str| if line.is_empty() { "\n".to_string() } else { format!("\n{margin}{line}") };
    format!("|-{}", lines.split('\n').map(line).collect::<String>())
}

/// True for a text of lines that a literal block gives back as they are.
fn is_lines(text: &str) -> bool {
    text.contains('\n')
        && !text.ends_with('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && text.chars().all(|c| c == '\n' || !c.is_control())
}

/// Words that YAML 1.1 reads as truth values or null.
const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    // A dash followed by a letter begins no list: `--ranks`.
    let begins = text.strip_prefix("--").or(text.strip_prefix('-')).unwrap_or(text);
    let is_plain = begins.starts_with(|c: char| c.is_ascii_alphabetic() || (c == '/' && begins == text))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.clone() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_are_indented_and_what_could_be_misread_is_quoted() {
        let value = json!({
            "a": { "b": 1, "c": [], "d": {} },
            "list": ["x", { "k": "no", "l": ["1", "-"] }, ["p", "q"]],
            "nvidia.com/gpu": "4",
            "words": ["--ranks", "-c", "---", "-1", "true", "it's: $(RANK)", "a b", "", "1e3", "ä\n\n  #"],
            "script": "a\nb",
            "ends": "a\n",
            "on": true,
        });
        let expect = "\
a:
  b: 1
  c: []
  d: {}
list:
  - x
  - k: \"no\"
    l:
      - \"1\"
      - \"-\"
  - - p
    - q
nvidia.com/gpu: \"4\"
words:
  - --ranks
  - -c
  - \"---\"
  - \"-1\"
  - \"true\"
  - \"it's: $(RANK)\"
  - \"a b\"
  - \"\"
  - \"1e3\"
  - |-
    ä

      #
script: |-
  a
  b
ends: \"a\\n\"
\"on\": true
";
        assert_eq!(text(&value), expect);
    }
}
