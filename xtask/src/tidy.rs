//! The list of checks.

use crate::finding::Finding;
use crate::tree::{FILE_BYTES_MAX, Tree};
use crate::{
    book, cases, comments, cycles, devices, edges, english, length, manifest, names, opens, rooms, shows,
    slugs, unsafety, words,
};

/// Runs all checks. Returns findings by path and line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let (sources, mut findings) = tree.sources();
    findings.extend(edges::check(tree));
    findings.extend(manifest::check(tree));
    findings.extend(slugs::check(tree, &sources));
    findings.extend(words::check(tree));
    findings.extend(book::check(tree));
    findings.extend(cases::check(tree));
    findings.extend(cycles::check(&sources));
    findings.extend(names::check(&sources));
    findings.extend(rooms::check(tree));
    findings.extend(english::check(tree));
    for source in &sources {
        findings.extend(length::check(source));
        findings.extend(comments::check(source));
        findings.extend(unsafety::check(source));
        findings.extend(devices::check(source));
        findings.extend(opens::check(source));
        findings.extend(shows::check(source));
    }
    findings.extend(tree.files.iter().filter(|file| file.bytes > FILE_BYTES_MAX).map(|file| {
        Finding::new(&file.path, 1, format!("{} bytes, and the limit is {FILE_BYTES_MAX}", file.bytes))
    }));
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn large_files_are_found() {
        let mut tree = tree(&[("a.bin", "")]);
        tree.files[0].bytes = FILE_BYTES_MAX;
        assert_eq!(check(&tree), []);
        tree.files[0].bytes += 1;
        assert_eq!(check(&tree).len(), 1);
    }
}
