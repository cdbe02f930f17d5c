//! The table of devices (`ROWS`). A row says whether this machine has the device, what it can do, its memory and its
//! rates, and opens it, alone or among ranks.
//!
//! Callers ask a row what a device can do, never its name. A new device is a crate that implements
//! `plimsoll_device::Backend`, and a row here. Rows know no run files or models' passes: these come as numbers.

mod among;
mod card_link;
mod cards;
mod cpu;
mod cuda;
mod rates;
mod row;
mod rows;

pub use among::nccl_version;
pub use card_link::card_link;
pub use cards::{Card, bandwidth_here};
pub use cpu::scratch_of_matrices;
pub use cuda::{hand_over, take};
pub use rates::{CardRates, Rates};
pub use row::{BoxedDevice, DeviceRow, Opening, Probe, Sizes};
pub use rows::{ROWS, auto, card, host, named, of, open, takes_head_dim};
