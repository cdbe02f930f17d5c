//! What a request or a run file asks of a response's text.

use crate::references;
use crate::refusal::{invalid, too_large};
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use plimsoll_base::Result;
use serde_json::{Map, Value, json};

/// Longest text of a schema, an expression or a grammar.
pub const FORM_BYTES_MAX: usize = 128 << 10;
/// Most parts of a schema within each other.
const DEPTH_MAX: usize = 128;
/// Most texts of a choice.
pub const CHOICES_MAX: usize = 1024;

/// What may be between two parts of JSON: nothing, a space, or a line break with an indentation. Unbounded white space
/// would let a model that is not sure write nothing else.
const JSON_GAP: &str = r"( |\n[ \t]{0,64})";

/// What the text of a response may be.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseForm {
    /// JSON that a schema takes.
    Json(Value),
    /// Any JSON object.
    JsonObject,
    /// A text that a regular expression matches from end to end.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// A text of a grammar in llguidance's form of Lark.
    Lark(String),
}

impl ResponseForm {
    /// Returns the grammar as the library reads it.
    ///
    /// Errors: `grammar-too-large`, `grammar-invalid`.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar> {
        self.check_size()?;
        match self {
            ResponseForm::Json(schema) => Ok(TopLevelGrammar::from_json_schema(json_schema(schema)?)),
            ResponseForm::JsonObject => {
                Ok(TopLevelGrammar::from_json_schema(json_schema(&json!({ "type": "object" }))?))
            }
            ResponseForm::Regex(regex) => Ok(TopLevelGrammar::from_regex(regex)),
            ResponseForm::Choice(texts) => {
                if texts.is_empty() || texts.iter().any(String::is_empty) {
                    return Err(invalid("a choice has texts, none of them empty"));
                }
                let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
                Ok(TopLevelGrammar::from_regex(&texts.join("|")))
            }
            ResponseForm::Lark(lark) => Ok(TopLevelGrammar::from_lark(lark.clone())),
        }
    }

    /// True if its grammar is one expression, after which nothing follows.
    pub(crate) fn is_expression(&self) -> bool {
        matches!(self, ResponseForm::Regex(_) | ResponseForm::Choice(_))
    }

    /// Returns the form as a text that is the same for equal forms.
    pub fn key(&self) -> String {
        match self {
            ResponseForm::Json(schema) => format!("json {schema}"),
            ResponseForm::JsonObject => "object".into(),
            ResponseForm::Regex(regex) => format!("regex {regex}"),
            ResponseForm::Choice(texts) => format!("choice {}", Value::from(texts.clone())),
            ResponseForm::Lark(lark) => format!("lark {lark}"),
        }
    }

    fn check_size(&self) -> Result<()> {
        if let ResponseForm::Choice(texts) = self
            && texts.len() > CHOICES_MAX
        {
            return Err(too_large(&format!("a choice of {} texts, {CHOICES_MAX} is the most", texts.len())));
        }
        if let ResponseForm::Json(schema) = self
            && !is_within(schema, DEPTH_MAX)
        {
            return Err(too_large(&format!("the schema has parts within more than {DEPTH_MAX} others")));
        }
        if let ResponseForm::Json(schema) = self {
            references::check(schema)?;
        }
        let bytes = self.key().len();
        if bytes > FORM_BYTES_MAX {
            return Err(too_large(&format!("its text has {bytes} bytes, {FORM_BYTES_MAX} is the most")));
        }
        Ok(())
    }
}

/// True if a value has no part within more than `depth` others.
fn is_within(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(|item| is_within(item, depth - 1)),
        Value::Object(fields) => depth > 0 && fields.values().all(|field| is_within(field, depth - 1)),
        _ => true,
    }
}

/// Returns a schema with the options that decide how its JSON is written, instead of any that it brought.
pub(crate) fn json_schema(schema: &Value) -> Result<Value> {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) => return Err(invalid("no text satisfies the schema `false`")),
        _ => return Err(invalid("a schema is an object")),
    };
    let options =
        JsonCompileOptions { whitespace_pattern: Some(JSON_GAP.into()), ..JsonCompileOptions::default() };
    options.apply_to(&mut schema);
    Ok(schema)
}

/// Returns a regular expression that matches a text alone.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            c => {
                if c.is_ascii_punctuation() {
                    escaped.push('\\');
                }
                escaped.push(c);
            }
        }
    }
    escaped
}
