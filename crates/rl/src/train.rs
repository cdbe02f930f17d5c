//! The verb `train`: plan, bind, loop, evaluate, save.

mod evaluate;
mod pairs;

use crate::data::session::{self, Session};
use crate::diverged::{name_tensor, prove};
use crate::episodes::{Episodes, KeptEpisode};
use crate::eval::EvalSet;
use crate::methods::metrics;
use crate::methods::policy::{StepContext, step};
use crate::methods::sft::sft_step;
use crate::roles::{Role, Sources, Trainer, sampling};
use crate::rollout::gather::Cursor;
use crate::rollout::held::Held;
use crate::rollout::model_reward;
use crate::rollout::responses::{Kept, KeptSample, response_text};
use crate::save::{What, check_space, prepare};
use plimsoll_base::{Error, Exit, Result};
use plimsoll_config::Objective;
use plimsoll_config::reward_specs;
use plimsoll_config::{Loaded, RunFile};
use plimsoll_device::{Device, Sampling};
use plimsoll_memory::CardMemory;
use plimsoll_memory::host::{Host, Rss};
use plimsoll_memory::{Arena, Limits, Pool};
use plimsoll_plan::devices;
use plimsoll_plan::{PlanReport, RoleName, SAMPLES_KEPT, check_micro_batch, machine_limits, plan_with};
use plimsoll_reward::Rewards;
use plimsoll_run::checkpoint::{Best, HELD, HeldState, Retention, RunState, Saver};
use plimsoll_run::ending::{Summary, interrupted, is_divergence, run_dir_path};
use plimsoll_run::events::{Event, Observer, Started, StepResult};
use plimsoll_run::load_line::Watch;
use plimsoll_run::metrics::Metrics;
use plimsoll_run::progress::Progress;
use plimsoll_run::report;
use plimsoll_run::resume::{self, Earlier, Fingerprint, Good, Origin, Start};
use plimsoll_run::run_dir::RunDir;
use plimsoll_run::status::Doing;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

/// Trains a language model. `signal` holds the number of a signal that came, or 0; the run then saves and ends between two steps.
///
/// Errors: those of planning, opening and training; after an error the last good weights are saved where there are any.
/// Those of `resume::origin` and `resume-differs` for a run that is to go on.
pub fn train(
    loaded: &Loaded,
    start: Start,
    observer: &mut dyn Observer,
    signal: &AtomicI32,
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
    let run = &run;
    devices::check(run.run.device)?;
    session::check_trainable(&run.model)?;
    let mut session = open_session(run, earlier.as_ref(), &mut say)?;
    let (rewards, episodes) = graders(run, &session)?;
    let report = fitting_plan(run, &session, &path)?;
    let objective = Objective::new(run);
    let (mut dir, behind) = directory(&path, run, &report, earlier)?;
    let before = Host::this().rss();
    let (dev, mut arena) =
        devices::open(&report.shape, devices::options(run)).inspect_err(|_| dir.discard())?;
    let arena_used = arena.map().used_bytes();
    let fingerprint = Fingerprint::new(dev.machine_type(), run, &session.model, &report.resolved);
    let fingerprint = fingerprint.inspect_err(|_| dir.discard())?.with_critic(run, session.critic.as_ref());
    let checkpoint = match behind {
        None => None,
        Some((checkpoint, replan)) => {
            take_up(&mut dir, run, &report, checkpoint, replan, &fingerprint, &mut say)?
        }
    };
    let ready = ready(run, &*dev, &mut arena, &report, &session, before);
    let (trainer, measured) = ready.inspect_err(|_| dir.discard())?;
    dir.write_plan(&measured.to_json())?;
    let mut watch = Watch::new(&measured.plan, run.train.steps, run.memory.strict);
    watch.set_dir(dir.path());
    std::thread::scope(|scope| {
        let mut training = Run {
            run,
            eval_sets: std::mem::take(&mut session.eval),
            session: &mut session,
            trainer,
            rewards: Some(rewards),
            episodes,
            objective,
            cursor: Cursor::default(),
            held: Held::default(),
            report: &measured,
            frozen: dev.card_memory(),
            fingerprint,
            dir,
            saver: Saver::new(scope),
            observer,
            progress: Progress::default(),
            at: At::Start,
            arena_used,
            watch,
            peak_gflops: dev.peak_flops(0.05) * 1e-9,
            started: Instant::now(),
        };
        let result = training.go_on_from(checkpoint, notes).and_then(|()| training.run(signal));
        result.map_err(|error| training.last_words(error))
    })
}

