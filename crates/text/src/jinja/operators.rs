//! Operators, comparisons, indices and slices, with Python's results.

use super::ast::{Binary, Comparison};
use super::meter::{Charge, Meter, Result};
use super::print;
use super::value::{Buffer, Items, List, Loop, Text, Value};
use std::cmp::Ordering;
use std::rc::Rc;

pub(super) fn binary<'r>(meter: &'r Meter, sign: Binary, a: &Value<'r>, b: &Value<'r>) -> Result<Value<'r>> {
    match (sign, a, b) {
        (Binary::Concatenate, ..) => concatenate(meter, a, b),
        (Binary::Add, Value::Text(_), Value::Text(_)) => concatenate(meter, a, b),
        (Binary::Add, Value::List(x), Value::List(y)) if x.is_tuple == y.is_tuple => {
            let mut items = Items::new(meter);
            items.push_all(&x.items)?;
            items.push_all(&y.items)?;
            items.finish(x.is_tuple).map(Value::List)
        }
        (Binary::Multiply, Value::Text(_) | Value::List(_), _) if b.as_int().is_some() => {
            repeat(meter, a, b.as_int().unwrap_or(0))
        }
        (Binary::Multiply, _, Value::Text(_) | Value::List(_)) if a.as_int().is_some() => {
            repeat(meter, b, a.as_int().unwrap_or(0))
        }
        (Binary::Remainder, Value::Text(format), _) => format_percent(meter, format.as_str(), b),
        _ => arithmetic(meter, sign, a, b),
    }
}

fn concatenate<'r>(meter: &'r Meter, a: &Value<'r>, b: &Value<'r>) -> Result<Value<'r>> {
    let mut out = Buffer::new(meter);
    print::write(&mut out, a)?;
    print::write(&mut out, b)?;
    out.finish()
}

fn repeat<'r>(meter: &'r Meter, value: &Value<'r>, count: i64) -> Result<Value<'r>> {
    let count = usize::try_from(count).unwrap_or(0);
    match value {
        Value::List(list) => {
            let mut items = Items::new(meter);
            for _ in 0..if list.items.is_empty() { 0 } else { count } {
                items.push_all(&list.items)?;
            }
            items.finish(list.is_tuple).map(Value::List)
        }
        other => {
            let mut out = Buffer::new(meter);
            out.push_repeated(other.as_str().unwrap_or_default(), count)?;
            out.finish()
        }
    }
}

fn arithmetic<'r>(meter: &Meter, sign: Binary, a: &Value<'r>, b: &Value<'r>) -> Result<Value<'r>> {
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        let is_zero = y == 0 && matches!(sign, Binary::Divide | Binary::FloorDivide | Binary::Remainder);
        if is_zero {
            return meter.fault(format!("{x} {} 0", sign.sign()));
        }
        let whole = match sign {
            Binary::Add => x.checked_add(y),
            Binary::Subtract => x.checked_sub(y),
            Binary::Multiply => x.checked_mul(y),
            Binary::FloorDivide => floor_quotient(x, y),
            Binary::Remainder => {
                x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r })
            }
            Binary::Power if y >= 0 => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
            Binary::Power | Binary::Divide | Binary::Concatenate => {
                return Ok(Value::Float(float(sign, x as f64, y as f64)));
            }
        };
        let beyond = || meter.fault(format!("{x} {} {y} is beyond 2^63", sign.sign()));
        return whole.map_or_else(beyond, |whole| Ok(Value::Int(whole)));
    }
    match (a.as_float(), b.as_float()) {
        (Some(_), Some(0.0)) if matches!(sign, Binary::Divide | Binary::FloorDivide | Binary::Remainder) => {
            meter.fault(format!("a number {} 0.0", sign.sign()))
        }
        (Some(x), Some(y)) => Ok(Value::Float(float(sign, x, y))),
        _ => meter.fault(format!("`{}` of {} and {}", sign.sign(), named(a), named(b))),
    }
}

/// Divides, rounding down.
fn floor_quotient(x: i64, y: i64) -> Option<i64> {
    let quotient = x.checked_div(y)?;
    Some(if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient })
}

