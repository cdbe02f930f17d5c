//! Opens a card, with a scratch, and its twin on the CPU.

use crate::both::{Machine, Open, Rig, Sized};
use plimsoll_base::DType;
use plimsoll_cpu::Isa;
use plimsoll_cuda::{CudaDevice, probe};
use plimsoll_device::{Layouts, OpenOptions};
use plimsoll_memory::{Buf, Pool};

/// Bytes of a card's scratch in tests.
const SCRATCH: usize = 64 << 20;

pub type Card = Rig<CudaDevice>;

impl Machine for CudaDevice {
    const KIND: &'static Layouts = &plimsoll_cuda::LAYOUTS;
    const ROUNDS_WEIGHTS: bool = true;
    fn key_at(d: usize, slot: usize, i: usize) -> usize {
        slot * d + i
    }
    fn bind_scratch(&mut self, scratch: Buf<'_>) {
        self.bind_scratch(scratch);
    }
    fn fill_raw(&mut self, byte: u8) {
        self.fill_raw(byte);
    }
    fn raw(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.raw(offset, len)
    }
}

/// `None`, and a line that says why, without a card.
pub fn on_card(buffers: &[Sized<'_>]) -> Option<Card> {
    on_card_with(buffers, OpenOptions::default())
}

pub fn on_card_with(buffers: &[Sized<'_>], options: OpenOptions) -> Option<Card> {
    let open = |bytes| CudaDevice::new(bytes, options).expect("the card opens");
    has_card().then(|| Rig::open(Pool::Device, &with_scratch(buffers, SCRATCH), open))
}

/// Runs a check of all devices, or says why not.
pub fn run_on_card(check: impl FnOnce(Open<'_, CudaDevice>)) {
    if has_card() {
        check(&|buffers| on_card(buffers).into_iter().collect());
    }
}

fn has_card() -> bool {
    probe().inspect_err(|error| eprintln!("skipped: {error}")).is_ok()
}

/// The same buffers on the CPU.
pub fn twin(buffers: &[Sized<'_>]) -> Rig {
    Rig::new(Isa::detect(), 1, &with_scratch(buffers, 1 << 20))
}

fn with_scratch<'s>(buffers: &[Sized<'s>], bytes: usize) -> Vec<Sized<'s>> {
    buffers.iter().copied().chain([("scratch", DType::Bf16, bytes / 2)]).collect()
}
