//! `countdown`: an expression over given numbers, each used once, whose value is the target.
//!
//! The countdown game as in TinyZero. Values are exact fractions, so nothing is right by rounding.

use crate::case::{Case, tagged_answer};
use crate::scorer::{Row, Verifier, bad_answer, verdict};
use serde_json::{Map, Value};

/// Longest expression in bytes, most numbers of a puzzle, and deepest brackets.
const EXPRESSION_BYTES_MAX: usize = 1024;
const NUMBERS_MAX: usize = 64;
const DEPTH_MAX: usize = 64;

/// A puzzle of a row.
#[derive(Clone, Debug, PartialEq)]
struct Puzzle {
    target: i64,
    numbers: Vec<i64>,
}

impl Puzzle {
    /// Reads the answer column: `{"target", "numbers"}`, or a target with a column `numbers` or `nums`.
    ///
    /// Errors: a sentence about what is missing.
    fn read(answer: &Value, columns: &Map<String, Value>) -> Result<Puzzle, String> {
        let parsed: Value;
        let answer = match answer {
            Value::String(text) => {
                parsed = serde_json::from_str(text).map_err(|_| format!("the answer is `{text}`"))?;
                &parsed
            }
            other => other,
        };
        let target = answer.get("target").unwrap_or(answer);
        let find = |place: &dyn Fn(&str) -> Option<Value>| place("numbers").or_else(|| place("nums"));
        let numbers = find(&|name| answer.get(name).cloned())
            .or_else(|| find(&|name| columns.get(name).cloned()))
            .ok_or("neither `numbers` nor `nums` is there")?;
        let whole = |value: &Value| value.as_i64().ok_or_else(|| format!("`{value}` is no whole number"));
        let numbers = numbers.as_array().ok_or("the numbers are no list")?;
        if numbers.is_empty() || numbers.len() > NUMBERS_MAX {
            return Err(format!("there are {} numbers; 1 to {NUMBERS_MAX} are a puzzle", numbers.len()));
        }
        let numbers = numbers.iter().map(whole).collect::<Result<Vec<i64>, String>>()?;
        Ok(Puzzle { target: whole(target)?, numbers })
    }
}

pub(crate) struct Countdown;

impl Countdown {
    fn puzzle(row: &Row) -> plimsoll_base::Result<Puzzle> {
        Puzzle::read(row.answer, row.columns).map_err(|why| bad_answer(row.name, &why))
    }
}

impl Verifier for Countdown {
    fn check(&self, row: &Row) -> plimsoll_base::Result<()> {
        Countdown::puzzle(row).map(drop)
    }

    fn score(&self, row: &Row, case: &Case) -> plimsoll_base::Result<f64> {
        Ok(f64::from(grade_countdown(&case.response, &Countdown::puzzle(row)?).is_ok()))
    }

    fn why(&self, row: &Row, case: &Case) -> String {
        match Countdown::puzzle(row) {
            Ok(puzzle) => verdict(grade_countdown(&case.response, &puzzle)),
            Err(error) => error.message,
        }
    }
}

/// Requires that the response's last `<answer>` makes `target` of all `numbers`. The error says why it does not.
pub fn solves_countdown(response: &str, numbers: &[i64], target: i64) -> Result<(), String> {
    grade_countdown(response, &Puzzle { target, numbers: numbers.to_vec() })
}

/// Requires that the response's last `<answer>` solves the puzzle. The error says why it does not.
fn grade_countdown(response: &str, puzzle: &Puzzle) -> Result<(), String> {
    let answer = tagged_answer(response).ok_or("no <answer>…</answer>")?;
    if answer.len() > EXPRESSION_BYTES_MAX {
        return Err(format!("an expression of {} bytes, above {EXPRESSION_BYTES_MAX}", answer.len()));
    }
    // `1 + 2 = 3` states the value too; the left side counts.
    let left = answer.split('=').next().unwrap_or_default();
    let mut parser = Parser { chars: left.trim_end().chars().collect(), at: 0, used: Vec::new() };
    let value = parser
        .sum(0)
        .filter(|_| parser.at == parser.chars.len())
        .ok_or_else(|| format!("`{left}` is no expression of whole numbers and + - * / ( )"))?;
    let (mut used, mut given) = (parser.used, puzzle.numbers.clone());
    used.sort_unstable();
    given.sort_unstable();
    if used != given {
        return Err(format!("it uses {used:?} and is given {given:?}"));
    }
    if value != Fraction::whole(puzzle.target) {
        return Err(format!("it comes to {}/{}, not to {}", value.top, value.bottom, puzzle.target));
    }
    Ok(())
}

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    top: i128,
    bottom: i128,
}

impl Fraction {
    fn whole(value: i64) -> Fraction {
        Fraction { top: i128::from(value), bottom: 1 }
    }

