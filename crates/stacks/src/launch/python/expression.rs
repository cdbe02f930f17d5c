//! Python expressions as far as launch files need them: literals, names, calls, sums. All others are `Other`.

use super::tokens::{Kind, Token};
use std::ops::Range;

const DEPTH_MAX: usize = 48;
/// Longest sum, and longest chain of attributes and calls.
const CHAIN_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    /// A text with names in braces: `f"out/{NAME}"`.
    Format(String),
    Number(String),
    /// `True`, `False` or `None`.
    Word(String),
    /// `NAME` or `module.NAME`.
    Name(String),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Call(Call),
    Sum(String, Box<Value>, Box<Value>),
    /// An element, attribute or call of a value, and its name: `[train]`, `.map`; `None` if it cannot be read.
    Of(Box<Value>, Option<String>),
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// Its name, also `module.name` or `object.method`.
    pub name: String,
    pub arguments: Vec<Argument>,
    /// Its first token: names mean their assignments before it.
    pub at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Argument {
    pub name: Option<String>,
    pub value: Value,
    /// Its bytes in the text.
    pub source: Range<usize>,
    pub line: usize,
}

impl Call {
    /// Returns the part of its name after the last dot.
    pub fn last_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }

    pub fn argument(&self, name: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.name.as_deref() == Some(name))
    }

    pub fn positional(&self, index: usize) -> Option<&Argument> {
        self.arguments.iter().filter(|argument| argument.name.is_none()).nth(index)
    }
}

/// A file's text with its tokens.
pub(super) struct Code<'a> {
    pub text: &'a str,
    pub tokens: Vec<Token>,
}

impl Code<'_> {
    pub fn word(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| &self.text[token.start..token.end])
    }

    pub fn is_name(&self, index: usize) -> bool {
        self.tokens.get(index).is_some_and(|token| token.kind == Kind::Name)
    }

    fn is_operator(&self, index: usize, operator: &str) -> bool {
        self.tokens.get(index).is_some_and(|token| token.kind == Kind::Operator)
            && self.word(index) == operator
    }

    /// Returns the bytes of the tokens in `range`.
    pub fn source(&self, range: &Range<usize>) -> Range<usize> {
        match (self.tokens.get(range.start), self.tokens.get(range.end.wrapping_sub(1))) {
            (Some(first), Some(last)) if range.start < range.end => first.start..last.end,
            _ => 0..0,
        }
    }

    /// Returns the index of the first `operator` in `range` outside brackets.
    pub fn find(&self, range: &Range<usize>, operator: &str) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            if self.is_operator(at, operator) {
                return Some(at);
            }
            // Before its colon a `lambda` has its own names and commas.
            if operator != ":" && self.is_name(at) && self.word(at) == "lambda" {
                at = self.find(&(at + 1..range.end), ":")?;
            }
            at = self.tokens[at].close.max(at) + 1;
        }
        None
    }

    /// Returns the parts of a list or a tuple, with or without its brackets.
    pub fn items(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let is_bracketed = range.len() > 1
            && matches!(self.word(range.start), "(" | "[")
            && self.tokens[range.start].close == range.end - 1;
        self.parts(if is_bracketed { range.start + 1..range.end - 1 } else { range })
    }

    /// Splits `range` at commas outside brackets.
    pub fn parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut rest) = (Vec::new(), range);
        while rest.start < rest.end {
            let comma = self.find(&rest, ",").unwrap_or(rest.end);
            if comma > rest.start {
                parts.push(rest.start..comma);
            }
            rest.start = comma + 1;
        }
        parts
    }

    /// Reads `range` as a value.
    pub fn value(&self, range: Range<usize>) -> Value {
        self.value_within(range, 0)
    }

    fn value_within(&self, range: Range<usize>, depth: usize) -> Value {
        if depth > DEPTH_MAX {
            return Value::Other;
        }
        // `a, b` without brackets.
        if self.find(&range, ",").is_some() {
            return Value::List(self.values(range, depth));
        }
        let mut reader = Reader { code: self, range, depth };
        let value = reader.sum();
        if reader.range.is_empty() { value } else { Value::Other }
    }

    fn values(&self, range: Range<usize>, depth: usize) -> Vec<Value> {
        self.parts(range).into_iter().map(|part| self.value_within(part, depth + 1)).collect()
    }

    /// Reads the call with a name at `start` and an opening bracket at `open`.
    pub fn call(&self, name: String, start: usize, open: usize) -> Call {
        self.call_within(name, start, open, 0)
    }

    fn call_within(&self, name: String, start: usize, open: usize, depth: usize) -> Call {
        let close = self.tokens[open].close.min(self.tokens.len() - 1);
        let one = |part: Range<usize>| {
            let is_named =
                part.len() > 1 && self.is_name(part.start) && self.is_operator(part.start + 1, "=");
            let value = if is_named { part.start + 2..part.end } else { part.clone() };
            Argument {
                name: is_named.then(|| self.word(part.start).to_string()),
                source: self.source(&value),
                line: self.tokens[part.start].line,
                value: self.value_within(value, depth + 1),
            }
        };
        let parts = if depth > DEPTH_MAX { Vec::new() } else { self.parts(open + 1..close) };
        Call { name, arguments: parts.into_iter().map(one).collect(), at: start }
    }
}