/// The plan of a run, which fits.
fn fitting_plan(run: &RunFile, session: &Session, dir: &Path) -> Result<PlanReport> {
    check_micro_batch(run, &session.facts)?;
    let limits = Limits { disk: machine_limits(dir).disk, ..Limits::default() };
    let report = plan_with(run, &session.facts, &limits)?;
    report.refuse()?;
    Ok(report)
}

/// The run's directory, new or an earlier process's, with the checkpoint to go on from; it has room for what is saved.
#[allow(clippy::type_complexity)] // A checkpoint, if there is one, and whether to plan again.
fn directory(
    path: &Path,
    run: &RunFile,
    report: &PlanReport,
    earlier: Option<Earlier>,
) -> Result<(RunDir, Option<(Option<Good>, bool)>)> {
    let (dir, behind) = match earlier {
        None => (RunDir::create(path, &report.resolved.write_into(run), &report.to_json())?, None),
        Some(Earlier { dir, checkpoint, replan, .. }) => (dir, Some((checkpoint, replan))),
    };
    check_space(&report.shape, dir.path()).inspect_err(|_| dir.discard())?;
    Ok((dir, behind))
}

/// What the run works on; where it goes on from a checkpoint, that may stand in for what is gone.
fn open_session(run: &RunFile, earlier: Option<&Earlier>, say: &mut dyn FnMut(String)) -> Result<Session> {
    match earlier.and_then(|earlier| earlier.checkpoint.as_ref()) {
        Some(good) => Session::open_again(run, &good.folder, say),
        None => Session::open(run, true),
    }
}

/// The trainer with its weights, every shape run once, and the plan with what that took. `before`: this process's memory
/// before the device was opened.
fn ready<'a>(
    run: &RunFile,
    dev: &'a dyn Device,
    arena: &'a mut Arena,
    report: &'a PlanReport,
    session: &Session,
    before: Rss,
) -> Result<(Trainer<'a>, PlanReport)> {
    let (critic, reward) = (session.critic.as_ref(), session.reward.as_ref());
    let sources = Sources { model: &session.model, critic, reward };
    let mut trainer = Trainer::new(dev, arena, &report.shape, sources, run.seed)?;
    let how = sampling(&run.rollout, run.seed);
    trainer.rehearse(&[how, Sampling { temperature: run.eval.temperature as f32, ..how }])?;
    let measured = devices::with_measured(report, dev, before, !run.run.checked)?;
    Ok((trainer, measured))
}

/// What gives the reward: rewards, or an environment.
fn graders(run: &RunFile, session: &Session) -> Result<(Rewards, Option<Episodes>)> {
    Ok((rewards(run, session)?, Episodes::open(run, session.facts.prompt_tokens)?))
}

/// The rewards of a run, which must find their columns in the data.
fn rewards(run: &RunFile, session: &Session) -> Result<Rewards> {
    let rewards = Rewards::new(&reward_specs(&run.reward, &run.data.answer_column))?;
    if run.method.has_rollout() {
        session.data.first_columns().try_for_each(|columns| rewards.check_columns(&columns))?;
    }
    // Episodes have no columns.
    let firsts = session.eval.iter().filter_map(|set| set.items.first());
    firsts.map(|item| &item.columns).try_for_each(|columns| rewards.check_columns(columns))?;
    Ok(rewards)
}

