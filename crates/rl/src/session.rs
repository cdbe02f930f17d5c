//! Opening what a run file names: model headers, tokenizer, data. The plan and the run open the same things, the plan
//! only those that it needs.

use crate::dataset::{Dataset, Item, TextModel};
use crate::eval::samples_kept;
use crate::responses::line_bytes_max;
use crate::runfile::{Auto, ByteSize, Data, ModelOptions, RunFile};
use crate::shape::{DiskFacts, HostFacts};
use crate::train::SAMPLES_KEPT;
use plimsoll_base::{Bytes, Error, ModelSpec, PLAN_ONLY, Result};
use plimsoll_files::{OpenModel, TokenizerFiles};
use plimsoll_memory::host::Host;
use plimsoll_model::STAGING_BYTES_MIN;
use plimsoll_text::{ChatTemplate, Tokenizer};
use std::path::Path;

/// Host bytes of a tokenizer for each token of its vocabulary: both maps, merges and the decoding table, measured
/// with a vocabulary of 49,152 as the growth of resident memory.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 700;
/// Tokens of the byte tokenizer: each byte, and three with a meaning.
const BYTE_TOKENS: u64 = 259;
/// Host bytes of a JSONL file's rows for each byte of the file: text, columns and tokens, measured on GSM8K.
const DATA_BYTES_PER_FILE_BYTE: u64 = 3;
/// What `critic.model` says for a copy of the actor.
const CRITIC_OF_ACTOR: &str = "actor";
/// The largest staging buffers that `"auto"` takes.
const STAGING_BYTES_MAX: Bytes = Bytes::mib(64);

/// Numbers about a run's model and data that its memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The model.
    pub spec: ModelSpec,
    /// Longest prompt, of training and evaluation.
    pub prompt_tokens: usize,
    /// Longest supervised completion.
    pub completion_tokens: usize,
    /// Prompts of an evaluation.
    pub eval_prompts: usize,
    /// The critic's shape, if there is a critic.
    pub critic: Option<ModelSpec>,
    /// Host memory outside the arena.
    pub host: HostFacts,
}

/// What a training run works on.
pub struct Session {
    /// The model's files.
    pub model: OpenModel,
    /// What the critic starts from, where that is not the model itself.
    pub critic: Option<OpenModel>,
    /// Its text side.
    pub text: TextModel,
    /// Training data.
    pub data: Dataset,
    /// Evaluation prompts; empty without an evaluation.
    pub eval: Vec<Item>,
    /// Name of the evaluation set.
    pub eval_name: String,
    /// What the plan needs to know of them.
    pub facts: Facts,
}

impl Session {
    /// Opens everything that `run` names.
    pub fn open(run: &RunFile, allow_download: bool) -> Result<Session> {
        Session::of_model(run, open_model(&run.model, &run.model_options, allow_download)?)
    }

    /// The same for a run that goes on from `checkpoint`, which holds all of the model but the weights of a reference:
    /// where `model` cannot be opened any more, and no reference is read from it, the checkpoint's model is opened.
    ///
    /// Errors: those of `open`.
    pub fn open_again(run: &RunFile, checkpoint: &Path, say: &mut dyn FnMut(String)) -> Result<Session> {
        let error = match open_model(&run.model, &run.model_options, true) {
            Ok(model) => return Session::of_model(run, model),
            Err(error) => error,
        };
        if run.has_reference() {
            let coef = run.loss.kl_coef;
            return Err(error
                .fact(format!("missing are the weights of the reference model (loss.kl_coef = {coef})"))
                .fact(format!("everything else is in {}", checkpoint.display()))
                .hint("put the model back as it was, and resume again"));
        }
        say(format!("{}; weights, configuration and tokenizer are the checkpoint's", error.message));
        let tokenizer = run.model_options.tokenizer.clone().filter(|name| name == "bytes");
        let options = ModelOptions { tokenizer, revision: None, ..run.model_options.clone() };
        let mut model = open_model(&checkpoint.display().to_string(), &options, false)?;
        // Later checkpoints name what the run began with, as earlier ones did.
        model.source = run.model.clone();
        Session::of_model(run, model)
    }

