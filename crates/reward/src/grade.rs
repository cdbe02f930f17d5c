//! `grade`: runs a verifier on given responses; a row in, a score out.

use crate::case::{ANSWER, Case, Prompt, column, text_of};
use crate::grader::require_finite;
use crate::kinds;
use crate::scorer::Scorer;
use crate::spec::{BATCH_SAMPLES, RewardSpec};
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
    /// Lines that had `correct` and a score, and were not `disputed`.
    pub labelled: usize,
    /// Lines that had `correct` and no score: they neither agree nor differ.
    pub unscored: usize,
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

/// Most rows of one prompt in a call.
const GROUP_ROWS_MAX: usize = 1024;

struct Started {
    kind: String,
    /// The kind for messages and reports.
    shown: String,
    scorer: Box<dyn Scorer>,
    needs_answer: bool,
    /// A call has one row: its score depends on no other.
    is_single: bool,
}

/// A row that waits for the others of its call.
struct Waiting {
    line: usize,
    case: Arc<Case>,
    /// The value of `correct`, and true if it is disputed.
    label: Option<(bool, bool)>,
    id: Option<Value>,
}

/// Grades rows in order, in calls as those of a run: rows of one prompt that follow each other are in one call.
///
/// A row has a response and an answer, and may have `grader` (default: the kind given to `new`), `correct`, `disputed`
/// and `id`. Every column goes to the reward; a score of at least 0.5 accepts the answer.
pub struct Grading {
    spec: RewardSpec,
    response_column: String,
    /// The scorers, each started at its first use.
    graders: Vec<Started>,
    /// The scorer of the rows that wait.
    at: usize,
    waiting: Vec<Waiting>,
    agreement: Agreement,
}

/// Takes a row's reply, `{"id", "score"}`.
type Say<'s> = &'s mut dyn FnMut(Value) -> Result<()>;

impl Grading {
    /// Starts the scorer of `spec`; `response_column` has the responses, `spec.answer_column` the answers.
    ///
    /// Errors: `unknown-reward`; the reward's.
    pub fn new(spec: RewardSpec, response_column: &str) -> Result<Grading> {
        let kind = spec.kind.clone();
        let mut grading = Grading {
            spec,
            response_column: response_column.into(),
            graders: Vec::new(),
            at: 0,
            waiting: Vec::new(),
            agreement: Agreement::default(),
        };
        grading.grader(&kind)?;
        Ok(grading)
    }

    /// Takes a row, and grades those before it if it begins another call; `line` is its number.
    ///
    /// Errors: `data-column-missing`, `unknown-reward`, `reward-not-finite`; the reward's and those of `say`.
    pub fn grade(&mut self, line: usize, row: Map<String, Value>, say: Say) -> Result<()> {
        let read = self.read(line, row);
        let Ok((at, row)) = read else { return self.flush(say).and(read.map(drop)) };
        let same = self.waiting.last().is_some_and(|last| of_one_prompt(&last.case, &row.case));
        let most = if same { GROUP_ROWS_MAX } else { BATCH_SAMPLES };
        if at != self.at || self.waiting.len() >= most {
            self.flush(say)?;
        }
        self.at = at;
        self.waiting.push(row);
        if self.graders[at].is_single { self.flush(say) } else { Ok(()) }
    }

    /// Grades the rows that wait, and returns how often the rewards agreed with `correct`.
    ///
    /// Errors: as `grade`.
    pub fn finish(mut self, say: Say) -> Result<Agreement> {
        self.flush(say)?;
        Ok(self.agreement)
    }

    /// Returns the index of a kind's scorer.
    fn grader(&mut self, kind: &str) -> Result<usize> {
        if let Some(at) = self.graders.iter().position(|known| known.kind == kind) {
            return Ok(at);
        }
        if let Some(error) = not_for_rows(kind) {
            return Err(error);
        }
        let spec = RewardSpec { kind: kind.into(), ..self.spec.clone() };
        let read = kinds::read(&spec)?;
        let (needs_answer, is_single) = (read.needs_answer, read.is_per_response(&spec));
        let shown = kinds::shown_kind(kind);
        let scorer = read.start(&shown, &spec, &Stop::default(), Some(Words::to_stderr()))?;
        self.graders.push(Started { kind: kind.to_string(), shown, scorer, needs_answer, is_single });
        Ok(self.graders.len() - 1)
    }