fn float(sign: Binary, x: f64, y: f64) -> f64 {
    match sign {
        Binary::Add => x + y,
        Binary::Subtract => x - y,
        Binary::Multiply => x * y,
        Binary::Divide => x / y,
        Binary::FloorDivide => (x / y).floor(),
        Binary::Remainder => x - y * (x / y).floor(),
        Binary::Power => x.powf(y),
        Binary::Concatenate => unreachable!("text is concatenated before"),
    }
}

/// Returns the name of a value in messages: its type, or an undefined value's name.
pub(super) fn named(value: &Value) -> String {
    match value {
        Value::Undefined(name) => format!("`{}`, which is undefined", plimsoll_base::shown(name)),
        other => other.kind().to_string(),
    }
}

/// Evaluates Python's `"..." % values`, with `%s`, `%r`, `%d`, `%i`, `%f`, `%.Nf` and `%%`.
pub(super) fn format_percent<'r>(meter: &'r Meter, format: &str, values: &Value<'r>) -> Result<Value<'r>> {
    let one = std::slice::from_ref(values);
    let mut values = match values {
        Value::List(list) if list.is_tuple => list.items.iter(),
        _ => one.iter(),
    };
    let mut out = Buffer::new(meter);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let (digits, after) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("6", rest),
        };
        let code = after.chars().next();
        rest = &after[code.map_or(0, char::len_utf8)..];
        if code == Some('%') {
            out.push("%")?;
            continue;
        }
        let Some(value) = values.next() else { return meter.fault("fewer values than the format has codes") };
        let digits = digits.parse().ok().filter(|digits| *digits <= 64);
        match (code, digits) {
            (Some('s'), _) => print::write(&mut out, value)?,
            (Some('r'), _) => print::write_repr(&mut out, value)?,
            (Some('d' | 'i'), _) if value.as_float().is_some() => {
                out.push(&format!("{:.0}", value.as_float().unwrap_or(0.0).trunc()))?;
            }
            (Some('f'), Some(digits)) if value.as_float().is_some() => {
                out.push(&format!("{:.digits$}", value.as_float().unwrap_or(0.0)))?;
            }
            _ => return meter.fault(format!("the format code after `%` does not fit {}", named(value))),
        }
    }
    if values.next().is_some() {
        return meter.fault("more values than the format has codes");
    }
    out.push(rest)?;
    out.finish()
}

pub(super) fn compare<'r>(meter: &Meter, sign: Comparison, a: &Value<'r>, b: &Value<'r>) -> Result<bool> {
    match sign {
        Comparison::Equal => equal(meter, a, b),
        Comparison::NotEqual => equal(meter, a, b).map(|same| !same),
        Comparison::In => contains(meter, b, a),
        Comparison::NotIn => contains(meter, b, a).map(|inside| !inside),
        Comparison::Less => order(meter, a, b).map(|o| o == Some(Ordering::Less)),
        Comparison::LessOrEqual => order(meter, a, b).map(|o| o.is_some_and(Ordering::is_le)),
        Comparison::Greater => order(meter, a, b).map(|o| o == Some(Ordering::Greater)),
        Comparison::GreaterOrEqual => order(meter, a, b).map(|o| o.is_some_and(Ordering::is_ge)),
    }
}

