//! Devices before they are opened: options, and what a machine reports of those with memory of their own.

use plimsoll_arch::{LoraShape, TowerSpec, tower_adapted};
use plimsoll_base::{Bytes, DType};

/// Memory that a device's driver and libraries hold outside the arena; none where the device is the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverMemory {
    /// On the card, besides the arena and recorded passes: context, modules, libraries of products.
    pub card: Bytes,
    /// On the host, anonymous.
    pub host: Bytes,
    /// On the host, pages of their files.
    pub files: Bytes,
    /// On the host, shared with the card.
    pub shared: Bytes,
}

/// Options for opening a device, whatever the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Waits after every kernel, checks indices and values, and names what is wrong.
    pub checked: bool,
    /// Times every kernel alone.
    pub profile: bool,
}

/// Sizes that a device's scratch depends on, besides the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScratchLimits {
    pub weights: DType,
    pub threads: usize,
    pub trains: bool,
    /// Highest rank of an adapter, if there is one.
    pub rank_max: Option<u32>,
    pub decode_rows: usize,
    pub keys_max: usize,
    /// (rows, segments) of a pass over whole sequences, if there are any.
    pub update: Option<(usize, usize)>,
    /// Adapters that are trained.
    pub adapters: Option<LoraShape>,
    /// Ranks that train together.
    pub ranks: usize,
    /// Passes of a tower over images that is trained, if there is one; a frozen tower needs none.
    pub tower: Option<TowerPasses>,
}

/// Sizes of the passes of a tower that is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerPasses {
    pub spec: TowerSpec,
    /// Most patches of a pass.
    pub patches: usize,
    /// Most images of a pass.
    pub images: usize,
    /// Rank of the adapters that are trained instead of its weights, if they are.
    pub rank: Option<u32>,
}

impl TowerPasses {
    /// Returns the shapes [n, k] of the matrices that rows are multiplied by.
    pub fn products(&self) -> Vec<(u64, u64)> {
        let mut all = self.spec.products();
        let rank = self.rank.map(u64::from);
        let adapted = rank.map(|_| tower_adapted(&self.spec)).unwrap_or_default();
        for (layers, rank) in adapted.iter().zip(rank.into_iter().cycle()) {
            all.push((rank * layers.len() as u64, layers[0].cols.into()));
            all.extend(layers.iter().map(|layer| (u64::from(layer.rows), rank)));
        }
        all
    }

    /// Returns the most segments of a pass: images, or windows.
    pub fn segments(&self) -> usize {
        self.images.max(self.spec.windows_max(self.patches, self.images))
    }
}

/// A card that this process could open.
#[derive(Clone, Debug, PartialEq)]
pub struct CardInfo {
    /// Identifies this card, in the form that the driver's variable of visible cards takes.
    pub uuid: String,
    /// Product name, from the driver.
    pub name: String,
    pub total: Bytes,
    /// Free memory, if the driver's monitor reports it.
    pub free: Option<Bytes>,
}

/// Result of one way to hand memory to another process: nothing, or the words of what refused it.
pub type Way = std::result::Result<(), String>;

/// Results of opening a card's memory in another process.
#[derive(Clone, Debug, PartialEq)]
pub struct HandOver {
    /// Plain memory, by a handle.
    pub plain: Way,
    /// Mapped memory, by a file descriptor.
    pub mapped: Way,
}
