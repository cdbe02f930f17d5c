//! Run files: the table of keys, how its layers are read, and what is refused before anything is opened.
//!
//! file < environment `PLIMSOLL__SECTION__KEY` < `--set section.key=value`. Every leaf remembers where it came from.
//! This module opens the run file and nothing else: models, data and directories are other people's business.

mod agent;
mod aliases;
mod de;
mod defaults;
mod env_file;
mod environment;
mod eval_metric;
mod layers;
mod model_reward;
mod not_built;
mod objective;
mod pairs;
mod provenance;
mod rewards;
mod schedule;
mod sections;
mod sources;
mod tree;
mod validate;
mod values;

use plimsoll_base::{Error, Result};
use provenance::Source;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use agent::is_python_env;
pub use env_file::{
    AbortedEpisode, CollectMode, CollectRun, EnvFile, Explore, FramesFormat, LoadedEnv, PolicyActivation,
    PolicyKind, PolicySection, ReplaySection, Reseed, WorkerGpu, env_json_schema, is_env_file, load_env,
};
pub use eval_metric::{EvalMetric, EvalNumber};
pub use not_built::error as not_built;
pub use objective::{KlTerm, Objective};
pub use plimsoll_algo::method::Method;
pub use provenance::{Origin, Provenance};
pub use rewards::reward_specs;
pub use sections::{
    Checkpoint, Critic, Data, Environment, Eval, Loss, Memory, ModelOptions, Reward, Rollout, Run, RunFile,
    Train, VerbFile,
};
pub use sources::no_rows_to_filter;
pub use sources::{DataSet, DataSets};
pub use values::{
    Auto, ByteSize, Credit, Curriculum, DynamicSampling, Expecting, KlIn, LossType, ModelDtype, Network,
    Offload, OnFull, OptimizerDtype, Overlong, Recompute, RewardFailure, RunDevice, Schedule, Signature,
};

/// What the name of a small actor-critic begins with.
pub const MLP: &str = "mlp:";
/// Longest run file; a larger one is some other file.
const RUN_FILE_BYTES_MAX: u64 = 1 << 20;

/// A run file with all its layers, checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values. What the method sets is filled in; `"auto"` is the planner's.
    pub run: RunFile,
    /// Where each came from.
    pub provenance: Provenance,
    /// The run file as it was read.
    pub source_text: String,
    /// Its path, as given.
    pub path: PathBuf,
    /// What the user should know, one line each, for stderr.
    pub notes: Vec<String>,
}

/// What `generate` and `eval` read from flags and `--set`, checked.
#[derive(Clone, Debug)]
pub struct LoadedVerb {
    /// The values.
    pub verb: VerbFile,
    /// Where each came from.
    pub provenance: Provenance,
    /// What the user should know, one line each, for stderr.
    pub notes: Vec<String>,
}

/// One line of `plan --explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// For example `rollout.group_size`.
    pub key: String,
    /// Its value as TOML.
    pub value: String,
    /// For example `runs/x.toml:12`.
    pub origin: String,
}

/// Reads the run file at `path`, then the environment, then `sets`.
///
/// Errors, all with exit code 2: `run-file-missing`, `run-file-unreadable`, `run-file-syntax`, `unknown-key`,
/// `duplicate-key`, `missing-key`, `bad-type`, `bad-value`, `bad-set`, `contradictory-keys`, `not-built`.
pub fn load(path: &Path, sets: &[String], env: impl Iterator<Item = (String, String)>) -> Result<Loaded> {
    let source = Source { path: path.display().to_string(), text: read_text(path)?, of_env: false };
    let mut seen = aliases::Seen::default();
    let mut root = tree::parse_file(&source)?;
    aliases::rename(&mut root, &source, &mut seen)?;
    layers::add_environment(&mut root, env, |_| true, &source, &mut seen)?;
    layers::add_sets(&mut root, sets, &source, &mut seen)?;
    aliases::finish(&mut root, &source, &mut seen)?;
    let mut run: RunFile = de::read(&root, &source)?;
    let mut provenance = provenance_of(&root, source);
    if run.run.dir.is_none() {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        run.run.dir = Some(format!("runs/out/{stem}"));
    }
    defaults::fill(&mut run, &mut provenance);
    agent::fill(&mut run, &mut provenance);
    not_built::check(&run, &provenance)?;
    validate::run_file(&run, &provenance)?;
    if run.loss.correction.is_some() && run.rollout.policy_lag == 0 {
        let words = "`loss.correction` changes nothing: with rollout.policy_lag = 0 the policy that samples is the one that is trained, and every weight is exactly 1";
        seen.notes.push(words.into());
    }
    let source_text = provenance.source.text.clone();
    Ok(Loaded { run, provenance, source_text, path: path.to_path_buf(), notes: seen.notes })
}

