//! Tokenizes texts of requests within a bound on the bytes of all that are tokenized at one time: the tokenizer's
//! library takes some two hundred bytes for each.

use crate::limits::{Limits, TEXT_BYTES_PER_TOKEN};
use plimsoll_base::{Error, Result};
use plimsoll_text::Tokenizer;
use std::sync::{Condvar, Mutex, MutexGuard};

pub struct TextRoom {
    limits: Limits,
    /// Bytes of texts that are being tokenized.
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Returns the bytes of a text when it is dropped.
struct Taken<'a>(&'a TextRoom, usize);

impl TextRoom {
    pub fn new(limits: Limits) -> TextRoom {
        TextRoom { limits, taken: Mutex::new(0), freed: Condvar::new() }
    }

    /// Returns the tokens of a text, for which it waits until the text has room.
    ///
    /// Errors: `serve-too-long` for a text that has never room; those of the tokenizer.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
        self.with_room(text, || tokenizer.encode(text))
    }

    /// Runs `work`, which tokenizes `text`, once the text has room.
    ///
    /// Errors: `serve-too-long`; those of `work`.
    pub fn with_room(&self, text: &str, work: impl FnOnce() -> Result<Vec<u32>>) -> Result<Vec<u32>> {
        let most = self.limits.text_bytes();
        if text.len() > most {
            let message = format!(
                "the prompt has {} bytes of text, and {most} is the most, with {TEXT_BYTES_PER_TOKEN} for each of {} tokens",
                text.len(),
                self.limits.context
            );
            return Err(Error::new("serve-too-long", message)
                .hint("ask for less, or start the server with larger --prompt-tokens and --max-new-tokens")
                .hint("a prompt as token ids has no such limit"));
        }
        let _taken = self.take(text.len(), most);
        work()
    }

    fn take(&self, bytes: usize, most: usize) -> Taken<'_> {
        let is_full = |taken: &mut usize| *taken + bytes > most;
        let mut taken = self.freed.wait_while(self.lock(), is_full).expect("no holder panics");
        *taken += bytes;
        Taken(self, bytes)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().expect("no holder panics")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= self.1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
