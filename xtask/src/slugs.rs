//! Every error slug has a page `docs/errors/<slug>.md`, and every page belongs to a slug.
//!
//! A slug is the first string literal in a constructor of an `Error` or a check, the value of a field `slug`, a
//! constant of `base::slugs`, or a class in the doctor's data. Tests invent slugs, so they are skipped.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// Tokens before a slug: constructors, `error` of types that know the place in a run file, and the doctor's checks.
const CONSTRUCTORS: [&str; 7] = [
    "Error : : new (",
    "Error : : usage (",
    "Error : : does_not_fit (",
    "Error : : io (",
    "slug :",
    ". error (",
    "Check : : of (",
];
/// Failure classes that the doctor names, as data.
const SIGNATURES: &str = "crates/doctor/data/signatures/";
/// Slugs that code matches on, each a constant.
const CONSTANTS: &str = "crates/base/src/slugs.rs";

const PAGES: &str = "docs/errors/";

pub fn check(tree: &Tree, sources: &[Source]) -> Vec<Finding> {
    let mut slugs = slugs(sources);
    slugs.extend(classes(tree));
    let mut findings = Vec::new();
    for (slug, (path, line)) in &slugs {
        if !is_kebab_case(slug) {
            findings.push(Finding::new(path, *line, format!("slug `{slug}` is not kebab-case")));
        } else if tree.text(&format!("{PAGES}{slug}.md")).is_none() {
            findings.push(Finding::new(path, *line, format!("slug `{slug}` has no page {PAGES}{slug}.md")));
        }
    }
    for (path, text) in tree.texts(".md") {
        let Some(slug) = path.strip_prefix(PAGES).and_then(|name| name.strip_suffix(".md")) else { continue };
        // The list of pages is not a page.
        if slug == "README" {
            continue;
        }
        if !slugs.contains_key(slug) {
            findings.push(Finding::new(path, 1, format!("no error has the slug `{slug}`")));
        }
        if text.lines().next() != Some(&format!("# {slug}")) {
            findings.push(Finding::new(path, 1, format!("the page does not open with `# {slug}`")));
        }
    }
    findings
}

/// Returns the doctor's classes: each `slug = "..."` of its data, with its place.
pub fn classes(tree: &Tree) -> impl Iterator<Item = (String, (String, usize))> {
    let files = tree.texts(".toml").filter(|(path, _)| path.starts_with(SIGNATURES));
    files.flat_map(|(path, text)| {
        text.lines().enumerate().filter_map(move |(index, line)| {
            let slug = line.strip_prefix("slug = \"")?.strip_suffix('"')?;
            Some((slug.to_string(), (path.to_string(), index + 1)))
        })
    })
}

/// Returns each slug with the place of its first use.
fn slugs(sources: &[Source]) -> BTreeMap<String, (String, usize)> {
    let mut slugs = BTreeMap::new();
    let is_library =
        |source: &&Source| source.path.starts_with("crates/") && !source.path.contains("/tests/");
    for source in sources.iter().filter(is_library) {
        let constants = (source.path == CONSTANTS).then_some(": & str =");
        for constructor in CONSTRUCTORS.into_iter().chain(constants) {
            for tokens in source.find(constructor) {
                let literal = tokens.get(constructor.split(' ').count()).map_or("", |token| &token.text);
                if let Some(slug) = literal.strip_prefix('"') {
                    let slug = slug.trim_end_matches('"').to_string();
                    slugs.entry(slug).or_insert((source.path.clone(), tokens[0].line));
                }
            }
        }
    }
    slugs
}

fn is_kebab_case(slug: &str) -> bool {
    let part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    slug.split('-').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;
    use crate::tree::tests::tree;

    fn findings(code: &str, pages: &[&str]) -> Vec<String> {
        let page = |slug: &&str| (format!("{PAGES}{slug}.md"), format!("# {slug}\n"));
        let pages: Vec<(String, String)> = pages.iter().map(page).collect();
        let files: Vec<(&str, &str)> =
            pages.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let sources = [
            source("crates/a/src/lib.rs", code),
            source("crates/a/tests/t.rs", "const A: A = A { slug: \"t-t\" };"),
        ];
        check(&tree(&files), &sources).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn slugs_and_pages_match_both_ways() {
        let code = "fn f() {\n Error::new(\"a-b\", x);\n plimsoll_base::Error::usage(\n    \"c-d\",\n x);\n\
                    let e = Error { slug: \"e-2\" }; Error::io(\"g\", p, e); Error::does_not_fit(\"h\", m) }\n";
        assert_eq!(findings(code, &["a-b", "c-d", "e-2", "g", "h"]), [""; 0]);
        assert_eq!(
            findings(code, &["a-b", "e-2", "g", "h", "old"]),
            [
                "crates/a/src/lib.rs:3: slug `c-d` has no page docs/errors/c-d.md",
                "docs/errors/old.md:1: no error has the slug `old`"
            ]
        );
    }

    #[test]
    fn tests_and_comments_make_no_slugs() {
        let code = "// Error::new(\"x\")\nfn f(slug: &str) { Error::new(slug, m) }\n\
                    #[cfg(test)]\nmod tests { fn g() { Error::new(\"made-up\", m); } }";
        assert_eq!(findings(code, &[]), [""; 0]);
    }

    #[test]
    fn constants_that_code_matches_have_pages_too() {
        let found = |path| {
            let source = source(path, "pub const A_B: &str = \"a-b\";\npub const ALL: [&str; 1] = [A_B];");
            check(&tree(&[]), &[source]).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            found(CONSTANTS),
            ["crates/base/src/slugs.rs:1: slug `a-b` has no page docs/errors/a-b.md"]
        );
        assert_eq!(found("crates/a/src/lib.rs"), [""; 0]);
    }

    #[test]
    fn classes_of_the_doctor_have_pages_too() {
        let data = "[[class]]\nslug = \"a-b\"\nlevel = \"warning\"\n[[class]]\nslug = \"c\"\n";
        let found = check(
            &tree(&[("crates/doctor/data/signatures/gpu.toml", data), ("docs/errors/a-b.md", "# a-b\n")]),
            &[],
        );
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["crates/doctor/data/signatures/gpu.toml:5: slug `c` has no page docs/errors/c.md"]
        );
        let source =
            source("crates/doctor/src/a.rs", "fn f() { [Check::of(\"d\", x), Check::of(\"e\", y)]; }");
        assert_eq!(check(&tree(&[]), &[source]).len(), 2);
    }

    #[test]
    fn slugs_are_kebab_case() {
        for (slug, fine) in [("a-b2", true), ("A", false), ("a--b", false), ("a_b", false), ("", false)] {
            assert_eq!(is_kebab_case(slug), fine, "{slug}");
        }
    }

    #[test]
    fn a_page_opens_with_its_slug() {
        let sources = [source("crates/a/src/lib.rs", "fn f() { Error::new(\"a\", m) }")];
        let found = check(&tree(&[("docs/errors/a.md", "# b\n")]), &sources);
        assert_eq!(found.len(), 1);
    }
}
