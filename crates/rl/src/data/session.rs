//! Opening what a run file names: model headers, tokenizer, data. The plan and the run open the same things, the plan
//! only those that it needs.

use crate::data::dataset::{Dataset, Rows, TextModel};
use crate::data::pairs;
use crate::episodes;
use crate::eval::EvalSet;
use plimsoll_base::{Bytes, Error, ModelSpec, PLAN_ONLY, Result};
use plimsoll_config::{Data, DataSet, DataSets, Method, ModelOptions, RunFile};
use plimsoll_files::{Head, OpenModel, TokenizerFiles};
use plimsoll_memory::Limits;
use plimsoll_plan::{
    Facts, HostFacts, PlanReport, SmallestLimits, check_micro_batch, disk_facts, image_bytes, rows_kept,
    staging_bytes, tokenizer_bytes,
};
use plimsoll_text::{ChatTemplate, Tokenizer, file_size};
use plimsoll_textenv::Kind;
use std::path::Path;

/// Host bytes of a data file's rows for each byte of them as JSON: text and tokens, measured on GSM8K.
const DATA_BYTES_PER_FILE_BYTE: u64 = 3;
/// The same for each object of a row: a table has room for four entries at least, and the row itself its lengths.
const DATA_BYTES_PER_OBJECT: u64 = 576;
/// The same for each entry of an object: its place in the table, and what its key takes alone.
const DATA_BYTES_PER_ENTRY: u64 = 128;
/// What `critic.model` says for a copy of the actor.
const CRITIC_OF_ACTOR: &str = "actor";
/// What a training run works on.
pub struct Session {
    /// The model's files.
    pub model: OpenModel,
    /// What the critic starts from, where that is not the model itself.
    pub critic: Option<OpenModel>,
    /// The reward model, if there is one among the rewards.
    pub reward: Option<OpenModel>,
    /// Its text side.
    pub text: TextModel,
    /// Training data.
    pub data: Dataset,
    /// What is evaluated; empty without an evaluation.
    pub eval: Vec<EvalSet>,
    /// What the plan needs to know of them.
    pub facts: Facts,
}

impl Session {
    /// Opens everything that `run` names.
    pub fn open(run: &RunFile, allow_download: bool) -> Result<Session> {
        Session::of_model(run, trained_model(run, &run.model, &run.model_options, allow_download)?)
    }

    /// The same for a run that goes on from `checkpoint`, which holds all of the model but the weights of a reference:
    /// where `model` cannot be opened any more, and no reference is read from it, the checkpoint's model is opened.
    ///
    /// Errors: those of `open`.
    pub fn open_again(run: &RunFile, checkpoint: &Path, say: &mut dyn FnMut(String)) -> Result<Session> {
        let error = match trained_model(run, &run.model, &run.model_options, true) {
            Ok(model) => return Session::of_model(run, model),
            Err(error) => error,
        };
        if run.has_reference() {
            let why = match run.method.has_pairs() {
                true => format!("method `{}`", run.method),
                false => format!("loss.kl_coef = {}", run.loss.kl_coef),
            };
            return Err(error
                .fact(format!("missing are the weights of the reference model ({why})"))
                .fact(format!("everything else is in {}", checkpoint.display()))
                .hint("put the model back as it was, and resume again"));
        }
        say(format!("{}; weights, configuration and tokenizer are the checkpoint's", error.message));
        let tokenizer = run.model_options.tokenizer.clone().filter(|name| name == "bytes");
        let options = ModelOptions { tokenizer, revision: None, ..run.model_options.clone() };
        let mut model = trained_model(run, &checkpoint.display().to_string(), &options, false)?;
        // Later checkpoints name what the run began with, as earlier ones did.
        model.source = run.model.clone();
        Session::of_model(run, model)
    }

