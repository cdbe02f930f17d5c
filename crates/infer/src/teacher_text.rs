//! A teacher with a tokenizer of its own: prompts as it reads them, and responses aligned with its tokens.

use plimsoll_base::{Error, Result};
use plimsoll_text::{AlignLimits, Aligner, ChatTemplate, Prompt, RowTokenizer, Strings, Tokenizer};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Share of the tokens of prompts that a run needs aligned: a teacher that has no word for most tokens teaches little.
pub const PROBE_SHARE_MIN: f64 = 0.5;
/// Characters of a text in a message.
const SHOWN_CHARS: usize = 60;

/// The text side of a teacher.
#[derive(Debug)]
pub struct TeacherText {
    pub aligner: Aligner,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<Arc<ChatTemplate>>,
    pub strings: Strings,
    /// True if the template is the student's, because the teacher has none.
    pub borrows_template: bool,
}

impl TeacherText {
    /// Returns the tokens of a prompt for the teacher; none if it reads the student's, `ids`, which it does unless the
    /// prompt `is_its_own`. `student`: how the student's prompts become tokens.
    ///
    /// Errors: those of `RowTokenizer::prompt`; `prompt-empty`; `teacher-not-aligned` for a mark of the student's
    /// template that the teacher does not know.
    pub fn prompt_ids(
        &self,
        prompt: &Prompt,
        variables: &Map<String, Value>,
        is_its_own: bool,
        student: RowTokenizer<'_>,
        ids: &[u32],
    ) -> Result<Vec<u32>> {
        if self.aligner.is_same() && !is_its_own {
            return Ok(Vec::new());
        }
        let unknown = self.aligner.unknown_special(ids).filter(|_| self.borrows_template);
        if let Some(mark) = unknown {
            let message = format!(
                "the student's chat template writes {mark:?}, which is no token of the teacher, and the teacher has no template"
            );
            return Err(Error::new("teacher-not-aligned", message)
                .hint("set data.chat_template to a template that both can read, or to \"none\"")
                .hint("or choose a teacher that was trained on conversations"));
        }
        let rows = RowTokenizer {
            tokenizer: &self.tokenizer,
            template: self.template.as_deref(),
            strings: &self.strings,
            ..student
        };
        let ids = rows
            .prompt(prompt, variables)
            .map_err(|error| error.fact("it is the prompt as distill.teacher reads it"))?;
        if ids.is_empty() {
            Err(Error::new("prompt-empty", "a prompt has no token of the teacher")
                .hint("choose a teacher whose tokenizer knows these texts, or take the row out of the file"))
        } else {
            Ok(ids)
        }
    }

    /// Requires that the teacher has spans for most tokens of some prompts.
    ///
    /// Errors: `teacher-not-aligned`.
    pub fn check<'t>(&self, texts: impl Iterator<Item = &'t str>, limits: AlignLimits) -> Result<()> {
        let (mut count, mut tokens, mut aligned, mut worst) = (0, 0, 0, None);
        for text in texts {
            let (of_text, with_span) = self.aligner.probe(text, limits)?;
            let lost = of_text - with_span;
            if worst.is_none_or(|(_, most)| lost > most) {
                worst = Some((text, lost));
            }
            (count, tokens, aligned) = (count + 1, tokens + of_text, aligned + with_span);
        }
        let Some((text, _)) = worst.filter(|_| (aligned as f64) < PROBE_SHARE_MIN * tokens as f64) else {
            return Ok(());
        };
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        let message = format!(
            "of {tokens} tokens in {count} prompts, {aligned} are in a span that the teacher's tokenizer has too"
        );
        Err(Error::new("teacher-not-aligned", message)
            .fact(format!("at least {} % are needed", 100.0 * PROBE_SHARE_MIN))
            .fact(self.aligner.words(&shown))
            .hint("choose a teacher whose tokenizer keeps texts as they are, to the byte")
            .hint("or sample its answers and train on them with method = \"sft\""))
    }
}

#[cfg(test)]
#[path = "teacher_text_tests.rs"]
mod tests;
