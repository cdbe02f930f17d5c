//! `http://…` and `https://…`: a reward served at an address, by the protocol of OpenRLHF's remote reward models.
//!
//! `POST {"query": […], "prompts": […], "labels": […]}` returns `{"rewards": […]}`; a query is prompt and response.
//! If a prompt has images, `images` has a list of them for each query.

use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, answer, plain};
use crate::spec::RewardSpec;
use plimsoll_base::{Error, JsonPart, Result, shown_address, slugs};
use plimsoll_worker::{RewardStep, STEPS_MAX, Scores, image_lists, read_steps_of};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::{Agent, Body};

/// Most bytes of a reply: a score takes about 25, and a reply may log more.
pub(crate) const REPLY_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of the reason that comes with a status other than success; a longer one is not shown.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// Most characters of it in a message.
const SAID_CHARS_MAX: usize = 300;
/// Most characters of a value in a message.
const SHOWN_CHARS: usize = 80;
/// Most bytes of a step in a reply: two numbers.
const STEP_BYTES_MAX: usize = 128;
/// Replaces a secret in messages.
const NOT_SHOWN: &str = "(not shown)";
/// Bytes of a body that are read at a time.
const BODY_BYTES: usize = 64 << 10;
/// Says what an address with `user:password@` is. The run file is copied into the run directory.
const WITH_USER: &str = "an address with a name or a password in it";
/// Shorter keys guard nothing, and are words that a reply may have: `none`, `1`.
const KEY_BYTES_MIN: usize = 8;
/// First pause before a retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reads `http://ADDRESS` and `https://ADDRESS`.
///
/// Errors: `bad-value` for an address with a user or a password.
pub(crate) fn read(spec: &RewardSpec, argument: Option<&str>) -> Result<Option<Reading>> {
    let Some(address) = argument.and_then(|argument| argument.strip_prefix("//")) else { return Ok(None) };
    if has_user(address) {
        let message = format!("the reward's `kind` is {WITH_USER}: {}", shown_address(&spec.kind));
        return Err(Error::usage("bad-value", message).hint(
            "let the server be reached without a password, for example through a proxy on this machine",
        ));
    }
    let url = spec.kind.clone();
    let starts = Reading::starts("http", |Start { name, spec, limits, .. }| {
        let answer_column = spec.answer_column.clone();
        let client = Client::new(url, name, limits.timeout, None);
        Ok(Box::new(Http { answer_column, client, steps: spec.steps }))
    });
    Ok((!address.is_empty() && !address.starts_with('/')).then_some(starts))
}

/// A connection to a reward.
struct Http {
    answer_column: String,
    client: Client,
    /// True if steps are read.
    steps: bool,
}

impl Scorer for Http {
    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        self.ask(cases)
    }
}

impl Http {
    /// Requests the scores of a batch.
    fn ask(&self, cases: &[Arc<Case>]) -> Result<Scores> {
        let answers: Vec<&Value> =
            cases.iter().map(|case| answer(&case.prompt.columns, &self.answer_column)).collect();
        let queries: Vec<String> =
            cases.iter().map(|case| format!("{}{}", case.prompt.rendered, case.response)).collect();
        let prompts: Vec<&str> = cases.iter().map(|case| case.prompt.rendered.as_str()).collect();
        let mut body = json!({ "query": queries, "prompts": prompts, "labels": answers });
        let images: Vec<_> = cases.iter().map(|case| case.prompt.images.clone()).collect();
        if let Some(images) = image_lists(&images) {
            body["images"] = images.into();
        }
        self.read(&self.client.post(&body.to_string())?, cases)
    }

