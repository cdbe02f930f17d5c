//! `exact`: equality after trimming white space.

use crate::scorer::beginning;

/// Returns true if both texts are equal after trimming white space.
pub fn grade_exact(response: &str, ground_truth: &str) -> bool {
    response.trim() == ground_truth.trim()
}

/// Returns both texts, quoted.
pub(crate) fn why(response: &str, ground_truth: &str) -> String {
    format!("{} against {}", beginning(response.trim(), 60), beginning(ground_truth.trim(), 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A precision shortens no quoted text: a message had all of a response.
    #[test]
    fn r_why_quoted_whole_responses() {
        let text = "\u{e9}".repeat(10_000);
        assert!(why(&text, "4").chars().count() < 100);
        assert_eq!(why(" 5\n", "4"), "\"5\" against \"4\"");
    }

    #[test]
    fn exact_trims_and_nothing_else() {
        for (response, truth, expect) in
            [(" 17\n", "17", true), ("17.", "17", false), ("017", "17", false), ("a  b", "a b", false)]
        {
            assert_eq!(grade_exact(response, truth), expect, "{response:?}");
        }
    }
}
