//! Evaluation: responses to held-out prompts, scored by the run's rewards.
//!
//! The score is the mean reward. Next to it is pass@k, for which a response succeeds if the first reward gives it 1 or
//! more, before its weight: other rewards, such as a length penalty, do not make a right answer wrong.

pub mod generate;
mod pass_rates;
mod sets;

pub use sets::EvalSet;

use crate::data::dataset::TextModel;
use crate::data::models::{open_model, text_model};
use crate::roles::{Sources, Trainer};
use crate::rollout::grading::Grading;
use crate::rollout::model_reward;
use crate::rollout::responses::{Kept, KeptSample};
use plimsoll_algo::pass_at_k::{pass_at_k, powers_up_to};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{DataSets, ModelReward, RolloutSpec, RunSpec, VerbFile};
use plimsoll_device::Sampling;
use plimsoll_memory::host::Host;
use plimsoll_plan::{Facts, PerRole, devices, plan_sampling, samples_kept};
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::Request;
use plimsoll_run::scores::{EvalReport, mean_over_sets, mean_pass_at_k};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// Evaluation samples use random numbers that training never uses.
pub(crate) const EVAL_SAMPLE_IDS: u64 = 1 << 62;

pub struct EvalHow<'s> {
    pub text: &'s TextModel,
    /// Stop strings and the length limit.
    pub rollout: &'s RolloutSpec,
    /// Tokens that end a response.
    pub eos: &'s [u32],
    /// How tokens are sampled.
    pub sampling: Sampling,
    pub samples: usize,
    /// Steps done, for the kept responses.
    pub step: u32,
    /// The reward model among the rewards, if there is one.
    pub model_reward: Option<&'s ModelReward>,
}

/// The first reward's smallest score of a successful response.
const SUCCESS: f32 = 1.0;

#[derive(Debug, Default)]
pub struct Evaluated {
    pub report: EvalReport,
    /// Every response to the first few prompts.
    pub examples: Vec<KeptSample>,
}

/// Scores `samples` responses to each prompt, as many prompts at a time as the engine holds.
pub fn evaluate(
    trainer: &mut Trainer<'_>,
    how: &EvalHow<'_>,
    rewards: &mut Rewards,
    set: &EvalSet,
) -> Result<Evaluated> {
    let started = Instant::now();
    let items = &set.items;
    let mut report = EvalReport { pass_rates: Vec::with_capacity(items.len()), ..EvalReport::default() };
    let mut examples = Vec::new();
    let names: Vec<String> =
        model_reward::names(rewards, how.model_reward).into_iter().map(str::to_string).collect();
    let at_once = (trainer.shape.engine.samples / how.samples).max(1);
    let kept = samples_kept(how.samples);
    let max_new_tokens = how.rollout.max_new_tokens as usize;
    for (i, items) in items.chunks(at_once).enumerate() {
        let prompts: Vec<&[u32]> = items.iter().map(|i| i.ids.as_slice()).collect();
        let request = Request {
            prompts: &prompts,
            group_size: how.samples,
            max_new_tokens,
            sampling: how.sampling,
            eos: how.eos,
            first_sample_id: EVAL_SAMPLE_IDS + (i * at_once * how.samples) as u64,
        };
        let mut grading = Grading::begin(rewards, how.text, how.rollout, items, how.samples, [0, 0])?;
        trainer.rollout(&request, &mut grading)?;
        report.tokens += trainer.samples.total_tokens();
        let texts = grading.texts();
        let mut scored = rewards.finish()?;
        if let Some(model) = how.model_reward {
            model_reward::add(model, trainer, items, how.samples, &mut scored)?;
        }
        let version = trainer.updates();
        let samples = &trainer.samples;
        let rows = Kept { text: how.text, step: how.step, names: &names, samples, policy_version: version };
        for (g, group) in scored.chunks(how.samples).enumerate() {
            add_group(&mut report, group);
            for (s, one) in (g * how.samples..).zip(group) {
                if examples.len() < kept {
                    examples.push(rows.sample(s, &set.name, &items[g].text, &texts[s], one));
                }
            }
        }
    }
    report.score /= (report.num_samples - report.num_unscored).max(1) as f64;
    report.best /= items.len().max(1) as f64;
    report.pass_at_k.values_mut().for_each(|sum| *sum /= items.len().max(1) as f64);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(Evaluated { report, examples })
}

/// Adds the samples of one prompt to `report`, whose means are sums until the last prompt.
pub(crate) fn add_group(report: &mut EvalReport, group: &[Scored]) {
    let totals = group.iter().filter_map(|s| s.total).map(f64::from);
    report.num_samples += group.len();
    report.num_unscored += group.len() - totals.clone().count();
    report.score += totals.clone().sum::<f64>();
    report.best += totals.reduce(f64::max).unwrap_or(0.0);
    let succeeds = |s: &&Scored| s.parts.first().copied().flatten().is_some_and(|score| score >= SUCCESS);
    let (n, successes) = (group.len() as u32, group.iter().filter(succeeds).count() as u32);
    report.pass_rates.push((f64::from(successes) / f64::from(n.max(1))) as f32);
    for k in powers_up_to(n) {
        *report.pass_at_k.entry(k).or_default() += pass_at_k(n, successes, k);
    }
}

