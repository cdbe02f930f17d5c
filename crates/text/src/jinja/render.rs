//! A rendering: the state that expressions and statements share.

use super::meter::{Meter, Result};
use super::scopes::Scopes;
use super::value::{Buffer, Value};
use std::ops::Range;

/// Functions of the environment, as Hugging Face's has them.
pub(super) const FUNCTIONS: [&str; 5] = ["range", "namespace", "dict", "raise_exception", "strftime_now"];

pub(super) struct Renderer<'r> {
    pub(super) meter: &'r Meter,
    pub(super) scopes: Scopes<'r>,
    /// Where text goes: a block whose text is a value pushes one.
    pub(super) outputs: Vec<Buffer<'r>>,
    /// Bytes of the template's output that are the assistant's own.
    pub(super) marks: Vec<Range<usize>>,
    /// True if a mark was in text that is a value, so its place in the output is unknown.
    pub(super) has_lost_marks: bool,
    pub(super) loops: usize,
    /// Seconds since 1970 for `strftime_now`.
    pub(super) now: u64,
}

impl<'r> Renderer<'r> {
    pub(super) fn new(meter: &'r Meter, now: u64) -> Renderer<'r> {
        let (scopes, outputs) = (Scopes::new(meter), vec![Buffer::new(meter)]);
        Renderer { meter, scopes, outputs, marks: Vec::new(), has_lost_marks: false, loops: 0, now }
    }

    pub(super) fn output(&mut self) -> &mut Buffer<'r> {
        self.outputs.last_mut().expect("the template's output stays")
    }

    /// Runs `work` and returns the text that it writes.
    pub(super) fn capture(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Value<'r>> {
        self.outputs.push(Buffer::new(self.meter));
        let done = work(self);
        let text = self.outputs.pop().expect("pushed above");
        done?;
        text.finish()
    }
}
