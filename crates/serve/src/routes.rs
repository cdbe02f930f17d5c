//! The routes of a server: those for requests of their own, or those of episodes.

use crate::house::House;
use crate::server::{Shared, answer, guarded, health, metrics, model, models, nothing};
use crate::{chat, completions, episodes, tokens};
use axum::Router;
use axum::extract::State;
use axum::middleware;
use axum::routing::{get, post};
use std::sync::Arc;

pub fn router(house: Arc<House>) -> Router {
    let routes = match house.desk {
        // Without an episode nothing is answered: it would not be trained on.
        Some(_) => episodes::router(),
        None => answers(),
    };
    routes
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(nothing)
        .layer(middleware::from_fn_with_state(house.clone(), guarded))
        .with_state(house)
}

fn answers() -> Router<Arc<House>> {
    Router::new()
        .route(
            "/v1/chat/completions",
            post(|State(house): Shared, request| answer(house, request, chat::read)),
        )
        .route(
            "/v1/completions",
            post(|State(house): Shared, request| answer(house, request, completions::read)),
        )
        .route(
            "/inference/v1/generate",
            post(|State(house): Shared, request| answer(house, request, tokens::read)),
        )
}
