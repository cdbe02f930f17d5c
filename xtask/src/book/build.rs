//! `cargo xtask book`: builds mdBook's pages, redirects links out of the book to the repository, and checks the result.
//!
//! mdBook knows only `docs/`. A page may link to any file of the repository, which works when it is read as a file; in
//! the book such a link goes to the repository's host. Pages that load anything from elsewhere are refused.

use super::links::{folders, joined};
use crate::tree::{Tree, files_below};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{fs, io};

/// Where the book is built, from the root.
const BOOK: &str = "target/book";
/// Where `INSTALL` puts mdBook, from the root.
const INSTALLED: &str = "target/mdbook/bin/mdbook";
/// Installs mdBook.
const INSTALL: &str = "cargo install mdbook --version 0.5.4 --locked --no-default-features --features search --root target/mdbook";

/// Builds the book; exit code 3 without mdBook.
pub fn run(root: &Path) -> ExitCode {
    let installed = root.join(INSTALLED);
    let program = if installed.exists() { installed.as_os_str() } else { "mdbook".as_ref() };
    let build = Command::new(program).args(["build", "--dest-dir", BOOK]).current_dir(root).status();
    match build {
        Err(err) => {
            eprintln!("book: mdbook: {err}\nhint: {INSTALL}");
            return ExitCode::from(3);
        }
        Ok(status) if !status.success() => return ExitCode::FAILURE,
        Ok(_) => {}
    }
    match finish(root) {
        Ok((pages, faults)) => {
            faults.iter().for_each(|fault| println!("{fault}"));
            eprintln!("book: {pages} pages in {BOOK}, {} faults", faults.len());
            if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(err) => {
            eprintln!("book: {err}");
            ExitCode::from(2)
        }
    }
}

/// Rewrites links and checks every page and style sheet. Returns the number of pages, and what is wrong.
fn finish(root: &Path) -> io::Result<(usize, Vec<String>)> {
    let tree = Tree::read(root)?;
    let files = files_below(&root.join(BOOK))?;
    let paths = tree.files.iter().map(|file| file.path.clone());
    let sites = Sites {
        book: files.iter().cloned().collect(),
        repository: folders(&tree).into_iter().chain(paths).collect(),
        url: repository_url(tree.text("Cargo.toml").unwrap_or_default()),
    };
    let (mut pages, mut faults) = (0, Vec::new());
    for path in files.iter().filter(|path| path.ends_with(".html") || path.ends_with(".css")) {
        let file = root.join(BOOK).join(path);
        let text = fs::read_to_string(&file)?;
        faults.extend(loads(&text).map(|what| format!("{path}: loads {what}")));
        // mdBook's own page for wrong addresses has absolute links.
        if path.ends_with(".html") && path != "404.html" {
            let folder = source_folder(path, &tree);
            let (text, dead) = sites.rewritten(&text, path, &folder);
            faults.extend(dead.iter().map(|link| format!("{path}: `{link}` leads nowhere")));
            fs::write(&file, text)?;
            pages += 1;
        }
    }
    Ok((pages, faults))
}

fn repository_url(manifest: &str) -> String {
    let line = manifest.lines().find_map(|line| line.strip_prefix("repository = \""));
    line.unwrap_or_default().trim_end_matches('"').to_string()
}

/// Returns the folder that a page's links are relative to: its source's, or that of the file its source includes.
fn source_folder(page: &str, tree: &Tree) -> String {
    let source = format!("docs/{}.md", page.trim_end_matches(".html"));
    let folder = source.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
    let included = tree.text(&source).and_then(|text| text.split("{{#include ").nth(1)?.split_once("}}"));
    let file = included.and_then(|(file, _)| joined(&folder, file.trim()));
    match file {
        Some(file) => file.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_string()),
        None => folder,
    }
}

/// Returns addresses from which a page would load something by itself.
fn loads(text: &str) -> impl Iterator<Item = String> {
    let marks = ["src=\"http", "src=\"//", "url(http", "url(\"http", "url('http", "@import"];
    let direct = marks.iter().filter(|mark| text.contains(**mark)).map(ToString::to_string);
    let tags = text.split("<link ").skip(1).filter_map(|rest| rest.split('>').next());
    let outside = tags.filter(|tag| tag.contains("href=\"http") || tag.contains("href=\"//"));
    direct.chain(outside.map(str::to_string)).collect::<Vec<String>>().into_iter()
}

/// Valid targets of links.
struct Sites {
    book: BTreeSet<String>,
    /// Files and folders of the repository.
    repository: BTreeSet<String>,
    /// URL of the repository.
    url: String,
}

