//! The grader of grade-school word problems: the number after the last `####`, else the last number.
//!
//! A number is read whole: `9{,}500` is 9500, and the 1 in `1/2`, `3:30` or `2^{10}` is no number of its own.

mod number;

use number::{Said, numbers, plain_digits};

/// Returns true if the response's number equals the ground truth's.
///
/// Numbers may carry a sign, a currency mark, thousands separators, a decimal part, a per-cent sign and markup.
/// They are compared digit by digit, so no rounding ever makes two different numbers equal.
pub fn grade_gsm8k(response: &str, ground_truth: &str) -> bool {
    match (answer_number(response), answer_number(ground_truth)) {
        (Some(response), Some(truth)) => response == truth,
        _ => false,
    }
}

/// Returns a sentence with the number read in each text.
pub(crate) fn why(response: &str, ground_truth: &str) -> String {
    let said = |text| answer_number(text).map_or("no number".into(), |said| said.to_string());
    format!("the response says {}, the ground truth {}", said(response), said(ground_truth))
}

fn answer_number(text: &str) -> Option<Said> {
    let chars = plain_digits(text);
    let marks = chars.windows(4).rposition(|four| four == ['#'; 4]);
    match marks {
        // After the marks the first number counts; without a number there is no answer.
        Some(at) => numbers(&chars[at + 4..], true).next(),
        None => numbers(&chars, false).last(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cases: &[(&str, &str, bool)]) {
        for &(response, truth, expect) in cases {
            assert_eq!(grade_gsm8k(response, truth), expect, "{response:?} against {truth:?}");
        }
    }

    #[test]
    fn the_number_after_the_marks_or_the_last_number_counts() {
        check(&[
            ("6 * 9 = <<6*9=54>>54\n#### 54", "54", true),
            ("6 * 9 = 54\n#### 55", "54", false),
            ("#### 54\nor 55", "54", true),
            ("#### 1\n#### 54", "54", true),
            ("####", "54", false),
            ("#### many", "54", false),
            ("fifty-four", "54", false),
            ("It is $54.00.", "54", true),
            ("#### **54** dollars", "54", true),
            ("#### 2,345,678", "2345678", true),
            ("#### 2.345", "2345", false),
            ("#### 23,45", "23", false),
            ("#### 23,45", "2345", false),
            ("#### -54", "54", false),
            ("#### -$54", "-54", true),
            ("#### \u{2212}54", "-54", true),
            ("20-6", "6", true),
            ("0.50", ".5", true),
            ("-0", "0", true),
            ("#### 54%", "54", true),
            ("54 pens in 3 boxes", "54", false),
            ("#### 90071992547409931", "90071992547409930", false),
            ("", "54", false),
        ]);
    }

    /// `9{,}500` was 9, `1/2` was 1 after the marks and 2 at the end, and `3:30` was 3.
    #[test]
    fn r_a_part_of_a_number_was_read_as_the_number() {
        check(&[
            ("#### 9{,}500", "9", false),
            ("#### 9{,}500", "9500", true),
            ("\\boxed{12{,}000}", "12000", true),
            ("\\boxed{12{,}000}", "0", false),
            ("#### 7\\,250", "7250", true),
            ("#### 7\\,250", "7", false),
            ("#### 1,\\!250", "1250", true),
            ("#### 8\u{202f}400", "8400", true),
            ("#### 8 400", "8400", true),
            ("#### 8'400", "8400", true),
            ("#### 8_400", "8400", true),
            ("#### 12,34,567", "12", false),
            ("#### 1.234.567", "1.234", false),
            ("#### 5/6", "5", false),
            ("#### 5/6", "5/6", true),
            ("#### 10/12", "5/6", true),
            ("The answer is 1/2.", "2", false),
            ("The answer is 1/2.", "0.5", true),
            ("#### 6/3", "2", true),
            ("#### 4/0", "4", false),
            ("#### 3/4/2020", "3", false),
            ("#### \\frac{3}{4}", "3", false),
            ("so it is $\\frac{3}{4}$", "4", false),
            ("so it is $\\frac{3}{4}$", "0.75", true),
            ("so it is $\\dfrac34$", "0.75", true),
            ("#### -\\frac{3}{4}", "-0.75", true),
            ("#### 2 1/2", "2", false),
            ("#### 2 1/2", "2.5", true),
            ("that is 2 1/2 cups", "2.5", true),
            ("#### 2\\frac{1}{2}", "2.5", true),
            ("#### 2\u{bd}", "2", false),
            ("#### 7:45", "7", false),
            ("It is 7:45", "45", false),
            ("#### 7:45", "7:45", true),
            ("#### 2^{5}", "2", false),
            ("It is 2^{5}", "5", false),
            ("It is 2^5", "5", false),
            ("#### 2**5", "2", false),
            ("#### 5\u{b2}", "5", false),
            ("The area is 30 m^2", "30", true),
            ("The area is 30 m^2", "2", false),
            ("#### 30+12", "30", false),
            ("#### 30 - 12", "30", false),
            ("#### 6*7", "6", false),
            ("#### 6 x 7", "6", false),
            ("#### 84 / 2", "84", false),
            ("#### 30+12 = 42", "42", true),
            ("#### 6 \\times 7", "6", false),
            ("#### 3\\pi", "3", false),
            ("#### 2\\sqrt{3}", "2", false),
            ("#### \\sqrt{16}", "16", false),
            ("#### 1.5e3", "1.5", false),
            ("#### 1.5e3", "1500", true),
            ("#### 25e-1", "2.5", true),
            ("#### 3 \\times 10^4", "3", false),
            ("#### 5 million", "5", false),
            ("#### 5 million", "5000000", true),
            ("#### 1.5 thousand", "1500", true),
            ("#### 3 dozen", "36", true),
            ("#### \u{ff11}\u{ff12}", "12", true),
            ("#### \u{ff11}\u{ff12}", "2", false),
        ]);
    }

    #[test]
    fn r_digits_of_other_scripts_and_raised_ones_were_not_read() {
        check(&[
            ("#### \u{661}\u{662}", "12", true),
            ("#### \u{967}\u{968}", "12", true),
            ("#### \u{1d7cf}\u{1d7d0}", "12", true),
            ("#### \u{1d7f7}\u{1d7f8}", "12", true),
            ("#### 1\u{2044}2", "1", false),
            ("#### 1\u{2044}2", "0.5", true),
            ("#### 2\u{2075}", "2", false),
            ("#### 3:30 PM", "3", false),
            ("#### 12,000.00", "12000", true),
            ("#### 1 / 2", "1", false),
            ("#### 5 \u{2013} 7", "5", false),
            ("#### 40 + 2 = 42 apples", "42", true),
            ("#### 10^{3}", "10", false),
            ("#### 3\u{221a}2", "3", false),
            ("#### \\frac{1}{2}", "1", false),
            ("#### \\tfrac{1}{2}", "0.5", true),
            ("#### 1,000,00", "1000", false),
            ("#### 9 {,} 500", "500", false),
            ("\\boxed{3:30}", "30", false),
            ("\\boxed{1/2}", "2", false),
            ("\\boxed{2^{10}}", "10", false),
            ("The answer is 3:30.", "30", false),
            ("The answer is 40+2.", "42", false),
            ("#### -\\$54", "54", false),
            ("#### -\\$54", "-54", true),
            ("#### 12,5", "12,5", true),
            ("#### 12,5", "12,7", false),
            ("#### 3-5", "3", false),
        ]);
    }

    #[test]
    fn what_follows_a_number_may_be_no_part_of_it() {
        check(&[
            ("#### 54 (3 boxes)", "54", true),
            ("#### 54. That is 3 more.", "54", true),
            ("#### 54, 3 of them red", "54", true),
            ("#### 54cm", "54", true),
            ("#### 54 km/h", "54", true),
            ("#### 54 / week", "54", true),
            ("#### 54: all of them", "54", true),
            ("#### 54\n3 more", "54", true),
            ("#### 54\n- 3 more", "54", true),
            ("#### $54$", "54", true),
            ("#### x = 54", "54", true),
            ("#### 54**", "54", true),
            ("#### 54 times", "54", true),
            ("#### \\$1,234.50", "1234.5", true),
            ("In all 6 + 48 = 54 pens.", "54", true),
            ("\\boxed{54}", "54", true),
            ("#### \\boxed{54}", "54", true),
            ("She has 2 50-cent coins, 100 cents", "100", true),
        ]);
    }

    #[test]
    fn a_megabyte_of_digits_comes_back_at_once() {
        assert!(!grade_gsm8k(&"9".repeat(1 << 20), "9"));
        assert!(!grade_gsm8k(&"9,".repeat(1 << 19), "8"));
        assert!(!grade_gsm8k(&"$".repeat(1 << 20), "8"));
        assert!(!grade_gsm8k("1e999999999", "8"));
        for text in ["\\frac{", "1/", "1 ", "1^", "1 000 ", "\\frac{1}{2", "1+", "####1 + "] {
            assert!(!grade_gsm8k(&text.repeat(1 << 17), "8"), "{text}");
        }
    }
}
