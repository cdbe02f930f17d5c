//! One rollout: prompts are sampled and graded. With dynamic sampling, groups that are not kept are replaced by groups
//! of further prompts, in a bounded number of further rounds. Every round uses the engine's buffers; what is kept is
//! moved to a separate buffer.

use crate::context::StepContext;
use crate::episodes::{self, Played, RoundReport};
use crate::flops::forward_flops;
use crate::roles::Trainer;
use crate::rollout::ahead::AheadReport;
use crate::rollout::arrivals::Arrival;
use crate::rollout::carry::CarryReport;
use crate::rollout::counted::CountedByAll;
use crate::rollout::group::{Branch, SampleGroup};
use crate::rollout::ranks::sample;
use plimsoll_algo::shaping::{GroupFilter, GroupShaping};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_device::Sampling;
use plimsoll_infer::grading::GradedRequest;
use plimsoll_infer::model_reward;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::text::Item;
use plimsoll_plan::SAMPLES_KEPT;
use plimsoll_reward::{Scored, Tally};
use plimsoll_rollout::{Request, RolloutStats};
use plimsoll_run::status::Doing;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What a rollout counted. Ranks tell each other all of it but what is by episode or of several steps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered {
    /// True if groups may be dropped.
    pub filters: bool,
    pub rounds: u32,
    pub sampled: usize,
    /// Number of groups that passed, including those that were not needed any more.
    pub passed: usize,
    /// Number of groups that the rollout is short of.
    pub missing: usize,
    pub rewards: f64,
    pub rewarded: usize,
    /// Number of samples for which a reward or the environment failed.
    pub failed: usize,
    pub tokens: usize,
    /// Operations of one forward pass over the sampled tokens.
    pub flops: f64,
    pub stats: RolloutStats,
    pub rollout_s: f64,
    /// Seconds of grading that was not finished when the rollout ended.
    pub reward_s: f64,
    /// Failures of rewards that run a user's code.
    pub tallies: Vec<(String, Tally)>,
    /// Means of the numbers that rewards logged with their scores, in the last round.
    pub logged: Vec<(String, f64)>,
    #[serde(skip)]
    pub episodes: Option<RoundReport>,
    /// Where groups are carried over.
    #[serde(skip)]
    pub(crate) carry: Option<CarryReport>,
    /// Where samples are drawn ahead.
    #[serde(skip)]
    pub(crate) ahead: Option<AheadReport>,
    /// When the weights that the step makes arrived, where they may in the middle of a rollout.
    #[serde(skip)]
    pub(crate) arrival: Option<Arrival>,
}

impl Gathered {
    /// Returns the share of sampled groups that passed; the metric `dynamic_sampling/kept_share`.
    pub fn kept_share(&self) -> f64 {
        self.passed as f64 / self.sampled.max(1) as f64
    }

    /// Returns the mean reward of all samples; the metric `dynamic_sampling/reward`.
    pub(crate) fn mean_reward(&self) -> f64 {
        self.rewards / self.rewarded.max(1) as f64
    }

    /// Returns the share of samples for which a reward or the environment failed; the metric `reward/fault_share`.
    pub(crate) fn fault_share(&self, group_size: usize) -> f64 {
        self.failed as f64 / (self.sampled * group_size).max(1) as f64
    }

    /// Counts a sampled group and its scores.
    pub(crate) fn count_group(&mut self, scored: &[Scored]) {
        let rewards = || scored.iter().filter_map(|scored| scored.total);
        self.sampled += 1;
        self.failed += scored.iter().filter(|scored| scored.failed).count();
        self.rewarded += rewards().count();
        self.rewards += rewards().map(f64::from).sum::<f64>();
    }

    /// Adds what the rewards counted in a round.
    pub(crate) fn add_counted(&mut self, counted: CountedByAll) {
        self.logged = counted.logged;
        self.add_tallies(counted.tallies);
    }

    /// Adds another rollout of the step.
    pub(crate) fn add(&mut self, other: Gathered) {
        self.filters |= other.filters;
        self.rounds += other.rounds;
        self.sampled += other.sampled;
        self.passed += other.passed;
        self.missing += other.missing;
        self.rewards += other.rewards;
        self.rewarded += other.rewarded;
        self.failed += other.failed;
        self.tokens += other.tokens;
        self.flops += other.flops;
        self.stats.add_counts(&other.stats);
        self.rollout_s += other.rollout_s;
        self.reward_s += other.reward_s;
        self.add_tallies(other.tallies);
        self.logged = other.logged;
    }

    fn add_tallies(&mut self, tallies: Vec<(String, Tally)>) {
        for (name, tally) in tallies {
            match self.tallies.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => sum.add(&tally),
                None => self.tallies.push((name, tally)),
            }
        }
    }

    /// Returns the number of prompts of the next round if `missing` groups are missing: as many as the share that
    /// passed so far makes likely to be enough, and never more than a rollout has.
    fn next_round(&self, missing: usize, rollout: usize) -> usize {
        match self.passed {
            0 => rollout,
            passed => (missing * self.sampled).div_ceil(passed).min(rollout),
        }
    }
}

