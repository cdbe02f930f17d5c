//! The `math` verifier: is the answer in this response the ground truth, in any notation?
//!
//! Finds the answer (`extract`), spells it one way (`clean`, `words`), cuts it (`lex`), parses it (`parse`, `primary`,
//! `names`, `mixed`, `join`) and compares (`compare`, `region`, `working`, `integers`, with `eval`, `gamma`, `integral`
//! and `number`). What does not parse is compared as text. Size, depth and steps are bounded: hostile text is wrong in
//! milliseconds, nothing panics.
//! The stricter of two readings counts: refusing a right answer costs a sample, accepting a wrong one trains it.

mod announced;
mod clean;
mod compare;
mod cue;
mod eval;
mod expr;
mod expression;
mod extract;
mod gamma;
mod integers;
mod integral;
mod join;
mod lex;
mod mixed;
mod names;
mod number;
mod parse;
mod primary;
mod prose;
mod region;
mod reversed;
mod unit_fractions;
mod units;
mod words;
mod words_after;
mod working;
mod working_text;

use extract::Found;

/// Bytes read at the end of a longer text.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Longest answer that is parsed; a longer one is compared as text only.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Steps of evaluation for one verdict; 10 to 50 ms.
const FUEL: u64 = 100_000;

/// Returns true if the response's answer is the ground truth's.
///
/// `response`: a whole response; the answer is in the last `\boxed{}`, or announced in words, or the last expression.
/// `ground_truth`: LaTeX, with or without dollar signs, or a worked solution that holds the answer the same way.
pub fn grade_math(response: &str, ground_truth: &str) -> bool {
    let (Some(response), Some(truth)) = (read(response), read(ground_truth)) else { return false };
    let response = response.for_truth(&truth);
    same_answer(&truth, &response) || same_choice(&truth, &response)
}

fn same_answer(truth: &Answer, response: &Answer) -> bool {
    if truth.spelling == response.spelling || (truth.words.is_some() && truth.words == response.words) {
        return true;
    }
    if truth.text.len() > ANSWER_BYTES_MAX || response.text.len() > ANSWER_BYTES_MAX {
        return false;
    }
    if words::capitals(&truth.text).is_some() && words::capitals(&response.text).is_some() {
        return false;
    }
    let fuel = eval::Fuel::new(FUEL);
    let Some(answer) = parse::parse(&response.text, true) else { return false };
    let same = |parsed: &parse::Answer| {
        let unit = truth.unit_of(parsed);
        let units = match (unit, response.unit_of(&answer)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        let comparison =
            compare::Comparison { fuel: &fuel, mixed_units: parsed.mixed_units || answer.mixed_units };
        let (truth, response) = (&parsed.expr, &answer.expr);
        units
            && integers::same(truth, response, &comparison)
                .unwrap_or_else(|| comparison.same(truth, response))
    };
    // `1,234` in the ground truth is a number; if the response shows a list, it may be a list.
    parse::parse(&truth.text, true).is_some_and(|truth| same(&truth))
        || (truth.text.contains(',') && parse::parse(&truth.text, false).is_some_and(|truth| same(&truth)))
}

/// Compares choices: `(B) 12` matches `B` or `12`. The letters must be equal, and so must the texts if both are given.
fn same_choice(truth: &Answer, response: &Answer) -> bool {
    if truth.text.len() > ANSWER_BYTES_MAX || response.text.len() > ANSWER_BYTES_MAX {
        return false;
    }
    let text = |choice: words::Choice| choice.text.map(Answer::new);
    match (words::choice(&truth.text), words::choice(&response.text)) {
        (Some(a), Some(b)) => {
            a.letter == b.letter
                && match (text(a), text(b)) {
                    (Some(a), Some(b)) => same_answer(&a, &b),
                    _ => true,
                }
        }
        (Some(a), None) => text(a).is_some_and(|a| same_answer(&a, response)),
        (None, Some(b)) => text(b).is_some_and(|b| same_answer(truth, &b)),
        (None, None) => false,
    }
}

/// Returns a sentence with what was read in each text, and how far the comparison came.
pub(crate) fn why(response: &str, ground_truth: &str) -> String {
    let (Some(answer), Some(truth)) = (read(response), read(ground_truth)) else {
        let which = if read(response).is_none() { "response" } else { "ground truth" };
        return format!("no answer was found in the {which}");
    };
    let answer = answer.for_truth(&truth);
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

/// An answer in one spelling.
struct Answer {
    text: String,
    /// The text without insignificant white space.
    spelling: String,
    /// Its letters, if it consists of words.
    words: Option<String>,
    /// An exclamation mark was after it.
    exclaimed: bool,
    /// It has a dollar sign that shows.
    is_dollars: bool,
}

fn read(text: &str) -> Option<Answer> {
    let tail = text.len().saturating_sub(TEXT_BYTES_MAX);
    let tail = (tail..=text.len()).find(|&at| text.is_char_boundary(at))?;
    let text = clean::plain_signs(&clean::single_backslashes(&text[tail..]));
    let (found, exclaimed) = match extract::answer(&text) {
        Found::Nothing => return None,
        Found::Boxed(answer) | Found::Text(answer) => (answer, false),
        Found::Exclaimed(answer) => (answer, true),
    };
    let text = clean::bare(&found);
    let is_dollars = found.contains("\\$");
    (!text.is_empty()).then(|| Answer { exclaimed, is_dollars, ..Answer::new(text) })
}

impl Answer {
    fn new(text: String) -> Answer {
        let text = words::phrase(&text).map_or(text, str::to_string);
        let (spelling, words) = (clean::spelling(&text), clean::words(&text));
        Answer { spelling, words, text, exclaimed: false, is_dollars: false }
    }

    /// Returns the answer with its exclamation mark, if the truth has one: both write a factorial.
    fn for_truth(self, truth: &Answer) -> Answer {
        if !self.exclaimed || !truth.text.contains('!') {
            return self;
        }
        Answer { is_dollars: self.is_dollars, ..Answer::new(format!("{}!", self.text)) }
    }

    fn unit_of<'u>(&self, parsed: &'u parse::Answer) -> Option<&'u str> {
        parsed.unit.as_deref().or(self.is_dollars.then_some("dollar"))
    }
}
