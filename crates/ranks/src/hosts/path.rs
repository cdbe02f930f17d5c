//! Whether packets still pass to a trainer that sends nothing: it may compute, or a signal may have stopped it, or the
//! network between may have failed. A new connection to its port tells: the kernel there answers for it.
//!
//! The kernel's own limits do not tell. `TCP_USER_TIMEOUT` counts from the first packet that was sent again in a row of
//! losses, which under loss and reordering may begin anew before it has ended, so it ended connections on which packets
//! passed (before Linux 6.12, which counts each row by itself); and three lost probes of an idle one are no rare event.

use crate::errors::unreachable;
use crate::knock::begin;
use plimsoll_base::Result;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A path is tried after this silence; after each answer the next silence is twice as long.
const QUIET: Duration = Duration::from_secs(10);
const QUIET_MAX: Duration = Duration::from_secs(160);
/// Packets that ask and get no answer for this long do not pass: the kernel sends five meanwhile, at 0, 1, 3, 7 and
/// 15 s.
const UNANSWERED_MAX: Duration = Duration::from_secs(30);

/// The path to a trainer that this one dialled.
#[derive(Debug)]
pub(crate) struct Path {
    to: SocketAddr,
    who: String,
    quiet: Duration,
    /// When bytes, or an answer, came last.
    moved: Instant,
    /// The question, once the silence is long.
    asks: Option<PathQuestion>,
}

#[derive(Debug)]
struct PathQuestion {
    since: Instant,
    /// The connection that asks; none if one could not begin.
    by: Option<TcpStream>,
}

impl Path {
    pub(crate) fn new(to: SocketAddr, who: &str, now: Instant) -> Path {
        Path { to, who: who.into(), quiet: QUIET, moved: now, asks: None }
    }

    /// Notes that bytes passed.
    pub(crate) fn moves(&mut self, now: Instant) {
        (self.moved, self.quiet, self.asks) = (now, QUIET, None);
    }

    /// Asks whether packets pass if this rank has waited since `begun` and nothing came for long.
    ///
    /// Errors: `ranks-unreachable` if nothing answers.
    pub(crate) fn look(&mut self, begun: Instant, now: Instant) -> Result<()> {
        let silent = now.saturating_duration_since(self.moved.max(begun));
        let Some(asks) = &mut self.asks else {
            if silent >= self.quiet {
                self.asks = Some(PathQuestion { since: now, by: begin(self.to).ok() });
            }
            return Ok(());
        };
        let failed = asks.by.as_ref().and_then(|by| by.take_error().ok()).flatten();
        let is_refused =
            failed.as_ref().is_some_and(|err| err.kind() == std::io::ErrorKind::ConnectionRefused);
        // One that is refused was answered too: the trainer has ended, and its supervisor says so.
        if is_refused || asks.by.as_ref().is_some_and(|by| failed.is_none() && by.peer_addr().is_ok()) {
            (self.moved, self.quiet, self.asks) = (now, (2 * self.quiet).min(QUIET_MAX), None);
            return Ok(());
        }
        if now.saturating_duration_since(asks.since) >= UNANSWERED_MAX {
            let (who, seconds) = (&self.who, silent.as_secs());
            return Err(unreachable(&format!("nothing passes to {who} any more, for {seconds} s")));
        }
        if failed.is_some() || asks.by.is_none() {
            asks.by = begin(self.to).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Looks until the question is answered, which takes the kernel no time that counts here.
    fn answered(path: &mut Path, begun: Instant, at: Instant) {
        assert_eq!(path.look(begun, at), Ok(()));
        assert!(path.asks.is_some(), "it asks");
        while path.asks.is_some() {
            assert_eq!(path.look(begun, at), Ok(()));
        }
    }

    #[test]
    fn one_that_is_silent_is_waited_for_while_its_kernel_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let begun = Instant::now();
        let mut path = Path::new(to, "rank 1", begun);
        assert_eq!(path.look(begun, begun + QUIET / 2), Ok(()));
        assert!(path.asks.is_none(), "too early");
        answered(&mut path, begun, begun + QUIET);
        // The next silence is longer, whatever came before this wait.
        assert_eq!(path.look(begun, begun + 2 * QUIET), Ok(()));
        assert!(path.asks.is_none(), "too early");
        answered(&mut path, begun, begun + 3 * QUIET);
        path.moves(begun + 4 * QUIET);
        answered(&mut path, begun, begun + 5 * QUIET);
        let later = begun + 100 * QUIET;
        assert_eq!(path.look(later, later), Ok(()));
        assert!(path.asks.is_none(), "this wait has just begun");
        // No program listens any more: the kernel says so.
        drop(listener);
        answered(&mut path, begun, later);
    }

    #[test]
    fn one_that_nothing_reaches_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        // The kernel drops the packets of those for whom there is no room.
        rustix::net::listen(&listener, 0).expect("a listener");
        let _full: Vec<TcpStream> = (0..3).filter_map(|_| begin(to).ok()).collect();
        let begun = Instant::now();
        let mut path = Path::new(to, "rank 1", begun);
        assert_eq!(path.look(begun, begun + QUIET), Ok(()));
        assert_eq!(path.look(begun, begun + QUIET + UNANSWERED_MAX / 2), Ok(()));
        let error = path.look(begun, begun + QUIET + UNANSWERED_MAX).expect_err("no answer");
        assert_eq!(
            (error.slug, &*error.message),
            ("ranks-unreachable", "nothing passes to rank 1 any more, for 40 s")
        );
    }
}
