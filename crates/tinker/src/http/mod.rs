//! The routes: one connection's request to one call of the service, bodies within bounds, errors in the form that
//! clients read (`detail`).

mod call;
mod files;
mod futures;
mod json;
mod passes;
mod runs;
mod sampling;
mod sessions;
mod tar;
mod training;

use crate::limits::{BODIES_BYTES_MAX, BODY_BYTES_MAX, READERS_MAX};
use crate::service::Tinker;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use call::{Answer, Call, PREFIX, json_response, status_of};
use plimsoll_base::{Error, Result, nearest_name, shown};
use plimsoll_serve::arrivals::{Arrivals, collect};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Seconds after which a client that was refused for want of room may try again.
const RETRY_SECONDS: &str = "1";

/// What all requests share.
struct Door {
    tinker: Arc<Tinker>,
    arrivals: Arc<Arrivals>,
    readers: Semaphore,
    downloads: files::Downloads,
}

type Read = fn(&Call<'_>) -> Result<Answer>;

/// Routes whose path is a name and whose body is JSON or protobuf.
const POSTS: [(&str, Read); 21] = [
    ("client/config", sessions::config),
    ("client/dynamic_config", sessions::dynamic_config),
    ("create_session", sessions::create),
    ("session_heartbeat", sessions::heartbeat),
    ("telemetry", sessions::telemetry),
    ("create_model", training::create_model),
    ("get_info", training::get_info),
    ("forward_backward", passes::forward_backward),
    ("optim_step", training::optim_step),
    ("save_weights", training::save_weights),
    ("save_weights_for_sampler", training::save_for_sampler),
    ("save_weights_external", training::save_external),
    ("load_weights", training::load_weights),
    ("unload_model", training::unload),
    ("weights_info", runs::weights_info),
    ("create_sampling_session", sampling::create),
    ("asample", sampling::sample),
    ("cancel_future", futures::cancel),
    ("retrieve_future", futures::unreachable),
    ("sessions/search", sessions::search),
    ("auth/token", sessions::no_token),
];

/// Returns the protocol's routes, all below `/api/v1`.
pub fn router(tinker: Arc<Tinker>) -> Router {
    let door = Door {
        tinker,
        arrivals: Arc::new(Arrivals::new(BODIES_BYTES_MAX)),
        readers: Semaphore::new(READERS_MAX),
        downloads: files::Downloads::new(),
    };
    Router::new().route("/api/v1/{*path}", axum::routing::any(answer)).with_state(Arc::new(door))
}

async fn answer(State(door): State<Arc<Door>>, request: Request) -> Response {
    let mut response = match reply(&door, request).await {
        Ok(response) => response,
        Err(error) => refusal(&error),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    response
}

async fn reply(door: &Arc<Door>, request: Request) -> Result<Response> {
    let tinker = &door.tinker;
    let path =
        request.uri().path().strip_prefix(PREFIX).unwrap_or_default().trim_end_matches('/').to_string();
    if let (&Method::GET, Some(file)) = (request.method(), path.strip_prefix(files::FILES)) {
        tinker.settings.tenants.check_host(request.headers(), request.uri())?;
        return door.downloads.send(tinker, file).await;
    }
    let tenant = tinker.settings.tenants.tenant(request.headers(), request.uri())?.to_string();
    let query = request.uri().query().unwrap_or_default().to_string();
    let method = request.method().clone();
    let is_zstd =
        request.headers().get(header::CONTENT_ENCODING).is_some_and(|value| value.as_bytes() == b"zstd");
    if method == Method::GET {
        let value = match door.downloads.addresses(tinker, &tenant, &path, request.headers())? {
            Some(addresses) => Some(addresses),
            None => runs::get(tinker, &tenant, &path, &query)?,
        };
        let value = value.ok_or_else(|| unknown_route(&method, &path))?;
        return Ok(json_response(StatusCode::OK, &value));
    }
    let read = match find(&method, &path) {
        Some(read) => read,
        None => return Err(unknown_route(&method, &path)),
    };
    let body = collect(&door.arrivals, request, BODY_BYTES_MAX).await.map_err(|refusal| refusal.error)?;
    if path == "retrieve_future" {
        return futures::retrieve(tinker, &tenant, &body.bytes).await;
    }
    let _permit = door.readers.acquire().await.expect("it is never closed");
    let of = door.clone();
    let work = move || {
        let call = Call { tinker: &of.tinker, tenant: &tenant, body: &body.bytes, is_zstd };
        match read {
            Found::Named(read) => read(&call),
            Found::Thing => runs::change(&call, &method, &path),
        }
    };
    let answer = tokio::task::spawn_blocking(work).await;
    drop(_permit);
    match answer
        .map_err(|_| Error::new("internal", "reading the request ended with a fault in plimsoll"))??
    {
        Answer::Now(value) => Ok(json_response(StatusCode::OK, &value)),
        Answer::After(value, heard) => {
            let gone = |_| Error::new("tinker-journal-failed", "the journal's thread has ended");
            heard.await.map_err(gone)??;
            Ok(json_response(StatusCode::OK, &value))
        }
    }
}

enum Found {
    Named(Read),
    /// Something of a path: a session's end, saved weights.
    Thing,
}

fn find(method: &Method, path: &str) -> Option<Found> {
    if *method == Method::POST
        && let Some((_, read)) = POSTS.iter().find(|(name, _)| *name == path)
    {
        return Some(Found::Named(*read));
    }
    runs::is_change(method, path).then_some(Found::Thing)
}

fn unknown_route(method: &Method, path: &str) -> Error {
    let error =
        Error::new("tinker-unknown-route", format!("this server has no {method} {PREFIX}{}", shown(path)));
    let names = POSTS.iter().map(|(name, _)| *name).chain(runs::GETS);
    let error = match nearest_name(path, names.clone()) {
        Some(near) if near != path => error.hint(format!("did you mean {near:?}?")),
        _ => error,
    };
    let error = if path.ends_with("/archive") || path.ends_with("/external_weights_urls") {
        error.hint("saved weights stay on the disk of this server, which sends none")
    } else {
        error
    };
    error.hint(format!("it has {}", names.collect::<Vec<_>>().join(", ")))
}

fn refusal(error: &Error) -> Response {
    let status = status_of(error);
    let mut response = json_response(status, &json!({ "detail": error.to_string(), "slug": error.slug }));
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static(RETRY_SECONDS));
    }
    response
}
