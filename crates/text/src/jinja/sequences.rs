//! Filters of lists, dicts and other values with items.

use super::arguments::Args;
use super::ast::Binary;
use super::meter::Result;
use super::methods::pairs;
use super::operators::{self, equal, field, item, iterate, named, order};
use super::print;
use super::value::{Buffer, Items, Value};
use super::words;
use std::cmp::Ordering;

/// Applies the filter `args.callee`, if it is one of these.
pub(super) fn apply<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Option<Value<'r>>> {
    let meter = args.meter;
    Ok(Some(match args.callee {
        "length" | "count" => match value {
            Value::Text(text) => {
                meter.work(text.as_str().len())?;
                Value::Int(text.as_str().chars().count() as i64)
            }
            Value::List(list) => Value::Int(list.items.len() as i64),
            Value::Dict(dict) => Value::Int(dict.entries.len() as i64),
            Value::Undefined(_) => Value::Int(0),
            other => return args.fault(&format!("a value of type {}", named(other))),
        },
        "first" => {
            iterate(meter, value)?.items.first().cloned().unwrap_or(Value::Undefined("the first item"))
        }
        "last" => iterate(meter, value)?.items.last().cloned().unwrap_or(Value::Undefined("the last item")),
        "list" => {
            let mut items = Items::new(meter);
            items.push_all(&iterate(meter, value)?.items)?;
            items.list()?
        }
        "reverse" => {
            let mut items = Items::new(meter);
            let list = iterate(meter, value)?;
            list.items.iter().rev().try_for_each(|item| items.push(item.clone()))?;
            match value {
                Value::Text(_) => joined(&items.list()?, args, &Value::lent(""))?,
                _ => items.list()?,
            }
        }
        "join" => {
            let separator = args.take("d").unwrap_or(Value::lent(""));
            joined(value, args, &separator)?
        }
        "items" => match value {
            Value::Dict(dict) => pairs(dict, args)?,
            Value::Undefined(_) => Items::new(meter).list()?,
            other => return args.fault(&format!("a value of type {}", named(other))),
        },
        "sum" => {
            let path = args.take("attribute").filter(|path| !matches!(path, Value::None));
            let mut sum = args.take("start").unwrap_or(Value::Int(0));
            for item in &iterate(meter, value)?.items {
                let item = part(args, item, path.as_ref())?;
                sum = operators::binary(meter, Binary::Add, &sum, &item)?;
            }
            sum
        }
        "min" | "max" | "sort" | "unique" => ordered(value, args)?,
        "dictsort" => dict_sort(value, args)?,
        _ => return Ok(None),
    }))
}

/// Returns the value at a path such as `function.name` or `0.role`.
pub(super) fn at_path<'r>(args: &Args<'r>, value: &Value<'r>, path: &Value<'r>) -> Result<Value<'r>> {
    let Some(names) = path.as_str() else { return item(args.meter, value, path) };
    let mut value = value.clone();
    for name in names.split('.') {
        value = match name.parse() {
            Ok(index) => item(args.meter, &value, &Value::Int(index))?,
            Err(_) => field(args.meter, &value, name)?.unwrap_or(Value::Undefined("an attribute")),
        };
    }
    Ok(value)
}

/// Returns the value at a path, or the value itself without one.
fn part<'r>(args: &Args<'r>, value: &Value<'r>, path: Option<&Value<'r>>) -> Result<Value<'r>> {
    path.map_or_else(|| Ok(value.clone()), |path| at_path(args, value, path))
}

fn joined<'r>(value: &Value<'r>, args: &mut Args<'r>, separator: &Value<'r>) -> Result<Value<'r>> {
    let path = args.take("attribute");
    let mut out = Buffer::new(args.meter);
    for (index, item) in iterate(args.meter, value)?.items.iter().enumerate() {
        if index > 0 {
            print::write(&mut out, separator)?;
        }
        print::write(&mut out, &part(args, item, path.as_ref())?)?;
    }
    out.finish()
}

/// Returns the key to compare: the part at `path`, in lower case unless case counts.
fn key<'r>(args: &Args<'r>, value: &Value<'r>, path: Option<&Value<'r>>, by_case: bool) -> Result<Value<'r>> {
    match part(args, value, path)? {
        Value::Text(text) if !by_case => words::changed(args.meter, text.as_str(), str::to_lowercase),
        other => Ok(other),
    }
}

/// Applies `min`, `max`, `sort` and `unique`.
fn ordered<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let reverse = args.callee == "sort" && args.flag("reverse");
    let by_case = args.flag("case_sensitive");
    let path = args.take("attribute").filter(|path| !matches!(path, Value::None));
    let list = iterate(args.meter, value)?;
    let (mut keys, mut items) = (Items::new(args.meter), Items::new(args.meter));
    for item in &list.items {
        let key = key(args, item, path.as_ref(), by_case)?;
        if args.callee == "unique" {
            let mut seen = false;
            for other in keys.items() {
                seen |= equal(args.meter, other, &key)?;
            }
            if seen {
                continue;
            }
            items.push(item.clone())?;
        }
        keys.push(key)?;
    }
    match args.callee {
        "unique" => {}
        "sort" => sorted(args, keys.items(), reverse)?
            .into_iter()
            .try_for_each(|at| items.push(list.items[at].clone()))?,
        name => {
            let better = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best = 0;
            for at in 1..keys.items().len() {
                if order(args.meter, &keys.items()[at], &keys.items()[best])? == Some(better) {
                    best = at;
                }
            }
            return Ok(list.items.get(best).cloned().unwrap_or(Value::Undefined("an item of nothing")));
        }
    }
    items.list()
}

/// Returns the indices of keys in order; equal ones stay as they were. A merge sort, because a comparison may fail and
/// NaN has no order, both of which the library's sort answers with a panic.
fn sorted<'r>(args: &Args<'r>, keys: &[Value<'r>], reverse: bool) -> Result<Vec<usize>> {
    let first = if reverse { Ordering::Greater } else { Ordering::Less };
    let mut indices: Vec<usize> = (0..keys.len()).collect();
    let mut width = 1;
    while width < keys.len() {
        let mut merged = Vec::with_capacity(keys.len());
        for run in indices.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let ([a, left_rest @ ..], [b, right_rest @ ..]) = (left, right) {
                if order(args.meter, &keys[*b], &keys[*a])? == Some(first) {
                    merged.push(*b);
                    right = right_rest;
                } else {
                    merged.push(*a);
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        indices = merged;
        width *= 2;
    }
    Ok(indices)
}

fn dict_sort<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let by_case = args.flag("case_sensitive");
    let by_value = args.text("by")?.is_some_and(|by| by.as_str() == "value");
    let reverse = args.flag("reverse");
    let Value::Dict(dict) = value else {
        return args.fault(&format!("a value of type {}", named(value)));
    };
    let mut keys = Items::new(args.meter);
    for (name, value) in &dict.entries {
        keys.push(key(args, if by_value { value } else { name }, None, by_case)?)?;
    }
    let Value::List(entries) = pairs(dict, args)? else { unreachable!("pairs are a list") };
    let mut items = Items::new(args.meter);
    for at in sorted(args, keys.items(), reverse)? {
        items.push(entries.items[at].clone())?;
    }
    items.list()
}
