//! Evaluation: responses to held-out prompts, scored by the run's rewards.
//!
//! The score is the mean reward. Next to it is pass@k, for which a response succeeds if the first reward gives it 1 or
//! more, before its weight: other rewards, such as a length penalty, do not make a right answer wrong.

mod images;
mod pass_rates;
mod responses;

use crate::bound::Sources;
use crate::codes::check_blocks;
use crate::facts::{keep_within_positions, verb_facts};
use crate::grading::GradedRequest;
use crate::hub;
use crate::image_table::ImageTable;
use crate::model_reward;
use crate::models::{encodings_of, reward_adapters, reward_models, sample_as_trained, trained_with};
use crate::responder::Responder;
use crate::responses::{KeptSample, Place, SamplesHeader};
use crate::runner::{Runner, open, open_verb};
use crate::sampler::{Sampler, sampling};
use crate::sets::{EvalSet, test_items};
use crate::text::TextModel;
use plimsoll_algo::pass_at_k::{pass_at_k, powers_up_to};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{ColumnSearch, DataSets, ModelReward, Rollout, RunSpec, VerbFile};
use plimsoll_device::Sampling;
use plimsoll_files::{OpenModel, check_output_file};
use plimsoll_memory::host::Host;
use plimsoll_plan::{PerRole, devices, plan_sampling, samples_kept, staging_bytes};
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::{Finish, Request};
use plimsoll_run::scores::{EvalReport, mean_pass_at_k, mean_where_measured};
use plimsoll_run::under_way;
use responses::Responses;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// Evaluation samples use random numbers that training never uses.
pub const EVAL_SAMPLE_IDS: u64 = 1 << 62;

pub struct EvalHow<'s> {
    pub text: &'s TextModel,
    /// Stop strings and the length limit.
    pub rollout: &'s Rollout,
    /// Tokens that end a response.
    pub eos: &'s [u32],
    /// How tokens are sampled.
    pub sampling: Sampling,
    pub samples: usize,
    /// Steps done, for the kept responses.
    pub step: u32,
    /// The column with the answer, for the kept responses.
    pub answer_column: &'s str,
    /// The reward models among the rewards.
    pub model_rewards: &'s [ModelReward],
}

/// The first reward's smallest score of a successful response.
const SUCCESS: f32 = 1.0;

#[derive(Debug, Default)]
pub struct Evaluated {
    pub report: EvalReport,
    /// Every response to the first few prompts.
    pub examples: Vec<KeptSample>,
}

/// Receives every response of an evaluation.
pub type EachResponse<'s> = &'s mut dyn FnMut(&KeptSample) -> Result<()>;

/// Scores `samples` responses to each prompt, as many prompts at a time as the engine holds.
pub fn evaluate(
    responder: &mut dyn Responder<'_>,
    how: &EvalHow<'_>,
    rewards: &mut Rewards,
    set: &EvalSet,
    mut each: Option<EachResponse<'_>>,
) -> Result<Evaluated> {
    let started = Instant::now();
    let items = &set.items;
    let mut report = EvalReport { pass_rates: Vec::with_capacity(items.len()), ..EvalReport::default() };
    let mut examples = Vec::new();
    let names: Vec<String> =
        model_reward::names(rewards, how.model_rewards).into_iter().map(str::to_string).collect();
    let at_once = prompts_at_once(responder.sampler(), how.samples);
    let kept = samples_kept(how.samples);
    let max_new_tokens = how.rollout.max_new_tokens as usize;
    // Several ranks share them out, and each counts its own.
    if responder.is_alone() {
        under_way::expect(items.len() * how.samples);
    }
    for (i, items) in items.chunks(at_once).enumerate() {
        let prompts: Vec<&[u32]> = items.iter().map(|i| i.ids.as_slice()).collect();
        let request = Request {
            prompts: &prompts,
            group_size: how.samples,
            max_new_tokens,
            sampling: how.sampling,
            eos: how.eos,
            first_sample_id: EVAL_SAMPLE_IDS + (i * at_once * how.samples) as u64,
            numbers: &[],
        };
        let of = GradedRequest { request, items, text: how.text, rollout: how.rollout, steps: [0, 0] };
        let (texts, mut scored) = responder.respond(rewards, &of)?;
        report.tokens += responder.sampler().samples.total_tokens();
        model_reward::add(how.model_rewards, responder, items, how.samples, &mut scored)?;
        let version = responder.updates();
        let samples = &*responder.sampler().samples;
        let rows = SamplesHeader {
            text: how.text,
            step: how.step,
            answer_column: how.answer_column,
            names: &names,
            samples,
            policy_version: version,
        };
        for (g, group) in scored.chunks(how.samples).enumerate() {
            add_group(&mut report, group);
            for (s, one) in (g * how.samples..).zip(group) {
                report.num_empty += usize::from(texts[s].trim().is_empty());
                report.num_cut += usize::from(samples.finish(s) == Finish::Length);
                let is_kept = examples.len() < kept;
                if !is_kept && each.is_none() {
                    continue;
                }
                let place =
                    Place { set: &set.name, index: (i * at_once + g) as u64, of_group: s - g * how.samples };
                let row = rows.sample(s, place, &items[g], &texts[s], one);
                if let Some(each) = &mut each {
                    each(&row)?;
                }
                if is_kept {
                    examples.push(row);
                }
            }
        }
    }
    end_sums(&mut report, items.len());
    report.seconds = started.elapsed().as_secs_f64();
    Ok(Evaluated { report, examples })
}