    /// Returns the fraction in lowest terms; `None` if the denominator is 0.
    fn new(top: i128, bottom: i128) -> Option<Fraction> {
        let (mut a, mut b) = (top.unsigned_abs(), bottom.unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let common = i128::try_from(a).ok()?.checked_mul(bottom.signum()).filter(|&common| common != 0)?;
        (bottom != 0).then_some(Fraction { top: top / common, bottom: bottom / common })
    }

    /// Returns the result; `None` on division by 0 and beyond 128 bits, which no puzzle of this size needs.
    fn apply(self, operator: char, other: Fraction) -> Option<Fraction> {
        let cross = |a: i128, b: i128| a.checked_mul(b);
        let bottom = cross(self.bottom, other.bottom)?;
        match operator {
            '+' => Fraction::new(
                cross(self.top, other.bottom)?.checked_add(cross(other.top, self.bottom)?)?,
                bottom,
            ),
            '-' => Fraction::new(
                cross(self.top, other.bottom)?.checked_sub(cross(other.top, self.bottom)?)?,
                bottom,
            ),
            '*' => Fraction::new(cross(self.top, other.top)?, bottom),
            _ => Fraction::new(cross(self.top, other.bottom)?, cross(self.bottom, other.top)?),
        }
    }
}

/// Recursive descent over `+ - * / ( )` and whole numbers.
struct Parser {
    chars: Vec<char>,
    at: usize,
    used: Vec<i64>,
}

impl Parser {
    /// Passes white space, which may be anywhere but within a number.
    fn skip_space(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: &[char]) -> Option<char> {
        self.skip_space();
        let c = *self.chars.get(self.at)?;
        wanted.contains(&c).then(|| self.at += 1)?;
        Some(c)
    }

    fn sum(&mut self, depth: usize) -> Option<Fraction> {
        let mut value = self.product(depth)?;
        while let Some(operator) = self.take(&['+', '-', '−']) {
            value = value.apply(if operator == '+' { '+' } else { '-' }, self.product(depth)?)?;
        }
        Some(value)
    }

    fn product(&mut self, depth: usize) -> Option<Fraction> {
        let mut value = self.factor(depth)?;
        while let Some(operator) = self.take(&['*', '×', '·', '/', '÷']) {
            let operator = if matches!(operator, '/' | '÷') { '/' } else { '*' };
            value = value.apply(operator, self.factor(depth)?)?;
        }
        Some(value)
    }

    fn factor(&mut self, depth: usize) -> Option<Fraction> {
        if self.take(&['(']).is_some() {
            let value = if depth < DEPTH_MAX { self.sum(depth + 1)? } else { return None };
            return self.take(&[')']).map(|_| value);
        }
        self.skip_space();
        let start = self.at;
        while self.chars.get(self.at).is_some_and(char::is_ascii_digit) {
            self.at += 1;
        }
        let number: i64 = self.chars[start..self.at].iter().collect::<String>().parse().ok()?;
        self.used.push(number);
        Some(Fraction::whole(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn why(response: &str) -> String {
        let puzzle = Puzzle { target: 98, numbers: vec![44, 19, 35] };
        grade_countdown(response, &puzzle).err().unwrap_or_else(|| "right".into())
    }

    #[test]
    fn an_expression_must_use_each_number_once_and_reach_the_target() {
        for (answer, expect) in [
            ("44 + 19 + 35", "right"),
            ("(44+35)+19 = 98", "right"),
            (" ( 44\n+ 35 )+19 ", "right"),
            ("4 4+19+35", "no expression"),
            ("44+19+3 5", "no expression"),
            ("44 + 19 + 35 = 97", "right"), // What it says of its own value does not count; what it is does.
            ("44+54", "uses [44, 54]"),
            ("44+19+35+0", "uses"),
            ("44+19-35", "comes to 28/1"),
            ("98", "uses [98]"),
            ("44+19+", "no expression"),
            ("44+19+35)", "no expression"),
            ("-44+19+35", "no expression"),
            ("44/(19-19)", "no expression"),
            ("__import__('os')", "no expression"),
            ("44.0+19+35", "no expression"),
            ("99999999999999999999+1", "no expression"),
            ("", "no expression"),
        ] {
            let found = why(&format!("<think>…</think><answer>{answer}</answer>"));
            assert!(found.contains(expect), "{answer}: {found}");
        }
        assert!(why("44+19+35").contains("no <answer>"));
        assert!(why(&format!("<answer>{}1</answer>", "(".repeat(900))).contains("no expression"));
        assert!(why(&format!("<answer>{}</answer>", "1*".repeat(9000))).contains("bytes"));
    }

    #[test]
    fn fractions_are_exact() {
        let puzzle = Puzzle { target: 24, numbers: vec![3, 3, 8, 8] };
        assert_eq!(grade_countdown("<answer>8 ÷ (3 - 8/3)</answer>", &puzzle), Ok(()));
        let near = Puzzle { target: 1, numbers: vec![1, 3, 3] };
        assert_eq!(grade_countdown("<answer>1/3*3</answer>", &near), Ok(()));
        assert!(Fraction::new(1, 0).is_none() && Fraction::new(0, -5) == Some(Fraction::whole(0)));
    }

    #[test]
    fn puzzles_are_read_in_the_forms_that_data_sets_have() {
        let puzzle = Puzzle { target: 7, numbers: vec![3, 4] };
        let columns = |value: Value| value.as_object().unwrap().clone();
        for (answer, row) in [
            (json!({"target": 7, "numbers": [3, 4]}), json!({})),
            (json!("{\"target\": 7, \"nums\": [3, 4]}"), json!({})),
            (json!(7), json!({"nums": [3, 4]})),
            (json!("7"), json!({"numbers": [3, 4]})),
        ] {
            assert_eq!(Puzzle::read(&answer, &columns(row)), Ok(puzzle.clone()), "{answer}");
        }
        for (answer, row) in [
            (json!(7), json!({})),
            (json!("x"), json!({"nums": [1]})),
            (json!(7.5), json!({"nums": [1]})),
            (json!(7), json!({"nums": []})),
            (json!(7), json!({"nums": ["a"]})),
        ] {
            assert!(Puzzle::read(&answer, &columns(row)).is_err(), "{answer}");
        }
    }
}
