//! The place of a rank that only samples or only trains.

use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_plan::{Hosts, RunShape, Share, Training};
use plimsoll_ranks::Group;

/// A rank of a run in which some only sample and the others only train.
#[derive(Debug)]
pub struct Apart {
    /// The ranks that do the same.
    own: Group,
    trainers: usize,
    trains: bool,
}

impl Apart {
    /// Parts the ranks of `group`; `None` where every rank does both.
    pub fn of(run: &RunSpec, group: Option<&Group>) -> Option<Apart> {
        let group = group.filter(|_| run.run.rollout_ranks > 0)?;
        let trainers = group.ranks() - run.run.rollout_ranks as usize;
        let trains = group.rank() < trainers;
        let own = group.part(if trains { 0..trainers } else { trainers..group.ranks() });
        Some(Apart { own, trainers, trains })
    }

    /// True if it only trains.
    pub fn trains(&self) -> bool {
        self.trains
    }

    /// Returns the number of ranks that only train: the first ones.
    pub fn trainers(&self) -> usize {
        self.trainers
    }

    /// Returns the ranks that do the same as this one; `None` where it is the only one.
    pub(super) fn own(&self) -> Option<&Group> {
        (self.own.ranks() > 1).then_some(&self.own)
    }

    /// Returns the first rank that samples, which speaks for all that do.
    pub(super) fn first_sampler(&self) -> usize {
        self.trainers
    }

    /// Returns the rank whose weights this one copies: samplers take turns among the trainers.
    pub(super) fn source(&self) -> usize {
        self.own.rank() % self.trainers
    }
}

/// Returns the share of a rank in what is trained, of `share` in what all ranks do. One that only samples has the
/// layout of the first.
///
/// Errors: `bad-value` unless some ranks are left that train; `not-built`.
pub fn share_of_trainers(run: &RunSpec, hosts: &Hosts, share: Share) -> Result<Share> {
    let apart = run.run.rollout_ranks as usize;
    if apart == 0 {
        return Ok(share);
    }
    if apart >= hosts.ranks {
        let message =
            format!("run.rollout_ranks = {apart} of {} in all: no rank is left to train", hosts.ranks);
        return Err(Error::usage("bad-value", message)
            .hint(format!("start more ranks, such as --ranks {}, or set run.rollout_ranks = 0", apart + 1)));
    }
    if hosts.count > 1 {
        return Err(not_built(&format!("on {} hosts", hosts.count), "all ranks on one host"));
    }
    let ranks = share.ranks.min(hosts.ranks - apart);
    Ok(Share { rank: if share.rank < ranks { share.rank } else { 0 }, ranks })
}

/// Refuses a plan that ranks of two kinds cannot have yet.
///
/// Errors: `not-built`.
pub fn check(run: &RunSpec, shape: &RunShape) -> Result<()> {
    if run.run.rollout_ranks == 0 {
        return Ok(());
    }
    if !plimsoll_devices::of(shape.target.kind).reads_ranks_in_place {
        return Err(not_built("on a card", "run.device = \"cpu\""));
    }
    let is_spread = |training: &Training| training.offload.weights && training.share.ranks > 1;
    match shape.training.as_ref().is_some_and(is_spread) {
        true => Err(not_built("with run.zero_stage = 3", "run.zero_stage = 2")),
        false => Ok(()),
    }
}

fn not_built(with: &str, built: &str) -> Error {
    Error::usage("not-built", format!("`run.rollout_ranks` {with} is not built yet"))
        .hint(format!("built is {built}"))
}
