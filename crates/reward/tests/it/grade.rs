//! `grade` with functions: their calls, their failures, and rows without a score.

use crate::external::{has_python, row, spec};
use plimsoll_base::Error;
use plimsoll_reward::{Agreement, Grading};
use serde_json::{Value, json};

/// Grades rows as `plimsoll grade` does; the scores that were given, and the outcome.
fn graded(function: &str, rows: &[Value]) -> (Vec<Value>, Result<Agreement, Error>) {
    let mut scores = Vec::new();
    let mut say = |reply: Value| {
        scores.push(reply["score"].clone());
        Ok(())
    };
    let mut grading = Grading::new(spec(function), "response").expect("a function that starts");
    let outcome = (rows.iter().enumerate())
        .try_for_each(|(i, value)| grading.grade(i + 1, row(value.clone()), &mut say))
        .and_then(|()| grading.finish(&mut say));
    (scores, outcome)
}

#[test]
fn r_grade_called_functions_with_one_row() {
    if !has_python() {
        return;
    }
    let of_prompt = |prompt: &str, rows: usize| vec![json!({"prompt": prompt, "response": "a"}); rows];
    let sizes = |rows: &[Value]| graded("exact_keywords", rows).0;
    // Rows of one prompt are together, and as few prompts as come to eight rows.
    let rows = [of_prompt("p", 3), of_prompt("q", 3), of_prompt("r", 3), of_prompt("s", 1)].concat();
    assert_eq!(sizes(&rows), [vec![json!(9.0); 9], vec![json!(1.0)]].concat());
    assert_eq!(sizes(&of_prompt("p", 20)), vec![json!(20.0); 20]);
    let without_prompt = vec![json!({"response": "a"}); 10];
    assert_eq!(sizes(&without_prompt), [vec![json!(8.0); 8], vec![json!(2.0); 2]].concat());

    let (scores, outcome) = graded("wrong_length", &of_prompt("p", 3));
    let error = outcome.expect_err("a list of another length");
    assert_eq!((error.slug, scores.len()), ("reward-bad-reply", 0));
    assert!(error.facts.contains(&"it has rows 1 to 3".to_string()), "{error}");
    let (scores, outcome) = graded("gives_nan", &of_prompt("p", 4));
    let error = outcome.expect_err("not finite");
    assert_eq!((error.slug, scores.len()), ("reward-not-finite", 0));
    assert!(error.message.ends_with("gave NaN for row 4"), "{error}");
}

#[test]
fn r_a_row_without_a_score_agreed_with_its_label() {
    if !has_python() {
        return;
    }
    let row = |response: &str, correct: bool| json!({"prompt": "p", "response": response, "ground_truth": 7, "correct": correct});
    let (scores, outcome) = graded("matches", &[row("7", true), row("skip", true), row("skip", false)]);
    assert_eq!(scores, [json!(1.0), Value::Null, Value::Null]);
    let agreement = outcome.expect("scores");
    let entry = &agreement.graders[0];
    assert_eq!((entry.labelled, entry.agreed, entry.unscored), (1, 1, 2));
    assert_eq!((entry.false_rejects, agreement.disagreements.len()), (0, 0));
}
