//! Low-rank adapters, which are trained while the decoder's weights are frozen.
//!
//! A layer has four products: q, k and v are one, gate and up another. The adapters of a product's targets share one
//! matrix of A, so that its input is read once, and have a B each. All of them are in a flat buffer with its own table:
//! loading, saving and AdamW treat it like weights.
//!
//! Legend: r rank, S adapters of a product, M rows; a product has K inputs and N outputs.

mod bufs;
mod handles;
mod load;
mod merged;
mod regions;
mod site;
mod slot_files;
mod slots;
mod table;
mod woven;

pub(crate) use bufs::AdaptBufs;
pub use handles::{Adapters, LayerAdapters};
pub use load::{AdaptersFrom, load_adapters};
pub use merged::Merged;
pub use regions::layout;
pub use slot_files::{SeededSlot, SlotBufs, SlotFile, SlotTensors, fill_slot, save_slot};
pub(crate) use slots::SlotRows;
pub use slots::{NO_SLOT, SlotTable, slots_layout};
pub(crate) use woven::Woven;
