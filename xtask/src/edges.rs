//! Which crate may depend on which. A crate exists because of what it must not reach, so an edge that this table lacks
//! changes the architecture: edit the table here and in ARCHITECTURE.md, and say why in the commit.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::manifest;
use crate::tree::Tree;

/// The table, in ARCHITECTURE.md's notation: `left <- its allowed dependencies`.
pub const ALLOWED: &str = "
    arch     <- base
    memory   <- base
    algo     <- base
    env      <- base
    files    <- base arch
    text     <- base files
    images   <- base
    grammar  <- base text
    worker   <- base memory
    reward   <- base memory worker
    collect  <- base memory files env worker
    device   <- base arch memory
    cpu      <- base arch memory device
    cuda     <- base arch memory device
    model    <- base arch memory files device
    rollout  <- base arch memory device model
    train    <- base arch memory algo files device model
    textenv  <- base text worker reward
    ranks    <- base memory
    config   <- base arch algo reward textenv
    devices  <- base arch memory files device cpu cuda ranks
    plan     <- base arch memory files device devices model rollout train reward textenv config
    run      <- base arch memory files text worker ranks config plan
    serve    <- base arch text images grammar device rollout
    tinker   <- base algo serve
    infer    <- base arch memory algo files text images grammar reward config plan run device devices model rollout train serve
    rl       <- base arch memory algo files text reward textenv ranks config plan run device devices model rollout train serve infer
    tenants  <- base arch memory algo files text config plan device devices model rollout train serve infer tinker
    agent    <- base memory env files worker collect algo device devices model train config plan run
    bench    <- base arch memory algo files text grammar reward device devices rollout train config plan run infer rl
    doctor   <- base memory
    stacks   <- base arch
    launch   <- base
    python   <- base memory env worker collect
    plimsoll <- base arch memory files text images env reward collect ranks config plan run device devices doctor stacks launch serve infer rl tinker tenants agent bench
";

type Table = BTreeMap<String, BTreeSet<String>>;

/// Compares each crate's dependencies with the table, and the table with ARCHITECTURE.md's.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let table = parse(ALLOWED);
    let mut findings = Vec::new();
    // Examples are users' crates, which may depend on anything; fuzz uses every crate that parses.
    let ours = |path: &str| !path.starts_with("examples/") && !path.starts_with("fuzz/");
    for (path, text) in tree.texts("/Cargo.toml").filter(|(path, _)| ours(path)) {
        let owner = path.strip_suffix("/Cargo.toml").expect("the suffix was asked for");
        let owner = owner.strip_prefix("crates/").unwrap_or(owner);
        for dependency in manifest::dependencies(text) {
            let Some(target) = workspace_crate(&dependency.name) else { continue };
            if !table.get(owner).is_some_and(|allowed| allowed.contains(target)) {
                findings.push(Finding::new(path, dependency.line, new_edge(owner, target, &table)));
            }
        }
        if path.starts_with("crates/") && !table.contains_key(owner) && owner != "base" {
            let message = format!("crate {owner} is not in the edge table of xtask/src/edges.rs");
            findings.push(Finding::new(path, 1, message));
        }
    }
    findings.extend(tree.text("ARCHITECTURE.md").and_then(|text| check_document(&table, text)));
    findings
}

fn new_edge(owner: &str, target: &str, table: &Table) -> String {
    let allowed: Vec<&str> = table.get(owner).into_iter().flatten().map(String::as_str).collect();
    let allowed = if allowed.is_empty() { "nothing".to_string() } else { allowed.join(" ") };
    format!(
        "new crate edge {owner} <- {target}; allowed is {owner} <- {allowed}. \
         A new edge edits the table in xtask/src/edges.rs and ARCHITECTURE.md, and says why"
    )
}

/// Returns the folder of a workspace crate by its package name.
fn workspace_crate(package: &str) -> Option<&str> {
    if package == "plimsoll" { Some(package) } else { package.strip_prefix("plimsoll-") }
}

/// Returns the first finding about the table in the document's indented or fenced lines.
fn check_document(table: &Table, text: &str) -> Option<Finding> {
    const PATH: &str = "ARCHITECTURE.md";
    let is_row = |line: &str| line.contains("<-") && !line.contains('`');
    let rows: Vec<&str> = text.lines().filter(|line| is_row(line)).collect();
    if rows.is_empty() {
        let message = "the table of crate edges is missing; it is in xtask/src/edges.rs";
        return Some(Finding::new(PATH, 1, message));
    }
    let line = text.lines().position(is_row).map_or(1, |index| index + 1);
    let document = parse(&rows.join("\n"));
    let names: BTreeSet<&String> = table.keys().chain(document.keys()).collect();
    let differs = names.into_iter().find(|name| table.get(*name) != document.get(*name))?;
    Some(Finding::new(PATH, line, format!("the edges of {differs} differ from xtask/src/edges.rs")))
}

