//! `command:PROGRAM ARGS`: the user's program, which answers each line of JSON with a line.

use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, plain};
use plimsoll_base::{Error, JsonPart, Result, slugs};
use plimsoll_worker::{Ids, Launch, Pool, Request, SampleImage, Scores};
use serde_json::json;
use std::sync::Arc;

struct Command {
    pool: Pool,
    name: String,
    ids: Ids,
}

/// Reads `PROGRAM ARGS`; the reward is named after the program, without its folder.
pub(crate) fn read(argument: Option<&str>) -> Option<Reading> {
    let mut words = argument?.split_whitespace().map(str::to_string);
    let (program, args) = (words.next()?, words.collect());
    let label = program.rsplit('/').next().unwrap_or(&program).to_string();
    Some(Reading::starts(&label, |Start { name, spec, limits, stop, words, .. }| {
        let launch = Launch {
            name: name.to_string(),
            program,
            args,
            env: Vec::new(),
            memory: spec.worker_memory,
            is_private: false,
            memory_groups: true,
            network: spec.network,
            folder: None,
            file: None,
            words,
            ready: None,
        };
        let pool = Pool::start(launch, limits, stop)?;
        Ok(Box::new(Command { pool, name: name.to_string(), ids: Ids::default() }))
    }))
}

impl Scorer for Command {
    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        let ids: Vec<String> = cases.iter().map(|_| self.ids.next_id()).collect();
        let replies = self.pool.call(&[lines(cases, &ids)]).remove(0)?;
        let scores = read_lines(&replies, &ids, &self.name);
        if scores.is_err() {
            // Its next output may belong to lines of this batch.
            self.pool.discard(0);
        }
        scores.map(plain)
    }
}

/// Writes one line per case: `{"prompt", "completion", "ended", "columns": {…}, "id"}`, and `images` if it has any.
fn lines(cases: &[Arc<Case>], ids: &[String]) -> Request {
    let mut bytes = Vec::new();
    for (case, id) in cases.iter().zip(ids) {
        let mut line = json!({
            "prompt": case.prompt.text, "completion": case.response, "ended": case.ended,
            "columns": *case.prompt.columns, "id": id,
        });
        if !case.prompt.images.is_empty() {
            line["images"] = case.prompt.images.iter().map(SampleImage::to_json).collect();
        }
        bytes.extend_from_slice(line.to_string().as_bytes());
        bytes.push(b'\n');
    }
    Request { bytes, reply_lines: cases.len() }
}

/// Reads reply lines: a number, `null`, or `{"score": number or null}`, which may repeat the `id` of its line.
fn read_lines(lines: &[String], ids: &[String], name: &str) -> Result<Vec<Option<f64>>> {
    let one = |(line, id): (&String, &String)| {
        score_of(line, id).ok_or_else(|| {
            Error::new(slugs::REWARD_BAD_REPLY, format!("reward `{name}` answered {line:.80?}"))
                .hint("answer each line with a number, null, or {\"score\": number}, and flush")
                .hint("an `id` in a reply is that of the line which it answers")
        })
    };
    lines.iter().zip(ids).map(one).collect()
}

/// Returns the score of a line; `None` for a line that is no answer to `id`.
fn score_of(line: &str, id: &str) -> Option<Option<f64>> {
    let reply = JsonPart::of(line.as_bytes()).ok()?;
    if reply.field("id").ok()?.is_some_and(|repeated| repeated.string().as_deref() != Some(id)) {
        return None;
    }
    let score = reply.field("score").ok()?.unwrap_or(reply);
    if score.is_null() { Some(None) } else { score.number().map(Some) }
}
