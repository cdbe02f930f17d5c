//! Lists the addresses of episodes: `POST /v1/episodes` gives one, `POST /v1/episodes/ID/reward` ends it, and the model
//! answers below `/episodes/ID/v1` as it does below `/v1` elsewhere.

use super::session::Session;
use super::table::{Claim, EpisodeTable, named_in, offer};
use crate::arrivals::collect;
use crate::connections;
use crate::gate::OwnedRoutes;
use crate::guard::Guard;
use crate::owner::ResponseOwner;
use crate::protocol::fields::Fields;
use crate::protocol::refusal::Reply;
use crate::protocol::reply::json_response;
use crate::protocol::{anthropic, chat, completions, responses, tokens};
use crate::server::{Shared, answer_for, model, models};
use crate::state::ServerState;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use plimsoll_base::{Error, JsonPart, shown};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Time that an agent waits for an episode before it has to ask again.
const CLAIM_WAIT: Duration = Duration::from_secs(20);
/// Largest request that is no conversation.
const REPORT_BYTES_MAX: usize = 64 << 10;
/// Longest name of an agent.
const NAME_BYTES_MAX: usize = 64;

type Table = Extension<Arc<EpisodeTable>>;

impl OwnedRoutes for EpisodeTable {
    fn check_token(&self, path: &str, authorization: &str, run: &Guard) -> Option<Reply<()>> {
        named_in(path).map(|id| EpisodeTable::check_token(self, id, authorization, run))
    }

    fn hint(&self) -> &'static str {
        "POST /v1/episodes gives an episode with an address of its own"
    }
}

/// Returns the routes of a table's episodes. Nothing is answered without an episode: it would not be trained on.
pub fn router(table: Arc<EpisodeTable>) -> Router<Arc<ServerState>> {
    Router::new()
        .route("/v1/episodes", post(claim))
        .route("/v1/episodes/{id}/reward", post(report))
        .route(
            "/episodes/{id}/v1/chat/completions",
            post(
                |Extension(table): Table, State(state): Shared, Path(id): Path<String>, request| async move {
                    answer_for(session(table, id)?, state, request, chat::read).await
                },
            ),
        )
        .route(
            "/episodes/{id}/v1/completions",
            post(
                |Extension(table): Table, State(state): Shared, Path(id): Path<String>, request| async move {
                    answer_for(session(table, id)?, state, request, completions::read).await
                },
            ),
        )
        .route(
            "/episodes/{id}/v1/responses",
            post(
                |Extension(table): Table, State(state): Shared, Path(id): Path<String>, request| async move {
                    answer_for(session(table, id)?, state, request, responses::read).await
                },
            ),
        )
        .route(
            "/episodes/{id}/v1/messages",
            post(
                |Extension(table): Table, State(state): Shared, Path(id): Path<String>, request| async move {
                    answer_for(session(table, id)?, state, request, anthropic::read).await
                },
            ),
        )
        .route(
            "/episodes/{id}/v1/messages/count_tokens",
            post(|state: Shared, Path(_): Path<String>, request| anthropic::count(state, request)),
        )
        .route(
            "/episodes/{id}/inference/v1/generate",
            post(
                |Extension(table): Table, State(state): Shared, Path(id): Path<String>, request| async move {
                    answer_for(session(table, id)?, state, request, tokens::read).await
                },
            ),
        )
        .route("/episodes/{id}/v1/models", get(|state: Shared, Path(_): Path<String>| models(state)))
        .route(
            "/episodes/{id}/v1/models/{*name}",
            get(|state: Shared, Path((_, name)): Path<(String, String)>| model(state, Path(name))),
        )
        .layer(Extension(table))
}

fn session(episodes: Arc<EpisodeTable>, id: String) -> Reply<Option<Arc<dyn ResponseOwner>>> {
    episodes.check_open(&id)?;
    Ok(Some(Arc::new(Session { episodes, id })))
}

async fn claim(Extension(table): Table, State(state): Shared, request: Request) -> Reply<Response> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let base = format!("http://{host}");
    let busy = connections::busy(&request);
    let body = collect(&state.arrivals, request, REPORT_BYTES_MAX).await?;
    let mut fields = Fields::of_body(&body.bytes, 0)?;
    let agent: Option<String> = fields.take("agent")?;
    fields.finish()?;
    if let Some(agent) = agent.as_ref().filter(|agent| agent.len() > NAME_BYTES_MAX) {
        let message = format!("agent = {:?}: {NAME_BYTES_MAX} bytes is the most", shown(agent));
        return Err(Error::new("serve-bad-request", message).into());
    }
    drop(body);
    if let Some(busy) = &busy {
        busy.parks();
    }
    let claimed = tokio::select! {
        biased;
        claimed = table.claim(agent.as_deref(), CLAIM_WAIT) => claimed,
        // Somebody else needs the connection.
        () = connections::told_to_end(busy.as_ref()) => {
            return Ok((StatusCode::NO_CONTENT, [(header::CONNECTION, "close")]).into_response());
        }
    };
    Ok(match claimed {
        Claim::Episode { id, token, start } => {
            json_response(&offer(&id, &token, start, &base, &state.settings.names[0]))
        }
        Claim::Later => StatusCode::NO_CONTENT.into_response(),
        Claim::Over => StatusCode::GONE.into_response(),
    })
}

/// Takes `{"reward": 0.5}`, or `{"error": "why there is none"}`.
async fn report(
    Extension(table): Table,
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Reply<Response> {
    let body = collect(&state.arrivals, request, REPORT_BYTES_MAX).await?;
    let wrong = |what: String| {
        Error::new("agent-reward-invalid", what).hint("send {\"reward\": 0.5}, or {\"error\": \"why\"}")
    };
    let outcome = outcome(&body.bytes).map_err(wrong)?;
    table.report(&id, outcome)?;
    Ok(json_response(&json!({ "id": id })))
}

/// Reads the reward of an episode, or why there is none.
///
/// Errors: words on what the report is instead.
fn outcome(body: &[u8]) -> Result<Result<f64, String>, String> {
    let report = JsonPart::of(body)
        .map_err(|what| format!("the report is {what}; JSON has no NaN and no infinity"))?;
    let field = |name| {
        let field = report.field(name).map_err(|what| format!("the report is one {what}"))?;
        Ok::<_, String>(field.filter(|value| !value.is_null()))
    };
    let given = || format!("the report is {}", shown(report.text()));
    match (field("reward")?, field("error")?) {
        (Some(reward), None) if reward.text().starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            let beyond = || format!("reward = {} is beyond what an f32 holds", shown(reward.text()));
            reward.number().filter(|reward| (*reward as f32).is_finite()).map(Ok).ok_or_else(beyond)
        }
        (None, Some(error)) => error.string().map(Err).ok_or_else(given),
        (None, None) => Err("the report has neither a reward nor an error".into()),
        _ => Err(given()),
    }
}
