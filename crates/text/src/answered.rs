//! Prompts that end with the assistant's words, as rows of supervised data do. A method that samples would put the
//! answer into the prompt, so that they are refused unless the run file says what to do with the last turn.

use crate::Prompt;
use plimsoll_base::{Error, Result};
use std::path::Path;

/// Says what is done with a prompt that ends with the assistant's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnsweredPrompt {
    #[default]
    Refused,
    /// The assistant's last turn is left out.
    WithoutAnswer,
    /// The response goes on with the assistant's last turn.
    Continued,
}

/// The rows of a file as they are read, of which some may have an answer in their prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnsweredRows {
    policy: AnsweredPrompt,
    rows: usize,
    answered: usize,
    /// The first row that is refused, from 0.
    first: Option<usize>,
}

impl AnsweredRows {
    pub fn new(policy: AnsweredPrompt) -> AnsweredRows {
        AnsweredRows { policy, ..AnsweredRows::default() }
    }

    /// Counts a row and makes its prompt one to sample from. Returns false for a row that `finish` refuses.
    pub fn admit(&mut self, prompt: &mut Prompt, index: usize) -> bool {
        self.rows += 1;
        let Prompt::Messages(messages) = &mut *prompt else { return true };
        let is_answer = |role: &str| role == "assistant";
        if !messages.last().is_some_and(|last| is_answer(&last.role)) {
            return true;
        }
        self.answered += 1;
        let is_kept = match self.policy {
            AnsweredPrompt::Refused => false,
            AnsweredPrompt::Continued => true,
            AnsweredPrompt::WithoutAnswer => {
                while messages.last().is_some_and(|last| is_answer(&last.role)) {
                    messages.pop();
                }
                !messages.is_empty()
            }
        };
        if !is_kept {
            self.first.get_or_insert(index);
        }
        is_kept
    }

    /// Refuses the file if a row was: names the first, and counts them. `key`: the run file's key for the policy.
    ///
    /// Errors: `data-prompt-answered`.
    pub fn finish(&self, path: &Path) -> Result<()> {
        let Some(first) = self.first else { return Ok(()) };
        let row = format!("{}: row {}", path.display(), first + 1);
        if self.policy == AnsweredPrompt::WithoutAnswer {
            let message = format!("{row} has no message besides the assistant's");
            return Err(Error::new("data-prompt-answered", message).hint("take the row out of the file"));
        }
        let message =
            format!("{row} has a prompt that ends with the assistant's words: the answer would be in it");
        let count = format!("{} of the {} rows that were read end so", self.answered, self.rows);
        Err(Error::new("data-prompt-answered", message)
            .fact(count)
            .hint("set data.answered = \"drop-turn\" to leave the assistant's last turn out")
            .hint("or data.answered = \"continue\" to let the response go on with it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    fn rows(policy: AnsweredPrompt, roles: &[&[&str]]) -> (Vec<Prompt>, Result<()>) {
        let mut rows = AnsweredRows::new(policy);
        let mut kept = Vec::new();
        for (index, roles) in roles.iter().enumerate() {
            let mut prompt = Prompt::Messages(roles.iter().map(|role| Message::new(role, "x")).collect());
            if rows.admit(&mut prompt, index) {
                kept.push(prompt);
            }
        }
        (kept, rows.finish(Path::new("d.jsonl")))
    }

    #[test]
    fn a_prompt_with_its_answer_is_refused_by_row_and_number() {
        let data: [&[&str]; 4] =
            [&["user"], &["user", "assistant"], &["user", "assistant", "user"], &["user", "assistant"]];
        let (kept, refused) = rows(AnsweredPrompt::Refused, &data);
        let error = refused.expect_err("two rows have their answer");
        assert_eq!((kept.len(), error.slug), (2, "data-prompt-answered"));
        assert!(error.message.starts_with("d.jsonl: row 2 "), "{error}");
        assert_eq!(error.facts, ["2 of the 4 rows that were read end so"]);
        assert!(error.hints[0].contains("drop-turn") && error.hints[1].contains("continue"), "{error}");
        assert!(rows(AnsweredPrompt::Refused, &data[..1]).1.is_ok());
    }

    #[test]
    fn the_last_turn_is_left_out_or_gone_on_with() {
        let data: [&[&str]; 2] = [&["user"], &["user", "assistant", "user", "assistant", "assistant"]];
        let (kept, done) = rows(AnsweredPrompt::WithoutAnswer, &data);
        let length = |prompt: &Prompt| matches!(prompt, Prompt::Messages(list) if list.len() == 3);
        assert!(done.is_ok() && length(&kept[1]));
        let (kept, done) = rows(AnsweredPrompt::Continued, &data);
        assert!(done.is_ok() && matches!(&kept[1], Prompt::Messages(list) if list.len() == 5));
        assert_eq!(
            rows(AnsweredPrompt::WithoutAnswer, &[&["assistant"]]).1.unwrap_err().slug,
            "data-prompt-answered"
        );
    }
}
