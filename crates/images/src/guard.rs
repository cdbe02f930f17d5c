//! Runs decoders on other people's files: a panic there is the file's fault and becomes a named error.

use crate::ImageFault;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while a panic of this thread becomes a named error, so it is not reported as a fault of Plimsoll.
pub fn panic_becomes_an_error() -> bool {
    GUARDED.get()
}

/// Runs a decoder.
///
/// Errors: those of `work`; `Damaged` if it panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, ImageFault>) -> Result<T, ImageFault> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.unwrap_or_else(|_| Err(ImageFault::Damaged("the decoder ended in a panic".into())))
}
