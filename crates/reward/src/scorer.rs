//! Scorers of batches: a verifier in this process, or one interpreter, program or connection.

use crate::case::{Case, column};
use crate::spec::RewardSpec;
use crate::tally::Tally;
use crate::truths::{Truth, truths};
use plimsoll_base::{Error, Result, nearest_name};
use plimsoll_worker::{Columns, Limits, Scores, Stop, Words};
use serde_json::Value;
use std::sync::Arc;

/// Scores batches, one at a time.
pub(crate) trait Scorer {
    /// Refuses columns that cannot be scored, if this is known before the first batch.
    fn check(&mut self, _columns: &Columns) -> Result<()> {
        Ok(())
    }

    /// Scores a nonempty batch; one entry per case.
    fn score(&mut self, cases: &[Arc<Case>], steps: [u32; 2]) -> Result<Scores>;

    /// Returns the failures that it has dealt with since the last call; an error that it returns is none of them.
    fn counted(&mut self) -> Tally {
        Tally::default()
    }

    /// Explains a case's score, if the reason is known.
    fn why(&self, case: &Case) -> String {
        format!("the response is {}", beginning(&case.response, 60))
    }
}

/// A row of the data as a verifier sees it.
pub(crate) struct Row<'r> {
    /// The name of the reward in metrics and messages.
    pub(crate) name: &'r str,
    /// The answer column; `null` if there is none.
    pub(crate) answer: &'r Value,
    pub(crate) columns: &'r Columns,
}

impl Row<'_> {
    /// Returns the answers, any of which is right.
    fn truths(&self) -> Result<Vec<Truth>> {
        truths(self.answer).map_err(|why| bad_answer(self.name, &why))
    }
}

/// Scores one response in this process.
pub(crate) trait Verifier {
    /// Refuses an answer that the verifier cannot read.
    fn check(&self, _row: &Row) -> Result<()> {
        Ok(())
    }

    fn score(&self, row: &Row, case: &Case) -> Result<f64>;

    /// Explains a case's score.
    fn why(&self, _row: &Row, case: &Case) -> String {
        format!("the response is {}", beginning(&case.response, 60))
    }
}

/// A function is a verifier that reads the response alone.
impl<F: Fn(&Case) -> f64> Verifier for F {
    fn score(&self, _: &Row, case: &Case) -> Result<f64> {
        Ok(self(case))
    }
}

/// A function of a response and its answer as texts, and one that explains the score. Of several answers any is right.
pub(crate) struct OfTexts {
    pub(crate) grade: fn(&str, &str) -> bool,
    pub(crate) why: fn(&str, &str) -> String,
}

impl OfTexts {
    fn is_right(&self, response: &str, truth: &Truth) -> bool {
        (self.grade)(response, &truth.text) || truth.is_number(response)
    }
}

impl Verifier for OfTexts {
    fn check(&self, row: &Row) -> Result<()> {
        row.truths().map(drop)
    }

    fn score(&self, row: &Row, case: &Case) -> Result<f64> {
        Ok(f64::from(row.truths()?.iter().any(|truth| self.is_right(&case.response, truth))))
    }

    fn why(&self, row: &Row, case: &Case) -> String {
        let Ok(truths) = row.truths() else { return "the answers cannot be read".into() };
        let right = truths.iter().find(|truth| self.is_right(&case.response, truth));
        let Some(truth) = right.or(truths.first()) else { return "there is no answer".into() };
        let why = (self.why)(&case.response, &truth.text);
        if truths.len() > 1 { format!("{why} (of {} answers)", truths.len()) } else { why }
    }
}

/// The arguments to start a scorer.
pub(crate) struct Start<'s> {
    pub(crate) name: &'s str,
    pub(crate) spec: &'s RewardSpec,
    /// True if the spec's kind reads the answer column.
    pub(crate) needs_answer: bool,
    pub(crate) limits: Limits,
    pub(crate) stop: Stop,
    pub(crate) words: Option<Words>,
}

