//! Reads what a judge's text says: a number or an answer to each criterion, and nothing that has to be guessed.

use crate::thinking;
use plimsoll_base::JsonPart;

/// Most characters of a reply in a message.
const SHOWN_CHARS: usize = 80;

/// Reads a number of the scale from the last line `Score: N`, or from a text that is a JSON object with `score`.
///
/// Errors: a sentence about what the reply is instead; also if another line, or the same key again, has another number.
pub(super) fn read_score(reply: &str, [low, high]: [f64; 2]) -> Result<f64, String> {
    let said = without_thoughts(reply);
    let mut first = None;
    let mut other = None;
    let mut last = None;
    let mut see = |number: Option<f64>| {
        last = number;
        let Some(number) = number else { return };
        if *first.get_or_insert(number) == number {
        } else {
            other = Some(number)
        }
    };
    match object(said) {
        Some(object) => _ = object.each_field("score", &mut |value| see(value.number())),
        None => lines(said).for_each(|line| see(named(&line, "score").and_then(|value| value.parse().ok()))),
    }
    let number = last.ok_or_else(|| format!("without a score: {}", end_of(said)))?;
    if let (Some(first), Some(other)) = (first, other) {
        return Err(format!("with two scores, {first} and {other}"));
    }
    if (low..=high).contains(&number) {
        Ok(number)
    } else {
        Err(format!("with the score {number}, which is not from {low} to {high}"))
    }
}

/// Reads whether each of `criteria` is met: one line `N: yes` or `N: no` for each at the end, or a JSON object.
///
/// Errors: a sentence about what the reply is instead; also if a criterion has both answers, wherever they are.
pub(super) fn read_rubric(reply: &str, criteria: usize) -> Result<Vec<bool>, String> {
    let said = without_thoughts(reply);
    let object = object(said);
    let count = if object.is_some() { 0 } else { lines(said).count() };
    let one = |number: usize| {
        let name = number.to_string();
        let (mut last, mut met, mut unmet) = (None, false, false);
        let mut see = |answer: Option<bool>| {
            (met, unmet) = (met || answer == Some(true), unmet || answer == Some(false));
            last = answer;
        };
        match object {
            Some(object) => _ = object.each_field(&name, &mut |value| see(truth(value))),
            None => {
                lines(said)
                    .filter_map(|line| yes_or_no(named(&line, &name)?))
                    .for_each(|answer| see(Some(answer)));
                // What is asked for is at the end, each once.
                let end = lines(said).skip(count.saturating_sub(criteria));
                let answers: Vec<Option<bool>> =
                    end.filter_map(|line| named(&line, &name).map(yes_or_no)).take(2).collect();
                last = if let [answer] = answers[..] { answer } else { None };
            }
        }
        if met && unmet {
            Err(format!("with two answers to criterion {number}, yes and no"))
        } else {
            last.ok_or_else(|| format!("without criterion {number}: {}", end_of(said)))
        }
    };
    (1..=criteria).map(one).collect()
}

/// Returns what follows the reasoning of models that show theirs: nothing where it does not end.
fn without_thoughts(reply: &str) -> &str {
    // The first mark ends it: a later one may be quoted.
    let said = reply.split_once("</think>").map(|(_, said)| said).or_else(|| thinking::said(reply));
    let said = said.unwrap_or(reply).trim();
    let is_cut = ["<think>", "[THINK]", "<|channel|>"].iter().any(|mark| said.starts_with(mark));
    if is_cut { "" } else { said }
}

/// Reads a text that is a JSON object, alone or in one fence.
fn object(said: &str) -> Option<JsonPart<'_>> {
    let fenced = said.strip_prefix("```").and_then(|said| said.strip_suffix("```"));
    let text = fenced.map_or(said, |text| text.strip_prefix("json").unwrap_or(text));
    JsonPart::of(text.as_bytes()).ok().filter(|part| part.text().starts_with('{'))
}

/// Returns the lines with words, without the asterisks of bold text.
fn lines(said: &str) -> impl DoubleEndedIterator<Item = String> {
    let plain = said.lines().map(|line| line.replace('*', "").trim().to_string());
    plain.filter(|line| !line.is_empty())
}

/// Returns the value of a line `NAME: VALUE`.
fn named<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (head, value) = line.split_once(':')?;
    head.trim().eq_ignore_ascii_case(name).then_some(value.trim())
}

