//! A teacher on a server of OpenAI's protocol: it reads a prompt and a response as token ids in `/v1/completions`, and
//! says the log-probability of every token of the response, at temperature 1.
//!
//! Two forms are known, and the first request finds out which the server has: `prompt_logprobs` (vLLM), and `echo` with
//! `logprobs` (OpenAI's older protocol). Nothing is guessed: a reply with another number of log-probabilities than
//! tokens, or with one that is none, is a failure.

use crate::http::{self, Client, REPLY_BYTES_MAX, pause_before};
use crate::tally::Tally;
use plimsoll_base::{Bytes, Error, JsonPart, Result, json_field, shown, slugs};
use serde_json::json;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Most requests under way at a time.
pub const TEACHER_WORKERS_MAX: u32 = 256;
/// Samples that fail in a row before a step asks no more: a server that is gone costs these and not the whole step.
const FAILURES_IN_A_ROW_MAX: u32 = 16;
/// Bytes of one request under way: its reply, and of each token asked about, which takes 5 bytes of it (`null,`), the
/// id, its text in the request and its log-probability.
const REQUEST_BYTES: u64 = 5 * REPLY_BYTES_MAX;
/// Says what servers write for minus infinity, which is no number in JSON.
const LEAST_LOGPROB: f64 = -9999.0;
const TABLE: &str = "[distill.endpoint]";

/// How a teacher's server is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct TeacherSpec {
    /// The address of an OpenAI-compatible server, to its `/v1`.
    pub url: String,
    /// The name of the model in requests; none is sent if `None`.
    pub model: Option<String>,
    /// The environment variable with the server's key.
    pub key_env: Option<String>,
    /// Longest time for one request.
    pub timeout_ms: u64,
    /// How often a request that failed is sent again.
    pub retries: u32,
    /// Requests under way at a time.
    pub workers: u32,
}

impl TeacherSpec {
    /// Returns the most host memory that its requests take.
    pub fn memory(&self) -> Bytes {
        Bytes(u64::from(self.workers) * REQUEST_BYTES)
    }
}

/// Returns the address of requests to the server at `url`.
///
/// Errors: words on what the address is instead.
pub fn teacher_address(url: &str) -> std::result::Result<String, String> {
    http::address(url, "completions")
}

/// A prompt and a response, in the student's token ids.
#[derive(Clone, Copy, Debug)]
pub struct TeacherQuestion<'q> {
    /// Tokens that the teacher reads before the response; the first of all has no log-probability.
    pub prompt: &'q [u32],
    /// Tokens that it scores.
    pub response: &'q [u32],
}

/// Holds what a teacher said about the responses of a step.
#[derive(Debug, Default)]
pub struct TeacherAnswers {
    /// The log-probability of each token, in nats, in the order of the questions; `None` for a response that failed.
    pub logprobs: Vec<Option<Vec<f32>>>,
    /// Failures by cause.
    pub tally: Tally,
    /// The failure of the first response without an answer.
    pub failure: Option<Error>,
}

/// A server that has answered.
pub struct TeacherServer {
    client: Client,
    spec: TeacherSpec,
    form: Form,
}

/// Which field of a reply has the log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    PromptLogprobs,
    Echo,
}

/// Says what a reply says of a token: its log-probability and its text, if it has them.
type Said<'r> = (Option<f64>, Option<JsonPart<'r>>);

impl TeacherServer {
    /// Asks about `probe`, tokens with their texts in the student's tokenizer, and finds out what the server can do.
    ///
    /// Errors: `teacher-endpoint-failed`; `teacher-tokenizer-mismatch` if a token has another text there.
    pub fn start(spec: &TeacherSpec, probe: &[(u32, String)]) -> Result<TeacherServer> {
        let bad = |what: String| Error::usage("teacher-endpoint-failed", what);
        let url = teacher_address(&spec.url).map_err(|what| bad(format!("the teacher has {what}")))?;
        let key = spec.key_env.as_deref().map(|variable| {
            http::key(variable).map_err(|why| {
                bad(format!("the teacher: the environment variable {variable} {why}"))
                    .hint(format!("export {variable}=..., or remove distill.endpoint.key_env"))
            })
        });
        let timeout = Duration::from_millis(spec.timeout_ms);
        let client = Client::of(url, "the teacher".into(), TABLE, timeout, key.transpose()?);
        let mut server = TeacherServer { client, spec: spec.clone(), form: Form::PromptLogprobs };
        let Err(first) = server.probe(probe) else { return Ok(server) };
        if first.slug == slugs::REWARD_HTTP_TIMEOUT || first.slug == MISMATCH {
            return Err(of_start(first));
        }
        server.form = Form::Echo;
        match server.probe(probe) {
            Ok(()) => Ok(server),
            Err(error) => {
                let error = of_start(error);
                let with_first = format!("with `prompt_logprobs` instead of `echo`: {}", first.message);
                Err(first.facts.into_iter().fold(error.fact(with_first), Error::fact))
            }
        }
    }

