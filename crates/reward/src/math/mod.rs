//! The `math` verifier: is the answer in this response the ground truth, in whatever notation?
//!
//! Find the answer (`extract`), spell it one way (`clean`), cut it (`lex`), parse it (`parse`, `primary`) and compare
//! (`compare`, `region`, with `eval` and `number`). What does not parse is compared as text. Every stage has a bound
//! on size, depth or steps, so hostile text is wrong within milliseconds; nothing panics. Where two readings are
//! possible, the stricter is taken: a right answer that is refused costs a sample, a wrong one that is taken is
//! what the policy will learn.

mod clean;
mod compare;
mod eval;
mod expr;
mod extract;
mod lex;
mod number;
mod parse;
mod primary;
mod region;

use crate::case::{Case, text_of};
use crate::scorer::{Row, Verifier};
use extract::Found;
use plimsoll_base::Result;

/// Only the end of a longer text is read.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// A longer answer is compared as text only.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Steps of evaluation for one verdict; 10 to 50 ms.
const FUEL: u64 = 100_000;

/// True if the response's answer is the ground truth's.
///
/// `response`: a whole response; the answer is in the last `\boxed{}`, or announced in words, or the last expression.
/// `ground_truth`: LaTeX, with or without dollar signs, or a worked solution that holds the answer the same way.
pub fn grade_math(response: &str, ground_truth: &str) -> bool {
    let (Some(response), Some(truth)) = (read(response), read(ground_truth)) else { return false };
    if truth.spelling == response.spelling || (truth.words.is_some() && truth.words == response.words) {
        return true;
    }
    if truth.text.len() > ANSWER_BYTES_MAX || response.text.len() > ANSWER_BYTES_MAX {
        return false;
    }
    let fuel = eval::Fuel::new(FUEL);
    let comparison = compare::Comparison { fuel: &fuel };
    let Some(answer) = parse::parse(&response.text, true) else { return false };
    let same = |truth: &parse::Answer| {
        let units = truth.unit.is_none() || answer.unit.is_none() || truth.unit == answer.unit;
        units && comparison.same(&truth.expr, &answer.expr)
    };
    // `1,234` of the ground truth is a number, or where the response shows a list, a list.
    parse::parse(&truth.text, true).is_some_and(|truth| same(&truth))
        || (truth.text.contains(',') && parse::parse(&truth.text, false).is_some_and(|truth| same(&truth)))
}

pub(crate) struct Math;

impl Verifier for Math {
    fn score(&self, row: &Row, case: &Case) -> Result<f64> {
        Ok(f64::from(grade_math(&case.response, &text_of(row.answer))))
    }

    fn why(&self, row: &Row, case: &Case) -> String {
        why(&case.response, &text_of(row.answer))
    }
}

/// What was read of both and how far the comparison came, in words.
fn why(response: &str, ground_truth: &str) -> String {
    let (Some(answer), Some(truth)) = (read(response), read(ground_truth)) else {
        let which = if read(response).is_none() { "response" } else { "ground truth" };
        return format!("no answer was found in the {which}");
    };
    let long = |answer: &Answer| answer.text.len() > ANSWER_BYTES_MAX;
    let how = if long(&answer) || long(&truth) {
        "longer than what is read as an expression, so compared as text"
    } else if parse::parse(&answer.text, true).is_none() {
        "the response's is no expression, so compared as text"
    } else if parse::parse(&truth.text, true).is_none() {
        "the ground truth's is no expression, so compared as text"
    } else if grade_math(response, ground_truth) {
        "the same value"
    } else {
        "different values, or not shown to be the same within the limits of the work"
    };
    format!("read `{:.80}` in the response and `{:.80}` in the ground truth: {how}", answer.text, truth.text)
}

/// An answer, spelt one way.
struct Answer {
    text: String,
    /// The text without white space that tells nothing apart.
    spelling: String,
    /// Its letters, where it is made of words.
    words: Option<String>,
}

fn read(text: &str) -> Option<Answer> {
    let tail = text.len().saturating_sub(TEXT_BYTES_MAX);
    let tail = (tail..=text.len()).find(|&at| text.is_char_boundary(at))?;
    let text = clean::plain_signs(&clean::single_backslashes(&text[tail..]));
    let found = match extract::answer(&text) {
        Found::Nothing => return None,
        Found::Boxed(answer) | Found::Text(answer) => answer,
    };
    let text = clean::bare(&found);
    if text.is_empty() {
        return None;
    }
    Some(Answer { spelling: clean::spelling(&text), words: clean::words(&text), text })
}
