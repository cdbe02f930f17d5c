//! The verb `train`: plan, bind, loop, evaluate, save.

use crate::checkpoint::{check_space, save_checkpoint};
use crate::dataset::Item;
use crate::devices;
use crate::diverged::{is_divergence, name_tensor, prove};
use crate::eval::{EvalHow, EvalReport, evaluate, reward_specs};
use crate::events::{EvalResult, Event, Observer, Started, StepResult};
use crate::metrics;
use crate::objective::Objective;
use crate::plan::{PlanReport, check_micro_batch, plan_with};
use crate::run_dir::RunDir;
use crate::runfile::{Loaded, RunFile};
use crate::session::{self, Session};
use crate::sft::sft_step;
use crate::step::{StepContext, step};
use crate::trainer::{Trainer, sampling};
use plimsoll_base::{Error, Exit, Result};
use plimsoll_device::{Device, Sampling};
use plimsoll_memory::Limits;
use plimsoll_memory::host::Host;
use plimsoll_reward::Rewards;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

/// Samples of a step that are written to the run directory.
const SAMPLES_KEPT: usize = 32;

/// A finished run: what `summary.json` says.
pub type Summary = Value;

/// Trains. `signal` holds the number of a signal that came, or 0; the run then saves and ends between two steps.
///
/// Errors: those of planning, opening and training; after an error the last good weights are saved where there are any.
pub fn train(loaded: &Loaded, observer: &mut dyn Observer, signal: &AtomicI32) -> Result<Summary> {
    let run = &loaded.run;
    session::check_trainable(&run.model)?;
    let mut session = Session::open(run, true)?;
    let rewards = Rewards::new(&reward_specs(&run.reward, &run.data.answer_column))?;
    if run.method.has_rollout() {
        rewards.check_columns(&session.data.first_columns())?;
    }
    if let Some(item) = session.eval.first() {
        rewards.check_columns(&item.columns)?;
    }
    check_micro_batch(run, &session.facts)?;
    let report = plan_with(run, &session.facts, &Limits::default())?;
    report.refuse()?;
    let dir = RunDir::create(&run_dir_path(loaded), &report.resolved.write_into(run), &report.to_json())?;
    check_space(&report.shape, dir.path()).inspect_err(|_| dir.discard())?;
    let (dev, mut arena) = devices::open(&report.shape, run.run.checked).inspect_err(|_| dir.discard())?;
    let arena_used = arena.map().used_bytes();
    let trainer = Trainer::new(&*dev, &mut arena, &report.shape, &session.model, run.seed);
    let mut trainer = trainer.inspect_err(|_| dir.discard())?;
    let greedy = Sampling { temperature: run.eval.temperature as f32, ..sampling(&run.rollout, run.seed) };
    trainer.rehearse(&[sampling(&run.rollout, run.seed), greedy]).inspect_err(|_| dir.discard())?;
    let peak_gflops = dev.peak_flops(0.05) * 1e-9;
    let eval_items = std::mem::take(&mut session.eval);
    let mut training = Run {
        run,
        session: &mut session,
        eval_items,
        trainer,
        rewards: Some(rewards),
        report: &report,
        dir,
        observer,
        progress: Progress::default(),
        at: At::Start,
        arena_used,
        peak_gflops,
        started: Instant::now(),
    };
    let result = training.run(signal);
    result.map_err(|error| training.last_words(error))
}

/// What a run is doing, for the message if it fails.
#[derive(Clone, Copy)]
enum At {
    Start,
    Step(u32),
    /// An evaluation or a checkpoint after so many steps.
    After(u32),
}

/// A run under way.
struct Run<'r, 's, D: ?Sized> {
    run: &'r RunFile,
    session: &'s mut Session,
    eval_items: Vec<Item>,
    trainer: Trainer<'r, D>,
    rewards: Option<Rewards>,
    report: &'r PlanReport,
    dir: RunDir,
    observer: &'s mut dyn Observer,
    progress: Progress,
    at: At,
    arena_used: u64,
    peak_gflops: f64,
    started: Instant,
}

