//! Answers `POST /v1/messages` and `POST /v1/messages/count_tokens` as Anthropic's API does: a conversation of content
//! blocks (`blocks.rs`) with its settings (`request.rs`), its answer as blocks or as their events (`answer.rs`), and
//! refusals in its form (`refused.rs`). Tools and blocks that only Anthropic's own servers have are refused by name.

mod answer;
mod blocks;
mod refused;
mod request;

pub use refused::{is_spoken, restated};
pub use request::read;

use crate::protocol::refusal::Reply;
use crate::protocol::reply::json_response;
use crate::server::{Shared, receive};
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

/// Answers with the number of tokens that a conversation has as a prompt.
pub async fn count(State(state): Shared, request: Request) -> Reply<Response> {
    state.check_open()?;
    let parsed = receive(&state, request, request::read_to_count, None).await?;
    Ok(json_response(&json!({ "input_tokens": parsed.prompts[0].len() })))
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
