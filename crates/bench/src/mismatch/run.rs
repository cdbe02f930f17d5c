//! One run of `bench mismatch`: the loop of `train` without its files, with noise while it samples.

use super::cases::{Kind, MismatchOptions};
use plimsoll_algo::correction::CorrectionKind;
use plimsoll_base::{Error, Exit, Result};
use plimsoll_config::{RunSpec, load};
use plimsoll_device::{Device, OpenOptions, SamplerNoise};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::eval::{EvalHow, evaluate};
use plimsoll_infer::runner::open;
use plimsoll_infer::sampler::sampling;
use plimsoll_memory::Limits;
use plimsoll_plan::{RoleName, plan_with};
use plimsoll_reward::Rewards;
use plimsoll_rl::context::{Cursor, StepContext};
use plimsoll_rl::data::session::Session;
use plimsoll_rl::methods::parts::StepParts;
use plimsoll_rl::methods::policy::step;
use plimsoll_rl::players::Answers;
use plimsoll_rl::roles::Trainer;
use plimsoll_rl::supply::rollout::Rollout;
use plimsoll_rl::supply::{FreshSupply, whole};
use plimsoll_rl::teachers;
use plimsoll_train::Sequence;
use std::time::Instant;

/// Number of evaluations of a run, after the one before its first step.
const EVALUATIONS: u32 = 30;
/// The band of truncated importance weights that other stacks begin with.
const BAND: [f64; 2] = [0.0, 2.0];
/// Rollouts that find the deviation for a wanted difference: the difference is nearly proportional to it.
const TRIES: usize = 6;

/// The score after some steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub step: u32,
    /// The mean over greedy answers to held-out prompts, without noise.
    pub score: f64,
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    pub points: Vec<Point>,
    /// Mean over steps of the mean |difference| of a token's log-probability.
    pub difference: f64,
    pub largest_difference: f64,
    /// The error that ended it.
    pub ended: Option<String>,
    pub seconds: f64,
    pub machine: String,
}

impl Course {
    pub fn best(&self) -> Option<f64> {
        self.points.iter().map(|point| point.score).reduce(f64::max)
    }

    /// Returns the first step after the best one at which the score is below a share of it.
    pub fn collapsed_at(&self, share: f64) -> Option<u32> {
        let mut best = 0.0;
        self.points
            .iter()
            .find(|point| {
                best = f64::max(best, point.score);
                point.score < share * best
            })
            .map(|point| point.step)
    }
}

/// Trains one run of a case.
///
/// Errors: those of the run file and of opening it. An error of a step ends the course, which names it.
pub(super) fn train(options: &MismatchOptions, kind: Kind, corrects: bool, seed: u64) -> Result<Course> {
    let started = Instant::now();
    let own = [format!("train.steps={}", options.steps), format!("seed={seed}")];
    let sets: Vec<String> = options.sets.iter().cloned().chain(own).collect();
    let mut run = RunSpec::new(&load(&options.run, &sets, std::env::vars())?.run);
    // With a reference there are passes that score, which steps need for samples of another policy.
    run.training_mut().reference = true;
    if let Some(of) = run.trains.samples_mut() {
        of.objective.correction = corrects.then(|| CorrectionKind::Tis.within(BAND));
    }
    let session = Session::open(&run)?;
    let report = plan_with(&run, &session.facts, &Limits::default())?;
    report.refuse()?;
    let (dev, mut arena) = open(&report.shape, OpenOptions::default())?;
    let others = session.others.each_ref();
    let sources = Sources { others, ..Sources::one(&session.model).with_images(&session.text) };
    let mut trainer = Trainer::new(&*dev, &mut arena, &report.shape, sources, run.seed)?;
    let mut greedy = sampling(&run.rollout, run.seed);
    greedy.temperature = 0.0;
    trainer.rehearse(&[sampling(&run.rollout, run.seed), greedy])?;
    let teacher = teachers::open(&run, 0, &session.text, session.model.spec.vocab as usize)?;
    let parts = StepParts::bind(&run, &report.shape.step_arrays(), teacher);
    let mut course = Run::new(&run, session, &*dev, parts)?.course(&mut trainer, kind)?;
    course.seconds = started.elapsed().as_secs_f64();
    course.machine = dev.machine_type();
    Ok(course)
}

/// Holds what the steps of a run share.
struct Run<'r> {
    run: &'r RunSpec,
    session: Session,
    dev: &'r dyn Device,
    rewards: Rewards,
    parts: StepParts,
    cursor: Cursor,
}

