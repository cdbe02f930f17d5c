//! Changes the state by a record. The same records in the same order make the same state, live and after a restart.

use super::core::{Core, now};
use super::types::{Brief, Future};
use crate::job::SaveKind;
use crate::names;
use crate::record::{
    ModelRow, Record, RecoveryPoint, RequestEnding, RequestKey, RequestTask, SamplerRow, SaveTask, SavedRow,
    Seconds, SessionRow,
};
use std::sync::Arc;
use std::time::Instant;

impl Core {
    /// Applies a record. `bytes`: of the record in the journal.
    pub fn apply(&mut self, record: Record, bytes: usize) {
        match record {
            Record::Tables(tables) => self.take_tables(*tables),
            Record::Kept { number, tenant, key, time, ending } => {
                let future = Future { ending: Some((ending, time)), ..fresh(tenant, key, Brief::Past, 0) };
                self.insert_future(number, future);
            }
            Record::Session { id, row } => self.begin_session(id, row),
            Record::SessionEnded { id, reason } => self.end_session(&id, &reason),
            Record::Sampler { id, row } => {
                self.tables.samplers.insert(id, row);
            }
            Record::Accepted { number, tenant, time, key, task } => {
                self.accept(number, tenant, (key, task), time, bytes)
            }
            Record::Void { model, seq } => {
                if let Some(row) = self.tables.models.get_mut(&model).filter(|row| seq > row.answered) {
                    row.voids.push(seq);
                }
            }
            Record::Answered { number, time, bytes, ending } => {
                self.answer(number, ending, time, bytes as usize)
            }
            Record::Recovered { model, point } => self.recovered(&model, point),
            Record::Saved { path, row } => {
                self.tables.stores.push(row.store);
                self.tables.saved.insert(path, row);
            }
            Record::Deleted { path } => {
                self.tables.saved.remove(&path);
            }
            Record::Expires { path, at } => {
                if let Some(row) = self.tables.saved.get_mut(&path) {
                    row.expires = at;
                }
            }
        }
    }

    fn take_tables(&mut self, tables: crate::record::Tables) {
        self.tables = tables;
        let open = self.tables.sessions.iter().filter(|(_, row)| row.ended.is_none());
        self.seen = open.map(|(id, _)| (id.clone(), Instant::now())).collect();
    }

    fn begin_session(&mut self, id: String, row: SessionRow) {
        self.seen.insert(id.clone(), Instant::now());
        self.tables.sessions.insert(id, row);
    }

    fn end_session(&mut self, id: &str, reason: &str) {
        self.seen.remove(id);
        if let Some(row) = self.tables.sessions.get_mut(id) {
            row.ended = Some(reason.to_string());
        }
        self.tables.samplers.retain(|_, row| row.session != id);
        for (model, row) in self.tables.models.iter_mut().filter(|(_, row)| row.session == id) {
            row.close(reason);
            self.orders.remove(model);
            self.shut.remove(model);
        }
        if let Some(tenant) = self.tables.sessions.get(id).map(|row| row.tenant.clone()) {
            self.forget_sessions(&tenant);
        }
    }

    /// Forgets a tenant's oldest ended sessions beyond the bound, with their models; what they saved stays.
    fn forget_sessions(&mut self, tenant: &str) {
        let ended =
            self.tables.sessions.iter().filter(|(_, row)| row.tenant == tenant && row.ended.is_some());
        let mut ended: Vec<(Seconds, String)> = ended.map(|(id, row)| (row.created, id.clone())).collect();
        ended.sort();
        let extra = ended.len().saturating_sub(self.limits.things);
        for (_, id) in ended.into_iter().take(extra) {
            self.tables.sessions.remove(&id);
            self.tables.models.retain(|_, row| row.session != id);
        }
    }

    fn accept(
        &mut self,
        number: u64,
        tenant: String,
        (key, task): (RequestKey, RequestTask),
        time: Seconds,
        bytes: usize,
    ) {
        // Of a journal that was written anew: it has its result, and is kept because a restart does it again.
        let is_answered = self.tables.models.get(&key.target).is_some_and(|row| row.log.contains(&number));
        if is_answered {
            self.tasks.insert(number, task);
            return;
        }
        match &task {
            RequestTask::Create { session, adapter, metadata } => {
                let row = ModelRow::new((&tenant, session), adapter, metadata.clone(), time);
                self.tables.models.insert(key.target.clone(), row);
            }
            RequestTask::LoadNew { session, adapter, .. } => {
                let row = ModelRow::new((&tenant, session), adapter, Default::default(), time);
                self.tables.models.insert(key.target.clone(), row);
            }
            _ => {}
        }
        let brief = Brief::of(&task);
        if let Some(row) = self.tables.models.get_mut(&key.target) {
            row.last_request = time;
            self.orders.entry(key.target.clone()).or_default().hold(key.seq, number);
        }
        let usage = self.usage.entry(tenant.clone()).or_default();
        usage.pending += 1;
        usage.bytes += bytes;
        self.tasks.insert(number, task);
        self.insert_future(number, fresh(tenant, Some(key), brief, bytes));
    }

    fn answer(&mut self, number: u64, ending: RequestEnding, time: Seconds, saved_bytes: usize) {
        let Some(future) = self.futures.get(&number).filter(|future| future.ending.is_none()) else { return };
        let (key, brief, bytes) = (future.key.clone(), future.brief.clone(), future.bytes);
        let tenant = future.tenant.clone();
        let is_done = matches!(ending, RequestEnding::Done(_));
        if let Some(key) = key.filter(|key| self.tables.models.contains_key(&key.target)) {
            if let Brief::Save(save) = &brief {
                self.finish_save(&tenant, &key.target, save, (is_done, saved_bytes as u64, time));
            }
            self.advance(&key, &brief, (number, bytes), is_done);
        }
        self.end_future(number, ending, time);
    }

