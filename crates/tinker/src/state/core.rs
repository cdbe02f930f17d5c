//! The tables of the state, and looking things up in them for a tenant.

use super::types::{Future, Order, ReadyAges};
use crate::limits::TinkerLimits;
use crate::record::{ModelRow, RequestKey, RequestTask, SamplerRow, SavedRow, Seconds, SessionRow, Tables};
use plimsoll_base::{Error, Result, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Everything that is known of tenants, their models and their requests.
pub struct Core {
    pub tables: Tables,
    pub limits: TinkerLimits,
    pub(super) futures: BTreeMap<u64, Future>,
    pub(super) by_key: BTreeMap<RequestKey, u64>,
    /// What was accepted and not given to the queue yet; while the journal is read, also what is to be done again.
    pub tasks: BTreeMap<u64, RequestTask>,
    pub(super) orders: BTreeMap<String, Order>,
    pub(super) usage: BTreeMap<String, Usage>,
    pub(super) ready: ReadyAges,
    /// The last sign of life of each open session.
    pub(super) seen: BTreeMap<String, Instant>,
    /// Paths that are being saved.
    pub(super) naming: BTreeSet<String>,
    /// Models that take no more requests, though no record says so yet.
    pub(super) shut: BTreeMap<String, Shut>,
}

/// Why a model takes no more requests before a record says so.
#[derive(Clone, Debug)]
pub struct Shut {
    pub reason: String,
    /// True if what it was asked before fails too.
    pub fails: bool,
}

/// What a tenant has waiting.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub pending: usize,
    pub bytes: usize,
}

impl Core {
    pub fn new(limits: TinkerLimits) -> Core {
        Core {
            tables: Tables { next_number: 1, ..Tables::default() },
            limits,
            futures: BTreeMap::new(),
            by_key: BTreeMap::new(),
            tasks: BTreeMap::new(),
            orders: BTreeMap::new(),
            usage: BTreeMap::new(),
            ready: ReadyAges::default(),
            seen: BTreeMap::new(),
            naming: BTreeSet::new(),
            shut: BTreeMap::new(),
        }
    }

    /// Returns a number that nothing else has, before and after a restart.
    pub fn next_number(&mut self) -> u64 {
        self.tables.next_number += 1;
        self.tables.next_number - 1
    }

    /// Finds a tenant's open session, and notes that it is alive.
    ///
    /// Errors: `tinker-not-found`, `tinker-session-closed`.
    pub fn session(&mut self, tenant: &str, id: &str) -> Result<&SessionRow> {
        let row = self
            .tables
            .sessions
            .get(id)
            .filter(|row| row.tenant == tenant)
            .ok_or_else(|| not_found("session", id))?;
        if let Some(reason) = &row.ended {
            return Err(closed("session", id, reason));
        }
        self.seen.insert(id.to_string(), Instant::now());
        Ok(row)
    }

    /// Finds a tenant's model that takes requests.
    ///
    /// Errors: `tinker-not-found`, `tinker-session-closed`.
    pub fn model(&mut self, tenant: &str, id: &str) -> Result<&ModelRow> {
        let row = self
            .tables
            .models
            .get(id)
            .filter(|row| row.tenant == tenant)
            .ok_or_else(|| not_found("model", id))?;
        if let Some(reason) = row.closed.as_ref().or(self.shut.get(id).map(|shut| &shut.reason)) {
            return Err(closed("model", id, reason));
        }
        self.seen.insert(row.session.clone(), Instant::now());
        Ok(row)
    }

    /// Finds a tenant's sampler.
    ///
    /// Errors: `tinker-not-found`.
    pub fn sampler(&mut self, tenant: &str, id: &str) -> Result<&SamplerRow> {
        let row = self.tables.samplers.get(id).filter(|row| row.tenant == tenant);
        let row = row.ok_or_else(|| not_found("sampler", id))?;
        self.seen.insert(row.session.clone(), Instant::now());
        Ok(row)
    }

    /// Finds what a tenant saved under a path.
    ///
    /// Errors: `tinker-not-found`.
    pub fn saved(&self, tenant: &str, path: &str) -> Result<&SavedRow> {
        let row = self.tables.saved.get(path).filter(|row| row.tenant == tenant);
        row.ok_or_else(|| not_found("saved weights", path))
    }

    /// Returns the sessions that have shown no sign of life for too long.
    pub fn silent_sessions(&self) -> Vec<String> {
        let is_silent = |since: &Instant| since.elapsed() >= self.limits.silence;
        self.seen.iter().filter(|(_, since)| is_silent(since)).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the open models of a session.
    pub fn models_of(&self, session: &str) -> Vec<String> {
        let of = |id: &str, row: &ModelRow| {
            row.session == session && row.closed.is_none() && !self.shut.contains_key(id)
        };
        self.tables.models.iter().filter(|(id, row)| of(id, row)).map(|(id, _)| id.clone()).collect()
    }

    /// Takes no more requests for a model, before its end is in the journal.
    pub fn shut_model(&mut self, model: &str, shut: Shut) {
        self.shut.insert(model.to_string(), shut);
    }

    /// Returns why a model's requests fail, if they do.
    pub fn failing(&self, model: &str) -> Option<&str> {
        self.shut.get(model).filter(|shut| shut.fails).map(|shut| shut.reason.as_str())
    }

    /// Forgets that a session was alive: it ends.
    pub fn forget_session_sign(&mut self, session: &str) {
        self.seen.remove(session);
    }

    /// Counts what a tenant has in tables of things that only grow by asking for them.
    ///
    /// Errors: `tinker-queue-full`.
    pub fn check_things(&self, tenant: &str) -> Result<()> {
        let most = self.limits.things;
        let sessions =
            self.tables.sessions.values().filter(|row| row.tenant == tenant && row.ended.is_none()).count();
        let models =
            self.tables.models.values().filter(|row| row.tenant == tenant && row.closed.is_none()).count();
        let samplers = self.tables.samplers.values().filter(|row| row.tenant == tenant).count();
        let saved = self.tables.saved.values().filter(|row| row.tenant == tenant).count();
        for (count, what) in [
            (sessions, "open sessions"),
            (models, "models"),
            (samplers, "samplers"),
            (saved, "saved weights"),
        ] {
            if count >= most {
                return Err(Error::new(
                    "tinker-queue-full",
                    format!("you have {count} {what}, which is the most"),
                )
                .hint("close sessions or delete what was saved"));
            }
        }
        Ok(())
    }
}

/// Refuses a name that this tenant has nothing under.
pub fn not_found(what: &str, id: &str) -> Error {
    Error::new("tinker-not-found", format!("there is no {what} {:?}", shown(id)))
        .hint("names of other tokens are not found either")
}

/// Refuses what is closed.
pub fn closed(what: &str, id: &str, reason: &str) -> Error {
    Error::new("tinker-session-closed", format!("the {what} {:?} is closed: {reason}", shown(id)))
        .hint("go on from what was saved: create_training_client_from_state_with_optimizer(path)")
}

/// Returns the seconds since 1970.
pub fn now() -> Seconds {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
