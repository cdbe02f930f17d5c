//! Saving next to the following rollout: one job at a time, on a separate thread that reads leased regions.

use super::Store;
use plimsoll_base::{Error, Result};
use std::path::PathBuf;
use std::thread::{self, Scope, ScopedJoinHandle};

/// Stack of the thread, which copies rows through the staging buffer and hashes them.
const STACK_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct Saver<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    under_way: Option<(u32, ScopedJoinHandle<'scope, Result<PathBuf>>)>,
}

impl<'scope, 'env> Saver<'scope, 'env> {
    /// Returns an idle saver. Its threads end with the scope.
    pub fn new(scope: &'scope Scope<'scope, 'env>) -> Saver<'scope, 'env> {
        Saver { scope, under_way: None }
    }

    /// Starts a job. The previous one must have been settled.
    ///
    /// Errors: `thread-not-started`.
    pub fn start(
        &mut self,
        step: u32,
        store: Store,
        job: impl FnOnce() -> Result<PathBuf> + Send + 'scope,
    ) -> Result<()> {
        assert!(self.under_way.is_none(), "two saves at once would need two staging buffers");
        let thread = thread::Builder::new().name("saver".into()).stack_size(STACK_BYTES);
        let handle = thread.spawn_scoped(self.scope, job).map_err(|err| {
            store.abandon(step);
            Error::new("thread-not-started", format!("the thread that saves: {err}"))
                .hint("raise the limit on threads (ulimit -u, pids.max), or end other programs")
        })?;
        self.under_way = Some((step, handle));
        Ok(())
    }

    /// Waits for the job in progress, if any; returns its step and the checkpoint's path.
    pub fn settle(&mut self) -> Result<Option<(u32, PathBuf)>> {
        let Some((step, handle)) = self.under_way.take() else { return Ok(None) };
        match handle.join() {
            Ok(result) => result.map(|path| Some((step, path))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
