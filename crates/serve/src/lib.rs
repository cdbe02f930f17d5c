//! The rollout engine over HTTP: OpenAI's completions and chats, vLLM's token endpoint, and what a service needs around
//! them. It owns the protocol, who is let in, and the thread that drives the engine's slots.
//!
//! It refuses what it does not have by the name of the field, what does not fit by its numbers, and knows no planner, no
//! file and no weights. A request goes from `server.rs` through `asked.rs` and one of `chat.rs`, `completions.rs` and
//! `tokens.rs` to `driver.rs`; what is drawn comes back through `outbox.rs`.

mod asked;
mod bodies;
mod chat;
mod completions;
mod connections;
mod driver;
mod fields;
pub mod guard;
mod house;
mod limits;
mod logprobs;
mod messages;
mod metrics;
mod outbox;
mod refusal;
mod reply;
mod server;
mod tokens;

pub use bodies::Bodies;
pub use house::{Settings, Texts};
pub use limits::{CHOICES_MAX, host_bytes};

use house::House;
use limits::{BODIES_MAX, Limits, RECEIVE_BYTES, SEND_BYTES};
use plimsoll_base::{Error, Result};
use plimsoll_rollout::Live;
use rustix::net::sockopt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use tokio::sync::watch;

/// Answers requests until `stop` has a signal; then takes no more, and ends when those that run have ended or their time
/// is over. `live` is driven by this thread.
///
/// Errors: `address-refused`, `thread-not-started`; those of the device.
pub fn serve(
    live: Live<'_, '_, '_>,
    texts: Texts,
    settings: Settings,
    listener: TcpListener,
    stop: &AtomicI32,
) -> Result<()> {
    let limits = Limits::of(live.limits(), settings.queue);
    let (send, inbox) = std::sync::mpsc::channel();
    let house = Arc::new(House::new(texts, settings, limits, send));
    let (ended, stopping) = watch::channel(false);
    let of = house.clone();
    let http = std::thread::Builder::new()
        .name("http".into())
        .spawn(move || {
            let done = run_http(listener, of.clone(), stopping);
            // Without connections there is nothing left to do for the engine.
            of.abandon();
            done
        })
        .map_err(|err| Error::new("thread-not-started", format!("the thread of connections: {err}")))?;
    let drove = driver::drive(live, &inbox, &house, stop);
    let _ = ended.send(true);
    let served = http.join().map_err(|_| Error::new("internal", "the thread of connections has panicked"))?;
    drove?;
    served.map_err(|err| Error::new("address-refused", format!("the listener: {err}")))
}

fn run_http(listener: TcpListener, house: Arc<House>, stopping: watch::Receiver<bool>) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BODIES_MAX).build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        // Connections take their buffers' sizes from it.
        sockopt::set_socket_send_buffer_size(&listener, SEND_BYTES)?;
        sockopt::set_socket_recv_buffer_size(&listener, RECEIVE_BYTES)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        connections::accept(listener, server::router(house.clone()), house, stopping).await;
        Ok(())
    })
}
