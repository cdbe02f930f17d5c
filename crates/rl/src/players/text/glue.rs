//! Conversion of messages to tokens: an episode's prompt, and what follows a turn.
//!
//! Sampled tokens are never tokenized again. With a chat template, the tokens after a turn are found by rendering the
//! conversation with a mark in place of the turn's words: what the template writes after the mark is what comes between
//! the turn and the next one, including the environment's messages and the opening of the next turn. A sampled
//! end-of-text token is the template's own end of the turn, and is not written twice.

use plimsoll_base::{Error, Result};
use plimsoll_infer::album::RowImage;
use plimsoll_infer::text::TextModel;
use plimsoll_text::calls::Calls;
use plimsoll_text::calls_xml::Tool;
use plimsoll_text::said::Said;
use plimsoll_text::{ChatTemplate, Conversation, Message, written_after};
use serde_json::{Value, json};
use std::sync::Arc;

/// Last tokens of a turn that are kept: what follows them is encoded as if the whole text were.
const TAIL_TOKENS: usize = 8;

/// How the tokens of a turn end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TurnEnd {
    tail: [u32; TAIL_TOKENS],
    num_tail: usize,
    is_eos: bool,
}

impl TurnEnd {
    /// Keeps the end of a turn; `is_eos`: its last token ended it.
    pub(super) fn of(turn: &[u32], is_eos: bool) -> TurnEnd {
        let last = &turn[turn.len().saturating_sub(TAIL_TOKENS)..];
        let mut tail = [0; TAIL_TOKENS];
        tail[..last.len()].copy_from_slice(last);
        TurnEnd { tail, num_tail: last.len(), is_eos: is_eos && !turn.is_empty() }
    }

    fn tail(&self) -> &[u32] {
        &self.tail[..self.num_tail]
    }

    /// Returns the end-of-text token that ended the turn, if one did.
    fn eos(&self) -> Option<u32> {
        self.tail().last().copied().filter(|_| self.is_eos)
    }
}

/// The tokens that follow a turn.
#[derive(Debug, PartialEq)]
pub(super) struct AfterTurn {
    pub(super) ids: Vec<u32>,
    /// True if the environment's words were truncated.
    pub(super) is_cut: bool,
}

/// Converts an environment's messages to the model's tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glue<'t> {
    pub(super) text: &'t TextModel,
    /// The environment's tools, a list that the template sees; empty where there are none.
    pub(super) tools: &'t [Value],
}

