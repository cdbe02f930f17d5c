//! Turns rows into tokens, in one place for all commands: a text is tokenized whole, as the tokenizer's own file says,
//! and its parts are cut out of the whole by position. Refuses a row of which the chat template loses what it means.

use crate::row_fields::{check_meaning, check_thinking};
use crate::strings::Strings;
use crate::{ChatTemplate, Message, Prompt, Tokenizer};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};

/// How rows become the tokens of one model.
#[derive(Clone, Copy, Debug)]
pub struct RowTokenizer<'t> {
    pub tokenizer: &'t Tokenizer,
    pub template: Option<&'t ChatTemplate>,
    /// Precedes conversations that have none.
    pub system_prompt: Option<&'t str>,
    /// The form that a prompt gets which is a string.
    pub strings: &'t Strings,
    /// Ends a supervised completion of plain text.
    pub eos: Option<u32>,
    /// True if plain text begins with what the tokenizer puts before a text.
    pub begins: bool,
    /// True if a response goes on with a prompt's last message where it is the assistant's.
    pub continues: bool,
}

/// A text as tokens, cut in two.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cut {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

impl RowTokenizer<'_> {
    /// Tokenizes a prompt. `variables`: the row's own variables of the template.
    ///
    /// A string is used unchanged, unless `strings` or a system prompt requires the chat template: then it is one user
    /// message.
    /// Errors: `chat-template-missing`, `chat-template-invalid`, `data-field-lost`, those of `Tokenizer::encode`.
    pub fn prompt(&self, prompt: &Prompt, variables: &Map<String, Value>) -> Result<Vec<u32>> {
        let messages = match self.conversation(prompt) {
            Err(text) => return self.plain(text),
            Ok(messages) => messages,
        };
        let template = self.required()?;
        check_meaning(template, &messages, variables)?;
        let goes_on = self.continues && messages.last().is_some_and(|last| last.role == "assistant");
        let text = if goes_on {
            template.render_continued(&messages, variables)?
        } else {
            template.render_row(&messages, variables, true)?
        };
        self.tokenizer.encode(&text)
    }

    /// Tokenizes a text that no template wrote.
    ///
    /// Errors: those of `Tokenizer::encode`.
    pub fn plain(&self, text: &str) -> Result<Vec<u32>> {
        if self.begins { self.tokenizer.encode_beginning(text) } else { self.tokenizer.encode(text) }
    }

    /// Tokenizes a prompt with its answer as one text.
    ///
    /// Errors: those of `prompt`; `chat-template-invalid` if the whole text does not begin with the prompt's.
    pub(crate) fn answered(
        &self,
        prompt: &Prompt,
        answer: &Message,
        variables: &Map<String, Value>,
    ) -> Result<Cut> {
        let mut messages = match self.conversation(prompt) {
            Err(text) => {
                check_thinking(answer, &answer.content)?;
                let mut cut = self.cut(&format!("{text}{}", answer.content), text.len())?;
                let beginning = if self.begins { self.tokenizer.beginning_of(text) } else { &[] };
                cut.before.splice(0..0, beginning.iter().copied());
                cut.after.extend(self.eos);
                return Ok(cut);
            }
            Ok(messages) => messages,
        };
        let template = self.required()?;
        let prompt = template.render_row(&messages, variables, true)?;
        messages.push(answer.clone());
        check_meaning(template, &messages, variables)?;
        let whole = template.render_row(&messages, variables, false)?;
        let completion = whole.strip_prefix(&prompt).ok_or_else(|| {
            Error::new("chat-template-invalid", "chat template: an answer changes the text of its prompt")
                .hint("set data.chat_template to one whose generation prompt begins the assistant's turn")
        })?;
        check_thinking(answer, completion)?;
        self.cut(&whole, prompt.len())
    }

    /// Tokenizes a whole text and cuts it at a byte. A token across the cut comes after it.
    fn cut(&self, whole: &str, at: usize) -> Result<Cut> {
        let tokens = self.tokenizer.encode_with_bytes(whole)?;
        let before = tokens.iter().take_while(|(_, bytes)| bytes.end.max(bytes.start + 1) <= at).count();
        let ids = |tokens: &[(u32, std::ops::Range<usize>)]| tokens.iter().map(|(id, _)| *id).collect();
        Ok(Cut { before: ids(&tokens[..before]), after: ids(&tokens[before..]) })
    }

    /// Returns the messages for the template, or the text to use unchanged.
    pub(crate) fn conversation<'a>(&self, prompt: &'a Prompt) -> std::result::Result<Vec<Message>, &'a str> {
        let mut messages = match prompt {
            Prompt::Text(text) if !self.strings.wraps(text) && self.system_prompt.is_none() => {
                return Err(text);
            }
            Prompt::Text(text) => vec![Message::new("user", text.clone())],
            Prompt::Messages(messages) => messages.clone(),
        };
        if let Some(system) = self.system_prompt
            && messages.first().is_none_or(|m| m.role != "system")
        {
            messages.insert(0, Message::new("system", system));
        }
        Ok(messages)
    }

    pub(crate) fn required(&self) -> Result<&ChatTemplate> {
        self.template.ok_or_else(|| {
            Error::new(
                "chat-template-missing",
                "the prompts are conversations, the model has no chat template",
            )
            .hint("set data.chat_template, or write prompts as strings")
        })
    }
}
