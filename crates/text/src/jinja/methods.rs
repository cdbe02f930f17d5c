//! Python's methods of texts, dicts and lists. Those that change a value do not exist, as in Hugging Face's sandbox.

use super::arguments::Args;
use super::meter::Result;
use super::operators::{equal, iterate, named};
use super::print;
use super::value::{Buffer, Dict, Items, List, Text, Value};
use super::words::{self, Ends};

/// The methods of dicts, which hide keys of the same name when they are called.
pub(super) const OF_DICTS: [&str; 5] = ["get", "items", "keys", "values", "copy"];

/// Calls the method `args.callee` of a value.
pub(super) fn call<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let result = match value {
        Value::Text(text) => of_text(text, args)?,
        Value::Dict(dict) => of_dict(dict, args)?,
        Value::List(list) => of_list(list, args)?,
        _ => None,
    };
    match result {
        Some(result) => {
            args.end()?;
            Ok(result)
        }
        None => {
            let name = plimsoll_base::shown(args.callee);
            args.meter.fault(format!("{} has no method `{name}`", named(value)))
        }
    }
}

fn of_text<'r>(text: &Text<'r>, args: &mut Args<'r>) -> Result<Option<Value<'r>>> {
    let (meter, whole) = (args.meter, text.as_str());
    meter.work(whole.len())?;
    Ok(Some(match args.callee {
        "upper" => words::changed(meter, whole, str::to_uppercase)?,
        "lower" | "casefold" => words::changed(meter, whole, str::to_lowercase)?,
        "capitalize" => words::changed(meter, whole, words::capitalized)?,
        "title" => words::changed(meter, whole, |text| words::titled(text, |c| !c.is_alphabetic()))?,
        "strip" | "lstrip" | "rstrip" => {
            let ends = match args.callee {
                "strip" => Ends::Both,
                "lstrip" => Ends::Start,
                _ => Ends::Stop,
            };
            words::stripped(meter, text, args.text("chars")?.as_ref(), ends)?
        }
        "split" => words::split(args, text, false)?,
        "rsplit" => words::split(args, text, true)?,
        "splitlines" => {
            let keeps_ends = args.flag("keepends");
            let mut items = Items::new(meter);
            for (range, end) in words::lines(whole) {
                items.push(text.part(meter, range.start..range.end + if keeps_ends { end } else { 0 })?)?;
            }
            items.list()?
        }
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            let count = args.int("count")?;
            words::replaced(meter, whole, [old.as_str(), new.as_str()], count)?
        }
        "startswith" => one_of(args, |part| whole.starts_with(part))?,
        "endswith" => one_of(args, |part| whole.ends_with(part))?,
        "removeprefix" => {
            let part = args.required_text("prefix")?;
            let start = if whole.starts_with(part.as_str()) { part.as_str().len() } else { 0 };
            text.part(meter, start..whole.len())?
        }
        "removesuffix" => {
            let part = args.required_text("suffix")?;
            let cut = if whole.ends_with(part.as_str()) { part.as_str().len() } else { 0 };
            text.part(meter, 0..whole.len() - cut)?
        }
        "partition" | "rpartition" => partition(text, args)?,
        "find" | "rfind" | "index" | "rindex" | "count" => search(whole, args)?,
        "join" => {
            let list = iterate(meter, &args.required("iterable")?)?;
            let mut out = Buffer::new(meter);
            for (index, item) in list.items.iter().enumerate() {
                out.push(if index > 0 { whole } else { "" })?;
                print::write(&mut out, item)?;
            }
            out.finish()?
        }
        "format" => format(whole, args)?,
        other => match is_all(whole, other) {
            Some(flag) => Value::Bool(flag),
            None => return Ok(None),
        },
    }))
}

/// Evaluates `isdigit` and the like.
fn is_all(text: &str, name: &str) -> Option<bool> {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    let cased =
        |this: fn(char) -> bool, other: fn(char) -> bool| text.chars().any(this) && !text.chars().any(other);
    Some(match name {
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(char::is_whitespace),
        "isascii" => text.is_ascii(),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        _ => return None,
    })
}

/// Returns whether `holds` for a text, or for one of a tuple of them.
fn one_of<'r>(args: &mut Args<'r>, holds: impl Fn(&str) -> bool) -> Result<Value<'r>> {
    let found = match args.required("prefix")? {
        Value::Text(part) => holds(part.as_str()),
        Value::List(list) if list.is_tuple && list.items.iter().all(|item| item.as_str().is_some()) => {
            list.items.iter().filter_map(|item| item.as_str()).any(holds)
        }
        other => return args.fault(&format!("{}, expected str or a tuple of them", named(&other))),
    };
    Ok(Value::Bool(found))
}

