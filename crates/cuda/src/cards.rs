//! The cards that the driver shows, without opening one.

use super::{driver, nvml};
use cudarc::driver::{result, sys};
use plimsoll_base::Bytes;
use plimsoll_device::CardInfo;

/// Returns the visible cards in the driver's order; none without a usable driver.
pub fn cards() -> Vec<CardInfo> {
    if driver::first_device().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    (0..count).filter_map(|index| card(result::device::get(index).ok()?)).collect()
}

/// Returns the visible card with this UUID.
pub(crate) fn device_of(uuid: &str) -> Option<sys::CUdevice> {
    let count = result::device::get_count().unwrap_or(0);
    let devices = (0..count).filter_map(|index| result::device::get(index).ok());
    devices.into_iter().find(|device| nvml::uuid_of(*device).as_deref() == Some(uuid))
}

fn card(device: sys::CUdevice) -> Option<CardInfo> {
    // SAFETY: the driver enumerated this device itself.
    let total = unsafe { result::device::total_mem(device) }.ok()? as u64;
    let free = nvml::Monitor::open(device).and_then(|monitor| monitor.memory());
    Some(CardInfo {
        uuid: nvml::uuid_of(device)?,
        name: result::device::get_name(device).unwrap_or_default(),
        total: Bytes(total),
        free: free.map(|(free, _)| free),
    })
}
