//! How the gradients of an update's micro-batches are added up. Which rank computes one changes no bit: each is added after those before it.

use plimsoll_base::DType;
use plimsoll_device::Device;
use plimsoll_memory::Buf;

/// How the gradients of micro-batches are added up. `near` changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summing {
    /// To which each is rounded before it is added, wherever it was computed; `None` where one rank adds it as it comes.
    pub partial: Option<DType>,
    /// Consecutive micro-batches whose sum is formed first, and then added to the sums before it; at least 1.
    pub fold: usize,
    /// Ranks of each host, where those of several add what is folded on their own, so that other hosts take one sum instead of `fold`
    /// gradients.
    pub near: Option<usize>,
}

impl Default for Summing {
    /// Each is added as it comes.
    fn default() -> Summing {
        Summing { partial: None, fold: 1, near: None }
    }
}

/// The sum of an update's gradients that a rank owns, while it grows.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'p> {
    /// What the rank owns, as its optimizer states lie.
    pub shard: Buf<'p>,
    /// As much of the micro-batches that are folded; `None` where each is added to all before it.
    pub folded: Option<Buf<'p>>,
    pub fold: usize,
    /// Micro-batches of the update.
    pub count: usize,
}

impl<'p> Sum<'p> {
    /// Returns where micro-batch `index` is added, and whether anything is there yet.
    pub(crate) fn target(&self, index: usize) -> (Buf<'p>, bool) {
        match self.folded {
            Some(folded) => (folded, !index.is_multiple_of(self.fold)),
            None => (self.shard, index > 0),
        }
    }

    /// Adds the gradients of some elements, of micro-batches from `first` on. `at`: where the elements are in the shard.
    pub(crate) fn add(&self, dev: &dyn Device, parts: &[Buf<'_>], first: usize, at: u64) {
        let (mut rest, mut index) = (parts, first);
        while let Some(part) = rest.first() {
            let of_sum = if self.folded.is_some() { self.fold - index % self.fold } else { rest.len() };
            let (now, later) = rest.split_at(of_sum.min(rest.len()));
            let (to, add) = self.target(index);
            dev.fold(now, to.slice(at as usize, part.len()), add);
            (rest, index) = (later, index + now.len());
            self.close(dev, index - 1, at, part.len());
        }
    }

    /// Adds what is folded of some elements to the sums before it, if micro-batch `index` is the last of it.
    pub(crate) fn close(&self, dev: &dyn Device, index: usize, at: u64, len: usize) {
        let Some(folded) = self.folded else { return };
        if (index + 1).is_multiple_of(self.fold) || index + 1 == self.count {
            self.add_folded(dev, folded.slice(at as usize, len), index, at);
        }
    }

    /// Adds a sum of folded micro-batches, of which `index` is one.
    pub(crate) fn add_folded(&self, dev: &dyn Device, sum: Buf<'_>, index: usize, at: u64) {
        dev.accumulate(sum, self.shard.slice(at as usize, sum.len()), index >= self.fold);
    }
}
