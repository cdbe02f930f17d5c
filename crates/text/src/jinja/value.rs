//! Values of a rendering: Python's, as far as templates see them. Text of the template and the messages is borrowed;
//! text that a rendering makes is counted from before its allocation until it is dropped.

use super::ast::Macro;
use super::meter::{Charge, Meter, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How deep lists and dicts may nest; bounds the stack of printing, comparing and dropping them.
const VALUE_DEPTH_MAX: usize = 64;
/// Bytes of a made text or list besides its contents: counts, length, charge, the allocator's header.
const MADE_BYTES: usize = 96;

#[derive(Clone, Debug)]
pub(super) enum Value<'r> {
    /// A name of the template without a value.
    Undefined(&'r str),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A number that 64 bits do not hold, by its digits.
    Digits(Text<'r>),
    Text(Text<'r>),
    List(Rc<List<'r>>),
    Dict(Rc<Dict<'r>>),
    Namespace(Rc<Namespace<'r>>),
    Macro(Rc<Closure<'r>>),
    /// A function of the environment, by its name.
    Function(&'r str),
    Loop(Rc<Loop<'r>>),
}

#[derive(Clone, Debug)]
pub(super) enum Text<'r> {
    Lent(&'r str),
    Made(Rc<Made<'r>>),
}

#[derive(Debug)]
pub(super) struct Made<'r> {
    text: String,
    _charge: Charge<'r>,
}

/// A list or a tuple.
#[derive(Debug)]
pub(super) struct List<'r> {
    pub(super) items: Vec<Value<'r>>,
    pub(super) is_tuple: bool,
    depth: usize,
    _charge: Charge<'r>,
}

/// Keys and values in order; keys are text, numbers, booleans or none.
#[derive(Debug)]
pub(super) struct Dict<'r> {
    pub(super) entries: Vec<(Value<'r>, Value<'r>)>,
    depth: usize,
    _charge: Charge<'r>,
}

/// Holds what `namespace(...)` makes: the one kind of value that templates change.
#[derive(Debug)]
pub(super) struct Namespace<'r> {
    pub(super) fields: RefCell<Vec<(&'r str, Value<'r>)>>,
    charge: RefCell<Charge<'r>>,
}

/// A macro with the number of scopes that it sees.
#[derive(Debug)]
pub(super) struct Closure<'r> {
    pub(super) code: &'r Macro,
    pub(super) scopes: usize,
}

#[derive(Debug)]
pub(super) struct Loop<'r> {
    pub(super) items: Rc<List<'r>>,
    pub(super) index: Cell<usize>,
    /// The arguments of the last `loop.changed(...)`.
    pub(super) last: RefCell<Option<Vec<Value<'r>>>>,
}

impl<'r> Text<'r> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Text::Lent(text) => text,
            Text::Made(made) => &made.text,
        }
    }

    /// Returns a part of it: lent if it is lent, else a copy.
    pub(super) fn part(&self, meter: &'r Meter, range: std::ops::Range<usize>) -> Result<Value<'r>> {
        match self {
            Text::Lent(text) => {
                meter.work(range.len())?;
                Ok(Value::Text(Text::Lent(&text[range])))
            }
            Text::Made(made) if range == (0..made.text.len()) => Ok(Value::Text(self.clone())),
            Text::Made(made) => Buffer::text(meter, &made.text[range]),
        }
    }
}

impl<'r> Value<'r> {
    pub(super) fn lent(text: &'r str) -> Value<'r> {
        Value::Text(Text::Lent(text))
    }

    /// Returns Python's name of its type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined",
            Value::None => "None",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Digits(_) => {
                if self.is_integer() {
                    "int"
                } else {
                    "float"
                }
            }
            Value::Text(_) => "str",
            Value::List(list) if list.is_tuple => "tuple",
            Value::List(_) => "list",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "namespace",
            Value::Macro(_) => "macro",
            Value::Function(_) => "function",
            Value::Loop(_) => "loop",
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(flag) => *flag,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Digits(digits) => digits.as_str().bytes().any(|digit| (b'1'..=b'9').contains(&digit)),
            Value::Text(text) => !text.as_str().is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            Value::Namespace(_) | Value::Macro(_) | Value::Function(_) | Value::Loop(_) => true,
        }
    }

    /// Returns an integer; `True` is 1, as in Python.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Bool(flag) => Some(i64::from(*flag)),
            _ => None,
        }
    }

    /// True for an integer, as Python's `int` is.
    pub(super) fn is_integer(&self) -> bool {
        match self {
            Value::Int(_) => true,
            Value::Digits(digits) => !digits.as_str().contains(['.', 'e', 'E']),
            _ => false,
        }
    }

    /// Returns the number, if it is one.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(number) => Some(*number),
            Value::Digits(digits) => digits.as_str().parse().ok(),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// Returns the levels of lists and dicts in it. Refuses values that can change, which could come to hold
    /// themselves in a list, a dict or a namespace.
    fn depth(&self, meter: &Meter) -> Result<usize> {
        match self {
            Value::List(list) => Ok(list.depth),
            Value::Dict(dict) => Ok(dict.depth),
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) => {
                meter.fault(format!("a {} cannot be put into another value", self.kind()))
            }
            _ => Ok(0),
        }
    }
}

/// Text that is being made.
#[derive(Debug)]
pub(super) struct Buffer<'r> {
    text: String,
    charge: Charge<'r>,
}

