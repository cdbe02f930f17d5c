//! SIGINT and SIGTERM ask a run to stop after its step; a second one ends it at once.

use plimsoll_base::{Error, Exit, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;

/// Stack of the thread that waits for signals: it sleeps, stores a number, exits.
const STACK_BYTES: usize = 64 << 10;

/// Takes both signals from now on; the number of the first one appears in what is returned.
pub fn install() -> Result<Arc<AtomicI32>> {
    let asked = Arc::new(AtomicI32::new(0));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|err| refused(&err))?;
    let stop = asked.clone();
    let wait = move || {
        for signal in signals.forever() {
            if stop.swap(signal, Ordering::SeqCst) != 0 {
                // The user does not want to wait for the step. Every file of the run is whole at any moment.
                std::process::exit(
                    if signal == SIGTERM { Exit::Terminated } else { Exit::Interrupted } as i32
                );
            }
        }
    };
    let thread = thread::Builder::new().name("signals".into()).stack_size(STACK_BYTES);
    thread.spawn(wait).map(|_| asked).map_err(|err| refused(&err))
}

fn refused(err: &std::io::Error) -> Error {
    Error::new("internal", format!("SIGINT and SIGTERM cannot be taken: {err}"))
        .hint("check the limit on threads: ulimit -u")
}
