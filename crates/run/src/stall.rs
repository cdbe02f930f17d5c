//! Reports a run that waits long for a checkpoint to be written, as on a slow shared file system.

use plimsoll_base::Error;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time that a run waits for a checkpoint.
pub(crate) struct Stall {
    step: u32,
    limit: Duration,
    begun: Instant,
    /// Warns during the wait; without a thread only the end does.
    clock: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Stall {
    /// Starts counting, and warns on stderr once `limit` is over.
    pub(crate) fn begin(step: u32, limit: Duration) -> Stall {
        let (over, is_over) = channel::<()>();
        let wait = move || {
            if is_over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let seconds = limit.as_secs_f64();
                let words = format!(
                    "the run has waited for {seconds} s for the checkpoint of step {step}, which is still being written"
                );
                let _ = writeln!(std::io::stderr(), "warning[checkpoint-stalled]: {words}");
            }
        };
        let thread = Builder::new().name("stall".into()).stack_size(64 << 10).spawn(wait);
        Stall { step, limit, begun: Instant::now(), clock: thread.ok().map(|thread| (over, thread)) }
    }

    /// Stops counting. Returns a warning if it took longer than the limit.
    pub(crate) fn end(self) -> Option<Error> {
        let took = self.begun.elapsed();
        if let Some((over, thread)) = self.clock {
            drop(over);
            let _ = thread.join();
        }
        (took > self.limit).then(|| {
            let (took, limit) = (took.as_secs_f64(), self.limit.as_secs_f64());
            let message = format!(
                "the run waited for {took:.1} s for the checkpoint of step {}; checkpoint.stall_seconds_max is {limit}",
                self.step
            );
            Error::new("checkpoint-stalled", message)
                .hint("put run.dir on a faster disk, or save less often: checkpoint.every")
                .hint("plimsoll doctor --ranks measures the directory that hosts share")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_the_limit_is_said_and_the_rest_is_not() {
        assert!(Stall::begin(3, Duration::from_secs(3600)).end().is_none());
        let stall = Stall::begin(7, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        let error = stall.end().expect("it took longer");
        assert_eq!(error.slug, "checkpoint-stalled");
        assert!(
            error.message.contains("step 7") && error.message.contains("stall_seconds_max is 0"),
            "{error}"
        );
    }
}
