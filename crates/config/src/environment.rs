//! Checks of `[environment]`: what its values may be, and which keys a kind of environment needs.

use super::limits::{TOKENS_MAX, bad_value, contradiction, in_range};
use super::provenance::Provenance;
use super::sections::{Data, Environment, RunFile};
use super::values::{AnsweredPrompts, Network};
use crate::RunSpec;
use plimsoll_base::{Error, Result};
use plimsoll_textenv::{ContainerTasks, Kind, ReplyLimits, Settings, tool_function, tool_server};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Number of evaluation episodes if `eval.prompts_max` is absent.
const EVAL_EPISODES: u32 = 256;
/// Most responses of an agent's episode: each draws its own random numbers.
const AGENT_TURNS_MAX: f64 = 63.0;
/// Most functions of `environment.tools`: each is described in every prompt.
const TOOLS_MAX: usize = 64;
/// Most images of an episode's tools: a plan has room for all of them.
const IMAGES_MAX: f64 = 64.0;
/// The values of `environment.rows`, for messages.
const TAKES_ROWS: &str = "a JSONL or Parquet file, or hf:org/name/SUBSET/SPLIT";
/// Largest number of worker processes.
const WORKERS_MAX: f64 = 256.0;

pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(environment) = &run.environment else { return Ok(()) };
    let kind = Kind::parse(&environment.env).map_err(|found| {
        let placed = at.error(found.slug, "environment.env", &found.message);
        let placed = found.facts.into_iter().fold(placed, Error::fact);
        found.hints.into_iter().fold(placed, Error::hint)
    })?;
    limits(run, environment, at)?;
    tools(environment, &kind, at)?;
    rows(environment, at)?;
    agents_keys(environment, &kind, at)?;
    let missing = |key: &str| super::de::missing_key(&at.source, &super::Origin::Default, key);
    if kind.is_graded() && run.reward.is_empty() {
        return Err(
            missing("reward").fact("functions of no class give no reward: [[reward]] grades their episodes")
        );
    }
    if kind.has_no_first_messages() && run.data.prompt_tokens_max.is_none() {
        return Err(missing("data.prompt_tokens_max")
            .fact("the first message of an environment outside of plimsoll is not known before it runs"));
    }
    Ok(())
}

fn limits(run: &RunFile, environment: &Environment, at: &Provenance) -> Result<()> {
    if let Some(workers) = environment.num_workers.value() {
        in_range(f64::from(workers), 1.0, WORKERS_MAX, at, "environment.num_workers")?;
    }
    in_range(f64::from(environment.images_max), 0.0, IMAGES_MAX, at, "environment.images_max")?;
    let (turn, whole) = (run.rollout.max_new_tokens, environment.episode_tokens(run.rollout.max_new_tokens));
    match environment.episode_tokens_max {
        Some(most) if most < turn => {
            let message = format!(
                "environment.episode_tokens_max = {most} is less than one turn of rollout.max_new_tokens = {turn}"
            );
            Err(contradiction(at, "environment.episode_tokens_max", &message)
                .hint(format!("set environment.episode_tokens_max to at least {turn}, or remove it")))
        }
        _ => in_range(f64::from(whole), 1.0, f64::from(TOKENS_MAX), at, "environment.turns_max"),
    }
}

/// Requires files of rows.
fn rows(environment: &Environment, at: &Provenance) -> Result<()> {
    let files = [("environment.rows", &environment.rows), ("environment.eval_rows", &environment.eval_rows)];
    for (key, value) in files {
        if let Some(rows) = value.as_deref().filter(|rows| rows.is_empty() || rows.starts_with("builtin:")) {
            return Err(bad_value(at, key, format!("{rows:?}"), TAKES_ROWS));
        }
    }
    Ok(())
}