impl<'r> Buffer<'r> {
    pub(super) fn new(meter: &'r Meter) -> Buffer<'r> {
        Buffer { text: String::new(), charge: Charge::none(meter) }
    }

    /// Returns a copy of `text` as a value.
    pub(super) fn text(meter: &'r Meter, text: &str) -> Result<Value<'r>> {
        let mut buffer = Buffer::new(meter);
        buffer.push(text)?;
        buffer.finish()
    }

    pub(super) fn meter(&self) -> &'r Meter {
        self.charge.meter()
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn push(&mut self, text: &str) -> Result<()> {
        self.charge.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Appends `text` with the characters that `escape` names in its words.
    pub(super) fn push_escaped(&mut self, text: &str, escape: impl Fn(char) -> Option<String>) -> Result<()> {
        let mut from = 0;
        for (at, c) in text.char_indices() {
            if let Some(words) = escape(c) {
                self.push(&text[from..at])?;
                self.push(&words)?;
                from = at + c.len_utf8();
            }
        }
        self.push(&text[from..])
    }

    pub(super) fn push_repeated(&mut self, text: &str, count: usize) -> Result<()> {
        self.charge.grow(text.len().saturating_mul(count))?;
        self.text.extend(std::iter::repeat_n(text, if text.is_empty() { 0 } else { count }));
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Value<'r>> {
        self.charge.grow(MADE_BYTES)?;
        self.text.shrink_to_fit();
        Ok(Value::Text(Text::Made(Rc::new(Made { text: self.text, _charge: self.charge }))))
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }
}

/// A list, a tuple or a dict that is being made.
#[derive(Debug)]
pub(super) struct Items<'r> {
    items: Vec<Value<'r>>,
    depth: usize,
    charge: Charge<'r>,
}

impl<'r> Items<'r> {
    pub(super) fn new(meter: &'r Meter) -> Items<'r> {
        Items { items: Vec::new(), depth: 0, charge: Charge::none(meter) }
    }

    pub(super) fn push(&mut self, value: Value<'r>) -> Result<()> {
        self.charge.grow(size_of::<Value>())?;
        self.depth = self.depth.max(value.depth(self.charge.meter())?);
        self.items.push(value);
        Ok(())
    }

    pub(super) fn push_all(&mut self, values: &[Value<'r>]) -> Result<()> {
        values.iter().try_for_each(|value| self.push(value.clone()))
    }

    pub(super) fn items(&self) -> &[Value<'r>] {
        &self.items
    }

    pub(super) fn finish(mut self, is_tuple: bool) -> Result<Rc<List<'r>>> {
        self.charge.grow(MADE_BYTES)?;
        let depth = deeper(self.charge.meter(), self.depth)?;
        Ok(Rc::new(List { items: self.items, is_tuple, depth, _charge: self.charge }))
    }

    pub(super) fn list(self) -> Result<Value<'r>> {
        self.finish(false).map(Value::List)
    }

    pub(super) fn tuple(self) -> Result<Value<'r>> {
        self.finish(true).map(Value::List)
    }

    /// Takes the items as keys and values in turn. A key that comes again changes its value.
    pub(super) fn dict(mut self) -> Result<Value<'r>> {
        let meter = self.charge.meter();
        self.charge.grow(MADE_BYTES)?;
        let depth = deeper(meter, self.depth)?;
        let mut entries: Vec<(Value, Value)> = Vec::with_capacity(self.items.len() / 2);
        let mut items = self.items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            match find(meter, &entries, &key)? {
                Some(at) => entries[at].1 = value,
                None => entries.push((key, value)),
            }
        }
        Ok(Value::Dict(Rc::new(Dict { entries, depth, _charge: self.charge })))
    }
}

fn deeper(meter: &Meter, depth: usize) -> Result<usize> {
    if depth < VALUE_DEPTH_MAX {
        Ok(depth + 1)
    } else {
        meter.fault(format!("lists and dicts nest deeper than {VALUE_DEPTH_MAX}"))
    }
}

/// Finds a key among entries.
fn find(meter: &Meter, entries: &[(Value, Value)], key: &Value) -> Result<Option<usize>> {
    meter.work(entries.len())?;
    let number = key.as_float();
    let is_key = |other: &Value| match (key, other) {
        (Value::Text(a), Value::Text(b)) | (Value::Digits(a), Value::Digits(b)) => a.as_str() == b.as_str(),
        (Value::None, Value::None) => true,
        (_, other) => number.is_some() && number == other.as_float(),
    };
    match key {
        Value::Text(_)
        | Value::None
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Digits(_) => Ok(entries.iter().position(|(other, _)| is_key(other))),
        other => meter.fault(format!("a {} cannot be a key of a dict", other.kind())),
    }
}

impl<'r> Dict<'r> {
    pub(super) fn get(&self, meter: &Meter, key: &Value) -> Result<Option<&Value<'r>>> {
        Ok(find(meter, &self.entries, key)?.map(|at| &self.entries[at].1))
    }

    /// Returns the value of a key that is a name.
    pub(super) fn field(&self, meter: &Meter, name: &str) -> Result<Option<&Value<'r>>> {
        meter.work(self.entries.len())?;
        Ok(self.entries.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value))
    }
}

impl<'r> Namespace<'r> {
    pub(super) fn new(meter: &'r Meter) -> Namespace<'r> {
        Namespace { fields: RefCell::default(), charge: RefCell::new(Charge::none(meter)) }
    }

    pub(super) fn set(&self, name: &'r str, value: Value<'r>) -> Result<()> {
        let mut charge = self.charge.borrow_mut();
        let meter = charge.meter();
        value.depth(meter)?;
        let mut fields = self.fields.borrow_mut();
        meter.work(fields.len())?;
        match fields.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => {
                charge.grow(size_of::<(&str, Value)>() + MADE_BYTES)?;
                fields.push((name, value));
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, meter: &Meter, name: &str) -> Result<Option<Value<'r>>> {
        let fields = self.fields.borrow();
        meter.work(fields.len())?;
        Ok(fields.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone()))
    }
}