impl Glue<'_> {
    /// Requires a template that writes tools, if there are some.
    ///
    /// Errors: `tools-without-template`.
    pub(super) fn check(&self) -> Result<()> {
        let writes_tools = self.text.template.as_ref().is_some_and(|template| template.mentions("tools"));
        if self.tools.is_empty() || writes_tools {
            return Ok(());
        }
        let names: Vec<String> = Tool::all(self.tools).into_iter().map(|tool| tool.name).collect();
        let names = names.join(", ");
        let why = match self.text.template {
            Some(_) => "the model's chat template does not write tools",
            None => "the model has no chat template",
        };
        Err(Error::usage("tools-without-template", format!("the environment has tools ({names}), and {why}"))
            .hint("take a model that was taught tools, or set data.chat_template to a template that writes them"))
    }

    fn render(&self, template: &ChatTemplate, messages: &[Message]) -> Result<String> {
        if self.tools.is_empty() {
            return template.render(messages, true);
        }
        let tools = Value::from(self.tools);
        let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
        let variables = [("tools", &tools)];
        let conversation =
            Conversation { messages: &messages, variables: &variables, add_generation_prompt: true };
        template.render_json(&conversation)
    }

    /// Returns the text and the tokens of an episode's first messages.
    pub(super) fn prompt(&self, messages: &[Message]) -> Result<(String, Vec<u32>)> {
        let text = self.text;
        let (rendered, ids) = match &text.template {
            Some(template) => {
                let rendered = self.render(template, &conversation(text, messages))?;
                let ids = text.tokenizer.encode(&rendered);
                (rendered, ids)
            }
            None => (plain(messages), text.rows().plain(&plain(messages))),
        };
        let ids = ids.map_err(of_environment)?;
        Ok((rendered, ids))
    }

    /// Returns what follows a turn where the template would write the turn in another way.
    fn after_sampled_turn(&self, response: &str, said: &[Message], end: &TurnEnd) -> Option<Result<String>> {
        let name = |call: &Value| call["name"].as_str().unwrap_or_default().to_string();
        let calls: Vec<String> = self.words_and_calls(response).1.iter().map(name).collect();
        let said: Vec<Value> = said.iter().map(Message::to_json).collect();
        let last = end.tail().last().and_then(|last| self.text.tokenizer.token_text(*last));
        self.text.template.as_ref()?.after_sampled_turn(&calls, &said, last.as_deref())
    }

    /// Splits a turn into its text and its tool calls, objects with `name` and `arguments`.
    pub(super) fn words_and_calls(&self, response: &str) -> (String, Vec<Value>) {
        if !Calls::are_in(self.text.template.as_deref(), !self.tools.is_empty()) {
            return (response.to_string(), Vec::new());
        }
        let (mut words, mut calls) = (String::new(), Vec::new());
        for said in Calls::in_response(self.text.template.as_deref(), Tool::all(self.tools), response) {
            match said {
                Said::Text(text) => words.push_str(&text),
                Said::Thought(_) => {}
                Said::Call { name, arguments } => {
                    let arguments: Value =
                        serde_json::from_str(&arguments).expect("the arguments of a call are JSON");
                    calls.push(json!({ "name": name, "arguments": arguments }));
                }
            }
        }
        (words, calls)
    }
}

/// An environment's answer: its messages, and the images of which they have the placeholders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'s> {
    pub(super) messages: &'s [Message],
    pub(super) images: &'s [Arc<RowImage>],
}

/// Returns the tokens after a turn: what the environment `said`, in at most `most` tokens.
///
/// `before`: all messages before the turn; `response`: its text.
/// Errors: `text-environment-too-long` if even no words take more than `most`, or all of an answer with images do;
/// `image-count`; those of the template and the tokenizer.
pub(super) fn after_turn(
    glue: Glue<'_>,
    before: &[Message],
    response: &str,
    Answer { messages: said, images }: Answer<'_>,
    end: &TurnEnd,
    most: usize,
) -> Result<AfterTurn> {
    let encode = |said: &[Message]| -> Result<Vec<u32>> {
        let words = match glue.after_sampled_turn(response, said, end) {
            Some(words) => words?,
            None => words_after(glue, before, said, end.eos())?,
        };
        let ids = glue.text.tokenizer.encode_after(end.tail(), &words).map_err(of_environment)?;
        match &glue.text.album {
            Some(album) if !images.is_empty() => {
                album.place(&ids, images).map(|placed| placed.ids).map_err(of_environment)
            }
            _ => Ok(ids),
        }
    };
    let ids = encode(said)?;
    if ids.len() <= most {
        return Ok(AfterTurn { ids, is_cut: false });
    }
    // What is cut may begin or end in an image.
    if !images.is_empty() {
        return Err(too_long(ids.len(), most));
    }
    // Finds the longest prefix that fits by bisection. More characters are not always more tokens, so the result is
    // one that was tried.
    let (mut fits, mut low, mut high) = (None, 0, said.iter().map(|m| m.content.chars().count()).sum());
    while low < high {
        let middle = (low + high) / 2;
        let ids = encode(&cut(said, middle))?;
        if ids.len() <= most {
            (low, fits) = (middle + 1, Some(ids));
        } else {
            high = middle;
        }
    }
    match fits.filter(|ids| !ids.is_empty()) {
        Some(ids) => Ok(AfterTurn { ids, is_cut: true }),
        None => Err(too_long(encode(&cut(said, 0))?.len(), most)),
    }
}

