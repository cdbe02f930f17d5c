//! Checks a crate's manifest: its dependencies, that it has a description and a licence, and that rustdoc runs for its
//! tests where there are some, and only there.

use toml::de::{DeTable, DeValue};

use crate::finding::Finding;
use crate::tree::Tree;

/// A dependency of a crate, other than of its tests.
pub struct Dependency {
    pub name: String,
    pub line: usize,
}

/// Returns a manifest's dependencies; none if it is not TOML, which cargo reports.
pub fn dependencies(text: &str) -> Vec<Dependency> {
    let manifest = DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default();
    let targets = table(&manifest, "target").into_iter().flat_map(DeTable::values);
    let platforms = targets.filter_map(|target| target.get_ref().as_table());
    let parents: Vec<&DeTable> = std::iter::once(&manifest).chain(platforms).collect();
    let tables = parents.iter().flat_map(|parent| {
        ["dependencies", "build-dependencies"].into_iter().filter_map(|kind| table(parent, kind))
    });
    let mut found: Vec<Dependency> = tables
        .flat_map(DeTable::keys)
        .map(|key| Dependency {
            name: key.get_ref().to_string(),
            line: 1 + text[..key.span().start].matches('\n').count(),
        })
        .collect();
    found.sort_by_key(|dependency| dependency.line);
    found
}

fn table<'t>(parent: &'t DeTable<'t>, key: &str) -> Option<&'t DeTable<'t>> {
    parent.get(key).and_then(|value| DeValue::as_table(value.get_ref()))
}

/// Checks every crate's manifest.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("/Cargo.toml").filter(|(path, _)| path.starts_with("crates/")) {
        let manifest: toml::Table = text.parse().unwrap_or_default();
        for key in ["description", "license"] {
            if manifest.get("package").and_then(|package| package.get(key)).is_none() {
                findings.push(Finding::new(path, 1, format!("the package has no {key}")));
            }
        }
        findings.extend(check_doc_tests(tree, path, &manifest));
    }
    findings
}

/// Reports a library whose doc tests are switched off, and one without any for which rustdoc would still run.
fn check_doc_tests(tree: &Tree, path: &str, manifest: &toml::Table) -> Option<Finding> {
    let source = format!("{}src/", path.strip_suffix("Cargo.toml")?);
    let sources = || tree.texts(".rs").filter(|(path, _)| path.starts_with(&source));
    let is_library = sources().any(|(path, _)| path == format!("{source}lib.rs"));
    let has_tests = sources().any(|(_, text)| has_doc_test(text));
    let off =
        manifest.get("lib").and_then(|lib| lib.get("doctest")).and_then(toml::Value::as_bool) == Some(false);
    let message = match (is_library, has_tests, off) {
        (true, true, true) => "a doc comment has a test, and [lib] says doctest = false",
        (true, false, false) => {
            "no doc comment has a test: [lib] says doctest = false, which saves rustdoc's seconds"
        }
        _ => return None,
    };
    Some(Finding::new(path, 1, message.to_string()))
}

/// True if a doc comment opens a block of code that rustdoc compiles.
fn has_doc_test(text: &str) -> bool {
    let docs = text.lines().map(str::trim_start).filter_map(|line| {
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
    });
    let mut is_open = false;
    for language in docs.filter_map(|line| line.strip_prefix("```")) {
        is_open = !is_open;
        if is_open
            && ["", "rust", "compile_fail", "should_panic", "no_run"]
                .contains(&language.split(',').next().unwrap_or(""))
        {
            return true;
        }
    }
    false
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
    fn rustdoc_runs_where_there_are_doc_tests() {
        let manifest = "[package]\ndescription = \"x\"\nlicense.workspace = true\n";
        let off = format!("{manifest}[lib]\ndoctest = false\n");
        let (plain, tested) =
            ("/// ```text\n/// a\n/// ```\n", "//! ```compile_fail,E0308\n//! a\n//! ```\n");
        for (manifest, source, findings) in
            [(manifest, plain, 1), (manifest, tested, 0), (&*off, plain, 0), (&*off, tested, 1)]
        {
            let tree = tree(&[("crates/base/Cargo.toml", manifest), ("crates/base/src/lib.rs", source)]);
            assert_eq!(check(&tree).len(), findings, "{manifest}{source}");
        }
    }

    #[test]
    fn dependencies_in_all_their_forms() {
        let text = "[dependencies]\na.workspace = true\nb = \"1\"\n# c = \"1\"\n[dependencies.d]\npath = \"x\"\n\
                    [target.'cfg(unix)'.dependencies]\ne = \"1\"\n[dev-dependencies]\nf = \"1\"\n";
        let found = dependencies(text);
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.line)).collect();
        assert_eq!(found, [("a", 2), ("b", 3), ("d", 5), ("e", 8)]);
    }
}
