//! Trains an environment policy: plan, bind, loop, save. A step is five calls: collect, gather, score, learn, publish.

use super::evaluate::Evaluator;
use super::experience::Experience;
use super::gather::gather;
use super::learner::{self, Learner};
use super::metrics::{StepReport, of_step};
use super::plan::{AgentPlan, BATCHES, checkpoint_bytes};
use super::policy::{Board, MlpPolicy};
use super::save;
use super::settings::AgentSettings;
use super::state::{AgentState, RECENT};
use plimsoll_algo::action::Explore;
use plimsoll_base::{Error, PolicyVersion, Result};
use plimsoll_collect::{Collector, Mode, OnAbort, Policy, Settings};
use plimsoll_config::{Loaded, RunSpec};
use plimsoll_device::{Device, OpenOptions};
use plimsoll_devices::{Opening, host, open as open_device};
use plimsoll_files::record_of;
use plimsoll_memory::Limits;
use plimsoll_run::checkpoint::RunState;
use plimsoll_run::ending::{Summary, ended_by};
use plimsoll_run::events::{EvalResult, Event, Observer};
use plimsoll_run::lead::{Begun, Job, Lead, PEAK_SECONDS, Save, Saving, Stepped, lead};
use plimsoll_run::metrics::Metrics;
use plimsoll_run::opening::{Origins, open};
use plimsoll_run::progress::Progress;
use plimsoll_run::resume::{Fingerprint, Start};
use plimsoll_run::status::Doing;
use plimsoll_run::vitals::Vitals;
use plimsoll_run::withheld;
use plimsoll_train::name_tensor;
use plimsoll_worker::Stop;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::time::Instant;

/// Trains a policy in environments. `signal` holds the number of the signal that came, or 0; on a signal the run saves
/// and ends between two steps.
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
    let (run, run_file, mut opening) = match open(loaded, start, observer)? {
        Origins::Finished(summary) => return Ok(summary),
        Origins::Open(run_file, opening) => (RunSpec::new(&run_file), withheld::to_toml(&run_file), opening),
    };
    plimsoll_run::track::check(&run.training().track)?;
    let settings = AgentSettings::new(&run, &Stop::on(signal))?;
    let plan = AgentPlan::new(&run, &settings, &Limits::default())?;
    plan.refuse()?;
    plan.warnings.iter().for_each(|words| opening.say(observer, format!("warning: {words}")));
    let begins_anew = opening.replans();
    let opened = opening.directory(&run_file, &plan.to_json(), checkpoint_bytes(&settings))?;
    let alone = Opening::alone(host().kind, settings.threads, OpenOptions::default());
    let device = open_device(&learner_layout(&settings)?, &alone);
    let (dev, mut arena) = device.inspect_err(|_| opened.dir.discard())?;
    let arena_used = arena.map().used_bytes();
    let fingerprint = fingerprint(&run, &settings, &*dev);
    let opened = opened.take_up(*opening, &run_file, &plan.to_json(), &fingerprint, observer)?;
    let begun = Begun {
        run: &run,
        title: title(&run, &settings, &*dev),
        run_file,
        plan: &plan.plan,
        fingerprint,
        arena_used,
        peak_flops: dev.peak_flops(PEAK_SECONDS),
        roofline: None,
        machine: dev.machine_type(),
        card: Box::new(|| None),
    };
    let mut learner = Learner::new(&*dev, &settings.network.spec, arena.split(), settings.learner.mini_batch);
    let mut job = AgentRun::new(&run, &settings, &mut learner, begins_anew);
    std::thread::scope(|scope| lead(opened, begun, &mut job, observer, signal, scope))
}

fn title(run: &RunSpec, settings: &AgentSettings, dev: &dyn Device) -> String {
    let (method, model, env) = (run.method().name(), &run.model, &settings.env.id);
    let parameters = settings.network.spec.parameters();
    format!("{method} on {env}, {model}, {parameters} parameters, f32, {}", dev.machine_type())
}

fn learner_layout(settings: &AgentSettings) -> Result<plimsoll_memory::Layout> {
    learner::layout(&settings.network.spec, settings.learner.mini_batch, settings.threads)
}

/// Returns the inputs of the bits besides the run file: the instruction path and, at the start, the policy's file.
fn fingerprint(run: &RunSpec, settings: &AgentSettings, dev: &dyn Device) -> Fingerprint {
    let file = run.model.trim_start_matches(plimsoll_config::MLP);
    let file = settings.file.as_ref().and_then(|_| record_of(Path::new(file)).ok());
    let inputs = file.map(|record| (run.model.clone(), record.sha256)).into_iter().collect();
    Fingerprint::of(dev.machine_type(), &json!([settings.learner.mini_batch]), inputs)
}

struct AgentRun<'r, 's, 'd> {
    run: &'r RunSpec,
    settings: &'r AgentSettings,
    learner: &'s mut Learner<'d>,
    board: Arc<Board>,
    /// None until there are weights.
    collector: Option<Collector>,
    evaluator: Option<Evaluator>,
    experience: Experience,
    state: AgentState,
    /// True if the episodes in progress at the checkpoint are abandoned.
    begins_anew: bool,
}

