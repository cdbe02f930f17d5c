//! Chat templates: Jinja as Hugging Face runs it, by a metered interpreter. A template comes with a model and is not trusted.

use crate::jinja::{Context, Template};
use plimsoll_base::{Error, Result};
use plimsoll_files::TokenizerFiles;
use serde::{Deserialize, Serialize};

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
    template: Template,
    special: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Parses a template; `special` are tokens by the names that templates use, such as `("eos_token", "<|im_end|>")`.
    ///
    /// Errors: `chat-template-invalid`.
    pub fn new(template: &str, special: &[(&str, &str)]) -> Result<ChatTemplate> {
        let template = Template::parse(template).map_err(|what| invalid(&what))?;
        let special = special.iter().map(|(name, token)| (name.to_string(), token.to_string())).collect();
        Ok(ChatTemplate { template, special })
    }

    /// Parses the template of a model, if it has one.
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
        let messages: Vec<(&str, &str)> = messages.iter().map(|m| (&*m.role, &*m.content)).collect();
        let special: Vec<(&str, &str)> =
            self.special.iter().map(|(name, token)| (&**name, &**token)).collect();
        let context = Context { messages: &messages, add_generation_prompt, special: &special };
        self.template.render(&context).map_err(|what| invalid(&what))
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

    #[test]
    fn bad_templates_and_refusals_are_named() {
        for (template, words) in [
            ("{% for m in %}", "line 1"),
            ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
            ("{{ messages.nothing.there }}", "chat template"),
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
                "more than 20000000 steps",
            ),
            ("{% include 'x' %}", "chat template"),
        ] {
            let error = render(template, &[]).unwrap_err();
            assert_eq!(error.slug, "chat-template-invalid", "{template}");
            assert!(error.message.contains(words), "{template}: {}", error.message);
        }
    }
}