    /// Moves a model on in its order.
    fn advance(&mut self, key: &RequestKey, brief: &Brief, (number, bytes): (u64, usize), is_done: bool) {
        let row = self.tables.models.get_mut(&key.target).expect("the caller looked");
        row.answered = row.answered.max(key.seq);
        row.voids.retain(|seq| *seq > key.seq);
        let order = self.orders.entry(key.target.clone()).or_default();
        order.drop_held(key.seq);
        if !is_done {
            if matches!(brief, Brief::Create | Brief::LoadNew { .. }) {
                row.close("it could not be made");
            }
            return;
        }
        match brief {
            Brief::Pass { gradients: true, .. } => row.has_gradients = true,
            Brief::Step | Brief::Create => row.has_gradients = false,
            Brief::LoadNew { from, .. } => row.log_stores.push(*from),
            Brief::Load { from, optimizer, .. } => {
                row.has_gradients = false;
                if *optimizer {
                    return self.recovered(&key.target, RecoveryPoint { store: *from, seq: key.seq });
                }
                row.log_stores.push(*from);
            }
            Brief::Save(save) if save.kind == SaveKind::Training && !row.has_gradients => {
                return self.recovered(&key.target, RecoveryPoint { store: save.store, seq: key.seq });
            }
            Brief::Unload => return row.close("it was unloaded"),
            Brief::Save(_) | Brief::Pass { .. } | Brief::Sample { .. } | Brief::Past => return,
        }
        row.log.push(number);
        row.log_bytes += bytes;
    }

    fn recovered(&mut self, model: &str, point: RecoveryPoint) {
        let Some(row) = self.tables.models.get_mut(model) else { return };
        if !self.tables.stores.contains(&point.store) {
            self.tables.stores.push(point.store);
        }
        row.recovery = Some(point);
        row.forget_log();
    }

    fn finish_save(
        &mut self,
        tenant: &str,
        model: &str,
        save: &SaveTask,
        (is_done, bytes, time): (bool, u64, Seconds),
    ) {
        let path = save.name.as_ref().map(|name| names::path_of(model, save.kind, name));
        if let Some(path) = &path {
            self.naming.remove(path);
        }
        let row = &self.tables.models[model];
        let (adapter, session) = (row.adapter.clone(), row.session.clone());
        if !is_done {
            return;
        }
        self.tables.stores.push(save.store);
        if let Some(path) = path {
            let row = SavedRow {
                tenant: tenant.to_string(),
                model: model.to_string(),
                kind: save.kind,
                store: save.store,
                adapter,
                time,
                bytes,
                expires: save.ttl_seconds.map(|seconds| time.saturating_add(seconds)),
                metadata: save.metadata.clone(),
            };
            self.tables.saved.insert(path, row);
        } else if let Some(sampler) = &save.sampler {
            let row = SamplerRow {
                tenant: tenant.to_string(),
                session,
                base_model: adapter.base_model,
                model_path: None,
                store: Some(save.store),
            };
            self.tables.samplers.insert(sampler.clone(), row);
        }
    }

    /// Takes back a request that could not be written down.
    pub fn undo_accept(&mut self, number: u64) {
        let Some(future) = self.futures.get(&number) else { return };
        let (key, brief, tenant, bytes) =
            (future.key.clone(), future.brief.clone(), future.tenant.clone(), future.bytes);
        let usage = self.usage.entry(tenant).or_default();
        usage.pending = usage.pending.saturating_sub(1);
        usage.bytes = usage.bytes.saturating_sub(bytes);
        self.tasks.remove(&number);
        if let Some(key) = key {
            if let Some(order) = self.orders.get_mut(&key.target) {
                order.drop_held(key.seq);
            }
            if matches!(brief, Brief::Create | Brief::LoadNew { .. }) {
                self.tables.models.remove(&key.target);
                self.orders.remove(&key.target);
            }
        }
        self.forget(number);
    }
}

impl ModelRow {
    fn new(
        (tenant, session): (&str, &str),
        adapter: &crate::job::AdapterChoice,
        metadata: std::collections::BTreeMap<String, String>,
        time: Seconds,
    ) -> ModelRow {
        ModelRow {
            tenant: tenant.to_string(),
            session: session.to_string(),
            adapter: adapter.clone(),
            created: time,
            last_request: time,
            metadata,
            answered: -1,
            voids: Vec::new(),
            recovery: None,
            log: Vec::new(),
            log_bytes: 0,
            log_stores: Vec::new(),
            has_gradients: false,
            closed: None,
        }
    }

    fn close(&mut self, reason: &str) {
        self.closed = Some(reason.to_string());
        self.recovery = None;
        self.has_gradients = false;
        self.forget_log();
    }

    fn forget_log(&mut self) {
        self.log.clear();
        self.log_stores.clear();
        self.log_bytes = 0;
    }
}

fn fresh(tenant: String, key: Option<RequestKey>, brief: Brief, bytes: usize) -> Future {
    Future {
        tenant,
        key,
        brief,
        bytes,
        is_durable: false,
        ending: None,
        is_shown: Arc::default(),
        changed: Arc::default(),
        cancelled: Arc::default(),
    }
}

/// The time of a record that is written now.
pub fn stamped(ending: RequestEnding, number: u64, saved_bytes: u64) -> Record {
    Record::Answered { number, time: now(), bytes: saved_bytes, ending }
}
