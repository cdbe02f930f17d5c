//! Filters: what follows `|`. Those of Jinja that chat templates use, with its arguments and results.

use super::arguments::Args;
use super::checks::check;
use super::meter::Result;
use super::operators::{format_percent, iterate, named};
use super::print::{self, Json};
use super::sequences::{self, at_path};
use super::value::{Buffer, Items, Text, Value};
use super::words::{self, Ends};

/// Applies the filter `args.callee`.
pub(super) fn apply<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    // Filters apply filters, as `map` does.
    args.meter.enter()?;
    let result = match args.callee {
        "map" => map(value, args)?,
        "select" | "reject" => select(value, args)?,
        "selectattr" | "rejectattr" => select_by(value, args)?,
        _ => match of_text(value, args)? {
            Some(result) => result,
            None => match sequences::apply(value, args)? {
                Some(result) => result,
                None => of_any(value, args)?,
            },
        },
    };
    args.end()?;
    args.meter.leave();
    Ok(result)
}

/// Applies filters that read their value as text.
fn of_text<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Option<Value<'r>>> {
    const NAMES: [&str; 12] = [
        "lower",
        "upper",
        "title",
        "capitalize",
        "trim",
        "replace",
        "indent",
        "string",
        "safe",
        "escape",
        "e",
        "format",
    ];
    if !NAMES.contains(&args.callee) {
        return Ok(None);
    }
    let meter = args.meter;
    let text = match value {
        Value::Text(text) => text.clone(),
        other => {
            let mut out = Buffer::new(meter);
            print::write(&mut out, other)?;
            match out.finish()? {
                Value::Text(text) => text,
                _ => unreachable!("a buffer makes text"),
            }
        }
    };
    let whole = text.as_str();
    meter.work(whole.len())?;
    Ok(Some(match args.callee {
        "lower" => words::changed(meter, whole, str::to_lowercase)?,
        "upper" => words::changed(meter, whole, str::to_uppercase)?,
        "capitalize" => words::changed(meter, whole, words::capitalized)?,
        "title" => {
            let separates = |c: char| c.is_whitespace() || "-({[<".contains(c);
            words::changed(meter, whole, |text| words::titled(text, separates))?
        }
        "trim" => words::stripped(meter, &text, args.text("chars")?.as_ref(), Ends::Both)?,
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            let count = args.int("count")?;
            words::replaced(meter, whole, [old.as_str(), new.as_str()], count)?
        }
        "indent" => indent(whole, args)?,
        "escape" | "e" => escape(whole, args)?,
        "format" => {
            let mut values = Items::new(meter);
            values.push_all(&args.rest())?;
            format_percent(meter, whole, &values.tuple()?)?
        }
        _ => Value::Text(text),
    }))
}

fn indent<'r>(text: &str, args: &mut Args<'r>) -> Result<Value<'r>> {
    let (space, count) = match args.take("width") {
        Some(Value::Text(text)) => (text, 1),
        Some(width) => match width.as_int() {
            Some(width) => (Text::Lent(" "), usize::try_from(width).unwrap_or(0)),
            None => return args.fault(&format!("a width of type {}", named(&width))),
        },
        None => (Text::Lent(" "), 4),
    };
    let (first, blank) = (args.flag("first"), args.flag("blank"));
    let mut out = Buffer::new(args.meter);
    // A line end is added before the text is split, so an empty text is one line.
    let (mut is_first, mut ends) = (true, true);
    for (range, end) in words::lines(text) {
        out.push(if is_first { "" } else { "\n" })?;
        if if is_first { first } else { blank || !range.is_empty() } {
            out.push_repeated(space.as_str(), count)?;
        }
        out.push(&text[range])?;
        (is_first, ends) = (false, end > 0);
    }
    if is_first && first {
        out.push_repeated(space.as_str(), count)?;
    } else if ends && !is_first {
        out.push("\n")?;
        out.push_repeated(space.as_str(), if blank { count } else { 0 })?;
    }
    out.finish()
}

fn escape<'r>(text: &str, args: &Args<'r>) -> Result<Value<'r>> {
    let mut out = Buffer::new(args.meter);
    let named = |c| {
        let pair = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")];
        pair.into_iter().find(|(other, _)| *other == c).map(|(_, words)| words.to_string())
    };
    out.push_escaped(text, named)?;
    out.finish()
}

/// Applies filters of values of any type.
fn of_any<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    Ok(match args.callee {
        "default" | "d" => {
            let default = args.take("default_value").unwrap_or(Value::lent(""));
            let by_truth = args.flag("boolean");
            let is_absent = matches!(value, Value::Undefined(_)) || (by_truth && !value.is_true());
            if is_absent { default } else { value.clone() }
        }
        "tojson" => to_json(value, args)?,
        "abs" => match (value.as_int(), value.as_float()) {
            (Some(number), _) => match number.checked_abs() {
                Some(number) => Value::Int(number),
                None => return args.fault("the number is beyond 2^63"),
            },
            (None, Some(number)) => Value::Float(number.abs()),
            _ => return args.fault(&format!("a value of type {}", named(value))),
        },
        "int" => to_int(value, args)?,
        "float" => {
            let default = args.take("default").unwrap_or(Value::Float(0.0));
            let parsed = match value {
                Value::Text(text) => text.as_str().trim().parse().ok(),
                other => other.as_float(),
            };
            parsed.map_or(default, Value::Float)
        }
        "round" => round(value, args)?,
        _ => return args.fault("no such filter"),
    })
}

