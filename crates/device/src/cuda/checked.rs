//! What a checked build does after every operation: looks for values that are not numbers, and names the region.

use super::{Arg, CudaDevice, Launch};
use plimsoll_base::Phase;
use plimsoll_base::{DType, Error};
use plimsoll_memory::{ArenaMap, Buf};

/// A region's place, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    name: String,
    start: u64,
    end: u64,
}

impl CudaDevice {
    /// Takes the names of the arena's regions, for messages of a checked build.
    pub fn name_regions(&mut self, map: &ArenaMap) {
        let phases = Phase::ALL.into_iter().flat_map(|phase| map.phase(phase));
        let named = |b: &plimsoll_memory::Binding| Named {
            name: b.name.clone(),
            start: b.offset,
            end: b.offset + b.bytes,
        };
        self.regions = map.resident().iter().chain(phases).map(named).collect();
    }

    /// The regions that hold a buffer: phases share bytes, so there may be several.
    fn regions_of(&self, buf: Buf<'_>) -> String {
        let here = self.regions.iter().filter(|r| r.start <= buf.offset() && buf.offset() < r.end);
        let names: Vec<&str> = here.map(|r| r.name.as_str()).collect();
        if names.is_empty() { format!("offset {}", buf.offset()) } else { names.join(" or ") }
    }

    /// In a checked build: every element of an operation's outputs is a number.
    pub(crate) fn inspect(&self, operation: &str, outputs: &[Buf<'_>]) {
        if !self.checked {
            return;
        }
        for &buf in outputs {
            let kernel = match buf.dtype() {
                DType::F32 => "find_not_finite_f32",
                DType::Bf16 => "find_not_finite_bf16",
                _ => continue,
            };
            let how = Launch { grid: [4 * self.multiprocessors(), 1, 1], block: 256, shared: 0 };
            self.launch("checks", kernel, how, &[self.arg(buf), Arg::U64(buf.len() as u64)]);
            if let Some([_, low, high, _]) = self.kernels.take_fault("checks") {
                let index = u64::from(high) << 32 | u64::from(low);
                let message = format!(
                    "operation {operation}: element {index} of {} ({} elements of {}) is not finite",
                    self.regions_of(buf),
                    buf.len(),
                    buf.dtype().name()
                );
                return self.fail(
                    Error::new("cuda-not-finite", message)
                        .hint("lower train.learning_rate, or start from the last good checkpoint"),
                );
            }
        }
    }
}
