//! A rollout dealt among ranks: each samples and grades its groups, then every rank gets all of them, in the order of
//! their prompts. A sample depends only on its id, so it does not matter which rank drew it.

use crate::roles::Trainer;
use crate::rollout::counted::{Counted, CountedByAll};
use crate::rollout::exchange::{Deal, SentResponse, exchange};
use crate::rollout::message::Kind;
use plimsoll_base::Result;
use plimsoll_infer::grading::GradedRequest;
use plimsoll_infer::responder::{Graded, Responder};
use plimsoll_infer::sampler::Sampler;
use plimsoll_plan::RoleName;
use plimsoll_ranks::Group;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Lengths, Request, RolloutStats, Samples, StopCondition};
use plimsoll_train::Sequence;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One rank's graded samples.
#[derive(Serialize, Deserialize)]
struct RankSamples {
    samples: Vec<Sample>,
    stats: RolloutStats,
    counted: Counted,
}

/// A graded response.
#[derive(Serialize, Deserialize)]
pub(crate) struct Sample {
    pub sent: SentResponse,
    pub text: String,
    pub scored: Scored,
}

/// The graded samples of all ranks.
pub struct GradedRollout {
    pub scored: Vec<Scored>,
    pub texts: Vec<String>,
    pub stats: RolloutStats,
    pub(crate) counted: CountedByAll,
}

/// Samples and grades responses: of several ranks each to its part of the prompts, and all have those of all. They are
/// in the trainer's `samples`. `sampled` is called when this rank has sampled its part.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub fn sample(
    trainer: &mut Trainer<'_>,
    rewards: &mut Rewards,
    of: &GradedRequest<'_>,
    sampled: &mut dyn FnMut(),
) -> Result<GradedRollout> {
    let group = trainer.group;
    let size = of.request.group_size;
    let keys = of.items.iter().map(|item| (Lengths::key(&item.ids), item.set));
    let deal = Deal::new(group, &trainer.lengths, keys);
    let own = deal.own(group);
    let prompts: Vec<&[u32]> = own.iter().map(|prompt| of.request.prompts[*prompt]).collect();
    let request = Request { prompts: &prompts, numbers: &own, ..of.request };
    let items = own.iter().map(|prompt| &of.items[*prompt]);
    let graded = Graded::sample(trainer, rewards, of, items, &request, sampled);
    let graded = graded.map(|graded| (graded, Counted::of(rewards)));
    let whole = share(group, Samples::to_write(&mut trainer.sampler.samples), graded, &deal, size)?;
    // Ranks that only sample tell the others, which learn from what they are handed.
    if !group.is_alone() && trainer.apart.is_none_or(|ranks| group.ranks() == ranks.all.ranks()) {
        deal.learn(&mut trainer.lengths, &trainer.sampler.samples, size);
    }
    Ok(whole)
}

impl<'a> Responder<'a> for Trainer<'a> {
    fn sampler(&mut self) -> &mut Sampler<'a> {
        &mut self.sampler
    }

    fn rollout(&mut self, request: &Request<'_>, stop: &mut dyn StopCondition) -> Result<RolloutStats> {
        self.sampler.rollout(&self.roles[0], request, stop)
    }

    fn reward_scores(&mut self, role: RoleName, sequences: &[Sequence<'_>]) -> Result<Vec<f32>> {
        let mut out = vec![0f32; sequences.len()];
        self.score(role, sequences, 1.0, &mut out, Range::clone)?;
        Ok(out)
    }

    fn updates(&self) -> u64 {
        self.first().updates()
    }

    fn is_alone(&self) -> bool {
        self.group.is_alone()
    }

    fn respond(
        &mut self,
        rewards: &mut Rewards,
        of: &GradedRequest<'_>,
    ) -> Result<(Vec<String>, Vec<Scored>)> {
        let whole = sample(self, rewards, of, &mut || {})?;
        Ok((whole.texts, whole.scored))
    }
}

/// Gives what every rank sampled to all. `samples` holds this rank's responses, and then those of all.
///
/// Errors: this rank's own; `rank-lost` where another's failed.
fn share(
    group: &Group,
    samples: &mut Samples,
    own: Result<(Graded, Counted)>,
    deal: &Deal,
    size: usize,
) -> Result<GradedRollout> {
    if group.is_alone() {
        let (Graded { stats, texts, scored }, counted) = own?;
        return Ok(GradedRollout { scored, texts, stats, counted: Counted::sum([counted]) });
    }
    let mut all = exchange(group, Kind::Samples, own.map(|(own, counted)| message(samples, own, counted)))?;
    samples.clear();
    let mut whole = GradedRollout {
        scored: Vec::new(),
        texts: Vec::new(),
        stats: RolloutStats::default(),
        counted: CountedByAll::default(),
    };
    let parts = all.iter_mut().map(|dealt| std::mem::take(&mut dealt.samples)).collect();
    for sample in deal.in_order(parts, size) {
        sample.sent.push_to(samples);
        whole.scored.push(sample.scored);
        whole.texts.push(sample.text);
    }
    all.iter().for_each(|dealt| whole.stats.add_counts(&dealt.stats));
    whole.counted = Counted::sum(all.into_iter().map(|dealt| dealt.counted));
    Ok(whole)
}

fn message(samples: &Samples, own: Graded, counted: Counted) -> RankSamples {
    let len = samples.len();
    assert_eq!((own.scored.len(), own.texts.len()), (len, len), "a score and a text a sample");
    let graded = own.scored.into_iter().zip(own.texts).enumerate();
    let sample = |(s, (scored, text)): (usize, (Scored, String))| Sample {
        sent: SentResponse::of(samples, s),
        text,
        scored,
    };
    RankSamples { samples: graded.map(sample).collect(), stats: own.stats, counted }
}

#[cfg(test)]
#[path = "ranks_tests.rs"]
mod tests;
