//! `json-schema`: is the response JSON, in the form that a schema requires?
//!
//! Implements JSON Schema (draft 2020-12) for values: types, constants, numbers, texts, arrays, objects, combinations,
//! and references inside the schema. Refuses other keywords: an ignored rule would let wrong answers through.

use crate::blocks::json_said;
use crate::case::Case;
use crate::scorer::{Reading, Row, Verifier, verdict};
use crate::spec::RewardSpec;
use plimsoll_base::{Decimal, Error, Result, json_marked, marked_digits, read_small_text};
use regex::Regex;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::path::Path;

/// Longest response, and longest file with a schema, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Most steps of one verdict: a reference may be followed again and again.
const FUEL: u32 = 200_000;
/// Deepest nesting of schemas during validation; a schema that refers to itself stops here.
const DEPTH_MAX: u32 = 64;

/// Keywords that do not affect validity.
const NOTES: [&str; 13] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "format",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// The schema of all rows; if `None`, each row's answer is its schema.
struct JsonSchema(Option<Schema>);

/// Reads `json-schema`, with the file of the key `schema` if it is set.
pub(crate) fn read(spec: &RewardSpec) -> Result<Reading> {
    let schema = spec.schema.as_deref().map(schema_in).transpose()?;
    Ok(Reading::verifier("json-schema", JsonSchema(schema)))
}

impl JsonSchema {
    fn grade(&self, row: &Row, case: &Case) -> Result<std::result::Result<(), String>> {
        Ok(match &self.0 {
            Some(schema) => schema.grade(&case.response),
            None => schema_of(row.answer)?.grade(&case.response),
        })
    }
}

impl Verifier for JsonSchema {
    fn check(&self, row: &Row) -> Result<()> {
        match &self.0 {
            Some(_) => Ok(()),
            None => schema_of(row.answer).map(drop),
        }
    }

    fn score(&self, row: &Row, case: &Case) -> Result<f64> {
        Ok(f64::from(self.grade(row, case)?.is_ok()))
    }

    fn why(&self, row: &Row, case: &Case) -> String {
        self.grade(row, case).map_or_else(|error| error.message, verdict)
    }
}

fn schema_in(path: &str) -> Result<Schema> {
    let named = |why: String| {
        Error::usage("reward-bad-schema", format!("the schema of `json-schema`: {path}: {why}"))
            .hint("set `schema` in the [[reward]] table to a file with a JSON Schema")
    };
    let text =
        read_small_text(Path::new(path), TEXT_BYTES_MAX as u64).map_err(|err| named(err.to_string()))?;
    let root = json_marked(&text).map_err(|err| named(format!("no JSON: {err}")))?;
    Schema::new(root)
}

fn schema_of(answer: &Value) -> Result<Schema> {
    match answer {
        Value::String(text) => Schema::new(json_marked(text).unwrap_or(Value::Null)),
        other => Schema::new(other.clone()),
    }
}

/// A schema, checked when it was read.
#[derive(Clone, Debug)]
struct Schema {
    root: Value,
    /// Its patterns and their compiled form.
    patterns: Vec<(String, Regex)>,
}

impl Schema {
    /// Reads a schema; one that this verifier does not implement is `reward-bad-schema`.
    fn new(root: Value) -> Result<Schema> {
        let mut schema = Schema { root: Value::Null, patterns: Vec::new() };
        schema.read(&root, &root, "#", 0).map_err(|why| {
            Error::usage("reward-bad-schema", format!("the schema of `json-schema`: {why}"))
                .hint("`plimsoll explain reward-bad-schema` lists the keywords that are known")
        })?;
        schema.root = root;
        Ok(schema)
    }

