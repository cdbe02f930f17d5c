//! The table of devices; finds and opens one of them.

use crate::among::check_layout;
use crate::cpu::CPU;
use crate::cuda::CUDA;
use crate::row::{BoxedDevice, DeviceRow, Opening};
use plimsoll_base::Result;
use plimsoll_device::Layouts;
use plimsoll_memory::{Arena, ArenaMap, Layout};

/// All devices, in the order in which `"auto"` tries them. The last is the host's CPU, which every machine has.
pub static ROWS: [&DeviceRow; 2] = [&CUDA, &CPU];

/// Returns the row of a device by its name in run files.
pub fn named(name: &str) -> &'static DeviceRow {
    ROWS.iter().find(|row| row.kind.name == name).expect("a run file names a device that has a row")
}

/// Returns the row with these layouts.
pub fn of(kind: &Layouts) -> &'static DeviceRow {
    ROWS.iter().find(|row| row.kind == kind).expect("each kind has a row")
}

/// Returns the row of the host's CPU.
pub fn host() -> &'static DeviceRow {
    &CPU
}

/// Returns the device of `"auto"`: the first that works here. `is_given`: own memory has a limit in the run file.
pub fn auto(is_given: bool) -> &'static DeviceRow {
    let is_it = |row: &&&DeviceRow| (is_given && row.has_own_memory()) || (row.probe)().is_ok();
    ROWS.iter().find(is_it).copied().unwrap_or(host())
}

/// Returns the first device with its own memory, which launchers and the doctor ask about.
pub fn card() -> &'static DeviceRow {
    ROWS[0]
}

/// True if every device takes heads of `head_dim` elements.
pub fn takes_head_dim(head_dim: usize) -> bool {
    ROWS.iter().all(|row| (row.takes_head_dim)(head_dim))
}

/// Opens a device with an arena for the regions of `layout`, which must be the same on all ranks.
///
/// Errors: `size-overflow`, `host-allocation-failed`, the driver's; among ranks `ranks-differ` and connection errors.
pub fn open(layout: &Layout, opening: &Opening<'_>) -> Result<(BoxedDevice, Arena)> {
    let mut arena = Arena::new(ArenaMap::new(layout, 0));
    check_layout(opening.group, opening.threads, arena.map())?;
    let dev = (of(opening.kind).open)(&mut arena, opening)?;
    Ok((dev, arena))
}
