//! The run of an environment policy: plan, bind, loop, save. A step is five calls: collect, gather, score, learn, publish.

use super::evaluate::Evaluator;
use super::experience::Experience;
use super::gather::gather;
use super::learner::{self, Learner};
use super::metrics::{StepReport, of_step};
use super::plan::{AgentPlan, BATCHES, checkpoint_bytes};
use super::policy::{Board, MlpPolicy};
use super::save::{self, Saved};
use super::settings::AgentSettings;
use super::state::{AgentState, RECENT};
use plimsoll_algo::action::Explore;
use plimsoll_base::{Bytes, Error, Exit, PolicyVersion, Result};
use plimsoll_collect::{Collector, Mode, OnAbort, Policy, Settings};
use plimsoll_config::{Loaded, RunFile};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::Device;
use plimsoll_files::record_of;
use plimsoll_memory::host::{Host, free_disk};
use plimsoll_memory::{Arena, ArenaMap, Limits};
use plimsoll_run::checkpoint::{Best, Retention, RunState};
use plimsoll_run::ending::is_divergence;
use plimsoll_run::ending::{Summary, ended_by, interrupted, run_dir_path};
use plimsoll_run::events::{EvalResult, Event, Observer, Started, StepResult};
use plimsoll_run::load_line::Watch;
use plimsoll_run::metrics::{Metrics, add_host};
use plimsoll_run::progress::Progress;
use plimsoll_run::resume::{self, Earlier, Fingerprint, Good, Origin, Start};
use plimsoll_run::run_dir::RunDir;
use plimsoll_run::status::Doing;
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

/// Trains a policy in environments. `signal` holds the number of a signal that came, or 0; the run then saves and ends
/// between two steps.
///
/// Errors: those of the run file's environment and model, of planning, collecting and learning.
pub fn train(
    loaded: &Loaded,
    start: Start,
    observer: &mut dyn Observer,
    signal: &Arc<AtomicI32>,
) -> Result<Summary> {
    train_until_signal(loaded, start, observer, signal).map_err(|error| ended_by(error, signal))
}

fn train_until_signal(
    loaded: &Loaded,
    start: Start,
    observer: &mut dyn Observer,
    signal: &Arc<AtomicI32>,
) -> Result<Summary> {
    let path = run_dir_path(loaded);
    let mut notes = Vec::new();
    let mut say = |text: String| {
        observer.on_event(&Event::Note { text: text.clone() });
        notes.push(text);
    };
    let (run, earlier) = match resume::origin(loaded, start, &path, &mut say)? {
        Origin::Finished(summary) => return Ok(summary),
        Origin::New => (loaded.run.clone(), None),
        Origin::Earlier(earlier) => (earlier.run.clone(), Some(*earlier)),
    };
    let settings = AgentSettings::new(&run, &Stop::on(signal))?;
    let plan = AgentPlan::new(&run, &settings, &Limits::default())?;
    plan.refuse()?;
    let (mut dir, behind) = match earlier {
        None => (RunDir::create(&path, &run, &plan.to_json())?, None),
        Some(Earlier { dir, checkpoint, replan, .. }) => (dir, Some((checkpoint, replan))),
    };
    check_space(&settings, dir.path()).inspect_err(|_| dir.discard())?;
    let mut arena = Arena::new(ArenaMap::new(&learner_layout(&settings)?, 0));
    let arena_used = arena.map().used_bytes();
    let mut dev =
        CpuDevice::new(Bytes(arena_used), settings.threads, Isa::detect()).inspect_err(|_| dir.discard())?;
    dev.bind_scratch(arena.split().0.buf("device.scratch"));
    let fingerprint = fingerprint(&run, &settings, &dev);
    let replans = behind.as_ref().is_some_and(|(_, replan)| *replan);
    let checkpoint = match behind {
        None => None,
        Some((checkpoint, replan)) => {
            if let Some(good) = &checkpoint {
                fingerprint.check(&good.state, replan, &mut say)?;
            }
            let events_bytes = checkpoint.as_ref().map_or(0, |good| good.state.events_bytes);
            dir.go_on(&run, &plan.to_json(), events_bytes)?;
            checkpoint
        }
    };
    let mut watch = Watch::new(&plan.plan, run.train.steps, run.memory.strict);
    watch.set_dir(dir.path());
    let begun = Begun { plan: &plan, fingerprint, watch, arena_used, peak_flops: dev.peak_flops(0.05) };
    let mut learner = Learner::new(&dev, &settings.network.spec, arena.split(), settings.learner.mini_batch);
    let mut training = AgentRun::new(&run, &settings, &mut learner, dir, observer, begun);
    training.begins_anew = replans;
    let result = training.begin(checkpoint, notes).and_then(|collector| training.run(collector, signal));
    result.map_err(|error| training.last_words(error))
}

