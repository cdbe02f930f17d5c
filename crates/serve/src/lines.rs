//! Bounds the open connections: when one more comes, the one that has been idle for longest goes. A connection is idle
//! while its client has a head or a body to send, or waits for an episode; so thousands of silent clients take places
//! from one another, and from none who asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Idle time below which a connection may have bytes on their way.
const GRACE: Duration = Duration::from_millis(10);

/// Counts and ranks the connections of a listener.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Shared>);

struct Shared {
    most: usize,
    state: Mutex<State>,
    /// Wakes a connection that waits for a place, when one is free or another has become idle.
    changed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    stage: Stage,
    since: Instant,
    /// True while the server waits for bytes of it; in a crowd, bytes may have come that were not read yet.
    awaits: Arc<AtomicBool>,
    /// True once it has been told to go.
    is_told: bool,
    /// Wakes the connection, or the request that it waits with.
    go: Arc<Notify>,
    end: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Its client has a head or a body to send.
    Silent,
    /// Its request waits for something that may never come, and can be answered without it.
    Parked,
    Busy,
}

/// Holds the place of an open connection until it is dropped.
pub(crate) struct Line {
    lines: Lines,
    id: u64,
    go: Arc<Notify>,
    awaits: Arc<AtomicBool>,
}

/// Marks a connection as busy from a request's head to the end of its answer.
#[derive(Clone)]
pub(crate) struct Busy(Arc<OfRequest>);

struct OfRequest {
    lines: Lines,
    id: u64,
    end: Arc<Notify>,
}

impl Lines {
    pub(crate) fn new(most: usize) -> Lines {
        Lines(Arc::new(Shared { most, state: Mutex::default(), changed: Notify::new() }))
    }

    /// Waits for a place, for which the idlest connection has to go if there is none.
    pub(crate) async fn enter(&self) -> Line {
        loop {
            let changed = self.0.changed.notified();
            if let Some(line) = self.try_enter() {
                return line;
            }
            // Or until one has been idle for long enough.
            let _ = tokio::time::timeout(GRACE, changed).await;
        }
    }

    fn try_enter(&self) -> Option<Line> {
        let mut state = self.lock();
        if state.open.len() >= self.0.most {
            state.tell_idlest();
            return None;
        }
        let (id, go, awaits) = (state.next, Arc::new(Notify::new()), Arc::<AtomicBool>::default());
        state.next += 1;
        let open = Open {
            stage: Stage::Silent,
            since: Instant::now(),
            awaits: awaits.clone(),
            is_told: false,
            go: go.clone(),
            end: Arc::new(Notify::new()),
        };
        state.open.insert(id, open);
        drop(state);
        Some(Line { lines: self.clone(), id, go, awaits })
    }

    pub(crate) async fn all_gone(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.lock().open.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, id: u64, stage: Stage) {
        if let Some(open) = self.lock().open.get_mut(&id) {
            (open.stage, open.since) = (stage, Instant::now());
            if open.is_told && stage == Stage::Silent {
                // Its request was answered after all; the connection goes once it is.
                open.go.notify_one();
            }
        }
        if stage != Stage::Busy {
            self.0.changed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Tells one connection to go, unless one is going already.
    fn tell_idlest(&mut self) {
        if self.open.values().any(|open| open.is_told) {
            return;
        }
        let is_idle = |open: &&mut Open| match open.stage {
            Stage::Silent => open.awaits.load(Ordering::Relaxed) && open.since.elapsed() >= GRACE,
            Stage::Parked => true,
            Stage::Busy => false,
        };
        let idle = self.open.values_mut().filter(is_idle);
        let Some(open) = idle.min_by_key(|open| open.since) else { return };
        open.is_told = true;
        match open.stage {
            Stage::Parked => open.end.notify_one(),
            Stage::Silent | Stage::Busy => open.go.notify_one(),
        }
    }
}

impl Line {
    /// Returns the flag that says whether the server waits for bytes of this connection.
    pub(crate) fn awaits(&self) -> Arc<AtomicBool> {
        self.awaits.clone()
    }

    /// Waits until another client needs the place.
    pub(crate) async fn told_to_go(&self) {
        self.go.notified().await;
    }

    /// Records that a request's head has come.
    pub(crate) fn begin(&self, has_body: bool) -> Busy {
        self.lines.set(self.id, if has_body { Stage::Silent } else { Stage::Busy });
        let end = self.lines.lock().open.get(&self.id).map(|open| open.end.clone()).unwrap_or_default();
        Busy(Arc::new(OfRequest { lines: self.lines.clone(), id: self.id, end }))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.lines.lock().open.remove(&self.id);
        self.lines.0.changed.notify_waiters();
    }
}

impl Busy {
    /// Records that the whole request has come: its connection stays until it is answered.
    pub(crate) fn has_come(&self) {
        self.0.lines.set(self.0.id, Stage::Busy);
    }

    /// Records that the request is about to be read.
    pub(crate) fn comes(&self) {
        self.0.lines.set(self.0.id, Stage::Silent);
    }

    /// Records that the request waits for something that may never come.
    pub(crate) fn parks(&self) {
        self.0.lines.set(self.0.id, Stage::Parked);
    }

    /// Waits until a request that is parked has to end.
    pub(crate) async fn told_to_end(&self) {
        self.0.end.notified().await;
    }
}

impl Drop for OfRequest {
    /// Records that the answer is on its way, and the next head may come.
    fn drop(&mut self) {
        self.lines.set(self.id, Stage::Silent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    async fn is_told(line: &Line) -> bool {
        tokio::time::timeout(Duration::from_millis(1), line.told_to_go()).await.is_ok()
    }

    #[test]
    fn the_idlest_connection_goes_and_none_that_is_busy() {
        run(async {
            let lines = Lines::new(3);
            let [first, second, third] = [lines.enter().await, lines.enter().await, lines.enter().await];
            // Nothing was read of them yet: they may have sent a request.
            tokio::time::sleep(GRACE).await;
            assert!(lines.try_enter().is_none() && !is_told(&third).await);
            [&first, &second, &third].iter().for_each(|line| line.awaits().store(true, Ordering::Relaxed));
            let busy = first.begin(false);
            let half_sent = second.begin(true);
            tokio::time::sleep(GRACE).await;
            assert!(lines.try_enter().is_none());
            // The second has sent its head later than the third was accepted.
            assert!(is_told(&third).await && !is_told(&first).await && !is_told(&second).await);
            // One goes at a time.
            assert!(lines.try_enter().is_none() && !is_told(&second).await);
            drop(third);
            let fourth = lines.enter().await;
            half_sent.has_come();
            let other = fourth.begin(false);
            assert!(lines.try_enter().is_none() && !is_told(&fourth).await, "all are busy");
            other.parks();
            assert!(lines.try_enter().is_none());
            assert!(tokio::time::timeout(Duration::from_secs(9), other.told_to_end()).await.is_ok());
            drop((fourth, other));
            assert!(lines.try_enter().is_some());
            drop((busy, half_sent));
        });
    }

    #[test]
    fn who_waits_for_a_place_gets_it_when_an_answer_has_ended() {
        run(async {
            let lines = Lines::new(1);
            let line = lines.enter().await;
            line.awaits().store(true, Ordering::Relaxed);
            let busy = line.begin(false);
            let later = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(busy);
                line.told_to_go().await;
                drop(line);
            };
            let (entered, ()) = tokio::join!(lines.enter(), later);
            drop(entered);
            lines.all_gone().await;
        });
    }
}