/// Runs the command `eval`: a model, data sets and rewards, without training. `rows_to`: a file for the prompts with
/// their pass rates, as JSON lines.
pub fn eval(verb: &VerbFile, rows_to: Option<&Path>) -> Result<Value> {
    devices::check(verb.run.device)?;
    let model = open_model(&verb.model, &verb.model_options)?;
    let text = text_model(&model, &verb.data)?;
    let mut named = verb.data.eval_sets();
    if named.is_empty() {
        let prompts = verb.data.prompts.iter().flat_map(DataSets::named);
        named = prompts.map(|(name, set)| (name, set.path.clone())).collect();
    }
    let sets = EvalSet::open_all(named, &verb.data, &text, verb.eval.prompts_max, false)?;
    let run = RunSpec::of_verb(verb);
    let mut rewards = Rewards::new(&run.rewards)?;
    sets.iter().try_for_each(|set| rewards.check_columns(&set.items[0].columns))?;
    let longest = sets.iter().flat_map(|set| &set.items).map(|i| i.ids.len()).max().unwrap_or(1);
    let largest = sets.iter().map(|set| set.items.len()).max().unwrap_or(0);
    let facts = verb_facts(&run, &model, longest, largest);
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let (dev, mut arena) = devices::open(&report.shape, devices::options(&run))?;
    let mut trainer = Trainer::new(&*dev, &mut arena, &report.shape, Sources::one(&model), verb.seed)?;
    let sampling = crate::roles::sampling(&run.rollout, verb.seed);
    let how = EvalHow {
        text: &text,
        rollout: &run.rollout,
        eos: &model.eos_token_ids,
        sampling,
        samples: verb.eval.samples.max(1) as usize,
        step: 0,
        model_reward: None,
    };
    let (mut found, mut examples) = (Vec::with_capacity(sets.len()), Vec::with_capacity(sets.len()));
    for set in &sets {
        let one = evaluate(&mut trainer, &how, &mut rewards, set)?;
        found.push(one.report);
        examples.push(one.examples);
    }
    if let Some(path) = rows_to {
        pass_rates::write(path, &verb.data, &sets, &found)?;
    }
    let mut value = verb_report(&sets, &found, &examples);
    value["model"] = json!(verb.model);
    value["samples_per_prompt"] = json!(how.samples);
    value["arena_bytes"] = json!(report.plan.arena_bytes());
    value["rss_peak_bytes"] = json!(Host::this().rss().peak);
    Ok(value)
}

/// Returns the command's result: that of a single set, or means over the sets and each of them.
fn verb_report(sets: &[EvalSet], found: &[EvalReport], examples: &[Vec<KeptSample>]) -> Value {
    let one = |((set, found), examples): ((&EvalSet, &EvalReport), &Vec<KeptSample>)| {
        json!({
            "data": set.name, "score": found.score, "pass_at_k": found.pass_at_k, "best": found.best,
            "prompts": set.items.len(), "samples": found.num_samples, "unscored": found.num_unscored,
            "tokens": found.tokens, "seconds": found.seconds,
            "tokens_per_second": found.tokens as f64 / found.seconds, "examples": examples,
        })
    };
    let mut each: Vec<Value> = sets.iter().zip(found).zip(examples).map(one).collect();
    if each.len() == 1 {
        return each.remove(0);
    }
    let sum = |of: fn(&EvalReport) -> f64| found.iter().map(of).sum::<f64>();
    let (tokens, seconds) = (sum(|r| r.tokens as f64), sum(|r| r.seconds));
    json!({
        "data": sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(),
        "score": mean_over_sets(found.iter().map(|r| r.score)), "pass_at_k": mean_pass_at_k(found),
        "best": mean_over_sets(found.iter().map(|r| r.best)),
        "prompts": sets.iter().map(|set| set.items.len()).sum::<usize>(),
        "samples": sum(|r| r.num_samples as f64) as u64, "unscored": sum(|r| r.num_unscored as f64) as u64,
        "tokens": tokens as u64, "seconds": seconds, "tokens_per_second": tokens / seconds,
        "sets": each,
    })
}

/// Returns the facts of a command whose prompts are already tokens.
pub fn verb_facts(
    run: &RunSpec,
    model: &plimsoll_files::OpenModel,
    prompt_tokens: usize,
    prompts: usize,
) -> Facts {
    Facts {
        spec: model.spec,
        prompt_tokens: prompt_tokens.max(1),
        completion_tokens: 0,
        eval_prompts: prompts,
        models: PerRole::none(),
        host: plimsoll_plan::HostFacts {
            image: plimsoll_plan::image_bytes(),
            tokenizer: plimsoll_plan::tokenizer_bytes(model),
            data: Bytes(0),
            staging: plimsoll_plan::staging_bytes(run.choices.staging, model),
            rows_kept: plimsoll_plan::rows_kept(run),
            disk: Default::default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(first: Option<f32>, total: Option<f32>) -> Scored {
        Scored { total, parts: vec![first, Some(-0.5)] }
    }

    #[test]
    fn the_first_reward_decides_success_and_the_sum_is_the_score() {
        let (right, wrong) = (scored(Some(1.0), Some(0.5)), scored(Some(0.9), Some(2.0)));
        let mut report = EvalReport::default();
        add_group(&mut report, &[right.clone(), wrong.clone(), wrong.clone(), scored(None, None)]);
        assert_eq!(report.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
        assert_eq!((report.num_samples, report.num_unscored, report.score, report.best), (4, 1, 4.5, 2.0));
        add_group(&mut report, &[wrong.clone(), wrong.clone(), wrong.clone(), wrong]);
        assert_eq!(report.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
        add_group(&mut report, &[right.clone(), right.clone(), right.clone(), right]);
        assert_eq!(report.pass_at_k, [(1, 1.25), (2, 1.5), (4, 2.0)].into());
    }

    #[test]
    fn a_kept_prompt_keeps_all_its_samples() {
        for (samples, kept) in [(1, 8), (3, 24), (4, 32), (5, 30), (16, 32), (20, 20), (300, 300)] {
            assert_eq!(samples_kept(samples), kept, "{samples}");
        }
    }
}
