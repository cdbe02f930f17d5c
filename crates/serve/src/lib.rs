//! Serves the rollout engine over HTTP: OpenAI's completions and chats, vLLM's token endpoint, health and metrics. It
//! owns the protocol, who is let in, and the thread that drives the engine's slots.
//!
//! It refuses fields that it does not have by name and requests that do not fit by their numbers, and knows no planner,
//! no file and no weights. A request goes from `server.rs` through a reader of `protocol/` to the queue (`state.rs`)
//! and to `driver.rs`; the response comes back through `outbox.rs`. What else owns responses, and decides when they are
//! drawn, meets the server in `gate.rs` and `owner.rs`: the episodes of a training run (`episodes/`).

pub mod arrivals;
mod bodies;
pub mod connections;
mod driver;
mod encoding;
pub mod episodes;
mod gate;
mod grammars;
pub mod guard;
mod images;
mod limits;
mod lines;
mod metrics;
mod outbox;
mod owner;
mod protocol;
#[cfg(test)]
#[path = "rig_tests.rs"]
mod rig;
mod routes;
mod server;
mod state;

pub use bodies::Bodies;
pub use images::{ImageHosts, ImageTower, ServedImages};
pub use limits::{CHOICES_MAX, host_bytes};
pub use state::{ServedAdapter, Settings, Texts};

use axum::Router;
use episodes::EpisodeTable;
use gate::OwnedRoutes;
use limits::{BODIES_MAX, Limits, RECEIVE_BYTES, SEND_BYTES};
use plimsoll_base::{Error, Result};
use plimsoll_rollout::{EngineLimits, Live};
use rustix::net::sockopt;
use state::{QueuedRequest, ServerState};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use tokio::sync::watch;

/// Listens for clients. Connections have a thread of their own; the engine is lent by the caller.
pub struct Server {
    state: Arc<ServerState>,
    inbox: Receiver<QueuedRequest>,
    /// Episodes that clients play; none for a server of its own.
    episodes: Option<Arc<EpisodeTable>>,
    /// Requests that wait for the next rollout.
    held: RefCell<VecDeque<QueuedRequest>>,
    ended: watch::Sender<bool>,
    http: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Listens for an engine with these limits. `episodes`: those of a training run, which clients then play.
    ///
    /// Errors: `thread-not-started`.
    pub fn start(
        engine: &EngineLimits,
        texts: Texts,
        settings: Settings,
        listener: TcpListener,
        episodes: Option<Arc<EpisodeTable>>,
    ) -> Result<Server> {
        let limits = Limits::of(engine, settings.queue);
        let (send, inbox) = std::sync::mpsc::channel();
        let owned = episodes.clone().map(|episodes| episodes as Arc<dyn OwnedRoutes>);
        let routes = episodes.clone().map(episodes::router);
        let state = Arc::new(ServerState::new(texts, settings, limits, send, owned));
        let (ended, stopping) = watch::channel(false);
        let of = state.clone();
        let http = std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                let done = run_http(listener, (of.clone(), routes), stopping);
                // Without connections there is nothing left to do for the engine.
                of.abandon();
                done
            })
            .map_err(|err| Error::new("thread-not-started", format!("the thread of connections: {err}")))?;
        Ok(Server { state, inbox, episodes, held: RefCell::default(), ended, http: Some(http) })
    }

    /// Answers requests until `stop` has a signal; then takes no more, and ends when those that run have ended or their
    /// time is over. `live` is driven by this thread, and so is `tower`, which images need.
    ///
    /// Errors: `address-refused`; those of the device.
    pub fn serve(
        mut self,
        live: Live<'_, '_, '_>,
        tower: Option<&mut dyn ImageTower>,
        stop: &AtomicI32,
    ) -> Result<()> {
        let drove = driver::drive(live, &self.inbox, (&self.state, tower), stop);
        let served = self.close();
        drove?;
        served
    }

    fn close(&mut self) -> Result<()> {
        let _ = self.ended.send(true);
        let Some(http) = self.http.take() else { return Ok(()) };
        let served =
            http.join().map_err(|_| Error::new("internal", "the thread of connections has panicked"))?;
        served.map_err(|err| Error::new("address-refused", format!("the listener: {err}")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(episodes) = &self.episodes {
            episodes.end();
        }
        self.state.stop();
        let stopping = Error::new("serve-stopping", "the run has ended");
        self.held.take().iter().for_each(|request| request.fail(&stopping));
        // What the listener failed of is of no use any more.
        let _ = self.close();
    }
}

fn run_http(
    listener: TcpListener,
    (state, routes): (Arc<ServerState>, Option<Router<Arc<ServerState>>>),
    stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BODIES_MAX + 1).build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        // Connections take their buffers' sizes from it.
        sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES)?;
        sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BYTES)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (most, count) = (state.limits.connections(), state.metrics.connections.clone());
        connections::accept(listener, routes::router(state, routes), most, count, stopping).await;
        Ok(())
    })
}
