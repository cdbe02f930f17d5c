//! What is known of a device before it is opened: how it is to be, and what a machine says of those with memory of their own.

use plimsoll_arch::LoraShape;
use plimsoll_base::{Bytes, DType};

/// What a device's driver and libraries hold outside the arena; nothing where the device is the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of the card, besides the arena and recorded passes: context, modules, libraries of products.
    pub card: Bytes,
    /// Of the host, anonymous memory.
    pub host: Bytes,
    /// Of the host, pages of their files.
    pub files: Bytes,
    /// Of the host, memory shared with the card.
    pub shared: Bytes,
}

/// How a device is opened, whatever the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Wait after every kernel, check indices and values, and name what is wrong.
    pub checked: bool,
    /// Time every kernel alone.
    pub profile: bool,
}

/// What a device's scratch depends on besides the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchLimits {
    pub weights: DType,
    pub threads: usize,
    pub trains: bool,
    /// The highest rank of an adapter, if there is one.
    pub rank_max: Option<u32>,
    pub decode_rows: usize,
    pub keys_max: usize,
    /// (rows, segments) of a pass over whole sequences, if there are any.
    pub update: Option<(usize, usize)>,
    /// Adapters that are trained.
    pub adapters: Option<LoraShape>,
    /// Ranks that train together.
    pub ranks: usize,
}

/// A card that this process could open.
#[derive(Clone, Debug, PartialEq)]
pub struct CardInfo {
    /// Names this card alone, in the form that the driver's variable of visible cards takes.
    pub uuid: String,
    /// What the driver calls it.
    pub name: String,
    pub total: Bytes,
    /// Where the driver's monitor says.
    pub free: Option<Bytes>,
}

/// What became of one way to hand memory to another process: nothing, or the words of what refused it.
pub type Way = std::result::Result<(), String>;

/// How another process fared with a card's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOver {
    /// Plain memory by a handle.
    pub plain: Way,
    /// Mapped memory by a file descriptor.
    pub mapped: Way,
}