/// Formats messages without a template.
fn plain(messages: &[Message]) -> String {
    messages.iter().map(|message| message.content.as_str()).collect()
}

fn conversation(text: &TextModel, messages: &[Message]) -> Vec<Message> {
    let system = text.system_prompt.iter().filter(|_| messages.first().is_none_or(|m| m.role != "system"));
    system.map(|prompt| Message::new("system", prompt.clone())).chain(messages.iter().cloned()).collect()
}

fn words_after(glue: Glue<'_>, before: &[Message], said: &[Message], eos: Option<u32>) -> Result<String> {
    let text = glue.text;
    let Some(template) = &text.template else { return Ok(plain(said)) };
    let is_in_messages = |mark: &str| before.iter().chain(said).any(|message| message.content.contains(mark));
    let render = |mark: &str| {
        let mut messages = conversation(text, before);
        messages.push(Message::new("assistant", mark));
        messages.extend_from_slice(said);
        glue.render(template, &messages)
    };
    let drawn = eos.and_then(|eos| text.tokenizer.token_text(eos));
    written_after(is_in_messages, render, drawn.as_deref())
}

/// Returns the first `chars` characters of messages; no message is dropped.
fn cut(said: &[Message], mut chars: usize) -> Vec<Message> {
    let mut one = |message: &Message| {
        let content: String = message.content.chars().take(chars).collect();
        chars -= content.chars().count();
        Message { content, ..message.clone() }
    };
    said.iter().map(&mut one).collect()
}

fn too_long(tokens: usize, most: usize) -> Error {
    let message = format!(
        "{tokens} tokens are needed between two turns without any words, environment.turn_tokens_max is {most}"
    );
    Error::new("text-environment-too-long", message)
        .hint(format!("set environment.turn_tokens_max to more than {tokens}"))
}

