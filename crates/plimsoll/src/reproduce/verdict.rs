//! The number that a reproduction came to, and whether it is the published one.

use super::record::{FolderState, ReproductionResult};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_config::{Loaded, LoadedVerb, PublishedClaim, Reproduction};
use plimsoll_run::ending::run_dir_path;
use serde_json::{Map, Value};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest `summary.json` and `events.jsonl` of a run.
const BYTES_MAX: u64 = 1 << 30;
/// Sections of a run file that an evaluation has too. Its data is `data.eval`.
const EVALUATED: [&str; 6] = ["model_options", "data", "rollout", "reward", "memory", "eval"];

/// Returns the settings of the evaluation, if the reproduction has a table for it: those of the last stage's run file,
/// then those of the table.
///
/// Errors: those of run files.
pub fn evaluation(what: &Reproduction, last: &Loaded) -> Result<Option<LoadedVerb>> {
    let Some(table) = &what.evaluate else { return Ok(None) };
    let run = serde_json::to_value(&last.run).expect("a run file has a JSON form");
    let mut sets = vec![format!("model={}", Value::from(run_dir_path(last).display().to_string()))];
    let parts = EVALUATED.iter().filter_map(|part| Some((part.to_string(), run.get(*part)?.clone())));
    flatten("", &parts.collect(), &mut sets);
    // What is evaluated is no GGUF file, whatever the run's frozen models were.
    sets.retain(|set| !set.starts_with("data.prompts") && !set.starts_with("model_options.quantize"));
    flatten("", table, &mut sets);
    plimsoll_config::load_verb(&[], None, &sets, std::iter::empty()).map(Some)
}

/// Appends `key=value` for each leaf. JSON's texts, numbers and arrays are TOML's; a list of tables is set one by one.
fn flatten(prefix: &str, table: &Map<String, Value>, sets: &mut Vec<String>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(table) => flatten(&key, table, sets),
            Value::Array(tables) if tables.iter().any(Value::is_object) => {
                let tables = tables.iter().enumerate().filter_map(|(i, table)| Some((i, table.as_object()?)));
                tables.for_each(|(i, table)| flatten(&format!("{key}.{i}"), table, sets));
            }
            Value::Null => {}
            _ => sets.push(format!("{key}={value}")),
        }
    }
}

/// Evaluates the last stage, if the reproduction says how, and compares with what is published.
///
/// Errors: `unknown-metric`; those of `eval`.
pub fn result(
    name: &str,
    what: &Reproduction,
    loaded: &[Loaded],
    state: &FolderState,
) -> Result<ReproductionResult> {
    let last = loaded.last().expect("a reproduction has a stage");
    let summaries = loaded.iter().map(|loaded| summary(&run_dir_path(loaded)));
    let summaries = summaries.collect::<Result<Vec<Value>>>()?;
    let summary = summaries.last().expect("a summary each");
    let numbers = match evaluation(what, last)? {
        Some(verb) => plimsoll_infer::eval::eval(&verb.verb, None, None)?,
        None => summary.clone(),
    };
    let PublishedClaim { metric, value: published, tolerance, .. } = &what.claim;
    let value = number(&numbers, metric).ok_or_else(|| no_metric(metric, &numbers))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let device = summary["machine"].as_str().unwrap_or("unknown device");
    Ok(ReproductionResult {
        name: name.into(),
        reproduced: is_within(value, *published, *tolerance),
        metric: metric.clone(),
        value,
        published: *published,
        tolerance: *tolerance,
        date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())),
        machine: format!("{cores} cores, {device}"),
        seconds: summaries.iter().filter_map(|summary| summary["seconds"].as_f64()).sum(),
        differs: state.differs.clone(),
        curve: curve(&run_dir_path(last))?,
    })
}

fn summary(dir: &Path) -> Result<Value> {
    let path = dir.join("summary.json");
    let text = read_small_text(&path, BYTES_MAX).map_err(|err| missing(&path, &err))?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn missing(path: &Path, err: &std::io::Error) -> Error {
    Error::io("reproduction-changed", path, err)
        .hint("a stage that had ended lost its files: give --out another folder, to begin again")
}

/// Returns the number at a path of names with dots between them; a name may have dots itself, as those of sets do.
fn number(numbers: &Value, path: &str) -> Option<f64> {
    let here = numbers.get(path).and_then(Value::as_f64);
    here.or_else(|| {
        let mut dots = path.match_indices('.').map(|(at, _)| at);
        dots.find_map(|at| number(numbers.get(&path[..at])?, &path[at + 1..]))
    })
}

fn no_metric(metric: &str, numbers: &Value) -> Error {
    let there = numbers.as_object().into_iter().flatten();
    let there: Vec<&str> =
        there.filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str()).collect();
    Error::usage("unknown-metric", format!("claim.metric = \"{metric}\": the run measured no such number"))
        .fact(format!("it has {}", there.join(", ")))
        .hint("name one of them, with a dot before a name within")
}

