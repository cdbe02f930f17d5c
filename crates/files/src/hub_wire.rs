//! Requests that change the hub: JSON in and out, files as bodies, retried a bounded number of times if the connection
//! breaks, the server fails, or the rate limit is reached.

use crate::hub::Hub;
use plimsoll_base::{Error, JsonPart, Result, shown_address};
use serde_json::Value;
use std::io::{self, Read};
use std::thread::sleep;
use std::time::Duration;
use ureq::http::Response;
use ureq::{Agent, Body, SendBody};

/// Attempts at one request.
const ATTEMPTS_MAX: u32 = 5;
/// Pause after the first attempt, unless the server asks for one; it doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// Most bytes of an answer to read, and to show.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of an answer as a tree: an upload in 10,000 parts, with an address of 800 bytes each, takes 12 MiB.
const ANSWER_TREE_BYTES_MAX: usize = 24 << 20;
const SHOWN_CHARS_MAX: usize = 300;
/// Lowest speed of a connection, and its additional time.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
const BODY_EXTRA: Duration = Duration::from_secs(300);

const JSON: &str = "application/json";
const LFS: &str = "application/vnd.git-lfs+json";
const LINES: &str = "application/x-ndjson";

/// A connection to the hub with a token. No `Debug`: the token must not be printed.
pub(crate) struct Wire {
    hub: Hub,
    token: String,
    agent: Agent,
    pub(crate) pause: Duration,
}

/// A status, and the answer as JSON; null if it is not JSON.
type Answer = (u16, Value);

impl Wire {
    /// Makes a connection. Errors: `push-refused` without a token, `hub-unreachable` if HF_HUB_OFFLINE is set.
    pub fn new(hub: Hub) -> Result<Wire> {
        if hub.offline {
            return Err(Error::new("hub-unreachable", "HF_HUB_OFFLINE is set, and an upload needs the hub")
                .hint("unset it, or push from a machine that has a network"));
        }
        let Some(token) = hub.token.clone() else {
            return Err(Error::new("push-refused", "there is no token of the hub")
                .hint("set HF_TOKEN to one that may write, or store one with `hf auth login`"));
        };
        let agent = Agent::config_builder()
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(300)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            // A redirect would turn an upload into a GET.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build()
            .into();
        Ok(Wire { hub, token, agent, pause: PAUSE })
    }

    pub fn endpoint(&self) -> &str {
        &self.hub.endpoint
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        let url = self.endpoint().to_string() + path;
        let response =
            self.answered(&url, || Ok(self.agent.get(&url).header("Authorization", self.bearer()).call()))?;
        Ok(answer(response))
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.post_text(&(self.endpoint().to_string() + path), JSON, &body.to_string())
    }

    /// Posts to Git LFS.
    pub fn post_lfs(&self, path: &str, body: &Value) -> Result<Answer> {
        self.post_lfs_to(&(self.endpoint().to_string() + path), body)
    }

    /// Posts LFS JSON to an address that the hub gave.
    pub fn post_lfs_to(&self, url: &str, body: &Value) -> Result<Answer> {
        self.post_text(url, LFS, &body.to_string())
    }

    pub fn post_lines(&self, path: &str, body: &str) -> Result<Answer> {
        self.post_text(&(self.endpoint().to_string() + path), LINES, body)
    }

    fn post_text(&self, url: &str, kind: &str, body: &str) -> Result<Answer> {
        let send = || {
            let accept = if kind == LFS { LFS } else { JSON };
            let request = self.agent.post(url).header("Content-Type", kind).header("Accept", accept);
            let request =
                if self.is_hub(url) { request.header("Authorization", self.bearer()) } else { request };
            Ok(request.send(body))
        };
        Ok(answer(self.answered(url, send)?))
    }

    /// Sends `bytes` bytes from `open`, reopened for each attempt. Returns the etag, or a status other than success.
    pub fn put(
        &self,
        url: &str,
        header: &Value,
        bytes: u64,
        open: &dyn Fn() -> Result<Box<dyn Read>>,
        count: &mut dyn FnMut(u64),
    ) -> Result<std::result::Result<Option<String>, u16>> {
        let longest = BODY_EXTRA + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        let response = self.answered(url, || {
            let mut reader = Counted { inner: open()?, read: 0, count: &mut *count };
            let request = self.agent.put(url).config().timeout_send_body(Some(longest)).build();
            let request = given(header).fold(request, |request, (key, value)| request.header(key, value));
            let request = request.header("Content-Length", bytes.to_string());
            Ok(request.send(SendBody::from_reader(&mut reader)))
        })?;
        let etag = response.headers().get("etag").and_then(|etag| etag.to_str().ok()).map(str::to_string);
        Ok(if response.status().is_success() { Ok(etag) } else { Err(response.status().as_u16()) })
    }

