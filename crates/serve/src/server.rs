//! Answers requests, after checking who asks and bounding the bodies that are tokenized at one time.

use crate::arrivals::collect;
use crate::connections;
use crate::guard::Pass;
use crate::lines::Busy;
use crate::owner::ResponseOwner;
use crate::protocol::anthropic;
use crate::protocol::parsed::Parsed;
use crate::protocol::refusal::{Refusal, Reply};
use crate::protocol::reply::{Form, json_response, send};
use crate::state::ServerState;

use axum::extract::{Path, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use plimsoll_base::{Error, shown};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};

pub type Shared = State<Arc<ServerState>>;
/// Reads a body into what one route answers, for an owner or for the client alone.
type Read<F> = fn(&[u8], &Arc<ServerState>, Option<&dyn ResponseOwner>) -> Reply<Parsed<F>>;

/// Lets permitted requests through, counts refusals, and sets the headers of every answer.
pub async fn guarded(State(state): Shared, request: Request, next: Next) -> Response {
    let is_anthropic = anthropic::is_spoken(&request);
    let mut response = match check(&state, &request) {
        Err(refusal) => refusal.into_response(),
        Ok(()) => next.run(request).await,
    };
    if is_anthropic {
        response = anthropic::restated(response);
    }
    if response.status().is_client_error() || response.status().is_server_error() {
        state.metrics.refused.add(1);
    }
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Requires that a request names this server, brings its token and, if it has a body, sends JSON. A page of another
/// site can make a browser send requests here, but none with JSON or a token, nor under a name of its own.
fn check(state: &ServerState, request: &Request) -> Reply<()> {
    let text = |name: HeaderName| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    if !crate::guard::has_one_host(request.headers(), request.uri()) {
        let message = "a request needs one Host header with one name, and an address without a host";
        return Err(Error::new("serve-host-refused", message).into());
    }
    let guard = &state.settings.guard;
    let host = text(header::HOST);
    if !guard.knows(host) {
        let message = format!("this server does not go by the name {:?}", shown(host));
        return Err(Error::new("serve-host-refused", message)
            .hint("start it with --host NAME if it should")
            .into());
    }
    // So that a supervisor can ask without the token; it learns nothing else.
    let is_open = request.uri().path() == "/health";
    // Anthropic's clients bring their key in one of two headers, or in both.
    let by_key = format!("Bearer {}", text(HeaderName::from_static("x-api-key")));
    let checked = check_token(state, request.uri().path(), text(header::AUTHORIZATION));
    if !is_open && checked.is_err() && check_token(state, request.uri().path(), &by_key).is_err() {
        return checked;
    }
    let is_json =
        text(header::CONTENT_TYPE).split(';').next().is_some_and(|kind| kind.trim() == "application/json");
    if request.method() == Method::POST && !is_json {
        let message = "the body of a request is JSON: send the header Content-Type: application/json";
        return Err(Error::new("serve-bad-request", message).into());
    }
    Ok(())
}

/// Requires the token of an episode on its paths, and elsewhere that of the server.
fn check_token(state: &ServerState, path: &str, authorization: &str) -> Reply<()> {
    let guard = &state.settings.guard;
    match state.owned.as_ref().and_then(|owned| owned.check_token(path, authorization, guard)) {
        Some(checked) => checked,
        None if guard.pass(authorization, "", "") == Pass::Yes => Ok(()),
        None => {
            let error = Error::new("serve-token-wrong", "the request does not bring this server's token")
                .hint("send the header Authorization: Bearer TOKEN; OpenAI's and Anthropic's clients call it the API key");
            Err(error.into())
        }
    }
}

pub async fn answer<F: Form>(state: Arc<ServerState>, request: Request, read: Read<F>) -> Reply<Response> {
    answer_for(None, state, request, read).await
}

/// Answers a request whose responses an owner keeps, or only the client gets.
pub async fn answer_for<F: Form>(
    owner: Option<Arc<dyn ResponseOwner>>,
    state: Arc<ServerState>,
    request: Request,
    read: Read<F>,
) -> Reply<Response> {
    state.check_open()?;
    let Parsed { prompts, images, params, delivery, usual_tokens, heard, form } =
        receive(&state, request, read, owner.clone()).await?;
    let images = match &state.image_door {
        Some(door) => door.enter(images).await?,
        None => None,
    };
    let output = match owner {
        None => state.submit(prompts, images, params, delivery.stream, usual_tokens)?,
        Some(_) if params.prompt_top.is_some() => {
            return Err(Refusal::unsupported(
                "prompt_logprobs",
                "log-probabilities of prompts in an episode",
            )
            .hint("a run records those of what its policy says"));
        }
        Some(owner) => owner.submit(prompts, params, delivery.stream, &heard, &state)?,
    };
    send(form, output, delivery.stream).await
}

/// Receives a body, then tokenizes it on a thread that may block.
pub async fn receive<F: Form>(
    state: &Arc<ServerState>,
    request: Request,
    read: Read<F>,
    owner: Option<Arc<dyn ResponseOwner>>,
) -> Reply<Parsed<F>> {
    // An owner has one body at a time on its way, so that one with many requests leaves the others their turn.
    let turn = owner.as_ref().map(|owner| owner.turn());
    let _turn = match &turn {
        Some(turn) => Some(wait_for_turn(turn, connections::busy(&request)).await?),
        None => None,
    };
    let body = collect(&state.arrivals, request, state.body_bytes()).await?;
    // Only now, so that none waits for a client that sends slowly.
    let _permit = state.bodies.acquire().await.expect("it is never closed");
    let of = state.clone();
    let read = move || of.check_body(&body.bytes).and_then(|()| read(&body.bytes, &of, owner.as_deref()));
    match tokio::task::spawn_blocking(read).await {
        Ok(asked) => asked,
        Err(_) => Err(Error::new("internal", "reading the request ended with a fault in plimsoll").into()),
    }
}

/// Waits until an owner's earlier requests have been read; fails if another client needs the connection meanwhile.
async fn wait_for_turn(turn: &Mutex<()>, busy: Option<Busy>) -> Reply<MutexGuard<'_, ()>> {
    if let Ok(turn) = turn.try_lock() {
        return Ok(turn);
    }
    busy.iter().for_each(Busy::parks);
    tokio::select! {
        biased;
        turn = turn.lock() => {
            busy.iter().for_each(Busy::comes);
            Ok(turn)
        }
        () = connections::told_to_end(busy.as_ref()) => {
            let message = "earlier requests of this episode are still on their way, and other clients need the connection";
            Err(Error::new("serve-queue-full", message).hint("send one request of an episode after the other").into())
        }
    }
}

