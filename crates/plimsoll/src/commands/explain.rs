//! `explain NAME` prints the page of an error, a doctor class or a check, or what there is to say about a key of the
//! run file; `explain conflicts` prints which settings do not go together, `explain models` the families of models;
//! other forms list pages or search them.

use crate::{output, pages, pages::Group};
use plimsoll_arch::{Family, FamilyPage};
use plimsoll_base::{Error, Result};
use plimsoll_config::{ConflictPage, KeyPage};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  plimsoll explain host-pool-exceeded
  plimsoll explain rollout.group_size                    a key of the run file
  plimsoll explain chat template                         the pages that hold both words
  plimsoll explain rollout                               the keys of a section
  plimsoll explain conflicts                             settings that do not go together
  plimsoll explain models                                the families of models
  plimsoll explain --search dev/shm docker")]
pub struct Args {
    /// The name in the brackets of `error[...]`, one that `doctor` printed, or a key of the run file; several words are
    /// searched for.
    #[arg(required_unless_present_any = ["list", "search", "keys"])]
    slug: Vec<String>,
    /// List all names, with one sentence each.
    #[arg(long, conflicts_with = "slug")]
    list: bool,
    /// Find pages with all of these words, or with some of them, best matches first.
    #[arg(long, value_name = "WORD", num_args = 1.., conflicts_with_all = ["slug", "list"])]
    search: Vec<String>,
    /// List every key of a run file, one a line: what `cargo xtask keys` reads.
    #[arg(long, hide = true, conflicts_with_all = ["slug", "list", "search", "json"])]
    keys: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    match &args.slug[..] {
        [slug] if slug == "conflicts" => conflicts(args.json),
        [slug] if slug == "models" => models(args.json),
        [slug] => page(slug, args.json),
        [] if args.list => list(args.json),
        [] if args.keys => output::text(&(plimsoll_config::keys().join("\n") + "\n")),
        [] => search(&args.search, args.json, quiet),
        words => search(words, args.json, quiet),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn page(asked: &str, as_json: bool) -> Result<()> {
    // Users copy the brackets too.
    let slug = asked.trim().trim_start_matches("error").trim_matches(['[', ']', ':']);
    if let Some(key) = plimsoll_config::describe(slug) {
        return if as_json { output::json(&json!(key)) } else { output::text(&key.text()) };
    }
    let keys = plimsoll_config::describe_section(slug);
    if !keys.is_empty() {
        return if as_json {
            output::json(&json!({ "keys": keys }))
        } else {
            output::text(&section_text(slug, &keys))
        };
    }
    let Some(page) = pages::page(slug) else { return Err(unknown(slug)) };
    if as_json {
        return output::json(&json!({ "slug": slug, "page": page }));
    }
    output::text(page)
}

/// Prints the table of settings that do not go together.
fn conflicts(as_json: bool) -> Result<()> {
    let table = plimsoll_config::conflicts();
    if as_json {
        let rows: Vec<Value> = table.iter().flat_map(|(_, rows)| rows).map(|row| json!(row)).collect();
        return output::json(&json!({ "conflicts": rows }));
    }
    let line = |row: &ConflictPage| {
        format!("  {}\n    with {}, {}\n    hint: {}\n", row.setting, row.with, row.why, row.hint)
    };
    let section = |(name, rows): &(String, Vec<ConflictPage>)| {
        format!("{name}\n{}\n", rows.iter().map(line).collect::<String>())
    };
    output::text(&table.iter().map(section).collect::<String>())
}

/// Prints the table of families.
fn models(as_json: bool) -> Result<()> {
    let table = Family::ALL.map(FamilyPage::of);
    if as_json {
        let row = |page: &FamilyPage| {
            json!({
                "family": page.family.name(), "model_types": page.model_types(), "models": page.models,
                "gguf": page.has_gguf(), "beyond": page.beyond,
            })
        };
        return output::json(&json!({ "models": table.iter().map(row).collect::<Vec<Value>>() }));
    }
    let row = |page: &FamilyPage| {
        let gguf = if page.has_gguf() { " (GGUF)" } else { "" };
        format!("{}\n  {}{gguf}\n", page.models, page.model_types().join(", "))
    };
    output::text(&table.iter().map(row).collect::<String>())
}

/// Lists the keys of a section, each with the first sentence of what it means.
fn section_text(section: &str, keys: &[KeyPage]) -> String {
    let width = keys.iter().map(|page| page.key.len()).max().unwrap_or(0);
    let line = |page: &KeyPage| {
        let sentence = page.meaning.split_inclusive(". ").next().unwrap_or_default().trim_end();
        format!("  {:width$}  {sentence}\n", page.key)
    };
    format!(
        "[{section}]\n\n{}\n`plimsoll explain KEY` says more of one.\n",
        keys.iter().map(line).collect::<String>()
    )
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let row = |(slug, page): &(&str, &str)| json!({ "slug": slug, "group": Group::of(slug).name(), "summary": pages::summary(page) });
        let rows: Vec<Value> = pages::PAGES.iter().map(row).collect();
        return output::json(&json!({ "errors": rows }));
    }
    let width = pages::PAGES.iter().map(|(slug, _)| slug.len()).max().unwrap_or(0);
    let mut text = String::new();
    for group in Group::ALL {
        text += &format!("{}\n", group.title());
        let of_group = pages::PAGES.iter().filter(|(slug, _)| Group::of(slug) == group);
        for (slug, page) in of_group {
            text += &format!("  {slug:width$}  {}\n", pages::summary(page));
        }
        text.push('\n');
    }
    output::text(&text)
}

fn search(words: &[String], as_json: bool, quiet: bool) -> Result<()> {
    let pages::Found { pages: found, hold_all } = pages::search(words);
    if as_json {
        let row = |(slug, line): &(&str, &str)| json!({ "slug": slug, "line": line });
        return output::json(&json!({ "pages": found.iter().map(row).collect::<Vec<Value>>() }));
    }
    if found.is_empty() {
        return Err(Error::usage("unknown-slug", format!("no page holds any of: {}", words.join(" ")))
            .hint("other words may find it; `plimsoll explain --list` lists all pages"));
    }
    output::note(quiet || hold_all, "no page holds all of these words; those with the rarest of them:");
    let width = found.iter().map(|(slug, _)| slug.len()).max().unwrap_or(0);
    let lines: Vec<String> = found.iter().map(|(slug, line)| format!("{slug:width$}  {line}\n")).collect();
    output::text(&lines.concat())
}

fn unknown(slug: &str) -> Error {
    let error = Error::usage("unknown-slug", format!("`{slug}` is not the name of an error"));
    let nearest = pages::PAGES.iter().map(|(name, _)| (strsim::damerau_levenshtein(slug, name), *name)).min();
    match nearest {
        Some((distance, name)) if distance <= (name.len() / 3).max(2) => {
            error.hint(format!("did you mean `{name}`?"))
        }
        _ => error.hint("`plimsoll explain --list` lists them all, `--search WORDS` looks into them"),
    }
}