    /// Asks about responses, several at a time. The number under way changes no answer.
    pub fn ask(&self, questions: &[TeacherQuestion<'_>]) -> TeacherAnswers {
        let (next, in_a_row) = (AtomicUsize::new(0), AtomicU32::new(0));
        let tally = Mutex::new(Tally::default());
        let answers: Vec<Mutex<Option<Result<Vec<f32>>>>> =
            questions.iter().map(|_| Mutex::new(None)).collect();
        let work = || {
            let mut own = Tally::default();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(question) = questions.get(at) else { break };
                // A server that is gone is not waited for again and again.
                if in_a_row.load(Ordering::Relaxed) >= FAILURES_IN_A_ROW_MAX {
                    continue;
                }
                let answer = self.answer(question, &mut own);
                if answer.is_ok() {
                    in_a_row.store(0, Ordering::Relaxed)
                } else {
                    _ = in_a_row.fetch_add(1, Ordering::Relaxed)
                }
                *answers[at].lock().expect("no thread panics with it") = Some(answer);
            }
            tally.lock().expect("no thread panics with it").add(&own);
        };
        std::thread::scope(|scope| {
            (0..questions.len().min(self.spec.workers as usize)).for_each(|_| drop(scope.spawn(work)));
        });
        let mut all =
            TeacherAnswers { tally: tally.into_inner().expect("no thread panicked"), ..Default::default() };
        for answer in answers {
            let answer = answer.into_inner().expect("no thread panicked");
            all.logprobs.push(match answer {
                Some(Ok(logprobs)) => Some(logprobs),
                Some(Err(error)) => {
                    all.failure.get_or_insert(error);
                    None
                }
                None => None,
            });
        }
        all.tally.none = all.logprobs.iter().filter(|answer| answer.is_none()).count() as u64;
        all
    }

    /// Asks about one response until there is an answer.
    fn answer(&self, question: &TeacherQuestion<'_>, tally: &mut Tally) -> Result<Vec<f32>> {
        let ids = [question.prompt, question.response].concat();
        let body = self.body(&ids);
        let mut attempt = 1;
        loop {
            let said = self.client.post(&body);
            let read = said.and_then(|reply| self.logprobs(&reply, &ids, question.prompt.len()));
            let error = match read {
                Ok(logprobs) => return Ok(logprobs),
                Err(error) => error,
            };
            tally.count(&error);
            if attempt > self.spec.retries {
                return Err(if attempt == 1 { error } else { error.fact(format!("tried {attempt} times")) });
            }
            tally.retries += 1;
            std::thread::sleep(pause_before(attempt));
            attempt += 1;
        }
    }

    fn body(&self, ids: &[u32]) -> String {
        // Servers draw at least one token; it is not read. Temperature and cuts do not act on a prompt's tokens.
        let mut body = json!({ "prompt": ids, "max_tokens": 1, "temperature": 1.0 });
        match self.form {
            Form::PromptLogprobs => body["prompt_logprobs"] = json!(0),
            Form::Echo => (body["echo"], body["logprobs"]) = (json!(true), json!(1)),
        }
        if let Some(model) = &self.spec.model {
            body["model"] = json!(model);
        }
        body.to_string()
    }

    /// Compares each token's text with the student's.
    fn probe(&self, probe: &[(u32, String)]) -> Result<()> {
        let ids: Vec<u32> = probe.iter().map(|(id, _)| *id).collect();
        let reply = self.client.post(&self.body(&ids))?;
        self.logprobs(&reply, &ids, 1)?;
        self.texts(&reply, &ids, 1, &mut |at, theirs| {
            let (id, text) = &probe[at];
            if bare(theirs) == bare(text) || theirs == format!("token_id:{id}") {
                return Ok(());
            }
            let (who, url, theirs) =
                (self.client.who(), self.client.shown(), self.client.without_key(theirs));
            let theirs = shown(&theirs);
            let message =
                format!("{who}: {url} reads token {id} as {theirs:?}, to the student it is {text:?}");
            Err(Error::new(MISMATCH, message).hint(
                "serve a teacher of the student's family, whose tokenizer gives every token the same id",
            ))
        })
    }

    /// Reads the log-probabilities of the tokens from `start` on.
    fn logprobs(&self, reply: &[u8], ids: &[u32], start: usize) -> Result<Vec<f32>> {
        let mut logprobs = Vec::with_capacity(ids.len() - start);
        let token = |at: usize| format!("of token {} of {}", at + 1, ids.len());
        self.said(reply, ids, start, &mut |at, (logprob, _)| {
            logprobs.push(match logprob {
                Some(logprob) if logprob <= 0.0 && logprob > LEAST_LOGPROB => logprob as f32,
                Some(logprob) => {
                    return Err(self.bad(&format!("with the log-probability {logprob} {}", token(at))));
                }
                None => return Err(self.bad(&format!("without a log-probability {}", token(at)))),
            });
            Ok(())
        })?;
        Ok(logprobs)
    }

