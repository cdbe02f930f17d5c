//! State of running ahead: recorded graphs, and slots of results.

use crate::driver::{Gpu, Mark, Pinned};
use cudarc::driver::{result, sys};
use plimsoll_base::Result;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Bytes of one slot of results: three words for each of 4,096 rows.
pub(crate) const SLOT_BYTES: usize = 3 * 4 * 4096;

/// Recorded graphs and the slots of results.
#[derive(Debug)]
pub(crate) struct Queue {
    /// True while a pass is recorded: weights were written before it.
    pub(crate) is_recording: AtomicBool,
    /// `None` after a pass that was not recorded.
    pub(crate) graphs: Mutex<HashMap<u64, Option<Graph>>>,
    pub(crate) slots: [Mutex<Slot>; 2],
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) host: Pinned,
    pub(crate) words: usize,
    pub(crate) done: Mark,
}

#[derive(Debug)]
pub(crate) struct Graph(pub(crate) sys::CUgraphExec);

// SAFETY: a handle may be used from any thread whose context is current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated in `record`, destroyed once, after the stream was waited for.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

impl Queue {
    /// Errors: `host-allocation-failed`, `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<Queue> {
        let slot = || -> Result<Mutex<Slot>> {
            Ok(Mutex::new(Slot { host: Pinned::new(gpu, SLOT_BYTES)?, words: 0, done: Mark::new(gpu)? }))
        };
        Ok(Queue {
            is_recording: AtomicBool::new(false),
            graphs: Mutex::default(),
            slots: [slot()?, slot()?],
        })
    }
}
