//! `reproduce --list`: every reproduction with its claim, what it takes by `plan`, and what it came to.

use super::book::{Book, names};
use super::record::ReproductionResult;
use super::{stages, verdict};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::Reproduction;
use plimsoll_devices::Card;
use plimsoll_memory::Pool;
use plimsoll_plan::duration;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The results that the repository keeps.
const RESULTS: &str = include_str!("../../../../bench/results/reproduce.json");

/// A row of the table.
pub struct ListedReproduction {
    pub name: String,
    pub what: Reproduction,
    /// The model of the first stage.
    model: String,
    card_bytes: Bytes,
    seconds: f64,
    fits: bool,
    result: Option<ReproductionResult>,
}

/// Returns a row for each embedded reproduction, planned for `card` without its model and data.
///
/// Errors: those of run files and plans.
pub fn rows(card: &Card) -> Result<Vec<ListedReproduction>> {
    let results: Vec<ReproductionResult> = serde_json::from_str(RESULTS).expect("a test reads it");
    let folder = Scratch::new()?;
    names().map(|name| row(name, &folder.0, *card, &results)).collect()
}

fn row(name: &str, folder: &Path, card: Card, results: &[ReproductionResult]) -> Result<ListedReproduction> {
    let book = Book::open(name)?;
    book.write(folder)?;
    std::env::set_current_dir(folder).map_err(|err| unwritable(folder, &err))?;
    // Flags and environment variables are for runs; a table says what the files say.
    let loaded = book.what.stage.iter().map(|stage| {
        let loaded = plimsoll_config::load(Path::new(&stage.run), &[], std::iter::empty());
        loaded.map_err(|error| error.fact(format!("of {name}")))
    });
    let loaded = loaded.collect::<Result<Vec<_>>>()?;
    let reports = stages::plan(&book.what, &loaded, Some(card))?;
    let card_bytes = reports.iter().map(|report| report.plan.peak(Pool::Device).peak).max();
    Ok(ListedReproduction {
        model: loaded[0].run.model.clone(),
        card_bytes: card_bytes.unwrap_or(Bytes(0)),
        seconds: reports.iter().map(plimsoll_plan::PlanReport::run_s).sum(),
        fits: reports.iter().all(|report| report.fits),
        result: results.iter().find(|result| result.name == name).cloned(),
        name: book.name,
        what: book.what,
    })
}

/// A folder for the time of a plan.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("plimsoll-reproduce-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|err| unwritable(&path, &err))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is a few kilobytes in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unwritable(path: &Path, err: &std::io::Error) -> Error {
    Error::io("write-failed", path, err).hint("set TMPDIR to a folder that can be written")
}

impl ListedReproduction {
    /// Returns `reproduced, V of E ± T` with day and machine, or that it was not run yet.
    fn state(&self) -> String {
        match &self.result {
            None => "not run yet".into(),
            Some(result) => {
                let verdict = verdict::line(&self.what.claim, result);
                format!("{verdict}; {}, {}", result.date, result.machine)
            }
        }
    }

    fn claim(&self) -> String {
        let claim = &self.what.claim;
        let [value, tolerance] =
            [claim.value, claim.tolerance].map(|number| verdict::shown(number, claim.percent));
        format!("{value} ± {tolerance}")
    }

    fn takes(&self) -> [String; 2] {
        if self.fits {
            [self.card_bytes.to_string(), duration(self.seconds)]
        } else {
            [self.card_bytes.to_string(), "does not fit".into()]
        }
    }
}

/// Formats the rows as a table for a terminal.
pub fn table(rows: &[ListedReproduction], card: &str) -> String {
    let cells = rows.iter().map(|row| {
        let [bytes, time] = row.takes();
        [row.name.clone(), row.claim(), bytes, time, row.model.clone(), row.state()]
    });
    let head = ["name", "claim", card, "time, at most", "model", "state"].map(String::from);
    let cells: Vec<[String; 6]> = std::iter::once(head).chain(cells).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let line = |row: &[String; 6]| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  "));
        padded.collect::<String>() + &row[5] + "\n"
    };
    cells.iter().map(line).collect()
}

/// Formats the rows as a table of Markdown, for the page about them.
pub fn markdown(rows: &[ListedReproduction], card: &str) -> String {
    let mut text = format!("| name | claim | {card} | time, at most | state |\n|---|---|---|---|---|\n");
    for row in rows {
        let [bytes, time] = row.takes();
        let title = match row.what.source.strip_prefix("https://") {
            Some(_) => format!("[{}]({})", row.what.title, row.what.source),
            None => format!("{} ({})", row.what.title, row.what.source),
        };
        let (name, claim, state) = (&row.name, row.claim(), row.state());
        text += &format!("| `{name}` | {title}: {claim} | {bytes} | {time} | {state} |\n");
    }
    text
}

/// Returns the rows as JSON.
pub fn json(rows: &[ListedReproduction]) -> Value {
    let one = |row: &ListedReproduction| {
        json!({
            "name": row.name,
            "title": row.what.title,
            "source": row.what.source,
            "needs": row.what.needs,
            "model": row.model,
            "metric": row.what.claim.metric,
            "published": row.what.claim.value,
            "tolerance": row.what.claim.tolerance,
            "why": row.what.claim.why,
            "card_bytes": row.card_bytes,
            "predicted_s": row.seconds,
            "fits": row.fits,
            "result": row.result,
        })
    };
    json!({ "reproductions": rows.iter().map(one).collect::<Vec<Value>>() })
}
