//! `exact`: equality after trimming white space.

use crate::case::{Case, text_of};
use crate::scorer::{Row, Verifier};
use plimsoll_base::Result;

/// True if both are equal after trimming white space.
pub fn grade_exact(response: &str, ground_truth: &str) -> bool {
    response.trim() == ground_truth.trim()
}

pub(crate) struct Exact;

impl Verifier for Exact {
    fn score(&self, row: &Row, case: &Case) -> Result<f64> {
        Ok(f64::from(grade_exact(&case.response, &text_of(row.answer))))
    }

    fn why(&self, row: &Row, case: &Case) -> String {
        format!("{:.60?} against {:.60?}", case.response.trim(), text_of(row.answer).trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_trims_and_nothing_else() {
        for (response, truth, expect) in
            [(" 17\n", "17", true), ("17.", "17", false), ("017", "17", false), ("a  b", "a b", false)]
        {
            assert_eq!(grade_exact(response, truth), expect, "{response:?}");
        }
    }
}
