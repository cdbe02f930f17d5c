//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use super::meter::Result;
use super::value::{Buffer, Text, Value};

/// Appends `str(value)`; an undefined value writes nothing.
pub(super) fn write<'r>(out: &mut Buffer<'r>, value: &Value<'r>) -> Result<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Text(text) => out.push(text.as_str()),
        other => write_repr(out, other),
    }
}

pub(super) fn write_repr<'r>(out: &mut Buffer<'r>, value: &Value<'r>) -> Result<()> {
    out.meter().work(0)?;
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(flag) => out.push(if *flag { "True" } else { "False" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&float(*number)),
        Value::Digits(digits) => out.push(digits.as_str()),
        Value::Text(text) => quote(out, text.as_str()),
        Value::List(list) => {
            let (open, close) = if list.is_tuple { ("(", ")") } else { ("[", "]") };
            out.push(open)?;
            each(out, &list.items, |out, item| write_repr(out, item))?;
            out.push(if list.is_tuple && list.items.len() == 1 { "," } else { "" })?;
            out.push(close)
        }
        Value::Dict(dict) => {
            out.push("{")?;
            each(out, &dict.entries, |out, (key, value)| {
                write_repr(out, key)?;
                out.push(": ")?;
                write_repr(out, value)
            })?;
            out.push("}")
        }
        Value::Namespace(_) | Value::Macro(_) | Value::Function(_) | Value::Loop(_) => {
            out.meter().fault(format!("a {} has no text", value.kind()))
        }
    }
}

fn each<'r, T>(
    out: &mut Buffer<'r>,
    items: &[T],
    write: impl Fn(&mut Buffer<'r>, &T) -> Result<()>,
) -> Result<()> {
    for (index, item) in items.iter().enumerate() {
        out.push(if index > 0 { ", " } else { "" })?;
        write(out, item)?;
    }
    Ok(())
}

/// Writes a number as Python does: the shortest digits that give it back, with a power below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_string();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, power) = text.split_once('e').expect("the format has a power");
        let (sign, power) = power.strip_prefix('-').map_or(("+", power), |power| ("-", power));
        return format!("{digits}e{sign}{power:0>2}");
    }
    format!("{number:?}")
}

fn quote(out: &mut Buffer, text: &str) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mark = if quote == '"' { "\"" } else { "'" };
    out.push(mark)?;
    out.push_escaped(text, |c| match c {
        '\n' => Some("\\n".into()),
        '\r' => Some("\\r".into()),
        '\t' => Some("\\t".into()),
        '\\' => Some("\\\\".into()),
        c if c == quote => Some(format!("\\{c}")),
        c if is_printable(c) => None,
        c => Some(match u32::from(c) {
            code @ 0..0x100 => format!("\\x{code:02x}"),
            code @ 0x100..0x1_0000 => format!("\\u{code:04x}"),
            code => format!("\\U{code:08x}"),
        }),
    })?;
    out.push(mark)
}

/// Evaluates Python's `isprintable`, by the standard library's escapes of text after a first character.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || {
        let mut text = ['a', c].into_iter().collect::<String>();
        text = text.escape_debug().skip(1).collect();
        !text.starts_with('\\')
    }
}

/// How `json.dumps` writes.
pub(super) struct Json<'r> {
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
    /// White space of one level; with it every item has a line for itself.
    pub(super) indent: Option<Text<'r>>,
    pub(super) item_separator: Text<'r>,
    pub(super) key_separator: Text<'r>,
}

impl<'r> Json<'r> {
    /// Appends a value; `level` brackets are around it.
    pub(super) fn write(&self, out: &mut Buffer<'r>, value: &Value<'r>, level: usize) -> Result<()> {
        out.meter().work(0)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(flag) => out.push(if *flag { "true" } else { "false" }),
            Value::Int(number) => out.push(&number.to_string()),
            Value::Float(number) if number.is_nan() => out.push("NaN"),
            Value::Float(number) if number.is_infinite() => {
                out.push(if *number > 0.0 { "Infinity" } else { "-Infinity" })
            }
            Value::Float(number) => out.push(&float(*number)),
            Value::Digits(digits) => out.push(digits.as_str()),
            Value::Text(text) => self.quote(out, text.as_str()),
            Value::List(list) => {
                let items = list.items.iter();
                self.bracket(out, ["[", "]"], level, items, |out, item| self.write(out, item, level + 1))
            }
            Value::Dict(dict) => {
                let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
                }
                self.bracket(out, ["{", "}"], level, entries.into_iter(), |out, (key, value)| {
                    self.key(out, key)?;
                    out.push(self.key_separator.as_str())?;
                    self.write(out, value, level + 1)
                })
            }
            other => out.meter().fault(format!("`tojson` of a value of type {}", other.kind())),
        }
    }

    fn bracket<T>(
        &self,
        out: &mut Buffer<'r>,
        [open, close]: [&str; 2],
        level: usize,
        items: impl ExactSizeIterator<Item = T>,
        write: impl Fn(&mut Buffer<'r>, T) -> Result<()>,
    ) -> Result<()> {
        let is_empty = items.len() == 0;
        let line = |out: &mut Buffer<'r>, level: usize| match &self.indent {
            Some(indent) if !is_empty => {
                out.push("\n")?;
                out.push_repeated(indent.as_str(), level)
            }
            _ => Ok(()),
        };
        out.push(open)?;
        for (index, item) in items.enumerate() {
            out.push(if index > 0 { self.item_separator.as_str() } else { "" })?;
            line(out, level + 1)?;
            write(out, item)?;
        }
        line(out, level)?;
        out.push(close)
    }

    /// Keys that are not text become text, as in Python.
    fn key(&self, out: &mut Buffer<'r>, key: &Value<'r>) -> Result<()> {
        if let Value::Text(text) = key {
            return self.quote(out, text.as_str());
        }
        out.push("\"")?;
        self.write(out, key, 0)?;
        out.push("\"")
    }

    fn quote(&self, out: &mut Buffer, text: &str) -> Result<()> {
        out.push("\"")?;
        out.push_escaped(text, |c| match c {
            '"' => Some("\\\"".into()),
            '\\' => Some("\\\\".into()),
            '\n' => Some("\\n".into()),
            '\r' => Some("\\r".into()),
            '\t' => Some("\\t".into()),
            '\u{8}' => Some("\\b".into()),
            '\u{c}' => Some("\\f".into()),
            c if c < ' ' || (self.ensure_ascii && !matches!(c, ' '..='~')) => {
                Some(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
            }
            _ => None,
        })?;
        out.push("\"")
    }
}
