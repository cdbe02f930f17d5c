//! Writes what a teacher reads in place of the student's prompt: a text of the run file with columns of the row in it,
//! such as the answer, which the student is to find by itself.

use plimsoll_base::{Error, Result};
use plimsoll_text::{Prompt, Row};
use serde_json::Value;

/// A text with places in braces: `{prompt}`, and the names of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct TeacherPrompt(pub String);

impl TeacherPrompt {
    /// Returns the prompt of a row for the teacher: of a conversation the last message is replaced.
    ///
    /// Errors: `data-column-missing`.
    pub fn of(&self, row: &Row) -> Result<Prompt> {
        Ok(match &row.prompt {
            Prompt::Text(text) => Prompt::Text(self.filled(text, row)?),
            Prompt::Messages(messages) => {
                let mut messages = messages.clone();
                if let Some(last) = messages.last_mut() {
                    last.content = self.filled(&last.content, row)?;
                }
                Prompt::Messages(messages)
            }
        })
    }

    /// Fills the places in one pass: braces in what is filled in stay as they are.
    fn filled(&self, prompt: &str, row: &Row) -> Result<String> {
        let mut parts = self.0.split('{');
        let mut text = parts.next().unwrap_or_default().to_string();
        for part in parts {
            match part.split_once('}').filter(|(name, _)| is_name(name)) {
                Some(("prompt", rest)) => text.extend([prompt, rest]),
                Some((name, rest)) => {
                    text += &column(name, row)?;
                    text += rest;
                }
                None => text.extend(["{", part]),
            }
        }
        Ok(text)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

fn column(name: &str, row: &Row) -> Result<String> {
    match plimsoll_reward::column(&row.columns, name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value) => Ok(value.to_string()),
        None => {
            let there: Vec<&str> = row.columns.keys().map(String::as_str).take(20).collect();
            let message = format!("distill.prompt names `{{{name}}}`, and a row has no such column");
            Err(Error::new("data-column-missing", message)
                .fact(format!("columns there: prompt, {}", there.join(", ")))
                .hint("write {prompt} or the name of a column in braces"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(template: &str, prompt: &str) -> Result<Prompt> {
        let columns = json!({ "answer": "4 {prompt}", "deep": { "n": 7 } });
        let columns = columns.as_object().expect("an object").clone();
        TeacherPrompt(template.into()).of(&Row { prompt: Prompt::Text(prompt.into()), columns })
    }

    #[test]
    fn places_are_filled_in_one_pass() {
        for (template, expect) in [
            ("{prompt}", "2+2="),
            ("The answer is {answer}. {prompt}", "The answer is 4 {prompt}. 2+2="),
            ("{deep.n}{prompt}{", "72+2={"),
            ("f(x) = { x } and {}", "f(x) = { x } and {}"),
        ] {
            let found = of(template, "2+2=").expect(template);
            assert_eq!(found, Prompt::Text(expect.into()), "{template}");
        }
        let error = of("{hint}", "2+2=").expect_err("no such column");
        assert!(error.slug == "data-column-missing" && error.to_string().contains("answer, deep"), "{error}");
    }
}
