//! Sends answers as one object, or as events while they are drawn. The form of each protocol says what they hold.

use crate::outbox::{End, Part};
use crate::protocol::parsed::Delivery;
use crate::protocol::refusal::{Refusal, Reply};
use crate::state::{RequestOutput, ServerState};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Time without an event after which a stream sends a comment, so that no proxy takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How a protocol writes the events of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStyle {
    /// Data alone, with `[DONE]` as the last.
    Plain,
    /// Each event is named by the `type` of its data.
    Named,
}

/// Writes an answer in the form of a protocol.
pub trait Form: Send + 'static {
    const EVENTS: EventStyle = EventStyle::Plain;

    /// Returns the answer as one object.
    fn whole(&mut self, parts: Vec<Part>) -> Value;

    /// Returns the events before the first part.
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// Returns the events of a part of one response.
    fn part(&mut self, index: usize, part: Part) -> Vec<Value>;

    /// Returns the events after the last part.
    fn end(&mut self) -> Vec<Value>;

    /// Returns the event of an error that ends the stream.
    fn failed(&mut self, refusal: &Refusal) -> Value {
        refusal.body()
    }
}

/// Begins every object of an answer.
pub struct Head {
    pub state: Arc<ServerState>,
    pub id: String,
    pub created: u64,
    /// The slot of the adapter that answers, if one does.
    adapter: Option<u32>,
}

impl Head {
    pub fn new(state: &Arc<ServerState>, prefix: &str, adapter: Option<u32>) -> Head {
        let created = crate::state::seconds_now();
        Head { state: state.clone(), id: format!("{prefix}{:016x}", state.next_id()), created, adapter }
    }

    /// Returns the name of what answers.
    pub fn model(&self) -> &str {
        self.state.name_of(self.adapter)
    }

    pub fn object(&self, kind: &str) -> Value {
        json!({
            "id": self.id, "object": kind, "created": self.created, "model": self.model(),
            "system_fingerprint": concat!("plimsoll-", env!("CARGO_PKG_VERSION")),
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub drawn_tokens: usize,
    /// Tokens of prompts whose keys were there.
    pub cached_tokens: usize,
}

impl Usage {
    /// Counts a part of a response.
    pub fn add(&mut self, part: &Part) {
        self.drawn_tokens += part.ids.len();
        self.cached_tokens += part.cached_tokens;
    }

    pub fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.drawn_tokens,
            "total_tokens": self.prompt_tokens + self.drawn_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
        })
    }

    /// Returns `chunk` with the counts as the last event of a stream, if the request asks for it.
    pub fn event(self, delivery: Delivery, mut chunk: Value) -> Vec<Value> {
        chunk["usage"] = self.json();
        if delivery.include_usage { vec![chunk] } else { Vec::new() }
    }
}

pub fn reasons(end: &End) -> (&'static str, Value) {
    match end {
        End::Eos => ("stop", Value::Null),
        End::Token(id) => ("stop", json!(id)),
        End::String(text) => ("stop", json!(text)),
        End::Length => ("length", Value::Null),
        End::Failed(_) => ("error", Value::Null),
    }
}

pub async fn send(mut form: impl Form, output: RequestOutput, streams: bool) -> Reply<Response> {
    if streams {
        return Ok(events(form, output));
    }
    let parts = output.outbox.whole().await;
    for part in &parts {
        if let Some(End::Failed(error)) = &part.end {
            return Err((**error).clone().into());
        }
    }
    Ok(json_response(&form.whole(parts)))
}

pub fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

enum Step<F> {
    Begin(F, RequestOutput),
    Parts(F, RequestOutput),
    Done,
}

fn events<F: Form>(form: F, output: RequestOutput) -> Response {
    let events = stream::unfold(Step::Begin(form, output), next_events);
    let events = events.flat_map(|events| stream::iter(events.into_iter().map(Ok::<_, Infallible>)));
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// Writes events in the style of a form.
fn written<F: Form>(values: Vec<Value>) -> Vec<Event> {
    let write = |value: &Value| {
        // Clients that read line by line want the name before the data.
        let event = match (F::EVENTS, value["type"].as_str()) {
            (EventStyle::Named, Some(name)) => Event::default().event(name),
            _ => Event::default(),
        };
        event.data(value.to_string())
    };
    values.iter().map(write).collect()
}

async fn next_events<F: Form>(step: Step<F>) -> Option<(Vec<Event>, Step<F>)> {
    match step {
        Step::Begin(mut form, output) => Some((written::<F>(form.begin()), Step::Parts(form, output))),
        Step::Parts(mut form, output) => match output.outbox.next().await {
            Some((_, Part { end: Some(End::Failed(error)), .. })) => {
                let refusal: Box<Refusal> = (*error).into();
                Some((written::<F>(vec![form.failed(&refusal)]), Step::Done))
            }
            Some((index, part)) => Some((written::<F>(form.part(index, part)), Step::Parts(form, output))),
            None => {
                let mut last = written::<F>(form.end());
                if F::EVENTS == EventStyle::Plain {
                    last.push(Event::default().data("[DONE]"));
                }
                Some((last, Step::Done))
            }
        },
        Step::Done => None,
    }
}
