//! `http://…` and `https://…`: a reward served at an address, by the protocol of OpenRLHF's remote reward models.
//!
//! `POST {"query": […], "prompts": […], "labels": […]}` returns `{"rewards": […]}`; a query is prompt and response.

use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, answer, plain};
use crate::spec::RewardSpec;
use plimsoll_base::{Error, Result, slugs};
use plimsoll_worker::{Scores, read_steps};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;

/// Most bytes of a reply: a score takes about 25, and a reply may log more.
pub(crate) const REPLY_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of the reason that comes with a status other than success; a longer one is not shown.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// Most characters of it in a message.
const SAID_CHARS_MAX: usize = 300;
/// Shorter keys guard nothing, and are words that a reply may have: `none`, `1`.
const KEY_BYTES_MIN: usize = 8;
/// First pause before a retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reads `http://ADDRESS` and `https://ADDRESS`.
pub(crate) fn read(spec: &RewardSpec, argument: Option<&str>) -> Option<Reading> {
    let address = argument?.strip_prefix("//")?;
    let url = spec.kind.clone();
    let starts = Reading::starts("http", |Start { name, spec, limits, .. }| {
        let answer_column = spec.answer_column.clone();
        let client = Client::new(url, name, limits.timeout, None);
        Ok(Box::new(Http { answer_column, client, steps: spec.steps }))
    });
    (!address.is_empty() && !address.starts_with('/')).then_some(starts)
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
        let body = json!({ "query": queries, "prompts": prompts, "labels": answers }).to_string();
        self.read(&self.client.post(&body)?, cases)
    }

    fn read(&self, reply: &[u8], cases: &[Arc<Case>]) -> Result<Scores> {
        let samples = cases.len();
        let bad = |what: &str| {
            Error::new(
                slugs::REWARD_BAD_REPLY,
                format!("{}: {} answered {what}", self.client.who, self.client.url),
            )
            .hint("answer with {\"rewards\": [...]}: one number or null a query, in order")
        };
        let reply: Value = serde_json::from_slice(reply).map_err(|_| bad("no JSON"))?;
        let Some(list) = reply.get("rewards").and_then(Value::as_array) else {
            return Err(bad("without a list `rewards`"));
        };
        if list.len() != samples {
            return Err(bad(&format!("{} rewards for {samples} queries", list.len())));
        }
        let one = |value: &Value| match value {
            Value::Null => Ok(None),
            Value::Number(number) => Ok(number.as_f64()),
            other => Err(bad(&format!("the reward {other:.80}"))),
        };
        let scores = list.iter().map(one).collect::<Result<_>>()?;
        let responses: Vec<&str> = cases.iter().map(|case| case.response.as_str()).collect();
        let steps = match reply.get("steps").filter(|_| self.steps) {
            Some(lists) => read_steps(lists, &responses).map_err(|what| bad(&what))?,
            None => Vec::new(),
        };
        Ok(Scores { steps, ..plain(scores) })
    }
}

/// Sends JSON to an address, without a pause and without retries.
pub(crate) struct Client {
    agent: Agent,
    url: String,
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
        Client { agent: config.into(), url, who, table, timeout, key }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// Returns what a server said without the key, which it may repeat.
    pub(crate) fn without_key(&self, said: &str) -> String {
        let key = self.key.as_ref().filter(|key| key.len() >= KEY_BYTES_MIN);
        key.map_or(said.to_string(), |key| said.replace(key, "(not shown)"))
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
        let reply = response.body_mut().with_config().limit(REPLY_BYTES_MAX).read_to_vec();
        reply.map_err(|err| self.failed(&err))
    }

    fn failed(&self, err: &ureq::Error) -> Error {
        if matches!(err, ureq::Error::Timeout(_)) {
            let (who, url, limit) = (&self.who, &self.url, self.timeout.as_millis());
            return Error::new(
                slugs::REWARD_HTTP_TIMEOUT,
                format!("{who}: {url} did not answer within {limit} ms"),
            )
            .hint(match self.table {
                "[[reward]]" => "raise `timeout_ms` in the [[reward]] table, or give the server less at a time with more `workers`".to_string(),
                table => format!("raise `timeout_ms` in {table}, or give the server less at a time with fewer `workers`"),
            });
        }
        Error::new(slugs::REWARD_HTTP_FAILED, format!("{}: {}: {err}", self.who, self.url))
            .hint("check that the server runs and that the address is right")
    }

    fn refused(&self, status: u16, said: &[u8]) -> Error {
        let said = self.without_key(&String::from_utf8_lossy(said));
        let said: String = said.chars().take(SAID_CHARS_MAX).collect();
        let error = Error::new(
            slugs::REWARD_HTTP_FAILED,
            format!("{}: {} answered with status {status}", self.who, self.url),
        )
        .hint("look into the server's own log");
        if said.is_empty() { error } else { error.fact(format!("it says {said:?}")) }
    }
}

/// Returns the address of requests: `path` of the server at `url`.
///
/// Errors: words on what the address is instead, after "it has".
pub(crate) fn address(url: &str, path: &str) -> std::result::Result<String, String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() {
        return Err(format!("the address {url:?}, which is none of http:// or https://"));
    }
    match host.contains('@') {
        // The run file is copied into the run directory, and messages have the address.
        true => Err("an address with a name or a password in it".to_string()),
        false => Ok(format!("{}/{path}", url.trim_end_matches('/'))),
    }
}

/// Returns a server's key from the environment.
///
/// Errors: words on what the variable is instead; its text is in none.
pub(crate) fn key(variable: &str) -> std::result::Result<String, &'static str> {
    let key = std::env::var(variable).map_err(|_| "is not set")?;
    match !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(key),
        false => Err("is no key: it is empty, or has spaces or other characters that keys do not have"),
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
