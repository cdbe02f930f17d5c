//! Counts the tokens of a response that are thinking: those up to the last word of it.

use plimsoll_text::said::Said;
use plimsoll_text::{ResponseReader, StreamDecoder, Tokenizer};

pub struct ThinkingTokens {
    reader: ResponseReader,
    decoder: StreamDecoder,
    /// Tokens so far, and those up to the last thought.
    tokens: usize,
    thinking: usize,
}

impl ThinkingTokens {
    /// `reader`: one that has read nothing.
    pub fn new(reader: ResponseReader) -> ThinkingTokens {
        ThinkingTokens { reader, decoder: StreamDecoder::new(true), tokens: 0, thinking: 0 }
    }

    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) {
        for &id in ids {
            self.tokens += 1;
            let mut text = String::new();
            self.decoder.push(tokenizer, id, &mut text);
            if self.reader.push(&text).iter().any(|said| matches!(said, Said::Thought(_))) {
                self.thinking = self.tokens;
            }
        }
    }

    pub fn count(&self) -> usize {
        self.thinking
    }
}
