//! Errors as ranks send them to each other, so that every rank of a run that cannot begin ends with the same sentence.

use plimsoll_base::{Error, Exit, slugs};
use serde::{Deserialize, Serialize};

/// Slugs that a rank may send. The reader has each as a literal: text from a socket never becomes a slug.
const SLUGS: [&str; 8] = [
    "ranks-environment",
    "ranks-differ",
    "ranks-hosts",
    "ranks-token",
    "rank-missing",
    "card-shared",
    "ranks-unreachable",
    "rank-lost",
];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireError {
    slug: String,
    message: String,
    facts: Vec<String>,
    hints: Vec<String>,
    exit: i32,
}

impl WireError {
    pub(crate) fn of(error: &Error) -> WireError {
        WireError {
            slug: error.slug.into(),
            message: error.message.clone(),
            facts: error.facts.clone(),
            hints: error.hints.clone(),
            exit: error.exit as i32,
        }
    }

    pub(crate) fn error(self) -> Error {
        let slug = SLUGS.into_iter().find(|slug| *slug == self.slug).unwrap_or("rank-lost");
        let exits = [Exit::Usage, Exit::OtherRank, Exit::Interrupted, Exit::Terminated];
        let exit = exits.into_iter().find(|exit| *exit as i32 == self.exit).unwrap_or(Exit::Named);
        let error = self.facts.into_iter().fold(Error::new(slug, self.message), Error::fact);
        Error { exit, ..self.hints.into_iter().fold(error, Error::hint) }
    }
}

/// Returns the error of a wait for other ranks that a signal ended.
pub(crate) fn interrupted(signal: i32, before: &str) -> Error {
    let (name, exit) = match signal {
        1 => ("SIGHUP", Exit::Terminated),
        15 => ("SIGTERM", Exit::Terminated),
        _ => ("SIGINT", Exit::Interrupted),
    };
    let error = Error::new(slugs::INTERRUPTED, format!("{name} {before}; nothing was begun"));
    Error { exit, ..error.hint("start the same command again") }
}

/// Returns the error for a network that passes the traffic of supervisors but not that of trainers.
pub(crate) fn unreachable(message: &str) -> Error {
    Error::new("ranks-unreachable", message)
        .hint("trainers exchange gradients over ports that the kernel chooses: hosts of a run must let each other's traffic through")
        .hint("`plimsoll doctor --ranks` tries the paths between hosts before a run")
}

/// Returns the error of a rank that ended because of others.
pub(crate) fn lost(message: impl Into<String>) -> Error {
    let error = Error::new("rank-lost", message);
    Error { exit: Exit::OtherRank, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_arrives_as_it_was_sent_and_an_unknown_slug_is_not_taken_over() {
        let error = Error::usage("ranks-differ", "a: b").fact("c").hint("d");
        assert_eq!(WireError::of(&error).error(), error);
        let told = WireError { slug: "made-up".into(), exit: 77, ..WireError::of(&error) };
        let error = told.error();
        assert_eq!((error.slug, error.exit), ("rank-lost", Exit::Named));
    }
}
