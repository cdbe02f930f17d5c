//! What the journal holds: each change of the state as a record, so that the state is a function of the records.

use crate::codec::output::Reply;
use crate::job::{AdamStep, AdapterChoice, SampleJob, SaveKind, StoreId, TrainDatum};
use plimsoll_algo::sum_loss::SumLoss;
use plimsoll_base::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seconds since 1970.
pub type Seconds = u64;

/// A place in the order of a model or of a sampler: the same place again is the same request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestKey {
    pub target: String,
    pub seq: i64,
}

/// What a client wants of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestTask {
    Create {
        session: String,
        adapter: AdapterChoice,
        metadata: BTreeMap<String, String>,
    },
    LoadNew {
        session: String,
        adapter: AdapterChoice,
        from: StoreId,
        path: String,
        optimizer: bool,
    },
    Pass {
        datums: Datums,
        loss: SumLoss,
        gradients: bool,
    },
    Step {
        adam: AdamStep,
    },
    Save(SaveTask),
    Load {
        from: StoreId,
        path: String,
        optimizer: bool,
    },
    Sample(Box<SampleJob>),
    /// Drops the model.
    Unload,
}

/// Datums that a request, the queue and the engine share.
#[derive(Clone, Debug, PartialEq)]
pub struct Datums(pub Arc<Vec<TrainDatum>>);

impl Serialize for Datums {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Datums {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Datums, D::Error> {
        Vec::deserialize(deserializer).map(|datums| Datums(Arc::new(datums)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SaveTask {
    pub store: StoreId,
    pub kind: SaveKind,
    /// `None` for a sampler without a name.
    pub name: Option<String>,
    /// The sampler that a save without a name makes.
    pub sampler: Option<String>,
    pub overwrite: bool,
    pub ttl_seconds: Option<u64>,
    pub metadata: BTreeMap<String, String>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestEnding {
    Done(Reply),
    Failed { message: String, is_user: bool },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRow {
    pub tenant: String,
    pub created: Seconds,
    pub tags: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    pub display_name: Option<String>,
    /// Why it ended, if it has.
    pub ended: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerRow {
    pub tenant: String,
    pub session: String,
    pub base_model: String,
    pub model_path: Option<String>,
    pub store: Option<StoreId>,
}

/// Something saved under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedRow {
    pub tenant: String,
    pub model: String,
    pub kind: SaveKind,
    pub store: StoreId,
    pub adapter: AdapterChoice,
    pub time: Seconds,
    pub bytes: u64,
    pub expires: Option<Seconds>,
    pub metadata: BTreeMap<String, String>,
}

/// The state of a model that is on the disk: what it was after the request `seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPoint {
    pub store: StoreId,
    pub seq: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRow {
    pub tenant: String,
    pub session: String,
    pub adapter: AdapterChoice,
    pub created: Seconds,
    pub last_request: Seconds,
    pub metadata: BTreeMap<String, String>,
    /// The last request in its order that was answered; -1 before the first.
    pub answered: i64,
    /// Places whose requests were refused, which the order passes over.
    pub voids: Vec<i64>,
    pub recovery: Option<RecoveryPoint>,
    /// Answered requests that changed its state after the recovery point: their numbers, in order.
    pub log: Vec<u64>,
    pub log_bytes: usize,
    /// Stores that the requests of the log read.
    pub log_stores: Vec<StoreId>,
    /// True while it has gradients that no step has used.
    pub has_gradients: bool,
    /// Why it takes no more requests, if it does not.
    pub closed: Option<String>,
}

/// The whole state but requests and results, which have records of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    pub next_number: u64,
    pub sessions: BTreeMap<String, SessionRow>,
    pub models: BTreeMap<String, ModelRow>,
    pub samplers: BTreeMap<String, SamplerRow>,
    /// By path.
    pub saved: BTreeMap<String, SavedRow>,
    /// All that the engine has saved and not dropped.
    pub stores: Vec<StoreId>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// The first of a journal that was written anew.
    Tables(Box<Tables>),
    /// A result that a journal written anew still has.
    Kept {
        number: u64,
        tenant: String,
        key: Option<RequestKey>,
        time: Seconds,
        ending: RequestEnding,
    },
    Session {
        id: String,
        row: SessionRow,
    },
    SessionEnded {
        id: String,
        reason: String,
    },
    Sampler {
        id: String,
        row: SamplerRow,
    },
    Accepted {
        number: u64,
        tenant: String,
        time: Seconds,
        key: RequestKey,
        task: RequestTask,
    },
    /// A place in a model's order whose request was refused.
    Void {
        model: String,
        seq: i64,
    },
    Answered {
        number: u64,
        time: Seconds,
        bytes: u64,
        ending: RequestEnding,
    },
    Recovered {
        model: String,
        point: RecoveryPoint,
    },
    /// A name that the server gave by itself.
    Saved {
        path: String,
        row: SavedRow,
    },
    Deleted {
        path: String,
    },
    Expires {
        path: String,
        at: Option<Seconds>,
    },
}

impl Record {
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data has bytes")
    }

    /// Reads a record.
    ///
    /// Errors: `tinker-journal-damaged`.
    pub fn of_bytes(bytes: &[u8]) -> Result<Record> {
        postcard::from_bytes(bytes).map_err(|err| {
            Error::new(
                "tinker-journal-damaged",
                format!("a record of {} bytes cannot be read: {err}", bytes.len()),
            )
            .hint("was it written by another version? move the journal away to begin with none")
        })
    }

    /// Returns the number of an accepted request, which is what is kept of an older journal.
    pub fn accepted_number(bytes: &[u8]) -> Option<u64> {
        match Record::of_bytes(bytes) {
            Ok(Record::Accepted { number, .. }) => Some(number),
            _ => None,
        }
    }
}
