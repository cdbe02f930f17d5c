//! Aligns the tokens of one text under two tokenizers. A *span* is the smallest range of bytes at whose ends both have
//! a token boundary; what the student sampled is never tokenized anew, and the teacher's tokens are those of its bytes.
//!
//! Refuses tokenizers whose tokens are not pieces of text. Of a response it takes as much as can be aligned, from its
//! start: a teacher reads from left to right, so what comes later changes none of its log-probabilities.

use crate::tokenizer::Tokenizer;
use plimsoll_base::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Most tokens of a span on either side. Words differ in a few tokens; the variance of a sum grows with its length.
pub const SPAN_TOKENS_MAX: u32 = 32;

/// The tokens of a student and of a teacher for the same bytes, as indices into their responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub student: Range<u32>,
    pub teacher: Range<u32>,
}

/// A response as its teacher reads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Aligned {
    /// The teacher's tokens, up to the end of the last span.
    pub ids: Vec<u32>,
    /// Ascending. What no span has is not aligned.
    pub spans: Vec<Span>,
}

/// The most that is aligned of a response.
#[derive(Clone, Copy, Debug)]
pub struct AlignLimits {
    /// Tokens of the teacher.
    pub tokens: usize,
    pub bytes: usize,
}

/// One side of an alignment.
#[derive(Clone, Debug)]
pub struct Side {
    pub tokenizer: Arc<Tokenizer>,
    /// Tokens that end a text, the usual one first.
    pub ends: Vec<u32>,
}

/// A student's and a teacher's tokenizer.
#[derive(Debug)]
pub struct Aligner {
    student: Side,
    teacher: Side,
    /// True if all tokens have the same ids: they are taken over, and each is a span.
    same: bool,
}

impl Aligner {
    /// Returns an aligner. `same`: every token of the student has its id in the teacher's tokenizer too.
    ///
    /// Errors: `teacher-not-aligned`.
    pub fn new(student: Side, teacher: Side, same: bool) -> Result<Aligner> {
        for (whose, side) in [("student", &student), ("teacher", &teacher)] {
            if !same && side.tokenizer.table.is_none() {
                let message = format!(
                    "the {whose}'s tokenizer: its decoder changes texts, so the bytes of its tokens are not known"
                );
                return Err(Error::new(NOT_ALIGNED, message)
                    .fact("those of byte-level vocabularies (GPT-2, Llama 3, Qwen) and of characters are")
                    .hint("choose a teacher of the student's family, or with a byte-level tokenizer")
                    .hint("or sample the teacher's answers and train on them with method = \"sft\""));
            }
        }
        Ok(Aligner { student, teacher, same })
    }

    /// True if the teacher has the student's tokens.
    pub fn is_same(&self) -> bool {
        self.same
    }

    /// Returns the first special token among `ids` of the student that the teacher does not have.
    pub fn unknown_special(&self, ids: &[u32]) -> Option<String> {
        let special = ids.iter().filter(|&&id| self.student.tokenizer.is_special(id));
        let texts = special.filter_map(|&id| self.student.tokenizer.token_text(id));
        texts.into_iter().find(|text| self.teacher.tokenizer.token_id(text).is_none())
    }

    /// Returns how many tokens the student has for `text`, and how many of them are aligned.
    ///
    /// Errors: those of the student's `Tokenizer::encode`.
    pub fn probe(&self, text: &str, limits: AlignLimits) -> Result<(usize, usize)> {
        let (ids, mut aligned) = (self.student.tokenizer.encode(text)?, Aligned::default());
        self.align(&ids, limits, &mut aligned);
        Ok((ids.len(), aligned.spans.iter().map(|span| span.student.len()).sum()))
    }

    /// Says what the teacher's tokenizer makes of a text.
    pub fn words(&self, text: &str) -> String {
        match self.teacher.tokenizer.encode(text) {
            Err(error) => error.message,
            Ok(ids) => {
                let (read, count) = (self.teacher.tokenizer.decode(&ids, false), ids.len());
                let what = if read == text { "the same text".to_string() } else { format!("{read:?}") };
                format!("{text:?} becomes {count} tokens of the teacher, which are {what}")
            }
        }
    }

