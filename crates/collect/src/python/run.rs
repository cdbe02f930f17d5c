//! What workers, their crew and the steppers of a run share: the shape, links to workers, orders and news.

use super::pairing::Pairing;
use super::slots::SlotMap;
use super::words::Known;
use super::{PythonEnvs, Share};
use crate::FaultKind;
use plimsoll_base::Error;
use plimsoll_worker::{Bell, SharedMemory};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What all workers have in common once the first has said what its environment is.
#[derive(Debug)]
pub(super) struct Shape {
    pub known: Known,
    pub shares: Vec<Share>,
    /// Who holds workers to `worker_memory`, in words.
    pub memory_held_by: String,
}

/// A worker that is ready: by these it is asked and answers.
#[derive(Debug)]
pub(super) struct Link {
    pub socket: OwnedFd,
    pub memory: SharedMemory,
    pub pid: u32,
    /// The process above it, from which all of the worker's descend.
    pub keeper: u32,
}

/// What the crew is told. Orders for a worker that is gone already do nothing.
pub(super) enum Order {
    /// Starts a worker.
    Start { worker: usize, at: Instant },
    /// Ends a worker because of what it did.
    End { worker: usize, life: u64, why: Why },
    /// A worker has made its first step.
    Stepped { worker: usize },
    /// From now on these are told, each of the workers from its first to the next one's.
    Share(Vec<Route>),
    /// Ends all workers, and the thread.
    Close,
}

/// Why a worker is ended.
pub(super) enum Why {
    /// It was in `doing` for longer than `limit`.
    Late { doing: &'static str, limit: Duration },
    /// Its socket is closed: it died, or soon will.
    Closed,
    /// As the error says.
    Fault(FaultKind, Error),
}

/// What the crew tells.
pub(super) enum News {
    /// A worker can be asked. `life` counts the starts of all workers.
    Ready { worker: usize, life: u64, link: Link, shape: Arc<Shape> },
    /// A worker is gone.
    Lost { worker: usize, kind: FaultKind, error: Error },
    /// A worker did what is allowed and seldom meant.
    Warning { worker: usize, warning: Error },
}

impl News {
    pub fn worker(&self) -> usize {
        match self {
            News::Ready { worker, .. } | News::Lost { worker, .. } | News::Warning { worker, .. } => *worker,
        }
    }
}

/// Who is told of a range of workers.
pub(super) struct Route {
    pub first_worker: usize,
    pub news: Sender<News>,
    pub told: Bell,
}

/// What all steppers of a run share. Workers end with the last of them.
pub(super) struct Run {
    pub envs: Arc<PythonEnvs>,
    pub shape: Arc<Shape>,
    /// Workers that do nothing but end.
    pub looping: AtomicUsize,
    pub crew: CrewThread,
}

/// What one stepper is made of.
pub(super) struct Part {
    /// Its workers, with the count of their start.
    pub ready: Vec<(usize, u64, Link)>,
    pub news: Receiver<News>,
    pub told: Bell,
    pub pairing: Option<Pairing>,
}

/// The thread that watches workers; dropped, it ends them.
pub(super) struct CrewThread {
    pub orders: Sender<Order>,
    pub ordered: Bell,
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

impl CrewThread {
    fn order(&self, order: Order) {
        // The crew ends with us, not before.
        let _ = self.orders.send(order);
        self.ordered.ring();
    }
}

impl Drop for CrewThread {
    fn drop(&mut self) {
        self.order(Order::Close);
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // A crew that panicked has said so; its workers died with it.
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