    fn read(&self, reply: &[u8], cases: &[Arc<Case>]) -> Result<Scores> {
        let samples = cases.len();
        let bad = |what: String| {
            let error = self.client.bad_reply(&what);
            error.hint("answer with {\"rewards\": [...]}: one number or null a query, in order")
        };
        let reply = JsonPart::of(reply).map_err(bad)?;
        let list = reply.field("rewards").map_err(bad)?;
        let list = list.and_then(|list| Some((list, list.count()?)));
        let Some((list, count)) = list else { return Err(bad("without a list `rewards`".into())) };
        if count != samples {
            return Err(bad(format!("{count} rewards for {samples} queries")));
        }
        let mut scores = Vec::with_capacity(samples);
        list.each(&mut |value| {
            let score = value.number();
            if score.is_none() && !value.is_null() {
                return Err(bad(format!("the reward {}", self.client.part_said(value))));
            }
            scores.push(score);
            Ok(())
        })?;
        let steps = match reply.field("steps").map_err(bad)?.filter(|_| self.steps) {
            Some(lists) => self.steps(lists, cases).map_err(bad)?,
            None => Vec::new(),
        };
        Ok(Scores { steps, ..plain(scores) })
    }

    /// Reads the steps of each response, one list after the other.
    fn steps(
        &self,
        lists: JsonPart<'_>,
        cases: &[Arc<Case>],
    ) -> std::result::Result<Vec<Vec<RewardStep>>, String> {
        let count = lists.count().ok_or("no list of steps for each completion")?;
        if count != cases.len() {
            return Err(format!("steps of {count} completions for {}", cases.len()));
        }
        let mut all = Vec::with_capacity(count);
        lists.each(&mut |list| {
            let index = all.len();
            let who = |what: String| format!("steps of completion {index} that are none: {what}");
            let mut read: Vec<Value> = Vec::new();
            match list.count() {
                Some(count) if count > STEPS_MAX => {
                    return Err(who(format!("{count} of them, and at most {STEPS_MAX} are read")));
                }
                None if !list.is_null() => return Err(who(self.client.part_said(list))),
                _ => {}
            }
            list.each(&mut |step| {
                let is_short = step.text().len() <= STEP_BYTES_MAX;
                let value = is_short.then(|| serde_json::from_str(step.text()).ok()).flatten();
                let number = read.len();
                read.push(value.ok_or_else(|| {
                    who(format!("step {number} is {}, not [end, reward]", self.client.part_said(step)))
                })?);
                Ok::<(), String>(())
            })?;
            all.push(read_steps_of(index, &read, &cases[index].response)?);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Sends JSON to an address, without a pause and without retries.
pub(crate) struct Client {
    agent: Agent,
    /// Where requests go; in no message.
    url: String,
    /// The address in messages: without user, password and query.
    shown: String,
    /// Texts that no message may have: the key, and the parts of the address that are not shown.
    hidden: Vec<String>,
    /// Who asks, as messages begin: reward `judge`.
    who: String,
    /// The table with its keys, and what eases a server that is late.
    table: &'static str,
    timeout: Duration,
    /// Sent as `Authorization: Bearer`; shown nowhere.
    key: Option<String>,
}

impl Client {
    /// Makes the client of a reward; does not connect yet.
    pub(crate) fn new(url: String, name: &str, timeout: Duration, key: Option<String>) -> Client {
        Client::of(url, format!("reward `{name}`"), "[[reward]]", timeout, key)
    }

    /// Makes the client of `who`, whose keys are in `table`; does not connect yet.
    pub(crate) fn of(
        url: String,
        who: String,
        table: &'static str,
        timeout: Duration,
        key: Option<String>,
    ) -> Client {
        let config = Agent::config_builder()
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        let (shown, hidden) = (shown_address(&url), hidden(&url, key.as_deref()));
        Client { agent: config.into(), url, shown, hidden, who, table, timeout, key }
    }

    /// Returns the address as messages have it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// Returns what a server said without the key and the address's secrets, which it may repeat.
    pub(crate) fn without_key(&self, said: &str) -> String {
        let none = |said: String, secret: &String| said.replace(secret, NOT_SHOWN);
        self.hidden.iter().fold(said.to_string(), none)
    }

    /// Returns the beginning of a value of a reply for a message.
    fn part_said(&self, part: JsonPart<'_>) -> String {
        let string = part.string();
        let said = self.without_key(string.as_deref().unwrap_or(part.text()));
        let said: String = said.chars().take(SHOWN_CHARS).collect();
        if string.is_some() { format!("{said:?}") } else { said }
    }

    /// Makes the error of a reply that cannot be read; `what` follows "answered".
    pub(crate) fn bad_reply(&self, what: &str) -> Error {
        let what = self.without_key(what);
        Error::new(slugs::REWARD_BAD_REPLY, format!("{}: {} answered {what}", self.who, self.shown))
    }

    /// Returns the reply to a request of JSON.
    ///
    /// Errors: `reward-http-timeout`, `reward-http-failed`.
    pub(crate) fn post(&self, body: &str) -> Result<Vec<u8>> {
        let request = self.agent.post(&self.url).header("Content-Type", "application/json");
        let request = match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        };
        let mut response = request.send(body.as_bytes()).map_err(|err| self.failed(&err))?;
        let status = response.status();
        if !status.is_success() {
            let said = response.body_mut().with_config().limit(SAID_BYTES_MAX).read_to_vec();
            return Err(self.refused(status.as_u16(), &said.unwrap_or_default()));
        }
        read_body(response.body_mut()).map_err(|err| self.failed(&err))
    }

    fn failed(&self, err: &ureq::Error) -> Error {
        if matches!(err, ureq::Error::Timeout(_)) {
            let (who, url, limit) = (&self.who, &self.shown, self.timeout.as_millis());
            return Error::new(
                slugs::REWARD_HTTP_TIMEOUT,
                format!("{who}: {url} did not answer within {limit} ms"),
            )
            .hint(match self.table {
                "[[reward]]" => "raise `timeout_ms` in the [[reward]] table, or give the server less at a time with more `workers`".to_string(),
                table => format!("raise `timeout_ms` in {table}, or give the server less at a time with fewer `workers`"),
            });
        }
        // The library may repeat the address, or a line of the server's.
        let said = self.without_key(&err.to_string().replace(&self.url, &self.shown));
        Error::new(slugs::REWARD_HTTP_FAILED, format!("{}: {}: {said}", self.who, self.shown))
            .hint("check that the server runs and that the address is right")
    }

    fn refused(&self, status: u16, said: &[u8]) -> Error {
        let said = self.without_key(&String::from_utf8_lossy(said));
        let said: String = said.chars().take(SAID_CHARS_MAX).collect();
        let error = Error::new(
            slugs::REWARD_HTTP_FAILED,
            format!("{}: {} answered with status {status}", self.who, self.shown),
        )
        .hint("look into the server's own log");
        if said.is_empty() { error } else { error.fact(format!("it says {said:?}")) }
    }
}

/// Reads a body of at most `REPLY_BYTES_MAX` bytes into a buffer that never holds more.
fn read_body(body: &mut Body) -> std::result::Result<Vec<u8>, ureq::Error> {
    let most = REPLY_BYTES_MAX as usize;
    let length = body.content_length().unwrap_or(0).min(REPLY_BYTES_MAX) as usize;
    let mut reply = Vec::with_capacity(length.max(BODY_BYTES));
    let mut reader = body.with_config().limit(REPLY_BYTES_MAX).reader();
    let mut piece = [0; BODY_BYTES];
    loop {
        let count = reader.read(&mut piece).map_err(from_io)?;
        if count == 0 {
            return Ok(reply);
        }
        let room = reply.capacity() - reply.len();
        if count > room {
            // Doubled, and never beyond the limit, which the reader keeps.
            let doubled = (2 * reply.capacity()).min(most.max(reply.len() + count));
            reply.reserve_exact(doubled - reply.len());
        }
        reply.extend_from_slice(&piece[..count]);
    }
}

/// Returns the library's own error, which it wraps while a body is read.
fn from_io(err: std::io::Error) -> ureq::Error {
    ureq::Error::from(err)
}

/// Returns true if what follows `//` begins with a user or a password.
fn has_user(address: &str) -> bool {
    let end = address.find(['/', '?', '#']).unwrap_or(address.len());
    address[..end].contains('@')
}

/// Returns what messages leave out: the key, and the values of the address's query.
fn hidden(url: &str, key: Option<&str>) -> Vec<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let values = query.split(['&', '#']).map(|pair| pair.split_once('=').map_or(pair, |(_, value)| value));
    let mut hidden: Vec<String> = key
        .into_iter()
        .chain(values)
        .filter(|word| word.len() >= KEY_BYTES_MIN)
        .map(str::to_string)
        .collect();
    // A secret that begins with another is replaced whole.
    hidden.sort_by_key(|word| std::cmp::Reverse(word.len()));
    hidden
}

/// Returns the address of requests: `path` of the server at `url`.
///
/// Errors: words on what the address is instead, after "it has".
pub(crate) fn address(url: &str, path: &str) -> std::result::Result<String, String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    if rest.is_empty() || rest.starts_with(['/', '?', '#']) {
        return Err(format!("the address {:?}, which is none of http:// or https://", shown_address(url)));
    }
    if has_user(rest) {
        return Err(WITH_USER.to_string());
    }
    // A query stays last.
    let end = url.find(['?', '#']).unwrap_or(url.len());
    Ok(format!("{}/{path}{}", url[..end].trim_end_matches('/'), &url[end..]))
}

/// Returns a server's key from the environment.
///
/// Errors: words on what the variable is instead; its text is in none.
pub(crate) fn key(variable: &str) -> std::result::Result<String, &'static str> {
    let key = std::env::var(variable).map_err(|_| "is not set")?;
    if !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(key)
    } else {
        Err("is no key: it is empty, or has spaces or other characters that keys do not have")
    }
}

