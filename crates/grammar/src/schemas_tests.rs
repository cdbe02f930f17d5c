//! Schemas of many kinds, drawn from at random: what ended parses as JSON and is what its schema says, as a validator
//! of the tests' own sees it.

use crate::calls::text_with_calls;
use crate::{CalledTool, GrammarVocabulary, MaskLanes, ResponseForm};
use plimsoll_base::rng::{Stream, philox};
use plimsoll_files::TokenizerFiles;
use plimsoll_text::Tokenizer;
use regex::Regex;
use serde_json::{Value, json};
use std::sync::Arc;

const EOS: u32 = 257;
const VOCAB: u32 = 300;
/// Most tokens of an output; longer ones are cut, and say nothing.
const TOKENS_MAX: usize = 400;

fn vocabulary() -> GrammarVocabulary {
    let tokenizer =
        Tokenizer::from_files(&TokenizerFiles { bytes: true, ..TokenizerFiles::default() }, VOCAB).unwrap();
    GrammarVocabulary::new(&tokenizer, VOCAB, &[EOS]).unwrap()
}

/// Twenty schemas and more.
pub(crate) fn schemas() -> Vec<Value> {
    let all = json!([
        { "type": "object", "properties": { "name": { "type": "string" }, "age": { "type": "integer" } },
          "required": ["name", "age"], "additionalProperties": false },
        { "type": "object", "properties": { "a": { "type": "object", "properties": { "b": { "type": "boolean" } },
          "required": ["b"], "additionalProperties": false } }, "required": ["a"], "additionalProperties": false },
        { "enum": ["red", "green", 3, null, true, { "a": [1] }] },
        { "const": { "x": "y", "z": [1, 2.5] } },
        { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "minItems": 2, "maxItems": 4 },
        { "anyOf": [{ "type": "integer" }, { "type": "string", "maxLength": 3 }, { "type": "null" }] },
        { "type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$" },
        { "type": "string", "minLength": 2, "maxLength": 6 },
        { "type": "string", "format": "date" },
        { "type": "string", "format": "uuid" },
        { "type": "string", "format": "ipv4" },
        { "type": "integer", "minimum": -17, "maximum": 1234 },
        { "type": "number", "exclusiveMinimum": 0, "maximum": 1.5 },
        { "type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700 },
        { "$defs": { "point": { "type": "object", "properties": { "x": { "type": "integer" }, "y": { "type": "integer" } },
          "required": ["x", "y"], "additionalProperties": false } },
          "type": "array", "items": { "$ref": "#/$defs/point" }, "minItems": 1, "maxItems": 2 },
        { "$defs": { "tree": { "type": "object", "properties": { "v": { "type": "boolean" }, "of": { "type": "array",
          "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 } }, "required": ["v"], "additionalProperties": false } },
          "$ref": "#/$defs/tree" },
        { "type": "object", "properties": { "kind": { "enum": ["a", "b"] }, "note": { "type": "string", "maxLength": 5 } },
          "required": ["kind"], "additionalProperties": false },
        { "type": "array", "prefixItems": [{ "type": "boolean" }, { "type": "integer" }], "items": false, "minItems": 2 },
        { "type": "object", "additionalProperties": { "type": "boolean" }, "maxProperties": 2 },
        { "type": "object", "patternProperties": { "^k[0-9]$": { "type": "null" } }, "additionalProperties": false },
        { "allOf": [{ "type": "integer", "minimum": 3 }, { "maximum": 8 }] },
        { "type": ["boolean", "null"] },
        { "oneOf": [{ "type": "object", "properties": { "t": { "const": 1 } }, "required": ["t"],
          "additionalProperties": false }, { "type": "object", "properties": { "t": { "const": 2 }, "u": { "type": "boolean" } },
          "required": ["t", "u"], "additionalProperties": false }] },
        { "type": "object", "properties": { "choices": { "type": "array", "items": { "anyOf": [{ "const": "x" },
          { "type": "object", "properties": { "deep": { "type": "array", "items": { "type": "array", "items":
          { "enum": [0, 1] }, "maxItems": 2 }, "maxItems": 2 } }, "required": ["deep"], "additionalProperties": false }] },
          "minItems": 1, "maxItems": 3 } }, "required": ["choices"], "additionalProperties": false }
    ]);
    all.as_array().expect("a list").clone()
}

/// Draws a text of a form: any token of each mask with the same probability. None if it was cut.
fn draw(vocabulary: &GrammarVocabulary, form: &ResponseForm, seed: u64) -> Option<String> {
    let mut matcher = vocabulary.compile(form, 1).unwrap().matcher(0);
    let (mut words, mut text) = (vec![0u32; vocabulary.words()], Vec::new());
    for position in 0..TOKENS_MAX as u64 {
        matcher.mask(&mut words).unwrap();
        let allowed: Vec<u32> =
            (0..VOCAB).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty(), "no token at {position} of {}", String::from_utf8_lossy(&text));
        let token = allowed[philox(seed, Stream::Sampler, position, 0)[0] as usize % allowed.len()];
        if token == EOS {
            return Some(String::from_utf8(text).expect("whole characters"));
        }
        assert!(token < 256, "{token} is no byte");
        text.push(token as u8);
        matcher.take(token).unwrap();
    }
    None
}

fn resolve<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|place| root.pointer(&place[1..]));
    target.map_or(schema, |target| resolve(root, target))
}

fn is_type(value: &Value, kind: &str) -> bool {
    match kind {
        "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}

/// True if a value is what a schema says, as far as the tests' schemas go.
fn takes(root: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolve(root, schema);
    if let Some(all) = schema.as_bool() {
        return all;
    }
    let all = |name: &str| schema.get(name).and_then(Value::as_array);
    let number = |name: &str| schema.get(name).and_then(Value::as_f64);
    let count = |name: &str| schema.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(kinds) => kinds.as_array().expect("types").iter().filter_map(Value::as_str).collect(),
        None => Vec::new(),
    };
    let mut is = kinds.is_empty() || kinds.iter().any(|kind| is_type(value, kind));
    is &= all("enum").is_none_or(|values| values.contains(value));
    is &= schema.get("const").is_none_or(|only| only == value);
    is &= all("anyOf").is_none_or(|of| of.iter().any(|one| takes(root, one, value)));
    is &= all("allOf").is_none_or(|of| of.iter().all(|one| takes(root, one, value)));
    is &= all("oneOf").is_none_or(|of| of.iter().filter(|one| takes(root, one, value)).count() == 1);
    if let Some(x) = value.as_f64() {
        is &= number("minimum").is_none_or(|least| x >= least)
            && number("maximum").is_none_or(|most| x <= most);
        is &= number("exclusiveMinimum").is_none_or(|least| x > least);
        is &= number("multipleOf").is_none_or(|of| x % of == 0.0);
    }
    if let Some(text) = value.as_str() {
        let len = text.chars().count();
        is &= count("minLength").is_none_or(|least| len >= least)
            && count("maxLength").is_none_or(|most| len <= most);
        let format = |name: &str| match name {
            "date" => r"^\d{4}-\d{2}-\d{2}$",
            "uuid" => r"(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            "ipv4" => r"^(\d{1,3}\.){3}\d{1,3}$",
            other => panic!("format {other}"),
        };
        let pattern = schema.get("format").and_then(Value::as_str).map(format);
        let patterns = pattern.into_iter().chain(schema.get("pattern").and_then(Value::as_str));
        is &= patterns.map(|pattern| Regex::new(pattern).unwrap()).all(|pattern| pattern.is_match(text));
    }
    if let Some(items) = value.as_array() {
        is &= count("minItems").is_none_or(|n| items.len() >= n)
            && count("maxItems").is_none_or(|n| items.len() <= n);
        let first = all("prefixItems").map_or(&[][..], Vec::as_slice);
        let rest = schema.get("items");
        is &= items
            .iter()
            .enumerate()
            .all(|(i, item)| first.get(i).or(rest).is_none_or(|one| takes(root, one, item)));
    }
    is && object_takes(root, schema, value)
}

fn object_takes(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(fields) = value.as_object() else { return true };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let has_all = required.filter_map(Value::as_str).all(|name| fields.contains_key(name));
    let most =
        schema.get("maxProperties").and_then(Value::as_u64).is_none_or(|most| fields.len() as u64 <= most);
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let of = |name: &str| {
        let by_name = schema.pointer(&format!("/properties/{name}"));
        let by_pattern = || {
            let mut all = patterns.into_iter().flatten();
            all.find(|(pattern, _)| Regex::new(pattern).unwrap().is_match(name)).map(|(_, one)| one)
        };
        by_name.or_else(by_pattern).or_else(|| schema.get("additionalProperties"))
    };
    has_all && most && fields.iter().all(|(name, field)| of(name).is_none_or(|one| takes(root, one, field)))
}

#[test]
fn what_ended_parses_and_is_what_its_schema_says() {
    let vocabulary = vocabulary();
    // 10,000 outputs: PLIMSOLL_FULL=1, about 420 of each schema.
    let each = if std::env::var("PLIMSOLL_FULL").is_ok_and(|value| value == "1") { 420 } else { 12 };
    let (mut ended, mut cut) = (0, 0);
    for (index, schema) in schemas().into_iter().enumerate() {
        let form = ResponseForm::Json(schema.clone());
        let mut own = 0;
        for seed in 0..each {
            let Some(text) = draw(&vocabulary, &form, (index as u64) << 32 | seed) else {
                cut += 1;
                continue;
            };
            own += 1;
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|err| panic!("{text}: {err}"));
            assert!(takes(&schema, &schema, &value), "{text} of {schema}");
        }
        assert!(own > 0, "no output of {schema} ended");
        ended += own;
    }
    println!("{ended} outputs ended and are what their schemas say, {cut} were cut");
}

#[test]
fn texts_are_of_their_expression_choice_and_grammar() {
    let vocabulary = vocabulary();
    let choice = ["yes".to_string(), "no.".into(), "a\n(b) \"c\" / \\ é".into()];
    let [words, said] = [r"^[a-c]{1,3}(/|\d)x?$", "^say [xy]+z$"].map(|of| Regex::new(of).unwrap());
    for seed in 0..20 {
        let regex = ResponseForm::Regex(r"[a-c]{1,3}(/|\d)x?".into());
        let text = draw(&vocabulary, &regex, seed).unwrap();
        assert!(words.is_match(&text), "{text}");
        let text = draw(&vocabulary, &ResponseForm::Choice(choice.to_vec()), seed).unwrap();
        assert!(choice.contains(&text), "{text:?}");
        let lark = "start: \"say \" word\nword: /[xy]+z/\n".to_string();
        if let Some(text) = draw(&vocabulary, &ResponseForm::Lark(lark), seed) {
            assert!(said.is_match(&text), "{text}");
        }
    }
    let object =
        draw(&vocabulary, &ResponseForm::Json(json!({ "type": "object", "maxProperties": 0 })), 1).unwrap();
    assert!(object.starts_with('{'), "{object}");
}

#[test]
fn what_is_no_grammar_or_too_much_of_one_is_refused_by_name() {
    let vocabulary = vocabulary();
    let deep =
        (0..300).fold(json!({ "type": "null" }), |inner, _| json!({ "type": "array", "items": inner }));
    let wide: Vec<Value> =
        (0..3000).map(|i| json!({ "type": "string", "pattern": format!("^{i}[a-z]{{5,90}}$") })).collect();
    for (form, slug) in [
        (ResponseForm::Json(json!(false)), "grammar-invalid"),
        (ResponseForm::Json(json!({ "type": "integer", "minimum": 5, "maximum": 3 })), "grammar-invalid"),
        (ResponseForm::Json(json!({ "type": "strnig" })), "grammar-invalid"),
        (ResponseForm::Json(json!({ "type": "array", "uniqueItems": true })), "grammar-invalid"),
        (ResponseForm::Json(json!({ "$ref": "https://example.com/schema" })), "grammar-invalid"),
        (ResponseForm::Json(json!({ "$ref": "#/$defs/none" })), "grammar-invalid"),
        (ResponseForm::Regex("(".into()), "grammar-invalid"),
        (ResponseForm::Regex(r"(a|b)*c\b(?=d)".into()), "grammar-invalid"),
        (ResponseForm::Choice(vec![]), "grammar-invalid"),
        (ResponseForm::Choice(vec!["x".into(); 2000]), "grammar-too-large"),
        (ResponseForm::Lark("start: other".into()), "grammar-invalid"),
        (ResponseForm::Lark("x".repeat(200_000)), "grammar-too-large"),
        (ResponseForm::Json(json!({ "anyOf": wide })), "grammar-too-large"),
    ] {
        let error = vocabulary.compile(&form, 1).expect_err(&form.key()[..form.key().len().min(200)]);
        assert_eq!(error.slug, slug, "{} {error}", &form.key()[..form.key().len().min(200)]);
    }
    // Deep, and none of them a fault.
    assert_eq!(vocabulary.compile(&ResponseForm::Json(deep), 1).unwrap_err().slug, "grammar-too-large");
    let long = |n: usize, of: &dyn Fn(usize) -> Value| {
        let mut defs: serde_json::Map<String, Value> = (0..n).map(|i| (format!("a{i}"), of(i + 1))).collect();
        defs.insert(format!("a{n}"), json!({ "type": "null" }));
        json!({ "$defs": defs, "$ref": "#/$defs/a0" })
    };
    let many = long(300, &|next| json!({ "$ref": format!("#/$defs/a{next}") }));
    assert_eq!(vocabulary.compile(&ResponseForm::Json(many), 1).unwrap_err().slug, "grammar-too-large");
    for in_place in ["allOf", "anyOf", "oneOf"] {
        let itself = json!({ "$defs": { "a": { in_place: [{ "$ref": "#/$defs/a" }, { "type": "null" }] } },
            "$ref": "#/$defs/a" });
        assert_eq!(vocabulary.compile(&ResponseForm::Json(itself), 1).unwrap_err().slug, "grammar-invalid");
    }
    let tree = |name: &str| {
        json!({ "type": "object", "properties": { "left": { "$ref": format!("#/$defs/{name}") },
            "right": { "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] } } })
    };
    let both = json!({ "$defs": { "a": tree("b"), "b": tree("a") },
        "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] });
    let _ = vocabulary.compile(&ResponseForm::Json(both), 1);
    let chain = |of: &dyn Fn(usize) -> Value| long(250, of);
    let within = |n: usize, last: Value| (0..n).fold(last, |inner, _| json!({ "allOf": [inner] }));
    for schema in [
        chain(&|next| json!({ "$ref": format!("#/$defs/a{next}") })),
        chain(&|next| json!({ "allOf": [{ "$ref": format!("#/$defs/a{next}") }] })),
        chain(&|next| within(8, json!({ "$ref": format!("#/$defs/a{next}") }))),
        chain(&|next| json!({ "anyOf": [{ "$ref": format!("#/$defs/a{next}") }, { "type": "null" }] })),
    ] {
        let _ = vocabulary.compile(&ResponseForm::Json(schema), 1);
    }
    for lark in
        [format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)), "start: start start \"a\"".into()]
    {
        let _ = vocabulary.compile(&ResponseForm::Lark(lark), 1);
    }
    let _ = vocabulary.compile(&ResponseForm::Regex(format!("{}a{}", "(".repeat(5000), ")".repeat(5000))), 1);
    // Options of the library that a client's schema brings do not hold.
    let own = json!({ "type": "null", "x-guidance": { "lenient": true, "whitespace_flexible": true } });
    assert!(draw(&vocabulary, &ResponseForm::Json(own), 3).is_some_and(|text| text.trim() == "null"));
}

#[test]
fn a_response_whose_matcher_fails_ends_alone() {
    let vocabulary = vocabulary();
    let lanes = MaskLanes::start(2, 4, vocabulary.words()).unwrap();
    let grammar = Arc::new(vocabulary.compile(&ResponseForm::Regex("ab".into()), 2).unwrap());
    (0..4).for_each(|slot| lanes.begin(slot, &grammar));
    let mut words = vec![0; vocabulary.words()];
    let mut next = |slot| {
        let only =
            |words: &[u32]| (0..VOCAB).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        lanes.mask(slot, &mut words).map(|()| -> Vec<u32> { only(&words) })
    };
    for slot in 0..4 {
        assert_eq!(next(slot).unwrap(), [u32::from(b'a')], "slot {slot}");
    }
    lanes.take(0, u32::from(b'a'));
    lanes.take(2, u32::from(b'c'));
    assert_eq!(next(0).unwrap(), [u32::from(b'b')]);
    assert_eq!(next(2).unwrap_err().slug, "grammar-too-complex");
    assert_eq!(next(3).unwrap(), [u32::from(b'a')]);
    lanes.take(0, u32::from(b'b'));
    assert_eq!(next(0).unwrap(), [EOS], "only the end is left");
    // The slot's next response has nothing of the one that failed.
    lanes.begin(2, &grammar);
    assert_eq!(next(2).unwrap(), [u32::from(b'a')]);
}

/// Returns how many bytes of a text a form takes, and whether the text may end there.
fn taken(vocabulary: &GrammarVocabulary, form: &ResponseForm, text: &str) -> (usize, bool) {
    let mut matcher = vocabulary.compile(form, 1).unwrap().matcher(0);
    let mut words = vec![0u32; vocabulary.words()];
    let allows = |words: &[u32], id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
    for (at, byte) in text.bytes().enumerate() {
        matcher.mask(&mut words).unwrap();
        if !allows(&words, u32::from(byte)) {
            return (at, allows(&words, EOS));
        }
        matcher.take(u32::from(byte)).unwrap();
    }
    matcher.mask(&mut words).unwrap();
    (text.len(), allows(&words, EOS))
}

#[test]
fn text_is_free_up_to_the_mark_of_a_call_which_is_then_held_to_its_schema() {
    let parameters = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"],
        "additionalProperties": false });
    let tools = [
        CalledTool { name: "add", parameters: Some(&parameters) },
        CalledTool { name: "say", parameters: None },
    ];
    let (vocabulary, form) = (vocabulary(), text_with_calls(&tools).unwrap());
    for text in [
        "",
        "No call, but <tool_ cal and \"<tool_call\" and {\"n\": \"x\"}\n",
        "<think>\n3 < 4\n</think>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": 12}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"say\", \"arguments\": {\"any\": [1]}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": 1}}\n</tool_call> Done.",
    ] {
        assert_eq!(taken(&vocabulary, &form, text), (text.len(), true), "{text}");
    }
    for (begins, refused) in [
        ("So. <tool_call>", "{"),
        ("So. <tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": ", "\"x\""),
        ("<tool_call>\n{\"name\": \"a", "ll\""),
        ("<tool_call>\n{\"name\": \"add\", \"arguments\": {", "}"),
        ("a<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\": 1}}\n</tool_call> b<tool_call>\n", "x"),
    ] {
        let text = format!("{begins}{refused}");
        assert_eq!(taken(&vocabulary, &form, &text), (begins.len(), false), "{text}");
    }
}
