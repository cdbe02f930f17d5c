//! `exact`: equality after trimming white space.

/// Returns true if both texts are equal after trimming white space.
pub fn grade_exact(response: &str, ground_truth: &str) -> bool {
    response.trim() == ground_truth.trim()
}

/// Returns both texts, quoted.
pub(crate) fn why(response: &str, ground_truth: &str) -> String {
    format!("{:.60?} against {:.60?}", response.trim(), ground_truth.trim())
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
