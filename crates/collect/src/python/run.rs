//! Holds the state that the supervisor and the steppers of a run share: the shape, links to workers, orders and news.

use super::{PythonEnvs, Share, slots::SlotMap, words::Known};
use crate::FaultKind;
use plimsoll_base::Error;
use plimsoll_worker::{Bell, SharedMemory};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Describes all workers' environments, once the first worker has described its own.
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

/// Orders to the supervisor. Those for a worker that is already gone do nothing.
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
    Late {
        doing: &'static str,
        limit: Duration,
    },
    /// Its socket is closed: it died, or soon will.
    Closed,
    Fault(FaultKind, Error),
}

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

/// Holds the state that all steppers of a run share. Workers end when the last stepper is dropped.
pub(super) struct Run {
    pub envs: Arc<PythonEnvs>,
    pub shape: Arc<Shape>,
    /// Workers in a crash loop.
    pub looping: AtomicUsize,
    pub supervisor: SupervisorThread,
}

/// A worker that is ready: number, `life` and link.
pub(super) type Ready = (usize, u64, Link);

/// The thread that watches workers; dropping it ends them.
pub(super) struct SupervisorThread {
    pub orders: Sender<Order>,
    pub ordered: Bell,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

impl SupervisorThread {
    pub fn order(&self, order: Order) {
        // The supervisor cannot end before this is dropped.
        let _ = self.orders.send(order);
        self.ordered.ring();
    }
}

impl Drop for SupervisorThread {
    fn drop(&mut self) {
        self.order(Order::Close);
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A supervisor that panicked has printed it; its workers died with it.
            let _ = thread.join();
        }
    }
}

impl Share {
    pub(super) fn map(&self, known: &Known) -> SlotMap {
        SlotMap::new(self.envs.len(), known.action.bytes, known.observation.bytes)
    }
}
