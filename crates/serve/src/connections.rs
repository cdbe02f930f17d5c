//! Accepts connections and bounds them: their number, the time a client has to send a head and to read its answer, and
//! which of them goes when one more comes (`lines.rs`).

use crate::limits::{BUFFER_BYTES, FAREWELL, HEAD_WAIT, WRITE_WAIT};
use crate::lines::{Busy, Line, Lines};
use crate::metrics::Count;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// Pause when the process has no file descriptor for another connection.
const NO_FILE_WAIT: Duration = Duration::from_millis(50);

/// Answers at a listener until the process ends, `most` connections at one time. Used by pages of other commands.
///
/// Errors: those of the listener.
pub async fn answer(listener: std::net::TcpListener, app: Router, most: usize) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (_never, stopping) = watch::channel(false);
    accept(TcpListener::from_std(listener)?, app, most, Arc::default(), stopping).await;
    Ok(())
}

/// Accepts connections until `stopping` says so, and then gives those that are open a while to end.
pub(crate) async fn accept(
    listener: TcpListener,
    app: Router,
    most: usize,
    count: Arc<Count>,
    mut stopping: watch::Receiver<bool>,
) {
    let lines = Lines::new(most);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stops| *stops) => break,
        };
        let Ok((socket, _)) = accepted else {
            sleep(NO_FILE_WAIT).await;
            continue;
        };
        let line = tokio::select! {
            line = lines.enter() => line,
            _ = stopping.wait_for(|stops| *stops) => break,
        };
        // Tokens are small, and each is to arrive at once.
        let _ = socket.set_nodelay(true);
        let (app, stopping, count) = (app.clone(), stopping.clone(), count.clone());
        tokio::spawn(async move {
            count.add(1);
            connection(socket, app, line, stopping).await;
            count.sub(1);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FAREWELL, lines.all_gone()).await;
}

async fn connection(socket: TcpStream, app: Router, line: Line, mut stopping: watch::Receiver<bool>) {
    let io = TokioIo::new(Patient { socket, stalled: None, awaits: line.awaits() });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WAIT).max_buf_size(BUFFER_BYTES);
    let inner = TowerToHyperService::new(app);
    let service = service_fn(|mut request: hyper::Request<Incoming>| {
        let has_body = !request.body().is_end_stream();
        // One whose body is still to come is idle until it has come.
        let busy = line.begin(has_body);
        request.extensions_mut().insert(busy.clone());
        let answer = inner.call(request);
        async move {
            let Ok(response) = answer.await;
            Ok::<Response, Infallible>(response.map(|body| Body::new(BusyBody { body, _busy: busy })))
        }
    });
    let mut served = pin!(http.serve_connection(io, service));
    tokio::select! {
        // An error of a connection is its client's: it has gone, or it spoke no HTTP.
        _ = served.as_mut() => return,
        () = line.told_to_go() => return,
        _ = stopping.wait_for(|stops| *stops) => {}
    }
    served.as_mut().graceful_shutdown();
    tokio::select! {
        _ = served => {}
        () = line.told_to_go() => {}
    }
}

/// Returns the guard that keeps a request's connection from being closed, once its body is there.
pub(crate) fn busy(request: &Request) -> Option<Busy> {
    request.extensions().get::<Busy>().cloned()
}

/// Waits until another client needs the place of this request.
pub(crate) async fn told_to_end(busy: Option<&Busy>) {
    match busy {
        Some(busy) => busy.told_to_end().await,
        None => pending().await,
    }
}

/// Sends the body of an answer, and keeps its connection busy until then.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Wraps a socket: gives up on a client that does not read, and says when there is nothing to read.
struct Patient {
    socket: TcpStream,
    /// Runs while there is something to write and no room for it.
    stalled: Option<Pin<Box<Sleep>>>,
    /// True while it has nothing to read.
    awaits: Arc<AtomicBool>,
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
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.awaits.store(read.is_pending(), Ordering::Relaxed);
        read
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