pub(super) fn equal<'r>(meter: &Meter, a: &Value<'r>, b: &Value<'r>) -> Result<bool> {
    meter.work(0)?;
    match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => Ok(true),
        (Value::Text(x), Value::Text(y)) => {
            meter.work(x.as_str().len().min(y.as_str().len()))?;
            Ok(x.as_str() == y.as_str())
        }
        (Value::List(x), Value::List(y)) => {
            if x.is_tuple != y.is_tuple || x.items.len() != y.items.len() {
                return Ok(false);
            }
            for (x, y) in x.items.iter().zip(&y.items) {
                if !equal(meter, x, y)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Dict(x), Value::Dict(y)) => {
            if x.entries.len() != y.entries.len() {
                return Ok(false);
            }
            for (key, value) in &x.entries {
                match y.get(meter, key)? {
                    Some(other) if equal(meter, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Namespace(x), Value::Namespace(y)) => Ok(Rc::ptr_eq(x, y)),
        (Value::Int(x), Value::Int(y)) => Ok(x == y),
        (Value::Digits(x), Value::Digits(y)) => Ok(x.as_str() == y.as_str()),
        _ => Ok(a.as_float().is_some() && a.as_float() == b.as_float()),
    }
}

/// Compares in Python's order; `None` if one of two numbers is NaN. A fault where Python has no order.
pub(super) fn order<'r>(meter: &Meter, a: &Value<'r>, b: &Value<'r>) -> Result<Option<Ordering>> {
    meter.work(0)?;
    match (a, b) {
        (Value::Text(x), Value::Text(y)) => {
            meter.work(x.as_str().len().min(y.as_str().len()))?;
            Ok(Some(x.as_str().cmp(y.as_str())))
        }
        (Value::List(x), Value::List(y)) if x.is_tuple == y.is_tuple => {
            for (x, y) in x.items.iter().zip(&y.items) {
                if !equal(meter, x, y)? {
                    return order(meter, x, y);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        (Value::Int(x), Value::Int(y)) => Ok(Some(x.cmp(y))),
        _ => match (a.as_float(), b.as_float()) {
            (Some(x), Some(y)) => Ok(x.partial_cmp(&y)),
            _ => meter.fault(format!("{} and {} have no order", named(a), named(b))),
        },
    }
}

fn contains<'r>(meter: &Meter, inside: &Value<'r>, value: &Value<'r>) -> Result<bool> {
    match (inside, value) {
        (Value::Text(text), Value::Text(part)) => {
            meter.work(text.as_str().len() + part.as_str().len())?;
            Ok(text.as_str().contains(part.as_str()))
        }
        (Value::List(list), _) => {
            for item in &list.items {
                if equal(meter, item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Dict(dict), _) => Ok(dict.get(meter, value)?.is_some()),
        (Value::Undefined(_), _) => Ok(false),
        _ => meter.fault(format!("{} in {}", named(value), named(inside))),
    }
}

/// Evaluates Python's `value[index]`; undefined if there is no such item.
pub(super) fn item<'r>(meter: &'r Meter, value: &Value<'r>, index: &Value<'r>) -> Result<Value<'r>> {
    let absent = match index {
        Value::Text(Text::Lent(name)) => Value::Undefined(name),
        _ => Value::Undefined("an item"),
    };
    match (value, index) {
        (Value::Undefined(_), _) => meter.fault(format!("an item of {}", named(value))),
        (Value::Dict(dict), _) => Ok(dict.get(meter, index)?.cloned().unwrap_or(absent)),
        (Value::List(list), _) if index.as_int().is_some() => {
            let at = place(index.as_int().unwrap_or(0), list.items.len());
            Ok(at.map_or(absent, |at| list.items[at].clone()))
        }
        (Value::Text(text), _) if index.as_int().is_some() => {
            meter.work(text.as_str().len())?;
            let mut chars = text.as_str().char_indices();
            let found = match index.as_int().unwrap_or(0) {
                at if at >= 0 => chars.nth(usize::try_from(at).unwrap_or(usize::MAX)),
                at => chars.nth_back(usize::try_from(-(at + 1)).unwrap_or(usize::MAX)),
            };
            found.map_or(Ok(absent), |(at, c)| text.part(meter, at..at + c.len_utf8()))
        }
        (Value::Namespace(namespace), Value::Text(name)) => {
            Ok(namespace.get(meter, name.as_str())?.unwrap_or(absent))
        }
        _ => Ok(absent),
    }
}

/// Returns `value.name`, if there is one.
pub(super) fn field<'r>(meter: &'r Meter, value: &Value<'r>, name: &str) -> Result<Option<Value<'r>>> {
    match value {
        Value::Undefined(_) => {
            meter.fault(format!("the attribute `{}` of {}", plimsoll_base::shown(name), named(value)))
        }
        Value::Dict(dict) => Ok(dict.field(meter, name)?.cloned()),
        Value::Namespace(namespace) => namespace.get(meter, name),
        Value::Loop(state) => Ok(loop_field(state, name)),
        _ => Ok(None),
    }
}

fn loop_field<'r>(state: &Loop<'r>, name: &str) -> Option<Value<'r>> {
    let (index, length) = (state.index.get(), state.items.items.len());
    let number = |number: usize| Some(Value::Int(number as i64));
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(length - index),
        "revindex0" => number(length - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == length)),
        "length" => number(length),
        // Only recursive loops are deeper, and they are not read.
        "depth" => number(1),
        "depth0" => number(0),
        "previtem" => index.checked_sub(1).map(|before| state.items.items[before].clone()),
        "nextitem" => state.items.items.get(index + 1).cloned(),
        _ => None,
    }
}

