//! Evaluation: responses to held-out prompts, scored by the run's rewards.
//!
//! The score is the mean reward. Beside it stands pass@k, for which a response succeeds if the first reward gives it 1 or
//! more, before its weight: other rewards, such as a price for length, do not make a right answer wrong.

use crate::dataset::{Item, TextModel};
use crate::devices;
use crate::grading::Grading;
use crate::plan::plan_sampling;
use crate::responses::KeptSample;
use crate::runfile::{Rollout, RunFile, Train, VerbFile};
use crate::session::{self, Facts};
use crate::train::SAMPLES_KEPT;
use crate::trainer::Trainer;
use plimsoll_algo::pass_at_k::{pass_at_k, powers_up_to};
use plimsoll_base::{Bytes, Result};
use plimsoll_device::{Device, Sampling};
use plimsoll_memory::host::Host;
use plimsoll_reward::{Rewards, Scored};
use plimsoll_rollout::Request;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Evaluation samples draw from numbers that training never uses.
const EVAL_SAMPLE_IDS: u64 = 1 << 62;

/// How to evaluate.
pub struct EvalHow<'s> {
    /// The model's text side.
    pub text: &'s TextModel,
    /// Stop strings and the length limit.
    pub rollout: &'s Rollout,
    /// Tokens that end a response.
    pub eos: &'s [u32],
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Samples a prompt.
    pub samples: usize,
    /// Steps done, for the responses that are kept.
    pub step: u32,
}

/// What an evaluation found.
#[derive(Clone, Debug, Default)]
pub struct EvalReport {
    /// Mean reward.
    pub score: f64,
    /// Mean over prompts of the best sample's reward.
    pub best: f64,
    /// Mean over prompts of pass@k, by k: the powers of two up to the samples a prompt. A response without a score of
    /// the first reward has not succeeded.
    pub pass_at_k: BTreeMap<u32, f64>,
    /// Responses.
    pub num_samples: usize,
    /// Responses without a score.
    pub num_unscored: usize,
    /// Response tokens.
    pub tokens: usize,
    /// Seconds of sampling and grading.
    pub seconds: f64,
    /// Every response to the first few prompts, for people.
    pub examples: Vec<KeptSample>,
}

/// Most prompts whose responses are kept.
const PROMPTS_KEPT: usize = 8;
/// What a response must have of the first reward to succeed.
const SUCCESS: f32 = 1.0;

/// Responses of an evaluation that are kept: all of a prompt's, so that pass@k can be read off them.
pub(crate) fn samples_kept(samples: usize) -> usize {
    (SAMPLES_KEPT / samples).clamp(1, PROMPTS_KEPT) * samples
}

/// Scores `samples` responses to each prompt, as many prompts at a time as the engine holds.
pub fn evaluate<D: Device + ?Sized>(
    trainer: &mut Trainer<'_, D>,
    how: &EvalHow<'_>,
    rewards: &mut Rewards,
    items: &[Item],
) -> Result<EvalReport> {
    let started = Instant::now();
    let mut report = EvalReport::default();
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
        let scored = rewards.finish()?;
        for (g, group) in scored.chunks(how.samples).enumerate() {
            report.add(group);
            for (s, one) in (g * how.samples..).zip(group) {
                if report.examples.len() < kept {
                    let row =
                        KeptSample::new(how.step, &items[g].text, &texts[s], one.total, &trainer.samples, s);
                    report.examples.push(row);
                }
            }
        }
    }
    report.score /= (report.num_samples - report.num_unscored).max(1) as f64;
    report.best /= items.len().max(1) as f64;
    report.pass_at_k.values_mut().for_each(|sum| *sum /= items.len().max(1) as f64);
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

impl EvalReport {
    /// Adds the samples of one prompt; means are sums until the last.
    fn add(&mut self, group: &[Scored]) {
        let totals = group.iter().filter_map(|s| s.total).map(f64::from);
        self.num_samples += group.len();
        self.num_unscored += group.len() - totals.clone().count();
        self.score += totals.clone().sum::<f64>();
        self.best += totals.reduce(f64::max).unwrap_or(0.0);
        let succeeds = |s: &&Scored| s.parts.first().copied().flatten().is_some_and(|score| score >= SUCCESS);
        let (n, successes) = (group.len() as u32, group.iter().filter(succeeds).count() as u32);
        for k in powers_up_to(n) {
            *self.pass_at_k.entry(k).or_default() += pass_at_k(n, successes, k);
        }
    }
}

/// `pass@1 0.2500, pass@2 0.4000`, for people.
pub fn pass_words(pass_at_k: &BTreeMap<u32, f64>, digits: usize) -> String {
    let words: Vec<String> = pass_at_k.iter().map(|(k, pass)| format!("pass@{k} {pass:.digits$}")).collect();
    words.join(", ")
}

