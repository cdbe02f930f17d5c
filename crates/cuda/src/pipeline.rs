//! Running ahead of the host: CUDA graphs of recorded passes, and results that come back after them.

use super::driver;
use super::queue::{Graph, Slot};
use super::{Arg, CudaDevice, Launch};
use cudarc::driver::{result, sys};
use plimsoll_base::Result;
use plimsoll_device::{Batch, KEY_WORDS, Pipeline, SEGMENT_FIELDS, Slots};
use plimsoll_memory::Buf;
use std::sync::atomic::Ordering;

/// Records what `ops` queues on the stream.
fn record(dev: &CudaDevice, ops: &mut dyn FnMut()) -> Result<Graph> {
    let failed = |what: &'static str| move |err| driver::failed(what, err);
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is ours, and nothing else records on it.
    unsafe { result::stream::begin_capture(dev.gpu.stream, mode) }.map_err(failed("recording a pass"))?;
    dev.pipeline.is_recording.store(true, Ordering::Relaxed);
    ops();
    dev.pipeline.is_recording.store(false, Ordering::Relaxed);
    // SAFETY: the capture began above, on this stream.
    let graph = unsafe { result::stream::end_capture(dev.gpu.stream) }.map_err(failed("recording a pass"))?;
    // SAFETY: the graph was just captured, and is not needed once it is instantiated.
    unsafe {
        let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
        let _ = result::graph::destroy(graph);
        exec.map(Graph).map_err(failed("making a graph"))
    }
}

impl Pipeline for CudaDevice {
    fn replay(&self, key: u64, ops: &mut dyn FnMut()) {
        if self.has_failed() {
            return;
        }
        // Noise differs from step to step, and a recorded pass keeps its arguments.
        if self.noise.lock().unwrap_or_else(|e| e.into_inner()).is_some() {
            return ops();
        }
        self.gpu.bind();
        let mut graphs = self.pipeline.graphs.lock().unwrap_or_else(|e| e.into_inner());
        let Some(recorded) = graphs.get_mut(&key) else {
            // The first pass only runs: it may load functions at their first use, which a recording may not.
            graphs.insert(key, None);
            drop(graphs);
            return ops();
        };
        if recorded.is_none() {
            match record(self, ops) {
                Ok(graph) => *recorded = Some(graph),
                Err(error) => return self.fail(error),
            }
        }
        let Some(graph) = recorded else { return };
        if self.has_failed() {
            return;
        }
        // SAFETY: the graph is in the map, and the stream lives as long as the device.
        if let Err(err) = unsafe { result::graph::launch(graph.0, self.gpu.stream) } {
            self.fail(driver::failed("replaying a pass", err));
        }
    }

    fn fetch(&self, slot: usize, bufs: &[Buf<'_>]) {
        if self.has_failed() {
            return;
        }
        let _claim = self.claims.fetch(bufs);
        self.gpu.bind();
        let mut guard = self.pipeline.slots[slot].lock().unwrap_or_else(|e| e.into_inner());
        let Slot { host, words, done } = &mut *guard;
        *words = 0;
        for &buf in bufs {
            assert_eq!(buf.dtype().bytes(), 4, "words come back, not {}", buf.dtype().name());
            let address = self.address(buf);
            let to = &mut host.bytes()[*words * 4..][..buf.len() * 4];
            // SAFETY: pinned memory that lives as long as the device; it is read after the event.
            let sent = unsafe { result::memcpy_dtoh_async(to, address, self.gpu.stream) };
            if let Err(err) = sent {
                return self.fail(driver::failed("fetching results", err));
            }
            *words += buf.len();
        }
        // SAFETY: the event and the stream live as long as the device.
        if let Err(err) = unsafe { result::event::record(done.0, self.gpu.stream) } {
            self.fail(driver::failed("fetching results", err));
        }
    }

    fn fetched(&self, slot: usize, take: &mut dyn FnMut(&[u32])) {
        self.gpu.bind();
        let mut guard = self.pipeline.slots[slot].lock().unwrap_or_else(|e| e.into_inner());
        let Slot { host, words, done } = &mut *guard;
        if !self.has_failed() {
            // SAFETY: the event lives as long as the device.
            let waited = unsafe { result::event::synchronize(done.0) };
            if let Err(err) = waited {
                self.fail(driver::failed("waiting for results", err));
            }
        }
        let bytes = &host.bytes()[..*words * 4];
        // SAFETY: pinned memory is page-aligned, and any bits make a u32.
        let (head, values, tail) = unsafe { bytes.align_to::<u32>() };
        assert!(head.is_empty() && tail.is_empty(), "pinned memory is aligned");
        take(values);
    }
}

pub(crate) fn advance(
    dev: &CudaDevice,
    batch: Batch<'_>,
    window: Option<Slots<'_>>,
    ids: Buf<'_>,
    tokens: Buf<'_>,
    keys: Buf<'_>,
) {
    let rows = ids.len();
    assert_eq!((batch.positions.len(), tokens.len(), keys.len()), (rows, rows, rows * KEY_WORDS));
    assert_eq!((batch.slots.len(), batch.segments.len()), (rows, rows * SEGMENT_FIELDS), "one row a segment");
    let [window_tables, window_slots] = match window {
        Some(Slots { slots, tables }) => {
            assert_eq!((slots.len(), tables.len()), (rows, batch.tables.len()), "as those of the batch");
            [dev.arg(tables), dev.arg(slots)]
        }
        None => [Arg::Ptr(0); 2],
    };
    let how = Launch { grid: [rows.div_ceil(128) as u32, 1, 1], block: 128, shared: 0 };
    let Batch { positions, slots, segments, tables, .. } = batch;
    let bufs = args![dev, tokens, tables, ids, positions, slots, segments, keys];
    let args = [&bufs[..], &args![dev, rows, tables.len(), window_tables, window_slots]].concat();
    dev.launch("decode", "advance", how, &args);
}
