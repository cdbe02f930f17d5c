//! `explain SLUG`: the page of an error; `explain --list`: all of them.

use crate::{output, pages};
use plimsoll_base::{Error, Result};
use serde_json::{Value, json};
use std::process::ExitCode;

/// The flags of `explain`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  plimsoll explain host-pool-exceeded")]
pub struct Args {
    /// The name between the brackets of `error[...]`.
    #[arg(required_unless_present = "list")]
    slug: Option<String>,
    /// All names with one sentence each.
    #[arg(long, conflicts_with = "slug")]
    list: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the page or the list.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.slug {
        Some(slug) => page(slug, args.json),
        None => list(args.json),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn page(asked: &str, as_json: bool) -> Result<()> {
    // People copy the brackets too.
    let slug = asked.trim().trim_start_matches("error").trim_matches(['[', ']', ':']);
    let Some(page) = pages::page(slug) else { return Err(unknown(slug)) };
    if as_json {
        return output::json(&json!({ "slug": slug, "page": page }));
    }
    output::text(page)
}

fn list(as_json: bool) -> Result<()> {
    if as_json {
        let rows: Vec<Value> = pages::PAGES
            .iter()
            .map(|(slug, page)| json!({ "slug": slug, "summary": pages::summary(page) }))
            .collect();
        return output::json(&json!({ "errors": rows }));
    }
    let width = pages::PAGES.iter().map(|(slug, _)| slug.len()).max().unwrap_or(0);
    let lines: Vec<String> = pages::PAGES
        .iter()
        .map(|(slug, page)| format!("{slug:width$}  {}\n", pages::summary(page)))
        .collect();
    output::text(&lines.concat())
}

fn unknown(slug: &str) -> Error {
    let error = Error::usage("unknown-slug", format!("`{slug}` is not the name of an error"));
    let nearest = pages::PAGES.iter().map(|(name, _)| (strsim::damerau_levenshtein(slug, name), *name)).min();
    match nearest {
        Some((distance, name)) if distance <= (name.len() / 3).max(2) => {
            error.hint(format!("did you mean `{name}`?"))
        }
        _ => error.hint("`plimsoll explain --list` lists them all"),
    }
}
