//! The CPU's twin of running ahead: operations run at once, and their results come one pass late, so that code for a
//! device with a pipeline can be tested without one.

use super::cpu_device::{CpuDevice, Slots};
use plimsoll_base::DType;
use plimsoll_device::Pipeline;
use plimsoll_memory::Buf;

impl CpuDevice {
    /// Gives the device a pipeline; it is then slower, and gives the same bits.
    pub fn run_ahead(&mut self) {
        self.slots = Some(Slots::default());
    }

    fn slot(&self, slot: usize) -> std::sync::MutexGuard<'_, Vec<u32>> {
        let slots = self.slots.as_ref().expect("only a device that runs ahead has a pipeline");
        slots[slot].lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Pipeline for CpuDevice {
    fn replay(&self, _key: u64, ops: &mut dyn FnMut()) {
        ops();
    }

    fn fetch(&self, slot: usize, bufs: &[Buf<'_>]) {
        let _claim = self.claims.fetch(bufs);
        let mut words = self.slot(slot);
        words.clear();
        for &buf in bufs {
            match buf.dtype() {
                DType::U32 => words.extend(self.read::<u32>(buf)),
                _ => words.extend(self.read::<f32>(buf).iter().map(|x| x.to_bits())),
            }
        }
    }

    fn fetched(&self, slot: usize, take: &mut dyn FnMut(&[u32])) {
        take(&self.slot(slot));
    }
}
