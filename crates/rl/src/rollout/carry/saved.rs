//! The groups under way as a checkpoint's file: a line each.

use super::expected::Expected;
use super::groups::{Carried, Group, Response};
use plimsoll_base::{Error, Result};
use plimsoll_files::{FileRecord, write_new_lines};
use plimsoll_infer::text::Item;
use plimsoll_rollout::Finish;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// A group as a line of the checkpoint's file. Log-probabilities are stored as their bits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    position: u64,
    first_sample_id: u64,
    responses: Vec<LineResponse>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineResponse {
    ids: Vec<u32>,
    logprobs: Vec<u32>,
    /// Updates of the weights that drew tokens, and how many tokens they drew.
    versions: Vec<(u64, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finish: Option<Finish>,
}

impl Carried {
    /// Writes a checkpoint's file.
    ///
    /// Errors: those of writing.
    pub(crate) fn write(&self, path: &Path) -> Result<FileRecord> {
        let line = |group: &Group| {
            let responses = group.responses.iter().map(LineResponse::of).collect();
            let Group { position, first_sample_id, .. } = *group;
            serde_json::to_string(&Line { position, first_sample_id, responses })
                .expect("a line is plain data")
        };
        write_new_lines(path, self.groups.iter().map(line))
    }

    /// Reads a checkpoint's file. `item` returns the prompt at a position of the data.
    ///
    /// Errors: `checkpoint-damaged` with the line; those of `item`.
    pub(crate) fn read(
        path: &Path,
        expected: &Expected,
        item: &mut dyn FnMut(u64) -> Result<Item>,
    ) -> Result<Carried> {
        let bad = |line: Option<usize>, what: String| {
            let at = line.map_or(String::new(), |line| format!(":{line}"));
            Error::new("checkpoint-damaged", format!("{}{at}: {what}", path.display()))
                .hint("--resume=previous-good resumes from the previous checkpoint")
        };
        let mut reader = BufReader::new(File::open(path).map_err(|err| bad(None, err.to_string()))?);
        let (mut groups, mut bytes, most) = (Vec::<Group>::new(), Vec::new(), expected.line_bytes_max());
        loop {
            let number = groups.len() + 1;
            let bad = |what: String| bad(Some(number), what);
            bytes.clear();
            let read = Read::by_ref(&mut reader).take(most + 1).read_until(b'\n', &mut bytes);
            let read = read.map_err(|err| bad(err.to_string()))? as u64;
            if read == 0 {
                break;
            }
            if read > most || number as u64 > expected.count {
                let what = format!("more than {most} bytes, or more than {} groups", expected.count);
                return Err(bad(what));
            }
            let line: Line = serde_json::from_slice(&bytes).map_err(|err| bad(err.to_string()))?;
            let whole = |response: LineResponse| response.whole(expected.most).map_err(bad);
            let responses: Vec<Response> = line.responses.into_iter().map(whole).collect::<Result<_>>()?;
            let Line { position, first_sample_id, .. } = line;
            let mut group = Group { position, first_sample_id, item: Item::default(), responses };
            expected.check(&group, groups.last()).map_err(bad)?;
            group.item = item(position)?;
            groups.push(group);
        }
        expected.check_count(groups.len()).map_err(|what| bad(None, what))?;
        Ok(Carried { groups, next: None })
    }
}

impl LineResponse {
    fn of(response: &Response) -> LineResponse {
        LineResponse {
            ids: response.ids.clone(),
            logprobs: response.logprobs.iter().map(|logprob| logprob.to_bits()).collect(),
            versions: response.runs(),
            finish: response.finish,
        }
    }

    fn whole(self, most: usize) -> std::result::Result<Response, String> {
        let LineResponse { ids, logprobs, versions, finish } = self;
        let drawn: u64 = versions.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
        if ids.len() != logprobs.len() || ids.len() as u64 != drawn || drawn > most as u64 {
            return Err(format!(
                "a response of {} tokens, {} log-probs and {drawn} versions",
                ids.len(),
                logprobs.len()
            ));
        }
        Ok(Response {
            ids,
            logprobs: logprobs.into_iter().map(f32::from_bits).collect(),
            versions: versions.into_iter().flat_map(|(at, tokens)| vec![at; tokens as usize]).collect(),
            finish,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::tests::group;
    use super::*;

    /// Of a run with these groups under way.
    const EXPECTED: Expected = Expected {
        count: 2,
        carry: 2,
        size: 3,
        most: 8,
        vocab: 10,
        updates: 5,
        data_position: 10,
        next_sample_id: 30,
    };

    fn read(path: &Path, expected: &Expected) -> Result<Carried> {
        let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
        Carried::read(path, expected, &mut item)
    }

    fn refused(path: &Path, expected: &Expected, what: &str) {
        let error = read(path, expected).expect_err(what);
        assert!(error.slug == "checkpoint-damaged" && error.message.contains(what), "{what}: {error}");
    }

    #[test]
    fn groups_come_back_with_their_bits_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        let carried = Carried { groups: vec![group(4), group(9)], next: None };
        assert_eq!(carried.count(), Some(2));
        carried.write(&path).expect("written");
        let back = read(&path, &EXPECTED).expect("whole");
        for (a, b) in back.groups.iter().zip(&carried.groups) {
            assert_eq!(
                (a.position, a.first_sample_id, &a.responses),
                (b.position, b.first_sample_id, &b.responses)
            );
            assert_eq!(a.item.text, b.position.to_string());
        }
        for (expected, what) in [
            (Expected { count: 3, ..EXPECTED }, "carried.jsonl: 2 groups, state.json says 3"),
            (Expected { count: 1, ..EXPECTED }, "carried.jsonl:2: more than"),
            (Expected { carry: 1, ..EXPECTED }, "carried.jsonl: 2 groups go on, and rollout.carry is 1"),
            (Expected { size: 2, ..EXPECTED }, ":1: a group of 3 responses"),
            (Expected { most: 2, ..EXPECTED }, ":1: a response of 3 tokens, 3 log-probs and 3 versions"),
            (Expected { most: 3, ..EXPECTED }, ":1: a response of 3 tokens goes on"),
            (Expected { vocab: 9, ..EXPECTED }, ":1: token 9, the model has 9"),
            (Expected { updates: 4, ..EXPECTED }, ":1: a token of version 5, and the weights have seen 4"),
            (Expected { data_position: 9, ..EXPECTED }, ":2: prompt 9, and 9 have begun"),
            (Expected { next_sample_id: 29, ..EXPECTED }, ":2: samples from 27, and 29 have begun"),
        ] {
            refused(&path, &expected, what);
        }
    }

    #[test]
    fn what_something_else_wrote_is_refused_with_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        Carried { groups: vec![group(4), group(9)], next: None }.write(&path).expect("written");
        let good = std::fs::read_to_string(&path).expect("lines");
        let (first, second) = good.split_once('\n').expect("two lines");
        let logprob = (-1.0f32 / 12.0).to_bits().to_string();
        for (text, what) in [
            (format!("{first}\n{first}\n"), ":2: prompt 4 after prompt 4: twice, or out of order"),
            (format!("{second}{first}\n"), ":2: prompt 4 after prompt 9"),
            (good.replace("\"first_sample_id\":27", "\"first_sample_id\":13"), ":2: samples from 13, which"),
            (good.replace("[2,2],[5,1]", "[5,2],[2,1]"), ":1: a token of version 2 after one of version 5"),
            (good.replace("[2,2],[5,1]", "[2,2],[5,4000000000]"), "and 4000000002 versions"),
            (good.replace("\"ids\":[7,9,9]", "\"ids\":[7,9]"), ":1: a response of 2 tokens, 3 log-probs"),
            (good.replace(&logprob, &2f32.to_bits().to_string()), ":1: the log-probability 2"),
            (good.replace(&logprob, &f32::NAN.to_bits().to_string()), ":1: the log-probability NaN"),
            (good.replace("\"eos\"", "\"length\""), ":1: a response of 2 tokens was cut at 8"),
            (good.replace("\"eos\"", "\"bored\""), ":1: unknown variant"),
            (
                good.replace(
                    "{\"ids\":[],\"logprobs\":[],\"versions\":[]}",
                    "{\"ids\":[],\"logprobs\":[],\"versions\":[],\"finish\":\"eos\"}",
                ),
                ":1: a response without a token has ended",
            ),
            (good[..good.len() - 9].to_string(), ":2: EOF while parsing"),
            (good.replacen("[7,9,9]", &format!("[7,9,9{}]", " ".repeat(4000)), 1), ":1: more than"),
        ] {
            assert_ne!(text, good, "{what}");
            std::fs::write(&path, text).expect("written");
            refused(&path, &EXPECTED, what);
        }
    }
}
