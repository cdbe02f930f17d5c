//! `judge`: a model on a server of OpenAI's protocol reads each response, and says how good it is.
//!
//! A request has one response. It is asked again as it was if the server failed, and in another wording if the reply
//! was no score, so a score depends on what the judge answers and never on time. Failures are dealt with here for each
//! sample: those of a batch have nothing to do with each other.

mod cache;
mod question;
mod reply;
mod spec;
mod template;

pub(crate) use cache::CACHE_BYTES;
pub use spec::JudgeSpec;

use crate::case::Case;
use crate::http::{self, Client, pause_before};
use crate::scorer::{Reading, Scorer, Start};
use crate::spec::{OnError, RewardSpec};
use crate::tally::Tally;
use cache::{Cache, Judged, RequestKey};
use plimsoll_base::{Error, ExactSum, JsonPart, Result, json_field, slugs};
use plimsoll_worker::{Columns, Scores, Stop};
use question::Question;
use serde_json::json;
use std::sync::Arc;

const EXAMPLE: &str = "kind = \"judge\" and url = \"http://127.0.0.1:8000/v1\"";

/// Reads `judge` and `judge:URL` with their options.
///
/// Errors: `reward-bad-judge`.
pub(crate) fn read(spec: &RewardSpec, argument: Option<&str>) -> Result<Option<Reading>> {
    let question = Question::read(&spec.judge, &spec.answer_column)?;
    let url = address(argument.or(spec.judge.url.as_deref()))?;
    Ok(Some(Reading::starts("judge", |start| Ok(Box::new(ModelJudge::start(url, question, start)?)))))
}

/// Returns true if the answer column must be there.
pub(crate) fn needs_answer(spec: &RewardSpec) -> bool {
    Question::read(&spec.judge, &spec.answer_column).is_ok_and(|question| question.needs_answer())
}

/// Returns the address of requests.
fn address(url: Option<&str>) -> Result<String> {
    let bad = |why: &str| {
        Error::usage("reward-bad-judge", format!("`judge` {why}")).hint(format!("write {EXAMPLE}"))
    };
    let url = url.ok_or_else(|| bad("has no address"))?;
    http::address(url, "chat/completions").map_err(|what| {
        let error = bad(&format!("has {what}"));
        if url.contains('@') { error.hint("set `key_env` to a variable with the key") } else { error }
    })
}

/// A connection to a judge.
struct ModelJudge {
    client: Client,
    question: Question,
    name: String,
    spec: RewardSpec,
    stop: Stop,
    cache: Cache,
    /// Failures that were dealt with here.
    tally: Tally,
}

/// Holds what the scores of a batch have for the metrics.
#[derive(Default)]
struct Seen {
    cached: ExactSum,
    samples: u64,
    agreed: ExactSum,
    differences: ExactSum,
    asked_twice: u64,
}

impl Scorer for ModelJudge {
    fn check(&mut self, columns: &Columns) -> Result<()> {
        self.question.check(columns, &self.name)
    }

    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        let mut seen = Seen::default();
        let scores: Vec<Option<f64>> =
            cases.iter().map(|case| self.judge(case, &mut seen)).collect::<Result<_>>()?;
        let failed = scores.iter().enumerate().filter(|(_, score)| score.is_none());
        let failed = failed.map(|(sample, _)| sample).collect();
        Ok(Scores { scores, failed, logged: seen.logged(), ..Scores::default() })
    }

    fn counted(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}

impl ModelJudge {
    fn start(url: String, question: Question, start: Start) -> Result<ModelJudge> {
        let Start { name, spec, limits, stop, .. } = start;
        let key = spec.judge.key_env.as_deref().map(|variable| key(name, variable)).transpose()?;
        let client = Client::new(url, name, limits.timeout, key);
        let (name, spec, cache) = (name.to_string(), spec.clone(), Cache::new());
        Ok(ModelJudge { client, question, name, spec, stop, cache, tally: Tally::default() })
    }

    /// Scores a sample, and asks about some a second time.
    fn judge(&mut self, case: &Case, seen: &mut Seen) -> Result<Option<f64>> {
        let request = self.request(case, 0)?;
        let key = RequestKey::of(&request);
        let known = self.cache.get(key);
        let judged = match known.map_or_else(|| self.ask(case, 0, request, self.spec.retries), Ok) {
            Ok(judged) => judged,
            Err(error) if self.spec.on_error == OnError::Stop || self.stop.is_set() => return Err(error),
            Err(error) => {
                self.tally.count(&error);
                return Ok(None);
            }
        };
        self.cache.put(key, judged);
        seen.samples += 1;
        seen.cached.add(f64::from(known.is_some()));
        // The request decides, so a resumed run asks about the same samples.
        if key.share() < self.spec.judge.second_ask {
            self.ask_again(case, judged, seen)?;
        }
        Ok(Some(judged.score))
    }

