//! The book that is made of `docs/`: its table of contents, the list of error pages in it, its links, and how it is built.

pub mod build;
pub mod index;
pub mod links;
mod skeleton;
pub mod themes;

use crate::finding::Finding;
use crate::tree::Tree;

/// Links, that the table of contents holds every page once, and the parts of error pages.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = links::check(tree);
    findings.extend(index::check(tree));
    findings.extend(skeleton::check(tree));
    findings
}
