//! Chat templates: Hugging Face's Jinja in a metered interpreter. A template comes with a model and is not trusted.

use crate::Message;
use crate::calls_form::{CallForm, Form};
use crate::harmony_turns::{after_turn, arranged, check_role, moment};
use crate::jinja::{Context, Messages, SOURCE_BYTES_MAX, Template};
use crate::thinking::ThinkingMarks;
use crate::turns::{written_after, written_until};
use plimsoll_base::{Error, Result, read_small_text, shown};
use plimsoll_files::TokenizerFiles;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Special tokens that templates may name.
const SPECIAL: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// A conversation with all the input that a template may use, as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'c> {
    /// Objects with `role`, `content` and other fields of a role, such as `tool_calls`.
    pub messages: &'c [Value],
    /// `tools`, and more variables of the template.
    pub variables: &'c [(&'c str, &'c Value)],
    pub add_generation_prompt: bool,
}

#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    source: String,
    form: Form,
    /// Marks around thinking; none if it teaches none.
    thinking: Option<&'static ThinkingMarks>,
    special: Vec<(String, String)>,
    /// Default variables of every conversation.
    arguments: BTreeMap<String, Value>,
}

impl ChatTemplate {
    /// Parses a template; `special` maps names in templates to tokens, such as `("eos_token", "<|im_end|>")`.
    ///
    /// Errors: `chat-template-invalid`.
    pub fn new(source: &str, special: &[(&str, &str)]) -> Result<ChatTemplate> {
        let template = Template::parse(source).map_err(|what| invalid(&what))?;
        let special = special.iter().map(|(name, token)| (name.to_string(), token.to_string())).collect();
        let form = Form::of_source(source);
        let thinking = ThinkingMarks::of_source(source).filter(|_| form != Form::Harmony);
        let source = source.to_string();
        Ok(ChatTemplate { template, source, form, thinking, special, arguments: BTreeMap::new() })
    }

    /// Returns how the model writes calls, if a response can be held to it.
    pub fn call_form(&self) -> CallForm {
        self.form.calls(&self.source)
    }

    /// Sets default variables for every conversation.
    pub fn with_arguments(self, arguments: &BTreeMap<String, Value>) -> ChatTemplate {
        ChatTemplate { arguments: arguments.clone(), ..self }
    }

    /// Reads `data.chat_template`: a template, or the path of a file that contains one.
    ///
    /// Errors: `chat-template-invalid`.
    pub fn from_setting(setting: &str) -> Result<ChatTemplate> {
        ChatTemplate::new(&template_text(setting)?, &[])
    }

    /// Names the special tokens of a model in it.
    pub fn with_tokens_of(self, files: &TokenizerFiles) -> ChatTemplate {
        let tokens =
            SPECIAL.into_iter().filter_map(|name| Some((name.to_string(), special_token(files, name)?)));
        ChatTemplate { special: tokens.collect(), ..self }
    }

    /// Parses the template of a model, if it has one.
    pub fn from_files(files: &TokenizerFiles) -> Result<Option<ChatTemplate>> {
        let template =
            files.chat_template.as_ref().map(|source| ChatTemplate::new(source, &[])).transpose()?;
        Ok(template.map(|template| template.with_tokens_of(files)))
    }