    /// Validates a response. The error says where and why it fails.
    fn grade(&self, response: &str) -> std::result::Result<(), String> {
        let text = &*json_said(response);
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("{} bytes, above {TEXT_BYTES_MAX}", text.len()));
        }
        let value = json_marked(text).map_err(|err| format!("no JSON: {err}"))?;
        let fuel = Cell::new(FUEL);
        Check { schema: self, fuel: &fuel }.value(&self.root, &value, "$", 0)
    }

    /// Checks every part of a schema; `at` is its place.
    fn read(&mut self, part: &Value, root: &Value, at: &str, depth: u32) -> std::result::Result<(), String> {
        let Some(keywords) = part.as_object() else {
            return if part.is_boolean() {
                Ok(())
            } else {
                Err(format!("{at} is neither an object nor a boolean"))
            };
        };
        if depth >= DEPTH_MAX {
            return Err(format!("{at} is nested deeper than {DEPTH_MAX}"));
        }
        for (name, argument) in keywords {
            let here = format!("{at}/{name}");
            match name.as_str() {
                "type" => types(argument).map(drop).ok_or(format!("{here} is no type"))?,
                "const" => {}
                "enum" | "required" if argument.is_array() => {}
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                    if decimal(argument).is_some() => {}
                "multipleOf" if decimal(argument).is_some_and(|step| step.is_positive()) => {}
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
                    if argument.is_u64() => {}
                "uniqueItems" if argument.is_boolean() => {}
                "pattern" if argument.is_string() => {
                    self.compile(argument.as_str().unwrap_or_default(), &here)?
                }
                "$ref" => {
                    let target = argument.as_str().and_then(|pointer| refer(root, pointer));
                    target.ok_or(format!(
                        "{here}: `{argument}` is not in the schema; a reference begins with `#`"
                    ))?;
                }
                "items"
                | "additionalProperties"
                | "not"
                | "contains"
                | "propertyNames"
                | "if"
                | "then"
                | "else" => {
                    self.read(argument, root, &here, depth + 1)?;
                }
                "prefixItems" | "anyOf" | "oneOf" | "allOf" if argument.is_array() => {
                    for (index, part) in argument.as_array().into_iter().flatten().enumerate() {
                        self.read(part, root, &format!("{here}/{index}"), depth + 1)?;
                    }
                }
                "properties" | "patternProperties" | "$defs" | "definitions" if argument.is_object() => {
                    for (key, part) in argument.as_object().into_iter().flatten() {
                        if name == "patternProperties" {
                            self.compile(key, &here)?;
                        }
                        self.read(part, root, &format!("{here}/{key}"), depth + 1)?;
                    }
                }
                name if NOTES.contains(&name) => {}
                _ => return Err(format!("{here} is not known, or `{argument:.60}` is no argument of it")),
            }
        }
        Ok(())
    }

    fn compile(&mut self, pattern: &str, at: &str) -> std::result::Result<(), String> {
        if !self.patterns.iter().any(|(known, _)| known == pattern) {
            let regex = Regex::new(pattern).map_err(|_| format!("{at}: `{pattern}` does not compile"))?;
            self.patterns.push((pattern.to_string(), regex));
        }
        Ok(())
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        self.patterns.iter().any(|(known, regex)| known == pattern && regex.is_match(text))
    }
}

/// Returns the part that `#` or `#/a/b` refers to.
fn refer<'s>(root: &'s Value, pointer: &str) -> Option<&'s Value> {
    root.pointer(pointer.strip_prefix('#')?)
}

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

fn types(argument: &Value) -> Option<Vec<&str>> {
    let named: Vec<&str> = match argument {
        Value::Array(list) => list.iter().map(Value::as_str).collect::<Option<_>>()?,
        one => vec![one.as_str()?],
    };
    named.iter().all(|name| TYPES.contains(name)).then_some(named)
}

fn is_number(value: &Value) -> bool {
    match value {
        Value::Number(_) => true,
        other => marked_digits(other).is_some(),
    }
}

/// Returns a number's exact value.
fn decimal(value: &Value) -> Option<Decimal> {
    match value {
        Value::Number(number) => Decimal::parse(&number.to_string()),
        other => Decimal::parse(marked_digits(other)?),
    }
}

type Verdict = std::result::Result<(), String>;

struct Check<'c> {
    schema: &'c Schema,
    fuel: &'c Cell<u32>,
}

