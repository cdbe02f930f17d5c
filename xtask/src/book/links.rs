//! Checks links of Markdown files: a relative one points to a file or folder of the repository, an anchor to a heading.

use crate::{finding::Finding, tree::Tree};
use std::collections::{BTreeMap, BTreeSet};

/// Folders whose pages are checked, in addition to the root's.
const FOLDERS: [&str; 4] = ["docs/", "bench/", "crates/", "examples/"];

/// Begins an inclusion of a file.
const INCLUDE: &str = "{{#include ";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let folders = folders(tree);
    let mut headings = Headings { tree, known: BTreeMap::new() };
    let mut findings = Vec::new();
    let is_checked =
        |path: &str| !path.contains('/') || FOLDERS.iter().any(|folder| path.starts_with(folder));
    for (path, text) in tree.texts(".md").filter(|(path, _)| is_checked(path)) {
        for (line, target) in links(text) {
            let is_there =
                |file: &str| tree.files.iter().any(|other| other.path == file) || folders.contains(file);
            let message = match place(path, &target) {
                Place::Elsewhere => None,
                Place::Outside => Some(format!("the link `{target}` leaves the repository")),
                Place::Here(file, _) if !is_there(&file) => {
                    Some(format!("the link `{target}` points to nothing"))
                }
                Place::Here(file, Some(anchor))
                    if file.ends_with(".md") && !headings.of(&file).contains(&anchor) =>
                {
                    Some(format!("the link `{target}` points to a heading that {file} does not have"))
                }
                Place::Here(..) => None,
            };
            findings.extend(message.map(|message| Finding::new(path, line, message)));
        }
    }
    findings
}

/// Target of a link.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Another host.
    Elsewhere,
    /// Above the root, or an absolute path.
    Outside,
    /// A path from the root, and an anchor in it.
    Here(String, Option<String>),
}

fn place(page: &str, target: &str) -> Place {
    if target.contains("://") || target.starts_with("mailto:") {
        return Place::Elsewhere;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_string())),
        None => (target, None),
    };
    if path.starts_with('/') {
        return Place::Outside;
    }
    if path.is_empty() {
        return Place::Here(page.to_string(), anchor);
    }
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    match joined(folder, path) {
        Some(path) => Place::Here(path, anchor),
        None => Place::Outside,
    }
}

/// Resolves `path` relative to `folder`, both from the root; `None` above it.
pub fn joined(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns (line, target) of each link, picture and inclusion outside code.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let parts = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        // `[ ]()` is a chapter without a page.
        links.extend(
            parts.filter(|(target, _)| !target.is_empty()).map(|(target, _)| (number, target.to_string())),
        );
        let included = line.split(INCLUDE).skip(1).filter_map(|rest| rest.split_once("}}"));
        links.extend(included.map(|(target, _)| (number, target.trim().to_string())));
    }
    links
}

/// Returns lines outside code, without their code spans, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            return None;
        }
        let text = line.split('`').step_by(2).collect::<Vec<&str>>().join("``");
        (!is_fenced).then_some((index + 1, text))
    })
}

pub fn folders(tree: &Tree) -> BTreeSet<String> {
    let ends =
        |path: &str| path.match_indices('/').map(|(end, _)| path[..end].to_string()).collect::<Vec<_>>();
    tree.files.iter().flat_map(|file| ends(&file.path)).collect()
}

/// The anchors of pages, read on demand.
struct Headings<'t> {
    tree: &'t Tree,
    known: BTreeMap<String, BTreeSet<String>>,
}

impl Headings<'_> {
    fn of(&mut self, path: &str) -> &BTreeSet<String> {
        let tree = self.tree;
        self.known.entry(path.to_string()).or_insert_with(|| {
            let text = tree.text(path).unwrap_or_default();
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let included =
                links(text).into_iter().filter_map(|(_, target)| tree.text(&joined(folder, &target)?));
            let is_included = text.contains(INCLUDE);
            let mut anchors = anchors(text);
            anchors.extend(included.filter(|_| is_included).flat_map(self::anchors));
            anchors
        })
    }
}

/// Returns the anchors of headings: lower case, hyphens for spaces, only letters, digits, `-` and `_`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_fenced) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String =
            heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let again = (1..).map(|count| format!("{anchor}-{count}")).find(|name| !found.contains(name));
        found.insert(if found.contains(&anchor) { again.expect("one is free") } else { anchor });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn found(page: &str) -> Vec<String> {
        let files = [
            ("docs/a.md", page),
            ("docs/b.md", "# One two: `three`\n## Same\n## Same\n"),
            ("docs/c.md", "{{#include b.md}}\n"),
            ("README.md", ""),
        ];
        check(&tree(&files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn links_that_lead_somewhere() {
        for link in [
            "b.md",
            "../README.md",
            "b.md#one-two-three",
            "b.md#same-1",
            "c.md#same",
            ".",
            "../docs",
            "https://x.y/z",
            "#own",
        ] {
            assert_eq!(found(&format!("# Own\nsee [that]({link})\n")), [""; 0], "{link}");
        }
        assert_eq!(found("`[a](no.md)`\n```\n[a](no.md)\n```\n"), [""; 0], "code");
    }

    #[test]
    fn links_that_do_not() {
        for link in ["no.md", "../no", "../../x", "/b.md", "b.md#four", "#own"] {
            assert_eq!(found(&format!("see [that]({link}) and [this](b.md)\n")).len(), 1, "{link}");
        }
        assert_eq!(found("![picture](no.svg)\n").len(), 1);
        assert_eq!(found("{{#include ../no.md}}\n").len(), 1);
    }
}
