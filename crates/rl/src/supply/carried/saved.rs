//! The groups under way as a checkpoint's file: a line each.

use super::expected::Expected;
use crate::players::{FirstRequest, Group, GroupsUnderWay, PlayedTurn, Response};
use crate::supply::restored::Restored;
use plimsoll_base::{Error, Result, open_regular};
use plimsoll_files::{FileRecord, write_new_lines};
use plimsoll_infer::text::Item;
use plimsoll_rollout::Finish;
use plimsoll_run::checkpoint::CARRIED;
use serde::{Deserialize, Serialize};
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
    /// How it ended, and in which step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<(Finish, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<FirstRequest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    turns: Vec<PlayedTurn>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_fault: bool,
}

impl GroupsUnderWay {
    /// Writes a checkpoint's file in its folder, if groups are under way. Returns its name and record.
    ///
    /// Errors: those of writing.
    pub(crate) fn write(&self, folder: &Path) -> Result<Option<(String, FileRecord)>> {
        let Some(_) = self.count() else { return Ok(None) };
        Ok(Some((CARRIED.to_string(), self.write_to(&folder.join(CARRIED))?)))
    }

    fn write_to(&self, path: &Path) -> Result<FileRecord> {
        let line = |group: &Group| {
            let responses = group.responses.iter().map(LineResponse::of).collect();
            let Group { position, first_sample_id, .. } = *group;
            serde_json::to_string(&Line { position, first_sample_id, responses })
                .expect("a line is plain data")
        };
        write_new_lines(path, self.groups.iter().map(line))
    }

    /// Reads a checkpoint's file, if groups were under way. `most`: the most of them.
    ///
    /// Errors: `checkpoint-damaged` with the line; those of `from.item`.
    pub(crate) fn restored(most: u64, from: &mut Restored<'_>) -> Result<GroupsUnderWay> {
        let Some(count) = from.state.carried else { return Ok(GroupsUnderWay::default()) };
        GroupsUnderWay::read(&from.folder.join(CARRIED), &Expected::new(from, count, most), from.item)
    }

    /// Reads a checkpoint's file. `item` returns the prompt at a position of the data.
    ///
    /// Errors: `checkpoint-damaged` with the line; those of `item`.
    fn read(
        path: &Path,
        expected: &Expected,
        item: &mut dyn FnMut(u64) -> Result<Item>,
    ) -> Result<GroupsUnderWay> {
        let bad = |line: Option<usize>, what: String| {
            let at = line.map_or(String::new(), |line| format!(":{line}"));
            Error::new("checkpoint-damaged", format!("{}{at}: {what}", path.display()))
                .hint("--resume=previous-good resumes from the previous checkpoint")
        };
        let mut reader = BufReader::new(open_regular(path).map_err(|err| bad(None, err.to_string()))?);
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
        Ok(GroupsUnderWay { groups, next: None })
    }
}

impl LineResponse {
    fn of(response: &Response) -> LineResponse {
        LineResponse {
            ids: response.ids.clone(),
            logprobs: response.logprobs.iter().map(|logprob| logprob.to_bits()).collect(),
            versions: response.runs(),
            ended: response.finish.map(|finish| (finish, response.ended_in)),
            asked: response.asked.clone(),
            turns: response.turns.clone(),
            has_fault: response.has_fault,
        }
    }