struct Reader<'a, 'c> {
    code: &'a Code<'c>,
    range: Range<usize>,
    depth: usize,
}

impl Reader<'_, '_> {
    fn takes(&mut self, operators: &[&str]) -> Option<String> {
        let at = self.range.start;
        let found = operators
            .iter()
            .find(|operator| !self.range.is_empty() && self.code.is_operator(at, operator))?;
        self.range.start += 1;
        Some(found.to_string())
    }

    fn sum(&mut self) -> Value {
        let mut value = self.product();
        for _ in 0..CHAIN_MAX {
            let Some(operator) = self.takes(&["+", "-"]) else { return value };
            value = Value::Sum(operator, Box::new(value), Box::new(self.product()));
        }
        Value::Other
    }

    fn product(&mut self) -> Value {
        let mut value = self.power();
        for _ in 0..CHAIN_MAX {
            let Some(operator) = self.takes(&["*", "//", "/", "%"]) else { return value };
            value = Value::Sum(operator, Box::new(value), Box::new(self.power()));
        }
        Value::Other
    }

    fn power(&mut self) -> Value {
        let value = self.postfix();
        match self.takes(&["**"]) {
            Some(operator) => Value::Sum(operator, Box::new(value), Box::new(self.postfix())),
            None => value,
        }
    }

    /// Reads an atom with its attributes, elements and calls.
    fn postfix(&mut self) -> Value {
        let start = self.range.start;
        let mut value = self.atom();
        for _ in 0..CHAIN_MAX {
            if self.range.is_empty() {
                break;
            }
            let at = self.range.start;
            let close = self.code.tokens[at].close;
            let is_open = close < self.range.end;
            match self.code.word(at) {
                "." if self.code.is_name(at + 1) && at + 1 < self.range.end => {
                    self.range.start += 2;
                    value = match value {
                        Value::Name(name) => Value::Name(format!("{name}.{}", self.code.word(at + 1))),
                        other => Value::Of(Box::new(other), Some(format!(".{}", self.code.word(at + 1)))),
                    };
                }
                "(" if is_open => {
                    self.range.start = close + 1;
                    value = match value {
                        Value::Name(name) => {
                            Value::Call(self.code.call_within(name, start, at, self.depth + 1))
                        }
                        other => Value::Of(Box::new(other), None),
                    };
                }
                "[" if is_open => {
                    self.range.start = close + 1;
                    let index = match self.code.value_within(at + 1..close, self.depth + 1) {
                        Value::Text(text) => Some(format!("[{text}]")),
                        _ => None,
                    };
                    value = Value::Of(Box::new(value), index);
                }
                _ => break,
            }
        }
        value
    }

    fn atom(&mut self) -> Value {
        if self.takes(&["-"]).is_some() {
            let number = self.range.start;
            let is_number = !self.range.is_empty() && self.code.tokens[number].kind == Kind::Number;
            self.range.start += usize::from(is_number);
            return if is_number {
                Value::Number(format!("-{}", self.code.word(number)))
            } else {
                Value::Other
            };
        }
        let at = self.range.start;
        let Some(token) = self.code.tokens.get(at).filter(|_| !self.range.is_empty()) else {
            return Value::Other;
        };
        self.range.start += 1;
        match &token.kind {
            Kind::Text(first, is_format) => self.texts(first.clone(), *is_format),
            Kind::Number => Value::Number(self.code.word(at).into()),
            Kind::Name => match self.code.word(at) {
                word @ ("True" | "False" | "None") => Value::Word(word.into()),
                "lambda" | "not" | "await" | "yield" => Value::Other,
                name => Value::Name(name.into()),
            },
            Kind::Operator if token.close > at && token.close < self.range.end => {
                self.range.start = token.close + 1;
                self.bracket(at..token.close)
            }
            _ => Value::Other,
        }
    }

    /// Joins adjacent texts.
    fn texts(&mut self, first: String, mut is_format: bool) -> Value {
        let mut text = first;
        while !self.range.is_empty()
            && let Kind::Text(more, format) = &self.code.tokens[self.range.start].kind
        {
            text += more;
            is_format |= format;
            self.range.start += 1;
        }
        if is_format { Value::Format(text) } else { Value::Text(text) }
    }

    fn bracket(&self, range: Range<usize>) -> Value {
        let (code, inside) = (self.code, range.start + 1..range.end);
        match code.word(range.start) {
            "[" => Value::List(code.values(inside, self.depth)),
            // One value in brackets is itself; `(a,)` is a list.
            "(" if code.find(&inside, ",").is_none() => code.value_within(inside, self.depth + 1),
            "(" => Value::List(code.values(inside, self.depth)),
            _ => {
                let entry = |part: Range<usize>| {
                    let colon = code.find(&part, ":")?;
                    let value = |range| code.value_within(range, self.depth + 1);
                    Some((value(part.start..colon), value(colon + 1..part.end)))
                };
                let entries: Option<Vec<_>> = code.parts(inside).into_iter().map(entry).collect();
                entries.map_or(Value::Other, Value::Dict)
            }
        }
    }
}
