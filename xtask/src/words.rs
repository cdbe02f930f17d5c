//! Refuses unfinished work, machine paths and registry hosts; requires that Rust files open with what they own.

use crate::{english, finding::Finding, tree::Tree};

/// Suffixes of files that are checked. Data and lock files are not prose.
const SUFFIXES: [&str; 8] = [".rs", ".md", ".toml", ".py", ".sh", ".cu", ".cuh", ".yml"];

/// Split, so that this file passes its own check.
const UNFINISHED: &str = concat!("TO", "DO");
const MACHINE_PATH: &str = concat!("/wo", "rk/");
const HOSTS: [&str; 4] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("hugging", "face.co"),
];

/// The only place that may name a host: the default endpoint of the model hub.
const ENDPOINT_FOLDER: &str = "crates/files/src/";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_prose =
        |path: &str| path.starts_with(".ci/") || SUFFIXES.iter().any(|suffix| path.ends_with(suffix));
    for file in tree.files.iter().filter(|file| is_prose(&file.path)) {
        for (index, line) in file.text.iter().flat_map(|text| text.lines()).enumerate() {
            let message = check_line(&file.path, line);
            findings.extend(message.map(|message| Finding::new(&file.path, index + 1, message)));
        }
    }
    for (path, _) in tree.texts(".rs").filter(|(_, text)| !text.starts_with("//!")) {
        findings.push(Finding::new(path, 1, "the file does not open with `//!` and what it owns"));
    }
    findings
}

fn check_line(path: &str, line: &str) -> Option<String> {
    if english::has(line, UNFINISHED) {
        return Some(format!("{UNFINISHED}: finish it, or leave it out"));
    }
    if line.contains(MACHINE_PATH) {
        return Some(format!("a path of one machine: {MACHINE_PATH}"));
    }
    let host = HOSTS.iter().find(|host| line.contains(**host))?;
    (!path.starts_with(ENDPOINT_FOLDER)).then(|| format!("names the registry host {host}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&tree(&[(path, text)])).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn words_that_must_not_stand() {
        let line = |middle: &str| format!("see {middle} there\n");
        assert_eq!(found("README.md", &line(UNFINISHED)).len(), 1);
        assert_eq!(found("README.md", &line(&format!("{UNFINISHED}S"))).len(), 0);
        assert_eq!(found("docs/a.md", &line(&format!("{MACHINE_PATH}x"))).len(), 1);
        for host in HOSTS {
            assert_eq!(found("docs/a.md", &line(host)).len(), 1, "{host}");
            assert_eq!(found(".ci/run", &line(host)).len(), 1, "{host}");
            assert_eq!(found("Cargo.lock", &line(host)).len(), 0, "{host}");
            assert_eq!(found("crates/files/src/hub.rs", &format!("//! {host}\n")).len(), 0, "{host}");
        }
    }

    #[test]
    fn a_file_opens_with_what_it_owns() {
        assert_eq!(found("a.rs", "//! Owns a.\n").len(), 0);
        assert_eq!(found("a.rs", "use b;\n").len(), 1);
        assert_eq!(found("a.rs", "").len(), 1);
    }
}
