//! Checks of `[environment]`, alone and together with the other sections.

use super::key::Player;
use super::limits::{TOKENS_MAX, bad_value, contradiction, in_range};
use super::provenance::Provenance;
use super::sections::{Data, Environment, Reward, RunFile};
use super::values::{AnsweredPrompts, Credit, DynamicSampling, Network, Overlong};
use crate::RunSpec;
use plimsoll_algo::{advantage::Advantage, method::LearnsFrom};
use plimsoll_base::{Error, Result};
use plimsoll_textenv::{EpisodesOf, HTTP_AGENT, Kind, ReplyLimits, Settings, TOOLS, tool_function};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Number of evaluation episodes if `eval.prompts_max` is absent.
const EVAL_EPISODES: u32 = 256;
/// Most responses of an agent's episode: each draws its own random numbers.
const AGENT_TURNS_MAX: f64 = 63.0;
/// Most functions of `environment.tools`: each is described in every prompt.
const TOOLS_MAX: usize = 64;
/// What the keys of tools are for.
const OF_TOOLS: &str = "it belongs to env = \"python:FILE.py:CLASS\" or \"tools\"";
/// What `environment.rows` takes.
const TAKES_ROWS: &str = "a JSONL or Parquet file, or hf:org/name/SUBSET/SPLIT";
/// Largest number of worker processes.
const WORKERS_MAX: f64 = 256.0;

pub(super) fn check(run: &RunFile, at: &Provenance) -> Result<()> {
    let Some(environment) = &run.environment else { return Ok(()) };
    if run.method.needs().learns_from != LearnsFrom::Samples {
        let message = format!("[environment] is set, but method `{}` samples nothing", run.method);
        return Err(contradiction(at, "environment.env", &message)
            .hint("set method = \"grpo\", or remove [environment]"));
    }
    let kind = Kind::parse(&environment.env).map_err(|found| {
        let placed = at.error(found.slug, "environment.env", &found.message);
        let placed = found.facts.into_iter().fold(placed, Error::fact);
        found.hints.into_iter().fold(placed, Error::hint)
    })?;
    let mut native = Environment::keys_of(Player::Native).map(|key| format!("environment.{key}"));
    if let Some(key) = native.find(|key| at.origins.contains_key(key)) {
        let message =
            format!("`{key}` is set, but it belongs to native environments, which a small network acts in");
        return Err(
            contradiction(at, &key, &message).hint(format!("remove {key}, or set model = \"mlp:64x64\""))
        );
    }
    limits(run, environment, at)?;
    own_keys(environment, &kind, at)?;
    other_sections(run, environment, &kind, at)
}