/// Reads `defaults` (key, TOML value), then the environment, then `sets`, into the sections that need no training.
pub fn load_verb(
    defaults: &[(&str, &str)],
    sets: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<LoadedVerb> {
    let source = Source::default();
    let mut seen = aliases::Seen::default();
    let mut root = tree::Table::default();
    for (key, value) in defaults {
        let node = tree::parse_value(value, &Origin::Default);
        tree::set_path(&mut root, &key.split('.').collect::<Vec<_>>(), node, &source)?;
    }
    // The environment may be meant for `train`; a verb takes what it knows of it.
    let verb_keys = schema_properties(&schemars::schema_for!(VerbFile).to_value());
    layers::add_environment(
        &mut root,
        env,
        |top| verb_keys.iter().any(|key| key == top),
        &source,
        &mut seen,
    )?;
    layers::add_sets(&mut root, sets, &source, &mut seen)?;
    aliases::finish(&mut root, &source, &mut seen)?;
    let verb: VerbFile = de::read(&root, &source)?;
    let provenance = provenance_of(&root, source);
    validate::verb_file(&verb, &provenance)?;
    Ok(LoadedVerb { verb, provenance, notes: seen.notes })
}

/// The JSON Schema of run files, made from the table of types.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(RunFile).to_value()
}

impl RunFile {
    /// The run file as TOML, every default written out.
    pub fn to_toml(&self) -> String {
        let form = "every value of a run file has a form in TOML";
        let mut table = toml::Table::try_from(self).expect(form);
        if let (true, Some(toml::Value::Table(section))) = (self.is_agent(), table.get_mut("environment")) {
            let has_workers = section.get("env").and_then(|env| env.as_str()).is_some_and(is_python_env);
            let is_other = |key: &str| {
                Environment::OF_TEXT.contains(&key)
                    || (!has_workers && Environment::OF_WORKERS.contains(&key))
            };
            section.retain(|key, _| !is_other(key));
        }
        toml::to_string(&table).expect(form)
    }

    /// Sequences of one step: prompts x samples, both halves of pairs, or examples.
    pub fn sequences_per_step(&self) -> u64 {
        let group_size = match self.method {
            method if method.has_rollout() => self.rollout.group_size,
            method if method.has_pairs() => 2,
            _ => 1,
        };
        u64::from(self.rollout.prompts_per_step) * u64::from(group_size)
    }

    /// True if a small network is trained in environments, and no language model.
    pub fn is_agent(&self) -> bool {
        self.environment.is_some() && self.model.starts_with(MLP)
    }

    /// Most tokens of a response: those of one turn, or of an episode behind its prompt.
    pub fn response_tokens_max(&self) -> usize {
        let one = self.rollout.max_new_tokens;
        self.environment.as_ref().map_or(one, |environment| environment.episode_tokens(one)) as usize
    }

    /// Most turns of a response.
    pub fn turns_max(&self) -> usize {
        self.environment.as_ref().map_or(1, |environment| environment.turns_max.max(1) as usize)
    }

    /// Prompts of a rollout, which serves `rollout.policy_lag` steps beside the one that samples it.
    pub fn prompts_per_rollout(&self) -> u64 {
        u64::from(self.rollout.prompts_per_step) * (1 + u64::from(self.rollout.policy_lag))
    }

