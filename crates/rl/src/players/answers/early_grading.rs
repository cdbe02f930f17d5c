//! Groups that are graded while others still draw. One that has ended is trained in this step if the step cannot end
//! before; then rewards that score each response by itself grade it. The responses of other groups would only delay it.

use super::graded::is_own;
use crate::players::drawing::Drawing;
use crate::players::groups::Group;
use crate::players::player::Play;
use plimsoll_config::RunSpec;
use plimsoll_infer::grading::grade_ahead;
use plimsoll_infer::text::TextModel;
use plimsoll_ranks::Group as Ranks;
use plimsoll_reward::Rewards;
use plimsoll_rollout::Finish;
use std::collections::{BTreeMap, BTreeSet};

/// Tokens drawn between two looks at how far the step has come.
const DRAWS_PER_LOOK: usize = 16;

pub(super) struct EarlyGrading<'d> {
    rewards: &'d mut Rewards,
    run: &'d RunSpec,
    text: &'d TextModel,
    step: u32,
    groups: &'d [&'d Group],
    ranks: &'d Ranks,
    /// Responses that have ended, by their groups: which of the group, and its tokens.
    ended: BTreeMap<usize, Vec<(usize, Vec<u32>, Finish)>>,
    /// Groups that have, by their ticks.
    whole: BTreeSet<(u64, usize)>,
    draws: usize,
}

impl<'d> EarlyGrading<'d> {
    /// Begins with the groups that this rank draws.
    pub(super) fn new(play: &'d mut Play<'_>, groups: &'d [&'d Group], ranks: &'d Ranks) -> EarlyGrading<'d> {
        let (ended, whole) = (BTreeMap::new(), BTreeSet::new());
        let (run, text, step, rewards) = (play.run, play.text, play.step, &mut *play.rewards);
        EarlyGrading { rewards, run, text, step, groups, ranks, ended, whole, draws: 0 }
    }

    /// Adds a response that has ended, if this rank grades it. `end`: the tick at which its group has, if it has.
    pub(super) fn add(&mut self, sample: usize, response: &[u32], finish: Finish, end: Option<u64>) {
        let size = self.run.rollout.group_size as usize;
        let group = sample / size;
        if self.rewards.grades_ahead() && is_own(self.groups[group], self.ranks) {
            self.ended.entry(group).or_default().push((sample % size, response.to_vec(), finish));
            self.whole.extend(end.map(|end| (end, group)));
        }
    }

    /// Counts a token; now and then grades what has become final.
    pub(super) fn drew(&mut self, drawing: &Drawing<'_>) {
        self.draws += 1;
        if self.whole.is_empty() || !self.draws.is_multiple_of(DRAWS_PER_LOOK) {
            return;
        }
        let floor = drawing.floor();
        while let Some((_, group)) = self.whole.first().copied().filter(|(end, _)| *end <= floor) {
            self.whole.pop_first();
            let (ended, group) = (self.ended.remove(&group).unwrap_or_default(), self.groups[group]);
            let responses = ended.iter().map(|(s, ids, finish)| (group.sample_id(*s), &ids[..], *finish));
            let (of, steps) = ((self.text, &self.run.rollout), [self.step, self.run.train().steps]);
            grade_ahead(self.rewards, of, &group.item, responses, steps);
        }
    }
}
