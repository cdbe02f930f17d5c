//! A run of an environment policy without its directory: settings, a learner, a collector, and a step's parts.

use plimsoll_agent::evaluate::Evaluator;
use plimsoll_agent::experience::Experience;
use plimsoll_agent::gather::{Ended, gather};
use plimsoll_agent::learner::{LearnReport, Learner, layout};
use plimsoll_agent::policy::{Board, MlpPolicy};
use plimsoll_agent::settings::AgentSettings;
use plimsoll_agent::state::AgentState;
use plimsoll_algo::action::Explore;
use plimsoll_base::{PolicyVersion, Result};
use plimsoll_collect::{Batch, Collector, Mode, OnAbort, Policy, Settings, Underway};
use plimsoll_config::{RunSpec, load_text};
use plimsoll_device::OpenOptions;
use plimsoll_devices::{Opening, host, open};
use plimsoll_worker::Stop;
use std::path::Path;
use std::sync::Arc;

const RUN: &str = r#"method = "ppo"
model = "mlp:8x8"
[environment]
env = "CartPole-v1"
num_envs = 4
frames_per_batch = 256
total_frames = 4096
[loss]
gamma = 0.99
lambda = 0.95
entropy_coef = 0.01
[train]
mini_batch = 64
epochs_per_rollout = 2
learning_rate = 1e-3
adam_epsilon = 1e-5
grad_clip = 0.5
[run]
threads = 2
"#;

/// A run file and what follows from it.
pub struct Case {
    pub run: RunSpec,
    pub settings: AgentSettings,
}

pub fn load(sets: &[&str]) -> Result<RunSpec> {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = load_text(RUN.into(), Path::new("run.toml"), &sets, std::iter::empty())?;
    Ok(RunSpec::new(&loaded.run))
}

pub fn try_case(sets: &[&str]) -> Result<Case> {
    let run = load(sets)?;
    let settings = AgentSettings::new(&run, &Stop::default())?;
    Ok(Case { run, settings })
}

pub fn case(sets: &[&str]) -> Case {
    try_case(sets).unwrap_or_else(|error| panic!("{sets:?}: {error}"))
}

/// A learner with its collector, between two steps.
pub struct World<'c, 'a> {
    pub case: &'c Case,
    pub learner: Learner<'a>,
    pub state: AgentState,
    pub experience: Experience,
    pub board: Arc<Board>,
    pub collector: Collector,
}

impl Case {
    /// Runs `body` with the first weights and nothing collected yet.
    pub fn world<T>(&self, body: impl FnOnce(&mut World<'_, '_>) -> T) -> T {
        self.world_from(Vec::new(), body)
    }

    /// With the episodes in progress of an earlier collector.
    pub fn world_from<T>(&self, underway: Vec<Underway>, body: impl FnOnce(&mut World<'_, '_>) -> T) -> T {
        let Case { run, settings } = self;
        let (spec, rows) = (&settings.network.spec, settings.learner.mini_batch);
        let opening = Opening::alone(host().kind, settings.threads, OpenOptions::default());
        let regions = layout(spec, rows, settings.threads).expect("sizes of machines");
        let (dev, mut arena) = open(&regions, &opening).expect("memory");
        let learner = Learner::new(&*dev, spec, arena.split(), rows);
        spec.init(&*dev, &learner.table, &learner.params, run.seed);
        let board = Board::new(learner.params.all.len());
        let state = AgentState::new(settings);
        board.publish(PolicyVersion(0), state.scales(), |weights| learner.weights(weights));
        let width = settings.network.reader.width();
        let dims = spec.head.action_dims();
        let is_normalised = settings.first_moments.is_some();
        let mut world = World {
            case: self,
            experience: Experience::with_capacity(settings.frames(), width, dims, is_normalised),
            collector: self.collector(&board, underway),
            learner,
            state,
            board,
        };
        body(&mut world)
    }

    fn collector(&self, board: &Arc<Board>, underway: Vec<Underway>) -> Collector {
        let Case { run, settings } = self;
        let steppers = settings.steppers(settings.num_envs, settings.lanes).expect("environments");
        let rows = settings.num_envs.div_ceil(settings.lanes);
        let mut make = || {
            let policy = MlpPolicy::new(&settings.network, board.clone(), run.seed, rows, Explore::Sample);
            Box::new(policy.expect("memory")) as Box<dyn Policy>
        };
        let how = Settings {
            run_seed: run.seed,
            mode: Mode::Sync,
            batches_in_flight: 1,
            on_abort: OnAbort::Keep,
            random_steps: 0,
            reset_each_batch: false,
        };
        Collector::start_from(&how, settings.rows.clone(), steppers, &mut make, underway).expect("threads")
    }

    /// Plays the evaluation episodes with these weights.
    pub fn evaluate(&self, board: &Arc<Board>) -> Vec<f64> {
        let evaluator = Evaluator::of(&self.run, &self.settings, board).expect("environments");
        evaluator.expect("it evaluates").evaluate().expect("they do not fail").expect("no signal came")
    }
}

impl World<'_, '_> {
    pub fn collect(&mut self) -> Batch {
        self.collector.next().expect("environments that work").expect("it goes on")
    }

    /// Collects a batch, and estimates its advantages.
    pub fn rollout(&mut self) -> Ended {
        let batch = self.collect();
        self.take(&batch)
    }

    pub fn take(&mut self, batch: &Batch) -> Ended {
        let settings = &self.case.settings;
        let (spans, ended) = gather(settings, batch, &mut self.state, &mut self.experience);
        let mut values = vec![0.0; self.experience.tail_slices.len()];
        self.learner.values(&self.experience.tails, &mut values);
        for (&slice, value) in self.experience.tail_slices.iter().zip(values) {
            self.experience.bootstrap[slice] = value;
        }
        if let Some(scale) = &mut self.state.rewards {
            self.experience.scale_rewards(scale, settings.gamma, &spans);
        }
        self.experience.estimate(settings.gamma, settings.lambda);
        ended
    }

    /// Makes the updates of a step and publishes the weights.
    pub fn learn(&mut self, step: u32) -> Result<LearnReport> {
        let optimizer = self.case.run.train().update_options(step, self.case.run.seed);
        let how = &self.case.settings.learner;
        let report = self.learner.learn(how, optimizer, &self.experience, step)?;
        if let Some(moments) = &mut self.state.observations {
            moments.update(&self.experience.raw_inputs);
        }
        let version = PolicyVersion(self.learner.updates);
        self.board.publish(version, self.state.scales(), |weights| self.learner.weights(weights));
        self.collector.published(version);
        Ok(report)
    }

    pub fn weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.learner.params.all.len()];
        self.learner.weights(&mut weights);
        weights
    }
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|n| n.to_bits()).collect()
}
