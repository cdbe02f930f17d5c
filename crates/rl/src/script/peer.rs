//! The script that leads a run: its socket, its arrays, and what lies between two steps.

use super::fault::{Fault, Served, wrong_time};
use super::held::NamedForm;
use super::link::{Link, Numbers};
use super::room::{ScriptArrays, ScriptGradients, ScriptLimits};
use super::verbs::Verb;
use plimsoll_base::{Error, Exit, Result, open_regular, slugs};
use plimsoll_config::RunSpec;
use plimsoll_plan::{Facts, PlanReport};
use plimsoll_reward::Rewards;
use plimsoll_run::checkpoint::SCRIPT;
use plimsoll_run::metrics::Metrics;
use serde_json::json;
use std::io::Read;
use std::path::Path;

/// Most bytes of a script's state that are read back.
const STATE_BYTES_MAX: u64 = 16 << 20;

/// What a script asks of the loop between two steps.
pub(crate) enum Between {
    Step,
    Save,
    Close {
        /// True if everything is to be saved before.
        save: bool,
    },
}

/// A script that makes the steps of a run.
pub struct Script {
    pub(super) link: Link,
    /// None before there is a plan.
    pub(super) room: Option<(ScriptArrays, ScriptGradients)>,
    /// The form of a request that came last, of those that had one of their own.
    pub(super) form: Option<NamedForm>,
    /// Grades nothing.
    pub(super) no_rewards: Rewards,
    /// The request that came between two steps and belongs to the next.
    pub(super) waiting: Option<Verb>,
    /// True once the script knows where the run begins.
    is_ready: bool,
    /// True if `state` of the arrays belongs to the step that was made last.
    has_state: bool,
}

impl Script {
    /// Connects to the socket at which a script listens.
    ///
    /// Errors: `script-ended`.
    pub fn connect(path: &Path) -> Result<Script> {
        Ok(Script {
            link: Link::connect(path)?,
            room: None,
            form: None,
            no_rewards: Rewards::new(&[])?,
            waiting: None,
            is_ready: false,
            has_state: false,
        })
    }

    /// Shows the plan of a run that fits, and waits for the script to begin. Nothing is allocated before.
    ///
    /// Errors: `script-ended`, `script-bad-frame`.
    pub(crate) fn begin(&mut self, run: &RunSpec, facts: &Facts, report: &PlanReport) -> Result<()> {
        let plan = report.to_json().to_string();
        let header = json!({
            "steps": run.train().steps,
            "prompts_per_step": run.rollout.prompts_per_step,
            "group_size": run.rollout.group_size,
            "temperature": run.rollout.temperature,
        });
        self.link.answer(header, &[("plan", Numbers::U8(vec![plan.as_bytes()]))])?;
        // The first frame has no arrays, so it needs no room.
        let mut none = ScriptArrays::bind(ScriptLimits::NONE);
        loop {
            match self.link.request((&mut none.0, &mut none.1)) {
                Ok(Verb::Begin {}) => break,
                Ok(_) => self.link.refuse(&not_begun())?,
                Err(Fault::OfRequest(error)) => self.link.refuse(&error)?,
                Err(Fault::OfRun(error)) => return Err(error),
            }
        }
        self.room = Some(ScriptArrays::bind(ScriptLimits::of(run, facts)));
        Ok(())
    }

    pub(super) fn arrays(&self) -> &ScriptArrays {
        &self.room.as_ref().expect("a run that has begun has its room").0
    }

    /// Reads the next request.
    pub(super) fn next(&mut self) -> Served<Verb> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(waiting);
        }
        let (arrays, gradients) = self.room.as_mut().expect("a run that has begun has its room");
        self.link.request((arrays, gradients))
    }

    /// Waits for what is asked between two steps, before `step` is made.
    ///
    /// Errors: `script-ended`, `script-bad-frame`.
    pub(crate) fn between(&mut self, step: u32) -> Result<Between> {
        self.make_ready(step)?;
        loop {
            match self.next() {
                Ok(Verb::Save {}) if step > 1 => return Ok(Between::Save),
                Ok(Verb::Close { save }) => return Ok(Between::Close { save: save && step > 1 }),
                Ok(Verb::Save {}) => self.link.refuse(&nothing_made())?,
                Ok(Verb::Begin {}) => self.link.refuse(&not_begun())?,
                Ok(verb) => {
                    self.waiting = Some(verb);
                    return Ok(Between::Step);
                }
                Err(Fault::OfRequest(error)) => self.link.refuse(&error)?,
                Err(Fault::OfRun(error)) => return Err(error),
            }
        }
    }

    /// Answers that what was asked between two steps is done.
    ///
    /// Errors: `script-ended`.
    pub(crate) fn done(&mut self) -> Result<()> {
        self.link.answer(json!({}), &[])
    }

    /// Tells the script where the run begins, with what it kept in the checkpoint that is resumed.
    fn make_ready(&mut self, step: u32) -> Result<()> {
        if std::mem::replace(&mut self.is_ready, true) {
            return Ok(());
        }
        let state = &self.room.as_ref().expect("a run that has begun has its room").0.state;
        let has_state = self.has_state;
        let arrays = [("state", Numbers::U8(vec![state]))];
        self.link
            .answer(json!({ "made": step - 1, "has_state": has_state }), &arrays[..usize::from(has_state)])
    }

    /// Answers the request that ended a step.
    ///
    /// Errors: `script-ended`.
    pub(crate) fn made(&mut self, step: u32, metrics: &Metrics) -> Result<()> {
        self.link.answer(json!({ "step": step, "metrics": metrics }), &[])
    }

    /// Takes what the script keeps from the step that it ends.
    pub(super) fn keep(&mut self) {
        self.has_state = self.arrays().brings_state;
    }

    /// Returns what the script keeps at the step that was made last.
    pub(crate) fn state(&self) -> Option<&[u8]> {
        self.has_state.then(|| &self.arrays().state[..])
    }

    /// Reads back what the script kept, if the checkpoint has anything.
    ///
    /// Errors: `checkpoint-damaged`.
    pub(crate) fn restore(&mut self, checkpoint: &Path) -> Result<()> {
        let path = checkpoint.join(SCRIPT);
        if !path.exists() {
            return Ok(());
        }
        let (arrays, _) = self.room.as_mut().expect("a run that has begun has its room");
        let read = |file: std::fs::File| file.take(STATE_BYTES_MAX).read_to_end(&mut arrays.state);
        open_regular(&path).and_then(read).map_err(|err| Error::io("checkpoint-damaged", &path, &err))?;
        self.has_state = true;
        Ok(())
    }
}

fn not_begun() -> Error {
    wrong_time("a run begins once, before anything else", "call begin() first, and once")
}

fn nothing_made() -> Error {
    wrong_time("no step is made yet, so nothing is to be saved", "save after the first step")
}

/// Returns how a run ends that its script has left.
pub(crate) fn closed(step: u32, saved: bool, dir: &Path) -> Error {
    let message = if saved {
        format!("the script has ended after step {step}; everything is saved in {}", dir.display())
    } else {
        format!("the script has ended after step {step}; the newest checkpoint is in {}", dir.display())
    };
    Error { exit: Exit::Interrupted, ..Error::new(slugs::INTERRUPTED, message) }
        .hint("--resume continues from the newest checkpoint, bit for bit")
}
