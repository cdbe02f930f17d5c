//! `grade`: a verifier over given responses, a JSON object a line in and out.

use crate::case::{Case, Prompt};
use crate::kinds;
use crate::scorer::Scorer;
use crate::spec::RewardSpec;
use plimsoll_base::{Error, Result};
use plimsoll_worker::{Stop, Words};
use serde_json::{Map, Value};
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Most disagreements that are kept with their reasons.
const DISAGREEMENTS_MAX: usize = 1000;

/// How often each verifier agreed with the `correct` column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Lines graded.
    pub cases: usize,
    /// One entry a verifier that was used, in order of first use.
    pub graders: Vec<GraderAgreement>,
    /// The first thousand lines on which a verifier and `correct` differ.
    pub disagreements: Vec<Disagreement>,
}

/// How often one verifier agreed with the `correct` column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraderAgreement {
    /// Its kind.
    pub grader: String,
    /// Lines it graded.
    pub cases: usize,
    /// Lines that had `correct` and were not `disputed`.
    pub labelled: usize,
    /// Of those, how many it decided the same way.
    pub agreed: usize,
    /// Wrong answers that it took for right.
    pub false_accepts: usize,
    /// Right answers that it took for wrong.
    pub false_rejects: usize,
    /// Lines with `correct` that were left out because they have `disputed`.
    pub disputed: usize,
}

/// A line on which a verifier and its label differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Disagreement {
    /// The line, from 1.
    pub line: usize,
    /// Its `id`, where it has one.
    pub id: Option<String>,
    /// The verifier.
    pub grader: String,
    /// What the label says.
    pub correct: bool,
    /// Why the verifier decided as it did.
    pub why: String,
}

