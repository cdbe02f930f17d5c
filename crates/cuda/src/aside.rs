//! A second stream for exchanges with other ranks, and marks by which processes' streams wait for each other.

use super::driver::{self, Gpu, Mark};
use super::transfers::Stream;
use cudarc::driver::sys;
use plimsoll_base::Result;
use std::sync::atomic::AtomicBool;

/// Turns that have their own marks: one is set again when all ranks have waited for those of the next turn.
pub(crate) const TURNS: usize = 4;
/// Marks of a rank: one of what was computed for each turn, then one of what was put aside for each.
pub(crate) const MARKS: usize = 2 * TURNS;

/// The stream and marks of this rank.
#[derive(Debug)]
pub(crate) struct AsideStream {
    pub(crate) stream: Stream,
    pub(crate) marks: [Mark; MARKS],
    /// True while operations are being put aside.
    pub(crate) is_on: AtomicBool,
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
        Ok(AsideStream { stream, marks, is_on: AtomicBool::new(false) })
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