fn partition<'r>(text: &Text<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let (meter, whole) = (args.meter, text.as_str());
    let separator = args.required_text("sep")?;
    let part = separator.as_str();
    let is_last = args.callee == "rpartition";
    let found = if is_last { whole.rfind(part) } else { whole.find(part) };
    let mut items = Items::new(meter);
    match found {
        Some(at) => {
            items.push(text.part(meter, 0..at)?)?;
            items.push(Value::Text(separator.clone()))?;
            items.push(text.part(meter, at + part.len()..whole.len())?)?;
        }
        None => {
            let empty = Value::lent("");
            let all = Value::Text(text.clone());
            let parts = if is_last { [empty.clone(), empty, all] } else { [all, empty.clone(), empty] };
            items.push_all(&parts)?;
        }
    }
    items.tuple()
}

/// Evaluates `find`, `index` and `count`: places are counted in characters.
fn search<'r>(whole: &str, args: &mut Args<'r>) -> Result<Value<'r>> {
    let part = args.required_text("sub")?;
    if args.callee == "count" {
        return Ok(Value::Int(whole.matches(part.as_str()).count() as i64));
    }
    let found =
        if args.callee.starts_with('r') { whole.rfind(part.as_str()) } else { whole.find(part.as_str()) };
    match found {
        Some(at) => Ok(Value::Int(whole[..at].chars().count() as i64)),
        None if args.callee.ends_with("find") => Ok(Value::Int(-1)),
        None => args.fault("the text is not there"),
    }
}

/// Evaluates `"{} {0} {name}".format(...)`, without format codes.
fn format<'r>(format: &str, args: &mut Args<'r>) -> Result<Value<'r>> {
    let (positional, by_name) = (args.rest(), args.rest_named());
    let (mut out, mut rest, mut count) = (Buffer::new(args.meter), format, 0);
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let (brace, after) = rest[at..].split_at(1);
        rest = after;
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        let Some((name, after)) = rest.split_once('}').filter(|_| brace == "{") else {
            return args.fault("a bracket without its other");
        };
        rest = after;
        let index = if name.is_empty() { Some(count) } else { name.parse().ok() };
        count += 1;
        let value = match index {
            Some(index) => positional.get(index),
            None => by_name.iter().find(|(other, _)| *other == name).map(|(_, value)| value),
        };
        match value {
            Some(value) => print::write(&mut out, value)?,
            None => return args.fault(&format!("no argument for `{{{}}}`", plimsoll_base::shown(name))),
        }
    }
    out.push(rest)?;
    out.finish()
}

fn of_dict<'r>(dict: &Dict<'r>, args: &mut Args<'r>) -> Result<Option<Value<'r>>> {
    let mut items = Items::new(args.meter);
    Ok(Some(match args.callee {
        "get" => {
            let key = args.required("key")?;
            let default = args.take("default").unwrap_or(Value::None);
            dict.get(args.meter, &key)?.cloned().unwrap_or(default)
        }
        "keys" => {
            dict.entries.iter().try_for_each(|(key, _)| items.push(key.clone()))?;
            items.list()?
        }
        "values" => {
            dict.entries.iter().try_for_each(|(_, value)| items.push(value.clone()))?;
            items.list()?
        }
        "items" => pairs(dict, args)?,
        "copy" => {
            dict.entries.iter().try_for_each(|(key, value)| items.push_all(&[key.clone(), value.clone()]))?;
            items.dict()?
        }
        _ => return Ok(None),
    }))
}

/// Returns the entries of a dict as tuples.
pub(super) fn pairs<'r>(dict: &Dict<'r>, args: &Args<'r>) -> Result<Value<'r>> {
    let mut items = Items::new(args.meter);
    for (key, value) in &dict.entries {
        let mut pair = Items::new(args.meter);
        pair.push_all(&[key.clone(), value.clone()])?;
        items.push(pair.tuple()?)?;
    }
    items.list()
}

fn of_list<'r>(list: &List<'r>, args: &mut Args<'r>) -> Result<Option<Value<'r>>> {
    match args.callee {
        "count" | "index" => {
            let value = args.required("value")?;
            let mut count = 0;
            for (index, item) in list.items.iter().enumerate() {
                let is_equal = equal(args.meter, item, &value)?;
                if is_equal && args.callee == "index" {
                    return Ok(Some(Value::Int(index as i64)));
                }
                count += i64::from(is_equal);
            }
            if args.callee == "index" {
                args.fault("the value is not there")
            } else {
                Ok(Some(Value::Int(count)))
            }
        }
        "copy" => {
            let mut items = Items::new(args.meter);
            items.push_all(&list.items)?;
            Ok(Some(items.list()?))
        }
        _ => Ok(None),
    }
}