/// Checks the functions of no class that the model may call.
fn tools(environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    let missing = |key: &str| super::de::missing_key(&at.source, &super::Origin::Default, key);
    let key = "environment.tools";
    if kind.is_graded() && environment.tools.is_empty() {
        return Err(
            missing(key).hint("environment.tools = [\"python:FILE.py:FUNCTION\"], or [\"mcp:COMMAND\"]")
        );
    }
    if kind.is_graded() && environment.rows.as_deref().is_none_or(str::is_empty) {
        return Err(missing("environment.rows").fact("the prompt of each row begins an episode"));
    }
    if kind.plays_tasks() && environment.rows.is_none() {
        return Err(missing("environment.rows").fact("it is the folder with the tasks, each an episode"));
    }
    let mut names = BTreeSet::new();
    for place in &environment.tools {
        if let Some(server) = tool_server(place) {
            reached(server, environment, at)?;
            continue;
        }
        let Some(tool) = tool_function(place) else {
            return Err(bad_value(
                at,
                key,
                format!("{place:?}"),
                "\"python:FILE.py:FUNCTION\" for each function, and \"mcp:COMMAND\" or \"mcp:http://HOST:PORT/PATH\" for each server",
            ));
        };
        if !names.insert(tool.function.clone()) {
            let message =
                format!("two of `{key}` are called `{}`: a model could not tell them apart", tool.function);
            return Err(contradiction(at, key, &message).hint("rename one of the functions, or remove it"));
        }
    }
    if environment.tools.len() > TOOLS_MAX {
        let given = format!("{} functions and servers", environment.tools.len());
        Err(bad_value(at, key, given, &format!("at most {TOOLS_MAX}")))
    } else {
        Ok(())
    }
}

/// Requires that workers may reach a server of tools: one at an address needs the network.
fn reached(server: &str, environment: &Environment, at: &Provenance) -> Result<()> {
    let has_address = ["http://", "https://"].iter().any(|scheme| server.starts_with(scheme));
    if !has_address || environment.network == Network::Allow {
        return Ok(());
    }
    let message = "a server of `environment.tools` has an address, and workers have no network";
    Err(contradiction(at, "environment.tools", message).hint("set environment.network = \"allow\""))
}

/// Checks the numbers of agents that own their loop.
fn agents_keys(environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    if !kind.is_agents() {
        return Ok(());
    }
    let turns = f64::from(environment.turns_max);
    in_range(turns, 1.0, AGENT_TURNS_MAX, at, "environment.turns_max")?;
    in_range(f64::from(environment.branches_max), 1.0, turns, at, "environment.branches_max")?;
    match environment.command.first() {
        Some(program) if program.is_empty() => {
            Err(bad_value(at, "environment.command", "\"\"", "a program and its arguments"))
        }
        _ => Ok(()),
    }
}

impl Environment {
    /// Returns how the workers and programs of a text environment are run. `data`: how the run reads rows.
    pub fn host_settings(&self, data: &Data) -> Settings {
        Settings {
            tools: self.tools.iter().filter_map(|place| tool_function(place)).collect(),
            servers: self.tools.iter().filter_map(|place| tool_server(place)).map(String::from).collect(),
            rows: self.rows.as_ref().map(PathBuf::from),
            eval_rows: self.eval_rows.as_ref().map(PathBuf::from),
            tasks: ContainerTasks {
                folders: self.task_folders().map(PathBuf::from).collect(),
                engine: self.engine.clone(),
                memory: self.container_memory.0,
            },
            prompt_column: data.prompt_column.clone(),
            drops_answers: data.answered == AnsweredPrompts::DropTurn,
            ignored: data.ignore.clone(),
            action: self.action.clone().unwrap_or_else(|| "message".to_string()),
            observation: self.observation.clone(),
            reply: ReplyLimits::of(self.turn_tokens_max),
            images: None,
            python: self.python.clone(),
            num_workers: self.num_workers.value().unwrap_or(1),
            worker_memory: self.worker_memory.0,
            network: self.network.kind(),
            step_timeout: Duration::from_millis(self.step_timeout_ms),
            reset_timeout: Duration::from_millis(self.reset_timeout_ms),
        }
    }
}

impl RunSpec {
    pub fn episode_seed(&self) -> u64 {
        self.environment().and_then(|environment| environment.seed).unwrap_or(self.seed)
    }

    /// Returns the number of evaluation episodes: 0 without an environment, or if the run file asks for no evaluation.
    pub fn eval_episodes(&self) -> usize {
        if self.environment().is_some() && !self.eval_sets.is_empty() {
            self.eval.prompts_max.unwrap_or(EVAL_EPISODES) as usize
        } else {
            0
        }
    }
}