/// Fills `cx.buffer` with the groups of a rollout, and moves `cx.cursor` past them.
///
/// Errors: `dynamic-sampling-exhausted` if no group was kept; those of sampling and of the rewards.
pub fn gather(trainer: &mut Trainer<'_>, cx: &mut StepContext<'_>, step: u32) -> Result<Gathered> {
    let wanted = cx.run.prompts_per_rollout() as usize;
    let rounds = match cx.objective.filter {
        Some(_) => 1 + cx.run.retries,
        None => 1,
    };
    cx.buffer.begin(step, trainer.updates());
    if let Some(kept) = &mut trainer.kept {
        kept.clear();
    }
    let filters = cx.objective.filter.is_some();
    let mut gathered = Gathered { filters, missing: wanted, ..Gathered::default() };
    while gathered.missing > 0 && gathered.rounds < rounds {
        let prompts = gathered.next_round(gathered.missing, wanted);
        round(trainer, cx, prompts, step, &mut gathered)?;
        gathered.rounds += 1;
        gathered.missing = wanted - cx.buffer.groups().len();
    }
    if cx.buffer.groups().is_empty() {
        return Err(exhausted(cx.objective.filter, &gathered, step));
    }
    Ok(gathered)
}

/// Samples and grades `prompts` prompts, and keeps those of their groups that pass and are still needed.
fn round(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    prompts: usize,
    step: u32,
    gathered: &mut Gathered,
) -> Result<()> {
    let group = cx.run.rollout.group_size as usize;
    let first = cx.cursor.data_position;
    let Answered { items, scored, texts, branches, greedy } = match cx.episodes.is_some() {
        true => play(trainer, cx, prompts, step, gathered)?,
        false => answer(trainer, cx, prompts, step, gathered)?,
    };
    let (mut scored, mut texts) = (scored.into_iter(), texts.into_iter());

    let out = &trainer.sampler.samples;
    gathered.tokens += out.sampled_tokens();
    // Agents' requests share no prompt: each one computes its own again.
    let lengths_of_prompts: Vec<usize> = match &branches {
        Some(branches) => branches.iter().flatten().map(|branch| branch.prompt.len()).collect(),
        None => (0..out.len()).map(|s| items[s / group].ids.len()).collect(),
    };
    let shared = lengths_of_prompts.iter().copied().step_by(if branches.is_some() { 1 } else { group });
    let lengths = lengths_of_prompts.iter().enumerate().map(|(s, &prompt)| (prompt, out.ids(s).len()));
    gathered.flops += forward_flops(&trainer.sampler.shape.spec, shared, lengths);
    cx.cursor.data_position += prompts as u64;
    cx.cursor.next_sample_id += (prompts * group) as u64;

    let wanted = cx.run.prompts_per_rollout() as usize;
    let mut branches = branches.map(Vec::into_iter);
    for (g, item) in items.into_iter().enumerate() {
        let scored: Vec<_> = scored.by_ref().take(group).collect();
        let texts: Vec<String> = texts.by_ref().take(group).collect();
        let branches = branches.as_mut().and_then(Iterator::next);
        let rewards: Vec<Option<f32>> = scored.iter().map(|s| s.total).collect();
        gathered.count_group(&scored);
        if cx.objective.filter.is_some_and(|filter| !filter.keeps(&rewards)) {
            continue;
        }
        gathered.passed += 1;
        if cx.buffer.groups().len() == wanted {
            continue; // The round was likely to be too small, and was not.
        }
        if let Some(kept) = &mut trainer.kept {
            for s in g * group..(g + 1) * group {
                kept.push_response(out.ids(s), out.logprobs(s), out.finish(s));
            }
        }
        let (position, greedy) = (first + g as u64, greedy.get(g).copied().flatten());
        cx.buffer.push(SampleGroup { position, item, scored, texts, branches, greedy });
    }
    Ok(())
}

/// Prompts, and the scores and texts of the responses to them.
struct Answered {
    items: Vec<Item>,
    scored: Vec<Scored>,
    /// Empty for episodes, which keep their own.
    texts: Vec<String>,
    /// By group, the sequences of its samples, if a sample may have several.
    branches: Option<Vec<Vec<Branch>>>,
    /// By group, the reward of the greedy answer; empty where samples are not compared with it.
    greedy: Vec<Option<f32>>,
}

