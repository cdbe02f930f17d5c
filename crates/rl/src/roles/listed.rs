//! Tokens that a teacher lists of each head row, on their way from a pass to the step's arrays of every rank.

use crate::ranks::gather_f32;
use plimsoll_base::Result;
use plimsoll_device::{Device, ListedTokens};
use plimsoll_ranks::Group;

/// Lists of some head rows on the host: ids and log-probabilities, [R, K] each.
#[derive(Clone, Debug, Default)]
pub struct HostLists {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
}

impl HostLists {
    /// Adds the lists of a micro-batch, if its pass has any.
    pub(super) fn add(&mut self, dev: &dyn Device, listed: Option<ListedTokens<'_>>) {
        let Some(ListedTokens { ids, logprobs }) = listed else { return };
        let start = self.ids.len();
        self.ids.resize(start + ids.len(), 0);
        self.logprobs.resize(start + ids.len(), 0.0);
        dev.read_u32(ids, 0, &mut self.ids[start..]);
        dev.read_f32(logprobs, 0, &mut self.logprobs[start..]);
    }

    /// Returns the lists of every rank, by rank. `per_row`: K, 0 if there are none.
    ///
    /// Errors: `rank-lost`.
    pub(super) fn gather(self, group: &Group, per_row: usize) -> Result<Vec<HostLists>> {
        if per_row == 0 {
            return Ok(vec![HostLists::default(); group.ranks()]);
        }
        let ids: Vec<f32> = self.ids.into_iter().map(f32::from_bits).collect();
        let all = gather_f32(group, &ids)?;
        let logprobs = gather_f32(group, &self.logprobs)?;
        let of = |(ids, logprobs): (Vec<f32>, Vec<f32>)| HostLists {
            ids: ids.into_iter().map(f32::to_bits).collect(),
            logprobs,
        };
        Ok(all.into_iter().zip(logprobs).map(of).collect())
    }

    /// Copies the lists.
    pub(super) fn read(&self, ids: &mut [u32], logprobs: &mut [f32]) {
        ids.copy_from_slice(&self.ids);
        logprobs.copy_from_slice(&self.logprobs);
    }
}
