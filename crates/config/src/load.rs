//! Reading run files: the layers of values, the defaults, and the checks.

use super::provenance::{FileKind, Provenance, Source};
use super::read::{provenance_of, read_text};
use super::schema::{all_keys, schema_properties};
use super::sections::{ModelOptions, RunFile, VerbFile};
use super::values::{Auto, ModelDtype, RunDevice};
use super::{Origin, agent, aliases, de, defaults, layers, lora, not_built, tree, validate, withheld};
use plimsoll_base::Result;
use std::path::{Path, PathBuf};

/// The kind of file, for messages about its keys.
const RUN_FILE: FileKind = FileKind { name: "a run file", keys: || all_keys(&json_schema()) };

/// Returns the JSON Schema of run files, made from the table of types.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(RunFile).to_value()
}

/// Returns every key of a run file, as `section.key`.
pub fn keys() -> Vec<String> {
    all_keys(&json_schema())
}

/// Returns the key of a run file whose last name is `word`, or that `word` shortens.
pub fn key_named(word: &str) -> Option<String> {
    de::elsewhere(word, &keys())
}

/// Returns the storage of the weights that a run file sets, or its default; none of a text that is no run file.
pub fn weights_of_text(text: &str) -> Option<ModelDtype> {
    #[derive(serde::Deserialize)]
    struct Part {
        #[serde(default)]
        model_options: ModelOptions,
    }
    toml::from_str::<Part>(text).ok().map(|part| part.model_options.dtype)
}

/// A run file with all its layers, checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values. What the method sets is filled in; `"auto"` is left to the planner.
    pub run: RunFile,
    /// The origin of each value.
    pub provenance: Provenance,
    pub source_text: String,
    /// Its path, as given.
    pub path: PathBuf,
    /// Messages for the user, one line each, for stderr.
    pub notes: Vec<String>,
}

/// The settings of `generate` and `eval` from flags and `--set`, checked.
#[derive(Clone, Debug)]
pub struct LoadedVerb {
    pub verb: VerbFile,
    pub provenance: Provenance,
    pub notes: Vec<String>,
}

/// One line of `plan --explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// For example `rollout.group_size`.
    pub key: String,
    /// The value as TOML.
    pub value: String,
    /// For example `runs/x.toml:12`.
    pub origin: String,
}

/// Reads the run file at `path`, then the environment, then `sets`.
///
/// Errors, all with exit code 2: `run-file-missing`, `run-file-unreadable`, `run-file-syntax`, `unknown-key`,
/// `duplicate-key`, `missing-key`, `bad-type`, `bad-value`, `bad-set`, `contradictory-keys`, `lora-unsupported`,
/// `not-built`, `secret-withheld`.
pub fn load(path: &Path, sets: &[String], env: impl Iterator<Item = (String, String)>) -> Result<Loaded> {
    load_text(read_text(path)?, path, sets, env)
}

