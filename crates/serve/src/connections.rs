//! Connections: how many there are, and how long a client may take to send a head or to read what it asked for.

use crate::house::House;
use crate::limits::{BUFFER_BYTES, FAREWELL, HEAD_WAIT, WRITE_WAIT};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Sleep, sleep};

/// How long to wait when the process has no file for another connection.
const NO_FILE_WAIT: Duration = Duration::from_millis(50);

/// Accepts connections until `stopping` says so, and then gives those that are open a while to end.
pub async fn accept(
    listener: TcpListener,
    app: Router,
    house: Arc<House>,
    mut stopping: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(house.limits.connections()));
    loop {
        // Without a place nothing is accepted: the kernel's queue holds who comes next.
        let place = places.clone().acquire_owned();
        let accepted = async {
            let place = place.await.expect("it is never closed");
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            _ = stopping.wait_for(|stops| *stops) => break,
        };
        let Ok((socket, _)) = accepted else {
            sleep(NO_FILE_WAIT).await;
            continue;
        };
        // Tokens are small, and each is to arrive at once.
        let _ = socket.set_nodelay(true);
        let (app, stopping, house) = (app.clone(), stopping.clone(), house.clone());
        tokio::spawn(async move {
            house.metrics.connections.add(1);
            connection(socket, app, stopping).await;
            house.metrics.connections.sub(1);
            drop(place);
        });
    }
    drop(listener);
    let all = house.limits.connections() as u32;
    let _ = tokio::time::timeout(FAREWELL, places.acquire_many(all)).await;
}

async fn connection(socket: TcpStream, app: Router, mut stopping: watch::Receiver<bool>) {
    let io = TokioIo::new(Patient { socket, stalled: None });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT).max_buf_size(BUFFER_BYTES);
    let mut served = pin!(http.serve_connection(io, TowerToHyperService::new(app)));
    tokio::select! {
        // An error of a connection is its client's: it has gone, or it spoke no HTTP.
        _ = served.as_mut() => return,
        _ = stopping.wait_for(|stops| *stops) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

/// A socket that gives up on a client that does not read.
struct Patient {
    socket: TcpStream,
    /// Runs while there is something to write and no room for it.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn wait<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.stalled = None;
            return wrote;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_WAIT)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.wait(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.wait(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.wait(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
