//! Splits the thinking off a response that writes it between marks, such as `<think>` and `</think>`, at its beginning.
//! Which marks a model writes is in its chat template. A template may write the opening mark itself, at the end of the
//! prompt; then the response begins with thinking. Marks after the first words are text.

use crate::said::{Said, overlap};

/// The marks around thinking.
#[derive(Debug, PartialEq)]
pub(crate) struct ThinkingMarks {
    open: &'static str,
    close: &'static str,
}

/// Qwen3, DeepSeek R1, GLM-4.5, Kimi and most others; Magistral; Gemma 4.
const MARKS: [ThinkingMarks; 3] = [
    ThinkingMarks { open: "<think>", close: "</think>" },
    ThinkingMarks { open: "[THINK]", close: "[/THINK]" },
    ThinkingMarks { open: "<|channel>thought", close: "<channel|>" },
];

impl ThinkingMarks {
    /// Returns the marks that the source of a template has; none if it has none.
    pub(crate) fn of_source(source: &str) -> Option<&'static ThinkingMarks> {
        MARKS.iter().find(|marks| source.contains(marks.close))
    }

    /// Returns true if a prompt ends in thinking.
    pub(crate) fn is_open(&self, prompt_end: &str) -> bool {
        prompt_end.trim_end().ends_with(self.open)
    }
}

/// Finds the thinking in one response, piece by piece, in time linear in the text. White space around the thinking is
/// left out.
#[derive(Clone, Debug)]
pub(crate) struct Thinking {
    marks: &'static ThinkingMarks,
    stage: Stage,
    /// White space that belongs to the next words, if such come.
    gap: String,
    /// The possible beginning of a mark.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Before the first word.
    Before,
    /// In thinking, of which there may be words.
    Inside {
        has_words: bool,
    },
    /// After thinking, before the first word of the text.
    Between,
    Text,
}

impl Thinking {
    /// `is_open`: the prompt ends with the opening mark.
    pub(crate) fn new(marks: &'static ThinkingMarks, is_open: bool) -> Thinking {
        let stage = if is_open { Stage::Inside { has_words: false } } else { Stage::Before };
        Thinking { marks, stage, gap: String::new(), held: String::new() }
    }

    /// Takes more of the response. Adds its thinking to `said`, and returns what is text.
    pub(crate) fn push(&mut self, text: &str, said: &mut Vec<Said>) -> String {
        if self.stage == Stage::Text {
            return text.to_string();
        }
        self.held.push_str(text);
        if self.stage == Stage::Before {
            self.begin();
        }
        if let Stage::Inside { has_words } = self.stage {
            self.think(has_words, said);
        }
        match self.stage {
            Stage::Before | Stage::Inside { .. } => String::new(),
            Stage::Between => {
                let words = std::mem::take(&mut self.held);
                let words = words.trim_start();
                self.stage = if words.is_empty() { Stage::Between } else { Stage::Text };
                words.to_string()
            }
            Stage::Text => std::mem::take(&mut self.gap) + &std::mem::take(&mut self.held),
        }
    }

    /// Ends the response. Adds the thinking that was held to `said`, and returns what was held and is text.
    pub(crate) fn finish(&mut self, said: &mut Vec<Said>) -> String {
        match std::mem::replace(&mut self.stage, Stage::Text) {
            Stage::Before => std::mem::take(&mut self.gap) + &std::mem::take(&mut self.held),
            Stage::Inside { .. } => {
                let held = std::mem::take(&mut self.held);
                if !held.is_empty() {
                    said.push(Said::Thought(std::mem::take(&mut self.gap) + &held));
                }
                String::new()
            }
            Stage::Between | Stage::Text => String::new(),
        }
    }

    /// Looks for the opening mark before the first word.
    fn begin(&mut self) {
        let words = self.held.trim_start();
        let blank = self.held.len() - words.len();
        if let Some(after) = words.strip_prefix(self.marks.open) {
            self.held.drain(..self.held.len() - after.len());
            self.gap.clear();
            self.stage = Stage::Inside { has_words: false };
            return;
        }
        if !self.marks.open.starts_with(words) {
            self.stage = Stage::Text;
            return;
        }
        self.gap.push_str(&self.held[..blank]);
        self.held.drain(..blank);
    }

    /// Says the thinking that is held, up to the closing mark or to what may be its beginning.
    fn think(&mut self, mut has_words: bool, said: &mut Vec<Said>) {
        let close = self.marks.close;
        let found = self.held.find(close);
        let end = found.unwrap_or_else(|| self.held.len() - overlap(&self.held, close));
        let words = self.held[..end].trim_end();
        let blank = words.len()..end;
        let words = if has_words { words } else { words.trim_start() };
        if !words.is_empty() {
            said.push(Said::Thought(std::mem::take(&mut self.gap) + words));
            has_words = true;
        }
        self.stage = Stage::Inside { has_words };
        if has_words {
            self.gap.push_str(&self.held[blank]);
        }
        self.held.drain(..end);
        if found.is_some() {
            self.held.drain(..close.len());
            self.gap.clear();
            self.stage = Stage::Between;
        }
    }
}
