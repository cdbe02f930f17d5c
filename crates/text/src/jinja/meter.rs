//! Limits what one template may use. Steps and their time, live bytes of values, and the depth of calls are counted
//! before they are spent, so memory, time and stack are bounded for any template.

use plimsoll_base::Bytes;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::Duration;

/// Longest source. The longest templates of published models have about 30 KiB.
pub(crate) const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Most tags, `{% ... %}` and `{{ ... }}`, in one template. Long published ones have about 400.
pub(super) const TAGS_MAX: usize = 4096;
/// How deep expressions and blocks may nest; a chain of n operators, filters or attributes is n deep.
pub(super) const NESTING_MAX: usize = 128;
/// How deep evaluation may nest, macros that call macros included. Stack: at most 3 KiB a level.
const DEPTH_MAX: u32 = 300;
/// Most steps. A step is one operation, or `BYTES_PER_STEP` bytes of work; 20 million take between 1 and 16 seconds.
const STEPS_MAX: u64 = 20_000_000;
const BYTES_PER_STEP: usize = 64;
/// Longest time on a processor. Published templates take milliseconds for the longest conversations; a server may
/// render one four times for a request. Without optimization the same steps take five times as long.
const TIME_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 2000 } else { 400 });
/// Steps between two looks at the clock.
const STEPS_PER_LOOK: u64 = 1 << 13;
/// Most bytes of all values and text. A growing buffer holds up to twice its text, so a process stays below 256 MiB.
const HELD_BYTES_MAX: usize = 128 << 20;

/// Why a template ends without a text: where, and what.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) line: u32,
    pub(super) what: String,
}

/// A fault is boxed, because every evaluation returns one or a value.
pub(super) type Result<T> = std::result::Result<T, Box<Fault>>;

/// Counts the resources of a rendering. Values point to it and return their bytes when they are dropped.
#[derive(Debug)]
pub(super) struct Meter {
    steps: Cell<u64>,
    held_bytes: Cell<usize>,
    depth: Cell<u32>,
    line: Cell<u32>,
    /// Processor time of this thread at the start.
    begun: Duration,
}

impl Meter {
    pub(super) fn new() -> Meter {
        Meter {
            steps: Cell::new(0),
            held_bytes: Cell::new(0),
            depth: Cell::new(0),
            line: Cell::new(1),
            begun: processor_time(),
        }
    }

    /// Returns a fault in the line being evaluated.
    pub(super) fn fault<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Box::new(Fault { line: self.line.get(), what: what.into() }))
    }

    pub(super) fn at(&self, line: u32) {
        self.line.set(line);
    }

    /// Spends one step and those for handling `bytes`.
    pub(super) fn work(&self, bytes: usize) -> Result<()> {
        let before = self.steps.get();
        let steps = before + 1 + (bytes / BYTES_PER_STEP) as u64;
        self.steps.set(steps);
        if steps > STEPS_MAX {
            return self.fault(format!("more than {STEPS_MAX} steps"));
        }
        let is_look = steps / STEPS_PER_LOOK != before / STEPS_PER_LOOK;
        if is_look && processor_time().saturating_sub(self.begun) > TIME_MAX {
            return self.fault(format!(
                "more than {} ms of processor time, after {steps} steps",
                TIME_MAX.as_millis()
            ));
        }
        Ok(())
    }

    /// Enters one level of evaluation; `leave` ends it.
    pub(super) fn enter(&self) -> Result<()> {
        self.work(0)?;
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > DEPTH_MAX {
            self.fault(format!("calls and blocks nest deeper than {DEPTH_MAX}"))
        } else {
            Ok(())
        }
    }

    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get() - 1);
    }

    fn hold(&self, bytes: usize) -> Result<()> {
        let held = self.held_bytes.get().saturating_add(bytes);
        if held > HELD_BYTES_MAX {
            let [held, more, limit] =
                [self.held_bytes.get(), bytes, HELD_BYTES_MAX].map(|bytes| Bytes(bytes as u64));
            let what = format!("its values hold {held} and would take {more} more, the limit is {limit}");
            return self.fault(what);
        }
        self.held_bytes.set(held);
        self.work(bytes)
    }
}

/// Bytes that a value holds.
#[derive(Debug)]
pub(super) struct Charge<'r> {
    meter: &'r Meter,
    bytes: usize,
}

impl<'r> Charge<'r> {
    pub(super) fn none(meter: &'r Meter) -> Charge<'r> {
        Charge { meter, bytes: 0 }
    }

    /// Counts `bytes` more. To be called before they are allocated.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<()> {
        self.meter.hold(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(super) fn meter(&self) -> &'r Meter {
        self.meter
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.meter.held_bytes.set(self.meter.held_bytes.get() - self.bytes);
    }
}

/// Returns the time that this thread has had a processor for.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
