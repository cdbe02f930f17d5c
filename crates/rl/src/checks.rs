//! Checks before a run begins, apart from its data and memory. `train` makes all of them; a plan makes those that take
//! less than a few seconds, and names the rest.
//!
//! A plan for a machine with other limits cannot know that machine: what fails here may work there, and is named.

use crate::data::models::check_trainable;
use crate::methods::estimator::UserEstimator;
use plimsoll_base::{Error, Result, slugs, without_secrets};
use plimsoll_config::RunSpec;
use plimsoll_plan::devices;
use plimsoll_reward::{RewardSpec, Rewards, Words};
use plimsoll_textenv::{EpisodesOf, Hosts, Kind};
use serde_json::{Map, Value};
use std::time::Duration;

/// The longest that a plan waits for a worker: an interpreter starts in a tenth of a second, a large package is
/// imported in several.
const PLAN_START: Duration = Duration::from_secs(5);
/// Errors of a worker that was not ready in time.
const NOT_READY: [&str; 2] = [slugs::REWARD_WORKER_TIMEOUT, slugs::TEXT_ENVIRONMENT_TIMEOUT];

/// The command that checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckedFor {
    Training,
    /// A plan for this machine.
    Plan,
    /// A plan for given limits.
    PlanElsewhere,
}

/// The checks of one run, in the order of the methods.
#[derive(Debug)]
pub(crate) struct Checks {
    checked_for: CheckedFor,
    /// Checks that were left out, for people. Empty before training.
    pub(crate) not_checked: Vec<String>,
}

impl Checks {
    /// Requires what is known before anything is opened: tracker clients, a usable card if the run file names one, and
    /// a model that can be trained.
    ///
    /// Errors: those of `devices::check`; `model-unsupported`, `tracker-missing`, `tracker-not-started`.
    pub(crate) fn begin(checked_for: CheckedFor, run: &RunSpec) -> Result<Checks> {
        let mut checks = Checks { checked_for, not_checked: Vec::new() };
        checks.trackers(run)?;
        checks.machine(run)?;
        Ok(checks)
    }

    fn machine(&mut self, run: &RunSpec) -> Result<()> {
        let device = run.run.device.value().map(|device| device.name());
        match self.checked_for {
            CheckedFor::PlanElsewhere => {
                let needs = device.and_then(|name| plimsoll_devices::named(name).needs);
                needs.into_iter().for_each(|needs| self.left_out(needs));
            }
            CheckedFor::Plan => devices::check(device).map_err(|error| {
                error.hint("--limit device=80GiB,host=64GiB plans for a card of another machine")
            })?,
            CheckedFor::Training => devices::check(device)?,
        }
        let trainable = check_trainable(&run.model);
        match self.checked_for {
            CheckedFor::Training => trainable,
            _ => {
                if trainable.is_err() {
                    self.left_out(format!("the weights of {}, which is a shape for plans only", run.model));
                }
                Ok(())
            }
        }
    }

    /// Starts the rewards, which must find their columns in the first row of each set. `None` before a plan, which
    /// starts one worker of each and ends it.
    ///
    /// Errors: those of starting rewards and of their columns.
    pub(crate) fn rewards(&mut self, run: &RunSpec, rows: &[Map<String, Value>]) -> Result<Option<Rewards>> {
        if self.checked_for == CheckedFor::Training {
            let rewards = Rewards::saying(&run.rewards, Words::of_run())?;
            rows.iter().try_for_each(|columns| rewards.check_columns(columns))?;
            return Ok(Some(rewards));
        }
        for spec in &run.rewards {
            let one = RewardSpec { workers: 1, ..spec.clone() };
            match Rewards::within(&[one], Words::of_run(), PLAN_START) {
                Ok(rewards) => rows.iter().try_for_each(|columns| rewards.check_columns(columns))?,
                Err(error) => self.not_started(&format!("reward `{}`", spec.kind), error)?,
            }
            if let Some(address) = spec.address() {
                self.left_out(format!("whether {address} answers"));
            }
        }
        Ok(None)
    }

    /// Starts the function that estimates advantages, if the run has one, as `rewards` starts rewards.
    ///
    /// Errors: those of starting it.
    pub(crate) fn estimator(
        &mut self,
        run: &RunSpec,
        rank: usize,
        words: &Words,
    ) -> Result<Option<UserEstimator>> {
        let limit = (self.checked_for != CheckedFor::Training).then_some(PLAN_START);
        match UserEstimator::start(run.estimator(), rank, words.clone(), limit) {
            Err(error) if self.checked_for != CheckedFor::Training => {
                self.not_started("the function of loss.advantage", error)?;
                Ok(None)
            }
            started => started,
        }
    }

    /// Names the server that has the teacher: a plan does not ask it.
    pub(crate) fn endpoint(&mut self, run: &RunSpec) {
        if let Some(server) = run.teacher_server() {
            self.left_out(format!("whether {} answers", server.url));
        }
    }

    /// Starts the environment of the run file before a plan, if it has one, and ends it.
    ///
    /// Errors: those of starting an environment.
    pub(crate) fn environment(&mut self, run: &RunSpec) -> Result<()> {
        let Some(section) = run.environment() else { return Ok(()) };
        let kind = Kind::parse(&section.env)?;
        if kind.is_agents() {
            self.left_out("agents, which are started for the first rollout");
            return Ok(());
        }
        if let Kind::Python(EpisodesOf::OpenEnv { url }) = &kind {
            self.left_out(format!("whether {url} answers"));
            return Ok(());
        }
        if kind.plays_tasks() {
            self.left_out("containers, whose images are made before the first rollout");
            return Ok(());
        }
        let mut settings = section.host_settings(&run.data);
        settings.num_workers = 1;
        settings.reset_timeout = settings.reset_timeout.min(PLAN_START);
        match Hosts::check(&kind, &settings) {
            Ok(true) => self.left_out("whether the model's chat template writes the environment's tools"),
            Ok(false) => {}
            Err(error) => self.not_started(&format!("environment `{}`", section.env), error)?,
        }
        Ok(())
    }

    fn trackers(&mut self, run: &RunSpec) -> Result<()> {
        match self.checked_for {
            CheckedFor::PlanElsewhere if !run.training().track.to.is_empty() => {
                self.left_out("the clients of `track.to`")
            }
            CheckedFor::PlanElsewhere => {}
            CheckedFor::Training | CheckedFor::Plan => plimsoll_run::track::check(&run.training().track)?,
        }
        Ok(())
    }

    /// Names what was not started where that is no fault of the run file.
    fn not_started(&mut self, what: &str, error: Error) -> Result<()> {
        let why = match self.checked_for {
            _ if NOT_READY.contains(&error.slug) => format!("not ready after {} s", PLAN_START.as_secs()),
            CheckedFor::PlanElsewhere => format!("on this machine: {}", error.message),
            _ => return Err(error),
        };
        self.left_out(format!("{what} ({why})"));
        Ok(())
    }

    fn left_out(&mut self, what: impl Into<String>) {
        // Addresses without users, passwords and queries.
        let what: String = what.into();
        let what = if what.contains("://") { without_secrets(&what) } else { what };
        self.not_checked.push(what);
    }
}
