//! A request of a route and its answer.

use crate::service::Tinker;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use plimsoll_base::{Error, Result};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Where the protocol's routes begin.
pub const PREFIX: &str = "/api/v1/";

/// A request whose body is here and whose tenant is known.
pub struct Call<'a> {
    pub tinker: &'a Arc<Tinker>,
    pub tenant: &'a str,
    pub body: &'a [u8],
    pub is_zstd: bool,
}

/// What a route answers: now, or once the journal has it.
pub enum Answer {
    Now(Value),
    After(Value, oneshot::Receiver<Result<()>>),
}

/// Returns the status of a refusal.
pub fn status_of(error: &Error) -> StatusCode {
    match error.slug {
        "tinker-token-wrong" => StatusCode::UNAUTHORIZED,
        "serve-host-refused" => StatusCode::MISDIRECTED_REQUEST,
        "tinker-not-found" | "tinker-unknown-route" => StatusCode::NOT_FOUND,
        "tinker-session-closed" | "tinker-future-gone" => StatusCode::GONE,
        "tinker-queue-full" | "serve-bodies-full" => StatusCode::TOO_MANY_REQUESTS,
        "serve-body-too-large" => StatusCode::PAYLOAD_TOO_LARGE,
        "serve-body-too-slow" => StatusCode::REQUEST_TIMEOUT,
        "tinker-journal-failed" | "serve-stopping" => StatusCode::SERVICE_UNAVAILABLE,
        "internal" => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Makes a response of JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
