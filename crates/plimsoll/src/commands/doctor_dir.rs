//! `doctor RUN_DIR`: the state of a run and its ranks, and remedies for its error. Takes no lock and changes nothing.

use crate::watch::live::Runs;
use crate::{output, pages, rank_rows};
use plimsoll_base::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints the report; exit code 1 if the run failed or was ended before its last step.
pub fn run(dir: &Path, as_json: bool) -> Result<ExitCode> {
    let runs = Runs::open(&[PathBuf::from(dir)])?;
    runs.read_all();
    let run = runs.get(0).expect("it was opened");
    let (brief, detail) = (run.brief(), run.detail());
    let slug = detail["crash"]["slug"].as_str();
    let remedies = slug.and_then(pages::page).map(pages::remedies).unwrap_or_default();
    let keys = ["state", "step", "steps", "seconds", "num_warnings", "ranks"];
    let mut found: Value = keys.into_iter().map(|key| (key.to_string(), brief[key].clone())).collect();
    found["crash"] = detail["crash"].clone();
    found["remedies"] = json!(remedies);
    output::either(as_json, &found, |found| words(dir, found, &remedies))?;
    let is_well = ["running", "finished"].iter().any(|state| found["state"] == *state);
    Ok(ExitCode::from(u8::from(!is_well)))
}

fn words(dir: &Path, found: &Value, remedies: &[String]) -> String {
    let state = match found["state"].as_str().unwrap_or_default() {
        "failed" => "ended with an error",
        "stopped" => "ended before its last step",
        "unknown" => "state unknown: /proc/locks cannot be read",
        state => state,
    };
    let mut text = format!("{}: {state}, step {}", dir.display(), found["step"]);
    if let Some(steps) = found["steps"].as_u64() {
        text += &format!(" of {steps}");
    }
    text.push('\n');
    let crash = &found["crash"];
    if let (Some(slug), Some(message)) = (crash["slug"].as_str(), crash["message"].as_str()) {
        text += &format!("\n{slug}: {message}\n");
        let facts = crash["facts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        facts.for_each(|fact| text += &format!("  {fact}\n"));
    }
    let ranks = rank_rows::of_board(&found["ranks"]);
    if !ranks.is_empty() {
        text += &format!("\n{ranks}");
    }
    if !remedies.is_empty() {
        text += "\ndo\n";
        let numbered = remedies.iter().enumerate();
        numbered.for_each(|(index, remedy)| text += &format!("  {}. {remedy}\n", index + 1));
    }
    text
}