    /// Reads a row, with the index of its scorer.
    fn read(&mut self, line: usize, row: Map<String, Value>) -> Result<(usize, Waiting)> {
        let kind = row.get("grader").and_then(Value::as_str).unwrap_or(&self.spec.kind).to_string();
        let at = self.grader(&kind)?;
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
        if self.graders[at].needs_answer && column(&row, answer).is_none() {
            return Err(no_column(line, &row, (answer, ANSWER), "--answer-column", &ANSWER_NAMES));
        }
        let is_disputed =
            row.get("disputed").is_some_and(|value| !value.is_null() && *value != Value::Bool(false));
        let label = row.get("correct").and_then(Value::as_bool).map(|correct| (correct, is_disputed));
        let id = row.get("id").cloned();
        let response = last_message(response);
        let messages = row.get("prompt").filter(|prompt| prompt.is_array()).cloned().map(Arc::new);
        let rendered = row.get("prompt").map(text_of).unwrap_or_default();
        let text = row.get("prompt").map(last_message).unwrap_or_default();
        let prompt =
            Arc::new(Prompt { rendered, text, messages, columns: row.into(), images: Arc::default() });
        let case = Arc::new(Case {
            prompt,
            response,
            completion: None,
            response_ids: Vec::new(),
            max_new_tokens: 0,
            ended: true,
        });
        Ok((at, Waiting { line, case, label, id }))
    }

    /// Grades the rows that wait, in one call.
    fn flush(&mut self, say: Say) -> Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let lines = match rows.len() {
            1 => format!("it is row {}", first.line),
            _ => format!("it has rows {} to {}", first.line, last.line),
        };
        let Started { shown, scorer, .. } = &mut self.graders[self.at];
        let cases: Vec<Arc<Case>> = rows.iter().map(|row| row.case.clone()).collect();
        let scores = scorer.score(&cases, [0, 0]).map_err(|error| error.fact(lines))?;
        require_finite(shown, 1.0, &cases, &scores, &|sample| format!("row {}", rows[sample].line))?;
        for (row, score) in rows.into_iter().zip(scores.scores) {
            let mut reply = Map::new();
            reply.extend(row.id.as_ref().map(|id| ("id".to_string(), id.clone())));
            reply.insert("score".into(), score.map_or(Value::Null, Value::from));
            self.agreement.count(shown, row.label, score.map(is_right));
            if let (Some((correct, false)), Some(score)) = (row.label, score)
                && correct != is_right(score)
                && self.agreement.disagreements.len() < DISAGREEMENTS_MAX
            {
                let (why, id) = (scorer.why(&row.case), row.id.as_ref().map(text_of));
                let differs = Disagreement { line: row.line, id, grader: shown.clone(), correct, why };
                self.agreement.disagreements.push(differs);
            }
            say(Value::Object(reply))?;
        }
        Ok(())
    }
}

fn is_right(score: f64) -> bool {
    score >= 0.5
}

/// True for rows that both have a prompt, which is the same.
fn of_one_prompt(a: &Case, b: &Case) -> bool {
    let (a, b) = (a.prompt.columns.get("prompt"), b.prompt.columns.get("prompt"));
    a.is_some() && a == b
}

/// Refuses kinds that read what rows of text do not have.
fn not_for_rows(kind: &str) -> Option<Error> {
    match kind {
        "length" => Some(
            Error::usage("bad-usage", "`length` counts tokens, of which rows of text have none")
                .hint("`plimsoll eval` and `plimsoll train` grade with it what a model samples"),
        ),
        "model" => Some(
            Error::usage("bad-usage", "`model` is a reward model, which `plimsoll grade` does not run")
                .hint("score with one: plimsoll eval --reward-model DIR"),
        ),
        _ => None,
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
    /// Counts a row; `label` is the value of `correct`, and true if it is disputed; `right` is none without a score.
    fn count(&mut self, kind: &str, label: Option<(bool, bool)>, right: Option<bool>) {
        self.cases += 1;
        let entry = self.entry(kind);
        entry.cases += 1;
        match label {
            Some((_, true)) => entry.disputed += 1,
            Some((correct, false)) => {
                let Some(right) = right else { return entry.unscored += 1 };
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
        let mut replies = Vec::new();
        let mut say = |reply: Value| {
            replies.push(reply.to_string());
            Ok(())
        };
        for (i, row) in rows.iter().enumerate() {
            grading.grade(i + 1, serde_json::from_str(row).expect("an object"), &mut say)?;
        }
        let agreement = grading.finish(&mut say)?;
        Ok((replies, agreement))
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

    #[test]
    fn a_row_that_a_verifier_cannot_read_is_named() {
        let good = "{\"response\": \"1\", \"ground_truth\": {\"target\": 1, \"numbers\": [1]}}";
        let error = grade("countdown", &[good, "{\"response\": \"1\", \"ground_truth\": 7}"]).unwrap_err();
        assert_eq!((error.slug, &error.facts[0][..]), ("reward-bad-answer", "it is row 2"));
    }

    #[test]
    fn kinds_that_need_more_than_text_are_refused() {
        for (kind, words) in [("length", "counts tokens"), ("model", "plimsoll eval --reward-model DIR")] {
            let error = grade(kind, &[]).unwrap_err();
            assert!(error.slug == "bad-usage" && error.to_string().contains(words), "{error}");
        }
    }
}
