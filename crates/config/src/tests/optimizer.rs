//! AdamW's numbers, which are f32 where they are used.

use super::{GOOD, load_text};

#[test]
fn numbers_that_no_update_can_be_computed_with_are_refused() {
    for (set, words) in [
        ("train.betas=[0.9, 0.99999999999]", "train.betas"),
        // The divisor of an element that never had a gradient is this alone.
        ("train.adam_epsilon=0.0", "above 0"),
        ("train.adam_epsilon=1e-60", "above 0"),
    ] {
        let error = load_text(GOOD, &[set], &[]).map(|_| ()).unwrap_err();
        assert_eq!(error.slug, "bad-value", "{set}");
        assert!(error.to_string().contains(words), "{set}: {error}");
    }
}