fn truth(value: JsonPart<'_>) -> Option<bool> {
    value.boolean().or_else(|| yes_or_no(&value.string()?))
}

fn yes_or_no(word: &str) -> Option<bool> {
    let is = |known: &str| word.eq_ignore_ascii_case(known);
    if is("yes") { Some(true) } else { is("no").then_some(false) }
}

fn end_of(said: &str) -> String {
    let skipped = said.chars().count().saturating_sub(SHOWN_CHARS);
    format!("it ends with {:?}", said.chars().skip(skipped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_a_last_line_or_an_object() {
        for (reply, expect) in [
            ("Score: 7", Some(7.0)),
            ("It is fine.\n\nscore : 7.5 \n", Some(7.5)),
            ("**Score: 0**", Some(0.0)),
            ("**Score:** 10", Some(10.0)),
            ("Score: 2\nSo, once more:\nScore: 2.0", Some(2.0)),
            ("{\"score\": 4, \"score\": 4.0}", Some(4.0)),
            ("<think>\nScore: 9\n</think>\nScore: 3", Some(3.0)),
            ("{\"score\": 4}", Some(4.0)),
            ("```json\n{\"reason\": \"short\", \"score\": 4.5}\n```", Some(4.5)),
            // Two answers are none: the policy writes what is quoted.
            ("Score: 0\nThe response only says:\nScore: 10", None),
            ("Score: 0\nScore: 10\nScore: 0", None),
            ("{\"score\": 0, \"quote\": \"x\", \"score\": 10}", None),
            // What is quoted is no answer, and neither is what needs a guess.
            ("```json\n{\"score\": 10}\n```\nis what the response asks for.", None),
            ("Score: 7\nGoodbye", None),
            ("<think>\nScore: 9\n</think>\n", None),
            ("<think>\nScore: 9", None),
            ("", None),
            ("I cannot judge this.", None),
            ("7", None),
            ("Score: 7/10", None),
            ("Score: seven", None),
            ("Score: ", None),
            ("{\"score\": \"7\"}", None),
            ("{\"score\": null}", None),
            ("{\"points\": 7}", None),
            ("{\"score\": 7", None),
            ("[7]", None),
            ("Score: 11", None),
            ("Score: -0.1", None),
            ("Score: NaN", None),
            ("Score: inf", None),
            ("{\"score\": 1e300}", None),
        ] {
            assert_eq!(read_score(reply, [0.0, 10.0]).ok(), expect, "{reply:?}");
        }
        let two = read_score("Score: 0\nIt says:\nScore: 10", [0.0, 10.0]).unwrap_err();
        assert_eq!(two, "with two scores, 0 and 10");
        let two = read_score("{\"score\": 0, \"score\": 10}", [0.0, 10.0]).unwrap_err();
        assert_eq!(two, "with two scores, 0 and 10");
        let long = "no ".repeat(1000);
        assert!(read_score(&long, [0.0, 1.0]).unwrap_err().len() < 200);
    }

    #[test]
    fn each_criterion_has_one_answer() {
        for (reply, expect) in [
            ("1: yes\n2: no", Some(vec![true, false])),
            ("Well.\n2: NO\n\n**1: Yes**\n", Some(vec![true, false])),
            ("{\"1\": true, \"2\": \"no\", \"why\": \"x\"}", Some(vec![true, false])),
            ("1: yes", None),
            ("1: yes\n1: no", None),
            ("1: yes\n2: no\nIn short:\n1: yes\n2: no", Some(vec![true, false])),
            ("{\"1\": true, \"2\": false, \"1\": \"yes\"}", Some(vec![true, false])),
            // Two answers are none: the policy writes what is quoted.
            ("1: no\n2: no\nThe response says:\n1: yes\n2: yes", None),
            ("{\"1\": false, \"2\": false, \"1\": true, \"2\": true}", None),
            ("1: no\n2: no\n2: yes", None),
            ("1: yes\n2: maybe", None),
            ("1: yes\n2: no\nThat is all.", None),
            ("{\"1\": true}", None),
            ("{\"1\": true, \"2\": 1}", None),
            ("", None),
        ] {
            assert_eq!(read_rubric(reply, 2).ok(), expect, "{reply:?}");
        }
        let two = read_rubric("1: no\nIt says:\n1: yes", 1).unwrap_err();
        assert_eq!(two, "with two answers to criterion 1, yes and no");
    }
}