fn learner_layout(settings: &AgentSettings) -> Result<plimsoll_memory::Layout> {
    learner::layout(&settings.network.spec, settings.learner.mini_batch, settings.threads)
}

/// What the bits depend on beside the run file: the instruction path and, at the start, the policy's file.
fn fingerprint(run: &RunFile, settings: &AgentSettings, dev: &CpuDevice) -> Fingerprint {
    let file = run.model.trim_start_matches(plimsoll_config::MLP);
    let file = settings.file.as_ref().and_then(|_| record_of(Path::new(file)).ok());
    let inputs = file.map(|record| (run.model.clone(), record.sha256)).into_iter().collect();
    Fingerprint::of(dev.machine_type(), &json!([settings.learner.mini_batch]), inputs)
}

/// The disk must hold a checkpoint before its first byte is written.
fn check_space(settings: &AgentSettings, dir: &Path) -> Result<()> {
    let needed = checkpoint_bytes(settings);
    match free_disk(dir) {
        Some(free) if free < needed => {
            let message = format!("{}: a checkpoint needs {needed}, {free} are free", dir.display());
            Err(Error::new("disk-full", message).hint("free some space, or set run.dir to another disk"))
        }
        _ => Ok(()),
    }
}

/// What a run under way says of itself.
struct Begun<'r> {
    plan: &'r AgentPlan,
    fingerprint: Fingerprint,
    watch: Watch,
    arena_used: u64,
    peak_flops: f64,
}

/// A run under way.
struct AgentRun<'r, 's, 'd> {
    run: &'r RunFile,
    settings: &'r AgentSettings,
    learner: &'s mut Learner<'d>,
    board: Arc<Board>,
    evaluator: Option<Evaluator>,
    experience: Experience,
    state: AgentState,
    dir: RunDir,
    observer: &'s mut dyn Observer,
    progress: Progress,
    begun: Begun<'r>,
    started: Instant,
    /// The step that is being made.
    step_under_way: Option<u32>,
    /// Episodes that a checkpoint was in are given up.
    begins_anew: bool,
}

