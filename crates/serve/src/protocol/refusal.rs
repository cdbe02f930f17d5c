//! Refuses requests with a status and a named error in the shape that OpenAI's clients read.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use plimsoll_base::{Error, slugs};
use serde_json::{Value, json};

/// Seconds after which a client that found the queue full may try again.
const RETRY_SECONDS: &str = "1";

pub type Reply<T> = std::result::Result<T, Box<Refusal>>;

/// Holds an error and the field of the request that it is about, if there is one.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub error: Error,
    pub param: Option<String>,
}

impl Refusal {
    /// Refuses the value of a field, or a field that is missing.
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> Box<Refusal> {
        Box::new(Refusal { error: Error::new("serve-bad-request", message), param: Some(param.into()) })
    }

    /// Refuses a field that would change the answer and that this server does not have.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Box<Refusal> {
        Box::new(Refusal { error: Error::new("serve-field-refused", message), param: Some(param.into()) })
    }

    pub fn hint(mut self: Box<Self>, hint: impl Into<String>) -> Box<Refusal> {
        self.error = self.error.hint(hint);
        self
    }

    pub fn status(&self) -> StatusCode {
        match self.error.slug {
            "serve-token-wrong" => StatusCode::UNAUTHORIZED,
            "serve-host-refused" => StatusCode::MISDIRECTED_REQUEST,
            "serve-unknown-model" | "serve-unknown-path" | "agent-episode-unknown" => StatusCode::NOT_FOUND,
            "serve-body-too-slow" => StatusCode::REQUEST_TIMEOUT,
            "serve-body-too-large" => StatusCode::PAYLOAD_TOO_LARGE,
            "serve-queue-full" | "serve-bodies-full" | "serve-grammars-full" => StatusCode::TOO_MANY_REQUESTS,
            "serve-stopping" => StatusCode::SERVICE_UNAVAILABLE,
            slugs::ROLLOUT_NOT_FINITE | slugs::CUDA_FAILED | "internal" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns the body: message with facts and hints, type, field, and the slug as code.
    pub fn body(&self) -> Value {
        let kind = match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let message = self.message();
        json!({ "error": { "message": message, "type": kind, "param": self.param, "code": self.error.slug } })
    }

    /// Returns the error's words with its facts and hints.
    pub fn message(&self) -> String {
        let more =
            self.error.facts.iter().cloned().chain(self.error.hints.iter().map(|h| format!("hint: {h}")));
        std::iter::once(self.error.message.clone()).chain(more).collect::<Vec<_>>().join("; ")
    }
}

impl From<Error> for Box<Refusal> {
    fn from(error: Error) -> Box<Refusal> {
        Box::new(Refusal { error, param: None })
    }
}

impl IntoResponse for Box<Refusal> {
    fn into_response(self) -> Response {
        let status = self.status();
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (status, kind, self.body().to_string()).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_SECONDS));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        // For protocols that have a form of their own.
        response.extensions_mut().insert(*self);
        response
    }
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