impl Sites {
    /// Returns the page with working links and pictures, and the dead ones.
    fn rewritten(&self, html: &str, page: &str, source_folder: &str) -> (String, Vec<String>) {
        let (mut text, mut dead) = (html.to_string(), Vec::new());
        for attribute in [" href=\"", " src=\""] {
            let whole = std::mem::take(&mut text);
            let mut parts = whole.split(attribute);
            text.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let (link, rest) = part.split_once('"').unwrap_or((part, ""));
                let led = self.led(link, page, source_folder).unwrap_or_else(|| {
                    dead.push(link.to_string());
                    link.to_string()
                });
                text.push_str(&format!("{attribute}{led}\"{rest}"));
            }
        }
        (text, dead)
    }

    /// Returns where a link leads from a page; `None` if nowhere.
    fn led(&self, link: &str, page: &str, source_folder: &str) -> Option<String> {
        if link.is_empty() || link.starts_with('#') || link.contains("://") || link.starts_with("mailto:") {
            return Some(link.to_string());
        }
        let (path, anchor) = match link.find('#') {
            Some(at) => link.split_at(at),
            None => (link, ""),
        };
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        if joined(folder, path).is_some_and(|path| self.book.contains(&path)) {
            return Some(link.to_string());
        }
        let target = joined(source_folder, path)?;
        let up = "../".repeat(page.matches('/').count());
        if let Some(of_docs) = target.strip_prefix("docs/") {
            let index = format!("{}index.html", of_docs.strip_suffix("README.html").unwrap_or("\0"));
            let found = [of_docs.to_string(), index].into_iter().find(|path| self.book.contains(path));
            if let Some(found) = found {
                return Some(format!("{up}{found}{anchor}"));
            }
        }
        let source = target.strip_suffix(".html").map(|stem| format!("{stem}.md"));
        let found = source.into_iter().chain([target]).find(|path| self.repository.contains(path))?;
        Some(format!("{}/blob/main/{found}{anchor}", self.url))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn sites() -> Sites {
        let set = |paths: &[&str]| paths.iter().map(|path| path.to_string()).collect();
        Sites {
            book: set(&[
                "index.html",
                "cuda.html",
                "errors/index.html",
                "errors/a-b.html",
                "architecture.html",
                "images/a.svg",
            ]),
            repository: set(&["README.md", "docs/cuda.md", "bench", "bench/results/cpu.md", "crates/a.rs"]),
            url: "https://host/x".into(),
        }
    }

    #[test]
    fn where_links_lead() {
        let sites = sites();
        for (link, page, folder, expect) in [
            ("cuda.html#a", "index.html", "docs", Some("cuda.html#a")),
            ("../cuda.html", "errors/a-b.html", "docs/errors", Some("../cuda.html")),
            ("errors/README.html", "index.html", "docs", Some("errors/index.html")),
            ("README.html", "errors/a-b.html", "docs/errors", Some("../errors/index.html")),
            (
                "../bench/results/cpu.html",
                "index.html",
                "docs",
                Some("https://host/x/blob/main/bench/results/cpu.md"),
            ),
            (
                "../../crates/a.rs",
                "errors/a-b.html",
                "docs/errors",
                Some("https://host/x/blob/main/crates/a.rs"),
            ),
            ("../README.html#b", "index.html", "docs", Some("https://host/x/blob/main/README.md#b")),
            ("docs/cuda.html", "architecture.html", "", Some("cuda.html")),
            ("https://y.z", "index.html", "docs", Some("https://y.z")),
            ("#here", "index.html", "docs", Some("#here")),
            ("no.html", "index.html", "docs", None),
            ("../../up.html", "index.html", "docs", None),
        ] {
            assert_eq!(sites.led(link, page, folder).as_deref(), expect, "{link} on {page}");
        }
        let (text, dead) =
            sites.rewritten("<a href=\"no.html\">x</a><a href=\"cuda.html\">", "index.html", "docs");
        let picture = sites.rewritten("<img src=\"docs/images/a.svg\">", "architecture.html", "");
        assert_eq!(picture, ("<img src=\"images/a.svg\">".to_string(), vec![]));
        assert_eq!(
            (text.as_str(), dead),
            ("<a href=\"no.html\">x</a><a href=\"cuda.html\">", vec!["no.html".to_string()])
        );
    }

    #[test]
    fn the_source_of_a_page() {
        let tree = tree(&[("docs/a.md", "# a\n"), ("docs/b.md", "{{#include ../B.md}}\n")]);
        assert_eq!(source_folder("a.html", &tree), "docs");
        assert_eq!(source_folder("b.html", &tree), "");
        assert_eq!(source_folder("errors/x.html", &tree), "docs/errors");
    }

    #[test]
    fn what_would_be_loaded_from_elsewhere() {
        for (text, count) in [
            ("<a href=\"https://x\">", 0),
            ("<link rel=\"icon\" href=\"favicon.svg\">", 0),
            ("<link rel=\"stylesheet\" href=\"https://x/y.css\">", 1),
            ("<script src=\"https://x/y.js\">", 1),
            ("@font-face { src: url('https://x') }", 1),
        ] {
            assert_eq!(loads(text).count(), count, "{text}");
        }
    }
}