fn to_int<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let default = args.take("default").unwrap_or(Value::Int(0));
    let base = args.int("base")?.unwrap_or(10);
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return args.fault("a base that is not 2 to 36");
    };
    let whole = |number: f64| (number.abs() < 9.2e18).then_some(number as i64);
    if value.is_integer() {
        return Ok(value.clone());
    }
    let parsed = match value {
        Value::Text(text) => {
            let text = text.as_str().trim();
            i64::from_str_radix(text, base).ok().or_else(|| whole(text.parse().ok()?))
        }
        Value::Float(number) => whole(*number),
        other => other.as_int(),
    };
    Ok(parsed.map_or(default, Value::Int))
}

fn round<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let precision = args.int("precision")?.unwrap_or(0);
    let method = args.text("method")?;
    let Some(number) = value.as_float().filter(|_| (-300..=300).contains(&precision)) else {
        return args.fault(&format!("a value of type {}, with precision {precision}", named(value)));
    };
    let factor = 10f64.powi(precision as i32);
    Ok(match method.as_ref().map_or("common", Text::as_str) {
        "common" if value.as_int().is_some() && precision >= 0 => value.clone(),
        "common" if precision >= 0 => {
            let text = format!("{number:.*}", precision as usize);
            Value::Float(text.parse().unwrap_or(number))
        }
        "common" => {
            let rounded = (number * factor).round_ties_even() / factor;
            if value.as_int().is_some() { Value::Int(rounded as i64) } else { Value::Float(rounded) }
        }
        "ceil" => Value::Float((number * factor).ceil() / factor),
        "floor" => Value::Float((number * factor).floor() / factor),
        _ => return args.fault("a method that is not common, ceil or floor"),
    })
}

/// Writes `json.dumps(value, ensure_ascii=False)`, which is `tojson` in chat templates.
fn to_json<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    const SPACES: &str = "                                ";
    let ensure_ascii = args.flag("ensure_ascii");
    let indent = match args.take("indent") {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text),
        Some(width) => match width.as_int().map(|width| usize::try_from(width).unwrap_or(0)) {
            Some(width) if width <= SPACES.len() => Some(Text::Lent(&SPACES[..width])),
            _ => return args.fault(&format!("an indent that is no text or number up to {}", SPACES.len())),
        },
    };
    let (item_separator, key_separator) = match args.take("separators") {
        None | Some(Value::None) => (Text::Lent(if indent.is_some() { "," } else { ", " }), Text::Lent(": ")),
        Some(Value::List(list)) if list.items.iter().all(|item| item.as_str().is_some()) => {
            match list.items.as_slice() {
                [Value::Text(item), Value::Text(key)] => (item.clone(), key.clone()),
                _ => return args.fault("separators are two texts"),
            }
        }
        Some(_) => return args.fault("separators are two texts"),
    };
    let sort_keys = args.flag("sort_keys");
    let mut out = Buffer::new(args.meter);
    Json { ensure_ascii, sort_keys, indent, item_separator, key_separator }.write(&mut out, value, 0)?;
    out.finish()
}

fn map<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let list = iterate(args.meter, value)?;
    let mut items = Items::new(args.meter);
    if let Some(path) = args.take_named("attribute") {
        let default = args.take_named("default");
        for item in &list.items {
            let found = at_path(args, item, &path)?;
            let is_absent = matches!(found, Value::Undefined(_));
            items.push(default.clone().filter(|_| is_absent).unwrap_or(found))?;
        }
        return items.list();
    }
    let name = lent_name(args)?;
    let (positional, by_name) = (args.rest(), args.rest_named());
    for item in &list.items {
        let mut inner = Args::new(args.meter, name, positional.clone(), by_name.clone());
        items.push(apply(item, &mut inner)?)?;
    }
    items.list()
}

/// Takes the name of a filter or a test, which is written in the template.
fn lent_name<'r>(args: &mut Args<'r>) -> Result<&'r str> {
    match args.take("name") {
        Some(Value::Text(Text::Lent(name))) => Ok(name),
        _ => args.fault("the name of a filter or a test is missing"),
    }
}

fn select<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let keeps = args.callee == "select";
    filtered(value, args, keeps, |_, item| Ok(item.clone()))
}

fn select_by<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<Value<'r>> {
    let keeps = args.callee == "selectattr";
    let path = args.required("attribute")?;
    filtered(value, args, keeps, |args, item| at_path(args, item, &path))
}

/// Keeps the items for which a test of what `of` gives holds, or does not; without a test, its truth.
fn filtered<'r>(
    value: &Value<'r>,
    args: &mut Args<'r>,
    keeps: bool,
    of: impl Fn(&Args<'r>, &Value<'r>) -> Result<Value<'r>>,
) -> Result<Value<'r>> {
    let list = iterate(args.meter, value)?;
    let arguments = args.rest();
    let mut items = Items::new(args.meter);
    for item in &list.items {
        let tested = of(args, item)?;
        let holds = match arguments.split_first() {
            None => tested.is_true(),
            Some((Value::Text(Text::Lent(name)), rest)) => {
                check(&tested, &mut Args::new(args.meter, name, rest.to_vec(), Vec::new()))?
            }
            Some(_) => return args.fault("the name of a test is missing"),
        };
        if holds == keeps {
            items.push(item.clone())?;
        }
    }
    items.list()
}