    fn of_model(run: &RunFile, model: OpenModel) -> Result<Session> {
        let text = text_model(&model, &run.data)?;
        let critic = critic_model(run, &model, true)?;
        let reward = reward_model(run, &model, true)?;
        let data = match run.environment {
            Some(_) => Dataset::none(episodes::first_prompt_tokens(run, &text)?),
            None => Dataset::open(prompts_of(run)?, &run.data, &text, Rows::of(run.method), run.seed)?,
        };
        let eval = match &run.environment {
            Some(_) => EvalSet::of_episodes(run.eval_sets()),
            None => EvalSet::open_all(
                run.eval_sets(),
                &run.data,
                &text,
                run.eval.prompts_max,
                run.method.has_pairs(),
            )?,
        };
        if run.method.has_pairs() {
            let held_out = eval.iter().map(|set| (set.name.as_str(), set.items.as_slice()));
            data.items()
                .chain(held_out)
                .try_for_each(|(name, items)| pairs::check_length(run, name, items))?;
        }
        let longest_eval = eval.iter().flat_map(|set| &set.items).map(|i| i.ids.len()).max().unwrap_or(0);
        // Sets are evaluated one after another.
        let largest_eval = eval.iter().map(|set| set.items.len()).max().unwrap_or(0);
        let largest_eval = largest_eval.max(run.eval_episodes());
        let (prompt_tokens, eval_prompts) =
            limits_of_data(run).unwrap_or((data.prompt_tokens.max(longest_eval), largest_eval));
        let facts = Facts {
            spec: model.spec,
            prompt_tokens,
            completion_tokens: data.completion_tokens.max(longest_answer(&eval)),
            eval_prompts: if run.method.has_pairs() && run.reward.is_empty() { 0 } else { eval_prompts },
            critic: critic_spec(run, &model, critic.as_ref()),
            reward: reward.as_ref().map(|model| model.spec),
            host: host_facts(run, [Some(&model), critic.as_ref(), reward.as_ref()])?,
        };
        Ok(Session { model, critic, reward, text, data, eval, facts })
    }

    /// The facts alone. With `data.prompt_tokens_max` and a method that samples, no text is tokenized.
    pub fn facts(run: &RunFile, allow_download: bool) -> Result<Facts> {
        let Some((prompt_tokens, eval_prompts)) = limits_of_data(run) else {
            return Session::open(run, allow_download).map(|session| session.facts);
        };
        let model = open_model(&run.model, &run.model_options, allow_download)?;
        let critic = critic_model(run, &model, allow_download)?;
        let reward = reward_model(run, &model, allow_download)?;
        check_environment(run)?;
        let sets = if run.environment.is_some() { &[] } else { prompts_of(run)?.sets() };
        let is_missing = |set: &&DataSet| !set.is_builtin() && !Path::new(&set.path).is_file();
        if let Some(set) = sets.iter().find(is_missing) {
            let message = format!("data.prompts: there is no file `{}`", set.path);
            return Err(Error::new("data-missing", message).hint(
                "set data.prompts to a JSONL or Parquet file or a built-in task, such as builtin:addition",
            ));
        }
        Ok(Facts {
            spec: model.spec,
            prompt_tokens,
            completion_tokens: 0,
            eval_prompts,
            critic: critic_spec(run, &model, critic.as_ref()),
            reward: reward.as_ref().map(|model| model.spec),
            host: host_facts(run, [Some(&model), critic.as_ref(), reward.as_ref()])?,
        })
    }
}

/// Longest prompt and number of evaluation prompts where the run file limits them: a run is then planned by the limits
/// and not by what the data happens to hold, so that its plan is the same with and without the data at hand.
fn limits_of_data(run: &RunFile) -> Option<(usize, usize)> {
    let prompt_tokens = run.data.prompt_tokens_max.filter(|_| run.method.has_rollout())?;
    let eval_prompts = match run.eval_sets().is_empty() {
        true => 0,
        false if run.environment.is_some() => run.eval_episodes(),
        false => run.eval.prompts_max.map_or(usize::MAX, |n| n as usize),
    };
    Some((prompt_tokens.max(1) as usize, eval_prompts))
}

/// Tokens of the longest answer of held-out pairs.
fn longest_answer(sets: &[EvalSet]) -> usize {
    sets.iter()
        .flat_map(|set| &set.items)
        .map(|i| i.completion.len().max(i.rejected.len()))
        .max()
        .unwrap_or(0)
}

/// Opens what a run trains: a reward model may go on from a reward model, everything else samples or predicts tokens.
fn trained_model(
    run: &RunFile,
    name: &str,
    options: &ModelOptions,
    allow_download: bool,
) -> Result<OpenModel> {
    match run.method {
        Method::RewardModel => open_any_model(name, options, allow_download),
        _ => open_model(name, options, allow_download),
    }
}

/// Opens a causal language model by the words of a run file.
///
/// Errors: those of opening; `model-unsupported` for a model for sequence classification.
pub fn open_model(name: &str, options: &ModelOptions, allow_download: bool) -> Result<OpenModel> {
    let model = open_any_model(name, options, allow_download);
    let is_score = match &model {
        Ok(model) => model.head == Head::Score,
        // What is wrong with its head does not matter here.
        Err(error) => error.slug.starts_with("reward-model-"),
    };
    if !is_score {
        return model;
    }
    let message =
        format!("{name} is a reward model (*ForSequenceClassification): it scores, it predicts no tokens");
    Err(Error::new("model-unsupported", message)
        .hint("set `model` to a causal language model")
        .hint("a reward model is named in [[reward]] with kind = \"model\""))
}

