//! Admits requests within the bounds of their tenant.

use super::core::Core;
use crate::record::{RequestKey, RequestTask};
use plimsoll_base::{Error, Result};

impl Core {
    /// Checks that a request has room and its place in the order has not passed.
    ///
    /// Errors: `tinker-queue-full`, `tinker-journal-full`, `tinker-order`.
    pub fn admit(&mut self, tenant: &str, key: &RequestKey, task: &RequestTask, bytes: usize) -> Result<()> {
        let usage = self.usage.get(tenant).copied().unwrap_or_default();
        let limits = self.limits;
        if usage.pending >= limits.pending || usage.bytes + bytes > limits.pending_bytes {
            let message = format!(
                "{} requests of yours with {} bytes wait for their answers, and {} with {} bytes is the most",
                usage.pending, usage.bytes, limits.pending, limits.pending_bytes
            );
            return Err(Error::new("tinker-queue-full", message).hint("send it again in a second"));
        }
        let rows = self.tables.models.values().filter(|row| row.tenant == tenant && row.closed.is_none());
        let kept = usage.bytes + rows.map(|row| row.log_bytes).sum::<usize>();
        let is_pass = matches!(task, RequestTask::Pass { gradients: true, .. });
        if is_pass && kept + bytes > limits.journal_bytes {
            let message = format!(
                "a restart would need {kept} bytes of your requests, and {} bytes is the most that is kept of a token",
                limits.journal_bytes
            );
            return Err(Error::new("tinker-journal-full", message)
                .hint("take an optimizer step and save_state, which lets the requests before it go"));
        }
        if matches!(task, RequestTask::Create { .. } | RequestTask::LoadNew { .. } | RequestTask::Save(_)) {
            self.check_things(tenant)?;
        }
        let is_model = self.tables.models.contains_key(&key.target);
        let is_new = matches!(task, RequestTask::Create { .. } | RequestTask::LoadNew { .. });
        if is_new && is_model {
            let message = format!("there is a model {:?} already", key.target);
            return Err(
                Error::new("tinker-order", message).hint("each model of a session has its own model_seq_id")
            );
        }
        if is_model && key.seq < self.next_seq(&key.target) {
            let message = format!("request {} of the model {:?} comes after its turn", key.seq, key.target);
            return Err(Error::new("tinker-order", message)
                .hint("the places of a model are used once: a request that was refused cannot be sent again")
                .hint("its result is no longer kept if it had one"));
        }
        Ok(())
    }
}
