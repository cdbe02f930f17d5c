//! What a judge's text says: a number or an answer to each criterion, and nothing that has to be guessed.

use serde_json::{Map, Value};

/// Most characters of a reply in a message.
const SHOWN_CHARS: usize = 80;

/// Reads a number of the scale from the last line `Score: N`, or from a text that is a JSON object with `score`.
///
/// Errors: a sentence about what the reply is instead.
pub(super) fn read_score(reply: &str, [low, high]: [f64; 2]) -> Result<f64, String> {
    let said = without_thoughts(reply);
    let number = match object(said) {
        Some(object) => object.get("score").and_then(Value::as_f64),
        None => lines(said).next_back().and_then(|line| named(&line, "score")?.parse().ok()),
    };
    let number = number.ok_or_else(|| format!("without a score: {}", end_of(said)))?;
    match (low..=high).contains(&number) {
        true => Ok(number),
        false => Err(format!("with the score {number}, which is not from {low} to {high}")),
    }
}

/// Reads whether each of `criteria` is met: one line `N: yes` or `N: no` for each at the end, or a JSON object.
///
/// Errors: a sentence about what the reply is instead.
pub(super) fn read_rubric(reply: &str, criteria: usize) -> Result<Vec<bool>, String> {
    let said = without_thoughts(reply);
    let object = object(said);
    let lines: Vec<String> = lines(said).rev().take(criteria).collect();
    let one = |number: usize| match &object {
        Some(object) => object.get(&number.to_string()).and_then(truth),
        None => {
            let mut answers = lines.iter().filter_map(|line| named(line, &number.to_string()));
            answers.next().filter(|_| answers.next().is_none()).and_then(yes_or_no)
        }
    };
    let answer = |number| one(number).ok_or_else(|| format!("without criterion {number}: {}", end_of(said)));
    (1..=criteria).map(answer).collect()
}

/// Returns what follows the reasoning of models that show theirs: nothing where it does not end.
fn without_thoughts(reply: &str) -> &str {
    let said = reply.rsplit_once("</think>").map_or(reply, |(_, said)| said).trim();
    if said.starts_with("<think>") { "" } else { said }
}

/// Reads a text that is a JSON object, alone or in one fence.
fn object(said: &str) -> Option<Map<String, Value>> {
    let fenced = said.strip_prefix("```").and_then(|said| said.strip_suffix("```"));
    let text = fenced.map_or(said, |text| text.strip_prefix("json").unwrap_or(text));
    serde_json::from_str(text).ok()
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

fn truth(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| yes_or_no(value.as_str()?))
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
            ("Score: 1\nSays the response. But:\nScore: 2", Some(2.0)),
            ("<think>\nScore: 9\n</think>\nScore: 3", Some(3.0)),
            ("{\"score\": 4}", Some(4.0)),
            ("```json\n{\"reason\": \"short\", \"score\": 4.5}\n```", Some(4.5)),
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
            ("1: yes\n2: maybe", None),
            ("1: yes\n2: no\nThat is all.", None),
            ("{\"1\": true}", None),
            ("{\"1\": true, \"2\": 1}", None),
            ("", None),
        ] {
            assert_eq!(read_rubric(reply, 2).ok(), expect, "{reply:?}");
        }
    }
}
