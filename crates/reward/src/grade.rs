//! `grade`: runs a verifier on given responses; a row in, a score out.

use crate::case::{ANSWER, Case, Prompt, column, text_of};
use crate::kinds;
use crate::scorer::Scorer;
use crate::spec::RewardSpec;
use plimsoll_base::{Error, Result};
use plimsoll_worker::{Stop, Words};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Most disagreements kept with their reasons.
const DISAGREEMENTS_MAX: usize = 1000;

/// How often each verifier agreed with the `correct` column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Lines graded.
    pub cases: usize,
    /// One entry per verifier, in order of first use.
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
    /// Labelled lines on which verifier and label agree.
    pub agreed: usize,
    /// Wrong answers that it accepted.
    pub false_accepts: usize,
    /// Right answers that it rejected.
    pub false_rejects: usize,
    /// Lines with `correct` that were skipped because of `disputed`.
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
    /// The label.
    pub correct: bool,
    /// The verifier's reason.
    pub why: String,
}

/// The default column of the response.
pub const RESPONSE: &str = "response";
/// Its names in other frameworks' files.
const RESPONSE_NAMES: [&str; 8] =
    ["completion", "completions", "output", "generation", "generated_text", "model_output", "answer", "text"];
/// Names of the answer in other frameworks' files.
const ANSWER_NAMES: [&str; 6] = ["answer", "solution", "reference_answer", "label", "target", "expected"];
/// Most columns to list in an error.
const COLUMNS_LISTED: usize = 20;

/// Grades rows one by one.
///
/// A row has a response and an answer, and may have `grader` (default: the kind given to `new`), `correct`, `disputed`
/// and `id`. Every column goes to the reward; a score of at least 0.5 accepts the answer.
pub struct Grading {
    spec: RewardSpec,
    response_column: String,
    /// The scorers, each started at its first use.
    graders: Vec<(String, Box<dyn Scorer>, bool)>,
    agreement: Agreement,
}

impl Grading {
    /// Starts the scorer of `spec`; `response_column` has the responses, `spec.answer_column` the answers.
    ///
    /// Errors: `unknown-reward`; the reward's.
    pub fn new(spec: RewardSpec, response_column: &str) -> Result<Grading> {
        let (graders, agreement) = (Vec::new(), Agreement::default());
        let kind = spec.kind.clone();
        let mut grading = Grading { spec, response_column: response_column.into(), graders, agreement };
        grading.grader(&kind)?;
        Ok(grading)
    }

    /// Grades a row; `line` is its number. Returns `{"id", "score"}`.
    ///
    /// Errors: `data-column-missing`, `unknown-reward`; the reward's.
    pub fn grade(&mut self, line: usize, row: Map<String, Value>) -> Result<Value> {
        let mut reply = Map::new();
        reply.extend(row.get("id").map(|id| ("id".to_string(), id.clone())));
        let score = self.score(line, row)?;
        reply.insert("score".into(), score.map_or(Value::Null, Value::from));
        Ok(Value::Object(reply))
    }

    /// Returns how often the rewards agreed with `correct`.
    pub fn finish(self) -> Agreement {
        self.agreement
    }

    /// Returns the index of a kind's scorer.
    fn grader(&mut self, kind: &str) -> Result<usize> {
        if let Some(at) = self.graders.iter().position(|(known, ..)| known == kind) {
            return Ok(at);
        }
        let spec = RewardSpec { kind: kind.into(), ..self.spec.clone() };
        let read = kinds::read(&spec)?;
        let needs_answer = read.needs_answer;
        let scorer = read.start(kind, &spec, &Stop::default(), Some(Words::to_stderr()))?;
        self.graders.push((kind.to_string(), scorer, needs_answer));
        Ok(self.graders.len() - 1)
    }

