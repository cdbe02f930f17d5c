//! Models: making, stepping, saving and loading them.

use super::call::{Answer, Call};
use super::json::{count, metadata, promised, short};
use crate::job::{AdamStep, AdapterChoice, SaveKind};
use crate::names::{self, checked_name, model_id};
use crate::record::{RequestTask, SaveTask};
use plimsoll_base::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct CreateModel {
    session_id: String,
    model_seq_id: i64,
    base_model: String,
    #[serde(default)]
    lora_config: Adapter,
    optimizer_config: Option<Optimizer>,
    user_metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(default)]
struct Adapter {
    rank: u32,
    seed: Option<i64>,
    train_unembed: bool,
    train_mlp: bool,
    train_attn: bool,
}

impl Default for Adapter {
    fn default() -> Adapter {
        Adapter { rank: 32, seed: None, train_unembed: true, train_mlp: true, train_attn: true }
    }
}

#[derive(Deserialize)]
struct Optimizer {
    #[serde(rename = "type")]
    kind: String,
}

impl Optimizer {
    fn check(given: Option<&Optimizer>) -> Result<()> {
        match given {
            Some(Optimizer { kind }) if kind != "adamw" && kind != "adam" => Err(Error::new(
                "tinker-bad-request",
                format!("there is no optimizer {:?}", plimsoll_base::shown(kind)),
            )
            .hint("models are trained with adamw")),
            _ => Ok(()),
        }
    }
}

pub fn create_model(call: &Call<'_>) -> Result<Answer> {
    let body: CreateModel = call.json()?;
    let seq = count("model_seq_id", body.model_seq_id)?;
    call.tinker.lock().session(call.tenant, &body.session_id)?;
    Optimizer::check(body.optimizer_config.as_ref())?;
    let base = call.tinker.base_model(&body.base_model)?;
    let Adapter { rank, seed, train_unembed, train_mlp, train_attn } = body.lora_config;
    if rank == 0 || rank > base.rank_max {
        let message =
            format!("lora_config.rank = {rank}: this server takes 1 to {} for {}", base.rank_max, base.name);
        return Err(Error::new("tinker-bad-request", message)
            .hint("start the server with a larger --rank-max, or ask for a lower rank"));
    }
    if !train_unembed && !train_mlp && !train_attn {
        return Err(Error::new("tinker-bad-request", "lora_config trains nothing: all of train_* are false"));
    }
    let model = model_id(&body.session_id, seq);
    // Without a seed each model of a session begins elsewhere, and again at the same place after a restart.
    let seed = seed.map_or(seq.cast_unsigned(), i64::cast_unsigned);
    let adapter =
        AdapterChoice { base_model: base.name.clone(), rank, seed, train_attn, train_mlp, train_unembed };
    let task =
        RequestTask::Create { session: body.session_id, adapter, metadata: metadata(body.user_metadata)? };
    let (number, heard) = call.tinker.submit(call.tenant, (&model, Some(0)), task)?;
    Ok(promised(number, Some(&model), heard))
}

#[derive(Deserialize)]
struct OfModel {
    model_id: String,
    seq_id: Option<i64>,
}

impl OfModel {
    fn seq(&self) -> Option<i64> {
        self.seq_id.filter(|seq| *seq > 0)
    }
}

pub fn get_info(call: &Call<'_>) -> Result<Answer> {
    let OfModel { model_id, .. } = call.json()?;
    let adapter = call.tinker.lock().model(call.tenant, &model_id)?.adapter.clone();
    let tokenizer = call.tinker.base_model(&adapter.base_model)?.tokenizer.clone();
    let name = &adapter.base_model;
    Ok(Answer::Now(json!({
        "type": "get_info", "model_id": model_id, "is_lora": true, "lora_rank": adapter.rank, "model_name": name,
        "model_data": { "model_name": name, "tokenizer_id": tokenizer.unwrap_or_else(|| name.clone()) },
        "optimizer_config": { "type": "adamw" },
    })))
}

#[derive(Deserialize)]
#[serde(default)]
struct Adam {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    grad_clip_norm: f64,
}

