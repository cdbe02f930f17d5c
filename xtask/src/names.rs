//! Names of public types: one in the workspace means one thing, or its row in `names.toml` gives the reason.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::rooms::room_of;
use crate::source::Source;

/// Names that several rooms have, each with its reason.
const SHARED: &str = include_str!("names.toml");
const SHARED_PATH: &str = "xtask/src/names.toml";

/// Reports public types of two files that have one name without a reason, and reasons for names that are unique.
pub fn check(sources: &[Source]) -> Vec<Finding> {
    let shared: BTreeMap<String, String> = toml::from_str(SHARED).expect("a table of names and reasons");
    check_names(sources, &shared)
}

fn check_names(sources: &[Source], shared: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| room_of(&source.path).is_some()) {
        for (name, line) in public_types(source) {
            places.entry(name).or_default().push((&source.path, line));
        }
    }
    let mut findings = Vec::new();
    for (name, of) in places.iter().filter(|(name, of)| of.len() > 1 && !shared.contains_key(*name)) {
        let (first, others) = of.split_first().expect("two at least");
        let message = |line| {
            format!("`{name}` is a type of {}:{line} too: rename one, or say why in {SHARED_PATH}", first.0)
        };
        findings.extend(others.iter().map(|(path, line)| Finding::new(path, *line, message(first.1))));
    }
    // A tree without sources, of a test, has no stale rows.
    let is_stale = |name: &&String| !places.is_empty() && places.get(*name).is_none_or(|of| of.len() < 2);
    let stale = shared.keys().filter(is_stale);
    findings.extend(
        stale.map(|name| Finding::new(SHARED_PATH, 1, format!("`{name}` is unique: its row can go"))),
    );
    findings
}

/// Returns the names and lines of the types that a file makes public at its top level.
fn public_types(source: &Source) -> impl Iterator<Item = (String, usize)> {
    let of = |item: &syn::Item| {
        let (visibility, name) = match item {
            syn::Item::Struct(item) => (&item.vis, &item.ident),
            syn::Item::Enum(item) => (&item.vis, &item.ident),
            syn::Item::Trait(item) => (&item.vis, &item.ident),
            syn::Item::Type(item) => (&item.vis, &item.ident),
            syn::Item::Macro(item) => return declared(&item.mac),
            _ => return None,
        };
        matches!(visibility, syn::Visibility::Public(_)).then(|| (name.to_string(), name.span().start().line))
    };
    source.file.items.iter().filter_map(of)
}

/// Returns the name and line of the type that a table of keys or of names declares: its first word.
fn declared(table: &syn::Macro) -> Option<(String, usize)> {
    let of = table.path.segments.last().map(|segment| segment.ident.to_string());
    of.filter(|of| ["section", "names"].contains(&of.as_str()))?;
    let word = |token| if let proc_macro2::TokenTree::Ident(word) = token { Some(word) } else { None };
    let name = table.tokens.clone().into_iter().find_map(word)?;
    Some((name.to_string(), name.span().start().line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::source;

    #[test]
    fn a_name_of_two_types_needs_a_reason() {
        let sources = [
            source("crates/plan/src/a.rs", "pub struct Way;\nstruct Own;\n"),
            source("crates/rl/src/a.rs", "pub enum Way {}\nstruct Own;\n"),
            source("crates/rl/tests/it/a.rs", "pub struct Way;\n"),
        ];
        let found = |reasons: &[&str]| {
            let shared = reasons.iter().map(|name| (name.to_string(), "a reason".to_string())).collect();
            check_names(&sources, &shared).into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), ["crates/rl/src/a.rs"]);
        assert!(found(&["Way"]).is_empty());
        assert_eq!(found(&["Way", "Own"]), [SHARED_PATH]);
    }

    #[test]
    fn a_table_declares_its_type() {
        let text = "section! {\n    /// Rows.\n    Train \"train\" {\n        steps: u32 = 1,\n    }\n}\nother! { Name }\n";
        let of = |text| public_types(&source("crates/plan/src/a.rs", text)).collect::<Vec<_>>();
        assert_eq!(of(text), [("Train".to_string(), 3)]);
        assert_eq!(
            of("base::names!(/// Ways.\n #[derive(Debug)] Way, \"a\", { A = \"a\" });"),
            [("Way".to_string(), 2)]
        );
    }
}
