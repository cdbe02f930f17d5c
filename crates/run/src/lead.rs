//! The training loop. `lead` owns events, saves, signals, evaluation, last words and the final report; a `Job` computes
//! the steps. Language models and policies in environments are the two jobs.

use crate::checkpoint::{Best, Retention, RunState, Saver, Store};
use crate::ending::{SAVE, STOP, Summary, interrupted, is_divergence};
use crate::events::{Event, Observer, ObserverRequest, Started, StepResult, WarningEvent};
use crate::limits::Roofline;
use crate::load_line::Watch;
use crate::metrics::{Metrics, add_host};
use crate::opening::Opened;
use crate::progress::Progress;
use crate::report;
use crate::resume::{Fingerprint, Good};
use crate::run_dir::RunDir;
use crate::several::check_others;
use crate::stall::Stall;
use crate::status::Doing;
use crate::track::Tracking;
use crate::vitals::{Verdict, Vitals};
use plimsoll_base::{Error, Exit, Result, slugs};
use plimsoll_config::RunSpec;
use plimsoll_memory::{CardMemory, Plan, Pool, host::Host};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// The part of a run that differs between language models and policies in environments.
pub trait Job<'scope> {
    /// Begins at step 0 with the initial weights, and evaluates before the first step.
    fn begin(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()>;

    /// Restores tensors and counters from a checkpoint. `lead.progress` is already set.
    fn restore(
        &mut self,
        lead: &mut Lead<'_, '_, 'scope, '_>,
        checkpoint: &Path,
        state: &RunState,
    ) -> Result<()>;

    /// Makes a step and ends it with `Lead::step_done`.
    fn step(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()>;

    /// Evaluates between two steps, when `eval.every` says so.
    fn evaluate(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()>;

    fn evaluate_at_end(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()>;

    fn updates(&self) -> u64;

    /// Returns the signal on which all ranks end after the same step: this one's, another's, or 0; or what rank 0's
    /// observer asks, `ending::SAVE` or `ending::STOP`.
    ///
    /// Errors: `rank-lost`.
    fn agree_on_signal(&self, own: i32) -> Result<i32> {
        Ok(own)
    }

    /// Returns what this rank waits for once it has made a step, if it can name it.
    fn whom_at_end(&self, _step: u32) -> Option<String> {
        None
    }

    /// Returns true if this process alone has all weights: an error of its own may have ended the other ranks.
    fn has_all_weights(&self) -> bool {
        true
    }

    /// Checks that the weights are finite and give finite numbers.
    fn prove(&mut self) -> Result<()>;

    /// Restores the initial weights of the run.
    fn reload(&mut self) -> Result<()>;

    /// Adds the tensor that grew most to a divergence error.
    fn name_tensor(&self, error: Error) -> Error;

    /// Fills in the counters that only the job knows.
    fn state(&self, state: &mut RunState);

    /// Returns the saved step's score, which picks the best checkpoint; `None` if it was not evaluated.
    fn score(&self, progress: &Progress) -> Option<f64>;

    /// Returns true if the best checkpoint is kept whatever its age.
    fn keeps_best(&self) -> bool;

    /// Begins a checkpoint: writes the small files, and the tensors now or later.
    fn save(&mut self, saving: Saving<'_>) -> Result<Save<'scope>>;

    /// Returns the content of `summary.json`: the job's numbers and `Lead::common_summary`.
    fn summary(&self, lead: &Lead<'_, '_, 'scope, '_>) -> Summary;
}

pub struct Saving<'s> {
    pub step: u32,
    pub store: Store,
    /// Decides which earlier checkpoints stay.
    pub retention: Retention,
    /// Counters and the resolved run file; `None` for weights alone, from which a run cannot resume.
    pub everything: Option<(&'s RunState, &'s str)>,
    pub savers: Savers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Savers {
    /// Every rank takes part.
    All,
    /// This rank, which has its own error while the others wait elsewhere. Only rank 0 saves then.
    ThisRank,
}

pub enum Save<'scope> {
    Done(PathBuf),
    /// The rest runs during the following steps.
    Later(Box<dyn FnOnce() -> Result<PathBuf> + Send + 'scope>),
}

/// A job's results of a step; the loop adds the rest. Fields are those of `StepResult`.
#[derive(Default)]
pub struct Stepped {
    pub seconds: f64,
    pub reward: Option<f64>,
    pub loss: Option<f64>,
    pub accuracy: Option<f64>,
    pub frames_per_second: Option<f64>,
    /// True if rollout and update rates count tokens; only then does the event show them.
    pub counts_tokens: bool,
    pub metrics: Metrics,
    pub vitals: Vitals,
    pub ranks_waited: Vec<f64>,
}

#[derive(Clone, Copy)]
enum At {
    Start,
    Step(u32),
    /// An evaluation or a checkpoint after this number of steps.
    After(u32),
}

/// How long a run measures the arithmetic that the device reaches: enough for a dozen looks, of which the best counts.
pub const PEAK_SECONDS: f64 = 0.012;

/// Holds what the loop must know of a run before it begins.
pub struct Begun<'r> {
    pub run: &'r RunSpec,
    /// The run in one line, for the user.
    pub title: String,
    /// The resolved run file, as TOML; checkpoints record it.
    pub run_file: String,
    /// The plan to compare measured memory with.
    pub plan: &'r Plan,
    pub fingerprint: Fingerprint,
    pub arena_used: u64,
    /// FLOP/s that the device achieves.
    pub peak_flops: f64,
    /// The roofline of the phases, where they are those of one rank of a language model.
    pub roofline: Option<Roofline>,
    pub machine: String,
    /// Reads the card's memory, if there is a card.
    pub card: Box<dyn Fn() -> Option<CardMemory> + 'r>,
}

pub struct Lead<'r, 's, 'scope, 'env> {
    pub run: &'r RunSpec,
    pub dir: RunDir,
    pub progress: Progress,
    begun: Begun<'r>,
    /// The card's memory after every shape ran once.
    frozen: Option<CardMemory>,
    watch: Watch,
    observer: &'s mut dyn Observer,
    signal: &'s AtomicI32,
    saver: Saver<'scope, 'env>,
    tracking: Option<Tracking>,
    at: At,
    /// True once dead steps have ended the run, on all ranks.
    is_dead: bool,
    started: Instant,
}

/// Runs `job` from its opening to its summary.
///
/// Errors: those of the job. After one, the last good weights are saved if any, and `crash.json` records the cause.
pub fn lead<'scope>(
    opened: Opened,
    begun: Begun<'_>,
    job: &mut dyn Job<'scope>,
    observer: &mut dyn Observer,
    signal: &AtomicI32,
    scope: &'scope Scope<'scope, '_>,
) -> Result<Summary> {
    let Opened { dir, checkpoint, notes } = opened;
    let run = begun.run;
    let mut watch = Watch::new(begun.plan, run.train().steps, run.memory.strict);
    watch.set_dir(dir.path());
    let tracking = Tracking::start(&run.training().track, dir.path(), &begun.run_file);
    let mut lead = Lead {
        run,
        dir,
        progress: Progress::default(),
        frozen: (begun.card)(),
        begun,
        watch,
        observer,
        signal,
        saver: Saver::new(scope),
        tracking,
        at: At::Start,
        is_dead: false,
        started: Instant::now(),
    };
    let result = lead.begin(job, checkpoint, notes).and_then(|()| lead.steps(job));
    let result = result.map_err(|error| lead.last_words(job, error));
    lead.end_tracking(&result);
    result
}

impl<'scope> Lead<'_, '_, 'scope, '_> {
    fn begin(
        &mut self,
        job: &mut dyn Job<'scope>,
        checkpoint: Option<Good>,
        notes: Vec<String>,
    ) -> Result<()> {
        let plan = self.begun.plan;
        let started = Event::Started(Started {
            what: self.begun.title.clone(),
            steps: self.run.train().steps,
            dir: self.dir.path().to_path_buf(),
            planned_bytes: plan.peak(Pool::Host).peak.0,
            planned_parts: plan
                .host_parts()
                .into_iter()
                .map(|(name, bytes)| (name.into(), bytes.0))
                .collect(),
            limit_bytes: plan.limits.host.as_ref().map_or(0, |l| l.bytes.0),
        });
        let Some(Good { folder, state }) = checkpoint else {
            self.say(&started)?;
            return job.begin(self);
        };
        self.observer.on_event(&started);
        self.progress = state.progress.clone();
        job.restore(self, &folder, &state)?;
        let step = self.progress.step;
        // A run with a raised `train.steps` is evaluated at its new end.
        self.progress.evaluated_at_end &= step == self.run.train().steps;
        self.at = At::After(step);
        // The log was cut back to the point before this event.
        self.say(&Event::Saved { step, path: folder })?;
        self.say(&Event::Resumed { step, notes })
    }

    fn steps(&mut self, job: &mut dyn Job<'scope>) -> Result<Summary> {
        let steps = self.run.train().steps;
        for step in self.progress.step + 1..=steps {
            self.at = At::Step(step);
            job.step(self, step)?;
            self.watch_step(job, step)?;
            let every = |n: Option<u32>| n.is_some_and(|n| n > 0 && step % n == 0) && step < steps;
            if every(self.run.eval.every) {
                job.evaluate(self, step)?;
            }
            if every(self.run.training().checkpoint.every) {
                self.save(job, Savers::All)?;
            }
            // After the last step a signal no longer matters: the run ends anyway.
            if step < steps {
                self.end_if_interrupted(job, step)?;
            }
        }
        if !self.progress.evaluated_at_end {
            job.evaluate_at_end(self)?;
            self.progress.evaluated_at_end = true;
        }
        self.save(job, Savers::All)?;
        self.settle()?;
        let summary = job.summary(self);
        report::write(&self.dir, &self.begun.title, steps)?;
        self.dir.write_summary(&summary)?;
        self.say(&Event::Finished { summary: summary.clone() })?;
        Ok(summary)
    }

    /// Saves the run if its observer asks for it, and ends it with an error if that asks for the end or a signal
    /// arrived.
    ///
    /// Errors: `interrupted`; those of saving; `rank-lost` if the signal came because another rank has ended.
    pub fn end_if_interrupted(&mut self, job: &mut dyn Job<'scope>, step: u32) -> Result<()> {
        if let Some(whom) = job.whom_at_end(step) {
            self.waits_for(whom);
        }
        let own = match self.observer.asks() {
            ObserverRequest::Nothing => self.signal.load(Ordering::Relaxed),
            ObserverRequest::Save => SAVE,
            ObserverRequest::Stop => STOP,
        };
        let number = job.agree_on_signal(own)?;
        if number == 0 {
            return Ok(());
        }
        if number == SAVE {
            return self.save(job, Savers::All);
        }
        check_others()?;
        self.save(job, Savers::All)?;
        self.settle()?;
        Err(interrupted(number, step, self.dir.path()))
    }

    /// Saves the run between two steps, and waits for the checkpoint.
    ///
    /// Errors: those of saving.
    pub fn save_now(&mut self, job: &mut dyn Job<'scope>) -> Result<()> {
        self.save(job, Savers::All)?;
        self.settle()
    }

    /// Records in the load line that a part of a step begins.
    pub fn part(&mut self, doing: Doing, step: u32) {
        self.watch.begin(doing, step, || (self.begun.card)());
    }

    /// Records what this rank needs of another, until the next part of a step begins.
    pub fn waits_for(&mut self, whom: String) {
        self.watch.waits_for(whom);
    }

    /// Records a step, which counts as done and is reported even if the previous step's checkpoint failed.
    ///
    /// Errors: those of the save; those of `DeadSteps` after too many dead steps in a row.
    pub fn step_done(&mut self, step: u32, updates: u64, mut stepped: Stepped) -> Result<()> {
        self.progress.step = step;
        self.progress.updates = updates;
        self.at = At::After(step);
        let saved = self.settle();
        let (rss, planned) = (Host::this().rss(), self.begun.plan.process_peak());
        add_host(&mut stepped.metrics, &rss, planned, stepped.seconds);
        let progress = &mut self.progress;
        progress.step_s += stepped.seconds;
        let rate = |count: u64, seconds: f64| {
            (stepped.counts_tokens && count > 0 && seconds > 0.0).then(|| count as f64 / seconds)
        };
        let event = Event::Step(StepResult {
            step,
            steps: self.run.train().steps,
            reward: stepped.reward,
            loss: stepped.loss,
            accuracy: stepped.accuracy,
            tokens_per_second_rollout: rate(progress.rollout_tokens, progress.rollout_s),
            tokens_per_second_update: rate(progress.update_tokens, progress.update_s),
            frames_per_second: stepped.frames_per_second,
            rss_bytes: rss.now.0,
            held_bytes: rss.now.0 + self.watch.others_bytes(),
            planned_bytes: self.begun.plan.peak(Pool::Host).peak.0,
            seconds: stepped.seconds,
            seconds_left: f64::from(self.run.train().steps - step) * progress.step_s / f64::from(step),
            metrics: stepped.metrics,
            ranks_waited: stepped.ranks_waited,
        });
        self.say(&event)?;
        let news = self.tracking.as_ref().map_or(Vec::new(), Tracking::news);
        news.iter().try_for_each(|error| self.say(&Event::Warning(WarningEvent::of(error, step))))?;
        saved?;
        match self.progress.dead_steps.count(&stepped.vitals, self.run.train().dead_steps_max) {
            Verdict::Alive => Ok(()),
            Verdict::Warn(error) => self.say(&Event::Warning(WarningEvent::of(&error, step))),
            Verdict::Stop(error) => {
                self.is_dead = true;
                Err(error)
            }
        }
    }

    /// Lets trackers finish; their failures do not change how the run ended.
    fn end_tracking(&mut self, result: &Result<Summary>) {
        let Some(tracking) = self.tracking.take() else { return };
        let news = match result {
            Ok(summary) => tracking.finish(true, summary),
            Err(_) => tracking.finish(false, &Value::Null),
        };
        for error in news {
            let _ = self.say(&Event::Warning(WarningEvent::of(&error, self.progress.step)));
        }
    }

    /// Reports memory over the step. A strict run that exceeded a row of the plan is saved and ended.
    fn watch_step(&mut self, job: &mut dyn Job<'scope>, step: u32) -> Result<()> {
        let steps = self.run.train().steps;
        for event in self.watch.end_step(step, steps, || (self.begun.card)()) {
            self.say(&event)?;
        }
        match self.watch.strict_error() {
            // Another rank may be within its plan.
            Some(error) => self.save(job, Savers::ThisRank).and_then(|()| self.settle()).and(Err(error)),
            None => Ok(()),
        }
    }

    /// Saves the run if its weights give finite numbers: every checkpoint is usable. It may run on until `settle`.
    fn save(&mut self, job: &mut dyn Job<'scope>, savers: Savers) -> Result<()> {
        let step = self.progress.step;
        if self.progress.saved_step == Some(step) {
            return Ok(());
        }
        job.prove()?;
        self.start_saving(job, step, true, savers)
    }

    /// Begins a checkpoint of the weights, or of everything that the next step depends on.
    fn start_saving(
        &mut self,
        job: &mut dyn Job<'scope>,
        step: u32,
        everything: bool,
        savers: Savers,
    ) -> Result<()> {
        self.part(Doing::Save, step);
        let limit = Duration::from_secs_f64(self.run.training().checkpoint.stall_seconds_max);
        let stall = Stall::begin(step, limit);
        self.settle()?;
        let mut progress = self.progress.clone();
        progress.saved_step = Some(step);
        progress.seconds_before = self.seconds();
        if let Some(score) = job.score(&progress)
            && progress.best.is_none_or(|best| score > best.score)
        {
            progress.best = Some(Best { step, score });
        }
        let state = self.state(job, progress)?;
        let (checkpoint, best) = (&self.run.training().checkpoint, state.progress.best);
        let retention = Retention {
            keep: checkpoint.keep,
            keep_bytes: checkpoint.keep_bytes.map(|limit| limit.0.0),
            best: best.filter(|_| job.keeps_best()).map(|best| best.step),
        };
        let store = self.dir.store();
        let everything = everything.then_some((&state, self.begun.run_file.as_str()));
        let save = job.save(Saving { step, store: store.clone(), retention, everything, savers })?;
        let done = match save {
            Save::Done(path) => Some(path),
            Save::Later(rest) => self.saver.start(step, store, rest).map(|()| None)?,
        };
        self.progress.saved_step = Some(step);
        self.progress.best = best;
        if let Some(error) = stall.end() {
            self.say(&Event::Warning(WarningEvent::of(&error, step)))?;
        }
        match done {
            Some(path) => self.say(&Event::Saved { step, path }),
            None => Ok(()),
        }
    }

    /// Returns the current counters, after syncing the log.
    fn state(&mut self, job: &dyn Job<'scope>, progress: Progress) -> Result<RunState> {
        let Fingerprint { machine, build, plan, inputs } = self.begun.fingerprint.clone();
        let events_bytes = self.dir.events().sync()?;
        let blank = RunState::blank(progress);
        let mut state = RunState { seed: self.run.seed, events_bytes, machine, build, plan, inputs, ..blank };
        job.state(&mut state);
        Ok(state)
    }

    /// Waits for the save in progress, if any, and reports it.
    fn settle(&mut self) -> Result<()> {
        match self.saver.settle()? {
            Some((step, path)) => self.say(&Event::Saved { step, path }),
            None => Ok(()),
        }
    }

    /// Returns the seconds of the run, including earlier processes.
    pub fn seconds(&self) -> f64 {
        self.progress.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// Writes an event to the log and shows it to the observer.
    pub fn say(&mut self, event: &Event) -> Result<()> {
        let started = Instant::now();
        let mut line = serde_json::to_value(event).expect("events are plain data");
        line["seconds_since_start"] = json!(self.seconds());
        self.dir.events().write(&line)?;
        self.observer.on_event(event);
        self.watch.add_spent(started.elapsed());
        Ok(())
    }

    /// Shows a line that is not logged.
    pub fn note(&mut self, text: String) {
        self.observer.on_event(&Event::Note { text });
    }

    /// Records a failed run: the last good weights, if a step was made, and `crash.json`. Returns the error with the
    /// step, the tensor that diverged, and the path of those weights.
    fn last_words(&mut self, job: &mut dyn Job<'scope>, error: Error) -> Error {
        // If another rank has ended there is nothing to keep: its part of the states is gone.
        if matches!(error.exit, Exit::Interrupted | Exit::Terminated | Exit::OtherRank) {
            return error;
        }
        // The save in progress completes, or its error is the one reported here.
        let _ = self.settle();
        let steps = self.run.train().steps;
        let mut error = match self.at {
            At::Start => error.fact("before the first step"),
            At::Step(n) => error.fact(format!("in step {n} of {steps}")),
            At::After(n) => error.fact(format!("after step {n} of {steps}")),
        };
        if is_divergence(&error) {
            error = job.name_tensor(error);
        }
        let planned = self.begun.plan.process_peak();
        let readings =
            json!({ "rss": Host::this().rss().now, "planned": planned, "seconds": self.seconds() });
        // An error that not all ranks meet is this one's own; the others do not know of it yet.
        let is_of_all = self.is_dead || slugs::OF_ALL_RANKS.contains(&error.slug);
        let savers = if is_of_all { Savers::All } else { Savers::ThisRank };
        let can_keep = self.progress.step > 0 && (is_of_all || job.has_all_weights());
        // The user must see this error; a second failure while recording it adds nothing.
        if can_keep && self.keep_good_weights(job, savers).is_ok() {
            let latest = self.dir.path().join("checkpoints/latest");
            error = error.fact(format!("last good weights: {}", latest.display()));
        }
        let _ = self.dir.write_crash(&error, self.progress.step, &readings);
        error
    }

    /// Saves the weights if they give finite numbers. Otherwise the last good ones are an earlier checkpoint or the
    /// initial weights. A step that failed after an update leaves weights alone: a run cannot resume inside a step.
    fn keep_good_weights(&mut self, job: &mut dyn Job<'scope>, savers: Savers) -> Result<()> {
        let whole_step = job.updates() == self.progress.updates;
        let has_checkpoint = self.progress.saved_step.is_some();
        if self.progress.saved_step == Some(self.progress.step) || (has_checkpoint && !whole_step) {
            return Ok(());
        }
        let step = self.progress.step;
        match job.prove().and_then(|()| self.start_saving(job, step, whole_step, savers)) {
            Err(error) if is_divergence(&error) && has_checkpoint => return Ok(()),
            Err(error) if is_divergence(&error) => {
                job.reload()?;
                self.start_saving(job, 0, false, savers)?;
            }
            result => result?,
        }
        self.settle()
    }

    /// Returns the fraction of the device's peak that rollouts and updates achieved; null without either.
    pub fn share_of_peak(&self) -> Value {
        let (p, busy) = (&self.progress, self.progress.rollout_s + self.progress.update_s);
        if busy > 0.0 && p.flops > 0.0 { json!(p.flops / busy / self.begun.peak_flops) } else { Value::Null }
    }

    /// Adds to a summary what all runs report: memory, monitoring, exactness and the machine.
    pub fn common_summary(&self, summary: &mut Value) {
        let (plan, p) = (self.begun.plan, &self.progress);
        for (name, value) in [
            ("arena_planned_bytes", json!(plan.arena_bytes())),
            ("arena_used_bytes", json!(self.begun.arena_used)),
            ("rss_planned_bytes", json!(plan.process_peak())),
            ("rss_peak_bytes", json!(Host::this().rss().peak)),
            ("supervisor_rss_bytes", json!(self.watch.supervisor_bytes())),
            ("monitoring_share", json!(self.watch.spent().as_secs_f64() / p.step_s.max(1e-9))),
            ("trend", json!(self.watch.trend().kinds)),
            ("logprob_mismatch_max", json!(p.mismatch_max)),
            (
                "limits",
                self.begun.roofline.map_or(Value::Null, |roofline| roofline.of(p, self.begun.peak_flops)),
            ),
            ("machine", json!(self.begun.machine)),
        ] {
            summary[name] = value;
        }
        if let (Some(frozen), Some(now)) = (self.frozen, (self.begun.card)()) {
            summary["device_planned_bytes"] = json!(plan.peak(Pool::Device).peak);
            summary["device_used_bytes"] = json!(now.ours());
            summary["device_free_at_freeze_bytes"] = json!(frozen.free);
            summary["device_free_at_end_bytes"] = json!(now.free);
        }
    }
}
