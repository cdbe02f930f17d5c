//! Chat templates: Jinja as Hugging Face runs it, in a sandbox with a budget of steps.
//! Templates come with models and are not trusted: they see the messages and, of this machine, only the date.

use crate::strftime::{now_seconds, strftime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use plimsoll_base::{Error, Result};
use plimsoll_files::TokenizerFiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const FUEL_STEPS: u64 = 20_000_000;
const NAME: &str = "chat_template";
/// Special tokens that templates may name.
const SPECIAL: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, ...
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.to_string(), content: content.into() }
    }
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Compiles a template; `special` are tokens by the names that templates use, such as `("eos_token", "<|im_end|>")`.
    ///
    /// Errors: `chat-template-invalid`.
    pub fn new(template: &str, special: &[(&str, &str)]) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().expect("the delimiters are the default ones"));
        environment.set_fuel(Some(FUEL_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        let now = now_seconds();
        environment.add_function("strftime_now", move |format: String| strftime(&format, now));
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, as_minijinja(template)).map_err(|e| invalid(&e))?;
        let special = special.iter().map(|(name, token)| (name.to_string(), token.to_string())).collect();
        Ok(ChatTemplate { environment, special })
    }

    /// Compiles the template of a model, if it has one.
    pub fn from_files(files: &TokenizerFiles) -> Result<Option<ChatTemplate>> {
        let Some(template) = &files.chat_template else {
            return Ok(None);
        };
        let tokens: Vec<(&str, String)> =
            SPECIAL.into_iter().filter_map(|name| Some((name, special_token(files, name)?))).collect();
        let tokens: Vec<(&str, &str)> = tokens.iter().map(|(name, token)| (*name, token.as_str())).collect();
        ChatTemplate::new(template, &tokens).map(Some)
    }

    /// Renders a conversation. `add_generation_prompt` appends the opening of the assistant's turn.
    ///
    /// Errors: `chat-template-invalid`, also where the template refuses the conversation.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|e| invalid(&e))?;
        // `tools` and `documents` stay undefined: templates ask for them by `is defined` or by truth.
        let messages = Value::from(Serde(messages));
        let context = context! { messages, add_generation_prompt, ..Value::from(Serde(&self.special)) };
        template.render(context).map_err(|e| invalid(&e))
    }
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

/// Applies two rules of Jinja that minijinja lacks: line ends are `\n`, and `{% generation %}` marks text without changing
/// it.
fn as_minijinja(template: &str) -> String {
    let mut text = template.replace("\r\n", "\n").replace('\r', "\n");
    for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            // The white-space marks stay, so the text around the tag is trimmed as before.
            let tagged = format!("{open} {tag} {close}");
            text = text.replace(&tagged, &format!("{open} {plain} {close}"));
        }
    }
    text
}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// Implements Python's `json.dumps(value, ensure_ascii=False)`, which is `tojson` in chat templates.
fn to_json(value: Value, kwargs: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let bad = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut value = serde_json::to_value(&value).map_err(bad)?;
    if sort_keys == Some(true) {
        value.sort_all_objects();
    }
    let mut out = Vec::new();
    match indent {
        Some(n) => {
            let spaces = " ".repeat(n.min(64));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).map_err(bad)?;
        }
        None => {
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).map_err(bad)?
        }
    }
    let text = String::from_utf8(out).expect("JSON is UTF-8");
    Ok(if ensure_ascii == Some(true) { escape_non_ascii(&text) } else { text })
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// Writes `, ` and `: ` as Python does.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}

fn invalid(err: &minijinja::Error) -> Error {
    let place = err.line().map_or(String::new(), |line| format!(" in line {line}"));
    let detail = err.detail().map_or_else(|| err.kind().to_string(), str::to_string);
    Error::new("chat-template-invalid", format!("chat template{place}: {detail}"))
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

    #[test]
    fn bad_templates_and_refusals_are_named() {
        for (template, words) in [
            ("{% for m in %}", "line 1"),
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ messages.nothing.there }}", "chat template"),
            ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", "fuel"),
            ("{% include 'x' %}", "chat template"),
        ] {
            let error = render(template, &[]).unwrap_err();
            assert_eq!(error.slug, "chat-template-invalid", "{template}");
            assert!(error.message.contains(words), "{template}: {}", error.message);
        }
    }
}