    fn score(&mut self, line: usize, row: Map<String, Value>) -> Result<Option<f64>> {
        let kind = row.get("grader").and_then(Value::as_str).unwrap_or(&self.spec.kind).to_string();
        let at = self.grader(&kind)?;
        let (_, scorer, needs_answer) = &mut self.graders[at];
        let answer = self.spec.answer_column.as_str();
        let Some(response) = row.get(&self.response_column) else {
            return Err(no_column(
                line,
                &row,
                (&self.response_column, RESPONSE),
                "--response-column",
                &RESPONSE_NAMES,
            ));
        };
        if *needs_answer && column(&row, answer).is_none() {
            return Err(no_column(line, &row, (answer, ANSWER), "--answer-column", &ANSWER_NAMES));
        }
        let (label, id) = (row.get("correct").and_then(Value::as_bool), row.get("id").map(text_of));
        let is_disputed =
            row.get("disputed").is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
        let response = last_message(response);
        let messages = row.get("prompt").filter(|prompt| prompt.is_array()).cloned().map(Arc::new);
        let rendered = row.get("prompt").map(text_of).unwrap_or_default();
        let text = row.get("prompt").map(last_message).unwrap_or_default();
        let prompt = Arc::new(Prompt { rendered, text, messages, columns: row.into() });
        let case = Arc::new(Case {
            prompt,
            response,
            completion: None,
            response_ids: Vec::new(),
            max_new_tokens: 0,
            ended: true,
        });
        let score = scorer.score(std::slice::from_ref(&case), [0, 0])?.scores[0];
        let right = score.is_some_and(|score| score >= 0.5);
        let why = label.filter(|correct| !is_disputed && *correct != right).map(|_| scorer.why(&case));
        self.agreement.count(&kind, label.map(|correct| (correct, is_disputed)), right);
        if let (Some(why), Some(correct), true) =
            (why, label, self.agreement.disagreements.len() < DISAGREEMENTS_MAX)
        {
            self.agreement.disagreements.push(Disagreement { line, id, grader: kind, correct, why });
        }
        Ok(score)
    }
}

/// Returns a text as it is, or the last message of a conversation, which is how TRL writes completions.
fn last_message(value: &Value) -> String {
    let last = value.as_array().and_then(|list| list.last()).and_then(|message| message.get("content"));
    text_of(last.filter(|content| content.is_string()).unwrap_or(value))
}

/// Returns the error for a row without a column, and the one probably meant. `names`: the column, and its default.
fn no_column(
    line: usize,
    row: &Map<String, Value>,
    names: (&str, &str),
    flag: &str,
    others: &[&str],
) -> Error {
    let (name, usual) = names;
    let near = |known: &&String| strsim::damerau_levenshtein(&known.to_ascii_lowercase(), name) <= 2;
    let known = std::iter::once(&usual).chain(others).find(|other| row.contains_key(**other));
    let meant = row.keys().find(near).map(String::as_str).or(known.copied());
    let there: Vec<&str> = row.keys().take(COLUMNS_LISTED).map(String::as_str).collect();
    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
    let error = Error::new("data-column-missing", format!("row {line} has no `{name}`"))
        .fact(format!("columns there: {there}"));
    match meant {
        Some(meant) => error.hint(format!("did you mean `{meant}`? {flag} {meant}")),
        None => error.hint(format!("name the column: {flag} NAME")),
    }
}

impl Agreement {
    /// Counts a row; `label` is the value of `correct`, and true if it is disputed.
    fn count(&mut self, kind: &str, label: Option<(bool, bool)>, right: bool) {
        self.cases += 1;
        let entry = self.entry(kind);
        entry.cases += 1;
        match label {
            Some((_, true)) => entry.disputed += 1,
            Some((correct, false)) => {
                entry.labelled += 1;
                entry.agreed += usize::from(correct == right);
                entry.false_accepts += usize::from(right && !correct);
                entry.false_rejects += usize::from(!right && correct);
            }
            None => {}
        }
    }

