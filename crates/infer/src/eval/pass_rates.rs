//! The rows of evaluated data with their pass rates, as JSON lines for `data.pass_rate_column` of a run file.

use crate::{sets::EvalSet, text::Item};
use plimsoll_base::Result;
use plimsoll_config::Data;
use plimsoll_files::output_error;
use plimsoll_run::scores::EvalReport;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The column's name unless the run file sets one.
const COLUMN: &str = "pass_rate";

/// Writes every evaluated prompt with its other columns and its pass rate: the share of its responses to which the
/// first reward gave 1 or more. The file is complete or absent.
///
/// Errors: `output-unwritable`, `disk-full`.
pub fn write(path: &Path, data: &Data, sets: &[EvalSet], reports: &[EvalReport]) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let written = rows(part, data, sets, reports).and_then(|()| fs::rename(part, path));
    written.map_err(|err| {
        let _ = fs::remove_file(part);
        output_error(path, &err)
    })
}

fn rows(part: &Path, data: &Data, sets: &[EvalSet], reports: &[EvalReport]) -> std::io::Result<()> {
    let mut out = BufWriter::new(plimsoll_files::create_part(part, false)?);
    for (set, report) in sets.iter().zip(reports) {
        debug_assert_eq!(set.items.len(), report.pass_rates.len());
        for (item, rate) in set.items.iter().zip(&report.pass_rates) {
            serde_json::to_writer(&mut out, &row(item, *rate, data))?;
            out.write_all(b"\n")?;
        }
    }
    out.into_inner().map_err(|err| err.into_error())?.sync_all()
}

fn row(item: &Item, rate: f64, data: &Data) -> Value {
    let prompt = item.messages.as_deref().cloned().unwrap_or_else(|| json!(item.text));
    let mut row = Map::from_iter([(data.prompt_column.clone(), prompt)]);
    row.extend(Map::clone(&item.columns));
    row.insert(data.pass_rate_column.clone().unwrap_or_else(|| COLUMN.into()), json!(rate));
    Value::Object(row)
}