    fn of_model(run: &RunFile, model: OpenModel) -> Result<Session> {
        let text = text_model(&model, &run.data)?;
        let critic = critic_model(run, &model, true)?;
        let prompts = prompts_of(run)?;
        let supervised = !run.method.has_rollout();
        let data = Dataset::open(prompts, &run.data, &text, supervised, run.seed)?;
        let eval_name = eval_set(run).unwrap_or_default().to_string();
        let eval = match eval_name.as_str() {
            "" => Vec::new(),
            name => Dataset::test_items(name, &run.data, &text, run.eval.prompts_max)?,
        };
        let longest_eval = eval.iter().map(|i| i.ids.len()).max().unwrap_or(0);
        let (prompt_tokens, eval_prompts) =
            limits_of_data(run).unwrap_or((data.prompt_tokens.max(longest_eval), eval.len()));
        let facts = Facts {
            spec: model.spec,
            prompt_tokens,
            completion_tokens: data.completion_tokens,
            eval_prompts,
            critic: critic_spec(run, &model, critic.as_ref()),
            host: host_facts(run, &model, critic.as_ref())?,
        };
        Ok(Session { model, critic, text, data, eval, eval_name, facts })
    }

    /// The facts alone. With `data.prompt_tokens_max` and a method that samples, no text is tokenized.
    pub fn facts(run: &RunFile, allow_download: bool) -> Result<Facts> {
        let Some((prompt_tokens, eval_prompts)) = limits_of_data(run) else {
            return Session::open(run, allow_download).map(|session| session.facts);
        };
        let model = open_model(&run.model, &run.model_options, allow_download)?;
        let critic = critic_model(run, &model, allow_download)?;
        let prompts = prompts_of(run)?;
        if !prompts.starts_with("builtin:") && !Path::new(prompts).is_file() {
            return Err(Error::new("data-missing", format!("data.prompts: there is no file `{prompts}`"))
                .hint("set data.prompts to a JSONL file or a built-in task, such as builtin:addition"));
        }
        Ok(Facts {
            spec: model.spec,
            prompt_tokens,
            completion_tokens: 0,
            eval_prompts,
            critic: critic_spec(run, &model, critic.as_ref()),
            host: host_facts(run, &model, critic.as_ref())?,
        })
    }
}

/// Longest prompt and number of evaluation prompts where the run file limits them: a run is then planned by the limits
/// and not by what the data happens to hold, so that its plan is the same with and without the data at hand.
fn limits_of_data(run: &RunFile) -> Option<(usize, usize)> {
    let prompt_tokens = run.data.prompt_tokens_max.filter(|_| run.method.has_rollout())?;
    let eval_prompts = match eval_set(run) {
        None => 0,
        Some(_) => run.eval.prompts_max.map_or(usize::MAX, |n| n as usize),
    };
    Some((prompt_tokens.max(1) as usize, eval_prompts))
}

