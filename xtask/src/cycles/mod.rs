//! Import cycles between files of a crate: no file may depend, even indirectly, on a file that depends on it.
//!
//! An edge goes from a file to each file whose items its code names, with re-exports followed to the defining file.
//! `mod x;` alone is not an edge, nor is a method call, and tests do not count.

mod components;
mod names;
mod reader;

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;
use components::components;
use names::{Crate, Edges};

/// Most files of an allowed component.
const COMPONENT_FILES_MAX: usize = 2;

/// Allowed components, with the reason. Each is a true mutual recursion.
const ALLOWED_CYCLES: &[(&str, &[&str], &str)] = &[
    (
        "cpu",
        &["lanes.rs", "lanes/x86.rs"],
        "the trait of vectors picks its implementations, which implement it",
    ),
    (
        "cuda",
        &["driver.rs", "nvml.rs"],
        "the monitor reads the card that the driver found, and the card owns its monitor",
    ),
    (
        "cuda",
        &["head.rs", "hopper.rs"],
        "the head has a kernel of its own on Hopper, which takes the head's chunks",
    ),
    (
        "device",
        &["backend.rs", "op.rs"],
        "a backend takes operations that were checked, and checking needs the backend's claims",
    ),
    (
        "reward",
        &["math/compare.rs", "math/region.rs"],
        "two regions are equal if their ends are, and an end may be an expression that holds regions",
    ),
    (
        "rollout",
        &["ahead.rs", "engine.rs"],
        "the engine runs ahead or in step, and running ahead is a run of the engine",
    ),
    (
        "run",
        &["checkpoint/state.rs", "progress.rs"],
        "a checkpoint holds the progress, which names the best checkpoint",
    ),
    (
        "run",
        &["checkpoint/store.rs", "run_dir.rs"],
        "a run directory holds the store, which writes as the directory does",
    ),
];

/// Reports components that are too large or not listed, and listed ones that no longer exist.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, graph) in &graphs(sources) {
        let found = components(graph);
        let files = |component: &Vec<String>| {
            component.iter().map(|path| short(path).to_string()).collect::<Vec<_>>()
        };
        for component in &found {
            let allowed =
                ALLOWED_CYCLES.iter().any(|(owner, listed, _)| owner == name && files(component) == *listed);
            if component.len() > COMPONENT_FILES_MAX || !allowed {
                let message = format!(
                    "{} files import each other in a circle: {}; `cargo xtask cycles {name}` names the edges",
                    component.len(),
                    files(component).join(", ")
                );
                findings.push(Finding::new(&component[0], 1, message));
            }
        }
        for (_, listed, _) in ALLOWED_CYCLES.iter().filter(|(owner, ..)| owner == name) {
            if !found.iter().any(|component| files(component) == *listed) {
                let message =
                    format!("the cycle of {} in {name} is gone: take it off the list", listed.join(", "));
                findings.push(Finding::new("xtask/src/cycles/mod.rs", 1, message));
            }
        }
    }
    findings
}

/// Returns the components of one crate or all, with their edges: file -> file: names.
pub fn report(tree: &Tree, only: Option<&str>) -> String {
    let (sources, _) = tree.sources();
    let (mut text, mut num_components) = (String::new(), 0);
    for (name, graph) in graphs(&sources).iter().filter(|(name, _)| only.is_none_or(|only| only == **name)) {
        for component in components(graph) {
            num_components += 1;
            let _ = writeln!(text, "{name}: {} files in a circle", component.len());
            for from in &component {
                for (to, names) in graph[from].iter().filter(|(to, _)| component.contains(to)) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let _ = writeln!(text, "    {} -> {}: {}", short(from), short(to), names.join(", "));
                }
            }
        }
    }
    let _ = writeln!(text, "{num_components} components");
    text
}

/// Returns the graph of each crate, by folder name.
fn graphs(sources: &[Source]) -> BTreeMap<&str, Edges> {
    let mut by_crate: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        if let Some((folder, file)) = source.path.split_once("/src/")
            && !file.starts_with("bin/")
        {
            by_crate.entry(folder.rsplit('/').next().unwrap_or(folder)).or_default().push(source);
        }
    }
    let edges = |sources: Vec<&Source>| {
        let mut modules = BTreeMap::new();
        sources.into_iter().for_each(|source| reader::read(source, &mut modules));
        Crate::new(modules).edges()
    };
    by_crate.into_iter().map(|(name, sources)| (name, edges(sources))).collect()
}

