//! What every published crate says of itself: a description and a licence. Reads as much of TOML as our own manifests use.

use crate::finding::Finding;
use crate::tree::Tree;

/// A `key = value` of a manifest.
pub struct Entry {
    /// The table it stands in.
    pub table: String,
    /// Its key, up to the first dot; for a table of its own (`[dependencies.x]`) the last part of that name.
    pub key: String,
    /// Line, from 1.
    pub line: usize,
}

impl Entry {
    /// Whether it is something the crate is built with. Those of tests do not count.
    pub fn is_dependency(&self) -> bool {
        let kind = self.table.rsplit('.').next().unwrap_or("");
        kind == "dependencies" || kind == "build-dependencies"
    }
}

/// The entries of a manifest, in order.
pub fn entries(text: &str) -> impl Iterator<Item = Entry> {
    let mut table = String::new();
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        let entry = |table: &str, key: &str| Entry {
            table: table.to_string(),
            key: key.trim().trim_matches('"').to_string(),
            line: index + 1,
        };
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = name.to_string();
            let (parent, last) = name.rsplit_once('.')?;
            return Some(entry(parent, last)).filter(Entry::is_dependency);
        }
        let (key, _) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        Some(entry(&table, key.split('.').next().unwrap_or(key)))
    })
}

/// Checks every crate's manifest.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("/Cargo.toml").filter(|(path, _)| path.starts_with("crates/")) {
        for key in ["description", "license"] {
            if !entries(text).any(|entry| entry.table == "package" && entry.key == key) {
                findings.push(Finding::new(path, 1, format!("the package has no {key}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn a_crate_needs_description_and_licence() {
        let check_one = |text: &str| check(&tree(&[("crates/base/Cargo.toml", text)]));
        assert_eq!(check_one("[package]\ndescription = \"x\"\nlicense.workspace = true\n"), []);
        let findings = check_one("[package]\nlicense.workspace = true\n[lib]\ndescription = \"x\"\n");
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].message, "the package has no description");
    }

    #[test]
    fn dependencies_in_all_their_forms() {
        let text = "[dependencies]\na.workspace = true\nb = \"1\"\n# c = \"1\"\n[dependencies.d]\npath = \"x\"\n\
                    [target.'cfg(unix)'.dependencies]\ne = \"1\"\n[dev-dependencies]\nf = \"1\"\n";
        let keys: Vec<String> = entries(text).filter(Entry::is_dependency).map(|entry| entry.key).collect();
        assert_eq!(keys, ["a", "b", "d", "e"]);
    }
}
