//! Sessions: their beginning, signs of life and end; and what clients ask before anything else.

use super::call::{Answer, Call};
use super::json::metadata;
use crate::limits::{CHUNK_BYTES, DATUMS_MAX, METADATA_MAX, NAME_BYTES_MAX};
use crate::record::{Record, SessionRow};
use crate::state::{Page, now};
use plimsoll_base::{Error, Result};
use plimsoll_serve::guard::new_token;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub fn config(_: &Call<'_>) -> Result<Answer> {
    Ok(Answer::Now(json!({
        "pjwt_auth_enabled": false, "parallel_fwdbwd_chunks": true, "proto_compress_fwdbwd": false,
        "fwdbwd_max_chunk_len": DATUMS_MAX, "fwdbwd_max_chunk_bytes_count": CHUNK_BYTES,
        "sample_use_retrieve_futures": false, "custom_loss_server_side": false, "sample_join_sampling_session": false,
    })))
}

pub fn dynamic_config(_: &Call<'_>) -> Result<Answer> {
    Ok(Answer::Now(json!({ "sample_cancel_enabled": true })))
}

#[derive(Deserialize)]
struct Create {
    #[serde(default)]
    tags: Vec<String>,
    user_metadata: Option<Map<String, Value>>,
    display_name: Option<String>,
}

pub fn create(call: &Call<'_>) -> Result<Answer> {
    let Create { tags, user_metadata, display_name } = call.json()?;
    let is_short = |text: &String| text.len() <= NAME_BYTES_MAX * 2;
    if tags.len() > METADATA_MAX || !tags.iter().chain(&display_name).all(is_short) {
        return Err(Error::new("tinker-bad-request", "tags or display_name are too long"));
    }
    let row = SessionRow {
        tenant: call.tenant.to_string(),
        created: now(),
        tags,
        metadata: metadata(user_metadata)?,
        display_name,
        ended: None,
    };
    let unguessable = new_token()?;
    let mut core = call.tinker.lock();
    core.check_things(call.tenant)?;
    let id = format!("s{}-{}", core.next_number(), &unguessable[..8]);
    let heard = call.tinker.commit_heard(&mut core, Record::Session { id: id.clone(), row });
    Ok(Answer::After(json!({ "type": "create_session", "session_id": id }), heard))
}

#[derive(Deserialize)]
struct OfSession {
    session_id: String,
}

pub fn heartbeat(call: &Call<'_>) -> Result<Answer> {
    let OfSession { session_id } = call.json()?;
    call.tinker.lock().session(call.tenant, &session_id)?;
    Ok(Answer::Now(json!({ "type": "session_heartbeat" })))
}

#[derive(Deserialize)]
struct Finish {
    reason: Option<Reason>,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(rename = "type")]
    kind: String,
}

/// Ends a session. States of models are kept unless the client says that all went well.
pub fn finish(call: &Call<'_>, id: &str) -> Result<Answer> {
    let Finish { reason } = call.json()?;
    let kind = reason.map_or_else(|| "success".to_string(), |reason| reason.kind);
    let mut core = call.tinker.lock();
    match core.session(call.tenant, id) {
        Ok(_) => {}
        // Again: it has ended.
        Err(error) if error.slug == "tinker-session-closed" => return Ok(Answer::Now(json!({}))),
        Err(error) => return Err(error),
    }
    let (reason, keeps) = match kind.as_str() {
        "success" => ("its client closed it", false),
        "errored" => ("its client ended with an error", true),
        _ => ("its client was interrupted", true),
    };
    call.tinker.end_session(&mut core, id, reason, keeps);
    Ok(Answer::Now(json!({})))
}

/// Takes what clients tell of themselves, and keeps none of it.
pub fn telemetry(_: &Call<'_>) -> Result<Answer> {
    Ok(Answer::Now(json!({ "status": "accepted" })))
}

pub fn search(call: &Call<'_>) -> Result<Answer> {
    Ok(Answer::Now(call.tinker.lock().list_sessions(call.tenant, Page { limit: 100, offset: 0 })))
}

pub fn no_token(_: &Call<'_>) -> Result<Answer> {
    Err(Error::new("tinker-unknown-route", "this server gives no tokens of its own")
        .hint("set TINKER_API_KEY to the token that it was started with"))
}