/// Makes the directory of an earlier process that of a run that goes on. A refusal leaves it as it was.
fn take_up(
    dir: &mut RunDir,
    run: &RunFile,
    report: &PlanReport,
    checkpoint: Option<Good>,
    replan: bool,
    fingerprint: &Fingerprint,
    say: &mut dyn FnMut(String),
) -> Result<Option<Good>> {
    if let Some(good) = &checkpoint {
        fingerprint.check(&good.state, replan, say)?;
    }
    let events_bytes = checkpoint.as_ref().map_or(0, |good| good.state.events_bytes);
    dir.go_on(&report.resolved.write_into(run), &report.to_json(), events_bytes)?;
    Ok(checkpoint)
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
struct Run<'r, 's, 'scope, 'env> {
    run: &'r RunFile,
    session: &'s mut Session,
    eval_sets: Vec<EvalSet>,
    trainer: Trainer<'r>,
    rewards: Option<Rewards>,
    /// None where responses are to prompts of the data.
    episodes: Option<Episodes>,
    /// None where nothing is sampled.
    objective: Option<Objective>,
    /// Behind what the last step took of the data.
    cursor: Cursor,
    held: Held,
    report: &'r PlanReport,
    fingerprint: Fingerprint,
    dir: RunDir,
    saver: Saver<'scope, 'env>,
    observer: &'s mut dyn Observer,
    progress: Progress,
    at: At,
    arena_used: u64,
    /// The card's memory once every shape had run.
    frozen: Option<CardMemory>,
    watch: Watch,
    peak_gflops: f64,
    started: Instant,
}

impl<'r: 'scope, 'scope> Run<'r, '_, 'scope, '_> {
    /// Begins at step 0, or behind a checkpoint.
    fn go_on_from(&mut self, checkpoint: Option<Good>, notes: Vec<String>) -> Result<()> {
        let started = Event::Started(Started {
            what: self.title(),
            steps: self.run.train.steps,
            dir: self.dir.path().to_path_buf(),
            planned_bytes: self.report.host_peak().0,
            limit_bytes: self.report.plan.limits.host.as_ref().map_or(0, |l| l.bytes.0),
        });
        let Some(Good { folder, state }) = checkpoint else {
            self.say(&started)?;
            let reports = self.evaluate(0)?;
            self.progress.set_before(&names(&self.eval_sets), &reports);
            return Ok(());
        };
        self.observer.on_event(&started);
        self.trainer.restore(&folder, |role| match role {
            RoleName::Critic => state.critic_updates.unwrap_or(0),
            _ => state.policy_version,
        })?;
        check_same(self.frozen_sum(RoleName::Reference), state.reference, "`model`", "the reference")?;
        let what = "what scores responses";
        check_same(self.frozen_sum(RoleName::Reward), state.reward, "the reward model", what)?;
        if let (Some(coef), Some(objective)) = (state.kl_coef, &mut self.objective) {
            objective.set_kl_coef(coef);
        }
        self.progress = state.progress;
        self.cursor = Cursor { data_position: state.data_position, next_sample_id: state.next_sample_id };
        if let Some(held) = state.held {
            self.restore_held(&folder, held)?;
        }
        let step = self.progress.step;
        // A run that was made longer is evaluated at its new end.
        self.progress.evaluated_at_end &= step == self.run.train.steps;
        self.at = At::After(step);
        // The log was cut back to the instant before this event.
        self.say(&Event::Saved { step, path: folder })?;
        self.say(&Event::Resumed { step, notes })
    }

    /// The samples of an earlier rollout that wait for their steps.
    fn restore_held(&mut self, folder: &Path, held: HeldState) -> Result<()> {
        let Session { data, text, .. } = &mut *self.session;
        let (text, rollout) = (&*text, &self.run.rollout);
        let mut item = |position: u64| {
            data.batch(text, position, 1).map(|mut items| items.pop().expect("one position, one prompt"))
        };
        let words = |ids: &[u32], finish| response_text(text, ids, finish, &rollout.stop, rollout.keep_stop);
        let kept = self.trainer.kept.as_mut().expect("a run whose samples wait has room for them");
        let size = rollout.group_size as usize;
        self.held = Held::read(&folder.join(HELD), held, size, kept, &mut item, &words)?;
        Ok(())
    }

    fn run(&mut self, signal: &AtomicI32) -> Result<Summary> {
        let steps = self.run.train.steps;
        for step in self.progress.step + 1..=steps {
            self.at = At::Step(step);
            match self.objective {
                Some(objective) => self.rl_step(objective, step)?,
                None if self.run.method.has_pairs() => self.pair_step(step)?,
                None => self.supervised_step(step)?,
            }
            self.watch_step(step)?;
            let every = |n: Option<u32>| n.is_some_and(|n| n > 0 && step % n == 0);
            if every(self.run.eval.every) && step < steps {
                self.evaluate(step)?;
            }
            if every(self.run.checkpoint.every) && step < steps {
                self.save()?;
            }
            let number = signal.load(Ordering::Relaxed);
            // After the last step the run is as good as over.
            if number != 0 && step < steps {
                self.save()?;
                self.settle()?;
                return Err(interrupted(number, step, self.dir.path()));
            }
        }
        if !self.progress.evaluated_at_end {
            let reports = self.evaluate(steps)?;
            self.progress.set_after(&names(&self.eval_sets), &reports);
            self.progress.evaluated_at_end = true;
        }
        self.save()?;
        self.settle()?;
        let summary = self.summary();
        report::write(&self.dir, &self.title(), steps)?;
        self.dir.write_summary(&summary)?;
        self.say(&Event::Finished { summary: summary.clone() })?;
        Ok(summary)
    }

    /// Memory over the step, as events; a strict run that went over the line is saved and ends.
    fn watch_step(&mut self, step: u32) -> Result<()> {
        let dev = self.trainer.dev;
        for event in self.watch.end_step(step, self.run.train.steps, || dev.card_memory()) {
            self.say(&event)?;
        }
        match self.watch.strict_error() {
            Some(error) => self.save().and_then(|()| self.settle()).and(Err(error)),
            None => Ok(()),
        }
    }

    fn begin(&mut self, doing: Doing, step: u32) {
        let dev = self.trainer.dev;
        self.watch.begin(doing, step, || dev.card_memory());
    }

    fn rl_step(&mut self, objective: Objective, n: u32) -> Result<()> {
        let started = Instant::now();
        let Session { data, text, model, .. } = &mut *self.session;
        let text = &*text;
        let dev = self.trainer.dev;
        let mut cx = StepContext {
            run: self.run,
            text,
            eos: &model.eos_token_ids,
            objective,
            rewards: self.rewards.take().expect("rewards come back after each step"),
            episodes: self.episodes.as_mut(),
            prompts: &mut |first, n| data.batch(text, first, n),
            cursor: self.cursor,
            held: std::mem::take(&mut self.held),
            edge: &mut |doing| self.watch.begin(doing, n, || dev.card_memory()),
        };
        let result = step(&mut self.trainer, &mut cx, n);
        let StepContext { objective, rewards, held, cursor, .. } = cx;
        (self.objective, self.rewards, self.held) = (Some(objective), Some(rewards), held);
        let report = result?;
        // A step that failed is made again from where it began.
        self.cursor = cursor;
        let seconds = started.elapsed().as_secs_f64();
        let progress = &mut self.progress;
        progress.mismatch_max = progress.mismatch_max.max(report.logprob_mismatch_max);
        progress.rollout_tokens += report.sampled_tokens as u64;
        progress.update_tokens += report.update_rows;
        progress.rollout_s += report.seconds.rollout;
        progress.update_s += report.seconds.update;
        progress.flops += report.flops;
        progress.reward_first = progress.reward_first.or(Some(report.rewards.reward));
        progress.reward_last = Some(report.rewards.reward);
        self.keep_samples(n)?;
        if let Some(fault) = report.episodes.as_ref().and_then(|episodes| episodes.fault.clone()) {
            let text = format!("step {n}: an episode was left out: {fault}");
            self.observer.on_event(&Event::Note { text });
        }
        let mut metrics = metrics::of_step(&report, self.progress.rollout_tokens);
        let sets: Vec<&str> = self.session.data.names().collect();
        metrics::add_sets(&mut metrics, &sets, &self.held.groups()[self.held.last()]);
        self.step_done(n, seconds, Some(report.rewards.reward), None, metrics)
    }

    fn supervised_step(&mut self, n: u32) -> Result<()> {
        let started = Instant::now();
        let rows = self.run.rollout.prompts_per_step as usize;
        let items = self.session.data.batch(&self.session.text, self.cursor.data_position, rows)?;
        self.begin(Doing::Update, n);
        let report = sft_step(&mut self.trainer, self.run, &items, n)?;
        self.cursor.data_position += rows as u64;
        self.cursor.next_sample_id += rows as u64;
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
        mut metrics: Metrics,
    ) -> Result<()> {
        self.progress.step = n;
        self.progress.updates = self.trainer.all_updates();
        self.at = At::After(n);
        // The checkpoint of the step before is complete, or it failed; this step is done and said all the same.
        let saved = self.settle();
        let rss = Host::this().rss();
        plimsoll_run::metrics::add_host(&mut metrics, &rss, self.report.host_peak(), seconds);
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
            frames_per_second: None,
            rss_bytes: rss.now.0,
            planned_bytes: self.report.host_peak().0,
            seconds,
            seconds_left: left,
            metrics,
        });
        self.say(&event)?;
        saved
    }

    fn keep_samples(&mut self, n: u32) -> Result<()> {
        let every = (self.run.train.steps / 20).max(1);
        if n != 1 && !n.is_multiple_of(every) && n != self.run.train.steps {
            return Ok(());
        }
        let group = self.run.rollout.group_size as usize;
        if let Some(episodes) = &self.episodes {
            let samples = self.trainer.step_samples();
            let kept = 0..samples.len().min(SAMPLES_KEPT);
            let rows: Vec<KeptEpisode> = kept.map(|s| episodes.kept(n, samples, s)).collect();
            return self.dir.write_samples(n, &rows);
        }
        let rewards = self.rewards.as_ref().expect("rewards come back after each step");
        let names = model_reward::names(rewards, &self.run.reward);
        let names: Vec<String> = names.into_iter().map(str::to_string).collect();
        let sets: Vec<&str> = self.session.data.names().collect();
        let (samples, policy_version) = (self.trainer.step_samples(), self.held.of().policy_version);
        let kept = Kept { text: &self.session.text, step: n, names: &names, samples, policy_version };
        let groups = self.held.last();
        let rows: Vec<KeptSample> = (groups.start * group..groups.end * group)
            .take(SAMPLES_KEPT)
            .map(|s| {
                let (of, i) = (&self.held.groups()[s / group], s % group);
                kept.sample(s, sets[of.item.set], &of.item.text, &of.texts[i], &of.scored[i])
            })
            .collect();
        self.dir.write_samples(n, &rows)
    }

    /// Saves the run, whose weights must give numbers: whatever `checkpoints` holds can be used. It goes on beside
    /// the next rollout; `settle` waits for it.
    fn save(&mut self) -> Result<()> {
        let step = self.progress.step;
        if self.progress.saved_step == Some(step) {
            return Ok(());
        }
        prove(&mut self.trainer)?;
        self.start_saving(step, true)
    }

    /// Begins a checkpoint of the weights, or of everything that the next step depends on.
    fn start_saving(&mut self, step: u32, everything: bool) -> Result<()> {
        self.begin(Doing::Save, step);
        self.settle()?;
        let mut progress = self.progress.clone();
        progress.saved_step = Some(step);
        progress.seconds_before = self.seconds();
        if let (Some(score), true) = (progress.last_metric, progress.last_eval_step == Some(step))
            && progress.best.is_none_or(|best| score > best.score)
        {
            progress.best = Some(Best { step, score });
        }
        let (state, run_file) = (self.state(progress)?, self.report.resolved.write_into(self.run).to_toml());
        let checkpoint = &self.run.checkpoint;
        let retention = Retention {
            keep: checkpoint.keep,
            keep_bytes: checkpoint.keep_bytes.map(|limit| limit.0.0),
            best: state.progress.best.map(|best| best.step),
        };
        let what = match everything {
            true => What::Everything { state: &state, run_file: &run_file, held: &self.held },
            false => What::Weights,
        };
        let (model, store) = (&self.session.model, self.dir.store());
        let job = prepare(&self.trainer, model, &store, step, what, retention)?;
        self.saver.start(step, store, move || job.run())?;
        self.progress.saved_step = Some(step);
        self.progress.best = state.progress.best;
        Ok(())
    }

    /// The counters as they are now; the log up to here is on the disk.
    fn state(&mut self, progress: Progress) -> Result<RunState> {
        let adaptive = self.objective.and_then(|objective| objective.adaptive_kl_coef());
        let Fingerprint { machine, build, plan, inputs } = self.fingerprint.clone();
        Ok(RunState {
            policy_version: self.trainer.updates(),
            critic_updates: self.trainer.role(RoleName::Critic).map(Role::updates),
            seed: self.run.seed,
            data_position: self.cursor.data_position,
            next_sample_id: self.cursor.next_sample_id,
            held: self.held.state(),
            kl_coef: adaptive,
            events_bytes: self.dir.events().sync()?,
            progress,
            machine,
            build,
            plan,
            inputs,
            reference: self.frozen_sum(RoleName::Reference),
            reward: self.frozen_sum(RoleName::Reward),
        })
    }

    /// Waits for a save under way, and says that it is done.
    fn settle(&mut self) -> Result<()> {
        match self.saver.settle()? {
            Some((step, path)) => self.say(&Event::Saved { step, path }),
            None => Ok(()),
        }
    }

    /// What tells the weights of a frozen role apart from those of another model.
    fn frozen_sum(&self, role: RoleName) -> Option<f64> {
        self.trainer.role(role)?.sum_squares
    }

    fn seconds(&self) -> f64 {
        self.progress.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// What a run that fails leaves: the last good weights, where a step was made, and `crash.json`. Returns the error
    /// with the step, the tensor where numbers ran away, and where those weights are.
    fn last_words(&mut self, error: Error) -> Error {
        if matches!(error.exit, Exit::Interrupted | Exit::Terminated) {
            return error;
        }
        // What was being saved is saved, or it is the error itself.
        let _ = self.settle();
        let mut error = name_tensor(
            &self.trainer,
            match self.at {
                At::Start => error.fact("before the first step"),
                At::Step(n) => error.fact(format!("in step {n} of {}", self.run.train.steps)),
                At::After(n) => error.fact(format!("after step {n} of {}", self.run.train.steps)),
            },
        );
        let readings = json!({ "rss": Host::this().rss().now, "planned": self.report.host_peak(), "seconds": self.seconds() });
        // The error itself is what the user must see; a second failure while recording it adds nothing.
        if self.progress.step > 0 && self.keep_good_weights().is_ok() {
            let latest = self.dir.path().join("checkpoints/latest");
            error = error.fact(format!("last good weights: {}", latest.display()));
        }
        let _ = self.dir.write_crash(&error, self.progress.step, &readings);
        error
    }

    /// Saves the weights if they give numbers; else an earlier checkpoint is the last good one, and where there is
    /// none, the weights that the run began with. A step that failed after an update leaves weights alone: the run
    /// cannot go on from the middle of a step.
    fn keep_good_weights(&mut self) -> Result<()> {
        let whole_step = self.trainer.all_updates() == self.progress.updates;
        let has_checkpoint = self.progress.saved_step.is_some();
        if self.progress.saved_step == Some(self.progress.step) || (has_checkpoint && !whole_step) {
            return Ok(());
        }
        let step = self.progress.step;
        match prove(&mut self.trainer).and_then(|()| self.start_saving(step, whole_step)) {
            Err(error) if is_divergence(&error) && has_checkpoint => return Ok(()),
            Err(error) if is_divergence(&error) => {
                self.trainer.reload(&self.session.model)?;
                self.start_saving(0, false)?;
            }
            result => result?,
        }
        self.settle()
    }

    fn say(&mut self, event: &Event) -> Result<()> {
        let started = Instant::now();
        let mut line = serde_json::to_value(event).expect("events are plain data");
        line["seconds_since_start"] = json!(self.seconds());
        self.dir.events().write(&line)?;
        self.observer.on_event(event);
        self.watch.add_spent(started.elapsed());
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
        let mut summary = json!({
            "steps": p.step,
            "eval_before": p.eval_before,
            "eval_after": p.eval_after,
            "pass_at_k_before": p.pass_at_k_before,
            "pass_at_k_after": p.pass_at_k_after,
            "sets": p.sets_json(),
            "best": p.best.map(|best| json!({ "step": best.step, "metric": self.run.eval.metric, "value": best.score })),
            "reward_first": p.reward_first,
            "reward_last": p.reward_last,
            "seconds": self.seconds(),
            "tokens_per_second_rollout": rate(p.rollout_tokens, p.rollout_s),
            "tokens_per_second_update": rate(p.update_tokens, p.update_s),
            "share_of_peak": if busy > 0.0 && p.flops > 0.0 { json!(p.flops / busy / (self.peak_gflops * 1e9)) } else { Value::Null },
            "arena_planned_bytes": self.report.plan.arena_bytes(),
            "arena_used_bytes": self.arena_used,
            "rss_planned_bytes": self.report.host_peak(),
            "rss_peak_bytes": rss.peak,
            "supervisor_rss_bytes": self.watch.supervisor_bytes(),
            "monitoring_share": self.watch.spent().as_secs_f64() / p.step_s.max(1e-9),
            "trend": self.watch.trend().kinds,
            "logprob_mismatch_max": p.mismatch_max,
            "machine": self.trainer.dev.machine_type(),
        });
        self.summarize_pairs(&mut summary);
        if let (Some(frozen), Some(now)) = (self.frozen, self.trainer.dev.card_memory()) {
            summary["device_planned_bytes"] = json!(self.report.plan.peak(Pool::Device).peak);
            summary["device_used_bytes"] = json!(now.ours());
            summary["device_free_at_freeze_bytes"] = json!(frozen.free);
            summary["device_free_at_end_bytes"] = json!(now.free);
        }
        summary
    }
}

fn names(sets: &[EvalSet]) -> Vec<String> {
    sets.iter().map(|set| set.name.clone()).collect()
}

/// Requires that a model that no checkpoint holds is the one that the run began with.
///
/// Errors: `resume-differs`.
fn check_same(now: Option<f64>, then: Option<f64>, whose: &str, what_for: &str) -> Result<()> {
    if now.map(f64::to_bits) == then.map(f64::to_bits) {
        return Ok(());
    }
    let message = format!("the weights of {whose} are not those that the run began with");
    Err(Error::new("resume-differs", message)
        .fact(format!("they are {what_for}"))
        .hint("put the model back as it was"))
}
