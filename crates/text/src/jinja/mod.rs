//! Jinja for chat templates, with limits: a model's template is untrusted code. It sees the messages and, of this
//! machine, only the date. [`meter`] counts the size of its source, the depth of its expressions and calls, its steps,
//! and the live bytes of its values and text. Tags that read other files do not exist.
//!
//! Why it is written here: docs/decisions/0046-chat-templates-are-run-by-a-metered-interpreter.md.

mod arguments;
mod ast;
mod checks;
mod eval;
mod exec;
mod expressions;
mod filters;
mod json;
mod lexer;
mod meter;
mod methods;
mod operators;
mod print;
mod render;
mod scopes;
mod sequences;
mod statements;
mod value;
mod words;

#[cfg(test)]
mod tests;

use crate::growth::grown_bytes_max;
use crate::strftime::now_seconds;
pub(crate) use meter::SOURCE_BYTES_MAX;
use meter::{Fault, Meter};
use std::ops::Range;
use value::{Items, Value};

#[derive(Debug)]
pub(crate) struct Template {
    block: ast::Block,
    /// It says which of its text is the assistant's own.
    pub(crate) has_marks: bool,
    /// The moment that `strftime_now` gives, in seconds since 1970.
    now: u64,
}

/// Holds what a template sees of its surroundings.
pub(crate) struct Context<'a> {
    pub(crate) messages: Messages<'a>,
    /// `tools` and what else a request brings; undefined otherwise, because templates ask by `is defined` or by truth.
    pub(crate) variables: &'a [(&'a str, &'a serde_json::Value)],
    pub(crate) add_generation_prompt: bool,
    /// The moment of `strftime_now` in seconds since 1970, if it is not that of parsing.
    pub(crate) now: Option<u64>,
    /// Special tokens by their names.
    pub(crate) special: &'a [(&'a str, &'a str)],
}

/// The messages of a conversation.
#[derive(Clone, Copy)]
pub(crate) enum Messages<'a> {
    /// Role and content of each.
    Plain(&'a [(&'a str, &'a str)]),
    Json(&'a [serde_json::Value]),
}

/// Bytes of a text.
pub(crate) type Marks = Vec<Range<usize>>;

impl Template {
    /// Parses a template. An error says where and what.
    pub(crate) fn parse(source: &str) -> Result<Template, String> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!(": {} bytes, the limit is {SOURCE_BYTES_MAX}", source.len()));
        }
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let tokens = lexer::tokens(&source).map_err(|fault| words(&fault))?;
        let marks = |pair: &[(lexer::Token, u32)]| {
            matches!(pair, [(lexer::Token::TagBegin, _), (lexer::Token::Name("generation"), _)])
        };
        let has_marks = tokens.windows(2).any(marks);
        let block = expressions::Parser::new(tokens).template().map_err(|fault| words(&fault))?;
        Ok(Template { block, has_marks, now: now_seconds() })
    }

    /// Renders a conversation. An error says where and what.
    pub(crate) fn render(&self, context: &Context) -> Result<String, String> {
        let meter = Meter::new();
        self.rendered(&meter, context).map(|(text, _)| text).map_err(|fault| words(&fault))
    }

    /// Renders a conversation. Returns the text and the byte ranges that the template marks as the assistant's, in
    /// order; `None` for the ranges if a mark is in a value (a macro, `{% set %}`), whose place is not known.
    pub(crate) fn render_marked(&self, context: &Context) -> Result<(String, Option<Marks>), String> {
        let meter = Meter::new();
        self.rendered(&meter, context).map_err(|fault| words(&fault))
    }

    fn rendered<'r>(
        &'r self,
        meter: &'r Meter,
        context: &Context<'r>,
    ) -> meter::Result<(String, Option<Marks>)> {
        let mut renderer = render::Renderer::new(meter, context.now.unwrap_or(self.now));
        // First, so that no variable takes the place of what follows.
        for (name, variable) in context.variables {
            renderer.scopes.set(name, json::value_of(meter, variable)?)?;
        }
        renderer.scopes.set("messages", context.messages.value(meter)?)?;
        renderer.scopes.set("add_generation_prompt", Value::Bool(context.add_generation_prompt))?;
        for (name, token) in context.special {
            renderer.scopes.set(name, Value::lent(token))?;
        }
        renderer.run(&self.block)?;
        let text = renderer.outputs.pop().expect("the template's output stays").into_string();
        let given = context.messages.text_bytes()
            + context.variables.iter().map(|(_, variable)| json::text_bytes(variable)).sum::<usize>();
        let limit = grown_bytes_max(given);
        if text.len() > limit {
            meter.fault(format!("a text of {} bytes for {given}, the limit is {limit}", text.len()))
        } else {
            Ok((text, (!renderer.has_lost_marks).then_some(renderer.marks)))
        }
    }
}

impl<'a> Messages<'a> {
    fn value(self, meter: &'a Meter) -> meter::Result<Value<'a>> {
        let messages = match self {
            Messages::Plain(messages) => messages,
            Messages::Json(messages) => return json::list_of(meter, messages),
        };
        let mut list = Items::new(meter);
        for (role, content) in messages {
            let mut message = Items::new(meter);
            for text in ["role", role, "content", content] {
                message.push(Value::lent(text))?;
            }
            list.push(message.dict()?)?;
        }
        list.list()
    }

    fn text_bytes(self) -> usize {
        match self {
            Messages::Plain(messages) => {
                messages.iter().map(|(role, content)| role.len() + content.len()).sum()
            }
            Messages::Json(messages) => messages.iter().map(json::text_bytes).sum(),
        }
    }
}

/// The words of a message after `chat template`.
fn words(fault: &Fault) -> String {
    format!(" in line {}: {}", fault.line, fault.what)
}
