//! `grade`: a verifier over given responses, a JSON object a line in and out.

use crate::rewards::text_of;
use crate::spec::unknown;
use crate::{grade_exact, grade_gsm8k, math};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::io::{BufRead, Write};

/// How often each verifier agreed with the `correct` column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Lines graded.
    pub cases: usize,
    /// One entry a verifier that was used, in order of first use.
    pub graders: Vec<GraderAgreement>,
}

/// How often one verifier agreed with the `correct` column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraderAgreement {
    /// `math`, `gsm8k` or `exact`.
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

/// Grades each line of `reader` and writes `{"id", "score"}` a line to `out`.
///
/// A line has `response` and `ground_truth`, and may have `grader` (else `default_kind`), `correct`, `disputed`, `id`.
/// Errors: `data-bad-json` and `data-column-missing` with the line's number, `unknown-reward`, `io-error`.
pub fn grade_jsonl(reader: impl BufRead, default_kind: &str, out: &mut impl Write) -> Result<Agreement> {
    verifier(default_kind)?;
    let mut agreement = Agreement::default();
    for (index, line) in reader.lines().enumerate() {
        let line = line.map_err(|err| bad_line(index, &err.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let row: Map<String, Value> =
            serde_json::from_str(&line).map_err(|err| bad_line(index, &err.to_string()))?;
        let right = grade_row(&row, index, default_kind, &mut agreement)?;
        let mut reply = Map::new();
        if let Some(id) = row.get("id") {
            reply.insert("id".into(), id.clone());
        }
        reply.insert("score".into(), Value::from(f64::from(right)));
        writeln!(out, "{}", Value::Object(reply))
            .map_err(|err| Error::new("io-error", format!("writing the scores: {err}")))?;
    }
    Ok(agreement)
}

fn grade_row(
    row: &Map<String, Value>,
    index: usize,
    default_kind: &str,
    agreement: &mut Agreement,
) -> Result<bool> {
    let field = |name: &str| {
        row.get(name).map(text_of).ok_or_else(|| {
            let there: Vec<&str> = row.keys().map(String::as_str).collect();
            Error::new("data-column-missing", format!("line {} has no `{name}`", index + 1))
                .fact(format!("columns there: {}", there.join(", ")))
        })
    };
    let kind = row.get("grader").and_then(Value::as_str).unwrap_or(default_kind);
    let right = verifier(kind)?(&field("response")?, &field("ground_truth")?);
    agreement.cases += 1;
    let at = agreement.graders.iter().position(|entry| entry.grader == kind).unwrap_or_else(|| {
        agreement.graders.push(GraderAgreement { grader: kind.into(), ..GraderAgreement::default() });
        agreement.graders.len() - 1
    });
    let entry = &mut agreement.graders[at];
    entry.cases += 1;
    if let Some(correct) = row.get("correct").and_then(Value::as_bool) {
        if row.get("disputed").is_some_and(|value| !value.is_null() && *value != Value::Bool(false)) {
            entry.disputed += 1;
        } else {
            entry.labelled += 1;
            entry.agreed += usize::from(correct == right);
            entry.false_accepts += usize::from(right && !correct);
            entry.false_rejects += usize::from(!right && correct);
        }
    }
    Ok(right)
}

fn verifier(kind: &str) -> Result<fn(&str, &str) -> bool> {
    match kind {
        "math" => Ok(math::grade_math),
        "gsm8k" => Ok(grade_gsm8k),
        "exact" => Ok(grade_exact),
        other => Err(unknown(other).fact("`grade` knows the verifiers math, gsm8k and exact")),
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
        assert_eq!(grade_jsonl(&b""[..], "regex", &mut Vec::new()).unwrap_err().slug, "unknown-reward");
    }
}
