//! What clients look up and change by paths: models, runs, saved weights, samplers, sessions.

use super::call::{Answer, Call};
use super::sessions;
use crate::names;
use crate::record::Record;
use crate::service::Tinker;
use crate::state::{Page, adapter_json, now};
use axum::http::Method;
use plimsoll_base::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Paths that are only looked up, for the list of what there is.
pub const GETS: [&str; 10] = [
    "get_server_capabilities",
    "healthz",
    "samplers/ID",
    "training_runs",
    "training_runs/ID",
    "training_runs/ID/checkpoints",
    "training_runs/ID/checkpoints/KIND/NAME/archive",
    "training_runs/ID/checkpoints/KIND/NAME/external_weights_urls",
    "checkpoints",
    "sessions",
];

/// Answers what is looked up; `None` for a path that is none.
///
/// Errors: `tinker-not-found`.
pub fn get(tinker: &Arc<Tinker>, tenant: &str, path: &str, query: &str) -> Result<Option<Value>> {
    let page = Page { limit: number(query, "limit", 100), offset: number(query, "offset", 0) };
    let parts: Vec<String> = path.split('/').map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(Some(match parts[..] {
        ["get_server_capabilities"] => capabilities(tinker),
        ["healthz"] => json!({ "status": "ok" }),
        ["samplers", id] => {
            let mut core = tinker.lock();
            let row = core.sampler(tenant, id)?;
            json!({ "sampler_id": id, "base_model": row.base_model, "model_path": row.model_path })
        }
        ["training_runs"] => tinker.lock().list_runs(tenant, page),
        ["training_runs", id] => tinker.lock().run(tenant, id)?,
        ["training_runs", id, "checkpoints"] => {
            let core = tinker.lock();
            core.run(tenant, id)?;
            core.list_saved(tenant, Some(id), None)
        }
        ["checkpoints"] => tinker.lock().list_saved(tenant, None, Some(page)),
        ["sessions"] => tinker.lock().list_sessions(tenant, page),
        ["sessions", id] => tinker.lock().session_json(tenant, id)?,
        _ => return Ok(None),
    }))
}

fn capabilities(tinker: &Tinker) -> Value {
    let models = tinker.settings.models.iter().map(|model| {
        json!({
            "model_name": model.name, "max_context_length": model.context, "trainable": true, "sampleable": true,
        })
    });
    json!({ "supported_models": models.collect::<Vec<_>>() })
}

/// Returns true for a request that changes what a path names.
pub fn is_change(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["sessions", _, "finish"] => *method == Method::POST,
        ["training_runs", _, "checkpoints", _, _] => *method == Method::DELETE,
        ["training_runs", _, "checkpoints", _, _, "ttl"] => *method == Method::PUT,
        _ => false,
    }
}

#[derive(Deserialize)]
struct Ttl {
    ttl_seconds: Option<u64>,
}

/// Changes what a path names.
pub fn change(call: &Call<'_>, method: &Method, path: &str) -> Result<Answer> {
    let parts: Vec<String> = path.split('/').map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (run, folder, name) = match parts[..] {
        ["sessions", id, "finish"] => return sessions::finish(call, id),
        ["training_runs", run, "checkpoints", folder, name]
        | ["training_runs", run, "checkpoints", folder, name, _] => (run, folder, name),
        _ => return Err(crate::state::not_found("path", path)),
    };
    let path = format!("tinker://{run}/{folder}/{name}");
    names::parts(&path)?;
    let is_delete = *method == Method::DELETE;
    let ttl = if is_delete { None } else { call.json::<Ttl>()?.ttl_seconds };
    let mut core = call.tinker.lock();
    core.saved(call.tenant, &path)?;
    let record = if is_delete {
        Record::Deleted { path }
    } else {
        Record::Expires { path, at: ttl.map(|seconds| now().saturating_add(seconds)) }
    };
    let heard = call.tinker.commit_heard(&mut core, record);
    Ok(Answer::After(json!({}), heard))
}

#[derive(Deserialize)]
struct OfPath {
    tinker_path: String,
}

pub fn weights_info(call: &Call<'_>) -> Result<Answer> {
    let OfPath { tinker_path } = call.json()?;
    names::parts(&tinker_path)?;
    let core = call.tinker.lock();
    Ok(Answer::Now(adapter_json(&core.saved(call.tenant, &tinker_path)?.adapter)))
}

fn number(query: &str, name: &str, default: usize) -> usize {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok()).unwrap_or(default)
}

/// Decodes `%3A` and its like; what is no text then stays as it was and names nothing.
pub fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten();
        let code = code
            .and_then(|code| std::str::from_utf8(code).ok())
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_string())
}
