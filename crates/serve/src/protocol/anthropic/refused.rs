//! Writes refusals in the form that Anthropic's clients read.

use crate::protocol::refusal::Refusal;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

/// The status with which Anthropic's servers have no room, instead of 503.
const OVERLOADED: u16 = 529;

/// Returns true if a request speaks Anthropic's protocol: by its path, or by the header of its clients.
pub fn is_spoken(request: &Request) -> bool {
    let path = request.uri().path();
    let path =
        path.strip_prefix("/episodes/").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or(path);
    path == "/v1/messages"
        || path.starts_with("/v1/messages/")
        || request.headers().contains_key("anthropic-version")
}

/// Returns a refusal's body, with the slug and the field of the error after its words.
pub fn body(refusal: &Refusal) -> Value {
    let kind = match refusal.status().as_u16() {
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let message = format!("{} [{}]", refusal.message(), refusal.error.slug);
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

/// Writes an answer in Anthropic's form, if it is a refusal.
pub fn restated(mut response: Response) -> Response {
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else { return response };
    *response.body_mut() = Body::from(body(&refusal).to_string());
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        *response.status_mut() = StatusCode::from_u16(OVERLOADED).expect("it has three digits");
    }
    response
}
