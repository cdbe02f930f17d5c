//! Results: a request for one is held until it is there or a while has passed.

use super::call::{Answer, Call, json_response};
use crate::limits::POLL_WAIT;
use crate::record::RequestEnding;
use crate::service::Tinker;
use crate::state::Poll;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use plimsoll_base::{Error, Result, shown};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

#[derive(Deserialize)]
struct Ask {
    request_id: String,
}

/// Answers with a result, or with 408 after a while.
pub async fn retrieve(tinker: &Arc<Tinker>, tenant: &str, body: &[u8]) -> Result<Response> {
    let number = number_of(body)?;
    let until = Instant::now() + POLL_WAIT;
    loop {
        let (changed, is_held) = match tinker.lock().poll(tenant, number)? {
            Poll::Ready(ending) => return Ok(response(ending)),
            Poll::Waiting { changed, is_held } => (changed, is_held),
        };
        let mut notified = std::pin::pin!(changed.notified());
        // From here on no change is missed; one before is seen by a second look.
        notified.as_mut().enable();
        if let Poll::Ready(ending) = tinker.lock().poll(tenant, number)? {
            return Ok(response(ending));
        }
        if timeout_at(until, notified).await.is_err() {
            let state = if is_held { "paused_capacity" } else { "active" };
            let mut value =
                json!({ "type": "try_again", "request_id": number.to_string(), "queue_state": state });
            if is_held {
                value["queue_state_reason"] =
                    "requests of this model that come before it are not here yet".into();
            }
            return Ok(json_response(StatusCode::REQUEST_TIMEOUT, &value));
        }
    }
}

fn response(ending: RequestEnding) -> Response {
    match ending {
        RequestEnding::Done(reply) => {
            let kind = if reply.is_protobuf { "application/x-protobuf" } else { "application/json" };
            ([(header::CONTENT_TYPE, kind)], reply.body).into_response()
        }
        RequestEnding::Failed { message, is_user } => {
            let category = if is_user { "user" } else { "server" };
            json_response(StatusCode::OK, &json!({ "error": message, "category": category }))
        }
    }
}

pub fn cancel(call: &Call<'_>) -> Result<Answer> {
    call.tinker.lock().cancel(call.tenant, number_of(call.body)?);
    Ok(Answer::Now(Value::Object(Default::default())))
}

/// Is in the table of routes; its requests are held and answered by `retrieve`.
pub fn unreachable(_: &Call<'_>) -> Result<Answer> {
    Err(Error::new("internal", "retrieve_future is answered elsewhere"))
}

fn number_of(body: &[u8]) -> Result<u64> {
    let bad = |what: &str| Error::new("tinker-bad-request", format!("request_id: {}", shown(what)));
    let Ask { request_id } = serde_json::from_slice(body).map_err(|err| bad(&err.to_string()))?;
    request_id.parse().map_err(|_| crate::state::not_found("request", &request_id))
}
