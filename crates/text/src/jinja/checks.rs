//! Tests: what follows `is`.

use super::arguments::Args;
use super::ast::Comparison;
use super::meter::Result;
use super::operators::{compare, named};
use super::value::{Text, Value};

/// Applies the test `args.callee`.
pub(super) fn check<'r>(value: &Value<'r>, args: &mut Args<'r>) -> Result<bool> {
    let meter = args.meter;
    let int = |value: &Value| match value.as_int() {
        Some(number) => Ok(number),
        None => meter.fault(format!("a test of {}, expected int", named(value))),
    };
    let result = match args.callee {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => value.is_integer(),
        "float" => matches!(value, Value::Float(_) | Value::Digits(_)) && !value.is_integer(),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Digits(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // In Jinja a value with a length and items; an undefined value has both.
        "sequence" => {
            matches!(value, Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Undefined(_))
        }
        "iterable" => {
            matches!(value, Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Undefined(_))
        }
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_)),
        "escaped" => false,
        "even" => int(value)? % 2 == 0,
        "odd" => int(value)? % 2 != 0,
        "divisibleby" => match int(&args.required("num")?)? {
            0 => return args.fault("by 0"),
            number => int(value)? % number == 0,
        },
        "lower" | "upper" => {
            let text = value.as_str().unwrap_or_default();
            meter.work(text.len())?;
            let small = |c: char| c.is_lowercase();
            let large = |c: char| c.is_uppercase();
            if args.callee == "lower" {
                text.chars().any(small) && !text.chars().any(large)
            } else {
                text.chars().any(large) && !text.chars().any(small)
            }
        }
        "sameas" => is_same(value, &args.required("other")?),
        name => {
            let Some(comparison) = comparison(name) else {
                return args.fault("no such test");
            };
            compare(meter, comparison, value, &args.required("other")?)?
        }
    };
    args.end()?;
    Ok(result)
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" | "equalto" | "==" => Comparison::Equal,
        "ne" | "!=" => Comparison::NotEqual,
        "lt" | "lessthan" | "<" => Comparison::Less,
        "le" | "<=" => Comparison::LessOrEqual,
        "gt" | "greaterthan" | ">" => Comparison::Greater,
        "ge" | ">=" => Comparison::GreaterOrEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}

/// Evaluates Python's `is`, for values that have one.
fn is_same<'r>(a: &Value<'r>, b: &Value<'r>) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(Text::Lent(a)), Value::Text(Text::Lent(b))) => std::ptr::eq(*a, *b),
        (Value::List(a), Value::List(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => false,
    }
}
