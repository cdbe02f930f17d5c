//! Lists the routes of a server: those for every client, or those of an owner of all responses.

use crate::protocol::{anthropic, chat, completions, responses, tokens};
use crate::server::{Shared, answer, guarded, health, metrics, model, models, nothing};
use crate::state::ServerState;
use axum::Router;
use axum::extract::State;
use axum::middleware;
use axum::routing::{get, post};
use std::sync::Arc;

/// Returns the routes of a server. `owned`: those of what owns its responses, in place of those for every client.
pub fn router(state: Arc<ServerState>, owned: Option<Router<Arc<ServerState>>>) -> Router {
    owned
        .unwrap_or_else(answers)
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
        .layer(middleware::from_fn_with_state(state.clone(), guarded))
        .with_state(state)
}

fn answers() -> Router<Arc<ServerState>> {
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|State(state): Shared, request| answer(state, request, chat::read)),
        )
        .route(
            "/v1/completions",
            post(|State(state): Shared, request| answer(state, request, completions::read)),
        )
        .route("/v1/responses", post(|State(state): Shared, request| answer(state, request, responses::read)))
        .route("/v1/messages", post(|State(state): Shared, request| answer(state, request, anthropic::read)))
        .route("/v1/messages/count_tokens", post(anthropic::count))
        .route(
            "/inference/v1/generate",
            post(|State(state): Shared, request| answer(state, request, tokens::read)),
        )
}
