//! Phases, begun on both sides.

use plimsoll_base::Phase;
use plimsoll_device::Device;
use plimsoll_memory::{InPhase, Overlay};

/// Begins a phase on the host and on the device.
pub fn enter<'p>(dev: &dyn Device, overlay: &'p mut Overlay<'_>, phase: Phase) -> InPhase<'p> {
    dev.begin_phase(phase, overlay.bytes());
    overlay.enter(phase)
}
