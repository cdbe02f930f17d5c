//! Decodes a response while its tokens arrive. It never returns part of a character, and the text held back is bounded.
//! If decoding uses a table, the concatenated pieces are exactly `Tokenizer::decode` of all tokens.

use crate::Tokenizer;

/// Tokens that a decoder without a table may hold back for the rest of a character.
const HELD_TOKENS_MAX: usize = 8;

/// Decodes one response incrementally.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    skip_special: bool,
    /// Bytes of an incomplete character; at most 3.
    pending: Vec<u8>,
    /// Without a table: the tokens since the last returned text, after `context` tokens that were returned.
    ids: Vec<u32>,
    context: usize,
}

impl StreamDecoder {
    pub fn new(skip_special: bool) -> StreamDecoder {
        StreamDecoder {
            skip_special,
            pending: Vec::with_capacity(16),
            ids: Vec::with_capacity(2 * HELD_TOKENS_MAX),
            context: 0,
        }
    }

    /// Appends the text that `token` completes to `out`. With a table only `out` allocates.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32, out: &mut String) {
        match &tokenizer.table {
            Some(_) if self.skip_special && tokenizer.is_skipped(token) => {}
            Some(table) => {
                self.pending.extend_from_slice(table.bytes_of(token));
                self.emit_complete(out);
            }
            None => self.push_by_decoding(tokenizer, token, out),
        }
    }

    /// Appends the text held back, at the end of a response.
    pub fn finish(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        if tokenizer.table.is_some() {
            out.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        } else if self.ids.len() > self.context {
            self.emit_difference(tokenizer, out);
        }
    }

    pub fn reset(&mut self) {
        self.pending.clear();
        self.ids.clear();
        self.context = 0;
    }

    /// Moves whole characters from `pending` to `out`, invalid bytes as U+FFFD, as `String::from_utf8_lossy` does.
    fn emit_complete(&mut self, out: &mut String) {
        let mut start = 0;
        loop {
            match std::str::from_utf8(&self.pending[start..]) {
                Ok(text) => {
                    out.push_str(text);
                    start = self.pending.len();
                    break;
                }
                Err(error) => {
                    let valid = start + error.valid_up_to();
                    out.push_str(std::str::from_utf8(&self.pending[start..valid]).expect("valid up to here"));
                    start = valid;
                    match error.error_len() {
                        Some(bad) => {
                            out.push('\u{fffd}');
                            start += bad;
                        }
                        None => break, // the rest of the character is yet to come
                    }
                }
            }
        }
        self.pending.drain(..start);
    }

    /// Decodes the last tokens with and without the new ones; the difference is new text.
    fn push_by_decoding(&mut self, tokenizer: &Tokenizer, token: u32, out: &mut String) {
        self.ids.push(token);
        let text = tokenizer.decode(&self.ids, self.skip_special);
        let waiting = text.ends_with('\u{fffd}') && self.ids.len() - self.context < HELD_TOKENS_MAX;
        if !waiting {
            self.emit_difference(tokenizer, out);
        }
    }

    fn emit_difference(&mut self, tokenizer: &Tokenizer, out: &mut String) {
        let before = tokenizer.decode(&self.ids[..self.context], self.skip_special);
        let text = tokenizer.decode(&self.ids, self.skip_special);
        let common = before.char_indices().zip(text.chars()).take_while(|((_, a), b)| a == b).last();
        let common = common.map_or(0, |((at, c), _)| at + c.len_utf8());
        if text.len() > common {
            out.push_str(&text[common..]);
            // The tokens of this text stay as context: a decoder may join later ones to them.
            self.ids.drain(..self.context);
            self.context = self.ids.len();
        } else if self.ids.len() >= 2 * HELD_TOKENS_MAX {
            // Many tokens without text (skipped special tokens) are no context.
            self.ids.clear();
            self.context = 0;
        }
    }
}