/// What the summary is made of.
#[derive(Debug, Default)]
struct Progress {
    step: u32,
    saved_step: Option<u32>,
    eval_before: Option<f64>,
    eval_after: Option<f64>,
    last_eval: Option<f64>,
    reward_first: Option<f64>,
    reward_last: Option<f64>,
    mismatch_max: f64,
    rollout_tokens: u64,
    update_tokens: u64,
    rollout_s: f64,
    update_s: f64,
    flops: f64,
    step_s: f64,
}

impl<D: Device + ?Sized> Run<'_, '_, D> {
    fn run(&mut self, signal: &AtomicI32) -> Result<Summary> {
        let steps = self.run.train.steps;
        self.say(&Event::Started(Started {
            what: self.title(),
            steps,
            dir: self.dir.path().to_path_buf(),
            planned_bytes: self.report.host_peak().0,
            limit_bytes: self.report.plan.limits.host.as_ref().map_or(0, |l| l.bytes.0),
        }))?;
        self.progress.eval_before = self.evaluate(0)?;
        let mut objective = match self.run.method.has_rollout() {
            true => Some(Objective::new(self.run)?),
            false => None,
        };
        for step in 1..=steps {
            self.at = At::Step(step);
            match &mut objective {
                Some(objective) => self.rl_step(objective, step)?,
                None => self.supervised_step(step)?,
            }
            self.progress.step = step;
            self.at = At::After(step);
            let every = |n: Option<u32>| n.is_some_and(|n| n > 0 && step % n == 0);
            if every(self.run.eval.every) && step < steps {
                self.evaluate(step)?;
            }
            if every(self.run.checkpoint.every) && step < steps {
                self.save()?;
            }
            let number = signal.load(Ordering::Relaxed);
            if number != 0 {
                self.save()?;
                return Err(interrupted(number, step, self.dir.path()));
            }
        }
        self.progress.eval_after = self.evaluate(steps)?;
        self.save()?;
        let summary = self.summary();
        self.dir.write_summary(&summary)?;
        self.say(&Event::Finished { summary: summary.clone() })?;
        Ok(summary)
    }

    fn rl_step(&mut self, objective: &mut Objective, n: u32) -> Result<()> {
        let started = Instant::now();
        let prompts = self.run.rollout.prompts_per_step as usize;
        let first = u64::from(n - 1) * prompts as u64;
        let items = self.session.data.batch(&self.session.text, first, prompts)?;
        let mut cx = StepContext {
            run: self.run,
            text: &self.session.text,
            eos: &self.session.model.eos_token_ids,
            objective: *objective,
            rewards: self.rewards.take().expect("rewards come back after each step"),
        };
        let result = step(&mut self.trainer, &mut cx, &items, n);
        *objective = cx.objective;
        self.rewards = Some(cx.rewards);
        let report = result?;
        let seconds = started.elapsed().as_secs_f64();
        let progress = &mut self.progress;
        progress.mismatch_max = progress.mismatch_max.max(report.logprob_mismatch_max);
        progress.rollout_tokens += report.response_tokens as u64;
        progress.update_tokens += report.update_rows;
        progress.rollout_s += report.seconds.rollout;
        progress.update_s += report.seconds.update;
        progress.flops +=
            metrics::step_flops(&self.report.shape.spec, &items, &self.trainer.samples, &self.run.rollout);
        progress.reward_first = progress.reward_first.or(Some(report.rewards.reward));
        progress.reward_last = Some(report.rewards.reward);
        self.keep_samples(n, &items, &report)?;
        let metrics = metrics::of_step(&report, self.progress.rollout_tokens);
        self.step_done(n, seconds, Some(report.rewards.reward), None, metrics)
    }

    fn supervised_step(&mut self, n: u32) -> Result<()> {
        let started = Instant::now();
        let rows = self.run.rollout.prompts_per_step as usize;
        let items = self.session.data.batch(&self.session.text, u64::from(n - 1) * rows as u64, rows)?;
        let report = sft_step(&mut self.trainer, self.run, &items, n)?;
        let seconds = started.elapsed().as_secs_f64();
        self.progress.update_tokens += report.update.rows;
        self.progress.update_s += seconds;
        let metrics = metrics::of_sft(&report);
        self.step_done(n, seconds, None, Some(report.sums.mean_nll()), metrics)
    }

