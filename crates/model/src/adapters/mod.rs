//! Low-rank adapters: what a decoder learns while its weights stay as they are.
//!
//! A layer has four products: q, k and v are one, gate and up another. The adapters of a product's targets have their A in one
//! matrix, so that its input is read once, and a B each. All of them lie in a flat buffer with a table of its own: loading, saving
//! and AdamW treat it as they treat weights.
//!
//! Legend: r rank, S adapters of a product, M rows; a product has K inputs and N outputs.

mod bufs;
mod handles;
mod load;
mod merged;
mod regions;
mod site;
mod table;

pub(crate) use bufs::AdaptBufs;
pub use handles::{Adapters, LayerAdapters};
pub use load::{AdaptersFrom, load_adapters};
pub use merged::Merged;
pub use regions::layout;