    /// Compares a score with that of another wording. A failure is counted and shows in nothing else.
    fn ask_again(&mut self, case: &Case, first: Judged, seen: &mut Seen) -> Result<()> {
        let wording = first.wording + 1;
        let request = self.request(case, wording)?;
        let key = RequestKey::of(&request);
        match self.cache.get(key).map_or_else(|| self.ask(case, wording, request, 0), Ok) {
            Ok(second) => {
                self.cache.put(key, second);
                let difference = (first.score - second.score).abs();
                seen.agreed.add(f64::from(difference == 0.0));
                seen.differences.add(difference);
                seen.asked_twice += 1;
            }
            Err(error) => self.tally.count(&error),
        }
        Ok(())
    }

    /// Asks until a reply has a score, beginning with `wording`, whose request is given. Counts all failures but the
    /// last.
    fn ask(&mut self, case: &Case, mut wording: u32, mut request: String, retries: u32) -> Result<Judged> {
        let mut attempt = 1;
        loop {
            let reply = self.client.post(&request).and_then(|reply| self.read(&reply, wording));
            let error = match reply {
                Ok(score) => return Ok(Judged { score, wording }),
                Err(error) => error,
            };
            if attempt > retries || self.stop.is_set() {
                return Err(if attempt == 1 { error } else { error.fact(format!("tried {attempt} times")) });
            }
            self.tally.count(&error);
            self.tally.retries += 1;
            if error.slug == slugs::REWARD_BAD_REPLY {
                // At temperature 0 the same request would have the same reply.
                wording += 1;
                request = self.request(case, wording)?;
            } else {
                std::thread::sleep(pause_before(attempt));
            }
            attempt += 1;
        }
    }

    fn request(&self, case: &Case, wording: u32) -> Result<String> {
        let judge = &self.spec.judge;
        let text = self.question.text(case, wording, &self.name)?;
        let mut request = json!({
            "messages": [{ "role": "user", "content": text }],
            "temperature": judge.temperature,
            "max_tokens": judge.max_tokens,
            // Where replies are drawn, the same request has the same one.
            "seed": wording,
        });
        if let Some(model) = &judge.model {
            request["model"] = json!(model);
        }
        Ok(request.to_string())
    }

    /// Reads the score in a reply.
    fn read(&self, reply: &[u8], wording: u32) -> Result<f64> {
        let bad = |what: &str| self.client.bad_reply(what);
        let reply = JsonPart::of(reply).map_err(|what| bad(&what))?;
        let twice = |what: String| bad(&what);
        let choices = reply.field("choices").map_err(twice)?;
        let count = choices.and_then(JsonPart::count).unwrap_or(0);
        if count > 1 {
            return Err(bad(&format!("with {count} choices for 1 request")));
        }
        let choice = choices.and_then(JsonPart::first);
        let message = json_field(choice, "message").map_err(twice)?;
        let Some(text) = json_field(message, "content").map_err(twice)?.and_then(JsonPart::string) else {
            return Err(bad("without a text `choices[0].message.content`")
                .hint("`url` is that of an OpenAI-compatible server, and ends in /v1"));
        };
        // A number may be cut too: `Score: 1` of `Score: 10`.
        let reason = json_field(choice, "finish_reason").map_err(twice)?;
        if reason.is_some_and(|reason| reason.text() == "\"length\"") {
            let most = self.spec.judge.max_tokens;
            return Err(bad(&format!("with more than max_tokens = {most}"))
                .hint("raise `max_tokens` in the [[reward]] table"));
        }
        self.question.score(&self.client.without_key(&text), wording).map_err(|what| {
            bad(&what).hint("a reply ends with what was asked for, or is a JSON object: plimsoll explain reward-bad-reply")
        })
    }
}

impl Seen {
    /// Returns shares: of scores that were known, and of second ones that are the same; and the mean difference.
    fn logged(self) -> Vec<(String, ExactSum, u64)> {
        let of_all = ("cached".to_string(), self.cached, self.samples);
        let agreement = ("agreement".to_string(), self.agreed, self.asked_twice);
        let difference = ("disagreement".to_string(), self.differences, self.asked_twice);
        [of_all, agreement, difference].into_iter().filter(|(_, _, count)| *count > 0).collect()
    }
}

/// Returns the server's key from the environment. Its text is in no message.
fn key(reward: &str, variable: &str) -> Result<String> {
    let bad = |why: &str| {
        Error::usage(
            "reward-bad-judge",
            format!("reward `{reward}`: the environment variable {variable} {why}"),
        )
        .hint(format!("export {variable}=..., or remove `key_env` from the [[reward]] table"))
    };
    http::key(variable).map_err(bad)
}