fn place(index: i64, length: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add(i64::try_from(length).ok()?)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// Evaluates Python's `value[start:stop:step]`.
pub(super) fn slice<'r>(
    meter: &'r Meter,
    value: &Value<'r>,
    parts: [Option<Value<'r>>; 3],
) -> Result<Value<'r>> {
    let mut bounds = [None; 3];
    for (bound, part) in bounds.iter_mut().zip(&parts) {
        *bound = match part {
            None | Some(Value::None) => None,
            Some(part) if part.as_int().is_some() => part.as_int(),
            Some(part) => return meter.fault(format!("a slice by {}", named(part))),
        };
    }
    if bounds[2] == Some(0) {
        return meter.fault("a slice by steps of 0");
    }
    match value {
        Value::Text(text) => slice_text(meter, text, bounds),
        Value::List(list) => slice_list(meter, list, bounds),
        other => meter.fault(format!("a slice of {}", named(other))),
    }
}

fn slice_list<'r>(meter: &'r Meter, list: &List<'r>, bounds: [Option<i64>; 3]) -> Result<Value<'r>> {
    let mut items = Items::new(meter);
    each_index(bounds, list.items.len(), |at| items.push(list.items[at].clone()))?;
    items.finish(list.is_tuple).map(Value::List)
}

fn slice_text<'r>(meter: &'r Meter, text: &Text<'r>, bounds: [Option<i64>; 3]) -> Result<Value<'r>> {
    let length = text.as_str().len();
    let mut charge = Charge::none(meter);
    charge.grow((length + 1) * size_of::<usize>())?;
    // Where each character begins, and the end.
    let starts: Vec<usize> = text.as_str().char_indices().map(|(at, _)| at).chain([length]).collect();
    if bounds[2].unwrap_or(1) == 1 {
        let (mut first, mut count) = (None, 0);
        each_index(bounds, starts.len() - 1, |at| {
            first.get_or_insert(at);
            count += 1;
            Ok(())
        })?;
        let first = first.unwrap_or(0);
        return text.part(meter, starts[first]..starts[first + count]);
    }
    let mut out = Buffer::new(meter);
    each_index(bounds, starts.len() - 1, |at| out.push(&text.as_str()[starts[at]..starts[at + 1]]))?;
    out.finish()
}

/// Calls `visit` with the indices that a slice of `length` items takes, in its order.
fn each_index(
    [start, stop, step]: [Option<i64>; 3],
    length: usize,
    mut visit: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, stop) = (start.map_or(first, bound), stop.map_or(last, bound));
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        visit(at as usize)?; // within 0 and `length` by the clamp
        at = at.saturating_add(step);
    }
    Ok(())
}

/// Returns the items for a loop or a filter: characters of a text, keys of a dict.
pub(super) fn iterate<'r>(meter: &'r Meter, value: &Value<'r>) -> Result<Rc<List<'r>>> {
    let mut items = Items::new(meter);
    match value {
        Value::List(list) => return Ok(list.clone()),
        Value::Undefined(_) => {}
        Value::Dict(dict) => dict.entries.iter().try_for_each(|(key, _)| items.push(key.clone()))?,
        Value::Text(text) => {
            for (at, c) in text.as_str().char_indices() {
                items.push(text.part(meter, at..at + c.len_utf8())?)?;
            }
        }
        other => return meter.fault(format!("{} cannot be iterated", named(other))),
    }
    items.finish(false)
}