    /// Aligns a response of the student. Replaces what `to` had.
    ///
    /// The alignment ends before a token without text, a special token that the teacher lacks, bytes that are not
    /// UTF-8, text that the teacher's tokenizer changes, and beyond the limits. Spans of more than `SPAN_TOKENS_MAX`
    /// tokens on a side are left out.
    pub fn align(&self, response: &[u32], limits: AlignLimits, to: &mut Aligned) {
        to.ids.clear();
        to.spans.clear();
        if self.same {
            let count = response.len().min(limits.tokens);
            to.ids.extend_from_slice(&response[..count]);
            to.spans.extend((0..count as u32).map(|t| Span { student: t..t + 1, teacher: t..t + 1 }));
            return;
        }
        let (mut at, mut bytes_left) = (0, limits.bytes);
        while at < response.len() {
            let plain = response[at..].iter().position(|&id| self.is_single(id));
            let end = plain.map_or(response.len(), |count| at + count);
            if end > at && !self.align_text(response, at..end, limits.tokens, &mut bytes_left, to) {
                break;
            }
            let Some(&single) = response.get(end) else { break };
            let Some(id) = self.counterpart(single).filter(|_| to.ids.len() < limits.tokens) else { break };
            to.ids.push(id);
            close(to, (end as u32, end as u32 + 1));
            at = end + 1;
        }
        // Spans that are too long are context for later ones, and nothing at the end.
        let taught = to.spans.iter().rposition(is_short).map_or(0, |last| last + 1);
        to.spans.truncate(taught);
        to.ids.truncate(to.spans.last().map_or(0, |span| span.teacher.end as usize));
        to.spans.retain(is_short);
    }

    /// True for a token that is aligned by what it stands for, not by its text.
    fn is_single(&self, id: u32) -> bool {
        let Side { tokenizer, ends } = &self.student;
        tokenizer.is_special(id) || ends.contains(&id) || tokenizer.token_bytes(id).is_empty()
    }

    /// Returns the teacher's token for a special one of the student: the end of a text for an end, else the one of the
    /// same name.
    fn counterpart(&self, id: u32) -> Option<u32> {
        let Side { tokenizer, ends } = &self.teacher;
        let named = self.student.tokenizer.token_text(id).and_then(|text| tokenizer.token_id(&text));
        let named = named.filter(|&id| tokenizer.is_special(id) || ends.contains(&id));
        if self.student.ends.contains(&id) {
            named.filter(|id| ends.contains(id)).or(ends.first().copied())
        } else {
            named
        }
    }

    /// Aligns the tokens `run` of a response, which are text. Returns true if all of them are aligned.
    fn align_text(
        &self,
        response: &[u32],
        run: Range<usize>,
        tokens_max: usize,
        bytes_left: &mut usize,
        to: &mut Aligned,
    ) -> bool {
        let (student, teacher) = (&self.student.tokenizer, &self.teacher.tokenizer);
        let mut bytes: Vec<u8> = Vec::new();
        for &id in &response[run.clone()] {
            let token = student.token_bytes(id);
            if bytes.len() + token.len() > *bytes_left {
                break;
            }
            bytes.extend_from_slice(&token);
        }
        *bytes_left -= bytes.len();
        let text = valid(&bytes);
        let Ok(ids) = teacher.encode_with_bytes(text) else { return false };
        let (mut next, mut student_end, mut teacher_end) = (run.start, 0, 0);
        let mut first = run.start;
        for (index, (id, of_text)) in ids.into_iter().enumerate() {
            let token = teacher.token_bytes(id);
            let is_text = !token.is_empty() && !teacher.is_special(id) && !self.teacher.ends.contains(&id);
            // The space that its tokenizer puts before a text is not in the text.
            let is_longer = index == 0 && teacher.has_first_piece() && token.len() == of_text.len() + 1;
            let token = if is_longer { token.strip_prefix(b" ").unwrap_or(&token) } else { &token[..] };
            if !is_text || to.ids.len() == tokens_max || !text.as_bytes()[teacher_end..].starts_with(token) {
                return false;
            }
            to.ids.push(id);
            teacher_end += token.len();
            while student_end < teacher_end && next < run.end {
                student_end += student.token_bytes(response[next]).len();
                next += 1;
            }
            if student_end == teacher_end && next > first {
                close(to, (first as u32, next as u32));
                first = next;
            }
        }
        first == run.end
    }
}

const NOT_ALIGNED: &str = "teacher-not-aligned";

/// Ends a span after the teacher's last token.
fn close(to: &mut Aligned, (first, end): (u32, u32)) {
    let start = to.spans.last().map_or(0, |span| span.teacher.end);
    to.spans.push(Span { student: first..end, teacher: start..to.ids.len() as u32 });
}

fn is_short(span: &Span) -> bool {
    span.student.len().max(span.teacher.len()) <= SPAN_TOKENS_MAX as usize
}

/// Returns the longest prefix that is UTF-8.
fn valid(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("it is valid up to there"),
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
