//! The page that lists what an import leaves out: it is made of the tables, and never written by hand.

use plimsoll_stacks::{Loss, STACKS, Stack, losses};
use std::path::PathBuf;

const INTRODUCTION: &str = "\
# What an import leaves out

`plimsoll import` names every option of your file that it leaves out, with the reason. This page is the same for whole stacks, from the tables that the import reads.
Options that become a key of the run file are not in it, nor is what depends on a value: an estimator that is no method here, two settings of which one counts.
Each option is listed under its oldest name; `x*` is every further name that begins with `x`. A key or a password is never repeated.

`cargo xtask index` writes this page.
";

fn page_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/import-losses.md")
}

fn page() -> String {
    let mut text = INTRODUCTION.to_string();
    for stack in STACKS {
        let losses = losses(stack);
        for (refused, title) in [(true, "refused, unless `--force` is given"), (false, "left out")] {
            let rows: Vec<&Loss> = losses.iter().filter(|loss| loss.refused == refused).collect();
            if !rows.is_empty() {
                text += &format!("\n## {}: {title}\n\n| option | why |\n|---|---|\n", title_of(stack));
                rows.iter().for_each(|loss| text += &row(loss));
            }
        }
    }
    text
}

fn row(loss: &Loss) -> String {
    let options: Vec<String> = loss.options.iter().map(|option| format!("`{option}`")).collect();
    format!("| {} | {} |\n", options.join(", "), loss.why)
}

fn title_of(stack: &Stack) -> &'static str {
    stack.title().expect("a stack with losses is imported")
}

#[test]
fn the_page_is_that_of_the_tables() {
    let there = std::fs::read_to_string(page_path()).expect("the page");
    assert!(there == page(), "docs/import-losses.md differs from the tables: run `cargo xtask index`");
}

#[test]
fn every_loss_has_options_and_a_reason_of_its_own() {
    for stack in STACKS {
        let found = losses(stack);
        assert_eq!(found.is_empty(), stack.imported_file().is_none(), "{stack:?}");
        for (index, loss) in found.iter().enumerate() {
            assert!(!loss.options.is_empty() && !loss.why.contains(['|', '\n']), "{stack:?}: {loss:?}");
            let twice = found[..index].iter().any(|one| (one.why, one.refused) == (loss.why, loss.refused));
            assert!(!twice, "{stack:?}: {loss:?}");
        }
    }
}

#[test]
#[ignore = "writes docs/import-losses.md: cargo xtask index"]
fn the_page_is_written() {
    std::fs::write(page_path(), page()).expect("the page is written");
}