type Starts = Box<dyn FnOnce(Start) -> Result<Box<dyn Scorer>>>;

/// A kind that was read, ready to start.
pub(crate) struct Reading {
    /// The name in metrics, unless an earlier reward has it.
    pub(crate) label: String,
    pub(crate) start: Starts,
}

impl Reading {
    pub(crate) fn starts(
        label: &str,
        start: impl FnOnce(Start) -> Result<Box<dyn Scorer>> + 'static,
    ) -> Reading {
        Reading { label: label.to_string(), start: Box::new(start) }
    }

    pub(crate) fn verifier(label: &str, verifier: impl Verifier + 'static) -> Reading {
        Reading::starts(label, |Start { name, spec, needs_answer, .. }| {
            let (name, answer_column) = (name.to_string(), spec.answer_column.clone());
            Ok(Box::new(Here { verifier, name, answer_column, needs_answer }))
        })
    }
}

/// A verifier with the column that it reads.
struct Here<V> {
    verifier: V,
    name: String,
    answer_column: String,
    needs_answer: bool,
}

impl<V> Here<V> {
    fn row<'r>(&'r self, columns: &'r Columns) -> Row<'r> {
        Row { name: &self.name, answer: answer(columns, &self.answer_column), columns }
    }
}

impl<V: Verifier> Scorer for Here<V> {
    fn check(&mut self, columns: &Columns) -> Result<()> {
        self.verifier.check(&self.row(columns))
    }

    fn score(&mut self, cases: &[Arc<Case>], _: [u32; 2]) -> Result<Scores> {
        let one = |case: &Arc<Case>| {
            let row = self.row(&case.prompt.columns);
            if self.needs_answer && row.answer.is_null() {
                return Err(column_missing(&self.name, &self.answer_column, row.columns));
            }
            self.verifier.score(&row, case).map(Some)
        };
        cases.iter().map(one).collect::<Result<_>>().map(plain)
    }

    fn why(&self, case: &Case) -> String {
        self.verifier.why(&self.row(&case.prompt.columns), case)
    }
}

/// Returns the answer of a row; `null` if there is none.
pub(crate) fn answer<'c>(columns: &'c Columns, name: &str) -> &'c Value {
    column(columns, name).unwrap_or(&Value::Null)
}

/// Returns scores with nothing logged.
/// Returns the first characters of a text, quoted; responses may have thousands.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    let (shown, more) = match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], "..."),
        None => (text, ""),
    };
    format!("{shown:?}{more}")
}

pub(crate) fn plain(scores: Vec<Option<f64>>) -> Scores {
    Scores { scores, ..Scores::default() }
}

/// Returns a verdict as a sentence.
pub(crate) fn verdict(verdict: std::result::Result<(), String>) -> String {
    verdict.err().unwrap_or_else(|| "it holds".into())
}

/// Makes the error of an answer column that a verifier cannot read.
pub(crate) fn bad_answer(name: &str, why: &str) -> Error {
    Error::usage("reward-bad-answer", format!("reward `{name}`: {why}"))
        .hint("`plimsoll explain reward-bad-answer` shows the forms that the answer column may have")
        .hint("`answer_column` in the [[reward]] table names another column")
}

pub(crate) fn column_missing(name: &str, column: &str, columns: &Columns) -> Error {
    let there: Vec<&str> = columns.keys().map(String::as_str).collect();
    let lacks = if columns.contains_key(column) { "is null here" } else { "the data does not have" };
    let message = format!("reward `{name}` needs the column `{column}`, which {lacks}");
    let error = Error::usage("data-column-missing", message)
        .fact(format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }));
    let error = match nearest_name(column, there).filter(|near| *near != column) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    };
    error.hint(
        "name the column of the answer with `answer_column` in the [[reward]] table, or for all rewards with \
             --set data.answer_column=NAME",
    )
}