    /// Calls `token` with what a reply says of each token from `start` on.
    fn said(
        &self,
        reply: &[u8],
        ids: &[u32],
        start: usize,
        token: &mut dyn FnMut(usize, Said<'_>) -> Result<()>,
    ) -> Result<()> {
        let bad = |what: String| self.bad(&what);
        let reply =
            JsonPart::of(reply).map_err(|what| self.bad(&format!("what is no completion ({what})")))?;
        let choices = reply.field("choices").map_err(bad)?;
        let count = choices.and_then(JsonPart::count);
        let count = count.ok_or_else(|| self.bad("what is no completion (it has no list `choices`)"))?;
        if count > 1 {
            return Err(self.bad(&format!("with {count} choices for 1 request")));
        }
        let choice = choices.and_then(JsonPart::first).ok_or_else(|| self.bad("without a choice"))?;
        let list = |of: Option<JsonPart<'_>>, name: &str, more: usize| {
            let missing = || self.bad(&format!("without `{name}`"));
            let count = of.and_then(JsonPart::count).ok_or_else(missing)?;
            self.counted(count, ids.len(), more)
        };
        match self.form {
            Form::PromptLogprobs => {
                let listed = choice.field("prompt_logprobs").map_err(bad)?;
                list(listed, "prompt_logprobs", 0)?;
                each_from(listed, start, ids.len(), &mut |at, part| token(at, self.listed(part, ids[at])?))
            }
            Form::Echo => {
                let echoed = choice.field("logprobs").map_err(bad)?.filter(|echoed| !echoed.is_null());
                let echoed = echoed.ok_or_else(|| self.bad("without `logprobs`"))?;
                let logprobs = echoed.field("token_logprobs").map_err(bad)?;
                // The token that it drew comes last.
                list(logprobs, "logprobs.token_logprobs", 1)?;
                each_from(logprobs, start, ids.len(), &mut |at, part| token(at, (self.number(part)?, None)))
            }
        }
    }

    /// Calls `token` with the text of each token from `start` on, if the reply has it.
    fn texts(
        &self,
        reply: &[u8],
        ids: &[u32],
        start: usize,
        token: &mut dyn FnMut(usize, &str) -> Result<()>,
    ) -> Result<()> {
        if self.form == Form::PromptLogprobs {
            return self.said(reply, ids, start, &mut |at, (_, text)| match text {
                Some(text) => token(at, &text.string().unwrap_or_default()),
                None => Ok(()),
            });
        }
        let words = JsonPart::of(reply).and_then(|reply| {
            let choice = reply.field("choices")?.and_then(JsonPart::first);
            json_field(json_field(choice, "logprobs")?, "tokens")
        });
        let words = words.map_err(|what| self.bad(&what))?;
        each_from(words, start, ids.len(), &mut |at, part| match part.string() {
            Some(text) => token(at, &text),
            None => Ok(()),
        })
    }

    /// Reads one position of `prompt_logprobs`: the token itself, and perhaps others that are likelier.
    fn listed<'r>(&self, at: JsonPart<'r>, id: u32) -> Result<Said<'r>> {
        let bad = |what: String| self.bad(&what);
        let Some(own) = at.field(&id.to_string()).map_err(bad)? else { return Ok((None, None)) };
        let logprob = own.field("logprob").map_err(bad)?;
        let logprob = logprob.map_or(Ok(None), |logprob| self.number(logprob))?;
        let text = own.field("decoded_token").map_err(bad)?;
        Ok((logprob, text.filter(|text| text.string().is_some())))
    }

    /// Reads a log-probability; `None` for null.
    fn number(&self, part: JsonPart<'_>) -> Result<Option<f64>> {
        match part.number() {
            None if !part.is_null() => Err(self.bad("with other things than log-probabilities")),
            number => Ok(number),
        }
    }

    fn counted(&self, got: usize, tokens: usize, more: usize) -> Result<()> {
        if (tokens..=tokens + more).contains(&got) {
            Ok(())
        } else {
            Err(self.bad(&format!("with {got} log-probabilities for {tokens} tokens")))
        }
    }

    fn bad(&self, what: &str) -> Error {
        self.client
            .bad_reply(what)
            .hint("`distill.endpoint.url` is that of a server whose /v1/completions has `prompt_logprobs`, or `echo` with `logprobs`")
    }
}

/// Calls `item` with the items of a list from `start` up to `end`; with none where there is no list.
fn each_from<'r>(
    list: Option<JsonPart<'r>>,
    start: usize,
    end: usize,
    item: &mut dyn FnMut(usize, JsonPart<'r>) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    let walk = &mut |part| {
        at += 1;
        if (start..end).contains(&(at - 1)) { item(at - 1, part) } else { Ok(()) }
    };
    list.map_or(Ok(None), |list| list.each(walk)).map(|_: Option<()>| ())
}

const MISMATCH: &str = "teacher-tokenizer-mismatch";

/// Names a failure of the first request, which no reward made.
fn of_start(error: Error) -> Error {
    if error.slug == MISMATCH { error } else { Error { slug: "teacher-endpoint-failed", ..error } }
}

/// Returns a token's text without spaces and the marks that vocabularies write for them.
fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\u{2581}' || c == '\u{120}')
}
