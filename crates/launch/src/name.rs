//! The name of a job, from which pods, services and files are named: a DNS label.

use plimsoll_base::{Error, Result};

/// Pods are named NAME-host-0-31-abcde, and a label has at most 63 characters.
pub const NAME_CHARS_MAX: usize = 40;

/// Returns the name for a run file: its letters and digits in lower case, `-` for everything else.
pub fn label_of(stem: &str) -> String {
    let one = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let label: String = stem.chars().map(one).take(NAME_CHARS_MAX).collect();
    let label = label.trim_matches('-');
    match label.chars().next() {
        None => "run".into(),
        // A service's name must begin with a letter.
        Some(first) if first.is_ascii_digit() => {
            format!("run-{label}").chars().take(NAME_CHARS_MAX).collect()
        }
        Some(_) => label.into(),
    }
}

/// Checks that a name is a valid label. Errors: `launch-word`.
pub(crate) fn check(name: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    if begins && !name.ends_with('-') && name.len() <= NAME_CHARS_MAX && name.chars().all(is_fine) {
        Ok(())
    } else {
        Err(Error::usage(
            "launch-word",
            format!("{name:?} is no name of a job: it has {} characters", name.chars().count()),
        )
        .fact(format!(
            "a name begins with a lower-case letter, goes on with those, digits and `-`, and has at most {NAME_CHARS_MAX}"
        ))
        .hint(format!("--name {}", label_of(name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_run_files_become_labels() {
        for (stem, expect) in [
            ("first", "first"),
            ("Qwen2.5_7B grpo", "qwen2-5-7b-grpo"),
            ("7b", "run-7b"),
            ("--", "run"),
            ("ä", "run"),
        ] {
            assert_eq!(label_of(stem), expect);
            assert_eq!(check(expect), Ok(()));
        }
        assert_eq!(label_of(&"a".repeat(99)).len(), NAME_CHARS_MAX);
        for wrong in ["", "A", "a_b", "-a", "a-", "1a", &"a".repeat(NAME_CHARS_MAX + 1)] {
            assert_eq!(check(wrong).expect_err("no name").slug, "launch-word");
        }
    }
}