/// Parses rows `a, b <- c d`, several per line if separated by two or more spaces.
pub fn parse(text: &str) -> Table {
    let mut table = Table::new();
    for line in text.lines() {
        let mut line = line.trim().to_string();
        while line.contains(" <-") || line.contains("<- ") {
            line = line.replace(" <-", "<-").replace("<- ", "<-");
        }
        for entry in line.split("  ").filter_map(|entry| entry.trim().split_once("<-")) {
            let targets: BTreeSet<String> = entry.1.split_whitespace().map(str::to_string).collect();
            for owner in entry.0.split(',') {
                table.insert(owner.trim().to_string(), targets.clone());
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    /// The promise itself: this workspace has no edge that the table lacks.
    #[test]
    fn this_workspace_keeps_its_edges() {
        let tree = Tree::read(crate::repository_root()).expect("the workspace is readable");
        let findings = check(&tree);
        assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("\n{f}")).collect::<String>());
    }

    #[test]
    fn the_table_reads_as_meant() {
        let table = parse(ALLOWED);
        let row = |name: &str| table[name].iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        assert_eq!(row("env"), "base");
        assert_eq!(row("collect"), "base env files memory worker");
        assert_eq!(row("arch"), "base");
        // The command line knows no model and no formula.
        assert!(["algo", "model", "train", "rollout"].iter().all(|name| !table["plimsoll"].contains(*name)));
        // A device is a crate that nothing but the planner's list of devices has to know.
        let of_device = "arch base device memory".to_string();
        assert_eq!((row("cpu"), row("cuda")), (of_device.clone(), of_device));
    }

    #[test]
    fn a_new_edge_is_named() {
        let check_one = |path: &str, dependency: &str| {
            check(&tree(&[(path, &format!("[package]\n[dependencies]\n{dependency}.workspace = true\n"))]))
        };
        assert_eq!(check_one("crates/text/Cargo.toml", "plimsoll-files"), []);
        let findings = check_one("crates/text/Cargo.toml", "plimsoll-device");
        assert_eq!((findings.len(), findings[0].line), (1, 3));
        assert!(
            findings[0].message.starts_with("new crate edge text <- device; allowed is text <- base files")
        );
        assert_eq!(check_one("crates/base/Cargo.toml", "plimsoll-memory").len(), 1);
        assert_eq!(check_one("crates/new/Cargo.toml", "serde").len(), 1);
        assert_eq!(check_one("xtask/Cargo.toml", "plimsoll-base").len(), 1);
        assert_eq!(check_one("examples/mine/Cargo.toml", "plimsoll-collect"), []);
    }

    /// Collectors take no byte of a card: their crates cannot reach the one that opens it, by any path.
    #[test]
    fn collectors_cannot_reach_a_gpu() {
        let tree = Tree::read(crate::repository_root()).expect("the workspace is readable");
        let mut reached: BTreeSet<String> = BTreeSet::from(["collect".to_string(), "env".to_string()]);
        loop {
            let before = reached.len();
            for name in reached.clone() {
                let text =
                    tree.text(&format!("crates/{name}/Cargo.toml")).expect("each crate has a manifest");
                for dependency in manifest::dependencies(text) {
                    let outside = ["cudarc", "libloading"];
                    assert!(
                        !outside.contains(&dependency.name.as_str()),
                        "{name} depends on {}",
                        dependency.name
                    );
                    reached.extend(workspace_crate(&dependency.name).map(str::to_string));
                }
            }
            if reached.len() == before {
                break;
            }
        }
        let expect = ["arch", "base", "collect", "env", "files", "memory", "worker"].map(str::to_string);
        assert_eq!(reached, BTreeSet::from(expect));
    }

    #[test]
    fn tests_may_use_other_crates() {
        let text = "[dev-dependencies]\nplimsoll-rl = { path = \"x\" }\n";
        assert_eq!(check(&tree(&[("crates/text/Cargo.toml", text)])), []);
    }

    #[test]
    fn the_document_holds_the_same_table() {
        let with = |text: &str| check(&tree(&[("ARCHITECTURE.md", text)]));
        assert_eq!(with(&format!("# Architecture\n{ALLOWED}\n")), []);
        assert_eq!(with("# Architecture\n")[0].line, 1);
        let changed = ALLOWED.replace("worker   <- base memory", "worker   <- base memory device");
        assert!(with(&changed)[0].message.contains("edges of worker"));
        let short = ALLOWED.replace("python   <- base memory env worker collect", "");
        assert!(with(&short)[0].message.contains("edges of python"));
    }
}
