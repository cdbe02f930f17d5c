//! The words of a worker, and the errors that they become.

use crate::FaultKind;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_env::{Slot, Space, Spec};
use serde::Deserialize;

/// The protocol version of the embedded script.
const PROTOCOL: u32 = 1;
/// Lines shown of a traceback.
const TRACE_LINES: usize = 14;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    Hello(Hello),
    Spec(Box<Said>),
    Attached(u32),
    Failed(Failed),
    Exception(Exception),
}

/// The introduction of an interpreter.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Hello {
    pub protocol: u32,
    #[serde(default)]
    pub pid: u32,
}

/// The description of an environment.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Said {
    pub id: String,
    pub observation: Space,
    pub action: Space,
    /// Environments that step as one; 0 for a single environment.
    pub vector: u32,
    pub autoreset: String,
    /// The step limit of an episode that it was registered with.
    #[serde(default)]
    pub steps_max: Option<u32>,
}

/// Why a worker did not start.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Failed {
    pub doing: String,
    pub kind: String,
    pub what: String,
    pub trace: String,
    pub python: String,
}

/// An exception of an environment.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Exception {
    /// Counted within the worker.
    pub env: u32,
    pub doing: String,
    pub kind: String,
    pub what: String,
    pub trace: String,
}

/// The environment of all workers, and its slots.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub said: Said,
    pub spec: Spec,
    pub observation: Slot,
    pub action: Slot,
}

impl Hello {
    pub fn check(&self) -> Result<()> {
        match self.protocol {
            PROTOCOL => Ok(()),
            other => Err(bad(&format!("a worker speaks protocol {other}, this binary {PROTOCOL}"))),
        }
    }
}

impl Known {
    /// Errors: `env-space-unsupported`, `env-bad-output`.
    pub fn new(said: Said) -> Result<Known> {
        let observation = Slot::of(&said.observation)?;
        let action = Slot::of(&said.action)?;
        if said.vector > 0 && !["SameStep", "NextStep", "Disabled"].contains(&said.autoreset.as_str()) {
            return Err(bad(&format!(
                "vector environment `{}` has autoreset mode `{}`, which is none of SameStep, NextStep, Disabled",
                said.id, said.autoreset
            )));
        }
        // The worker's wrapper applies the step limit, so the collector must not.
        let spec = Spec {
            id: said.id.clone(),
            observation: said.observation.clone(),
            action: said.action.clone(),
            episode_steps_max: None,
        };
        Ok(Known { said, spec, observation, action })
    }

    /// Checks that an episode of these environments can be truncated after `limit` steps.
    ///
    /// Errors: `env-vector-autoreset` for vector environments that cannot end a single episode.
    pub fn check_limit(&self, limit: Option<u32>) -> Result<()> {
        let Said { id, vector, autoreset, .. } = &self.said;
        let Some(limit) = limit.filter(|_| *vector > 0 && autoreset != "Disabled") else { return Ok(()) };
        let message = format!(
            "vector environment `{id}` ({vector} at once) begins episodes in autoreset mode `{autoreset}`, in which the collector cannot end a single one; episodes are to be truncated after {limit} frames"
        );
        Err(Error::usage("env-vector-autoreset", message)
            .hint("make it with vector_kwargs={\"autoreset_mode\": AutoresetMode.DISABLED}, where resets take a mask")
            .hint(format!("or let it truncate by itself: gymnasium.make_vec(..., max_episode_steps={limit})")))
    }
}

impl Failed {
    /// Returns the failure; `env` is the name that the user wrote, `python` the interpreter.
    pub fn error(&self, env: &str, python: &str) -> (FaultKind, Error) {
        let Failed { what, python: version, .. } = self;
        let install = |package: &str| {
            format!("`{python} -m pip install {package}`, or set `python` to an interpreter that has it")
        };
        let mut kind = FaultKind::BadOutput;
        let error = match (self.kind.as_str(), self.doing.as_str()) {
            ("missing", "numpy") => Error::usage(
                "env-numpy-missing",
                format!("{python} (Python {version}) has no numpy, through which environments are stepped: {what}"),
            )
            .hint(install("numpy")),
            ("missing", _) => Error::usage(
                "env-gymnasium-missing",
                format!("{python} (Python {version}) has no gymnasium, and the environment is `{env}`: {what}"),
            )
            .hint(install("gymnasium")),
            ("unsupported", _) => Error::usage("env-space-unsupported", what.clone())
                .hint("Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of fixed sizes are supported; wrap others"),
            ("changed", _) => spaces_changed(what),
            ("memory", _) => {
                kind = FaultKind::OverBudget;
                Error::new("env-worker-over-budget", format!("`{env}` raised MemoryError while it was made"))
                    .hint("raise `worker_memory`, or lower `num_envs`")
            }
            (_, "make") if what.starts_with("gymnasium.error.") && what.contains("NotFound") => {
                Error::usage(slugs::UNKNOWN_ENVIRONMENT, format!("gymnasium knows no `{env}`: {what}"))
                    .hint("a package that registers it is named before the id: \"gym:ale_py:ALE/Pong-v5\"")
            }
            (_, "import") => Error::usage("env-import-failed", format!("`{env}` does not load: {what}"))
                .hint("import the file with the same interpreter to see why; `python` names another interpreter"),
            _ => {
                kind = FaultKind::Exception;
                Error::usage("env-not-made", format!("`{env}` could not be made: {what}"))
                    .hint("make it with the same interpreter to see why; `env_options` are passed by name")
            }
        };
        (kind, with_trace(error, &self.trace))
    }
}

