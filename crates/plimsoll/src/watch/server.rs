//! The server: its routes, and what a request may do. It answers only GET, serves only the page's files and what the
//! runs wrote, and takes runs by number and files by listed names: no path comes from outside.

use super::live::Runs;
use super::samples::{self, Query, Reward};
use super::{assets, prometheus};
use crate::pages;
use axum::Router;
use axum::extract::{Query as Params, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use plimsoll_base::visible_json;
use plimsoll_serve::connections;
use plimsoll_serve::guard::{Guard, Pass, has_one_host};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Pages that can follow changes at the same time.
const LISTENERS_MAX: usize = 64;
/// Simultaneous connections: those of pages that follow, and those of short requests.
const CONNECTIONS_MAX: usize = LISTENERS_MAX + 192;
/// Requests that can read files at the same time.
const READERS_MAX: usize = 4;
/// A page gets changes at most this often.
const PAUSE: Duration = Duration::from_millis(500);
/// Content policy: only files from this server. Charts are laid out by script, which needs no inline styles.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                   base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Bytes of a log read for one request of single steps.
const ZOOM_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone)]
struct Shared {
    runs: Arc<Runs>,
    guard: Arc<Guard>,
    listeners: Arc<Semaphore>,
}

/// Answers requests until the process ends.
pub fn serve(runs: Arc<Runs>, listener: TcpListener, guard: Guard) -> io::Result<()> {
    let reader = runs.clone();
    std::thread::Builder::new().name("runs".into()).spawn(move || reader.follow())?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(READERS_MAX).build()?;
    runtime.block_on(connections::answer(listener, router(runs, guard), CONNECTIONS_MAX))
}

fn router(runs: Arc<Runs>, guard: Guard) -> Router {
    let listeners = Arc::new(Semaphore::new(LISTENERS_MAX));
    let shared = Shared { runs, guard: Arc::new(guard), listeners };
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", get(|| async { ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], assets::page()) }))
        .route("/style.css", asset("text/css; charset=utf-8", assets::STYLE))
        .route("/uplot.js", asset("text/javascript; charset=utf-8", assets::UPLOT))
        .route("/app.js", asset("text/javascript; charset=utf-8", assets::APP))
        .route("/icon.svg", asset("image/svg+xml", assets::ICON))
        .route("/api/state", get(|State(shared): State<Shared>| async move { of_json(&shared.runs.brief()) }))
        .route("/api/events", get(events))
        .route("/api/detail", get(detail))
        .route("/api/series", get(series))
        .route("/api/samples", get(find_samples))
        .route("/api/page", get(page))
        .route("/metrics", get(metrics))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here\n") })
        .layer(middleware::from_fn_with_state(shared.clone(), guarded))
        .with_state(shared)
}

/// Passes permitted requests, and sets the headers of every answer.
async fn guarded(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&shared.guard, &request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    set_headers(response.headers_mut());
    response
}

/// Returns the answer to a request that is refused, or redirected to its address without the token.
fn refusal(guard: &Guard, request: &Request) -> Option<Response> {
    let text = |name: HeaderName| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let allow = [(header::ALLOW, "GET, HEAD")];
        return Some((StatusCode::METHOD_NOT_ALLOWED, allow, "this page is read-only\n").into_response());
    }
    if !has_one_host(request.headers(), request.uri()) {
        let words = "a request needs one Host header with one name, and an address without a host\n";
        return Some((StatusCode::BAD_REQUEST, words).into_response());
    }
    if !guard.knows(text(header::HOST)) {
        let words = "this server does not go by that name; start it with --host NAME if it should\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, words).into_response());
    }
    let query = request.uri().query().unwrap_or_default();
    match guard.pass(text(header::AUTHORIZATION), text(header::COOKIE), query) {
        Pass::ByAddress if request.uri().path() == "/" => {
            let headers = [(header::LOCATION, "/".to_string()), (header::SET_COOKIE, guard.cookie())];
            Some((StatusCode::SEE_OTHER, headers).into_response())
        }
        Pass::Yes | Pass::ByAddress => None,
        Pass::No => {
            let words = "a token is needed: open the address that `plimsoll watch` printed\n";
            Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], words).into_response())
        }
    }
}

fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", CSP),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// Sends a page every change, with the part that all pages show.
async fn events(State(shared): State<Shared>) -> Response {
    let Ok(place) = shared.listeners.clone().try_acquire_owned() else {
        let words = format!("{LISTENERS_MAX} pages are open already; close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, words).into_response();
    };
    let mut changes = shared.runs.changes();
    changes.mark_changed();
    Sse::new(told(shared.runs, changes, place)).keep_alive(KeepAlive::default()).into_response()
}

fn told(
    runs: Arc<Runs>,
    changes: tokio::sync::watch::Receiver<u64>,
    place: tokio::sync::OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold((runs, changes, place, false), |(runs, mut changes, place, told)| async move {
        if told {
            tokio::time::sleep(PAUSE).await;
        }
        changes.changed().await.ok()?;
        let of = runs.clone();
        let text = tokio::task::spawn_blocking(move || of.brief().to_string()).await.ok()?;
        Some((Ok(Event::default().event("runs").data(text)), (runs, changes, place, true)))
    })
}

#[derive(Deserialize)]
struct OfRun {
    run: usize,
}

async fn detail(State(shared): State<Shared>, Params(of): Params<OfRun>) -> Response {
    blocking(move || shared.runs.get(of.run).map(|run| run.detail().to_string())).await
}

/// Selects buckets from an index on, if the page has those before; or single steps.
#[derive(Deserialize)]
struct Part {
    run: usize,
    epoch: Option<u64>,
    from: Option<usize>,
    first: Option<u32>,
    last: Option<u32>,
}

async fn series(State(shared): State<Shared>, Params(part): Params<Part>) -> Response {
    blocking(move || {
        let run = shared.runs.get(part.run)?;
        if let (Some(first), Some(last)) = (part.first, part.last) {
            return Some(run.zoom(first, last, ZOOM_BYTES_MAX).json(0));
        }
        let same = part.epoch == Some(run.series.epoch);
        Some(run.series.json(part.from.filter(|_| same).unwrap_or(0)))
    })
    .await
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Find {
    run: usize,
    words: String,
    file: String,
    reward: String,
    from_file: Option<String>,
    from_offset: Option<u64>,
}

async fn find_samples(State(shared): State<Shared>, Params(find): Params<Find>) -> Response {
    blocking(move || {
        let dir = shared.runs.get(find.run)?.dir.clone();
        let query = Query {
            words: find.words,
            file: find.file,
            reward: Reward::of(&find.reward),
            from: find.from_file.zip(find.from_offset),
        };
        Some(samples::find(&dir, &query).to_string())
    })
    .await
}

#[derive(Deserialize)]
struct OfSlug {
    slug: String,
}

async fn page(Params(of): Params<OfSlug>) -> Response {
    match pages::page(&of.slug) {
        Some(page) => of_json(&json!({ "slug": of.slug, "page": page })),
        None => nothing(),
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, prometheus::text(&shared.runs)).into_response()
}

/// Runs work that reads files or waits for a run, on a blocking thread.
async fn blocking(work: impl FnOnce() -> Option<String> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Some(text)) => of_json_text(&text),
        Ok(None) => nothing(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "that went wrong here\n").into_response(),
    }
}

fn of_json(value: &Value) -> Response {
    of_json_text(&value.to_string())
}

/// Answers with JSON; a client may print it on a terminal.
fn of_json_text(text: &str) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], visible_json(text).into_owned()).into_response()
}

fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "there is nothing here\n").into_response()
}
