//! One fault that `cargo xtask tidy` reports.

use std::fmt;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the root.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, in one line.
    pub message: String,
}

impl Finding {
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        assert_eq!(Finding::new("a/b.rs", 3, "is wrong").to_string(), "a/b.rs:3: is wrong");
    }
}
