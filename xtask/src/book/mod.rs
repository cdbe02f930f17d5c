//! The book that is made of `docs/`: its table of contents, the list of error pages in it, its links, and how it is built.

pub mod build;
pub mod index;
pub mod links;
mod skeleton;
pub mod themes;

use crate::tidy::{Finding, Tree};

/// The table of contents, as mdBook wants it.
pub const SUMMARY: &str = "docs/SUMMARY.md";
/// The list of error pages.
pub const INDEX: &str = "docs/errors/README.md";
/// Where the pages are.
pub const PAGES: &str = "docs/errors/";

/// Links, that the table of contents holds every page once, and the parts of error pages.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = links::check(tree);
    findings.extend(index::check(tree));
    findings.extend(skeleton::check(tree));
    findings
}