impl Check<'_> {
    /// Validates `value`, which is at `at`, against a part of the schema.
    fn value(&self, part: &Value, value: &Value, at: &str, depth: u32) -> Verdict {
        self.fuel.set(self.fuel.get().checked_sub(1).ok_or("the check took too many steps")?);
        if depth >= DEPTH_MAX {
            return Err(format!("{at} is nested deeper than {DEPTH_MAX}"));
        }
        let Some(keywords) = part.as_object() else {
            return if *part == Value::Bool(false) { Err(format!("{at} may not be there")) } else { Ok(()) };
        };
        for (name, argument) in keywords {
            self.general(name, argument, value, at, depth)?;
        }
        match value {
            _ if is_number(value) => number(keywords, value, at),
            Value::Number(_) => Ok(()),
            Value::String(text) => self.string(keywords, text, at),
            Value::Array(items) => self.array(keywords, items, at, depth),
            Value::Object(members) => self.object(keywords, members, at, depth),
            Value::Null | Value::Bool(_) => Ok(()),
        }?;
        let holds = |part| self.value(part, value, at, depth + 1).is_ok();
        match keywords.get("if").map(holds) {
            Some(true) => keywords.get("then"),
            Some(false) => keywords.get("else"),
            None => None,
        }
        .map_or(Ok(()), |part| self.value(part, value, at, depth + 1))
    }

    /// Validates keywords that apply to values of every type.
    fn general(&self, name: &str, argument: &Value, value: &Value, at: &str, depth: u32) -> Verdict {
        let parts = || argument.as_array().into_iter().flatten();
        let valid = |part: &Value| self.value(part, value, at, depth + 1);
        let right = match name {
            "type" => types(argument).is_some_and(|types| types.iter().any(|name| has_type(value, name))),
            "const" => equal(argument, value),
            "enum" => parts().any(|one| equal(one, value)),
            "$ref" => {
                let target = argument.as_str().and_then(|pointer| refer(&self.schema.root, pointer));
                return target.map_or(Ok(()), valid);
            }
            "allOf" => return parts().try_for_each(valid),
            "anyOf" => parts().any(|part| valid(part).is_ok()),
            "oneOf" => parts().filter(|part| valid(part).is_ok()).count() == 1,
            "not" => valid(argument).is_err(),
            _ => true,
        };
        if right { Ok(()) } else { Err(format!("{at} breaks `{name}`: {argument:.80}")) }
    }

    fn string(&self, keywords: &Map<String, Value>, text: &str, at: &str) -> Verdict {
        count(keywords, "minLength", "maxLength", text.chars().count(), at)?;
        match keywords.get("pattern").and_then(Value::as_str) {
            Some(pattern) if !self.schema.matches(pattern, text) => {
                Err(format!("{at} breaks `pattern`: {pattern}"))
            }
            _ => Ok(()),
        }
    }

    fn array(&self, keywords: &Map<String, Value>, items: &[Value], at: &str, depth: u32) -> Verdict {
        count(keywords, "minItems", "maxItems", items.len(), at)?;
        let prefix = keywords.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = keywords.get("items").unwrap_or(&Value::Bool(true));
        for (index, item) in items.iter().enumerate() {
            self.value(prefix.get(index).unwrap_or(rest), item, &format!("{at}[{index}]"), depth + 1)?;
        }
        if let Some(part) = keywords.get("contains")
            && !items.iter().any(|item| self.value(part, item, at, depth + 1).is_ok())
        {
            return Err(format!("{at} breaks `contains`"));
        }
        if keywords.get("uniqueItems") == Some(&Value::Bool(true)) {
            for (index, item) in items.iter().enumerate() {
                let steps =
                    self.fuel.get().checked_sub(index as u32).ok_or("the check took too many steps")?;
                self.fuel.set(steps);
                if items[..index].iter().any(|earlier| equal(earlier, item)) {
                    return Err(format!("{at} breaks `uniqueItems` at {index}"));
                }
            }
        }
        Ok(())
    }

    fn object(
        &self,
        keywords: &Map<String, Value>,
        members: &Map<String, Value>,
        at: &str,
        depth: u32,
    ) -> Verdict {
        count(keywords, "minProperties", "maxProperties", members.len(), at)?;
        for name in keywords.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !name.as_str().is_some_and(|name| members.contains_key(name)) {
                return Err(format!("{at} lacks {name}"));
            }
        }
        let empty = Map::new();
        let map = |name| keywords.get(name).and_then(Value::as_object).unwrap_or(&empty);
        let (named, by_pattern) = (map("properties"), map("patternProperties"));
        for (name, member) in members {
            let place = format!("{at}.{name}");
            if let Some(part) = keywords.get("propertyNames") {
                self.value(part, &Value::String(name.clone()), &place, depth + 1)?;
            }
            let mut is_known = false;
            let matching = by_pattern.iter().filter(|(pattern, _)| self.schema.matches(pattern, name));
            for part in named.get(name).into_iter().chain(matching.map(|(_, part)| part)) {
                is_known = true;
                self.value(part, member, &place, depth + 1)?;
            }
            if let (false, Some(part)) = (is_known, keywords.get("additionalProperties")) {
                self.value(part, member, &place, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        // `1.0` is an integer with the value 1.
        _ if is_number(value) => {
            name == "number" || (name == "integer" && decimal(value).is_some_and(|number| number.is_whole()))
        }
        Value::Number(_) => false,
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// Compares values: `1` and `1.0` are one number, members have no order.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a == b => true,
        _ if is_number(a) && is_number(b) => decimal(a) == decimal(b),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// Validates a number by its exact value.
fn number(keywords: &Map<String, Value>, value: &Value, at: &str) -> Verdict {
    let limits = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
    if !limits.iter().any(|name| keywords.contains_key(*name)) {
        return Ok(());
    }
    let value = decimal(value).ok_or(format!("{at} is a number out of range"))?;
    let rule = |name: &str, holds: fn(&Decimal, &Decimal) -> bool| match keywords.get(name).and_then(decimal)
    {
        Some(limit) if !holds(&value, &limit) => {
            Err(format!("{at} is {value:.40} and breaks `{name}`: {limit:.40}"))
        }
        _ => Ok(()),
    };
    rule("minimum", |value, limit| value >= limit)?;
    rule("maximum", |value, limit| value <= limit)?;
    rule("exclusiveMinimum", |value, limit| value > limit)?;
    rule("exclusiveMaximum", |value, limit| value < limit)?;
    rule("multipleOf", |value, step| value.is_multiple_of(step) == Some(true))
}

fn count(keywords: &Map<String, Value>, least: &str, most: &str, found: usize, at: &str) -> Verdict {
    let limit = |name: &str| keywords.get(name).and_then(Value::as_u64);
    let found = found as u64;
    if limit(least).is_some_and(|limit| found < limit) || limit(most).is_some_and(|limit| found > limit) {
        return Err(format!("{at} has {found}, which breaks `{least}` or `{most}`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: &Value, cases: &[(&str, bool)]) {
        let schema = Schema::new(schema.clone()).expect("the schema is known");
        for (response, expect) in cases {
            let verdict = schema.grade(response);
            assert_eq!(verdict.is_ok(), *expect, "{response}: {verdict:?}");
        }
    }

    #[test]
    fn values_are_held_against_each_keyword() {
        let person = json!({"type": "object", "required": ["name", "age"], "additionalProperties": false,
            "properties": {"name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
                "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true, "maxItems": 2}}});
        check(
            &person,
            &[
                ("{\"name\": \"Ada\", \"age\": 36}", true),
                ("Here:\n```json\n{\"name\": \"Ada\", \"age\": 36.0, \"tags\": [\"a\", \"b\"]}\n```", true),
                ("{\"name\": \"Ada\"}", false),
                ("{\"name\": \"ada\", \"age\": 36}", false),
                ("{\"name\": \"Ada\", \"age\": 36.5}", false),
                ("{\"name\": \"Ada\", \"age\": 150}", false),
                ("{\"name\": \"Ada\", \"age\": 1, \"x\": 0}", false),
                ("{\"name\": \"Ada\", \"age\": 1, \"tags\": [\"a\", \"a\"]}", false),
                ("{\"name\": \"Ada\", \"age\": 1, \"tags\": [\"c\"]}", false),
                ("{\"name\": \"Ada\", \"age\": 36} and more", false),
                ("", false),
            ],
        );
        check(&json!({"oneOf": [{"type": "integer"}, {"multipleOf": 0.5}]}), &[("1.5", true), ("2", false)]);
        check(
            &json!({"not": {"type": "null"}, "anyOf": [{"const": 1}, {"const": [1, {"a": null}]}]}),
            &[("1.0", true), ("[1, {\"a\": null}]", true), ("null", false), ("2", false)],
        );
        check(
            &json!({"prefixItems": [{"type": "string"}], "items": false, "contains": {"const": "x"}}),
            &[("[\"x\"]", true), ("[\"y\"]", false), ("[\"x\", 1]", false), ("7", true)],
        );
        check(
            &json!({"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "number"}}),
            &[("\"é\"", true), ("\"ab\"", false), ("3", true), ("[]", false)],
        );
        check(
            &json!({"patternProperties": {"^n_": {"type": "number"}}, "propertyNames": {"maxLength": 3}}),
            &[("{\"n_a\": 1, \"b\": \"\"}", true), ("{\"n_a\": \"\"}", false), ("{\"long\": 1}", false)],
        );
    }

    #[test]
    fn references_recur_within_bounds() {
        let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["v"],
            "properties": {"v": {"type": "number"}, "next": {"$ref": "#/$defs/node"}}}}});
        check(&tree, &[("{\"v\": 1, \"next\": {\"v\": 2}}", true), ("{\"v\": 1, \"next\": {}}", false)]);
        check(&json!({"$ref": "#"}), &[("1", false)]);
        check(&json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}), &[("1", false)]);
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        check(&json!({"items": {"$ref": "#"}}), &[("[[[]]]", true), (&deep, false)]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for schema in [
            json!(3),
            json!({"type": "integr"}),
            json!({"unevaluatedProperties": false}),
            json!({"properties": {"a": {"minimum": "1"}}}),
            json!({"$ref": "other.json"}),
            json!({"$ref": "#/nowhere"}),
            json!({"pattern": "("}),
            json!({"anyOf": {}}),
        ] {
            assert_eq!(Schema::new(schema.clone()).unwrap_err().slug, "reward-bad-schema", "{schema}");
        }
    }
}
