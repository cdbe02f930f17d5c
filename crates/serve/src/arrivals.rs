//! Receives bodies of requests within a bound on the bytes of all of them and a time for each. A body takes a permit of
//! the readers only once it is complete, so a client that sends slowly keeps no other waiting.
//!
//! Only received bytes count. When they would exceed the bound, the body with the lowest rate is refused.

use crate::connections;
use crate::limits::BODY_WAIT;
use crate::protocol::refusal::{Refusal, Reply};
use axum::extract::Request;
use axum::http::header;
use futures_util::StreamExt;
use plimsoll_base::Error;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const GROWTH_BYTES_MIN: usize = 4 << 10;

pub struct Arrivals {
    /// Most bytes of all bodies together.
    most: usize,
    state: Mutex<State>,
    /// Wakes readers that wait for room.
    freed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    held: usize,
    bodies: BTreeMap<u64, Body>,
}

struct Body {
    begun: Instant,
    bytes: usize,
    is_whole: bool,
    is_cut: bool,
    cut: Arc<Notify>,
}

/// Holds a complete body, whose bytes count until it is dropped.
pub struct Arrived {
    pub bytes: Vec<u8>,
    _place: Place,
}

struct Place {
    arrivals: Arc<Arrivals>,
    id: u64,
    cut: Arc<Notify>,
}

/// Reads the body of a request, of at most `most` bytes.
///
/// Errors: `serve-body-too-large`, `serve-body-too-slow`, `serve-bodies-full`, `serve-bad-request`.
pub async fn collect(arrivals: &Arc<Arrivals>, request: Request, most: usize) -> Reply<Arrived> {
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > most as u64) {
        return Err(too_large(&format!("{} bytes", length.unwrap_or_default()), most));
    }
    let busy = connections::busy(&request);
    let place = Arrivals::begin(arrivals);
    let cut = place.cut.clone();
    let bytes = tokio::select! {
        read = tokio::time::timeout(BODY_WAIT, read(request, &place, most)) => read.map_err(|_| {
            let message = format!("the body did not come within {} s", BODY_WAIT.as_secs());
            Box::<Refusal>::from(Error::new("serve-body-too-slow", message))
        })??,
        () = cut.notified() => {
            let most = arrivals.most;
            let message =
                format!("bodies of {most} bytes are here or on their way, which is the most, and this came most slowly");
            return Err(Error::new("serve-bodies-full", message).hint("send it again in a second").into());
        }
    };
    place.is_whole();
    if let Some(busy) = busy {
        busy.has_come();
    }
    Ok(Arrived { bytes, _place: place })
}

async fn read(request: Request, place: &Place, most: usize) -> Reply<Vec<u8>> {
    let (mut body, mut bytes) = (request.into_body().into_data_stream(), Vec::new());
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|err| {
            Box::<Refusal>::from(Error::new("serve-bad-request", format!("the body broke off: {err}")))
        })?;
        let needed = bytes.len() + piece.len();
        if needed > most {
            return Err(too_large("more", most));
        }
        if needed > bytes.capacity() {
            let room = needed.max(bytes.len() + (bytes.len() / 4).max(GROWTH_BYTES_MIN)).min(most);
            place.take(room - bytes.capacity()).await;
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn too_large(given: &str, most: usize) -> Box<Refusal> {
    Error::new("serve-body-too-large", format!("the body has {given}, and {most} bytes is the most"))
        .hint("the limit grows with --prompt-tokens and --max-new-tokens")
        .into()
}

impl Arrivals {
    pub fn new(most: usize) -> Arrivals {
        Arrivals { most, state: Mutex::default(), freed: Notify::new() }
    }

    fn begin(all: &Arc<Arrivals>) -> Place {
        let mut state = all.lock();
        let (id, cut) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        let body = Body { begun: Instant::now(), bytes: 0, is_whole: false, is_cut: false, cut: cut.clone() };
        state.bodies.insert(id, body);
        drop(state);
        Place { arrivals: all.clone(), id, cut }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// Refuses the slowest body that is not whole, other than `own`, unless one is on its way out.
    fn cut_slowest(&mut self, own: u64) {
        if self.bodies.values().any(|body| body.is_cut) {
            return;
        }
        let now = Instant::now();
        let rate = |body: &Body| {
            let age = now.saturating_duration_since(body.begun).max(Duration::from_micros(1));
            body.bytes as f64 / age.as_secs_f64()
        };
        let others =
            self.bodies.iter_mut().filter(|(id, body)| **id != own && !body.is_whole && body.bytes > 0);
        let slowest = others.min_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
        if let Some((_, body)) = slowest {
            body.is_cut = true;
            body.cut.notify_one();
        }
    }
}

impl Place {
    /// Waits until `bytes` more fit, for which a slower body may have to go.
    async fn take(&self, bytes: usize) {
        loop {
            let freed = self.arrivals.freed.notified();
            if self.try_take(bytes) {
                return;
            }
            freed.await;
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        let mut state = self.arrivals.lock();
        if state.held + bytes > self.arrivals.most {
            state.cut_slowest(self.id);
            return false;
        }
        state.held += bytes;
        if let Some(body) = state.bodies.get_mut(&self.id) {
            body.bytes += bytes;
        }
        true
    }

    fn is_whole(&self) {
        if let Some(body) = self.arrivals.lock().bodies.get_mut(&self.id) {
            body.is_whole = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.arrivals.lock();
        if let Some(body) = state.bodies.remove(&self.id) {
            state.held -= body.bytes;
        }
        drop(state);
        self.arrivals.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_body_makes_room_and_one_that_is_whole_never_does() {
        let arrivals = Arc::new(Arrivals::new(100));
        let [slow, whole, quick] = [(); 3].map(|()| Arrivals::begin(&arrivals));
        assert!(slow.try_take(40) && whole.try_take(40));
        whole.is_whole();
        assert!(!quick.try_take(30));
        let is_cut = |place: &Place| arrivals.lock().bodies[&place.id].is_cut;
        assert!(is_cut(&slow) && !is_cut(&whole));
        drop(slow);
        assert!(quick.try_take(30), "60 bytes are free");
        // Alone with bodies that are whole it waits for them.
        assert!(!quick.try_take(40) && !is_cut(&whole) && !is_cut(&quick));
        drop(whole);
        assert!(quick.try_take(40));
        drop(quick);
        assert_eq!(arrivals.lock().held, 0);
    }

    #[test]
    fn a_body_without_bytes_holds_nothing() {
        let arrivals = Arc::new(Arrivals::new(100));
        let silent: Vec<Place> = (0..1000).map(|_| Arrivals::begin(&arrivals)).collect();
        let one = Arrivals::begin(&arrivals);
        assert!(one.try_take(100));
        drop(silent);
    }
}
