//! The order of a model's requests: each waits until those before it have been given to the queue, however they came.

use super::core::{Core, closed};
use super::types::{Brief, Future, Released};
use crate::job::{Job, SaveKind};
use crate::names;
use crate::record::{RequestEnding, RequestTask};
use plimsoll_base::Error;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Core {
    /// Notes that a request is on the disk.
    pub fn accepted(&mut self, number: u64) {
        if let Some(future) = self.futures.get_mut(&number) {
            future.is_durable = true;
        }
    }

    /// Notes that the journal was read: all in it is on the disk, and of the answered requests only those are kept that
    /// a restart does again.
    pub fn has_loaded(&mut self) {
        for future in self.futures.values_mut() {
            future.is_durable = true;
            future.is_shown.store(future.ending.is_some(), Ordering::Release);
        }
        let logged: BTreeSet<u64> =
            self.tables.models.values().flat_map(|row| row.log.iter().copied()).collect();
        let is_open = |number: &u64| self.futures.get(number).is_some_and(|future| future.ending.is_none());
        self.tasks.retain(|number, _| logged.contains(number) || is_open(number));
    }

    /// Takes a model's requests whose turn has come.
    pub fn release(&mut self, model: &str) -> Vec<Released> {
        let mut out = Vec::new();
        while let Some(number) = self.next_of(model) {
            let Some(task) = self.tasks.remove(&number) else { continue };
            let bytes = self.futures.get(&number).map_or(0, |future| future.bytes);
            let is_step = matches!(task, RequestTask::Step { .. });
            out.push(self.job_of(model, number, task));
            let order = self.orders.entry(model.to_string()).or_default();
            order.given_bytes += bytes;
            if is_step && !order.recovers && order.given_bytes > self.limits.recover_bytes {
                (order.recovers, order.given_bytes) = (true, 0);
                let tenant = self.tables.models[model].tenant.clone();
                out.push(Released::Recover { tenant });
            }
        }
        out
    }

    /// Notes that the save that cuts the journal has ended.
    pub fn has_recovered(&mut self, model: &str) {
        if let Some(order) = self.orders.get_mut(model) {
            order.recovers = false;
        }
    }

    /// Returns the sample's job, which waits for no other.
    pub fn release_sample(&mut self, number: u64) -> Option<(String, Job)> {
        // Another task waits for its turn.
        if !matches!(self.tasks.get(&number), Some(RequestTask::Sample(_))) {
            return None;
        }
        let Some(RequestTask::Sample(sample)) = self.tasks.remove(&number) else { return None };
        Some((self.tenant_of(number)?.to_string(), Job::Sample(sample)))
    }

    /// Returns the place that is next in a model's order.
    pub fn next_seq(&mut self, model: &str) -> i64 {
        let Some(row) = self.tables.models.get(model) else { return 0 };
        let order = self.orders.entry(model.to_string()).or_default();
        let mut next = order.next.unwrap_or(0).max(row.answered + 1);
        while row.voids.contains(&next) {
            next += 1;
        }
        order.next = Some(next);
        next
    }

    /// Returns the place after all that have come.
    pub fn last_seq(&mut self, model: &str) -> i64 {
        let next = self.next_seq(model);
        self.orders
            .get(model)
            .and_then(|order| order.held.keys().next_back())
            .map_or(next, |last| next.max(last + 1))
    }

    /// Returns the requests of a model that wait for others.
    pub fn held_of(&self, model: &str) -> Vec<u64> {
        self.orders.get(model).map_or_else(Vec::new, |order| order.held.values().copied().collect())
    }

    /// Returns unanswered requests of models that are closed, which are never done.
    pub fn stranded(&self) -> Vec<u64> {
        let is_closed = |model: &str| self.tables.models.get(model).is_none_or(|row| row.closed.is_some());
        let open = self.futures.iter().filter(|(_, future)| future.ending.is_none());
        let of_models = open.filter(|(_, future)| !matches!(future.brief, Brief::Sample { .. }));
        let of = |future: &Future| future.key.as_ref().is_some_and(|key| is_closed(&key.target));
        of_models.filter(|(_, future)| of(future)).map(|(number, _)| *number).collect()
    }

    fn next_of(&mut self, model: &str) -> Option<u64> {
        if !self.tables.models.contains_key(model) {
            return None;
        }
        let next = self.next_seq(model);
        let order = self.orders.get_mut(model)?;
        // One before its place was given to the queue by an earlier process.
        let (&seq, &number) = order.held.range(..=next).next()?;
        if !self.futures.get(&number)?.is_durable {
            return None;
        }
        order.held.remove(&seq);
        order.next = Some(next.max(seq + 1));
        order.gap_since = (!order.held.is_empty()).then(Instant::now);
        Some(number)
    }

    /// Notes which models wait for a request that has not come, and returns those that have waited too long, each with
    /// the missing place and the requests that wait.
    pub fn gaps(&mut self) -> Vec<(String, i64, Vec<u64>)> {
        let models: Vec<String> = self.orders.keys().cloned().collect();
        let mut late = Vec::new();
        for model in models {
            let next = self.next_seq(&model);
            let Some(order) = self.orders.get_mut(&model) else { continue };
            if order.held.is_empty() {
                order.gap_since = None;
                continue;
            }
            let since = *order.gap_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= self.limits.gap_wait {
                late.push((model, next, order.held.values().copied().collect()));
            }
        }
        late
    }

    fn job_of(&mut self, model: &str, number: u64, task: RequestTask) -> Released {
        let row = &self.tables.models[model];
        let tenant = row.tenant.clone();
        if let Some(reason) = &row.closed {
            return Released::Fail { number, ending: RequestEnding::of(&closed("model", model, reason)) };
        }
        let (model, adapter) = (model.to_string(), row.adapter.clone());
        let job = match task {
            RequestTask::Create { adapter, .. } => Job::Create { model, adapter },
            RequestTask::LoadNew { from, optimizer, .. } | RequestTask::Load { from, optimizer, .. } => {
                Job::Load { model, adapter, store: from, optimizer }
            }
            RequestTask::Pass { datums, loss, gradients } => {
                Job::Pass { model, datums: datums.0, loss, gradients }
            }
            RequestTask::Step { adam } => Job::Step { model, adam },
            RequestTask::Save(save) => {
                let path = save.name.as_ref().map(|name| names::path_of(&model, save.kind, name));
                if let Some(path) = path {
                    let is_taken = self.tables.saved.contains_key(&path) || self.naming.contains(&path);
                    if is_taken && !save.overwrite {
                        return Released::Fail { number, ending: taken(&path) };
                    }
                    self.naming.insert(path);
                }
                Job::Save { model, store: save.store, kind: save.kind }
            }
            RequestTask::Sample(sample) => Job::Sample(sample),
            RequestTask::Unload => Job::DropModel { model },
        };
        Released::Give { number, tenant, job }
    }

    /// Returns the job that does an answered request again, whose result is known.
    pub fn job_again(&mut self, model: &str, number: u64) -> Option<Job> {
        let task = self.tasks.remove(&number)?;
        match self.job_of(model, number, task) {
            Released::Give { job, .. } if !matches!(job, Job::Save { kind: SaveKind::Sampler, .. }) => {
                Some(job)
            }
            _ => None,
        }
    }
}

fn taken(path: &str) -> RequestEnding {
    let error = Error::new("tinker-name-taken", format!("there are saved weights {path:?}"));
    RequestEnding::of(&error.hint("choose another name, delete them, or save with overwrite=True"))
}