    /// True if what a rollout kept outlives it in a buffer of its own: its samples wait for later steps, or for further rounds.
    pub fn holds_samples(&self) -> bool {
        let filters = !matches!(self.loss.dynamic_sampling, None | Some(DynamicSampling::Off));
        self.method.has_rollout() && (filters || self.rollout.policy_lag > 0)
    }

    /// True if a critic is trained beside the actor.
    pub fn has_critic(&self) -> bool {
        self.method == Method::Ppo
    }

    /// The reward model among the rewards, if there is one.
    pub fn model_reward(&self) -> Option<&Reward> {
        self.reward.iter().find(|reward| reward.is_model())
    }

    /// True if the weights that the run began with are kept beside those that it trains.
    pub fn has_reference(&self) -> bool {
        self.method == Method::Dpo || (self.loss.kl_coef != 0.0 && self.method.has_rollout())
    }
}

impl Loaded {
    /// Every key with its value and its origin, in the order of the table.
    pub fn settings(&self) -> Vec<Setting> {
        let root = toml::Value::try_from(&self.run).expect("every value of a run file has a form in TOML");
        let mut settings = Vec::new();
        flatten("", &root, &mut |key, value| {
            let origin = self.provenance.describe(key);
            settings.push(Setting { key: key.to_string(), value: value.to_string(), origin });
        });
        settings
    }
}

fn flatten(path: &str, value: &toml::Value, visit: &mut impl FnMut(&str, &toml::Value)) {
    let join = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| flatten(&join(key), value, visit)),
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| flatten(&join(&index.to_string()), item, visit));
        }
        _ => visit(path, value),
    }
}

fn provenance_of(root: &tree::Table, source: Source) -> Provenance {
    let mut provenance = Provenance { source, ..Provenance::default() };
    for (key, node) in &root.0 {
        // Sections are kept too: `[critic]` is pointed at as a whole.
        provenance.origins.insert(key.clone(), node.origin.clone());
    }
    root.leaves("", &mut |path, node| {
        provenance.origins.insert(path.to_string(), node.origin.clone());
    });
    provenance
}

fn read_text(path: &Path) -> Result<String> {
    let unreadable = |err: &std::io::Error| {
        Error::usage("run-file-unreadable", format!("{}: {err}", path.display()))
            .hint("give the path of a readable TOML file")
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Err(missing_file(path)),
        Err(err) => return Err(unreadable(&err)),
    };
    let mut bytes = Vec::new();
    file.take(RUN_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|err| unreadable(&err))?;
    if bytes.len() as u64 > RUN_FILE_BYTES_MAX {
        return Err(Error::usage("run-file-unreadable", format!("{} is larger than 1 MiB", path.display()))
            .hint("give a run file, not a data or model file"));
    }
    String::from_utf8(bytes).map_err(|err| {
        let message =
            format!("{} is not UTF-8 text: byte {}", path.display(), err.utf8_error().valid_up_to());
        Error::usage("run-file-syntax", message).hint("run files are TOML in UTF-8")
    })
}

fn missing_file(path: &Path) -> Error {
    let error = Error::usage("run-file-missing", format!("there is no file {}", path.display()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wanted = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    match de::nearest(&wanted, names.iter().map(String::as_str)) {
        Some(name) => error.hint(format!("did you mean {}?", folder.join(name).display())),
        None => error.hint("give the path of a run file, for example runs/first.toml"),
    }
}

/// Every key of the table as `section.key`, from the schema of run files or of environment files.
fn all_keys(of_env: bool) -> Vec<String> {
    let schema = if of_env { env_json_schema() } else { json_schema() };
    let mut keys = Vec::new();
    for (section, property) in schema["properties"].as_object().into_iter().flatten() {
        let text = property.to_string();
        let definition = schema["$defs"]
            .as_object()
            .into_iter()
            .flatten()
            .find(|(name, _)| text.contains(&format!("\"#/$defs/{name}\"")));
        match definition.map(|(_, definition)| schema_properties(definition)) {
            Some(names) if !names.is_empty() => {
                keys.extend(names.iter().map(|name| format!("{section}.{name}")))
            }
            _ => keys.push(section.clone()),
        }
    }
    keys
}

fn schema_properties(schema: &serde_json::Value) -> Vec<String> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests;