    /// Repeats a request until the answer is other than "later". An error of `send` ends it at once.
    fn answered(
        &self,
        url: &str,
        mut send: impl FnMut() -> Result<std::result::Result<Response<Body>, ureq::Error>>,
    ) -> Result<Response<Body>> {
        let (mut last, mut pause, mut is_limit) = (String::new(), self.pause, false);
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                sleep(pause);
                pause = self.pause * 2u32.pow(attempt);
            }
            let response = match send()? {
                Ok(response) => response,
                Err(err) => {
                    (last, is_limit) = (err.to_string(), false);
                    continue;
                }
            };
            let status = response.status().as_u16();
            is_limit = status == 429;
            match status {
                429 | 503 => pause = self.asked_pause(url, &response)?.max(pause),
                408 | 500..=599 => {}
                _ => return Ok(response),
            }
            last = format!("the answer was {status}");
        }
        Err(if is_limit {
            self.limited(url, &format!("{ATTEMPTS_MAX} attempts"))
        } else {
            self.interrupted(&shown_address(url), &last, ATTEMPTS_MAX)
        })
    }

    /// Returns the pause that a server asks for; 0 without such a header.
    fn asked_pause(&self, url: &str, response: &Response<Body>) -> Result<Duration> {
        let header = response.headers().get("retry-after").and_then(|text| text.to_str().ok());
        let asked = Duration::from_secs(header.and_then(|text| text.trim().parse().ok()).unwrap_or(0));
        if asked > RETRY_AFTER_MAX {
            Err(self.limited(url, &format!("it asks for a pause of {} s", asked.as_secs())))
        } else {
            Ok(asked)
        }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// Returns true if an address belongs to the endpoint, where the token may go.
    fn is_hub(&self, url: &str) -> bool {
        let origin = crate::hub::origin(self.endpoint());
        url.strip_prefix(origin).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }

    /// Requires that data of an encrypted hub is not sent to an unencrypted address.
    pub fn require_safe(&self, url: &str) -> Result<()> {
        let is_safe = url.starts_with("https://")
            || (url.starts_with("http://") && !self.endpoint().starts_with("https://"));
        if is_safe { Ok(()) } else { Err(self.strange("an upload would go to an address that is not https")) }
    }

    /// Returns the error for an answer outside this protocol.
    pub fn strange(&self, what: &str) -> Error {
        Error::new("push-rejected", format!("{}: {what}", shown_address(self.endpoint())))
            .hint("check that HF_ENDPOINT is a hub that takes uploads")
    }

    /// Returns the error for a request that failed each time.
    pub fn interrupted(&self, what: &str, last: &str, attempts: u32) -> Error {
        let last = self.without_token(last);
        Error::new("push-interrupted", format!("{what}: {last}, {attempts} attempts"))
            .hint("run the command again: files that are there already are not sent again")
    }

    fn limited(&self, url: &str, why: &str) -> Error {
        Error::new(
            "push-rate-limited",
            format!("{}: the answer was 429: too many requests: {why}", shown_address(url)),
        )
        .hint("wait some minutes and run the command again: files that are there already are not sent again")
    }

    fn without_token(&self, text: &str) -> String {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        text.replace(&self.token, "(token)").chars().take(SHOWN_CHARS_MAX).collect()
    }
}

/// Returns the error for a status other than success; `what` was requested.
pub(crate) fn refused_by(wire: &Wire, what: &str, status: u16, answer: &Value) -> Error {
    let words = ["error", "message"].iter().find_map(|key| answer[*key].as_str()).unwrap_or_default();
    let words = wire.without_token(words);
    let message = if words.is_empty() {
        format!("{what}: the hub answered {status}")
    } else {
        format!("{what}: the hub answered {status}: {words}")
    };
    match status {
        401 => Error::new("push-refused", message)
            .hint("HF_TOKEN, or the token that is stored, is not valid: make a new one"),
        403 => Error::new("push-refused", message).hint(
            "the token may not write there: it needs the right to write, and you a place in the organisation",
        ),
        404 => Error::new("push-repo-missing", message)
            .hint("check the name and the branch; --create makes a repository"),
        409 | 412 => Error::new("push-conflict", message)
            .hint("something else changed it meanwhile: run the command again"),
        413 => Error::new("push-too-large", message)
            .hint("push an adapter instead of a merged model, or ask the hub for a higher limit"),
        _ => Error::new("push-rejected", message),
    }
}

fn answer(response: Response<Body>) -> Answer {
    let status = response.status().as_u16();
    let body =
        response.into_body().into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec().unwrap_or_default();
    // An answer of many small values is none of this protocol.
    let tree = JsonPart::of(&body).and_then(|answer| answer.tree(ANSWER_TREE_BYTES_MAX));
    (status, tree.unwrap_or_default())
}

/// Returns the headers that the hub wants with an upload, without those that describe parts.
fn given(header: &Value) -> impl Iterator<Item = (&str, &str)> {
    let pairs = header.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| {
        let is_own =
            ["host", "content-length", "transfer-encoding"].contains(&key.to_ascii_lowercase().as_str());
        (!is_own).then_some((key.as_str(), value.as_str()?))
    })
}

/// A reader that reports its progress.
struct Counted<'c> {
    inner: Box<dyn Read>,
    read: u64,
    count: &'c mut dyn FnMut(u64),
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.read += bytes as u64;
        (self.count)(self.read);
        Ok(bytes)
    }
}
