//! Additions of a checked build: after every operation it looks for values that are not numbers and names the region;
//! between phases it makes what the last one left unusable, and it names handles that outlived their phase.

use super::cuda_device::Named;
use super::{Arg, CudaDevice, Launch, memory};
use plimsoll_base::{DType, Error, Phase};
use plimsoll_memory::{ArenaMap, Binding, Buf};
use std::panic::Location;

/// Byte that overwrites an ended phase: a NaN in f32 and in bf16, and no index that is in use.
const FREED: u8 = 0xff;

pub(crate) fn begin_phase(dev: &CudaDevice, phase: Phase, shared: Buf<'_>) {
    if dev.checked {
        *dev.phase.lock().unwrap_or_else(|e| e.into_inner()) = Some(phase);
        memory::fill(dev, shared, FREED);
    }
}

/// Makes what an output held unusable, in a checked build, before another library's kernel writes all of it: an element
/// that it leaves is not finite. A tool that watches memory (initcheck) sees the writes of this, and few of theirs.
pub(crate) fn forget(dev: &CudaDevice, out: Buf<'_>) {
    if dev.checked {
        memory::fill(dev, out, FREED);
    }
}

impl CudaDevice {
    /// Takes the names of the arena's regions, for messages of a checked build.
    pub fn name_regions(&mut self, map: &ArenaMap) {
        let of = |phase: Option<Phase>, regions: &[Binding]| -> Vec<Named> {
            let named =
                |b: &Binding| Named { name: b.name.clone(), phase, start: b.offset, end: b.offset + b.bytes };
            regions.iter().map(named).collect()
        };
        self.regions = of(None, map.resident());
        self.regions.extend(Phase::ALL.into_iter().flat_map(|phase| of(Some(phase), map.phase(phase))));
    }

    fn region_of(&self, buf: Buf<'_>) -> String {
        let mut here = self.regions.iter().filter(|r| r.start <= buf.offset() && buf.offset() < r.end);
        let found = here.find(|r| r.phase == buf.phase());
        found.map_or_else(|| format!("offset {}", buf.offset()), |r| r.name.clone())
    }

    /// Requires, in a checked build, that the handle's phase, if it has one, is under way.
    ///
    /// Lifetimes keep handles from outliving their phase; this finds code that circumvents them.
    #[track_caller]
    pub(crate) fn check_phase(&self, buf: Buf<'_>) {
        let Some(of) = buf.phase().filter(|_| self.checked) else { return };
        let now = *self.phase.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(now) = now.filter(|&now| now != of) {
            let message = format!(
                "{}: {} belongs to phase {}, which has ended: its bytes are those of phase {}",
                Location::caller(),
                self.region_of(buf),
                of.name(),
                now.name()
            );
            self.fail(
                Error::new("cuda-freed-region", message)
                    .hint("this is a bug in Plimsoll: please report it with the run file"),
            );
        }
    }

    /// Requires every element of an operation's output to be finite.
    pub(crate) fn inspect(&self, operation: &str, buf: Buf<'_>) {
        let kernel = match buf.dtype() {
            DType::F32 => "find_not_finite_f32",
            DType::Bf16 => "find_not_finite_bf16",
            _ => return,
        };
        if buf.is_offloaded() {
            return; // No kernel reads the host's memory.
        }
        let how = Launch { grid: [4 * self.multiprocessors(), 1, 1], block: 256, shared: 0 };
        self.launch("checks", kernel, how, &[self.arg(buf), Arg::U64(buf.len() as u64)]);
        if let Some([_, low, high, _]) = self.kernels.take_fault("checks") {
            let index = u64::from(high) << 32 | u64::from(low);
            let message = format!(
                "operation {operation}: element {index} of {} ({} elements of {}) is not finite",
                self.region_of(buf),
                buf.len(),
                buf.dtype().name()
            );
            self.fail(
                Error::new("cuda-not-finite", message)
                    .hint("lower train.learning_rate, or start from the last good checkpoint"),
            );
        }
    }
}