impl<'r, 's, 'd> AgentRun<'r, 's, 'd> {
    fn new(
        run: &'r RunFile,
        settings: &'r AgentSettings,
        learner: &'s mut Learner<'d>,
        dir: RunDir,
        observer: &'s mut dyn Observer,
        begun: Begun<'r>,
    ) -> AgentRun<'r, 's, 'd> {
        let (width, dims) = (settings.network.reader.width(), settings.network.spec.head.action_dims());
        let is_normalised = settings.normalises_observations();
        AgentRun {
            board: Board::new(learner.params.all.len()),
            evaluator: None,
            experience: Experience::with_capacity(settings.frames(), width, dims, is_normalised),
            state: AgentState::new(settings),
            run,
            settings,
            learner,
            dir,
            observer,
            progress: Progress::default(),
            begun,
            started: Instant::now(),
            step_under_way: None,
            begins_anew: false,
        }
    }

    /// Begins at step 0, or behind a checkpoint, with environments where they were.
    fn begin(&mut self, checkpoint: Option<Good>, notes: Vec<String>) -> Result<Collector> {
        let started = Event::Started(Started {
            what: self.title(),
            steps: self.run.train.steps,
            dir: self.dir.path().to_path_buf(),
            planned_bytes: self.begun.plan.plan.process_peak().0,
            limit_bytes: self.begun.plan.plan.limits.host.as_ref().map_or(0, |l| l.bytes.0),
        });
        let Some(Good { folder, state }) = checkpoint else {
            self.first_weights()?;
            self.say(&started)?;
            let collector = self.collector()?;
            self.progress.eval_before = self.evaluate(0)?;
            return Ok(collector);
        };
        self.observer.on_event(&started);
        save::read(self.learner, &folder, state.policy_version)?;
        self.state = AgentState::read(&folder, self.settings)?;
        self.episodes_behind()?;
        self.progress = state.progress;
        let step = self.progress.step;
        self.progress.evaluated_at_end &= step == self.run.train.steps;
        self.say(&Event::Saved { step, path: folder })?;
        self.say(&Event::Resumed { step, notes })?;
        self.collector()
    }

    /// Episodes that go on, or are given up.
    fn episodes_behind(&mut self) -> Result<()> {
        let is_vector = self.settings.python.as_ref().is_some_and(|setup| setup.measured.is_vector);
        if self.begins_anew {
            self.state.begin_anew();
        } else if is_vector {
            let message =
                "vector environments step as one, so their episodes cannot be brought back one by one";
            return Err(Error::new("resume-differs", message)
                .hint("--replan goes on all the same, with new episodes, and gives up bit equality"));
        }
        Ok(())
    }

    fn first_weights(&mut self) -> Result<()> {
        let Learner { dev, spec, table, params, .. } = &*self.learner;
        match &self.settings.file {
            None => spec.init(*dev, table, params, self.run.seed),
            Some(stored) => stored.file.load(*dev, spec, table, params)?,
        }
        Ok(())
    }

    /// The collector, with the weights as they are and the episodes that are under way.
    fn collector(&mut self) -> Result<Collector> {
        self.publish(None);
        self.evaluator = Evaluator::of(self.run, self.settings, &self.board)?;
        let steppers = self.settings.steppers(self.settings.num_envs, self.settings.lanes)?;
        let rows = self.settings.group_envs();
        let mut policies = Vec::with_capacity(self.settings.lanes);
        for _ in 0..self.settings.lanes {
            let board = self.board.clone();
            policies.push(MlpPolicy::new(
                &self.settings.network,
                board,
                self.run.seed,
                rows,
                Explore::Sample,
            )?);
        }
        let settings = Settings {
            run_seed: self.run.seed,
            mode: Mode::Sync,
            batches_in_flight: BATCHES,
            on_abort: OnAbort::Keep,
            random_steps: 0,
            reset_each_batch: false,
        };
        let mut policies = policies.into_iter();
        let mut make = || Box::new(policies.next().expect("one for each thread")) as Box<dyn Policy>;
        Collector::start_from(
            &settings,
            self.settings.rows.clone(),
            steppers,
            &mut make,
            self.state.underway(),
        )
    }

    /// Puts the weights as they are where the policies see them.
    fn publish(&mut self, collector: Option<&mut Collector>) {
        let version = PolicyVersion(self.learner.updates);
        self.board.publish(version, self.state.scales(), |weights| self.learner.weights(weights));
        if let Some(collector) = collector {
            collector.published(version);
        }
    }

    fn run(&mut self, mut collector: Collector, signal: &AtomicI32) -> Result<Summary> {
        let steps = self.run.train.steps;
        for step in self.progress.step + 1..=steps {
            self.step_under_way = Some(step);
            self.step(&mut collector, step)?;
            self.step_under_way = None;
            self.watch_step(step)?;
            let every = self.run.checkpoint.every.unwrap_or(0);
            if every > 0 && step % every == 0 && step < steps {
                self.save(true)?;
            }
            let number = signal.load(Ordering::Relaxed);
            if number != 0 && step < steps {
                self.save(true)?;
                return Err(interrupted(number, step, self.dir.path()));
            }
        }
        if !self.progress.evaluated_at_end {
            // A run that was made longer, or shorter, ends where it was not evaluated.
            let score = if self.progress.last_eval_step == Some(steps) {
                self.progress.last_eval
            } else {
                self.evaluate(steps)?
            };
            let number = signal.load(Ordering::Relaxed);
            if number != 0 && score.is_none() && self.evaluator.is_some() {
                self.save(true)?;
                return Err(interrupted(number, steps, self.dir.path()));
            }
            self.progress.eval_after = score.or(self.state.recent_return());
            self.progress.evaluated_at_end = true;
        }
        self.save(true)?;
        let summary = self.summary();
        self.dir.write_summary(&summary)?;
        self.say(&Event::Finished { summary: summary.clone() })?;
        Ok(summary)
    }

    fn step(&mut self, collector: &mut Collector, n: u32) -> Result<()> {
        let started = Instant::now();
        let mut report = StepReport::default();
        let before = collector.stats();
        // 1 collect
        self.begin_part(Doing::Rollout, n);
        let batch = collector.next()?.ok_or_else(|| Error::new("internal", "the collector has stopped"))?;
        let collected = Instant::now();
        // 2 gather
        self.begin_part(Doing::Score, n);
        let (spans, ended) = gather(self.settings, &batch, &mut self.state, &mut self.experience);
        drop(batch);
        // 3 score: values behind the last frames, then advantages
        let Experience { tails, tail_slices, bootstrap, .. } = &mut self.experience;
        let mut values = vec![0.0; tail_slices.len()];
        self.learner.values(tails, &mut values);
        tail_slices.iter().zip(values).for_each(|(&slice, value)| bootstrap[slice] = value);
        if let Some(scale) = &mut self.state.rewards {
            self.experience.scale_rewards(scale, self.settings.gamma, &spans);
        }
        self.experience.estimate(self.settings.gamma, self.settings.lambda);
        let scored = Instant::now();
        // 4 learn
        self.begin_part(Doing::Update, n);
        let optimizer = self.run.train.update_options(n, self.run.seed);
        report.learn = self.learner.learn(&self.settings.learner, optimizer, &self.experience, n)?;
        // 5 publish
        if let Some(moments) = &mut self.state.observations {
            moments.update(&self.experience.raw_inputs);
        }
        self.publish(Some(&mut *collector));
        report.frames = self.experience.num_frames();
        (report.ended, report.recent_return) = (ended, self.state.recent_return());
        report.learning_rate = f64::from(optimizer.lr);
        report.seconds = [collected - started, scored - collected, scored.elapsed()].map(|d| d.as_secs_f64());
        for fault in collector.take_faults() {
            self.observer.on_event(&Event::Note { text: fault.error.to_string() });
        }
        let mut metrics = of_step(&report, &before, &collector.stats(), self.state.num_frames);
        let is_due = |every: u32| n.is_multiple_of(every) || n == self.run.train.steps;
        if self.run.eval.every.is_some_and(is_due)
            && let Some(score) = self.evaluate(n)?
        {
            metrics.insert("eval/return".into(), score);
        }
        self.step_done(n, &report, metrics)
    }

    /// The mean return of the episodes of evaluation, with the weights as they were published; none without any.
    fn evaluate(&mut self, step: u32) -> Result<Option<f64>> {
        if self.evaluator.is_some() {
            self.begin_part(Doing::Eval, step);
        }
        let Some(evaluator) = &mut self.evaluator else { return Ok(None) };
        let started = Instant::now();
        let Some(returns) = evaluator.evaluate()? else { return Ok(None) };
        let score = returns.iter().sum::<f64>() / returns.len().max(1) as f64;
        (self.progress.last_eval, self.progress.last_metric) = (Some(score), Some(score));
        self.progress.last_eval_step = Some(step);
        self.say(&Event::Eval(EvalResult {
            step,
            set: self.settings.env.id.clone(),
            score,
            num_samples: returns.len(),
            seconds: started.elapsed().as_secs_f64(),
            ..EvalResult::default()
        }))?;
        Ok(Some(score))
    }

    fn step_done(&mut self, n: u32, report: &StepReport, mut metrics: Metrics) -> Result<()> {
        let seconds: f64 = report.seconds.iter().sum();
        let spec = &self.settings.network.spec;
        let progress = &mut self.progress;
        progress.step = n;
        progress.updates = self.learner.updates;
        progress.mismatch_max = progress.mismatch_max.max(report.learn.mismatch);
        progress.rollout_tokens += report.frames as u64;
        progress.update_tokens += report.frames as u64 * u64::from(self.run.train.epochs_per_rollout);
        progress.rollout_s += report.seconds[0];
        progress.update_s += report.seconds[1] + report.seconds[2];
        progress.step_s += seconds;
        let passes = 1.0 + 3.0 * f64::from(self.run.train.epochs_per_rollout);
        progress.flops += spec.forward_flops() as f64 * report.frames as f64 * passes;
        progress.reward_first = progress.reward_first.or(report.recent_return);
        progress.reward_last = report.recent_return;
        if progress.eval_before.is_none() && self.state.num_episodes >= RECENT as u64 {
            progress.eval_before = report.recent_return;
        }
        let left = f64::from(self.run.train.steps - n) * progress.step_s / f64::from(n);
        let frames_per_second = Some(self.state.num_frames as f64 / progress.step_s.max(1e-9));
        let rss = Host::this().rss();
        let planned = self.begun.plan.plan.process_peak();
        add_host(&mut metrics, &rss, planned, seconds);
        self.say(&Event::Step(StepResult {
            step: n,
            steps: self.run.train.steps,
            reward: report.recent_return,
            frames_per_second,
            rss_bytes: rss.now.0,
            planned_bytes: planned.0,
            seconds,
            seconds_left: left,
            metrics,
            ..StepResult::default()
        }))
    }

    fn begin_part(&mut self, doing: Doing, step: u32) {
        self.begun.watch.begin(doing, step, || None);
    }

    /// Memory over the step, as events; a strict run that went over the line is saved and ends.
    fn watch_step(&mut self, step: u32) -> Result<()> {
        for event in self.begun.watch.end_step(step, self.run.train.steps, || None) {
            self.say(&event)?;
        }
        match self.begun.watch.strict_error() {
            Some(error) => self.save(true).and(Err(error)),
            None => Ok(()),
        }
    }

    /// Saves the run, or its weights alone, which must be numbers.
    fn save(&mut self, everything: bool) -> Result<()> {
        let step = self.progress.step;
        if self.progress.saved_step == Some(step) {
            return Ok(());
        }
        self.begin_part(Doing::Save, step);
        self.learner.prove()?;
        let mut progress = self.progress.clone();
        progress.saved_step = Some(step);
        progress.seconds_before = self.seconds();
        let is_evaluated = progress.last_eval_step == Some(step);
        let score = match self.evaluator {
            Some(_) => progress.last_metric.filter(|_| is_evaluated),
            None => self.state.recent_return(),
        };
        if let Some(score) = score
            && progress.best.is_none_or(|best| score > best.score)
        {
            progress.best = Some(Best { step, score });
        }
        self.progress.best = progress.best;
        let state = self.run_state(progress)?;
        let run_file = self.run.to_toml();
        let checkpoint = &self.run.checkpoint;
        let retention = Retention {
            keep: checkpoint.keep,
            keep_bytes: checkpoint.keep_bytes.map(|limit| limit.0.0),
            // Only evaluations compare: returns of training change with what was explored.
            best: self.evaluator.as_ref().and(self.progress.best).map(|best| best.step),
        };
        let saved = Saved {
            step,
            source: &self.run.model,
            agent: &self.state,
            everything: everything.then_some((&state, &run_file)),
        };
        let path = save::write(self.learner, self.settings, &saved, &self.dir.store(), &retention)?;
        self.progress.saved_step = Some(step);
        self.say(&Event::Saved { step, path })
    }

    /// The counters as they are now; the log up to here is on the disk.
    fn run_state(&mut self, progress: Progress) -> Result<RunState> {
        let Fingerprint { machine, build, plan, inputs } = self.begun.fingerprint.clone();
        Ok(RunState {
            policy_version: self.learner.updates,
            seed: self.run.seed,
            data_position: self.state.num_frames,
            events_bytes: self.dir.events().sync()?,
            machine,
            build,
            plan,
            inputs,
            ..RunState::blank(progress)
        })
    }

    fn seconds(&self) -> f64 {
        self.progress.seconds_before + self.started.elapsed().as_secs_f64()
    }

    fn say(&mut self, event: &Event) -> Result<()> {
        let started = Instant::now();
        let mut line = serde_json::to_value(event).expect("events are plain data");
        line["seconds_since_start"] = json!(self.seconds());
        self.dir.events().write(&line)?;
        self.observer.on_event(event);
        self.begun.watch.add_spent(started.elapsed());
        Ok(())
    }

    fn title(&self) -> String {
        let (method, model, env) = (self.run.method.name(), &self.run.model, &self.settings.env.id);
        let parameters = self.settings.network.spec.parameters();
        let machine = self.learner.dev.machine_type();
        format!("{method} on {env}, {model}, {parameters} parameters, f32, {machine}")
    }

    /// What a run that fails leaves: the weights of the last whole step, if they are numbers, and `crash.json`.
    fn last_words(&mut self, error: Error) -> Error {
        if matches!(error.exit, Exit::Interrupted | Exit::Terminated) {
            return error;
        }
        let steps = self.run.train.steps;
        let mut error = match (self.step_under_way, self.progress.step) {
            (Some(step), _) => error.fact(format!("in step {step} of {steps}")),
            (None, 0) => error.fact("before the first step"),
            (None, step) => error.fact(format!("after step {step} of {steps}")),
        };
        let whole_step = self.learner.updates == self.progress.updates;
        let has_checkpoint = self.progress.saved_step.is_some();
        if is_divergence(&error) {
            error = self.name_tensor(error);
        }
        // The error itself is what the user must see; a second failure while recording it adds nothing.
        if self.progress.step > 0 && ((has_checkpoint && !whole_step) || self.save(whole_step).is_ok()) {
            let latest = self.dir.path().join("checkpoints/latest");
            error = error.fact(format!("last good weights: {}", latest.display()));
        }
        let planned = self.begun.plan.plan.process_peak();
        let readings =
            json!({ "rss": Host::this().rss().now, "planned": planned, "seconds": self.seconds() });
        let _ = self.dir.write_crash(&error, self.progress.step, &readings);
        error
    }

    /// The error with the tensor that grew most.
    fn name_tensor(&self, error: Error) -> Error {
        let Learner { dev, table, params, .. } = &*self.learner;
        let rms = |p: &plimsoll_model::Param| {
            let sum = dev.sum_squares(params.all.slice(p.offset as usize, p.elements as usize));
            (sum / p.elements as f64).sqrt()
        };
        let sized = table.params.iter().map(|p| (p, rms(p)));
        // NaN counts as above every number.
        match sized.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) {
            Some((p, rms)) => {
                error.fact(format!("largest weights: `{}`, root mean square {rms:.3e}", p.parts[0].name))
            }
            None => error,
        }
    }

    fn summary(&self) -> Summary {
        let (p, rss) = (&self.progress, Host::this().rss());
        let rate = |count: u64, seconds: f64| {
            if seconds > 0.0 { json!(count as f64 / seconds) } else { Value::Null }
        };
        let busy = p.rollout_s + p.update_s;
        json!({
            "steps": p.step,
            "frames": self.state.num_frames,
            "episodes": self.state.num_episodes,
            "eval_before": p.eval_before,
            "eval_after": p.eval_after,
            "best": p.best.map(|best| json!({ "step": best.step, "metric": self.run.eval.metric, "value": best.score })),
            "reward_first": p.reward_first,
            "reward_last": p.reward_last,
            "seconds": self.seconds(),
            "frames_per_second": rate(self.state.num_frames, p.step_s),
            "frames_per_second_rollout": rate(p.rollout_tokens, p.rollout_s),
            "frames_per_second_update": rate(p.update_tokens, p.update_s),
            "share_of_peak": if busy > 0.0 { json!(p.flops / busy / self.begun.peak_flops) } else { Value::Null },
            "arena_planned_bytes": self.begun.plan.plan.arena_bytes(),
            "arena_used_bytes": self.begun.arena_used,
            "rss_planned_bytes": self.begun.plan.plan.process_peak(),
            "rss_peak_bytes": rss.peak,
            "supervisor_rss_bytes": self.begun.watch.supervisor_bytes(),
            "monitoring_share": self.begun.watch.spent().as_secs_f64() / p.step_s.max(1e-9),
            "trend": self.begun.watch.trend().kinds,
            "logprob_mismatch_max": p.mismatch_max,
            "machine": self.learner.dev.machine_type(),
        })
    }
}