/// Opens a model by the words of a run file.
pub fn open_model(name: &str, options: &ModelOptions, allow_download: bool) -> Result<OpenModel> {
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
    let critic = open_model(&section.model, &options, allow_download)?;
    let mismatch = |what: String| {
        let message = format!("critic.model = \"{}\": {what}", section.model);
        Err(Error::new("critic-tokenizer-mismatch", message)
            .fact(format!("the actor is {}", run.model))
            .hint("set critic.model = \"actor\", or to another model of the actor's family"))
    };
    let (ours, theirs) = (actor.spec.vocab, critic.spec.vocab);
    if theirs < ours {
        return mismatch(format!("its embedding has {theirs} rows, the actor may sample {ours} tokens"));
    }
    let same_bytes = |a: &TokenizerFiles, b: &TokenizerFiles| {
        (a.bytes && b.bytes) || (a.tokenizer_json.is_some() && a.tokenizer_json == b.tokenizer_json)
    };
    if critic.random || same_bytes(&critic.tokenizer, &actor.tokenizer) {
        return Ok(Some(critic)); // Random weights have learnt no tokens.
    }
    let read = |model: &OpenModel| Tokenizer::from_files(&model.tokenizer, model.spec.vocab);
    match read(actor)?.differs_from(&read(&critic)?) {
        None => Ok(Some(critic)),
        Some(token) => mismatch(format!("its tokenizer is not the actor's: they differ in token `{token}`")),
    }
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
    if plimsoll_device::cpu::takes_head_dim(head_dim as usize) {
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

fn prompts_of(run: &RunFile) -> Result<&str> {
    run.data.prompts.as_deref().ok_or_else(|| {
        Error::usage("missing-key", "data.prompts is missing")
            .hint("set data.prompts to a JSONL file or a built-in task")
    })
}

/// The evaluation set: the one named, else a task's own test set.
fn eval_set(run: &RunFile) -> Option<&str> {
    match (&run.data.eval, &run.data.prompts) {
        (Some(eval), _) if eval == "none" => None,
        (Some(eval), _) => Some(eval),
        (None, Some(prompts)) if prompts.starts_with("builtin:") && !run.reward.is_empty() => Some(prompts),
        _ => None,
    }
}

fn host_facts(run: &RunFile, model: &OpenModel, critic: Option<&OpenModel>) -> Result<HostFacts> {
    let file_bytes = |name: &Option<String>| {
        let path = name.as_deref().filter(|n| !n.starts_with("builtin:"))?;
        std::fs::metadata(path).ok().map(|m| m.len())
    };
    let data = file_bytes(&run.data.prompts).unwrap_or(0) + file_bytes(&run.data.eval).unwrap_or(0);
    Ok(HostFacts {
        image: image_bytes(),
        tokenizer: tokenizer_bytes(model),
        data: Bytes(data * DATA_BYTES_PER_FILE_BYTE),
        staging: critic
            .into_iter()
            .chain([model])
            .map(|model| staging_bytes(run.memory.staging, model))
            .max()
            .expect("there is one model at least"),
        rows_kept: rows_kept(run),
        disk: disk_facts(run),
    })
}

/// What a run writes beside its checkpoints: an event a step of 1.5 KB, measured, and samples with their log-probs.
pub(crate) fn disk_facts(run: &RunFile) -> DiskFacts {
    let steps = u64::from(run.train.steps);
    let evals = 2 + run.eval.every.map_or(0, |every| steps / u64::from(every.max(1)));
    // Twenty steps show samples, and the first and the last.
    let rows = (22 * SAMPLES_KEPT as u64).saturating_add(evals.saturating_mul(rows_kept(run) as u64));
    let prompt_tokens = run.data.prompt_tokens_max.unwrap_or(1024);
    let tokens = u64::from(run.rollout.max_new_tokens) + u64::from(prompt_tokens);
    let samples = rows.saturating_mul(line_bytes_max(tokens));
    DiskFacts {
        // Without `every` a run saves once, where there is nothing to keep beside it.
        keep: Some(if run.checkpoint.every.is_some() { run.checkpoint.keep } else { 0 }),
        keep_bytes: run.checkpoint.keep_bytes.map(|limit| limit.0.0),
        best: run.checkpoint.every.is_some() && eval_set(run).is_some(),
        records: Bytes(samples.saturating_add(4096 * (steps + evals))),
    }
}

/// Responses that an evaluation keeps, and what a step keeps where that is more.
pub(crate) fn rows_kept(run: &RunFile) -> usize {
    samples_kept(run.eval.samples.max(1) as usize).max(SAMPLES_KEPT)
}

/// Bytes of the binary and its libraries that come to be resident: three quarters of what is mapped. Training,
/// evaluation and grading together touch 57 to 62 % of it.
pub fn image_bytes() -> Bytes {
    Bytes(Host::this().image_bytes().0 / 4 * 3)
}

/// Host bytes of a model's tokenizer; that of bytes is small whatever the model's vocabulary.
pub fn tokenizer_bytes(model: &OpenModel) -> Bytes {
    if model.tokenizer.bytes {
        return Bytes(BYTE_TOKENS * TOKENIZER_BYTES_PER_TOKEN);
    }
    tokenizer_bytes_of(&model.spec)
}

/// The same of a model that is only a shape.
pub fn tokenizer_bytes_of(spec: &ModelSpec) -> Bytes {
    Bytes(u64::from(spec.vocab) * TOKENIZER_BYTES_PER_TOKEN)
}

/// The staging buffers: as large as the run file allows, never larger than the weights need.
pub fn staging_bytes(allowed: Auto<ByteSize>, model: &OpenModel) -> Bytes {
    staging_bytes_of(allowed, &model.spec)
}

/// The same of a model that is only a shape.
///
/// Both buffers hold part of one tensor, as stored and as f32, so what they need at most is its elements twice in f32:
/// of the embedding, or of a layer's largest matrix.
pub fn staging_bytes_of(allowed: Auto<ByteSize>, spec: &ModelSpec) -> Bytes {
    let ByteSize(allowed) = allowed.or(ByteSize(STAGING_BYTES_MAX));
    // Every matrix has the hidden width on one side.
    let rows = spec.vocab.max(2 * spec.ffn).max(spec.q_width() + 2 * spec.kv_width());
    let largest = 8 * u64::from(rows) * u64::from(spec.hidden);
    Bytes(allowed.0.min(largest.next_multiple_of(STAGING_BYTES_MIN)).max(STAGING_BYTES_MIN))
}
