//! Requests, their results and their order as values.

use crate::job::{Job, StoreId};
use crate::record::{RequestEnding, RequestKey, RequestTask, SaveTask, Seconds};
use plimsoll_base::Error;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tokio::sync::Notify;

/// A request of a client.
pub(super) struct Future {
    pub tenant: String,
    pub key: Option<RequestKey>,
    pub brief: Brief,
    /// Bytes of its record.
    pub bytes: usize,
    /// True once the acceptance is on the disk.
    pub is_durable: bool,
    pub ending: Option<(RequestEnding, Seconds)>,
    /// True once the ending is on the disk, or could not be.
    pub is_shown: Arc<AtomicBool>,
    pub changed: Arc<Notify>,
    pub cancelled: Arc<AtomicBool>,
}

/// What an answer changes, without the data of the task.
#[derive(Clone, Debug, PartialEq)]
pub enum Brief {
    Create,
    LoadNew {
        from: StoreId,
        path: String,
        optimizer: bool,
    },
    /// Targets of a position for each datum.
    Pass {
        gradients: bool,
        widths: Vec<usize>,
    },
    Step,
    Save(SaveTask),
    Load {
        from: StoreId,
        path: String,
        optimizer: bool,
    },
    Sample {
        store: Option<StoreId>,
    },
    Unload,
    /// Of a result whose request is no longer known.
    Past,
}

impl Brief {
    pub fn of(task: &RequestTask) -> Brief {
        match task {
            RequestTask::Create { .. } => Brief::Create,
            RequestTask::LoadNew { from, path, optimizer, .. } => {
                Brief::LoadNew { from: *from, path: path.clone(), optimizer: *optimizer }
            }
            RequestTask::Pass { datums, gradients, .. } => Brief::Pass {
                gradients: *gradients,
                widths: datums.0.iter().map(|datum| datum.width).collect(),
            },
            RequestTask::Step { .. } => Brief::Step,
            RequestTask::Save(save) => Brief::Save(save.clone()),
            RequestTask::Load { from, path, optimizer } => {
                Brief::Load { from: *from, path: path.clone(), optimizer: *optimizer }
            }
            RequestTask::Sample(sample) => Brief::Sample { store: sample.store },
            RequestTask::Unload => Brief::Unload,
        }
    }

    /// Returns what must stay saved until the request is answered.
    pub fn store(&self) -> Option<StoreId> {
        match self {
            Brief::LoadNew { from, .. } | Brief::Load { from, .. } => Some(*from),
            Brief::Save(save) => Some(save.store),
            Brief::Sample { store } => *store,
            _ => None,
        }
    }
}

/// What a client that asks for a result gets.
pub enum Poll {
    Ready(RequestEnding),
    /// Not yet: what wakes it, and whether it waits for others of its model's order.
    Waiting {
        changed: Arc<Notify>,
        is_held: bool,
    },
}

/// Numbers of results by age, and their bytes.
#[derive(Default)]
pub(super) struct ReadyAges {
    pub order: VecDeque<(Seconds, u64)>,
    pub bytes: usize,
}

impl RequestEnding {
    /// Returns the ending of a request that failed.
    pub fn of(error: &Error) -> RequestEnding {
        let is_user = error.slug.starts_with("tinker-");
        RequestEnding::Failed { message: error.to_string(), is_user }
    }

    /// Returns the bytes that it takes while it is kept.
    pub fn bytes(&self) -> usize {
        match self {
            RequestEnding::Done(reply) => reply.bytes(),
            RequestEnding::Failed { message, .. } => message.len() + 128,
        }
    }
}

/// Requests of a model that wait for others.
#[derive(Default)]
pub(super) struct Order {
    /// The place that is next; `None` until it is first asked for.
    pub next: Option<i64>,
    /// By place.
    pub held: BTreeMap<i64, u64>,
    /// Since when the next one is missing.
    pub gap_since: Option<Instant>,
    /// True while the model's state is being saved to cut the journal.
    pub recovers: bool,
    /// Bytes of the requests that were given to the queue since the last such save.
    pub given_bytes: usize,
}

/// What to do with a request whose turn has come.
pub enum Released {
    Give {
        number: u64,
        tenant: String,
        job: Job,
    },
    Fail {
        number: u64,
        ending: RequestEnding,
    },
    /// The model's state after what was given before is to be saved.
    Recover {
        tenant: String,
    },
}

impl Order {
    pub(super) fn hold(&mut self, seq: i64, number: u64) {
        self.held.insert(seq, number);
    }

    pub(super) fn drop_held(&mut self, seq: i64) {
        self.held.remove(&seq);
    }
}
