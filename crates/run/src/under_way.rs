//! Progress of a step's current part: responses or episodes ended, of those begun. For terminals; one per process.

use crate::status::Doing;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

static DOING: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);
static OF: AtomicU64 = AtomicU64::new(0);

/// Begins a part with nothing done.
pub(crate) fn begin(doing: Doing) {
    DOING.store(Doing::ALL.iter().position(|one| *one == doing).unwrap_or(0), Relaxed);
    DONE.store(0, Relaxed);
    OF.store(0, Relaxed);
}

/// Adds `more` expected items, unless as many were announced before.
pub fn expect(more: usize) {
    OF.fetch_max(DONE.load(Relaxed) + more as u64, Relaxed);
}

/// Counts one item as ended.
pub fn ended() {
    DONE.fetch_add(1, Relaxed);
}

/// Returns `eval 37 of 256`; `None` if nothing is counted.
pub fn words() -> Option<String> {
    let (done, of) = (DONE.load(Relaxed), OF.load(Relaxed));
    let doing = Doing::ALL[DOING.load(Relaxed).min(Doing::ALL.len() - 1)].name();
    (of > 0).then(|| format!("{doing} {done} of {of}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_counts_from_nothing_to_all_that_was_announced() {
        begin(Doing::Eval);
        assert_eq!(words(), None);
        expect(8);
        // A part of those that are announced already.
        expect(4);
        ended();
        expect(4);
        assert_eq!(words().as_deref(), Some("eval 1 of 8"));
        begin(Doing::Rollout);
        assert_eq!(words(), None);
    }
}
