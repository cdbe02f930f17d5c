//! Requests from their acceptance until their result is forgotten.

use super::core::{Core, not_found};
use super::types::{Brief, Future, Poll};
use crate::record::{RequestEnding, RequestKey, Seconds};
use plimsoll_base::{Error, Result};
use std::sync::atomic::Ordering;

impl Core {
    /// Looks for a tenant's result.
    ///
    /// Errors: `tinker-future-gone`, `tinker-not-found`.
    pub fn poll(&self, tenant: &str, number: u64) -> Result<Poll> {
        let Some(future) = self.futures.get(&number) else {
            if number < self.tables.next_number {
                return Err(Error::new(
                    "tinker-future-gone",
                    format!("the result of request {number} is no longer kept"),
                )
                .hint("results are kept for a while and within a bound of bytes: ask for them soon"));
            }
            return Err(not_found("request", &number.to_string()));
        };
        if future.tenant != tenant {
            return Err(not_found("request", &number.to_string()));
        }
        Ok(match &future.ending {
            Some((ending, _)) if future.is_shown.load(Ordering::Acquire) => Poll::Ready(ending.clone()),
            _ => {
                let is_held = self.tasks.contains_key(&number);
                Poll::Waiting { changed: future.changed.clone(), is_held }
            }
        })
    }

    /// Returns the number of a request that has been accepted in this place, if it is the tenant's.
    pub fn same_request(&self, tenant: &str, key: &RequestKey) -> Option<u64> {
        let number = *self.by_key.get(key)?;
        self.futures.get(&number).filter(|future| future.tenant == tenant).map(|_| number)
    }

    /// Returns what an answer needs: the place and the form of a request.
    pub fn waiting(&self, number: u64) -> Option<(Option<RequestKey>, Brief)> {
        let future = self.futures.get(&number).filter(|future| future.ending.is_none())?;
        Some((future.key.clone(), future.brief.clone()))
    }

    pub fn tenant_of(&self, number: u64) -> Option<&str> {
        self.futures.get(&number).map(|future| future.tenant.as_str())
    }

    /// Returns the place and the ending of an answered request.
    pub fn known(&self, number: u64) -> Option<(i64, RequestEnding)> {
        let future = self.futures.get(&number)?;
        let (ending, _) = future.ending.as_ref()?;
        Some((future.key.as_ref().map_or(0, |key| key.seq), ending.clone()))
    }

    pub fn is_cancelled(&self, number: u64) -> bool {
        self.futures.get(&number).is_some_and(|future| future.cancelled.load(Ordering::Relaxed))
    }

    /// Asks the engine to leave a tenant's sample, if it is one and not answered.
    pub fn cancel(&mut self, tenant: &str, number: u64) {
        let future = self.futures.get(&number).filter(|future| future.tenant == tenant);
        if let Some(future) = future.filter(|future| matches!(future.brief, Brief::Sample { .. })) {
            future.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Returns what lets clients see an ending.
    pub fn shower(&self, number: u64) -> impl FnOnce() + Send + 'static {
        let future =
            self.futures.get(&number).map(|future| (future.is_shown.clone(), future.changed.clone()));
        move || {
            if let Some((is_shown, changed)) = future {
                is_shown.store(true, Ordering::Release);
                changed.notify_waiters();
            }
        }
    }

    pub(super) fn insert_future(&mut self, number: u64, future: Future) {
        if let Some(key) = &future.key {
            self.by_key.insert(key.clone(), number);
        }
        if let Some((ending, time)) = &future.ending {
            self.ready.bytes += ending.bytes();
            self.ready.order.push_back((*time, number));
        }
        self.tables.next_number = self.tables.next_number.max(number + 1);
        self.futures.insert(number, future);
    }

    pub(super) fn end_future(&mut self, number: u64, ending: RequestEnding, time: Seconds) {
        let Some(future) = self.futures.get_mut(&number) else { return };
        let usage = self.usage.entry(future.tenant.clone()).or_default();
        usage.pending = usage.pending.saturating_sub(1);
        usage.bytes = usage.bytes.saturating_sub(future.bytes);
        self.ready.bytes += ending.bytes();
        self.ready.order.push_back((time, number));
        future.ending = Some((ending, time));
    }

    /// Forgets the oldest results as long as they are too old or too many.
    pub fn forget_old(&mut self, now: Seconds) {
        while let Some((time, number)) = self.ready.order.front().copied() {
            let is_old = now.saturating_sub(time) > self.limits.result_age.as_secs();
            if !is_old && self.ready.bytes <= self.limits.result_bytes {
                return;
            }
            self.ready.order.pop_front();
            self.forget(number);
        }
    }

    /// Forgets a request, answered or never accepted.
    pub(super) fn forget(&mut self, number: u64) {
        let Some(future) = self.futures.remove(&number) else { return };
        if let Some(key) = &future.key {
            self.by_key.remove(key);
        }
        if let Some((ending, _)) = &future.ending {
            self.ready.bytes -= ending.bytes();
        }
        // A client that waits asks again and hears that it is gone.
        future.changed.notify_waiters();
    }
}
