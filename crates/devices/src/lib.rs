//! The devices there are: a row for each (`ROWS`), which says whether this machine has one, what it can do, its memory and its
//! rates, and which opens it, alone or among ranks.
//!
//! What differs between devices is asked of a row, by what it can do and never by its name. A new device is a crate that
//! implements `plimsoll_device::Backend`, and a row here. It knows no run file and no model's passes: these come as numbers.

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
pub use cards::Card;
pub use cpu::scratch_of_matrices;
pub use cuda::{hand_over, take};
pub use rates::{CardRates, Rates};
pub use row::{BoxedDevice, DeviceRow, Opening, Probe, Sizes};
pub use rows::{ROWS, auto, card, host, named, of, open, takes_head_dim};
