//! Opening models to sample from and to score with, each with the tokens of the model that is sampled.

use crate::codes::base_quantize;
use plimsoll_arch::{Compute, LayerEncodings, Values};
use plimsoll_base::{Error, Result, open_regular, slugs};
use plimsoll_config::{Auto, LoraSpec, ModelOptions, ModelReward, SamplerSpec, TowerUse};
use plimsoll_files::{AdapterConfig, Head, OpenModel, TokenizerFiles};
use plimsoll_plan::{Lora, PerRole, RoleName};
use plimsoll_text::Tokenizer;
use std::io::Read;
use std::path::Path;

/// Opens a causal language model named in a run file.
///
/// Errors: those of opening; `model-unsupported` for a model for sequence classification.
pub fn open_model(name: &str, options: &ModelOptions) -> Result<OpenModel> {
    let model = open_any_model(name, options);
    let is_score = match &model {
        Ok(model) => model.head == Head::Score,
        // Errors of its head do not matter here.
        Err(error) => slugs::REWARD_MODEL_HEAD.contains(&error.slug),
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
pub fn open_any_model(name: &str, options: &ModelOptions) -> Result<OpenModel> {
    let mut model = OpenModel::open(name, options.revision.as_deref(), true)?;
    match options.tokenizer.as_deref() {
        None => {}
        Some("bytes") => model.tokenizer = TokenizerFiles { bytes: true, ..TokenizerFiles::default() },
        Some(path) => {
            let path = Path::new(path);
            if path.is_dir() {
                // A model's folder also names the tokens that end a text, and the chat template.
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

/// Returns what the products of a model were computed with when it was trained, or its adapter was.
pub fn trained_with(model: &OpenModel) -> Compute {
    model.adapter.as_ref().map_or(model.compute, |adapter| adapter.config.compute)
}

/// Samples with what a model was trained with: the adapter that it comes with, on the weights below it, and products of
/// eight bits, unless the run file says otherwise.
pub fn sample_as_trained(run: &mut SamplerSpec, model: &OpenModel) {
    let quantize = base_quantize(run, model);
    if run.model_options.compute.is_auto() {
        run.model_options.compute = Auto::Value(trained_with(model));
    }
    if model.adapter.as_ref().is_some_and(|adapter| adapter.config.tower.is_some()) {
        run.model_options.tower = TowerUse::Adapters;
    }
    run.lora = model.adapter.as_ref().map(|adapter| {
        let AdapterConfig { rank, alpha, rslora, targets, .. } = adapter.config;
        LoraSpec {
            rank,
            alpha,
            rslora,
            targets,
            quantize,
            adapter: None,
            of_critic: false,
            merge: Auto::Value(false),
            slots: 0,
            trained_slots: 0,
        }
    });
}

/// Opens the reward models that score responses; each must have the actor's tokenizer.
///
/// Errors: those of opening; `reward-model-head-missing`, `reward-model-labels`, `reward-tokenizer-mismatch`.
pub fn reward_models(run: &SamplerSpec, actor: &OpenModel) -> Result<Vec<OpenModel>> {
    run.model_rewards.iter().map(|reward| reward_model(run, reward, actor)).collect()
}

fn reward_model(run: &SamplerSpec, reward: &ModelReward, actor: &OpenModel) -> Result<OpenModel> {
    let name = reward.model.as_str();
    // A tokenizer that the run file names belongs to both.
    let options = ModelOptions { revision: None, ..run.model_options.clone() };
    let model = open_any_model(name, &options)?;
    if model.head != Head::Score {
        let message = format!("{name} is a causal language model: it predicts tokens and gives no score");
        return Err(Error::new(slugs::REWARD_MODEL_HEAD_MISSING, message)
            .hint("train one with method = \"reward_model\", and name its checkpoint")
            .hint(
                "or name a model for sequence classification (*ForSequenceClassification) with one label",
            ));
    }
    match other_tokens(actor, &model)? {
        None => Ok(model),
        Some(what) => Err(Error::new("reward-tokenizer-mismatch", format!("reward model {name}: {what}"))
            .fact(format!("the actor is {}", run.model))
            .hint("train the reward model from a model of the actor's family")),
    }
}

/// Returns the adapters of the reward models that score responses, of those that are an adapter on its base.
pub fn reward_adapters(run: &SamplerSpec, others: &PerRole<OpenModel>) -> PerRole<Lora> {
    let of = |other: &OpenModel| {
        let config = &other.adapter.as_ref()?.config;
        let AdapterConfig { alpha, rslora, .. } = *config;
        let (shape, scale, quantize) = (config.shape(), config.scale() as f32, base_quantize(run, other));
        Some(Lora {
            shape,
            scale,
            alpha,
            rslora,
            merge: false,
            quantize,
            tower: None,
            slots: 0,
            trained_slots: 0,
        })
    };
    others.rewards().fold(PerRole::none(), |all, (role, other)| all.with(role, of(other)))
}

/// Returns how those of a run's models are stored that are GGUF files.
pub fn encodings_of(model: &OpenModel, others: &PerRole<OpenModel>) -> PerRole<LayerEncodings> {
    let all = RoleName::all().filter_map(|role| Some((role, others.get(role)?.encodings)));
    all.fold(PerRole::none().with(RoleName::Actor, model.encodings), |all, (role, encodings)| {
        all.with(role, encodings)
    })
}

/// Describes how the tokenizer of `other` differs from the actor's, if it does.
pub fn other_tokens(actor: &OpenModel, other: &OpenModel) -> Result<Option<String>> {
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

/// Returns the bytes of a `tokenizer.json`. Only regular files are opened: a pipe would block.
fn tokenizer_json(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|err| {
        Error::io("tokenizer-missing", path, &err)
            .near(path)
            .hint("set model_options.tokenizer to a tokenizer.json, a model's folder, or \"bytes\"")
    })
}

fn check_head_dim(model: &OpenModel) -> Result<()> {
    // Keys of latent attention, and wide heads, are for the device to take, which is not known here.
    let plain = model.spec.each_layer().filter(|layer| layer.latent().is_none());
    let plain = plain.filter_map(|layer| layer.attention()).filter(|of| of.values == Values::Own);
    let mut all = plain.map(|attention| attention.head_dim);
    let is_refused = |head_dim: &u32| !plimsoll_devices::takes_head_dim(*head_dim as usize);
    let Some(head_dim) = all.find(is_refused) else { return Ok(()) };
    let message =
        format!("{}: head_dim = {head_dim}, this build has multiples of 16 up to 576", model.source);
    Err(Error::new("model-unsupported", message)
        .hint("choose a model with heads of such a size, 64 and 128 are common"))
}