/// Returns a path relative to `src/`.
fn short(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(_, file)| file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;
    use crate::tree::tests::tree;

    fn edges(files: &[(&str, &str)]) -> String {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        report(&tree(&files), Some("a"))
    }

    #[test]
    fn two_files_that_name_each_other() {
        let found = edges(&[
            ("lib.rs", "mod b;\nmod c;\n"),
            ("b.rs", "use crate::c::Z;\npub struct Y;\n"),
            ("c.rs", "pub struct Z;\nfn f() { crate::b::Y; }\n"),
        ]);
        assert_eq!(found, "a: 2 files in a circle\n    b.rs -> c.rs: Z\n    c.rs -> b.rs: Y\n1 components\n");
    }

    #[test]
    fn mod_alone_is_no_edge_and_tests_do_not_count() {
        let child = "use super::X;\npub fn y() {}\n#[cfg(test)]\nmod tests { use crate::d::W; }\n";
        let files = [
            ("lib.rs", "mod b;\nmod d;\npub struct X;\n"),
            ("b.rs", child),
            ("d.rs", "pub struct W; use crate::b::y;"),
        ];
        assert_eq!(edges(&files), "0 components\n");
    }

    #[test]
    fn parent_and_child_are_a_circle_if_the_parent_names_the_child() {
        let circle = "a: 2 files in a circle\n    b.rs -> lib.rs: X\n    lib.rs -> b.rs: y\n1 components\n";
        for (parent, expect) in [
            ("mod b;\npub struct X;\nfn f() { b::y() }", circle),
            ("mod b;\nuse b::y;\npub struct X;", circle),
            ("mod b;\npub use b::y;\npub struct X;\nfn f() { y() }", circle),
            ("mod b;\npub struct X;\nfn f() { println!(\"{}\", b::y()) }", circle),
            ("mod b;\npub use b::y;\npub(crate) use b::*;\npub struct X;", "0 components\n"),
            ("mod b;\npub struct X;\n#[cfg(test)]\nmod tests { use super::b::y; }", "0 components\n"),
        ] {
            let found = edges(&[("lib.rs", parent), ("b.rs", "use super::X;\npub fn y() {}\n")]);
            assert_eq!(found, expect, "{parent}");
        }
    }

    #[test]
    fn re_exports_are_followed() {
        let files = [
            ("lib.rs", "mod b;\nmod c;\npub use b::inner::Y as Why;\n"),
            ("b/mod.rs", "pub mod inner;\n"),
            (
                "b/inner.rs",
                "use crate::c::{self, Z};\npub struct Y;\nfn f() { c::g(format!(\"{}\", c::h())) }\n",
            ),
            ("c.rs", "use crate::{Why};\npub struct Z; pub fn g() {} pub(crate) const fn h() {}\n"),
        ];
        assert_eq!(
            edges(&files),
            "a: 2 files in a circle\n    b/inner.rs -> c.rs: Z, g, h\n    c.rs -> b/inner.rs: Y\n1 components\n"
        );
    }

    #[test]
    fn the_list_of_allowed_cycles_is_kept() {
        let check = |a: &str| {
            let file = |name: &str, text: &str| source(&format!("crates/reward/src/math/{name}.rs"), text);
            let sources = [
                file("mod", "mod compare;\nmod region;"),
                file("compare", a),
                file("region", "use super::compare::X;\npub struct Y;"),
            ];
            super::check(&sources).into_iter().map(|finding| finding.message).collect::<Vec<_>>()
        };
        assert_eq!(check("use super::region::Y;\npub struct X;"), [""; 0]);
        let gone = check("pub struct X;");
        assert!(gone.len() == 1 && gone[0].ends_with("is gone: take it off the list"), "{gone:?}");
        let sources = [
            source("crates/a/src/b.rs", "fn f() { crate::c::g() }"),
            source("crates/a/src/c.rs", "fn g() { crate::b::f() }"),
            source("crates/a/src/lib.rs", "mod b;\nmod c;"),
        ];
        assert_eq!(super::check(&sources).len(), 1);
    }

    #[test]
    fn globs_give_the_names_that_are_used() {
        let files = [
            ("lib.rs", "mod b;\nmod c;\nmod d;\n"),
            ("b.rs", "pub struct Y;\npub struct V;\nuse crate::c::Z;\n"),
            ("c.rs", "use super::b::*;\npub struct Z(Y);\n"),
            ("d.rs", "use super::b::*;\n"),
        ];
        assert_eq!(
            edges(&files),
            "a: 2 files in a circle\n    b.rs -> c.rs: Z\n    c.rs -> b.rs: Y\n1 components\n"
        );
    }
}
