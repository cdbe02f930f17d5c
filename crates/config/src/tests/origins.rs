//! Where a value of a run file is from: its line and column.

use super::{GOOD, load_text};

/// Each origin was found by counting lines from the beginning: 20,000 rewards took 10 s to be refused.
#[test]
fn r_the_time_to_refuse_grew_with_the_square_of_the_values() {
    let rewards = "\n[[reward]]\nkind = \"exact\"\n".repeat(20_000);
    let list = format!("\nmany = [{}]\n", "{ a = 1 }, ".repeat(60_000));
    for (more, slug) in [(&rewards, "bad-value"), (&list, "unknown-key")] {
        let begun = std::time::Instant::now();
        let error = load_text(&format!("{GOOD}{more}"), &[], &[]).unwrap_err();
        assert_eq!(error.slug, slug, "{error}");
        // It takes 0.2 s; a search that grows with the square takes minutes.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
