//! Licences and sources of every locked dependency, as `cargo metadata` names them: no crate from elsewhere than the
//! registry, and none whose licence asks for more than a notice. Advisories need a database from the network and are
//! not checked here.

use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Licences that a release may contain: each asks for its text and its notice, which the release has.
const ALLOWED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

const REGISTRY: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

/// Prints every dependency that may not be there; exit code 1 if there is one.
pub fn run(root: &Path) -> io::Result<ExitCode> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let output = Command::new(cargo).args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let (count, findings) = check(&metadata);
    findings.iter().for_each(|finding| println!("{finding}"));
    eprintln!("dependencies: {count} crates, {} findings", findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the number of dependencies, and what is wrong with them.
fn check(metadata: &Value) -> (usize, Vec<String>) {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut findings = Vec::new();
    let others: Vec<&Value> = packages.iter().filter(|package| !package["source"].is_null()).collect();
    for package in &others {
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let (source, licence) = (text(&package["source"]), text(&package["license"]));
        if source != REGISTRY {
            findings.push(format!("{name}: its source is {source}, and must be the registry"));
        }
        if !is_allowed(licence) {
            let rule = "a release may contain what the list in xtask/src/dependencies.rs allows";
            findings.push(format!("{name}: its licence is `{licence}`; {rule}"));
        }
    }
    (others.len(), findings)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns true if an SPDX expression can be met with allowed licences. Old manifests write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest).is_some_and(|allowed| allowed && rest.is_empty())
}

/// Reads `A OR B`; none where it is no expression.
fn any(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = all(rest)?;
    while rest.first() == Some(&"OR") {
        *rest = &rest[1..];
        allowed |= all(rest)?;
    }
    Some(allowed)
}

/// Reads `A AND B`.
fn all(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(rest)?;
    while rest.first() == Some(&"AND") {
        *rest = &rest[1..];
        allowed &= one(rest)?;
    }
    Some(allowed)
}

/// Reads a licence with its exception, or an expression in parentheses.
fn one(rest: &mut &[&str]) -> Option<bool> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    if *first == "(" {
        let allowed = any(rest)?;
        let (close, after) = rest.split_first()?;
        *rest = after;
        return (*close == ")").then_some(allowed);
    }
    let name = match **rest {
        ["WITH", exception, ref after @ ..] => {
            *rest = after;
            format!("{first} WITH {exception}")
        }
        _ => first.to_string(),
    };
    Some(ALLOWED.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_licence_is_allowed_if_one_of_its_choices_is() {
        for (expression, expect) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("GPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("(MIT AND GPL-3.0) OR LGPL-2.1", false),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression), expect, "{expression}");
        }
    }

    #[test]
    fn every_dependency_is_of_the_registry_and_of_the_workspace_none_is_asked() {
        let package = |name: &str, source: Option<&str>, license: Option<&str>| json!({ "name": name, "version": "1.0.0", "source": source, "license": license });
        let (count, findings) = check(&json!({ "packages": [
            package("own", None, None),
            package("good", Some(REGISTRY), Some("MIT")),
            package("nameless", Some(REGISTRY), None),
            package("copyleft", Some(REGISTRY), Some("AGPL-3.0")),
            package("fork", Some("git+https://example.org/fork"), Some("MIT")),
        ] }));
        let found: Vec<&str> = findings.iter().map(|finding| finding.split(':').next().unwrap()).collect();
        assert_eq!((count, found), (4, vec!["nameless 1.0.0", "copyleft 1.0.0", "fork 1.0.0"]));
        assert!(findings[2].contains("git+https://example.org/fork"), "{}", findings[2]);
    }
}
