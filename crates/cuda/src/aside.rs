//! A second stream for exchanges with other ranks, and marks by which processes' streams wait for each other.

use super::driver::{self, Gpu, Mark};
use super::transfers::Stream;
use cudarc::driver::sys;
use plimsoll_base::Result;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Turns that have their own marks: one is set again when all ranks have waited for those of the next turn.
pub(crate) const TURNS: usize = 4;
/// Marks of a rank: one of what was computed for each turn, then one of what was put aside for each.
pub(crate) const MARKS: usize = 2 * TURNS;
/// Spans of the clock that may be open at once: a host is never that many turns in front of its card.
const SPANS: usize = 64;

/// The stream and marks of this rank.
#[derive(Debug)]
pub(crate) struct AsideStream {
    pub(crate) stream: Stream,
    pub(crate) marks: [Mark; MARKS],
    /// True while operations are being put aside.
    pub(crate) is_on: AtomicBool,
    pub(crate) clock: Clock,
}

/// How long what is put aside takes on its stream: from when nothing holds it up any more until it is done.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The begin and the end of a turn.
    spans: Vec<[Mark; 2]>,
    /// The first span that is not read yet, the next one, and the seconds of those that are read.
    read: Mutex<(usize, usize, f64)>,
}

impl Clock {
    /// Errors: `cuda-failed`.
    fn new(gpu: &Gpu) -> Result<Clock> {
        let spans = (0..SPANS).map(|_| Ok([Mark::new(gpu)?, Mark::new(gpu)?])).collect::<Result<_>>()?;
        Ok(Clock { spans, read: Mutex::new((0, 0, 0.0)) })
    }

    /// Returns the marks of the next span, both to be recorded.
    pub(crate) fn next(&self) -> &[Mark; 2] {
        let mut read = self.read.lock().unwrap_or_else(|e| e.into_inner());
        if read.1 - read.0 == SPANS {
            self.add(&mut read);
        }
        read.1 += 1;
        &self.spans[(read.1 - 1) % SPANS]
    }

    /// Returns the seconds of all spans since the last call, once the card has passed them.
    pub(crate) fn take(&self) -> f64 {
        let mut read = self.read.lock().unwrap_or_else(|e| e.into_inner());
        while read.0 < read.1 {
            self.add(&mut read);
        }
        std::mem::take(&mut read.2)
    }

    fn add(&self, read: &mut (usize, usize, f64)) {
        let [begin, end] = &self.spans[read.0 % SPANS];
        read.2 += end.seconds_since(begin).unwrap_or(0.0);
        read.0 += 1;
    }
}

impl AsideStream {
    /// Errors: `cuda-failed`.
    pub(crate) fn new(gpu: &Gpu) -> Result<AsideStream> {
        let mut marks = [const { None }; MARKS];
        for mark in &mut marks {
            *mark = Some(Mark::shared(gpu)?);
        }
        let marks = marks.map(|mark| mark.expect("made just now"));
        // Sums of arrivals take microseconds, and copies wait for them; products that fill the card take milliseconds.
        let stream = Stream::served_first(gpu)?;
        Ok(AsideStream { stream, marks, is_on: AtomicBool::new(false), clock: Clock::new(gpu)? })
    }

    pub(crate) fn wait(&self) -> std::result::Result<(), cudarc::driver::result::DriverError> {
        self.stream.wait()
    }
}

impl Mark {
    /// Makes an event that other processes may open.
    fn shared(gpu: &Gpu) -> Result<Mark> {
        gpu.bind();
        let flags = sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: a valid place for a handle; `Mark` destroys what is made.
        let made = unsafe { sys::cuEventCreate(&mut event, flags) };
        made.result()
            .map(|()| Mark(event))
            .map_err(|err| driver::failed("making an event for other ranks", err))
    }
}
