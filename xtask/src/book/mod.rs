//! The book made from `docs/`: its table of contents, its length, the list of error pages, its links, and its build.

pub mod build;
mod claims;
pub mod index;
pub mod links;
mod main_path;
mod skeleton;
pub mod themes;

use crate::{finding::Finding, tree::Tree};

/// Checks links, the table of contents, the length of its main path, what it says of models, and the parts of error
/// pages.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = links::check(tree);
    findings.extend(index::check(tree));
    findings.extend(skeleton::check(tree));
    findings.extend(main_path::check(tree));
    findings.extend(claims::check(tree));
    findings
}
