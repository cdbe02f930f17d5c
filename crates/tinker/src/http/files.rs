//! Downloads of saved weights: addresses that need no token, for programs that send none, and what is at them.
//!
//! An address has a ticket, a random word that is good for a while and for one store. Tickets are in memory: after a
//! restart a client asks for others.

use super::call::PREFIX;
use super::runs::decoded;
use super::tar::{StoredFile, files_of, tar_bytes, write_file, write_tar};
use crate::names;
use crate::record::SavedRow;
use crate::service::Tinker;
use crate::state::{not_found, now, time_text};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use plimsoll_base::{Error, Result};
use plimsoll_serve::guard::new_token;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Where downloads begin, below the protocol's routes.
pub const FILES: &str = "files/";
/// The name of the tar of all files of a store.
const ARCHIVE: &str = "archive.tar";
/// The file by which clients tell a whole archive; it has no bytes.
const COMPLETE: &str = "checkpoint_complete";
/// Seconds for which an address is good.
const TICKET_SECONDS: u64 = 3600;
/// Most tickets; the oldest goes first.
const TICKETS_MAX: usize = 1024;
/// Most downloads at one time, and pieces of one that wait for its reader.
const DOWNLOADS_MAX: usize = 8;
const PIECES_MAX: usize = 2;

/// Addresses that were given out, and downloads that may begin.
pub struct Downloads {
    tickets: Mutex<BTreeMap<String, Ticket>>,
    places: Arc<Semaphore>,
}

#[derive(Clone)]
struct Ticket {
    tenant: String,
    path: String,
    expires: u64,
}

impl Downloads {
    pub fn new() -> Downloads {
        Downloads { tickets: Mutex::default(), places: Arc::new(Semaphore::new(DOWNLOADS_MAX)) }
    }

    /// Answers a request for addresses of saved weights; `None` for a path that asks for none.
    ///
    /// Errors: `tinker-not-found`, `tinker-bad-request`, `io-error`.
    pub fn addresses(
        &self,
        tinker: &Tinker,
        tenant: &str,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Option<Value>> {
        let parts: Vec<&str> = path.split('/').collect();
        let ["training_runs", run, "checkpoints", kind, name, what @ ("archive" | "external_weights_urls")] =
            parts[..]
        else {
            return Ok(None);
        };
        if tinker.settings.folders.is_none() {
            return Ok(None);
        }
        let path = format!("tinker://{}/{kind}/{name}", decoded(run));
        let (_, files) = stored(tinker, tenant, &path)?;
        let (word, expires) = self.ticket(tenant, &path)?;
        let at = |name: &str| format!("{}{FILES}{word}/{name}", base_of(headers));
        let expires = time_text(expires);
        if what == "archive" {
            return Ok(Some(json!({ "url": at(ARCHIVE), "expires": expires })));
        }
        let urls: Map<String, Value> =
            files.iter().map(|file| (file.name.clone(), at(&encoded(&file.name)).into())).collect();
        Ok(Some(json!({ "urls": urls, "expires": expires })))
    }

    /// Returns a new ticket and when it expires.
    fn ticket(&self, tenant: &str, path: &str) -> Result<(String, u64)> {
        let (word, expires) = (new_token()?, now().saturating_add(TICKET_SECONDS));
        let mut tickets = self.tickets.lock().expect("no holder of this lock panics");
        tickets.retain(|_, ticket| ticket.expires > now());
        if tickets.len() >= TICKETS_MAX {
            let oldest = tickets.iter().min_by_key(|(_, ticket)| ticket.expires);
            oldest.map(|(word, _)| word.clone()).map(|word| tickets.remove(&word));
        }
        tickets.insert(word.clone(), Ticket { tenant: tenant.into(), path: path.into(), expires });
        Ok((word, expires))
    }

    /// Sends what is at an address.
    ///
    /// Errors: `tinker-not-found`, `tinker-queue-full`, `io-error`.
    pub async fn send(&self, tinker: &Arc<Tinker>, path: &str) -> Result<Response> {
        let gone = || {
            let error = Error::new("tinker-not-found", "there is nothing at this address");
            error.hint("an address of saved weights is good for an hour; ask for another")
        };
        let (word, name) = path.split_once('/').ok_or_else(gone)?;
        let ticket = self.tickets.lock().expect("no holder of this lock panics").get(word).cloned();
        let ticket = ticket.filter(|ticket| ticket.expires > now()).ok_or_else(gone)?;
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Error::new("tinker-queue-full", format!("{DOWNLOADS_MAX} downloads are under way, the most"))
        })?;
        let (of, name) = (tinker.clone(), decoded(name));
        let listed = tokio::task::spawn_blocking(move || stored(&of, &ticket.tenant, &ticket.path));
        let (row, files) =
            listed.await.map_err(|_| Error::new("internal", "listing the files ended with a fault"))??;
        if name == ARCHIVE {
            let name = format!("{}.tar", names::kind_name(row.kind));
            return Ok(response(&name, tar_bytes(&files), (files, true), place));
        }
        let file = files.into_iter().find(|file| file.name == name).ok_or_else(gone)?;
        Ok(response(&name, file.bytes, (vec![file], false), place))
    }
}

/// Returns saved weights and their files.
fn stored(tinker: &Tinker, tenant: &str, path: &str) -> Result<(SavedRow, Vec<StoredFile>)> {
    names::parts(path)?;
    let row = tinker.lock().saved(tenant, path)?.clone();
    let folders = tinker.settings.folders.as_ref().ok_or_else(|| not_found("download", path))?;
    let mut files = files_of(&(folders.0)(row.store))?;
    if !files.iter().any(|file| file.name == COMPLETE) {
        files.push(StoredFile { name: COMPLETE.into(), path: PathBuf::new(), bytes: 0 });
    }
    Ok((row, files))
}

/// Returns a response whose body is read from the disk as its reader takes it: a tar of the files, or their bytes.
fn response(
    name: &str,
    bytes: u64,
    (files, is_tar): (Vec<StoredFile>, bool),
    place: OwnedSemaphorePermit,
) -> Response {
    let (send, mut pieces) = mpsc::channel::<std::io::Result<Bytes>>(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let mut give = |piece: Vec<u8>| send.blocking_send(Ok(piece.into())).is_ok();
        let written = if is_tar {
            write_tar(&files, &mut give)
        } else {
            files.iter().try_for_each(|file| write_file(file, &mut give).map(drop))
        };
        if let Err(err) = written {
            // The connection breaks off, so that the client does not take a part for the whole.
            let _ = send.blocking_send(Err(err));
        }
    });
    let body = Body::from_stream(stream::poll_fn(move |context| pieces.poll_recv(context)));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_string()),
        (header::CONTENT_LENGTH, bytes.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{}\"", encoded(name))),
    ];
    (headers, body).into_response()
}

/// Returns where this server's routes are for the client that asks.
fn base_of(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let scheme = if text("x-forwarded-proto") == "https" { "https" } else { "http" };
    format!("{scheme}://{}{}", text("host"), PREFIX)
}

/// Encodes a name for an address.
fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}