/// Compares with room for the rounding of the two decimal numbers.
fn is_within(value: f64, published: f64, tolerance: f64) -> bool {
    (value - published).abs() <= tolerance + 1e-9
}

/// Returns the evaluations of a run: step, and the mean score of its sets.
fn curve(dir: &Path) -> Result<Vec<(u32, f64)>> {
    let path = dir.join("events.jsonl");
    let text = read_small_text(&path, BYTES_MAX).map_err(|err| missing(&path, &err))?;
    let mut sums: std::collections::BTreeMap<u32, (f64, u32)> = Default::default();
    for line in text.lines().filter(|line| line.starts_with("{\"event\":\"eval\"")) {
        let event: Value = serde_json::from_str(line).unwrap_or(Value::Null);
        let (Some(step), Some(score)) = (event["step"].as_u64(), event["score"].as_f64()) else { continue };
        let (sum, count) = sums.entry(step as u32).or_default();
        (*sum, *count) = (*sum + score, *count + 1);
    }
    Ok(sums.into_iter().map(|(step, (sum, count))| (step, sum / f64::from(count))).collect())
}

/// Returns the first published point from which a run is farther than the tolerance: step, its score, the published.
fn left_at(claim: &PublishedClaim, curve: &[(u32, f64)]) -> Option<(u32, f64, f64)> {
    let both = claim.curve.iter().filter_map(|&(step, published)| {
        curve.iter().find(|(other, _)| *other == step).map(|&(_, own)| (step, own, published))
    });
    both.into_iter().find(|&(_, own, published)| !is_within(own, published, claim.tolerance))
}

/// Returns the closing words, whose last line is the verdict.
pub fn words(claim: &PublishedClaim, result: &ReproductionResult) -> String {
    let mut text = String::new();
    if !result.reproduced {
        for setting in &result.differs {
            text += &format!("other than published: {setting}\n");
        }
        if let Some((step, own, published)) = left_at(claim, &result.curve) {
            let [own, published] = [own, published].map(|score| shown(score, claim.percent));
            text += &format!("left the published curve at step {step}: {own} there, {published} published\n");
        }
    }
    text + &line(claim, result) + "\n"
}

/// Returns `reproduced, 56.9 of 56.7 ± 1.5`.
pub fn line(claim: &PublishedClaim, result: &ReproductionResult) -> String {
    let verdict = if result.reproduced { "reproduced" } else { "not reproduced" };
    let [value, published, tolerance] =
        [result.value, claim.value, claim.tolerance].map(|number| shown(number, claim.percent));
    format!("{verdict}, {value} of {published} ± {tolerance}")
}

/// Returns a number as a claim shows it.
pub fn shown(number: f64, percent: bool) -> String {
    if percent { format!("{:.1}", 100.0 * number) } else { format!("{number:.2}") }
}

/// Returns the day of a time in seconds since 1970, in UTC (the civil-from-days algorithm).
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim() -> PublishedClaim {
        PublishedClaim {
            metric: "score".into(),
            value: 0.567,
            tolerance: 0.015,
            why: "w".into(),
            percent: true,
            curve: vec![(0, 0.364), (5, 0.45), (10, 0.55)],
        }
    }

    fn result_of(value: f64) -> ReproductionResult {
        ReproductionResult {
            name: "x".into(),
            reproduced: is_within(value, 0.567, 0.015),
            metric: "score".into(),
            value,
            published: 0.567,
            tolerance: 0.015,
            date: date(0),
            machine: "m".into(),
            seconds: 1.0,
            differs: ["train.steps = 3, not 10".to_string()].into(),
            curve: vec![(0, 0.37), (5, 0.40), (9, 0.1)],
        }
    }

    #[test]
    fn the_verdict_is_the_last_line() {
        assert_eq!(words(&claim(), &result_of(0.569)), "reproduced, 56.9 of 56.7 ± 1.5\n");
        assert_eq!(
            words(&claim(), &result_of(0.582)),
            "reproduced, 58.2 of 56.7 ± 1.5\n",
            "the edge is within"
        );
        assert_eq!(
            words(&claim(), &result_of(0.512)),
            "other than published: train.steps = 3, not 10\n\
             left the published curve at step 5: 40.0 there, 45.0 published\n\
             not reproduced, 51.2 of 56.7 ± 1.5\n"
        );
        let plain = PublishedClaim { percent: false, ..claim() };
        assert_eq!(line(&plain, &result_of(0.569)), "reproduced, 0.57 of 0.57 ± 0.01");
    }

    #[test]
    fn a_number_is_found_by_its_path_whatever_dots_its_names_have() {
        let numbers = json!({ "eval_after": 0.5, "sets": { "a.jsonl": { "after": 0.25 } }, "best": null });
        for (path, expect) in
            [("eval_after", Some(0.5)), ("sets.a.jsonl.after", Some(0.25)), ("best", None), ("sets.b", None)]
        {
            assert_eq!(number(&numbers, path), expect, "{path}");
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (days, expect) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_783, "2026-11-26")]
        {
            assert_eq!(date(days * 86_400 + 5), expect);
        }
    }
}
