//! What the crew and the steppers of a run share: the shape, links to workers, orders and news.

use super::slots::SlotMap;
use super::words::Known;
use super::{PythonEnvs, Share};
use crate::FaultKind;
use plimsoll_base::Error;
use plimsoll_worker::{Bell, SharedMemory};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What all workers have in common, once the first has described its environment.
#[derive(Debug)]
pub(super) struct Shape {
    pub known: Known,
    pub shares: Vec<Share>,
    /// Describes what enforces `worker_memory`.
    pub memory_held_by: String,
}

/// The connection to a worker that is ready.
#[derive(Debug)]
pub(super) struct Link {
    pub socket: OwnedFd,
    pub memory: SharedMemory,
    pub pid: u32,
    /// The parent process, from which all processes of the worker descend.
    pub keeper: u32,
}

/// Orders to the crew. Those for a worker that is already gone do nothing.
pub(super) enum Order {
    /// Starts a worker at a time.
    Start { worker: usize, at: Instant },
    /// Ends a worker because of what it did.
    End { worker: usize, life: u64, why: Why },
    /// A worker has finished its first step.
    Stepped { worker: usize },
    /// Replaces the receivers of news, each for the workers from its first to the next one's.
    Share(Vec<Route>),
    /// Ends all workers, and the thread.
    Close,
}

pub(super) enum Why {
    /// It was in `doing` for longer than `limit`.
    Late { doing: &'static str, limit: Duration },
    /// Its socket is closed: it died, or soon will.
    Closed,
    /// It failed with this error.
    Fault(FaultKind, Error),
}

/// News from the crew.
pub(super) enum News {
    /// A worker is ready. `life` counts the starts of all workers.
    Ready { worker: usize, life: u64, link: Link, shape: Arc<Shape> },
    /// A worker ended.
    Lost { worker: usize, kind: FaultKind, error: Error },
    /// A worker did something that is allowed but rarely intended.
    Warning { worker: usize, warning: Error },
}

impl News {
    pub fn worker(&self) -> usize {
        match self {
            News::Ready { worker, .. } | News::Lost { worker, .. } | News::Warning { worker, .. } => *worker,
        }
    }
}

/// The receiver of news about a range of workers.
pub(super) struct Route {
    pub first_worker: usize,
    pub news: Sender<News>,
    pub told: Bell,
}

/// What all steppers of a run share. Workers end when the last stepper is dropped.
pub(super) struct Run {
    pub envs: Arc<PythonEnvs>,
    pub shape: Arc<Shape>,
    /// Workers in a crash loop.
    pub looping: AtomicUsize,
    pub crew: CrewThread,
}

/// A worker that is ready: number, `life` and link.
pub(super) type Ready = (usize, u64, Link);

/// The thread that watches workers; dropping it ends them.
pub(super) struct CrewThread {
    pub orders: Sender<Order>,
    pub ordered: Bell,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

impl CrewThread {
    fn order(&self, order: Order) {
        // The crew cannot end before this is dropped.
        let _ = self.orders.send(order);
        self.ordered.ring();
    }
}

impl Drop for CrewThread {
    fn drop(&mut self) {
        self.order(Order::Close);
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A crew that panicked has printed it; its workers died with it.
            let _ = thread.join();
        }
    }
}

impl Run {
    pub fn order(&self, order: Order) {
        self.crew.order(order);
    }
}

impl Share {
    pub(super) fn map(&self, known: &Known) -> SlotMap {
        SlotMap::new(self.envs.len(), known.action.bytes, known.observation.bytes)
    }
}
