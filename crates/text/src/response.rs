//! Reads a response as what its model means by it: thinking, text and calls, in the form that its chat template
//! teaches. Thinking between marks comes first (`thinking`), and calls are looked for in the text after it (`calls`).

use crate::ChatTemplate;
use crate::calls::Calls;
use crate::calls_xml::Tool;
use crate::said::{Said, push_text};
use crate::thinking::Thinking;

/// Splits one response, piece by piece, in time linear in the text.
#[derive(Clone, Debug)]
pub struct ResponseReader {
    thinking: Option<Thinking>,
    /// None if nothing of the text can be a call.
    calls: Option<Calls>,
}

impl ResponseReader {
    /// Looks for thinking, and for calls of these functions. `is_thinking`: the prompt ends in thinking, as
    /// `ChatTemplate::ends_in_thinking` says.
    pub fn new(template: Option<&ChatTemplate>, tools: Vec<Tool>, is_thinking: bool) -> ResponseReader {
        let marks = template.and_then(ChatTemplate::thinking);
        ResponseReader {
            thinking: marks.map(|marks| Thinking::new(marks, is_thinking)),
            calls: Calls::are_in(template, !tools.is_empty()).then(|| Calls::new(template, tools)),
        }
    }

    /// Leaves thinking between marks in the text, with the marks.
    pub fn without_thinking(self) -> ResponseReader {
        ResponseReader { thinking: None, ..self }
    }

    /// Reads a whole response.
    pub fn read(mut self, response: &str) -> Vec<Said> {
        let mut said = self.push(response);
        said.extend(self.finish());
        said
    }

    /// Takes more of the response. Returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Said> {
        let mut said = Vec::new();
        let text = match &mut self.thinking {
            Some(thinking) => thinking.push(text, &mut said),
            None => text.to_string(),
        };
        self.push_text(&text, &mut said);
        said
    }

    /// Returns what was held back, at the end of the response.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        if let Some(thinking) = &mut self.thinking {
            let text = thinking.finish(&mut said);
            self.push_text(&text, &mut said);
        }
        said.extend(self.calls.as_mut().map(Calls::finish).unwrap_or_default());
        said
    }

    fn push_text(&mut self, text: &str, said: &mut Vec<Said>) {
        match &mut self.calls {
            Some(calls) => said.extend(calls.push(text)),
            None => push_text(said, text),
        }
    }
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
