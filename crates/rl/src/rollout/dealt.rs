//! A rollout dealt among ranks: each samples and grades its groups, then every rank gets all of them, in the order of
//! their prompts. A sample depends only on its id, so it does not matter which rank drew it.

use crate::roles::Trainer;
use crate::rollout::counted::{Counted, CountedByAll};
use crate::rollout::exchange::{Deal, Sent, SentStats, exchange};
use crate::rollout::grading::Grading;
use crate::rollout::packed::{Kind, packed};
use plimsoll_base::Result;
use plimsoll_config::RolloutSpec;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_ranks::Group;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Lengths, Request, RolloutStats, Samples};

/// One rank's graded samples.
struct Dealt {
    samples: Vec<Sample>,
    stats: SentStats,
    counted: Counted,
}
packed!(Dealt { samples: Vec<Sample>, stats: SentStats, counted: Counted });

struct Sample {
    sent: Sent,
    text: String,
    total: Option<f32>,
    parts: Vec<Option<f32>>,
}
packed!(Sample { sent: Sent, text: String, total: Option<f32>, parts: Vec<Option<f32>> });

/// The graded samples of all ranks.
pub struct Whole {
    pub scored: Vec<Scored>,
    pub texts: Vec<String>,
    pub stats: RolloutStats,
    pub(crate) counted: CountedByAll,
}

/// This rank's share of the rollout results, apart from its samples.
struct Own {
    stats: RolloutStats,
    scored: Vec<Scored>,
    texts: Vec<String>,
    counted: Counted,
}

/// Prompts, and how responses to them are sampled and graded.
pub struct Asked<'q> {
    /// The request of all ranks together.
    pub request: Request<'q>,
    pub items: &'q [Item],
    pub text: &'q TextModel,
    pub rollout: &'q RolloutSpec,
    /// The step and the total number of steps.
    pub steps: [u32; 2],
}

/// Samples and grades responses to this rank's part of the prompts, and exchanges them: `trainer.samples` then holds
/// those of all ranks. Calls `sampled` when this rank has sampled its part.
///
/// Errors: those of sampling and of the rewards; `rank-lost` where another rank has one.
pub fn sample(
    group: &Group,
    trainer: &mut Trainer<'_>,
    rewards: &mut Rewards,
    asked: &Asked<'_>,
    sampled: &mut dyn FnMut(),
) -> Result<Whole> {
    let size = asked.request.group_size;
    let keys = asked.items.iter().map(|item| (Lengths::key(&item.ids), item.set));
    let deal = Deal::new(group, &trainer.lengths, keys);
    let own = deal.own(group);
    let prompts: Vec<&[u32]> = own.iter().map(|prompt| asked.request.prompts[*prompt]).collect();
    let request = Request { prompts: &prompts, numbers: &own, ..asked.request };
    let mut graded = || {
        let items = own.iter().map(|prompt| &asked.items[*prompt]);
        let mut grading = Grading::begin(rewards, asked.text, asked.rollout, items, size, asked.steps)?;
        let stats = trainer.rollout(&request, &mut grading)?;
        let texts = grading.texts();
        sampled();
        Ok((stats, texts, rewards.finish()?))
    };
    let graded =
        graded().map(|(stats, texts, scored)| Own { stats, scored, texts, counted: Counted::of(rewards) });
    let whole = share(group, &mut trainer.samples, graded, &deal, size)?;
    deal.learn(&mut trainer.lengths, &trainer.samples, size);
    Ok(whole)
}

/// Exchanges samples among ranks. `samples` holds this rank's responses before, and those of all ranks after.
///
/// Errors: this rank's own; `rank-lost` where another's failed.
fn share(group: &Group, samples: &mut Samples, own: Result<Own>, deal: &Deal, size: usize) -> Result<Whole> {
    let mut all = exchange(group, Kind::Samples, own.map(|own| message(samples, own)))?;
    samples.clear();
    let mut whole = Whole {
        scored: Vec::new(),
        texts: Vec::new(),
        stats: RolloutStats::default(),
        counted: CountedByAll::default(),
    };
    let parts = all.iter_mut().map(|dealt| std::mem::take(&mut dealt.samples)).collect();
    for sample in deal.in_order(parts, size) {
        sample.sent.push_to(samples);
        whole.scored.push(Scored { total: sample.total, parts: sample.parts });
        whole.texts.push(sample.text);
    }
    all.iter().for_each(|dealt| dealt.stats.add_to(&mut whole.stats));
    whole.counted = Counted::sum(all.into_iter().map(|dealt| dealt.counted));
    Ok(whole)
}

fn message(samples: &Samples, own: Own) -> Dealt {
    let len = samples.len();
    assert_eq!((own.scored.len(), own.texts.len()), (len, len), "a score and a text a sample");
    let graded = own.scored.into_iter().zip(own.texts).enumerate();
    let sample = |(s, (Scored { total, parts }, text)): (usize, (Scored, String))| Sample {
        sent: Sent::of(samples, s),
        text,
        total,
        parts,
    };
    Dealt { samples: graded.map(sample).collect(), stats: SentStats::of(&own.stats), counted: own.counted }
}

#[cfg(test)]
#[path = "dealt_tests.rs"]
mod tests;