/// The verb `eval`: a model, a data set and rewards, without training.
pub fn eval(verb: &VerbFile) -> Result<Value> {
    devices::check(verb.run.device)?;
    let model = session::open_model(&verb.model, &verb.model_options, true)?;
    let text = session::text_model(&model, &verb.data)?;
    let name = verb.data.eval.as_deref().or(verb.data.prompts.as_deref()).unwrap_or("builtin:addition");
    let items = crate::dataset::Dataset::test_items(name, &verb.data, &text, verb.eval.prompts_max)?;
    let mut rewards = Rewards::new(&reward_specs(&verb.reward, &verb.data.answer_column))?;
    rewards.check_columns(&items[0].columns)?;
    let run = as_run(verb);
    let facts = verb_facts(&run, &model, items.iter().map(|i| i.ids.len()).max().unwrap_or(1), items.len());
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let (dev, mut arena) = devices::open(&report.shape, devices::options(&run))?;
    let mut trainer = Trainer::new(&*dev, &mut arena, &report.shape, &model, verb.seed)?;
    let sampling = crate::trainer::sampling(&verb.rollout, verb.seed);
    let how = EvalHow {
        text: &text,
        rollout: &verb.rollout,
        eos: &model.eos_token_ids,
        sampling,
        samples: verb.eval.samples.max(1) as usize,
        step: 0,
    };
    let found = evaluate(&mut trainer, &how, &mut rewards, &items)?;
    Ok(json!({
        "model": verb.model, "data": name, "score": found.score, "pass_at_k": found.pass_at_k, "best": found.best,
        "samples_per_prompt": how.samples, "prompts": items.len(), "samples": found.num_samples, "unscored": found.num_unscored, "tokens": found.tokens,
        "seconds": found.seconds, "tokens_per_second": found.tokens as f64 / found.seconds, "examples": found.examples,
        "arena_bytes": report.plan.arena_bytes(), "rss_peak_bytes": Host::this().rss().peak,
    }))
}

/// A run file that holds what a verb needs; its method and training are never used.
pub fn as_run(verb: &VerbFile) -> RunFile {
    RunFile {
        method: crate::runfile::Method::Grpo,
        seed: verb.seed,
        model: verb.model.clone(),
        model_options: verb.model_options.clone(),
        data: verb.data.clone(),
        rollout: verb.rollout.clone(),
        reward: verb.reward.clone(),
        loss: Default::default(),
        critic: None,
        train: Train::new(1, 0.0),
        memory: verb.memory.clone(),
        eval: verb.eval.clone(),
        checkpoint: Default::default(),
        run: verb.run.clone(),
        environment: None,
    }
}

/// Facts of a verb whose prompts are already tokens.
pub fn verb_facts(
    run: &RunFile,
    model: &plimsoll_files::OpenModel,
    prompt_tokens: usize,
    prompts: usize,
) -> Facts {
    Facts {
        spec: model.spec,
        prompt_tokens: prompt_tokens.max(1),
        completion_tokens: 0,
        eval_prompts: prompts,
        critic: None,
        host: crate::shape::HostFacts {
            image: session::image_bytes(),
            tokenizer: session::tokenizer_bytes(model),
            data: Bytes(0),
            staging: session::staging_bytes(run.memory.staging, model),
            rows_kept: session::rows_kept(run),
            disk: Default::default(),
        },
    }
}

/// The rewards of a run file as the reward crate takes them.
pub fn reward_specs(
    rewards: &[crate::runfile::Reward],
    answer_column: &str,
) -> Vec<plimsoll_reward::RewardSpec> {
    use crate::runfile::RewardFailure;
    use plimsoll_reward::{OnError, RewardSpec};
    rewards
        .iter()
        .map(|r| RewardSpec {
            kind: r.kind.clone(),
            weight: r.weight,
            answer_column: r.answer_column.clone().unwrap_or_else(|| answer_column.to_string()),
            timeout_ms: r.timeout_ms,
            workers: r.workers.value().unwrap_or(1),
            batch_size: r.batch_size.value().map(|n| n as usize),
            worker_memory: r.worker_memory.0,
            network: r.network.kind(),
            signature: r.signature.kind(),
            schema: r.schema.clone(),
            retries: r.retries,
            on_error: if r.on_error == RewardFailure::None { OnError::None } else { OnError::Stop },
            python: r.python.clone(),
            pattern: r.pattern.clone(),
            overlong_buffer: r.overlong_buffer.map(|n| n as usize),
        })
        .collect()
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
        report.add(&[right.clone(), wrong.clone(), wrong.clone(), scored(None, None)]);
        assert_eq!(report.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
        assert_eq!((report.num_samples, report.num_unscored, report.score, report.best), (4, 1, 4.5, 2.0));
        report.add(&[wrong.clone(), wrong.clone(), wrong.clone(), wrong]);
        assert_eq!(report.pass_at_k, [(1, 0.25), (2, 0.5), (4, 1.0)].into());
        report.add(&[right.clone(), right.clone(), right.clone(), right]);
        assert_eq!(report.pass_at_k, [(1, 1.25), (2, 1.5), (4, 2.0)].into());
    }

    #[test]
    fn a_kept_prompt_keeps_all_its_samples() {
        for (samples, kept) in [(1, 8), (3, 24), (4, 32), (5, 30), (16, 32), (20, 20), (300, 300)] {
            assert_eq!(samples_kept(samples), kept, "{samples}");
        }
    }
}