    fn step_done(
        &mut self,
        n: u32,
        seconds: f64,
        reward: Option<f64>,
        loss: Option<f64>,
        mut metrics: metrics::Metrics,
    ) -> Result<()> {
        let rss = Host::this().rss();
        metrics::add_host(&mut metrics, &rss, self.report.host_peak(), seconds);
        let progress = &mut self.progress;
        progress.step_s += seconds;
        let left = f64::from(self.run.train.steps - n) * progress.step_s / f64::from(n);
        let rate = |tokens: u64, seconds: f64| (seconds > 0.0).then(|| tokens as f64 / seconds);
        let event = Event::Step(StepResult {
            step: n,
            steps: self.run.train.steps,
            reward,
            loss,
            accuracy: progress.last_eval,
            tokens_per_second_rollout: rate(progress.rollout_tokens, progress.rollout_s),
            tokens_per_second_update: rate(progress.update_tokens, progress.update_s),
            rss_bytes: rss.now.0,
            planned_bytes: self.report.host_peak().0,
            seconds,
            seconds_left: left,
            metrics,
        });
        self.say(&event)
    }

    /// Scores the held-out prompts; `None` without an evaluation set.
    fn evaluate(&mut self, step: u32) -> Result<Option<f64>> {
        if self.eval_items.is_empty() {
            return Ok(None);
        }
        let mut how = sampling(&self.run.rollout, self.run.seed);
        how.temperature = self.run.eval.temperature as f32;
        let how = EvalHow {
            text: &self.session.text,
            rollout: &self.run.rollout,
            eos: &self.session.model.eos_token_ids,
            sampling: how,
            samples: self.run.eval.samples.max(1) as usize,
        };
        let rewards = self.rewards.as_mut().expect("rewards come back after each step");
        let report: EvalReport = evaluate(&mut self.trainer, &how, rewards, &self.eval_items)?;
        self.progress.last_eval = Some(report.score);
        self.dir.write_samples_named(&format!("eval-{step:06}"), &report.examples)?;
        self.say(&Event::Eval(EvalResult {
            step,
            set: self.session.eval_name.clone(),
            score: report.score,
            num_samples: report.num_samples,
            seconds: report.seconds,
        }))?;
        Ok(Some(report.score))
    }

    fn keep_samples(&mut self, n: u32, items: &[Item], report: &crate::step::StepReport) -> Result<()> {
        let every = (self.run.train.steps / 20).max(1);
        if n != 1 && !n.is_multiple_of(every) && n != self.run.train.steps {
            return Ok(());
        }
        let group = self.run.rollout.group_size as usize;
        let samples = &self.trainer.samples;
        let rows: Vec<Value> = (0..samples.len().min(SAMPLES_KEPT))
            .map(|s| {
                json!({
                    "step": n, "prompt": items[s / group].text, "response": report.texts[s], "reward": report.totals[s],
                    "response_tokens": samples.ids(s).len(), "finish": samples.finish(s), "logprobs": samples.logprobs(s),
                })
            })
            .collect();
        self.dir.write_samples(n, &rows)
    }

    /// Saves the weights, which must give numbers: whatever `checkpoints` holds can be used.
    fn save(&mut self) -> Result<()> {
        let step = self.progress.step;
        if self.progress.saved_step == Some(step) {
            return Ok(());
        }
        prove(&mut self.trainer)?;
        self.write_checkpoint(step)
    }

    fn write_checkpoint(&mut self, step: u32) -> Result<()> {
        let path =
            save_checkpoint(&self.trainer, &self.session.model, &self.dir, step, self.run.checkpoint.keep)?;
        self.progress.saved_step = Some(step);
        self.say(&Event::Saved { step, path })
    }