/// Attributes a text that the tokenizer rejects to the environment.
fn of_environment(error: Error) -> Error {
    error.fact("the environment said it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::TokenizerFiles;
    use plimsoll_text::Tokenizer;

    const EOS: u32 = 257;
    /// ChatML's form, in the tokens of bytes: `<bos>` opens a message, `<eos>` ends it.
    const CHAT: &str = "{% for m in messages %}{{ '<bos>' + m.role + '\\n' + m.content + '<eos>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<bos>assistant\\n' }}{% endif %}";

    fn model(template: Option<&str>) -> TextModel {
        let files = TokenizerFiles { bytes: true, ..TokenizerFiles::default() };
        TextModel {
            tokenizer: Tokenizer::from_files(&files, 259).unwrap().into(),
            template: template.map(|source| ChatTemplate::new(source, &[]).unwrap().into()),
            system_prompt: template.map(|_| "Be brief.".to_string()),
            strings: Default::default(),
            eos: Some(EOS),
            ends: Vec::new(),
            rules: Default::default(),
            teacher_prompt: None,
            teacher_text: None,
            album: None,
            form: None,
        }
    }

    fn words_of(text: &TextModel) -> Glue<'_> {
        Glue { text, tools: &[] }
    }

    fn text_of(messages: &[Message]) -> Answer<'_> {
        Answer { messages, images: &[] }
    }

    fn ended(token: u32) -> TurnEnd {
        TurnEnd::of(&[token], true)
    }

    fn user(content: &str) -> Message {
        Message::new("user", content)
    }

    /// Plays an episode with given responses and answers; returns all its tokens.
    fn play(text: &TextModel, first: &[Message], turns: &[(&str, Option<u32>, &[Message])]) -> Vec<u32> {
        let (_, mut ids) = words_of(text).prompt(first).unwrap();
        let mut messages = first.to_vec();
        for (response, eos, said) in turns {
            let mut turn = text.tokenizer.encode(response).unwrap();
            turn.extend(*eos);
            let end = TurnEnd::of(&turn, eos.is_some());
            ids.extend(turn);
            ids.extend(
                after_turn(words_of(text), &messages, response, text_of(said), &end, 1000).unwrap().ids,
            );
            messages.push(Message::new("assistant", *response));
            messages.extend_from_slice(said);
        }
        ids
    }

    #[test]
    fn the_tokens_of_an_episode_read_as_the_template_writes_it() {
        let text = model(Some(CHAT));
        let first = [user("Guess.")];
        let higher = [user("Higher, turn-0-is-here.")];
        let tool = [Message::new("tool", "12"), user("Go on.")];
        // The second turn was cut by its length: the template's end of the turn is appended.
        let turns: [(&str, Option<u32>, &[Message]); 3] =
            [("50", Some(EOS), &higher), ("turn-1-is-here", None, &tool), ("", Some(EOS), &higher)];
        let ids = play(&text, &first, &turns);
        let mut all = vec![Message::new("system", "Be brief."), first[0].clone()];
        for (response, _, said) in turns {
            all.push(Message::new("assistant", response));
            all.extend_from_slice(said);
        }
        let rendered = text.template.as_ref().unwrap().render(&all, true).unwrap();
        assert_eq!(text.tokenizer.decode(&ids, false), rendered);
    }

    #[test]
    fn another_end_of_text_than_the_templates_own_stays_next_to_it() {
        let text = model(Some(CHAT));
        let pad = 258;
        let after =
            after_turn(words_of(&text), &[user("a")], "", text_of(&[user("b")]), &ended(pad), 100).unwrap();
        let expect = "<eos>\n<bos>user\nb<eos>\n<bos>assistant\n";
        assert_eq!(text.tokenizer.decode(&after.ids, false), expect);
    }

    #[test]
    fn without_a_template_words_follow_each_other() {
        let text = model(None);
        let ids = play(&text, &[user("1+1=")], &[("3", Some(EOS), &[user(" 1+"), user("1=")])]);
        assert_eq!(text.tokenizer.decode(&ids, false), "1+1=3<eos> 1+1=");
    }

    #[test]
    fn words_beyond_the_limit_are_cut_and_the_template_around_them_is_not() {
        let text = model(Some(CHAT));
        let (before, said) = ([user("a")], [user("abcdefgh"), user("ijk")]);
        let whole = after_turn(words_of(&text), &before, "", text_of(&said), &ended(EOS), 1000).unwrap();
        assert!(!whole.is_cut);
        for gone in 1..=11 {
            let after =
                after_turn(words_of(&text), &before, "", text_of(&said), &ended(EOS), whole.ids.len() - gone)
                    .unwrap();
            assert_eq!((after.is_cut, after.ids.len()), (true, whole.ids.len() - gone));
            let shown = text.tokenizer.decode(&after.ids, false);
            assert!(
                shown.starts_with("\n<bos>user\n") && shown.ends_with("<eos>\n<bos>assistant\n"),
                "{shown}"
            );
        }
        let error =
            after_turn(words_of(&text), &before, "", text_of(&said), &ended(EOS), whole.ids.len() - 12)
                .unwrap_err();
        assert_eq!(error.slug, "text-environment-too-long");
    }

    #[test]
    fn what_cannot_be_tokenized_is_said_to_be_the_environments() {
        let json = include_bytes!("../../../../files/assets/nano/tokenizer.json").to_vec();
        let files = TokenizerFiles { tokenizer_json: Some(json), ..TokenizerFiles::default() };
        let text = TextModel { tokenizer: Tokenizer::from_files(&files, 15).unwrap().into(), ..model(None) };
        let error = after_turn(
            words_of(&text),
            &[user("1+1=")],
            "",
            text_of(&[user("wrong")]),
            &TurnEnd::default(),
            100,
        )
        .unwrap_err();
        assert_eq!(error.slug, "tokenizer-unknown-character");
        assert!(error.facts.iter().any(|fact| fact.contains("environment")), "{error}");
    }

    /// `CHAT` with tools before it, and calls between tags as Qwen's template teaches them.
    const WITH_TOOLS: &str = "{% for t in tools %}{{ t.function.name }}<tool_call> {% endfor %}{% for m in messages %}{{ '<bos>' + m.role + '\n' + m.content + '<eos>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<bos>assistant\n' }}{% endif %}";

    fn tools() -> [Value; 1] {
        [json!({ "type": "function", "function": { "name": "add", "parameters": {} } })]
    }

    #[test]
    fn tools_are_in_the_prompt_once_and_calls_are_read() {
        let (text, tools) = (model(Some(WITH_TOOLS)), tools());
        let glue = Glue { text: &text, tools: &tools };
        glue.check().unwrap();
        let (prompt, _) = glue.prompt(&[user("1+1")]).unwrap();
        assert_eq!(prompt.matches("add<tool_call>").count(), 1, "{prompt}");
        let result = [Message::new("tool", "2")];
        let after = after_turn(glue, &[user("1+1")], "", text_of(&result), &ended(EOS), 1000).unwrap();
        assert_eq!(text.tokenizer.decode(&after.ids, false), "\n<bos>tool\n2<eos>\n<bos>assistant\n");
        let call = "So: <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let (words, calls) = glue.words_and_calls(call);
        assert_eq!((words.as_str(), calls), ("So:", vec![json!({ "name": "add", "arguments": { "a": 1 } })]));
        assert!(glue.words_and_calls("<tool_call>{}</tool_call> 2").1.is_empty());
        assert!(words_of(&text).words_and_calls(call).1.is_empty(), "without tools a call is text");
    }

    /// A turn of gpt-oss stays as it was sampled: its template would write another end and leave its thinking out.
    #[test]
    fn turns_of_gpt_oss_go_on_from_their_own_end() {
        let source = include_str!("../../../../text/tests/harmony/template.jinja");
        let text = TextModel { system_prompt: None, ..model(Some(source)) };
        let tools = [json!({ "type": "function", "function": { "name": "add", "description": "Adds." } })];
        let glue = Glue { text: &text, tools: &tools };
        glue.check().unwrap();
        let call = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add json<|message|>{\"a\": 1}";
        let (words, calls) = glue.words_and_calls(call);
        assert_eq!((words.as_str(), calls), ("", vec![json!({ "name": "add", "arguments": { "a": 1 } })]));
        let before = [user("1+1"), Message::new("assistant", call), Message::new("tool", "2")];
        let result = [Message::new("tool", "2")];
        let after = after_turn(glue, &before, call, text_of(&result), &ended(u32::from(b'}')), 1000).unwrap();
        let expect = "<|call|><|start|>functions.add to=assistant<|channel|>commentary<|message|>\"2\"<|end|><|start|>assistant";
        assert_eq!(text.tokenizer.decode(&after.ids, false), expect);
        let answer = "<|channel|>final<|message|>2";
        let after = after_turn(
            words_of(&text),
            &before,
            answer,
            text_of(&[user("3?")]),
            &ended(u32::from(b'2')),
            1000,
        );
        let expect = "<|end|><|start|>user<|message|>3?<|end|><|start|>assistant";
        assert_eq!(text.tokenizer.decode(&after.unwrap().ids, false), expect);
        assert_eq!(words_of(&text).words_and_calls(answer).0, "2");
    }

    #[test]
    fn tools_need_a_template_that_writes_them() {
        for (template, words) in [(None, "has no chat template"), (Some(CHAT), "does not write tools")] {
            let (text, tools) = (model(template), tools());
            let error = Glue { text: &text, tools: &tools }.check().unwrap_err();
            assert_eq!(error.slug, "tools-without-template");
            assert!(error.message.contains(words) && error.message.contains("(add)"), "{error}");
            words_of(&text).check().unwrap();
        }
    }
}
