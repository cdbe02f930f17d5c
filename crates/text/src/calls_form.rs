//! The form of a model's calls and thinking, which its chat template shows, and the marks of that form: tokens that a
//! response's text keeps although they are special.

use crate::call_end::OPEN;
use crate::calls_keys;
use crate::calls_sections::{DEEPSEEK, GEMMA, KIMI, MISTRAL, Marks};
use crate::calls_xml::FUNCTION;
use crate::harmony::{CHANNEL, CONSTRAIN, END, ENDS, MESSAGE, START};

/// How a model writes its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// Messages in channels, as gpt-oss writes them.
    Harmony,
    /// Between `<tool_call>` tags; within them may be tags for keys and values.
    Tagged { has_keys: bool },
    /// Between other marks.
    Sections(&'static Marks),
    /// A response that is a call and nothing else.
    Bare,
}

/// How calls are written that a response can be held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>`, a line with `{"name": ..., "arguments": ...}`, `</tool_call>`.
    Tagged,
    /// `{"name": ..., "parameters": ...}` and nothing else.
    Bare,
    /// Another form.
    Other,
}

impl Form {
    /// Returns how calls of the form are written. `source`: the template's.
    pub(crate) fn calls(self, source: &str) -> CallForm {
        match self {
            Form::Tagged { has_keys: false } if !source.contains(FUNCTION) => CallForm::Tagged,
            Form::Bare if source.contains("parameters") => CallForm::Bare,
            _ => CallForm::Other,
        }
    }

    /// Returns the form that the source of a template teaches.
    pub(crate) fn of_source(source: &str) -> Form {
        let mentions = |mark| source.contains(mark);
        if mentions(CHANNEL) && mentions(MESSAGE) {
            return Form::Harmony;
        }
        if mentions(OPEN) {
            return Form::Tagged { has_keys: mentions(calls_keys::KEY) };
        }
        let marks = [&MISTRAL, &DEEPSEEK, &KIMI, &GEMMA].into_iter().find(|marks| mentions(marks.section));
        marks.map_or(Form::Bare, Form::Sections)
    }

    /// Returns the marks that stay in the text of a response.
    pub(crate) fn kept_marks(self) -> Vec<&'static str> {
        match self {
            Form::Harmony => vec![START, CHANNEL, CONSTRAIN, MESSAGE, END],
            Form::Sections(marks) => marks.all().collect(),
            Form::Tagged { .. } | Form::Bare => Vec::new(),
        }
    }

    /// Returns the tokens that end a response, besides the model's own.
    pub(crate) fn ends(self) -> &'static [&'static str] {
        match self {
            Form::Harmony => &ENDS,
            _ => &[],
        }
    }
}