/// Opens a model with either kind of head.
fn open_any_model(name: &str, options: &ModelOptions, allow_download: bool) -> Result<OpenModel> {
    let mut model = OpenModel::open(name, options.revision.as_deref(), allow_download)?;
    match options.tokenizer.as_deref() {
        None => {}
        Some("bytes") => model.tokenizer = TokenizerFiles { bytes: true, ..TokenizerFiles::default() },
        Some(path) => {
            let path = Path::new(path);
            if path.is_dir() {
                // A model's folder says also which tokens end a text, and how a conversation is written.
                let other = OpenModel::open(&path.display().to_string(), None, false)?;
                model.tokenizer = other.tokenizer;
                model.eos_token_ids = other.eos_token_ids;
                (model.bos_token_id, model.pad_token_id) = (other.bos_token_id, other.pad_token_id);
            } else {
                let json = tokenizer_json(path)?;
                model.tokenizer = TokenizerFiles { tokenizer_json: Some(json), ..TokenizerFiles::default() };
            }
        }
    }
    if !model.random {
        plimsoll_files::check_against(&model)?;
    }
    check_head_dim(&model)?;
    Ok(model)
}

/// Opens what the critic starts from, where that is not the actor's own model, which must read the same tokens.
///
/// Errors: those of opening; `critic-tokenizer-mismatch`.
fn critic_model(run: &RunFile, actor: &OpenModel, allow_download: bool) -> Result<Option<OpenModel>> {
    let Some(section) = run.critic.as_ref().filter(|_| run.has_critic()) else { return Ok(None) };
    if section.model == CRITIC_OF_ACTOR || section.model == run.model {
        return Ok(None);
    }
    check_trainable(&section.model)?;
    // A tokenizer that the run file names is that of both.
    let options = ModelOptions { revision: None, ..run.model_options.clone() };
    let critic = open_any_model(&section.model, &options, allow_download)?;
    match other_tokens(actor, &critic)? {
        None => Ok(Some(critic)),
        Some(what) => {
            let message = format!("critic.model = \"{}\": {what}", section.model);
            Err(Error::new("critic-tokenizer-mismatch", message)
                .fact(format!("the actor is {}", run.model))
                .hint("set critic.model = \"actor\", or to another model of the actor's family"))
        }
    }
}

/// Opens the reward model that scores responses, if there is one: it must read the tokens that the actor samples.
///
/// Errors: those of opening; `reward-model-head-missing`, `reward-model-labels`, `reward-tokenizer-mismatch`.
fn reward_model(run: &RunFile, actor: &OpenModel, allow_download: bool) -> Result<Option<OpenModel>> {
    let Some(name) = run.model_reward().and_then(|reward| reward.model.as_deref()) else { return Ok(None) };
    // A tokenizer that the run file names is that of both.
    let options = ModelOptions { revision: None, ..run.model_options.clone() };
    let model = open_any_model(name, &options, allow_download)?;
    if model.head != Head::Score {
        let message = format!("{name} is a causal language model: it predicts tokens and gives no score");
        return Err(Error::new("reward-model-head-missing", message)
            .hint("train one with method = \"reward_model\", and name its checkpoint")
            .hint(
                "or name a model for sequence classification (*ForSequenceClassification) with one label",
            ));
    }
    match other_tokens(actor, &model)? {
        None => Ok(Some(model)),
        Some(what) => Err(Error::new("reward-tokenizer-mismatch", format!("reward model {name}: {what}"))
            .fact(format!("the actor is {}", run.model))
            .hint("train the reward model from a model of the actor's family")),
    }
}

/// How `other` reads other tokens than the actor samples, if it does.
fn other_tokens(actor: &OpenModel, other: &OpenModel) -> Result<Option<String>> {
    let (ours, theirs) = (actor.spec.vocab, other.spec.vocab);
    if theirs < ours {
        return Ok(Some(format!("its embedding has {theirs} rows, the actor may sample {ours} tokens")));
    }
    let same_bytes = |a: &TokenizerFiles, b: &TokenizerFiles| {
        (a.bytes && b.bytes) || (a.tokenizer_json.is_some() && a.tokenizer_json == b.tokenizer_json)
    };
    if other.random || same_bytes(&other.tokenizer, &actor.tokenizer) {
        return Ok(None); // Random weights have learnt no tokens.
    }
    let read = |model: &OpenModel| Tokenizer::from_files(&model.tokenizer, model.spec.vocab);
    let differs = read(actor)?.differs_from(&read(other)?);
    Ok(differs.map(|token| format!("its tokenizer is not the actor's: they differ in token `{token}`")))
}

/// The critic's shape.
fn critic_spec(run: &RunFile, model: &OpenModel, critic: Option<&OpenModel>) -> Option<ModelSpec> {
    run.has_critic().then(|| critic.map_or(model.spec, |critic| critic.spec))
}