impl Exception {
    /// Returns the failure of environment `env_index`.
    pub fn error(&self, env_index: u32) -> (FaultKind, Error) {
        let (doing, what) = (&self.doing, &self.what);
        let (kind, error) = match self.kind.as_str() {
            "memory" => (
                FaultKind::OverBudget,
                Error::new(
                    "env-worker-over-budget",
                    format!("environment {env_index} raised MemoryError in {doing}: {what}"),
                )
                .hint("raise `worker_memory`, or lower `num_envs`"),
            ),
            "bad" => (FaultKind::BadOutput, bad(&format!("environment {env_index}: {what}"))),
            "changed" | "unsupported" => {
                (FaultKind::BadOutput, spaces_changed(&format!("environment {env_index}: {what}")))
            }
            _ => (
                FaultKind::Exception,
                Error::new("env-exception", format!("environment {env_index} raised in {doing}: {what}")),
            ),
        };
        (kind, with_trace(error, &self.trace))
    }
}

/// Returns the error of an answer that violates its space or the protocol.
pub(super) fn bad(what: &str) -> Error {
    Error::new("env-bad-output", what)
        .hint("check the environment alone: gymnasium.utils.env_checker.check_env(env) finds most of it")
}

fn spaces_changed(what: &str) -> Error {
    Error::new("env-spaces-changed", what)
        .hint("slots are planned once: let all environments, and all episodes, have the same spaces; pad what varies")
}

fn with_trace(error: Error, trace: &str) -> Error {
    let lines: Vec<&str> = trace.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = &lines[lines.len().saturating_sub(TRACE_LINES)..];
    tail.iter().fold(error, |error, line| error.fact(*line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_the_script_writes_them() {
        let read = |text: &str| serde_json::from_str::<Word>(text);
        assert!(matches!(read(r#"{"attached": 3}"#), Ok(Word::Attached(3))));
        let hello = r#"{"hello": {"protocol": 1, "python": "3.11.7", "numpy": "2.4"}}"#;
        assert!(matches!(read(hello), Ok(Word::Hello(hello)) if hello.check().is_ok()));
        let spec = r#"{"spec": {"id": "x", "observation": {"kind": "discrete", "n": 2, "start": 0},
            "action": {"kind": "tuple", "spaces": []}, "vector": 0, "autoreset": "SameStep"}}"#;
        let Ok(Word::Spec(said)) = read(spec) else { panic!("{:?}", read(spec)) };
        assert_eq!(Known::new(*said).unwrap_err().slug, "env-space-unsupported");
        assert!(read(r#"{"other": 1}"#).is_err());
    }

    #[test]
    fn each_cause_has_its_slug() {
        let failed = |doing: &str, kind: &str| {
            let text = |text: &str| text.to_string();
            let (trace, python) = (text("Traceback\n  their line\n"), text("3.11"));
            let failed = Failed { doing: text(doing), kind: text(kind), what: text("why"), trace, python };
            let (kind, error) = failed.error("gym:X-v0", "/usr/bin/python3");
            assert_eq!(error.facts[1], "  their line");
            (error.slug, kind)
        };
        let bad = FaultKind::BadOutput;
        assert_eq!(failed("numpy", "missing"), ("env-numpy-missing", bad));
        assert_eq!(failed("import", "missing"), ("env-gymnasium-missing", bad));
        assert_eq!(failed("import", "exception"), ("env-import-failed", bad));
        assert_eq!(failed("make", "exception"), ("env-not-made", FaultKind::Exception));
        assert_eq!(failed("spaces", "unsupported"), ("env-space-unsupported", bad));
        assert_eq!(failed("make", "changed"), ("env-spaces-changed", bad));
        assert_eq!(failed("make", "memory"), ("env-worker-over-budget", FaultKind::OverBudget));
    }
}
