//! References of a schema, which the library follows by calls within calls: they are counted, and none may lead to
//! itself without a property or an item on the way. Such a schema says nothing, and would take the whole stack.

use crate::refusal::{invalid, too_large};
use plimsoll_base::{Result, shown};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most references of a schema.
const REFERENCES_MAX: usize = 256;
/// Most schemas about one value, each within another one or named by it.
const WITHIN_MAX: usize = 256;
/// Keywords whose schemas are about the same value as the schema that has them.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that move what references mean.
const MOVES: [&str; 4] = ["$id", "$anchor", "$dynamicRef", "$recursiveRef"];

/// Where a walk over references has come to at a target.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Under,
    Done(usize),
}

/// Checks the references of a schema, whose parts are within few others.
///
/// Errors: `grammar-too-large`, `grammar-invalid`.
pub(crate) fn check(schema: &Value) -> Result<()> {
    let mut targets = Vec::new();
    collect(schema, schema, &mut targets)?;
    if targets.len() > REFERENCES_MAX {
        return Err(too_large(&format!("{} references, {REFERENCES_MAX} is the most", targets.len())));
    }
    let mut seen = BTreeMap::new();
    targets.into_iter().try_for_each(|target| follow(schema, target, &mut seen).map(drop))
}

/// Lists all references. They are `#` or `#/...`, of the schema itself.
fn collect<'s>(root: &'s Value, value: &'s Value, targets: &mut Vec<&'s str>) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| collect(root, item, targets)),
        Value::Object(fields) => {
            if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                let is_here = target == "#" || (target.starts_with("#/") && !target.contains('%'));
                if !is_here || root.pointer(&target[1..]).is_none() {
                    let target = shown(target);
                    return Err(invalid(&format!("the reference {target:?} has no schema within this one")));
                }
                targets.push(target);
            }
            if !std::ptr::eq(root, value)
                && let Some(name) = MOVES.iter().find(|name| fields.get(**name).is_some_and(Value::is_string))
            {
                return Err(invalid(&format!("{name} within a schema moves what references mean")));
            }
            fields.values().try_for_each(|field| collect(root, field, targets))
        }
        _ => Ok(()),
    }
}

/// Follows a reference through what is about the same value. Returns how many schemas are within each other there.
fn follow<'s>(root: &'s Value, target: &'s str, seen: &mut BTreeMap<&'s str, Seen>) -> Result<usize> {
    match seen.get(target) {
        Some(Seen::Done(height)) => return Ok(*height),
        Some(Seen::Under) => {
            let target = shown(target);
            return Err(invalid(&format!("the reference {target:?} leads to itself and to nothing else")));
        }
        None => {}
    }
    seen.insert(target, Seen::Under);
    let height = follow_in(root, root.pointer(&target[1..]).unwrap_or(&Value::Null), seen)?;
    seen.insert(target, Seen::Done(height));
    Ok(height)
}

fn follow_in<'s>(root: &'s Value, schema: &'s Value, seen: &mut BTreeMap<&'s str, Seen>) -> Result<usize> {
    let mut height = 0;
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        height = follow(root, target, seen)?;
    }
    for part in IN_PLACE.iter().filter_map(|name| schema.get(name)?.as_array()).flatten() {
        height = height.max(follow_in(root, part, seen)?);
    }
    if height >= WITHIN_MAX {
        return Err(too_large(&format!(
            "more than {WITHIN_MAX} schemas about the same value, one within the other"
        )));
    }
    Ok(height + 1)
}