/// The bytes of a `tokenizer.json`. Another thing than a file is not opened: a pipe would be waited for.
fn tokenizer_json(path: &Path) -> Result<Vec<u8>> {
    let is_other = std::fs::metadata(path).is_ok_and(|meta| !meta.is_file());
    let read = if is_other { Err(std::io::ErrorKind::InvalidInput.into()) } else { std::fs::read(path) };
    read.map_err(|err| {
        Error::io("tokenizer-missing", path, &err)
            .hint("set model_options.tokenizer to a tokenizer.json, a model's folder, or \"bytes\"")
    })
}

/// Plans a run for this machine, or for the limits given.
///
/// Errors: those of opening the model and the data; `size-overflow`; a run that does not fit is a report, not an error.
pub fn plan_run(run: &RunFile, limits: Option<Limits>) -> Result<PlanReport> {
    plimsoll_plan::plan_with(run, &planned_facts(run)?, &limits.unwrap_or_default())
}

/// Returns the smallest limits under which a run fits.
///
/// Errors: as `plan_run`.
pub fn smallest_limits(run: &RunFile) -> Result<SmallestLimits> {
    plimsoll_plan::smallest_limits(run, &planned_facts(run)?)
}

fn planned_facts(run: &RunFile) -> Result<Facts> {
    let facts = Session::facts(run, true)?;
    check_micro_batch(run, &facts)?;
    Ok(facts)
}

/// Refuses presets that are there to be planned.
///
/// Errors: `model-unsupported`.
pub fn check_trainable(model: &str) -> Result<()> {
    let preset = model.strip_prefix("random:").filter(|preset| PLAN_ONLY.contains(preset));
    match preset {
        None => Ok(()),
        Some(preset) => {
            Err(Error::new("model-unsupported", format!("{model}: `{preset}` is a shape for plans only"))
                .hint("plan it, or train another preset"))
        }
    }
}

fn check_head_dim(model: &OpenModel) -> Result<()> {
    let head_dim = model.spec.head_dim;
    if plimsoll_cpu::takes_head_dim(head_dim as usize) {
        return Ok(());
    }
    let message = format!("{}: head_dim = {head_dim}, built are multiples of 16 up to 256", model.source);
    Err(Error::new("model-unsupported", message)
        .hint("choose a model with heads of such a size, 64 and 128 are common"))
}

/// The text side of a model.
pub fn text_model(model: &OpenModel, data: &Data) -> Result<TextModel> {
    let tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab)?;
    let (template, apply_chat) = match data.chat_template.as_deref() {
        None => (ChatTemplate::from_files(&model.tokenizer)?, false),
        Some("none") => (None, false),
        Some(source) => (Some(ChatTemplate::new(source, &[])?), true),
    };
    let system_prompt = data.system_prompt.clone();
    Ok(TextModel {
        tokenizer,
        template,
        system_prompt,
        apply_chat,
        eos: model.eos_token_ids.first().copied(),
    })
}

/// Requires that a user's environment is there.
///
/// Errors: `text-environment-missing`.
fn check_environment(run: &RunFile) -> Result<()> {
    let Some(section) = &run.environment else { return Ok(()) };
    match Kind::parse(&section.env)? {
        Kind::Python { file, .. } if !file.is_file() => {
            let message = format!("`{}` is not a file", file.display());
            Err(Error::usage("text-environment-missing", message)
                .hint("write env = \"python:FILE.py:CLASS\" with a path from where the command runs"))
        }
        _ => Ok(()),
    }
}

fn prompts_of(run: &RunFile) -> Result<&DataSets> {
    run.data.prompts.as_ref().ok_or_else(|| {
        Error::usage("missing-key", "data.prompts is missing")
            .hint("set data.prompts to a JSONL file or a built-in task")
    })
}

/// `models`: the actor, and what else is read.
fn host_facts(run: &RunFile, models: [Option<&OpenModel>; 3]) -> Result<HostFacts> {
    let model = models[0].expect("every run has a model");
    let (mut rows, mut reading) = (0, 0);
    for path in run.data.files().filter(|path| Path::new(path).is_file()) {
        // Files are read one after another, and all rows stay.
        let size = file_size(Path::new(path))?;
        let tables = size.objects * DATA_BYTES_PER_OBJECT + size.entries * DATA_BYTES_PER_ENTRY;
        rows += size.json.0 * DATA_BYTES_PER_FILE_BYTE + tables;
        reading = size.reading.0.max(reading);
    }
    Ok(HostFacts {
        image: image_bytes(),
        tokenizer: tokenizer_bytes(model),
        data: Bytes(rows + reading),
        staging: models
            .into_iter()
            .flatten()
            .map(|model| staging_bytes(run.memory.staging, model))
            .max()
            .expect("there is one model at least"),
        rows_kept: rows_kept(run),
        disk: disk_facts(run),
    })
}