    /// What a run that fails leaves: the last good weights, where a step was made, and `crash.json`. Returns the error
    /// with the step, the tensor where numbers ran away, and where those weights are.
    fn last_words(&mut self, error: Error) -> Error {
        if matches!(error.exit, Exit::Interrupted | Exit::Terminated) {
            return error;
        }
        let mut error = name_tensor(
            &self.trainer,
            match self.at {
                At::Start => error.fact("before the first step"),
                At::Step(n) => error.fact(format!("in step {n} of {}", self.run.train.steps)),
                At::After(n) => error.fact(format!("after step {n} of {}", self.run.train.steps)),
            },
        );
        let readings = json!({ "rss": Host::this().rss().now, "planned": self.report.host_peak(), "seconds": self.started.elapsed().as_secs_f64() });
        // The error itself is what the user must see; a second failure while recording it adds nothing.
        if self.progress.step > 0 && self.keep_good_weights().is_ok() {
            let latest = self.dir.path().join("checkpoints/latest");
            error = error.fact(format!("last good weights: {}", latest.display()));
        }
        let _ = self.dir.write_crash(&error, self.progress.step, &readings);
        error
    }

    /// Saves the weights if they give numbers; else an earlier checkpoint is the last good one, and where there is
    /// none, the weights that the run began with.
    fn keep_good_weights(&mut self) -> Result<()> {
        match (self.save(), self.progress.saved_step) {
            (Err(error), None) if is_divergence(&error) => {
                self.trainer.reload(&self.session.model, self.run.seed)?;
                self.write_checkpoint(0)
            }
            (Err(error), Some(_)) if is_divergence(&error) => Ok(()),
            (result, _) => result,
        }
    }

    fn say(&mut self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_value(event).expect("events are plain data");
        line["seconds_since_start"] = json!(self.started.elapsed().as_secs_f64());
        self.dir.events().write(&line)?;
        self.observer.on_event(event);
        Ok(())
    }

    fn title(&self) -> String {
        let millions = self.report.shape.spec.parameters() as f64 / 1e6;
        let (method, model) = (self.run.method.name(), &self.run.model);
        format!(
            "{method} on {model}, {millions:.1} M parameters, {}, {}",
            self.report.shape.weights.name(),
            self.trainer.dev.machine_type()
        )
    }

    fn summary(&self) -> Summary {
        let (p, rss) = (&self.progress, Host::this().rss());
        let rate = |tokens: u64, seconds: f64| {
            if seconds > 0.0 { json!(tokens as f64 / seconds) } else { Value::Null }
        };
        let busy = p.rollout_s + p.update_s;
        json!({
            "steps": p.step,
            "eval_before": p.eval_before,
            "eval_after": p.eval_after,
            "reward_first": p.reward_first,
            "reward_last": p.reward_last,
            "seconds": self.started.elapsed().as_secs_f64(),
            "tokens_per_second_rollout": rate(p.rollout_tokens, p.rollout_s),
            "tokens_per_second_update": rate(p.update_tokens, p.update_s),
            "share_of_peak": if busy > 0.0 && p.flops > 0.0 { json!(p.flops / busy / (self.peak_gflops * 1e9)) } else { Value::Null },
            "arena_planned_bytes": self.report.plan.arena_bytes(),
            "arena_used_bytes": self.arena_used,
            "rss_planned_bytes": self.report.host_peak(),
            "rss_peak_bytes": rss.peak,
            "logprob_mismatch_max": p.mismatch_max,
            "machine": self.trainer.dev.machine_type(),
        })
    }
}

/// The run directory: the run file's, else `runs/out/NAME`.
fn run_dir_path(loaded: &Loaded) -> PathBuf {
    match &loaded.run.run.dir {
        Some(dir) => PathBuf::from(dir),
        None => Path::new("runs/out").join(loaded.path.file_stem().unwrap_or("run".as_ref())),
    }
}

fn interrupted(signal: i32, step: u32, dir: &Path) -> Error {
    let (name, exit) =
        if signal == 15 { ("SIGTERM", Exit::Terminated) } else { ("SIGINT", Exit::Interrupted) };
    let message = format!("{name} after step {step}; the weights are saved");
    let latest = dir.join("checkpoints/latest");
    Error { exit, ..Error::new("interrupted", message) }
        .hint(format!("train on from there with model = \"{}\" and another run.dir", latest.display()))
}