/// Returns how many prompts the engine and the table of images hold, with `samples` responses each.
pub fn prompts_at_once(sampler: &Sampler<'_>, samples: usize) -> usize {
    let of_images = sampler.images.as_ref().map_or(usize::MAX, ImageTable::prompts);
    let episodes = sampler.images.as_ref().map_or(usize::MAX, ImageTable::episodes);
    (sampler.shape.engine.samples.min(episodes) / samples).min(of_images).max(1)
}

/// Turns the sums that `add_group` made over `prompts` prompts into means.
pub fn end_sums(report: &mut EvalReport, prompts: usize) {
    let (scored, prompts) = ((report.num_samples - report.num_unscored) as f64, prompts.max(1) as f64);
    report.score.iter_mut().for_each(|sum| *sum /= scored);
    report.best.iter_mut().for_each(|sum| *sum /= prompts);
    report.pass_at_k.values_mut().for_each(|sum| *sum /= prompts);
}

/// Adds the samples of one prompt to `report`, whose means are sums until the last prompt.
pub fn add_group(report: &mut EvalReport, group: &[Scored]) {
    let totals = group.iter().filter_map(|s| s.total).map(f64::from);
    report.num_samples += group.len();
    report.num_unscored += group.len() - totals.clone().count();
    if let Some(best) = totals.clone().reduce(f64::max) {
        *report.score.get_or_insert(0.0) += totals.sum::<f64>();
        *report.best.get_or_insert(0.0) += best;
    }
    let succeeds = |s: &&Scored| s.parts.first().copied().flatten().is_some_and(|score| score >= SUCCESS);
    let (n, successes) = (group.len() as u32, group.iter().filter(succeeds).count() as u32);
    report.pass_rates.push(f64::from(successes) / f64::from(n.max(1)));
    for k in powers_up_to(n) {
        *report.pass_at_k.entry(k).or_default() += pass_at_k(n, successes, k);
    }
}