/// Returns the pause before attempt `attempt`, counted from 1.
pub(crate) fn pause_before(attempt: u32) -> Duration {
    PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_worker::RewardStep;

    #[test]
    fn messages_have_neither_the_key_nor_what_an_address_hides() {
        let url = "http://h/v1/completions?api_key=SECRET-OF-QUERY";
        let key = Some("sk-SECRET-KEY".to_string());
        let client = Client::of(url.into(), "the teacher".into(), "[t]", Duration::from_secs(1), key);
        let said = "repeats \"Bearer sk-SECRET-KEY\" and SECRET-OF-QUERY";
        let failed = ureq::Error::BadUri(format!("{url} {said}"));
        for error in [client.bad_reply(said), client.failed(&failed), client.refused(500, said.as_bytes())] {
            let text = error.to_string();
            assert!(!text.contains("SECRET") && text.contains("(not shown)"), "{text}");
            assert!(text.contains("the teacher: http://h/v1/completions"), "{text}");
        }
        assert_eq!(address("http://h/v1/?k=v", "x").as_deref(), Ok("http://h/v1/x?k=v"));
        for url in ["http://u@h/v1", "http://u:p@h?x", "http://", "http:///v1", "h/v1"] {
            assert!(address(url, "x").is_err(), "{url}");
        }
        let of = |kind: &str| RewardSpec::of_kind(kind).check();
        let error = of("http://user:SECRET@h/r?k=SECRET").expect_err("a password");
        assert!(error.slug == "bad-value" && !error.to_string().contains("SECRET"), "{error}");
        assert!(of("http://h/r?to=a@b").is_ok());
    }

    #[test]
    fn a_server_may_give_steps_where_the_run_reads_them() {
        let case = |response: &str| {
            Arc::new(Case {
                prompt: Arc::default(),
                response: response.into(),
                completion: None,
                response_ids: Vec::new(),
                max_new_tokens: 8,
                ended: true,
            })
        };
        let cases = [case("12+3"), case("7")];
        let read = |steps: bool, reply: &str| {
            let client = Client::new("http://a/b".into(), "http", Duration::from_secs(1), None);
            Http { answer_column: String::new(), client, steps }.read(reply.as_bytes(), &cases)
        };
        let reply = r#"{"rewards": [1, null], "steps": [[[2, 0.5], [4, -1]], null]}"#;
        let scores = read(true, reply).expect("a good reply");
        assert_eq!(scores.scores, [Some(1.0), None]);
        let steps = [(2, 0.5), (4, -1.0)].map(|(end, reward)| RewardStep { end, reward });
        assert_eq!(scores.steps, [steps.to_vec(), vec![]]);
        assert!(read(false, reply).expect("a good reply").steps.is_empty());
        assert_eq!(read(true, r#"{"rewards": [1, 2]}"#).expect("steps may be absent").steps.len(), 0);
        let bad = r#"{"rewards": [1, 2], "steps": [[[5, 1]], null]}"#;
        let error = read(true, bad).expect_err("beyond the text");
        assert!(error.slug == slugs::REWARD_BAD_REPLY && error.message.contains("ends at 5"), "{error}");
    }
}
