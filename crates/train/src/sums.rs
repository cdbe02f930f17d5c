//! How the gradients of an update's micro-batches are summed: in order, so the ranks that compute them change no bit.

use plimsoll_base::DType;
use plimsoll_device::Device;
use plimsoll_memory::Buf;

/// Order and rounding of the sum of micro-batches' gradients. `near` changes no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summing {
    /// Dtype that each is rounded to before it is added, wherever it is computed; `None` where one rank adds unrounded.
    pub partial: Option<DType>,
    /// Consecutive micro-batches that are summed first and then added to the sums before them; at least 1.
    pub fold: usize,
    /// Ranks per host, if hosts add their folds on their own: other hosts then take one sum instead of `fold`
    /// gradients.
    pub near: Option<usize>,
}

impl Default for Summing {
    /// Returns the sum that adds each micro-batch as it comes.
    fn default() -> Summing {
        Summing { partial: None, fold: 1, near: None }
    }
}

/// A rank's share of the sum of an update's gradients, while it grows.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'p> {
    /// The rank's elements, in the order of its optimizer states.
    pub shard: Buf<'p>,
    /// Sum of the micro-batches being folded, of the same length; `None` where each is added to all before it.
    pub folded: Option<Buf<'p>>,
    pub fold: usize,
    /// Number of micro-batches of the update.
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

    /// Adds gradients of some elements, for micro-batches from `first` on. `at`: place of the elements in the shard.
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

    /// Adds the fold of some elements to the sums before it, if micro-batch `index` is its last.
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