    fn whole(self, most: usize) -> std::result::Result<Response, String> {
        let LineResponse { ids, logprobs, versions, ended, asked, turns, has_fault } = self;
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
            finish: ended.map(|(finish, _)| finish),
            ended_in: ended.map_or(0, |(_, step)| step),
            asked,
            turns,
            has_fault,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::players::groups::tests::{group, of_agent, of_episode};

    /// The limits of a run with these groups under way.
    const EXPECTED: Expected = Expected {
        count: 2,
        carry: 2,
        size: 3,
        most: 8,
        turn: 8,
        turns: 0,
        prompt: 0,
        vocab: 10,
        step: 4,
        updates: 5,
        data_position: 10,
        next_sample_id: 30,
    };

    fn read(path: &Path, expected: &Expected) -> Result<GroupsUnderWay> {
        let mut item = |position: u64| Ok(Item { text: position.to_string(), ..Item::default() });
        GroupsUnderWay::read(path, expected, &mut item)
    }

    fn refused(path: &Path, expected: &Expected, what: &str) {
        let error = read(path, expected).expect_err(what);
        assert!(error.slug == "checkpoint-damaged" && error.message.contains(what), "{what}: {error}");
    }

    #[test]
    fn groups_come_back_with_their_bits_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        let carried = GroupsUnderWay { groups: vec![group(4), group(9)], next: None };
        assert_eq!(carried.count(), Some(2));
        carried.write_to(&path).expect("written");
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
            (Expected { carry: 1, ..EXPECTED }, "carried.jsonl: 2 groups go on, and 1 may"),
            (Expected { size: 2, ..EXPECTED }, ":1: a group of 3 responses"),
            (Expected { most: 2, ..EXPECTED }, ":1: a response of 3 tokens, 3 log-probs and 3 versions"),
            (Expected { most: 3, ..EXPECTED }, ":1: a response of 3 tokens goes on"),
            (Expected { vocab: 9, ..EXPECTED }, ":1: token 9, the model has 9"),
            (Expected { step: 3, ..EXPECTED }, ":1: a response has ended in step 4, and 3 were made"),
            (Expected { turns: 2, ..EXPECTED }, ":1: a response of 3 tokens without a turn"),
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
        GroupsUnderWay { groups: vec![group(4), group(9)], next: None }.write_to(&path).expect("written");
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
            (good.replace(&logprob, "1"), ":1: the log-probability 0.000"),
            (good.replace("[\"eos\",4]", "[\"eos\",0]"), ":1: a response has ended in step 0"),
            (good.replace("\"eos\"", "\"length\""), ":1: a response of 2 tokens was cut at 8"),
            (good.replace("\"eos\"", "\"bored\""), ":1: unknown variant"),
            (
                good.replace(
                    "{\"ids\":[],\"logprobs\":[],\"versions\":[]}",
                    "{\"ids\":[],\"logprobs\":[],\"versions\":[],\"ended\":[\"eos\",1]}",
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

    #[test]
    fn episodes_come_back_with_their_turns_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        let expected = Expected { count: 1, size: 1, turns: 3, updates: 7, ..EXPECTED };
        let episode = of_episode();
        GroupsUnderWay { groups: vec![episode.clone()], next: None }.write_to(&path).expect("written");
        let back = read(&path, &expected).expect("whole").groups.remove(0).responses.remove(0);
        let bits = |of: &Response| of.logprobs.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&episode.responses[0]), "what was said has no log-probability");
        assert_eq!(
            Response { logprobs: Vec::new(), ..back },
            Response { logprobs: Vec::new(), ..episode.responses[0].clone() }
        );
        for (expected, what) in [
            (Expected { turns: 0, ..expected }, ":1: a turn, and the run has no environment"),
            (Expected { turns: 1, ..expected }, ":1: an episode of 2 turns, the most are 1"),
            (Expected { turns: 2, ..expected }, ":1: an episode of 2 turns goes on, the most are 2"),
            (Expected { turn: 1, ..expected }, ":1: a turn of 2 tokens, the longest has 1"),
        ] {
            refused(&path, &expected, what);
        }
        let good = std::fs::read_to_string(&path).expect("a line");
        let nan = f32::NAN.to_bits().to_string();
        let last = r#""turn":{"start":5,"end":6"#;
        for (text, what) in [
            (good.replace(last, r#""turn":{"start":5,"end":8"#), ":1: a turn of tokens 5 to 8 of 7, after 2"),
            (good.replace(last, r#""turn":{"start":1,"end":6"#), ":1: a turn of tokens 1 to 6 of 7, after 2"),
            (good.replace(last, r#""turn":{"start":6,"end":6"#), ":1: a turn of tokens 6 to 6 of 7, after 2"),
            (
                good.replace(r#""version":7"#, r#""version":4"#),
                ":1: a turn of version 4 with a token of version 7",
            ),
            (
                good.replacen(&nan, &(-1f32).to_bits().to_string(), 1),
                ":1: the log-probability -1 of a token that was not drawn",
            ),
            (good.replace("\"eos\"", "\"length\""), ":1: a turn of 2 tokens was cut at 8"),
            (
                good.replacen(&(-0.1f64).to_bits().to_string(), &f64::NAN.to_bits().to_string(), 1),
                ":1: the reward NaN",
            ),
            (
                good.replace("\"versions\"", "\"ended\":[\"stop\",1],\"versions\""),
                ":1: an episode has ended with Stop",
            ),
            (
                good.replace("\"versions\"", "\"has_fault\":true,\"versions\""),
                ":1: an episode goes on after a fault",
            ),
        ] {
            assert_ne!(text, good, "{what}");
            std::fs::write(&path, text).expect("written");
            refused(&path, &expected, what);
        }
    }

    #[test]
    fn episodes_of_agents_come_back_with_their_prompts_and_damage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("carried.jsonl");
        // As many turns as it may have: its agent may yet report.
        let expected = Expected { count: 1, size: 1, turns: 2, prompt: 2, updates: 7, ..EXPECTED };
        let episode = of_agent();
        GroupsUnderWay { groups: vec![episode.clone()], next: None }.write_to(&path).expect("written");
        let back = read(&path, &expected).expect("whole").groups.remove(0);
        let (back, whole) = (&back.responses[0], &episode.responses[0]);
        assert_eq!((&back.asked, &back.ids, &back.turns), (&whole.asked, &whole.ids, &whole.turns));
        for (expected, what) in [
            (Expected { prompt: 1, ..expected }, ":1: an agent's prompt of 2 tokens, the longest has 1"),
            (
                Expected { prompt: 0, turns: 3, ..expected },
                ":1: an agent's prompt of 2 tokens, the longest has 0",
            ),
            (Expected { prompt: 0, turns: 0, ..expected }, ":1: a turn, and the run has no environment"),
            (Expected { turns: 1, ..expected }, ":1: an episode of 2 turns, the most are 1"),
        ] {
            refused(&path, &expected, what);
        }
        let good = std::fs::read_to_string(&path).expect("a line");
        for (text, what) in [
            (good.replace("[5,6]", "[5,99]"), ":1: token 99, the model has 10"),
            (good.replace("[5,6]", "[]"), ":1: an agent's prompt of 0 tokens"),
            (good.replace("\"asked\":{\"prompt\":[5,6]", "\"asked\":{\"promt\":[5,6]"), ":1: unknown field"),
        ] {
            assert_ne!(text, good, "{what}");
            std::fs::write(&path, text).expect("written");
            refused(&path, &expected, what);
        }
        let without = Group { responses: vec![Response { asked: None, ..whole.clone() }], ..episode.clone() };
        std::fs::remove_file(&path).expect("removed");
        GroupsUnderWay { groups: vec![without], next: None }.write_to(&path).expect("written");
        refused(&path, &expected, ":1: a turn without an agent's prompt");
    }
}