    /// Renders a conversation. `add_generation_prompt` appends the opening of the assistant's turn.
    ///
    /// Errors: `chat-template-invalid`, including a template that rejects the conversation.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_row(messages, &Map::new(), add_generation_prompt)
    }

    /// Renders a conversation with variables of its own, which come before the template's defaults.
    ///
    /// Errors: those of `render`.
    pub fn render_row(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let render = |context: &Context<'_>| self.template.render(context);
        self.in_context_of_row(messages, variables, add_generation_prompt, render)
    }

    /// Renders a conversation up to the end of its last message's words: a response goes on with them. The space at
    /// their end stays if the template keeps it, as in transformers' `continue_final_message`.
    ///
    /// Errors: those of `render`; `chat-template-invalid` where the template leaves the message out.
    pub fn render_continued(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<String> {
        let is_in_messages = |mark: &str| messages.iter().any(|message| message.content.contains(mark));
        let render = |mark: &str| {
            let mut messages = messages.to_vec();
            if let Some(last) = messages.last_mut() {
                last.content.push_str(mark);
            }
            self.render_row(&messages, variables, false)
        };
        written_until(is_in_messages, render)
    }

    /// Renders a conversation of any kind of message, with tools and variables.
    ///
    /// Errors: those of `render`.
    pub fn render_json(&self, conversation: &Conversation<'_>) -> Result<String> {
        let Conversation { messages, variables, add_generation_prompt } = *conversation;
        self.rendered(Messages::Json(messages), variables, add_generation_prompt)
    }

    /// Returns true if the template marks the assistant's text: `{% generation %}...{% endgeneration %}`.
    pub(crate) fn has_marks(&self) -> bool {
        self.template.has_marks
    }

    /// Renders a conversation without a generation prompt. Returns its text and the ranges marked as the assistant's.
    ///
    /// Errors: those of `render`; a mark whose place in the text is unknown.
    pub(crate) fn render_marked(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
    ) -> Result<(String, Vec<Range<usize>>)> {
        let render = |context: &Context<'_>| self.template.render_marked(context);
        let (text, marks) = self.in_context_of_row(messages, variables, false, render)?;
        let lost = || {
            invalid(
                ": `{% generation %}` is in a macro, a filter or a `set`, so that its place in the text is not known",
            )
        };
        Ok((text, marks.ok_or_else(lost)?))
    }

    /// Returns what the template writes after a turn of the assistant that ends a conversation.
    ///
    /// Errors: those of `render`; `chat-template-invalid` where the template leaves the turn out.
    pub fn after_answer(&self) -> Result<String> {
        let render =
            |mark: &str| self.render(&[Message::new("user", "?"), Message::new("assistant", mark)], false);
        written_after(|_| false, render, None)
    }

    /// Returns true if the template's source contains `words`, which shows the form of tool calls that it teaches.
    pub fn mentions(&self, words: &str) -> bool {
        self.source.contains(words)
    }

    /// Returns the form of calls and thinking that it teaches.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Returns the marks around thinking, if it teaches such.
    pub(crate) fn thinking(&self) -> Option<&'static ThinkingMarks> {
        self.thinking
    }

    /// Returns true if a prompt that ends so leaves the model in its thinking: the template wrote the opening mark.
    pub fn ends_in_thinking(&self, prompt_end: &str) -> bool {
        self.thinking.is_some_and(|marks| marks.is_open(prompt_end))
    }

    /// Returns the marks that stay in the text of a response, so that its calls and thinking are found in it.
    pub fn kept_marks(&self) -> Vec<&'static str> {
        self.form.kept_marks()
    }

    /// Returns the tokens that end a response in the format that the template writes, besides the model's own.
    pub fn ends(&self) -> &'static [&'static str] {
        self.form.ends()
    }

    /// Returns what follows a sampled turn where the template would write the turn in another way: the end of its
    /// message if it has none, `said`, and the opening of the next turn. `None` if the conversation is rendered.
    ///
    /// `calls`: the functions that the turn calls; `last`: the text of its last token.
    /// Errors: those of `render`; `chat-template-invalid` where the template leaves the turn out.
    pub fn after_sampled_turn(
        &self,
        calls: &[String],
        said: &[Value],
        last: Option<&str>,
    ) -> Option<Result<String>> {
        let render = |messages: &[Value]| {
            let conversation = Conversation { messages, variables: &[], add_generation_prompt: true };
            self.render_json(&conversation)
        };
        (self.form == Form::Harmony).then(|| after_turn(calls, said, last, render))
    }

    fn rendered(
        &self,
        messages: Messages<'_>,
        variables: &[(&str, &Value)],
        add_generation_prompt: bool,
    ) -> Result<String> {
        self.in_context(messages, variables, add_generation_prompt, |context| self.template.render(context))
    }

    fn in_context_of_row<T>(
        &self,
        messages: &[Message],
        variables: &Map<String, Value>,
        add_generation_prompt: bool,
        render: impl FnOnce(&Context<'_>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let variables: Vec<(&str, &Value)> =
            variables.iter().map(|(name, value)| (name.as_str(), value)).collect();
        if messages.iter().all(|message| message.fields.is_empty()) {
            let messages: Vec<(&str, &str)> = messages.iter().map(|m| (&*m.role, &*m.content)).collect();
            return self.in_context(Messages::Plain(&messages), &variables, add_generation_prompt, render);
        }
        let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
        self.in_context(Messages::Json(&messages), &variables, add_generation_prompt, render)
    }

    fn in_context<T>(
        &self,
        messages: Messages<'_>,
        variables: &[(&str, &Value)],
        add_generation_prompt: bool,
        render: impl FnOnce(&Context<'_>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let special: Vec<(&str, &str)> =
            self.special.iter().map(|(name, token)| (&**name, &**token)).collect();
        let is_set = |name: &str| variables.iter().any(|(known, _)| *known == name);
        let own =
            self.arguments.iter().filter(|(name, _)| !is_set(name)).map(|(name, value)| (&**name, value));
        let variables: Vec<(&str, &Value)> = own.chain(variables.iter().copied()).collect();
        let arranged = match messages {
            Messages::Json(messages) if self.form == Form::Harmony => {
                Some(arranged(messages).map_err(|what| invalid(&what))?)
            }
            Messages::Plain(messages) if self.form == Form::Harmony => {
                let mut roles = messages.iter().enumerate();
                roles.try_for_each(|(i, (role, _))| check_role(i, role)).map_err(|what| invalid(&what))?;
                None
            }
            _ => None,
        };
        let messages = arranged.as_deref().map_or(messages, Messages::Json);
        let now = moment(self.form, &variables).map_err(|what| invalid(&what))?;
        let context =
            Context { messages, variables: &variables, add_generation_prompt, now, special: &special };
        render(&context).map_err(|what| invalid(&what))
    }
}

/// Returns the text of the token with which a tokenizer ends a text, if its files name one.
pub fn end_token(files: &TokenizerFiles) -> Option<String> {
    special_token(files, "eos_token")
}

/// Returns the text of a special token, from `tokenizer_config.json` or the GGUF tables.
pub(crate) fn special_token(files: &TokenizerFiles, name: &str) -> Option<String> {
    if let Some(value) = files.tokenizer_config_json.as_ref().and_then(|c| c.get(name)) {
        let text = value.as_str().or_else(|| value.get("content").and_then(|c| c.as_str()));
        return text.map(str::to_string);
    }
    let tables = files.gguf.as_ref()?;
    let id = match name {
        "bos_token" => tables.bos,
        "eos_token" => tables.eos,
        "pad_token" => tables.pad,
        _ => tables.unknown,
    }?;
    tables.tokens.get(id as usize).cloned()
}

/// Returns the text for `data.chat_template`. A setting without a tag is a path: it would make all prompts the same.
///
/// Errors: `chat-template-invalid`.
pub fn template_text(setting: &str) -> Result<Cow<'_, str>> {
    if setting.contains("{{") || setting.contains("{%") {
        return Ok(Cow::Borrowed(setting));
    }
    let path = Path::new(setting);
    let refused = |what: String| {
        Error::new("chat-template-invalid", format!("data.chat_template = {:?}: {what}", shown(setting)))
            .hint("write a Jinja template, the path of a file with one, or \"none\"")
    };
    let file = std::fs::metadata(path)
        .map_err(|err| refused(format!("no tag of a template, and no file: {err}")))?;
    if !file.is_file() || file.len() > SOURCE_BYTES_MAX as u64 {
        let what = format!("not a regular file of at most {SOURCE_BYTES_MAX} bytes: it has {}", file.len());
        return Err(refused(what));
    }
    let text =
        read_small_text(Path::new(path), SOURCE_BYTES_MAX as u64).map_err(|err| refused(err.to_string()))?;
    if text.contains("{{") || text.contains("{%") {
        Ok(Cow::Owned(text))
    } else {
        Err(refused("the file has no tag of a template, `{{ ... }}` or `{% ... %}`".into()))
    }
}

