//! Runs libraries on other people's files: a panic there is the file's fault and becomes a named error.

use plimsoll_base::{Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stack of a thread that reads a model's files: JSON nests at most 128 deep, and a reader takes a few KiB per level.
const STACK_BYTES: usize = 8 << 20;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while a panic of this thread becomes a named error, so it is not reported as a fault of Plimsoll.
pub fn panic_becomes_an_error() -> bool {
    GUARDED.get()
}

/// Runs `work`; `None` if it panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.ok()
}

/// Runs `work` in its own thread, with a stack of known size; `None` if it panics.
///
/// Errors: `thread-not-started`.
pub(crate) fn on_a_stack<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<Option<T>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || guarded(work)).map_err(|err| {
            Error::new("thread-not-started", format!("no thread to read a model's {name}: {err}"))
        })?;
        Ok(thread.join().ok().flatten())
    })
}
