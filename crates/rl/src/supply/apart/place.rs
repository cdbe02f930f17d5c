//! The place of a rank that only samples or only trains.

use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_plan::{Hosts, RunShape, Share, Training};
use plimsoll_ranks::Group;

/// All ranks of a run in which some only sample and the others only train, and the place of this one.
#[derive(Clone, Copy, Debug)]
pub struct ApartRanks<'a> {
    pub all: &'a Group,
    pub apart: &'a Apart,
}

/// A rank of a run in which some only sample and the others only train.
#[derive(Debug)]
pub struct Apart {
    /// The ranks that do the same.
    own: Group,
    trainers: usize,
    trains: bool,
    /// The rank whose weights each rank that samples copies: one of its host, where one of those trains.
    sources: Vec<usize>,
}

impl Apart {
    /// Parts the ranks of `group`; `None` where every rank does both. Every rank must call it, before memory is opened.
    ///
    /// Errors: `ranks-unreachable`, `rank-lost`.
    pub fn of(run: &RunSpec, group: &Group) -> Result<Option<Apart>> {
        if run.rollout_ranks() == 0 {
            return Ok(None);
        }
        let trainers = group.ranks() - run.rollout_ranks() as usize;
        let trains = group.rank() < trainers;
        let own = group.part(if trains { 0..trainers } else { trainers..group.ranks() })?;
        let sources = (trainers..group.ranks()).map(|sampler| {
            let near: Vec<usize> = (0..trainers).filter(|of| group.are_near(*of, sampler)).collect();
            // They take turns.
            let turn = sampler - trainers;
            near.get(turn % near.len().max(1)).copied().unwrap_or(turn % trainers)
        });
        Ok(Some(Apart { own, trainers, trains, sources: sources.collect() }))
    }

    /// True if it only trains.
    pub fn trains(&self) -> bool {
        self.trains
    }

    /// Returns the number of ranks that only train: the first ones.
    pub fn trainers(&self) -> usize {
        self.trainers
    }

    /// Returns the ranks that do the same as this one.
    pub(super) fn own(&self) -> &Group {
        &self.own
    }

    /// Returns the first rank that samples, which speaks for all that do.
    pub(super) fn first_sampler(&self) -> usize {
        self.trainers
    }

    /// Returns the ranks that sample, each with the one whose weights it copies.
    pub(super) fn copies(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sources.iter().enumerate().map(|(sampler, source)| (self.trainers + sampler, *source))
    }
}

/// Returns the share of a rank in what is trained, of `share` in what all ranks do. One that only samples has the
/// layout of the first.
///
/// Errors: `bad-value` unless some ranks are left that train.
pub fn share_of_trainers(run: &RunSpec, hosts: &Hosts, share: Share) -> Result<Share> {
    let apart = run.rollout_ranks() as usize;
    if apart == 0 {
        return Ok(share);
    }
    if apart >= hosts.ranks {
        let message =
            format!("async.rollout_ranks = {apart} of {} in all: no rank is left to train", hosts.ranks);
        return Err(Error::usage("bad-value", message).hint(format!(
            "start more ranks, such as --ranks {}, or set async.rollout_ranks = 0",
            apart + 1
        )));
    }
    let ranks = share.ranks.min(hosts.ranks - apart);
    Ok(Share { rank: if share.rank < ranks { share.rank } else { 0 }, ranks })
}

/// Refuses a plan that ranks of two kinds cannot have yet.
///
/// Errors: `not-built`.
pub fn check(run: &RunSpec, shape: &RunShape) -> Result<()> {
    if run.rollout_ranks() == 0 {
        return Ok(());
    }
    let is_spread = |training: &Training| training.offload.weights && training.share.ranks > 1;
    if shape.training.as_ref().is_some_and(is_spread) {
        Err(not_built("with run.zero_stage = 3", "run.zero_stage = 2"))
    } else {
        Ok(())
    }
}

fn not_built(with: &str, built: &str) -> Error {
    Error::usage("not-built", format!("`async.rollout_ranks` {with} is not built yet"))
        .hint(format!("built is {built}"))
}