impl<'r> Run<'r> {
    fn new(run: &'r RunSpec, session: Session, dev: &'r dyn Device, parts: StepParts) -> Result<Run<'r>> {
        let rewards = Rewards::new(&run.rewards)?;
        Ok(Run { run, session, dev, rewards, parts, cursor: Cursor::default() })
    }

    fn course(&mut self, trainer: &mut Trainer<'_>, kind: Kind) -> Result<Course> {
        let noise = self.noise_of(trainer, kind)?;
        let mut course = Course::default();
        let steps = self.run.train().steps;
        let every = (steps / EVALUATIONS).max(1);
        course.points.push(Point { step: 0, score: self.score(trainer)? });
        for n in 1..=steps {
            let noise = noise.map(|noise| seeded(noise, u64::from(n)));
            match self.step(trainer, noise, n) {
                Ok([mean, largest]) => {
                    course.difference += mean / f64::from(steps);
                    course.largest_difference = course.largest_difference.max(largest);
                }
                Err(error) if error.exit == Exit::Usage => return Err(error),
                Err(error) => {
                    course.ended = Some(format!("step {n}: {}", error.slug));
                    break;
                }
            }
            if n.is_multiple_of(every) {
                course.points.push(Point { step: n, score: self.score(trainer)? });
            }
        }
        Ok(course)
    }

    /// Samples with noise and trains on it. Returns mean and largest |difference| of the tokens' log-probabilities.
    fn step(&mut self, trainer: &mut Trainer<'_>, noise: Option<SamplerNoise>, n: u32) -> Result<[f64; 2]> {
        let mut supply = FreshSupply::default();
        supply.put(self.sample(trainer, noise, n)?);
        let mut difference = [0.0; 2];
        self.with_context(|cx| {
            step(trainer, &mut supply, cx, n)?;
            difference = difference_of(trainer);
            Ok(())
        })?;
        Ok(difference)
    }

    fn sample(&mut self, trainer: &mut Trainer<'_>, noise: Option<SamplerNoise>, n: u32) -> Result<Rollout> {
        self.dev.set_sampler_noise(noise);
        let drawn = self.with_context(|cx| whole::draw(trainer, cx, n, None));
        self.dev.set_sampler_noise(None);
        let (mut rollout, _) = drawn?;
        // Another policy's: the exact run computes its log-probs again as well, and finds the same.
        rollout.of.policy_version = u64::MAX;
        Ok(rollout)
    }

    fn with_context<T>(&mut self, body: impl FnOnce(&mut StepContext<'_>) -> Result<T>) -> Result<T> {
        let Session { data, text, model, .. } = &mut self.session;
        let text = &*text;
        let mut cx = StepContext {
            run: self.run,
            text,
            eos: &model.eos_token_ids,
            objective: self.run.objective().expect("a method that samples"),
            rewards: &mut self.rewards,
            player: &mut Answers,
            parts: &mut self.parts,
            estimator: None,
            prompts: &mut |first, n| data.batch(text, first, n),
            cursor: self.cursor,
            edge: &mut |_| {},
            waits: &mut |_| {},
        };
        let done = body(&mut cx);
        self.cursor = cx.cursor;
        done
    }

    fn score(&mut self, trainer: &mut Trainer<'_>) -> Result<f64> {
        let mut greedy = sampling(&self.run.rollout, self.run.seed);
        greedy.temperature = 0.0;
        let how = EvalHow {
            text: &self.session.text,
            rollout: &self.run.rollout,
            eos: &self.session.model.eos_token_ids,
            sampling: greedy,
            samples: 1,
            step: 0,
            answer_column: &self.run.data.answer_column,
            model_rewards: &[],
        };
        let Some(set) = self.session.eval.first() else {
            return Err(Error::usage("bench-run-failed", "a run without held-out prompts has no score")
                .hint("set data.eval in the run file"));
        };
        Ok(evaluate(trainer, &how, &mut self.rewards, set, None)?.report.score.unwrap_or(0.0))
    }

    /// Finds the noise of a case: its deviation gives the wanted difference in the first rollout.
    fn noise_of(&mut self, trainer: &mut Trainer<'_>, kind: Kind) -> Result<Option<SamplerNoise>> {
        let (mean, share) = match kind {
            Kind::Exact => return Ok(None),
            Kind::EightBits => return Ok(Some(SamplerNoise::EightBits)),
            Kind::Normal { mean, share } => (mean, share),
        };
        let mut sigma = mean as f32;
        for _ in 0..TRIES {
            let cursor = self.cursor;
            let noise = SamplerNoise::Normal { sigma, share, seed: 0 };
            let rollout = self.sample(trainer, Some(noise), 1)?;
            self.cursor = cursor;
            let found = self.measured(trainer, &rollout)?;
            if found <= 0.0 {
                sigma *= 4.0;
                continue;
            }
            sigma *= (mean / found).clamp(0.25, 4.0) as f32;
        }
        Ok(Some(SamplerNoise::Normal { sigma, share, seed: 0 }))
    }

    /// Returns the mean |difference| of a rollout's log-probabilities from the trainer's.
    fn measured(&self, trainer: &mut Trainer<'_>, rollout: &Rollout) -> Result<f64> {
        let group = self.run.rollout.group_size as usize;
        let Rollout { groups, samples, .. } = rollout;
        let sequence = |s: usize| Sequence {
            group: s / group,
            prompt: &groups[s / group].item.ids,
            response: samples.ids(s),
        };
        let sequences: Vec<Sequence<'_>> = (0..samples.len()).map(sequence).collect();
        trainer.arrays.begin(sequences.iter().map(|sequence| sequence.response.len()));
        let inv_temperature = sampling(&self.run.rollout, 0).inv_temperature();
        trainer.score_into(RoleName::Actor, &sequences, inv_temperature, |b| &mut b.old_logprobs)?;
        Ok(difference_of(trainer)[0])
    }
}

/// Gives each step other noise, as two programs round differently on other batches.
fn seeded(noise: SamplerNoise, seed: u64) -> SamplerNoise {
    match noise {
        SamplerNoise::Normal { sigma, share, .. } => SamplerNoise::Normal { sigma, share, seed },
        SamplerNoise::EightBits => SamplerNoise::EightBits,
    }
}

/// Returns mean and largest |difference| between what the rollout recorded and what the trainer computed.
fn difference_of(trainer: &Trainer<'_>) -> [f64; 2] {
    let (samples, old) = (&trainer.sampler.samples, &trainer.arrays.old_logprobs);
    let recorded = (0..samples.len()).flat_map(|s| samples.logprobs(s));
    let each = recorded.zip(old).map(|(a, b)| f64::from((a - b).abs()));
    let (sum, largest) = each.fold((0.0, 0.0), |(sum, largest): (f64, f64), by| (sum + by, largest.max(by)));
    [sum / old.len().max(1) as f64, largest]
}