fn invalid(what: &str) -> Error {
    Error::new("chat-template-invalid", format!("chat template{what}"))
        .hint("set data.chat_template to a template that fits the conversation")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, messages: &[(&str, &str)]) -> Result<String> {
        let messages: Vec<Message> = messages.iter().map(|(r, c)| Message::new(r, *c)).collect();
        ChatTemplate::new(template, &[("eos_token", "</s>")])?.render(&messages, true)
    }

    #[test]
    fn templates_render_as_jinja_does() {
        let one = [("user", "Größe <&> \"q\"")];
        for (template, expect) in [
            (
                "{% for m in messages %}\n  {{ m.role }}: {{ m['content'] }}\n{% endfor %}\n",
                "  user: Größe <&> \"q\"\n",
            ),
            ("{{ messages | tojson }}", r#"[{"role": "user", "content": "Größe <&> \"q\""}]"#),
            ("{{ messages[0].content | tojson(ensure_ascii=true) }}", r#""Gr\u00f6\u00dfe <&> \"q\"""#),
            ("{{ [1, {}] | tojson(indent=2) }}", "[\n  1,\n  {}\n]"),
            ("a\r\n{% if true %}\r\nb{% endif %}\r\n", "a\nb"),
            ("x{%- generation %} y {% endgeneration -%} z", "x y z"),
            ("{{ messages[0].content.split(' ')[0].upper() }}{{ eos_token }}{{ bos_token }}", "GRÖSSE</s>"),
            ("{% if tools is defined and tools %}T{% endif %}{% if not tools %}N{% endif %}", "N"),
            ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "1",
            ),
        ] {
            assert_eq!(render(template, &one).unwrap(), expect, "{template}");
        }
    }

    /// Templates of Qwen and Llama ask for tools, calls and answers in these ways.
    #[test]
    fn tools_and_calls_reach_the_template_in_their_order() {
        let template = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}\
            {% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{% for c in m.tool_calls %}\
            {{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% else %}{{ m.content }}\
            {% endif %};{% endfor %}{% if thinking is defined and not thinking %}quiet{% endif %}{{ eos_token }}";
        let chat = ChatTemplate::new(template, &[("eos_token", "</s>")]).unwrap();
        assert!(chat.mentions("tool_calls") && !chat.mentions("<tool_call>"));
        let tools =
            serde_json::json!([{"type": "function", "function": {"name": "z", "b": 1, "a": [1.5, null]}}]);
        let call = serde_json::json!({"function": {"name": "z", "arguments": {"q": "x", "a": -3}}});
        let messages = [
            serde_json::json!({"role": "user", "content": "hi"}),
            serde_json::json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            serde_json::json!({"role": "tool", "content": "4", "tool_call_id": "c1"}),
        ];
        let (off, eos) = (Value::Bool(false), Value::from("no"));
        let variables = [("tools", &tools), ("thinking", &off), ("eos_token", &eos)];
        let conversation =
            Conversation { messages: &messages, variables: &variables, add_generation_prompt: true };
        assert_eq!(
            chat.render_json(&conversation).unwrap(),
            "{\"type\": \"function\", \"function\": {\"name\": \"z\", \"b\": 1, \"a\": [1.5, null]}}\n\
             user:hi;assistant:z({\"q\": \"x\", \"a\": -3});tool:4;quiet</s>"
        );
        let mut deep = Value::from(1);
        for _ in 0..100 {
            deep = serde_json::json!([deep]);
        }
        let refused = Conversation { variables: &[("tools", &deep)], ..conversation };
        assert!(chat.render_json(&refused).unwrap_err().message.contains("nest deeper than 64"));
    }

    /// They were floats: a call of an earlier turn came back with other digits.
    #[test]
    fn r_numbers_beyond_64_bits_lost_digits() {
        let template = "{% set a = messages[0].a %}{{ a }} {{ a | tojson }} {{ a is integer }} {{ a | int }} {{ a > 1 }} {{ a | string | length }}";
        let chat = ChatTemplate::new(template, &[]).unwrap();
        for (number, expect) in [
            (
                "12345678901234567890",
                "12345678901234567890 12345678901234567890 True 12345678901234567890 True 20",
            ),
            (
                "-9223372036854775809",
                "-9223372036854775809 -9223372036854775809 True -9223372036854775809 False 20",
            ),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890 123456789012345678901234567890 True 123456789012345678901234567890 True 30",
            ),
            (
                "0.12345678901234567890123",
                "0.12345678901234567890123 0.12345678901234567890123 False 0 False 25",
            ),
            (
                "9223372036854775807",
                "9223372036854775807 9223372036854775807 True 9223372036854775807 True 19",
            ),
            ("1.5", "1.5 1.5 False 1 True 3"),
        ] {
            let message = plimsoll_base::json_marked(&format!("{{\"a\": {number}}}")).unwrap();
            let conversation =
                Conversation { messages: &[message], variables: &[], add_generation_prompt: false };
            assert_eq!(chat.render_json(&conversation).unwrap(), expect, "{number}");
        }
    }

    #[test]
    fn arguments_reach_every_conversation_that_sets_none_of_its_own() {
        let arguments = [("enable_thinking".to_string(), Value::Bool(false))].into();
        let source = "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %} now{% endif %}";
        let chat = ChatTemplate::new(source, &[]).unwrap();
        let user = [Message::new("user", "hi")];
        assert_eq!(chat.render(&user, true).unwrap(), "hi");
        let chat = chat.with_arguments(&arguments);
        assert_eq!(chat.render(&user, true).unwrap(), "hi now");
        let (messages, on) = ([serde_json::json!({ "role": "user", "content": "hi" })], Value::Bool(true));
        let variables = [("enable_thinking", &on)];
        let own = Conversation { messages: &messages, variables: &variables, add_generation_prompt: true };
        assert_eq!(chat.render_json(&own).unwrap(), "hi");
    }

    /// A path was taken for a template of its own letters: every prompt was the path.
    #[test]
    fn r_a_path_was_a_template() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        std::fs::write(path("t.jinja"), "{{ messages[0].content }}\n").unwrap();
        std::fs::write(path("plain"), "no template").unwrap();
        std::fs::write(path("bytes"), b"{{ \xff }}").unwrap();
        std::fs::write(path("long"), " ".repeat(300_000)).unwrap();
        let user = [Message::new("user", "hi")];
        for setting in [path("t.jinja"), "{{ messages[0].content }}".into()] {
            assert_eq!(ChatTemplate::from_setting(&setting).unwrap().render(&user, true).unwrap(), "hi");
        }
        for (setting, words) in [
            (path("absent.jinja"), "no tag of a template, and no file: No such file"),
            (path("plain"), "the file has no tag"),
            (path("bytes"), "UTF-8"),
            (path("long"), "it has 300000"),
            (dir.path().to_str().unwrap().to_string(), "not a regular file"),
            (String::new(), "no file"),
            ("x".repeat(100_000), "no file"),
        ] {
            let error = ChatTemplate::from_setting(&setting).unwrap_err();
            assert_eq!(error.slug, "chat-template-invalid");
            assert!(error.message.contains(words) && error.message.len() < 500, "{error}");
        }
    }

    #[test]
    fn bad_templates_and_refusals_are_named() {
        for (template, words) in [
            ("{% for m in %}", "line 1"),
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ messages.nothing.there }}", "chat template"),
            ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", " steps"),
            ("{% include 'x' %}", "chat template"),
        ] {
            let error = render(template, &[]).unwrap_err();
            assert_eq!(error.slug, "chat-template-invalid", "{template}");
            assert!(error.message.contains(words), "{template}: {}", error.message);
        }
    }
}
