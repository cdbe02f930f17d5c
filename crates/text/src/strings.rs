//! Prompts that are plain strings: text as it is, or one user message of the chat template. All jobs share the rule.

use crate::{ChatTemplate, Message};

/// Shortest mark; a shorter one, such as `<s>`, may be part of ordinary text.
const MARK_BYTES_MIN: usize = 6;
const MARK_BYTES_MAX: usize = 40;
/// Placeholder for a message's words while a template is examined.
const WORDS: &str = "\u{1}words\u{1}";

/// The treatment of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Strings {
    /// Used as they are.
    #[default]
    Raw,
    /// One user message each, unless it already contains one of these marks of the template.
    Chat { marks: Vec<String> },
}

impl Strings {
    /// Returns the rule for a model with this template, if it has one.
    pub fn of(template: Option<&ChatTemplate>) -> Strings {
        let Some(template) = template else { return Strings::Raw };
        // A template that rejects a lone message reports its reason when a prompt needs it.
        let rendered = template.render(&[Message::new("user", WORDS)], true).unwrap_or_default();
        Strings::Chat { marks: marks_in(&rendered) }
    }

    /// Returns true if `text` becomes a user message.
    pub fn wraps(&self, text: &str) -> bool {
        match self {
            Strings::Raw => false,
            Strings::Chat { marks } => !marks.iter().any(|mark| text.contains(mark.as_str())),
        }
    }
}

/// Finds marks that only a template writes: `<|im_start|>`, `<start_of_turn>`, `[INST]`.
fn marks_in(rendered: &str) -> Vec<String> {
    let mut marks: Vec<String> = Vec::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (start, _) in rendered.match_indices(open) {
            let Some(length) = rendered[start..].find(close) else { continue };
            let mark = &rendered[start..=start + length];
            let is_mark = (MARK_BYTES_MIN..=MARK_BYTES_MAX).contains(&mark.len())
                && !mark.contains(char::is_whitespace)
                && !mark[1..].contains(open);
            if is_mark && !marks.iter().any(|seen| seen == mark) {
                marks.push(mark.to_string());
            }
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(template: &str) -> Strings {
        Strings::of(Some(&ChatTemplate::new(template, &[("bos_token", "<s>")]).unwrap()))
    }

    #[test]
    fn a_text_with_the_templates_own_marks_stays_as_it_is() {
        let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
        let llama = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}";
        for (template, text, wraps) in [
            (chatml, "What is 2+2?", true),
            (chatml, "a <b> and [c] and <s>struck</s>", true),
            (chatml, "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n", false),
            (llama, "[INST] What is 2+2? [/INST]", false),
            (llama, "<s>What is 2+2?", true),
            // A template of words alone has no marks.
            ("User: {{ messages[0].content }}\nAssistant:", "User: 2+2?\nAssistant:", true),
            // One that refuses a lone message has none either.
            ("{{ raise_exception('no') }}", "2+2?", true),
        ] {
            assert_eq!(rule(template).wraps(text), wraps, "{template}: {text}");
        }
        assert!(!Strings::of(None).wraps("2+2?"));
    }
}