fn limits(run: &RunFile, environment: &Environment, at: &Provenance) -> Result<()> {
    if let Some(workers) = environment.num_workers.value() {
        in_range(f64::from(workers), 1.0, WORKERS_MAX, at, "environment.num_workers")?;
    }
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

/// Refuses keys of one form of environment in another.
fn own_keys(environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    let refuse = |key: &str, why: &str, hint: &str| {
        Err(contradiction(at, key, &format!("`{key}` is set, but {why}")).hint(hint.to_string()))
    };
    agents_keys(environment, kind, at)?;
    let served = matches!(kind, Kind::Python(EpisodesOf::OpenEnv { .. }));
    let of_server =
        [("environment.action", &environment.action), ("environment.observation", &environment.observation)];
    if let Some((key, _)) = of_server.iter().find(|(_, value)| value.is_some() && !served) {
        return refuse(key, "it belongs to env = \"openenv:URL\"", &format!("remove {key}"));
    }
    tools(environment, kind, at)?;
    let has_tools = matches!(kind, Kind::Python(EpisodesOf::Class { .. } | EpisodesOf::Functions));
    let of_class =
        [("environment.rows", &environment.rows), ("environment.eval_rows", &environment.eval_rows)];
    if let Some((key, _)) = of_class.iter().find(|(_, value)| value.is_some() && !has_tools) {
        return refuse(key, OF_TOOLS, &format!("remove {key}"));
    }
    for (key, value) in of_class {
        if let Some(rows) = value.as_deref().filter(|rows| rows.is_empty() || rows.starts_with("builtin:")) {
            return Err(bad_value(at, key, format!("{rows:?}"), TAKES_ROWS));
        }
    }
    if environment.eval_rows.is_some() && environment.rows.is_none() {
        return refuse("environment.eval_rows", "environment.rows is absent", "set environment.rows too");
    }
    if served && environment.network == Network::Deny {
        let message = "a client of a server needs the network, and environment.network = \"deny\"";
        return Err(contradiction(at, "environment.env", message).hint("set environment.network = \"allow\""));
    }
    Ok(())
}

/// Checks the functions of no class that the model may call.
fn tools(environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    let missing = |key: &str| super::de::missing_key(&at.source, &super::Origin::Default, key);
    let key = "environment.tools";
    if !matches!(kind, Kind::Python(EpisodesOf::Class { .. } | EpisodesOf::Functions)) {
        return match environment.tools.is_empty() {
            true => Ok(()),
            false => Err(contradiction(at, key, &format!("`{key}` is set, but {OF_TOOLS}"))
                .hint(format!("remove {key}, or set env = \"{TOOLS}\""))),
        };
    }
    if kind.is_graded() && environment.tools.is_empty() {
        return Err(missing(key).hint("environment.tools = [\"python:FILE.py:FUNCTION\"]"));
    }
    if kind.is_graded() && environment.rows.as_deref().is_none_or(str::is_empty) {
        return Err(missing("environment.rows").fact("the prompt of each row begins an episode"));
    }
    let mut names = BTreeSet::new();
    for place in &environment.tools {
        let Some(tool) = tool_function(place) else {
            return Err(bad_value(
                at,
                key,
                format!("{place:?}"),
                "\"python:FILE.py:FUNCTION\" for each function",
            ));
        };
        if !names.insert(tool.function.clone()) {
            let message =
                format!("two of `{key}` are called `{}`: a model could not tell them apart", tool.function);
            return Err(contradiction(at, key, &message).hint("rename one of the functions, or remove it"));
        }
    }
    match names.len() > TOOLS_MAX {
        true => {
            Err(bad_value(at, key, format!("{} functions", names.len()), &format!("at most {TOOLS_MAX}")))
        }
        false => Ok(()),
    }
}

/// Checks the keys of agents that own their loop, and refuses them elsewhere.
fn agents_keys(environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    let is_set = |key: &str| at.origins.contains_key(key);
    if !kind.is_agents() {
        let keys = ["environment.command", "environment.port", "environment.branches_max"];
        return match keys.into_iter().find(|key| is_set(key)) {
            None => Ok(()),
            Some(key) => {
                let message = format!("`{key}` is set, but it belongs to env = \"{HTTP_AGENT}\"");
                Err(contradiction(at, key, &message).hint(format!("remove {key}")))
            }
        };
    }
    let turns = f64::from(environment.turns_max);
    in_range(turns, 1.0, AGENT_TURNS_MAX, at, "environment.turns_max")?;
    in_range(f64::from(environment.branches_max), 1.0, turns, at, "environment.branches_max")?;
    if environment.credit != Credit::Episode {
        let message = format!(
            "environment.credit = \"{}\", but an agent reports one reward for its episode",
            environment.credit
        );
        return Err(contradiction(at, "environment.credit", &message).hint("remove environment.credit"));
    }
    if !environment.command.is_empty() && environment.network == Network::Deny {
        let message = "an agent reaches the model over the network, and environment.network = \"deny\"";
        return Err(
            contradiction(at, "environment.command", message).hint("set environment.network = \"allow\"")
        );
    }
    match environment.command.first() {
        Some(program) if program.is_empty() => {
            Err(bad_value(at, "environment.command", "\"\"", "a program and its arguments"))
        }
        _ => Ok(()),
    }
}

/// Refuses keys of other sections that have no effect with an environment.
fn other_sections(run: &RunFile, environment: &Environment, kind: &Kind, at: &Provenance) -> Result<()> {
    let refuse = |key: &str, why: &str| {
        Err(contradiction(at, key, &format!("`{key}` is set together with [environment], {why}"))
            .hint(format!("remove {key}, or remove [environment]")))
    };
    if run.data.prompts.is_some() {
        return refuse("data.prompts", "whose episodes have their own prompts");
    }
    if run.data.eval.is_some() && !run.data.asks_no_eval() {
        return refuse("data.eval", "which is evaluated on its own seeds");
    }
    graded(run, kind, at)?;
    if run.loss.overlong_buffer.is_some() {
        return refuse("loss.overlong_buffer", "whose episodes are longer than one response");
    }
    let filters = run.loss.dynamic_sampling.and_then(DynamicSampling::filter).is_some();
    if filters || run.rollout.policy_lag > 0 {
        let key = if run.rollout.policy_lag > 0 { "rollout.policy_lag" } else { "loss.dynamic_sampling" };
        return refuse(key, "whose episodes are played for the step that trains on them");
    }
    if run.data.answered == AnsweredPrompts::Continue {
        return refuse("data.answered", "where \"continue\" has no turn of its own to go on with");
    }
    if run.data.overlong == Overlong::Drop {
        return refuse("data.overlong", "where \"drop\" would change the set of episodes");
    }
    let advantage = run.loss.baseline();
    if advantage == Advantage::OptimalToken {
        let message = "advantage `optimal_token` with an [environment], whose episodes have no common tokens to be compared at";
        return Err(
            contradiction(at, "loss.advantage", message).hint("set method = \"grpo\" or \"reinforce\"")
        );
    }
    if advantage == Advantage::Greedy {
        let message = "advantage `greedy` with an [environment], whose episodes have no greedy answer to be compared with";
        return Err(
            contradiction(at, "loss.advantage", message).hint("set method = \"grpo\" or \"reinforce\"")
        );
    }
    super::credit::check(run, environment, at)?;
    if kind.has_no_first_messages() && run.data.prompt_tokens_max.is_none() {
        let missing = super::de::missing_key(&at.source, &super::Origin::Default, "data.prompt_tokens_max");
        return Err(missing
            .fact("the first message of an environment outside of plimsoll is not known before it runs"));
    }
    Ok(())
}

/// Requires rewards where an environment gives none itself, and refuses them elsewhere.
fn graded(run: &RunFile, kind: &Kind, at: &Provenance) -> Result<()> {
    if !kind.is_graded() {
        return match run.reward.is_empty() {
            true => Ok(()),
            false => Err(contradiction(
                at,
                "reward",
                "`reward` is set together with [environment], which gives the reward itself",
            )
            .hint("remove reward, or remove [environment]")),
        };
    }
    let missing = |key: &str| super::de::missing_key(&at.source, &super::Origin::Default, key);
    if run.reward.is_empty() {
        return Err(
            missing("reward").fact("functions of no class give no reward: [[reward]] grades their episodes")
        );
    }
    match run.reward.iter().position(Reward::is_model) {
        Some(index) => {
            let message = "kind = \"model\" is set together with environment.env = \"tools\", whose episodes a reward model cannot read";
            Err(contradiction(at, &format!("reward.{index}.kind"), message)
                .hint("let a function or a verifier grade them"))
        }
        None => Ok(()),
    }
}

impl Environment {
    /// Returns how the workers and programs of a text environment are run. `data`: how the run reads rows.
    pub fn host_settings(&self, data: &Data) -> Settings {
        Settings {
            tools: self.tools.iter().filter_map(|place| tool_function(place)).collect(),
            rows: self.rows.as_ref().map(PathBuf::from),
            eval_rows: self.eval_rows.as_ref().map(PathBuf::from),
            prompt_column: data.prompt_column.clone(),
            drops_answers: data.answered == AnsweredPrompts::DropTurn,
            ignored: data.ignore.clone(),
            action: self.action.clone().unwrap_or_else(|| "message".to_string()),
            observation: self.observation.clone(),
            reply: ReplyLimits::of(self.turn_tokens_max),
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
        self.environment.as_ref().and_then(|environment| environment.seed).unwrap_or(self.seed)
    }

    /// Returns the number of evaluation episodes: 0 without an environment, or if the run file asks for no evaluation.
    pub fn eval_episodes(&self) -> usize {
        match self.environment.is_some() && !self.eval_sets.is_empty() {
            true => self.eval.prompts_max.unwrap_or(EVAL_EPISODES) as usize,
            false => 0,
        }
    }
}
