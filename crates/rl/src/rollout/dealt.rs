//! A rollout dealt among ranks: each samples and grades its groups, and then every rank has all of them, in the order of their
//! prompts. What a sample is depends on its id alone, so it does not matter who drew it.

use crate::data::dataset::{Item, TextModel};
use crate::roles::Trainer;
use crate::rollout::exchange::{Deal, Sent, SentStats, exchange};
use crate::rollout::grading::Grading;
use crate::rollout::packed::{Kind, packed, packed_as_json};
use plimsoll_base::{ExactSum, Result};
use plimsoll_config::RolloutSpec;
use plimsoll_ranks::Group;
use plimsoll_reward::{Rewards, Scored, Tally};
use plimsoll_rollout::{Lengths, Request, RolloutStats, Samples};

/// What one rank sampled and graded.
struct Dealt {
    samples: Vec<Sample>,
    stats: SentStats,
    tallies: Vec<(String, Tally)>,
    logged: Vec<Logged>,
}
packed!(Dealt { samples: Vec<Sample>, stats: SentStats, tallies: Vec<(String, Tally)>, logged: Vec<Logged> });

struct Sample {
    sent: Sent,
    text: String,
    total: Option<f32>,
    parts: Vec<Option<f32>>,
}
packed!(Sample { sent: Sent, text: String, total: Option<f32>, parts: Vec<Option<f32>> });

/// What rewards logged under a name.
struct Logged {
    name: String,
    /// The bits of its exact sum.
    sum: Vec<u64>,
    count: u64,
}
packed!(Logged { name: String, sum: Vec<u64>, count: u64 });
packed_as_json!(Tally);

/// What all ranks sampled and graded.
pub struct Whole {
    pub scored: Vec<Scored>,
    pub texts: Vec<String>,
    pub stats: RolloutStats,
    pub tallies: Vec<(String, Tally)>,
    pub logged: Vec<(String, f64)>,
}

/// What this rank has to give.
struct Own<'o> {
    stats: RolloutStats,
    scored: Vec<Scored>,
    texts: Vec<String>,
    tallies: Vec<(&'o str, Tally)>,
    logged: Vec<Logged>,
}

/// Prompts, and how responses to them are sampled and graded.
pub struct Asked<'q> {
    /// All ranks'.
    pub request: Request<'q>,
    pub items: &'q [Item],
    pub text: &'q TextModel,
    pub rollout: &'q RolloutSpec,
    /// The step and the total number of steps.
    pub steps: [u32; 2],
}

/// Samples and grades responses to this rank's part of the prompts, and gives those of all ranks to all: `trainer.samples` holds them.
/// `sampled` is called when this rank has sampled its part.
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
    let graded = graded().map(|(stats, texts, scored)| Own {
        stats,
        scored,
        texts,
        tallies: rewards.tallies().collect(),
        logged: rewards
            .logged_sums()
            .map(|(name, sum, count)| Logged { name, sum: sum.bits(), count })
            .collect(),
    });
    let whole = share(group, &mut trainer.samples, graded, &deal, size)?;
    deal.learn(&mut trainer.lengths, &trainer.samples, size);
    Ok(whole)
}

/// Gives what every rank sampled to all. `samples` holds this rank's responses, and then those of all.
///
/// Errors: this rank's own; `rank-lost` where another's failed.
fn share(
    group: &Group,
    samples: &mut Samples,
    own: Result<Own<'_>>,
    deal: &Deal,
    size: usize,
) -> Result<Whole> {
    let mut all = exchange(group, Kind::Samples, own.map(|own| message(samples, own)))?;
    samples.clear();
    let mut whole = Whole {
        scored: Vec::new(),
        texts: Vec::new(),
        stats: RolloutStats::default(),
        tallies: Vec::new(),
        logged: Vec::new(),
    };
    let mut logged: Vec<(String, ExactSum, u64)> = Vec::new();
    let parts = all.iter_mut().map(|dealt| std::mem::take(&mut dealt.samples)).collect();
    for sample in deal.in_order(parts, size) {
        sample.sent.push_to(samples);
        whole.scored.push(Scored { total: sample.total, parts: sample.parts });
        whole.texts.push(sample.text);
    }
    for dealt in all {
        dealt.stats.add_to(&mut whole.stats);
        for (name, tally) in dealt.tallies {
            match whole.tallies.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => sum.add(&tally),
                None => whole.tallies.push((name, tally)),
            }
        }
        for Logged { name, sum, count } in dealt.logged {
            let sum = ExactSum::of_bits(sum);
            match logged.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, all, counts)) => {
                    all.add_sum(&sum);
                    *counts += count;
                }
                None => logged.push((name, sum, count)),
            }
        }
    }
    let mean = |(name, sum, count): (String, ExactSum, u64)| (name, sum.value() / count.max(1) as f64);
    whole.logged = logged.into_iter().map(mean).collect();
    Ok(whole)
}

fn message(samples: &Samples, own: Own<'_>) -> Dealt {
    let len = samples.len();
    assert_eq!((own.scored.len(), own.texts.len()), (len, len), "a score and a text a sample");
    let graded = own.scored.into_iter().zip(own.texts).enumerate();
    let sample = |(s, (Scored { total, parts }, text)): (usize, (Scored, String))| Sample {
        sent: Sent::of(samples, s),
        text,
        total,
        parts,
    };
    Dealt {
        samples: graded.map(sample).collect(),
        stats: SentStats::of(&own.stats),
        tallies: own.tallies.iter().map(|(name, tally)| (name.to_string(), *tally)).collect(),
        logged: own.logged,
    }
}