/// Samples and grades responses to the next `prompts` prompts of the data.
fn answer(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    prompts: usize,
    step: u32,
    gathered: &mut Gathered,
) -> Result<Answered> {
    let items = (cx.prompts)(cx.cursor.data_position, prompts)?;
    (cx.edge)(Doing::Rollout);
    let greedy = match cx.objective.shaping.group {
        GroupShaping::Greedy => greedy(trainer, cx, &items, step, gathered)?,
        _ => Vec::new(),
    };
    let ids: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
    let request = Request {
        prompts: &ids,
        group_size: cx.run.rollout.group_size as usize,
        max_new_tokens: cx.run.rollout.max_new_tokens as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        first_sample_id: cx.cursor.next_sample_id,
        numbers: &[],
    };
    let started = Instant::now();
    let steps = [step, cx.run.train.steps];
    let of = GradedRequest { request, items: &items, text: cx.text, rollout: &cx.run.rollout, steps };
    let (mut sampled, edge) = (started, &mut cx.edge);
    let mut whole = sample(trainer, cx.rewards, &of, &mut || {
        sampled = Instant::now();
        edge(Doing::Reward);
    })?;
    gathered.rollout_s += (sampled - started).as_secs_f64();
    gathered.stats.add_counts(&whole.stats);
    model_reward::add(&cx.run.model_rewards, trainer, &items, request.group_size, &mut whole.scored)?;
    gathered.add_counted(whole.counted);
    gathered.reward_s += sampled.elapsed().as_secs_f64();
    Ok(Answered { items, scored: whole.scored, texts: whole.texts, branches: None, greedy })
}

/// Samples and grades the greedy answer to each prompt. Returns their rewards.
fn greedy(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    items: &[Item],
    step: u32,
    gathered: &mut Gathered,
) -> Result<Vec<Option<f32>>> {
    let ids: Vec<&[u32]> = items.iter().map(|item| item.ids.as_slice()).collect();
    let request = Request {
        prompts: &ids,
        group_size: 1,
        max_new_tokens: cx.run.rollout.max_new_tokens as usize,
        sampling: Sampling { temperature: 0.0, ..sampling(&cx.run.rollout, cx.run.seed) },
        eos: cx.eos,
        first_sample_id: cx.cursor.next_sample_id,
        numbers: &[],
    };
    let started = Instant::now();
    let steps = [step, cx.run.train.steps];
    let of = GradedRequest { request, items, text: cx.text, rollout: &cx.run.rollout, steps };
    let mut whole = sample(trainer, cx.rewards, &of, &mut || {})?;
    gathered.stats.add_counts(&whole.stats);
    model_reward::add(&cx.run.model_rewards, trainer, items, 1, &mut whole.scored)?;
    gathered.add_counted(whole.counted);
    // Its time counts, and so do its tokens.
    gathered.tokens += trainer.sampler.samples.sampled_tokens();
    gathered.rollout_s += started.elapsed().as_secs_f64();
    Ok(whole.scored.iter().map(|scored| scored.total).collect())
}

/// Plays the next episodes, of `prompts` starts. Returns the return of each.
fn play(
    trainer: &mut Trainer<'_>,
    cx: &mut StepContext<'_>,
    prompts: usize,
    step: u32,
    gathered: &mut Gathered,
) -> Result<Answered> {
    (cx.edge)(Doing::Rollout);
    let started = Instant::now();
    let episodes = cx.episodes.as_mut().expect("the step is one of episodes");
    let asked = episodes::EpisodesRequest {
        text: cx.text,
        rollout: &cx.run.rollout,
        starts: &episodes.starts(cx.cursor.data_position, prompts),
        group_size: cx.run.rollout.group_size as usize,
        sampling: sampling(&cx.run.rollout, cx.run.seed),
        eos: cx.eos,
        steps: [step, cx.run.train.steps],
        first_sample_id: cx.cursor.next_sample_id,
        kept: SAMPLES_KEPT,
    };
    let Played { items, stats, branches, counted } = episodes::play(trainer, episodes, cx.rewards, &asked)?;
    gathered.add_counted(counted);
    gathered.stats.add_counts(&stats);
    gathered.rollout_s += started.elapsed().as_secs_f64();
    gathered.episodes = Some(episodes.report());
    let scored = episodes.scored(cx.rewards);
    Ok(Answered { items, scored, texts: Vec::new(), branches, greedy: Vec::new() })
}

/// Returns the error of a rollout in which no group was kept.
fn exhausted(filter: Option<GroupFilter>, gathered: &Gathered, step: u32) -> Error {
    let Gathered { rounds, sampled, rewarded, .. } = gathered;
    let wanted = match filter {
        Some(GroupFilter::Mean { low, high }) => format!("a mean score above {low} and below {high}"),
        Some(GroupFilter::Mixed) | None => "scores that differ".to_string(),
    };
    let message = format!("step {step}: none of {sampled} groups in {rounds} rounds has {wanted}");
    Error::new(slugs::DYNAMIC_SAMPLING_EXHAUSTED, message)
        .fact(format!("mean score {} over {rewarded} samples", gathered.mean_reward()))
        .hint("choose prompts that the model sometimes solves, or raise rollout.group_size")
        .hint("raise loss.dynamic_sampling_retries, or remove loss.dynamic_sampling: such groups then teach nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_as_large_as_what_passed_makes_likely_to_be_enough() {
        for (sampled, passed, missing, expect) in
            [(0, 0, 8, 8), (8, 0, 8, 8), (8, 4, 4, 8), (8, 6, 2, 3), (8, 1, 7, 8), (16, 7, 1, 3)]
        {
            let gathered = Gathered { sampled, passed, ..Gathered::default() };
            assert_eq!(gathered.next_round(missing, 8), expect, "{sampled} {passed} {missing}");
        }
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod more_tests;