pub async fn models(State(state): Shared) -> Response {
    let data: Vec<Value> = state.all_names().map(|name| model_json(&state, name)).collect();
    json_response(&json!({ "object": "list", "data": data }))
}

pub async fn model(State(state): Shared, Path(name): Path<String>) -> Reply<Response> {
    state.adapter_of(Some(&name))?;
    Ok(json_response(&model_json(&state, &name)))
}

fn model_json(state: &ServerState, name: &str) -> Value {
    let is_adapter = state.settings.adapters.iter().any(|adapter| adapter.name == name);
    let parent = is_adapter.then(|| &state.settings.names[0]);
    json!({
        "id": name, "object": "model", "created": state.created, "owned_by": "plimsoll",
        "root": state.settings.names[0], "parent": parent, "max_model_len": state.limits.context,
    })
}

pub async fn health(State(state): Shared) -> Reply<Response> {
    state.check_open()?;
    Ok(StatusCode::OK.into_response())
}

pub async fn metrics(State(state): Shared) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, state.metrics.text()).into_response()
}

pub async fn nothing(State(state): Shared, request: Request) -> Box<Refusal> {
    let message = format!("this server has no {} {}", request.method(), shown(request.uri().path()));
    let error = Error::new("serve-unknown-path", message);
    let error = error.hint("it answers POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens and /inference/v1/generate");
    let error = error.hint("it also answers GET /v1/models, /health and /metrics");
    state.owned.iter().fold(error, |error, owned| error.hint(owned.hint())).into()
}
