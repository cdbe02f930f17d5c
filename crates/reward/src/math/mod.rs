//! The `math` verifier.

/// True if the response's answer is the ground truth's.
pub fn grade_math(response: &str, ground_truth: &str) -> bool {
    response.trim() == ground_truth.trim()
}