/// Grades each line of `reader` and writes `{"id", "score"}` a line to `out`.
///
/// A line has `response` and `ground_truth`, and may have `grader` (else `default_kind`), `correct`, `disputed`, `id`.
/// Every column goes to the reward; an answer counts as taken for right with a score of at least 0.5.
/// Errors: `data-bad-json` and `data-column-missing` with the line's number, `unknown-reward`, `io-error`; the reward's.
pub fn grade_jsonl(reader: impl BufRead, default_kind: &str, out: &mut impl Write) -> Result<Agreement> {
    let mut graders = Graders(Vec::new());
    graders.of_kind(default_kind)?;
    let mut agreement = Agreement::default();
    for (index, line) in reader.lines().enumerate() {
        let line = line.map_err(|err| bad_line(index, &err.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let row: Map<String, Value> =
            serde_json::from_str(&line).map_err(|err| bad_line(index, &err.to_string()))?;
        let mut reply = Map::new();
        reply.extend(row.get("id").map(|id| ("id".to_string(), id.clone())));
        let score = grade_row(row, index, default_kind, &mut graders, &mut agreement)?;
        reply.insert("score".into(), score.map_or(Value::Null, Value::from));
        writeln!(out, "{}", Value::Object(reply))
            .map_err(|err| Error::new("io-error", format!("writing the scores: {err}")))?;
    }
    Ok(agreement)
}

/// The scorers of a file, each started at its first use.
struct Graders(Vec<(String, Box<dyn Scorer>, bool)>);

impl Graders {
    /// The scorer of a kind, and whether it reads the answer.
    fn of_kind(&mut self, kind: &str) -> Result<(&mut dyn Scorer, bool)> {
        let at = match self.0.iter().position(|(known, ..)| known == kind) {
            Some(at) => at,
            None => {
                let spec = RewardSpec::of_kind(kind);
                let read = kinds::read(&spec)?;
                let needs_answer = read.needs_answer;
                let scorer = read.start(kind, &spec, &Stop::default(), Some(Words::to_stderr()))?;
                self.0.push((kind.to_string(), scorer, needs_answer));
                self.0.len() - 1
            }
        };
        let (_, scorer, needs_answer) = &mut self.0[at];
        Ok((scorer.as_mut(), *needs_answer))
    }
}

fn grade_row(
    row: Map<String, Value>,
    index: usize,
    default_kind: &str,
    graders: &mut Graders,
    agreement: &mut Agreement,
) -> Result<Option<f64>> {
    let kind = row.get("grader").and_then(Value::as_str).unwrap_or(default_kind).to_string();
    let (scorer, needs_answer) = graders.of_kind(&kind)?;
    for name in ["response"].into_iter().chain(needs_answer.then_some("ground_truth")) {
        if !row.contains_key(name) {
            let there: Vec<&str> = row.keys().map(String::as_str).collect();
            let message = format!("line {} has no `{name}`", index + 1);
            return Err(Error::new("data-column-missing", message)
                .fact(format!("columns there: {}", there.join(", ")))
                .hint("a line has `response` and `ground_truth`"));
        }
    }
    let text = |name: &str| row.get(name).map(crate::case::text_of).unwrap_or_default();
    let (label, id) = (row.get("correct").and_then(Value::as_bool), row.get("id").map(crate::case::text_of));
    let is_disputed =
        row.get("disputed").is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
    let (response, prompt) = (text("response"), text("prompt"));
    let prompt = Prompt { rendered: prompt.clone(), text: prompt, messages: None, columns: row };
    let prompt = Arc::new(prompt);
    let case = Arc::new(Case { prompt, response, response_ids: Vec::new(), max_new_tokens: 0, ended: true });
    let score = scorer.score(std::slice::from_ref(&case), [0, 0])?.scores[0];
    let right = score.is_some_and(|score| score >= 0.5);
    agreement.cases += 1;
    let entry = agreement.entry(&kind);
    entry.cases += 1;
    match label {
        Some(_) if is_disputed => entry.disputed += 1,
        Some(correct) => {
            entry.labelled += 1;
            entry.agreed += usize::from(correct == right);
            entry.false_accepts += usize::from(right && !correct);
            entry.false_rejects += usize::from(!right && correct);
            if correct != right && agreement.disagreements.len() < DISAGREEMENTS_MAX {
                let why = scorer.why(&case);
                agreement.disagreements.push(Disagreement {
                    line: index + 1,
                    id,
                    grader: kind,
                    correct,
                    why,
                });
            }
        }
        None => {}
    }
    Ok(score)
}

impl Agreement {
    fn entry(&mut self, kind: &str) -> &mut GraderAgreement {
        let at = self.graders.iter().position(|entry| entry.grader == kind).unwrap_or_else(|| {
            self.graders.push(GraderAgreement { grader: kind.into(), ..GraderAgreement::default() });
            self.graders.len() - 1
        });
        &mut self.graders[at]
    }
}

fn bad_line(index: usize, why: &str) -> Error {
    Error::new("data-bad-json", format!("line {} is not a JSON object: {why}", index + 1))
        .hint("write one JSON object a line, in UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_come_a_line_each_and_agreement_is_counted() {
        let input = concat!(
            "{\"id\": 7, \"response\": \"#### 5\", \"ground_truth\": 5, \"grader\": \"gsm8k\", \"correct\": true}\n\n",
            "{\"response\": \"5 \", \"ground_truth\": \"5\", \"correct\": false}\n",
            "{\"response\": \"6\", \"ground_truth\": \"5\", \"correct\": true, \"disputed\": \"why\"}\n",
        );
        let mut out = Vec::new();
        let agreement = grade_jsonl(input.as_bytes(), "exact", &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "{\"id\":7,\"score\":1.0}\n{\"score\":1.0}\n{\"score\":0.0}\n");
        assert_eq!((agreement.cases, agreement.graders.len()), (3, 2));
        let exact = &agreement.graders[1];
        assert_eq!((exact.labelled, exact.agreed, exact.false_accepts, exact.disputed), (1, 0, 1, 1));
        let differs = &agreement.disagreements[..];
        assert!(
            matches!(differs, [one] if one.line == 3 && !one.correct && one.grader == "exact"),
            "{differs:?}"
        );
        assert_eq!(differs[0].why, "\"5\" against \"5\"");
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let grade = |input: &str| grade_jsonl(input.as_bytes(), "math", &mut Vec::new()).unwrap_err();
        let good = "{\"response\": \"1\", \"ground_truth\": \"1\"}\n";
        let error = grade(&format!("{good}{{oops\n"));
        assert_eq!(error.slug, "data-bad-json");
        assert!(error.message.contains("line 2"), "{error}");
        assert_eq!(grade(&format!("{good}[1]\n")).slug, "data-bad-json");
        assert_eq!(grade("{\"response\": \"1\"}\n").slug, "data-column-missing");
        assert_eq!(
            grade("{\"response\": \"1\", \"ground_truth\": \"1\", \"grader\": \"mth\"}\n").slug,
            "unknown-reward"
        );
        assert_eq!(grade_jsonl(&b""[..], "mth", &mut Vec::new()).unwrap_err().slug, "unknown-reward");
    }
}