/// Runs the command `eval`: a model, data sets and rewards, without training. `rows_to`: a file for the prompts with
/// their pass rates, `responses_to`: one for every response, both as JSON lines and checked before anything is opened.
pub fn eval(verb: &VerbFile, rows_to: Option<&Path>, responses_to: Option<&Path>) -> Result<Value> {
    [rows_to, responses_to].into_iter().flatten().try_for_each(check_output_file)?;
    let (model, mut text) = open_verb(verb)?;
    let mut named = verb.data.eval_sets();
    if named.is_empty() {
        let prompts = verb.data.prompts.iter().flat_map(DataSets::named);
        named = prompts.map(|(name, set)| (name, set.path.clone())).collect();
    }
    hub::localise_sets(&mut named, true)?;
    text.album = images::album(verb, &named, &model)?;
    let sets = EvalSet::open_all(named, &verb.data, &text, verb.eval.prompts_max, test_items)?;
    let mut run = RunSpec::sampling(verb);
    let mut search = ColumnSearch::new(&run.named_columns);
    sets.iter().flat_map(|set| &set.items).for_each(|item| search.see(&item.columns));
    search.finish()?;
    let mut rewards = Rewards::new(&run.rewards)?;
    sets.iter().try_for_each(|set| rewards.check_columns(&set.items[0].columns))?;
    let longest = sets.iter().flat_map(|set| &set.items).map(|i| i.ids.len()).max().unwrap_or(1);
    let largest = sets.iter().map(|set| set.items.len()).max().unwrap_or(0);
    sample_as_trained(&mut run, &model);
    keep_within_positions(&mut run, &model, longest)?;
    let others = PerRole::none().with_rewards(reward_models(&run, &model)?.into_iter());
    check_blocks(&run, &model, &others)?;
    let mut facts = verb_facts(&run, &model, longest, largest);
    facts.sight = images::shape(&run, verb, text.album.as_deref())?;
    facts.models = others.each_ref().map(|other: &OpenModel| other.spec);
    facts.adapters = reward_adapters(&run, &others);
    facts.encodings = encodings_of(&model, &others);
    facts.host.staging = others
        .values()
        .map(|other| staging_bytes(run.memory.staging, other))
        .fold(facts.host.staging, Bytes::max);
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let (dev, mut arena) = open(&report.shape, devices::options(&run))?;
    let sources = Sources { others: others.each_ref(), ..Sources::one(&model).with_images(&text) };
    let mut runner = Runner::new(&*dev, &mut arena, &report.shape, sources, verb.seed)?;
    let how = EvalHow {
        text: &text,
        rollout: &run.rollout,
        eos: &model.eos_token_ids,
        sampling: sampling(&run.rollout, verb.seed),
        samples: verb.eval.samples.max(1) as usize,
        step: 0,
        answer_column: &run.data.answer_column,
        model_rewards: &run.model_rewards,
    };
    let mut responses = responses_to.map(Responses::create).transpose()?;
    let (mut found, mut examples) = (Vec::with_capacity(sets.len()), Vec::with_capacity(sets.len()));
    for set in &sets {
        let mut write = |row: &KeptSample| responses.as_mut().map_or(Ok(()), |file| file.write(row));
        let each: Option<EachResponse<'_>> = if responses_to.is_some() { Some(&mut write) } else { None };
        let one = evaluate(&mut runner, &how, &mut rewards, set, each)?;
        found.push(one.report);
        examples.push(one.examples);
    }
    responses.map(Responses::finish).transpose()?;
    if let Some(path) = rows_to {
        pass_rates::write(path, &verb.data, &sets, &found)?;
    }
    let mut value = verb_report(&how, &sets, &found, &examples);
    value["compute"] = json!(report.shape.compute());
    [value["model"], value["trained_with"]] = [json!(verb.model), json!(trained_with(&model))];
    value["prompts_are"] = json!(text.first_prompt_words(&sets[0].items[0]));
    value["samples_per_prompt"] = json!(how.samples);
    let rss = json!(Host::this().rss().peak);
    [value["arena_bytes"], value["rss_peak_bytes"]] = [json!(report.plan.arena_bytes()), rss];
    Ok(value)
}

/// Returns the command's result: that of a single set, or means over the sets and each of them.
fn verb_report(
    how: &EvalHow<'_>,
    sets: &[EvalSet],
    found: &[EvalReport],
    examples: &[Vec<KeptSample>],
) -> Value {
    let one = |((set, found), examples): ((&EvalSet, &EvalReport), &Vec<KeptSample>)| {
        json!({
            "data": set.name, "score": found.score, "pass_at_k": found.pass_at_k, "best": found.best,
            "prompts": set.items.len(), "samples": found.num_samples, "unscored": found.num_unscored,
            "empty": found.num_empty, "cut": found.num_cut, "max_new_tokens": how.rollout.max_new_tokens,
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
        "score": mean_where_measured(found.iter().map(|r| r.score)), "pass_at_k": mean_pass_at_k(found),
        "best": mean_where_measured(found.iter().map(|r| r.best)),
        "prompts": sets.iter().map(|set| set.items.len()).sum::<usize>(),
        "samples": sum(|r| r.num_samples as f64) as u64, "unscored": sum(|r| r.num_unscored as f64) as u64,
        "empty": sum(|r| r.num_empty as f64) as u64, "cut": sum(|r| r.num_cut as f64) as u64,
        "max_new_tokens": how.rollout.max_new_tokens,
        "tokens": tokens as u64, "seconds": seconds, "tokens_per_second": tokens / seconds,
        "sets": each,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(first: Option<f32>, total: Option<f32>) -> Scored {
        Scored { total, parts: vec![first, Some(-0.5)], ..Scored::default() }
    }

    #[test]
    fn the_first_reward_decides_success_and_the_sum_is_the_score() {
        let (right, wrong) = (scored(Some(1.0), Some(0.5)), scored(Some(0.9), Some(2.0)));
        let mut report = EvalReport::default();
        add_group(&mut report, &[right.clone(), wrong.clone(), wrong.clone(), scored(None, None)]);
        assert_eq!(report.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
        assert_eq!(
            (report.num_samples, report.num_unscored, report.score, report.best),
            (4, 1, Some(4.5), Some(2.0))
        );
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