    fn entry(&mut self, kind: &str) -> &mut GraderAgreement {
        let at = self.graders.iter().position(|entry| entry.grader == kind).unwrap_or_else(|| {
            self.graders.push(GraderAgreement { grader: kind.into(), ..GraderAgreement::default() });
            self.graders.len() - 1
        });
        &mut self.graders[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grades rows with columns of the usual names; the replies and the agreement.
    fn grade(kind: &str, rows: &[&str]) -> Result<(Vec<String>, Agreement)> {
        grade_as(RewardSpec::of_kind(kind), RESPONSE, rows)
    }

    fn grade_as(spec: RewardSpec, column: &str, rows: &[&str]) -> Result<(Vec<String>, Agreement)> {
        let mut grading = Grading::new(spec, column)?;
        let row = |row: &&str| serde_json::from_str(row).expect("an object");
        let replies =
            rows.iter().map(row).enumerate().map(|(i, row)| Ok(grading.grade(i + 1, row)?.to_string()));
        let replies = replies.collect::<Result<_>>()?;
        Ok((replies, grading.finish()))
    }

    #[test]
    fn scores_come_a_row_each_and_agreement_is_counted() {
        let rows = [
            "{\"id\": 7, \"response\": \"#### 5\", \"ground_truth\": 5, \"grader\": \"gsm8k\", \"correct\": true}",
            "{\"response\": \"5 \", \"ground_truth\": \"5\", \"correct\": false}",
            "{\"response\": \"6\", \"ground_truth\": \"5\", \"correct\": true, \"disputed\": \"why\"}",
        ];
        let (out, agreement) = grade("exact", &rows).unwrap();
        assert_eq!(out, ["{\"id\":7,\"score\":1.0}", "{\"score\":1.0}", "{\"score\":0.0}"]);
        assert_eq!((agreement.cases, agreement.graders.len()), (3, 2));
        let exact = &agreement.graders[1];
        assert_eq!((exact.labelled, exact.agreed, exact.false_accepts, exact.disputed), (1, 0, 1, 1));
        let differs = &agreement.disagreements[..];
        assert!(
            matches!(differs, [one] if one.line == 2 && !one.correct && one.grader == "exact"),
            "{differs:?}"
        );
        assert_eq!(differs[0].why, "\"5\" against \"5\"");
    }

    #[test]
    fn columns_may_have_other_names_and_completions_may_be_messages() {
        let spec = RewardSpec { answer_column: "solution".into(), ..RewardSpec::of_kind("exact") };
        let rows = [
            "{\"completion\": \"5\", \"solution\": \"5\"}",
            "{\"completion\": [{\"role\": \"assistant\", \"content\": \"5\"}], \"solution\": \"5\"}",
            "{\"completion\": [1], \"solution\": \"[1]\"}",
        ];
        let (out, _) = grade_as(spec, "completion", &rows).unwrap();
        assert_eq!(out, ["{\"score\":1.0}"; 3]);
        // verl's data has its answer within `reward_model`.
        let (out, _) =
            grade("exact", &["{\"response\": \"5\", \"reward_model\": {\"ground_truth\": \"5\"}}"]).unwrap();
        assert_eq!(out, ["{\"score\":1.0}"]);
    }

    #[test]
    fn a_missing_column_names_the_one_that_was_meant() {
        for (row, message, hint) in [
            (
                "{\"completion\": \"1\"}",
                "row 2 has no `response`",
                "`completion`? --response-column completion",
            ),
            ("{\"Responses\": \"1\"}", "row 2 has no `response`", "`Responses`? --response-column Responses"),
            ("{\"x\": \"1\"}", "row 2 has no `response`", "name the column: --response-column NAME"),
            (
                "{\"response\": \"1\", \"answer\": \"1\"}",
                "row 2 has no `ground_truth`",
                "--answer-column answer",
            ),
        ] {
            let error = grade("math", &["{\"response\": \"1\", \"ground_truth\": \"1\"}", row]).unwrap_err();
            assert_eq!(error.slug, "data-column-missing");
            assert_eq!(error.message, message);
            assert!(error.hints[0].ends_with(hint), "{error}");
        }
    }

    #[test]
    fn a_kind_that_does_not_exist_is_named() {
        let row = "{\"response\": \"1\", \"ground_truth\": \"1\", \"grader\": \"mth\"}";
        assert_eq!(grade("math", &[row]).unwrap_err().slug, "unknown-reward");
        assert_eq!(grade("mth", &[]).unwrap_err().slug, "unknown-reward");
    }
}