impl<'r, 's, 'd> AgentRun<'r, 's, 'd> {
    fn new(
        run: &'r RunSpec,
        settings: &'r AgentSettings,
        learner: &'s mut Learner<'d>,
        begins_anew: bool,
    ) -> AgentRun<'r, 's, 'd> {
        let (width, dims) = (settings.network.reader.width(), settings.network.spec.head.action_dims());
        let is_normalised = settings.normalises_observations();
        AgentRun {
            board: Board::new(learner.params.all.len()),
            collector: None,
            evaluator: None,
            experience: Experience::with_capacity(settings.frames(), width, dims, is_normalised),
            state: AgentState::new(settings),
            run,
            settings,
            learner,
            begins_anew,
        }
    }

    /// Resumes the episodes of the checkpoint, or abandons them.
    fn take_up_episodes(&mut self) -> Result<()> {
        let is_vector = self.settings.python.as_ref().is_some_and(|setup| setup.measured.is_vector);
        if self.begins_anew {
            self.state.begin_anew();
        } else if is_vector {
            let message =
                "vector environments step together, so their episodes cannot be replayed one by one";
            return Err(Error::new("resume-differs", message)
                .hint("--replan resumes anyway, with new episodes, and gives up bit equality"));
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

    /// Starts the collector, with the current weights and the episodes in progress, and the evaluator.
    fn start(&mut self) -> Result<()> {
        self.publish();
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
        let (rows, underway) = (self.settings.rows.clone(), self.state.underway());
        self.collector = Some(Collector::start_from(&settings, rows, steppers, &mut make, underway)?);
        Ok(())
    }

    fn publish(&mut self) {
        let version = PolicyVersion(self.learner.updates);
        self.board.publish(version, self.state.scales(), |weights| self.learner.weights(weights));
        if let Some(collector) = &mut self.collector {
            collector.published(version);
        }
    }

    fn make_step(&mut self, lead: &mut Lead<'_, '_, '_, '_>, n: u32) -> Result<()> {
        let started = Instant::now();
        let mut report = StepReport::default();
        let collector = self.collector.as_mut().expect("the run has begun");
        let before = collector.stats();
        // 1 collect
        lead.part(Doing::Rollout, n);
        let batch = collector.next()?.ok_or_else(|| Error::new("internal", "the collector has stopped"))?;
        let collected = Instant::now();
        // 2 gather
        lead.part(Doing::Score, n);
        let (spans, ended) = gather(self.settings, &batch, &mut self.state, &mut self.experience);
        drop(batch);
        // 3 score: values after the last frames, then advantages
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
        lead.part(Doing::Update, n);
        let optimizer = self.run.train().update_options(n, self.run.seed);
        report.learn = self.learner.learn(&self.settings.learner, optimizer, &self.experience, n)?;
        // 5 publish
        if let Some(moments) = &mut self.state.observations {
            moments.update(&self.experience.raw_inputs);
        }
        self.publish();
        report.frames = self.experience.num_frames();
        (report.ended, report.recent_return) = (ended, self.state.recent_return());
        report.learning_rate = f64::from(optimizer.lr);
        report.seconds = [collected - started, scored - collected, scored.elapsed()].map(|d| d.as_secs_f64());
        let collector = self.collector.as_mut().expect("the run has begun");
        for fault in collector.take_faults() {
            lead.note(fault.error.to_string());
        }
        let mut metrics = of_step(&report, &before, &collector.stats(), self.state.num_frames);
        let is_due = |every: u32| n.is_multiple_of(every) || n == self.run.train().steps;
        if self.run.eval.every.is_some_and(is_due)
            && let Some(score) = self.play(lead, n)?
        {
            metrics.insert("eval/return".into(), score);
        }
        self.step_done(lead, n, &report, metrics)
    }

    /// Plays the evaluation episodes with the published weights. Returns their mean return; none without any.
    fn play(&mut self, lead: &mut Lead<'_, '_, '_, '_>, step: u32) -> Result<Option<f64>> {
        if self.evaluator.is_some() {
            lead.part(Doing::Eval, step);
        }
        let Some(evaluator) = &mut self.evaluator else { return Ok(None) };
        let started = Instant::now();
        let Some(returns) = evaluator.evaluate()? else { return Ok(None) };
        let score = returns.iter().sum::<f64>() / returns.len().max(1) as f64;
        (lead.progress.last_eval, lead.progress.last_metric) = (Some(score), Some(score));
        lead.progress.last_eval_step = Some(step);
        lead.say(&Event::Eval(EvalResult {
            step,
            set: self.settings.env.id.clone(),
            score: Some(score),
            num_samples: returns.len(),
            seconds: started.elapsed().as_secs_f64(),
            ..EvalResult::default()
        }))?;
        Ok(Some(score))
    }

    fn step_done(
        &mut self,
        lead: &mut Lead<'_, '_, '_, '_>,
        n: u32,
        report: &StepReport,
        metrics: Metrics,
    ) -> Result<()> {
        let seconds: f64 = report.seconds.iter().sum();
        let spec = &self.settings.network.spec;
        let progress = &mut lead.progress;
        progress.mismatch_max = progress.mismatch_max.max(report.learn.mismatch);
        progress.rollout_tokens += report.frames as u64;
        progress.update_tokens += report.frames as u64 * u64::from(self.run.train().epochs_per_rollout);
        progress.rollout_s += report.seconds[0];
        progress.update_s += report.seconds[1] + report.seconds[2];
        let passes = 1.0 + 3.0 * f64::from(self.run.train().epochs_per_rollout);
        progress.flops += spec.forward_flops() as f64 * report.frames as f64 * passes;
        progress.reward_first = progress.reward_first.or(report.recent_return);
        progress.reward_last = report.recent_return;
        if progress.eval_before.is_none() && self.state.num_episodes >= RECENT as u64 {
            progress.eval_before = report.recent_return;
        }
        let frames = self.state.num_frames as f64;
        let stepped = Stepped {
            seconds,
            reward: report.recent_return,
            // The loop adds the seconds of this step later.
            frames_per_second: Some(frames / (lead.progress.step_s + seconds).max(1e-9)),
            metrics,
            vitals: Vitals {
                grad_norm: (report.learn.updates > 0).then_some(report.learn.grad_norm),
                loss: Some(report.learn.policy.loss),
                ..Vitals::default()
            },
            ..Stepped::default()
        };
        lead.step_done(n, self.learner.updates, stepped)
    }
}

impl<'scope> Job<'scope> for AgentRun<'_, '_, '_> {
    fn begin(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()> {
        self.first_weights()?;
        self.start()?;
        lead.progress.eval_before = self.play(lead, 0)?;
        Ok(())
    }

    /// Replays environments to where they were.
    fn restore(
        &mut self,
        _: &mut Lead<'_, '_, 'scope, '_>,
        checkpoint: &Path,
        state: &RunState,
    ) -> Result<()> {
        save::read(self.learner, checkpoint, state.policy_version)?;
        self.state = AgentState::read(checkpoint, self.settings)?;
        self.take_up_episodes()?;
        self.start()
    }

    fn step(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>, step: u32) -> Result<()> {
        self.make_step(lead, step)
    }

    /// Evaluations are parts of steps: a step's metrics include their score.
    fn evaluate(&mut self, _: &mut Lead<'_, '_, 'scope, '_>, _: u32) -> Result<()> {
        Ok(())
    }

    fn evaluate_at_end(&mut self, lead: &mut Lead<'_, '_, 'scope, '_>) -> Result<()> {
        let steps = self.run.train().steps;
        // A run whose `train.steps` was changed ends at a step that was not evaluated.
        let score = if lead.progress.last_eval_step == Some(steps) {
            lead.progress.last_eval
        } else {
            self.play(lead, steps)?
        };
        if score.is_none() && self.evaluator.is_some() {
            lead.end_if_interrupted(self, steps)?;
        }
        lead.progress.eval_after = score.or(self.state.recent_return());
        Ok(())
    }

    fn updates(&self) -> u64 {
        self.learner.updates
    }

    fn prove(&mut self) -> Result<()> {
        self.learner.prove()
    }

    fn reload(&mut self) -> Result<()> {
        self.first_weights()
    }

    fn name_tensor(&self, error: Error) -> Error {
        let Learner { dev, table, params, .. } = &*self.learner;
        name_tensor(*dev, table, params.all, error)
    }

    fn state(&self, state: &mut RunState) {
        state.policy_version = self.learner.updates;
        state.data_position = self.state.num_frames;
    }

    fn score(&self, progress: &Progress) -> Option<f64> {
        match self.evaluator {
            Some(_) => progress.last_metric.filter(|_| progress.last_eval_step == progress.saved_step),
            None => self.state.recent_return(),
        }
    }

    /// True with evaluations: only these are comparable, since returns of training depend on exploration.
    fn keeps_best(&self) -> bool {
        self.evaluator.is_some()
    }

    fn save(&mut self, saving: Saving<'_>) -> Result<Save<'scope>> {
        save::write(self.learner, self.settings, &self.state, &self.run.model, saving).map(Save::Done)
    }

    fn summary(&self, lead: &Lead<'_, '_, 'scope, '_>) -> Summary {
        let p = &lead.progress;
        let rate = |count: u64, seconds: f64| {
            if seconds > 0.0 { json!(count as f64 / seconds) } else { Value::Null }
        };
        let mut summary = json!({
            "steps": p.step,
            "frames": self.state.num_frames,
            "episodes": self.state.num_episodes,
            "eval_before": p.eval_before,
            "eval_after": p.eval_after,
            "best": p.best.map(|best| json!({ "step": best.step, "metric": self.run.eval.metric, "value": best.score })),
            "reward_first": p.reward_first,
            "reward_last": p.reward_last,
            "seconds": lead.seconds(),
            "frames_per_second": rate(self.state.num_frames, p.step_s),
            "frames_per_second_rollout": rate(p.rollout_tokens, p.rollout_s),
            "frames_per_second_update": rate(p.update_tokens, p.update_s),
            "share_of_peak": lead.share_of_peak(),
        });
        lead.common_summary(&mut summary);
        summary
    }
}