/// Reads the text of a run file that will be written to `path`.
pub fn load_text(
    text: String,
    path: &Path,
    sets: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded> {
    let (run, provenance, mut notes) = filled(text, path, sets, env)?;
    not_built::check(&run, &provenance)?;
    validate::run_file(&run, &provenance)?;
    let ages =
        run.asynchrony.reuse > 0 || run.asynchrony.partial_rollouts > 0 || run.asynchrony.staleness > 0;
    if run.loss.correction.is_some() && !ages {
        let words = "`loss.correction` changes nothing: with async.reuse = 0 the policy that samples is the one that is trained, and every weight is exactly 1";
        notes.push(words.into());
    }
    notes.extend(lora::notes(&run));
    notes.extend(idle_on_cpu(&run));
    let source_text = provenance.source.text.clone();
    Ok(Loaded { run, provenance, source_text, path: path.to_path_buf(), notes })
}

/// Reads the layers of a run file and fills in what follows from other values. Nothing is refused yet but what is no
/// run file.
pub(super) fn filled(
    text: String,
    path: &Path,
    sets: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<(RunFile, Provenance, Vec<String>)> {
    let source = Source { path: path.display().to_string(), text, kind: &RUN_FILE };
    let mut seen = aliases::Seen::default();
    let mut root = tree::parse_file(&source)?;
    aliases::rename(&mut root, &source, &mut seen)?;
    layers::add_environment(&mut root, env, |_| true, &source, &mut seen)?;
    layers::add_sets(&mut root, sets, &source, &mut seen)?;
    aliases::finish(&mut root, &source, &mut seen)?;
    lora::settle(&mut root, &source)?;
    let mut run: RunFile = de::read(&root, &source)?;
    let mut provenance = provenance_of(&root, source);
    if run.run.dir.is_none() {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        run.run.dir = Some(format!("runs/out/{stem}"));
    }
    withheld::check(&provenance, |see| run.visit(&mut |key, value| see(key, value)))?;
    defaults::fill(&mut run, &mut provenance);
    agent::fill(&mut run, &mut provenance);
    lora::fill(&mut run, &mut provenance);
    Ok((run, provenance, seen.notes))
}

/// Returns a note for each key of a card that is set where `run.device` asks for the CPU.
fn idle_on_cpu(run: &RunFile) -> impl Iterator<Item = String> {
    let on_cpu = run.run.device == Auto::Value(RunDevice::Cpu);
    let set = [("run.checked", run.run.checked), ("memory.device", run.memory.device != Auto::Auto)];
    let idle = set.into_iter().filter(move |(_, is_set)| on_cpu && *is_set);
    idle.map(|(key, _)| format!("`{key}` changes nothing: run.device = \"cpu\""))
}

/// Keys of `[data]` that say how the model of a run reads a row: with others it gets other tokens than in training.
const ROWS_OF_RUN: [&str; 12] = [
    "prompt_column",
    "answer_column",
    "chat_template",
    "template_args",
    "system_prompt",
    "answered",
    "ignore",
    "add_special_tokens",
    "images",
    "image_folder",
    "image_pixels_min",
    "image_pixels_max",
];

/// Returns what the run file at `path` says of how its model reads a row.
fn rows_of_run(path: &Path) -> Result<(tree::Table, Source)> {
    let source = Source { path: path.display().to_string(), text: read_text(path)?, kind: &RUN_FILE };
    let mut root = tree::parse_file(&source)?;
    root.0.retain(|(section, _)| section == "data");
    if let Some(tree::Value::Table(data)) = root.get_mut("data").map(|data| &mut data.value) {
        data.0.retain(|(key, _)| ROWS_OF_RUN.contains(&key.as_str()));
    }
    Ok((root, source))
}

/// Reads `defaults` (key, TOML value), how the model of the run file `of` reads a row, the environment and `sets`, into
/// the sections that need no training.
pub fn load_verb(
    defaults: &[(&str, &str)],
    of: Option<&Path>,
    sets: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<LoadedVerb> {
    let alone = || Ok((tree::Table::default(), Source { kind: &RUN_FILE, ..Source::default() }));
    let (mut root, source) = of.map_or_else(alone, rows_of_run)?;
    let mut seen = aliases::Seen::default();
    for (key, value) in defaults {
        let node = tree::parse_value(value, &Origin::Default);
        tree::set_path(&mut root, &key.split('.').collect::<Vec<_>>(), node, &source)?;
    }
    // Other variables may be meant for `train`; only known keys are read.
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
    let prompt = verb.data.system_prompt.clone().map(toml::Value::String);
    withheld::check(&provenance, |see| prompt.iter().for_each(|text| see("data.system_prompt", text)))?;
    validate::verb_file(&verb, &provenance)?;
    Ok(LoadedVerb { verb, provenance, notes: seen.notes })
}

/// Keys of `rollout` that say what a step of training samples.
const OF_STEPS: [&str; 2] = ["prompts_per_step", "group_size"];

impl LoadedVerb {
    /// Refuses what a `--set` asks of a step of training, which the command has none of. A run file may have it.
    ///
    /// Errors: `unknown-key`.
    pub fn check_sets(&self) -> Result<()> {
        let keys = OF_STEPS.map(|name| format!("rollout.{name}"));
        let mut set = keys.iter().filter(|key| matches!(self.provenance.of(key), Origin::Set { .. }));
        set.next().map_or(Ok(()), |key| {
            let message = format!("`{key}` is of a step of training, and this command has none");
            let hint = "leave it out; `eval.samples` is how many responses `eval` draws to a prompt";
            Err(self.provenance.error("unknown-key", key, &message).hint(hint))
        })
    }
}

impl Loaded {
    /// Returns every key with its value and its origin, in the order of the table.
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        self.run.visit(&mut |key, value| {
            let origin = self.provenance.describe(key);
            settings.push(Setting { key: key.to_string(), value: value.to_string(), origin });
        });
        settings
    }
}