impl Default for Adam {
    fn default() -> Adam {
        Adam {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

#[derive(Deserialize)]
struct Step {
    #[serde(default)]
    adam_params: Adam,
    optimizer_params: Option<Optimizer>,
}

pub fn optim_step(call: &Call<'_>) -> Result<Answer> {
    let of: OfModel = call.json()?;
    call.tinker.lock().model(call.tenant, &of.model_id)?;
    call.in_order(&of.model_id, of.seq(), || {
        let Step { adam_params, optimizer_params } = call.json()?;
        Optimizer::check(optimizer_params.as_ref())?;
        let Adam { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = adam_params;
        for (name, value, fits) in [
            ("learning_rate", learning_rate, learning_rate >= 0.0),
            ("beta1", beta1, (0.0..1.0).contains(&beta1)),
            ("beta2", beta2, (0.0..1.0).contains(&beta2)),
            ("eps", eps, eps >= 0.0),
            ("weight_decay", weight_decay, weight_decay >= 0.0),
            ("grad_clip_norm", grad_clip_norm, grad_clip_norm >= 0.0),
        ] {
            if !fits || !value.is_finite() {
                return Err(Error::new(
                    "tinker-bad-request",
                    format!("adam_params.{name} = {value} is outside of its range"),
                ));
            }
        }
        Ok(RequestTask::Step {
            adam: AdamStep { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm },
        })
    })
}

#[derive(Deserialize)]
struct Save {
    path: Option<String>,
    #[serde(default)]
    overwrite: bool,
    ttl_seconds: Option<u64>,
    sampling_session_seq_id: Option<i64>,
    user_metadata: Option<Map<String, Value>>,
    age_encryption_recipients: Option<Value>,
}

pub fn save_weights(call: &Call<'_>) -> Result<Answer> {
    save(call, SaveKind::Training)
}

pub fn save_for_sampler(call: &Call<'_>) -> Result<Answer> {
    save(call, SaveKind::Sampler)
}

pub fn save_external(call: &Call<'_>) -> Result<Answer> {
    save(call, SaveKind::External)
}

fn save(call: &Call<'_>, kind: SaveKind) -> Result<Answer> {
    let of: OfModel = call.json()?;
    let session = call.tinker.lock().model(call.tenant, &of.model_id)?.session.clone();
    call.in_order(&of.model_id, of.seq(), || {
        let body: Save = call.json()?;
        if body.age_encryption_recipients.is_some_and(|value| !value.is_null()) {
            return Err(Error::new("tinker-bad-request", "age_encryption_recipients is not built"));
        }
        if let Some(name) = &body.path {
            checked_name(name)?;
        }
        let (name, sampler) = match (kind, body.path, body.sampling_session_seq_id) {
            (_, Some(name), _) => (Some(name), None),
            (SaveKind::Sampler, None, Some(seq)) => {
                (None, Some(names::sampler_id(&session, count("sampling_session_seq_id", seq)?)))
            }
            // Its place in the order makes a name that is not taken.
            (_, None, _) => (Some(format!("{:06}", of.seq_id.unwrap_or(0))), None),
        };
        Ok(RequestTask::Save(SaveTask {
            store: call.tinker.lock().next_number(),
            kind,
            name,
            sampler,
            overwrite: body.overwrite,
            ttl_seconds: body.ttl_seconds,
            metadata: metadata(body.user_metadata)?,
        }))
    })
}

#[derive(Deserialize)]
struct LoadWeights {
    model_id: Option<String>,
    seq_id: Option<i64>,
    session_id: Option<String>,
    model_seq_id: Option<i64>,
    base_model: Option<String>,
    path: String,
    #[serde(default)]
    optimizer: bool,
    optimizer_config: Option<Optimizer>,
}

pub fn load_weights(call: &Call<'_>) -> Result<Answer> {
    let body: LoadWeights = call.json()?;
    short("path", &body.path)?;
    names::parts(&body.path)?;
    let (path, optimizer) = (body.path.clone(), body.optimizer);
    let saved = |wanted: Option<&str>| {
        let saved = call.tinker.lock().saved(call.tenant, &path)?.clone();
        if saved.kind != SaveKind::Training && optimizer {
            let message = format!("{path:?} has weights to sample with, and no state of an optimizer");
            return Err(Error::new("tinker-bad-request", message).hint("load one that save_state has made"));
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != saved.adapter.base_model) {
            let message =
                format!("{path:?} is an adapter of {}, and not of {wanted}", saved.adapter.base_model);
            return Err(Error::new("tinker-bad-request", message));
        }
        Ok(saved)
    };
    if let Some(model) = body.model_id {
        let adapter = call.tinker.lock().model(call.tenant, &model)?.adapter.clone();
        return call.in_order(&model, body.seq_id.filter(|seq| *seq > 0), || {
            let saved = saved(Some(&adapter.base_model))?;
            if saved.adapter.rank != adapter.rank {
                let message =
                    format!("{path:?} has the rank {}, and the model {}", saved.adapter.rank, adapter.rank);
                return Err(Error::new("tinker-bad-request", message));
            }
            Ok(RequestTask::Load { from: saved.store, path: path.clone(), optimizer })
        });
    }
    let (Some(session), Some(seq)) = (body.session_id, body.model_seq_id) else {
        return Err(Error::new(
            "tinker-bad-request",
            "load_weights needs model_id, or session_id and model_seq_id",
        ));
    };
    Optimizer::check(body.optimizer_config.as_ref())?;
    call.tinker.lock().session(call.tenant, &session)?;
    let saved = saved(body.base_model.as_deref())?;
    let model = model_id(&session, count("model_seq_id", seq)?);
    let task = RequestTask::LoadNew {
        session,
        adapter: saved.adapter,
        from: saved.store,
        path: path.clone(),
        optimizer,
    };
    let (number, heard) = call.tinker.submit(call.tenant, (&model, Some(0)), task)?;
    Ok(promised(number, Some(&model), heard))
}

/// Drops a model, for clients before 0.26.
pub fn unload(call: &Call<'_>) -> Result<Answer> {
    let of: OfModel = call.json()?;
    call.tinker.lock().model(call.tenant, &of.model_id)?;
    call.in_order(&of.model_id, of.seq(), || Ok(RequestTask::Unload))
}
