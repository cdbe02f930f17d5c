//! `bench mismatch`: what it costs if the policy that samples is not quite the one that is trained, as where engine and
//! a trainer are two programs. Here they are one, so the difference can be put on, in any size.
//!
//! The sampler reads its hidden numbers with noise (`SamplerNoise`), draws from what follows and records it. The
//! trainer computes the log-probabilities of the same tokens without noise. Each case trains the same run, without a
//! correction and with truncated weights. A case is a row of `cases.rs`.

mod cases;
mod page;
mod run;

use super::finish;
use cases::{CASES, COLLAPSED, Case, Kind};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{check_output_folder, output_error, write_atomic};
use plimsoll_memory::host::Host;
use run::{Course, Point};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub use cases::{MismatchOptions, cases};
pub use page::words;

/// Trains every case, and writes `mismatch.json`, `mismatch.md` and `mismatch.svg` to `out`.
///
/// Errors: those of the run file and of training; `bench-run-failed` without held-out prompts.
pub fn mismatch(options: &MismatchOptions, out: Option<&Path>) -> Result<Value> {
    out.map_or(Ok(()), check_output_folder)?;
    let chosen = |case: &&Case| options.only.is_empty() || options.only.iter().any(|name| name == case.name);
    if !options.join.is_empty() {
        return write(join(&options.join)?, out);
    }
    let (mut rows, mut machine) = (Vec::new(), String::new());
    for case in CASES.iter().filter(chosen) {
        let corrections: &[bool] = if case.kind == Kind::Exact { &[false] } else { &[false, true] };
        for &corrects in corrections {
            let courses: Result<Vec<Course>> =
                (0..options.seeds).map(|seed| run::train(options, case.kind, corrects, seed)).collect();
            let courses = courses?;
            machine = courses.first().map(|course| course.machine.clone()).unwrap_or_default();
            rows.push(row(case, corrects, &courses));
        }
    }
    let command = command_line(options);
    let result = json!({ "bench": "mismatch", "rows": rows, "steps": options.steps, "seeds": options.seeds, "command": command });
    write(finish(result, &machine, Host::this().threads()), out)
}

/// Largest file of a result.
const RESULT_BYTES_MAX: u64 = 64 << 20;

/// Puts results of the same run with other cases together.
///
/// Errors: `bench-run-failed` of a file that is no result, or one of another run.
fn join(files: &[PathBuf]) -> Result<Value> {
    let bad = |path: &Path, what: &str| {
        Error::usage("bench-run-failed", format!("{}: {what}", path.display()))
            .hint("join files that `bench mismatch --case ... --out` wrote, with the same run and settings")
    };
    let mut parts: Vec<Value> = Vec::with_capacity(files.len());
    for path in files {
        let text = read_small_text(path, RESULT_BYTES_MAX).map_err(|err| bad(path, &err.to_string()))?;
        let part: Value = serde_json::from_str(&text).map_err(|err| bad(path, &err.to_string()))?;
        if part["bench"] != "mismatch" || !part["rows"].is_array() {
            return Err(bad(path, "no result of `bench mismatch`"));
        }
        if let Some(first) = parts.first()
            && ["command", "machine", "threads"].iter().any(|key| first[*key] != part[*key])
        {
            return Err(bad(path, &format!("another run than in {}", files[0].display())));
        }
        parts.push(part);
    }
    let mut rows: Vec<Value> =
        parts.iter().flat_map(|part| part["rows"].as_array().into_iter().flatten()).cloned().collect();
    let place = |row: &Value| CASES.iter().position(|case| row["case"] == case.name);
    rows.sort_by_key(|row| (place(row), row["corrects"] == true));
    let mut result = parts.swap_remove(0);
    result["rows"] = rows.into();
    Ok(result)
}

fn write(result: Value, out: Option<&Path>) -> Result<Value> {
    if let Some(out) = out {
        let text = serde_json::to_string_pretty(&result).expect("plain data") + "\n";
        fs::create_dir_all(out).map_err(|err| output_error(out, &err))?;
        write_atomic(&out.join("mismatch.json"), text.as_bytes())?;
        write_atomic(&out.join("mismatch.md"), page::page(&result).as_bytes())?;
        write_atomic(&out.join("mismatch.svg"), page::picture(&result).as_bytes())?;
    }
    Ok(result)
}

fn command_line(options: &MismatchOptions) -> String {
    let sets: String = options.sets.iter().map(|set| format!(" --set {set}")).collect();
    let MismatchOptions { run, steps, seeds, .. } = options;
    format!("plimsoll bench mismatch {} --steps {steps} --seeds {seeds}{sets}", run.display())
}

/// Sums up the runs of a case.
fn row(case: &Case, corrects: bool, courses: &[Course]) -> Value {
    let each =
        |number: fn(&Course) -> Option<f64>| -> Vec<Option<f64>> { courses.iter().map(number).collect() };
    let points = |number: fn(&Point) -> f64| -> Vec<f64> {
        let steps = courses.iter().map(|course| course.points.len()).max().unwrap_or(0);
        let mean = |n: usize| {
            let there = courses.iter().filter_map(|course| course.points.get(n)).map(number);
            there.clone().sum::<f64>() / there.count().max(1) as f64
        };
        (0..steps).map(mean).collect()
    };
    json!({
        "case": case.name,
        "corrects": corrects,
        "difference": each(|course| Some(course.difference)),
        "largest_difference": each(|course| Some(course.largest_difference)),
        "best": each(Course::best),
        "last": each(|course| course.points.last().map(|point| point.score)),
        "collapsed_at": each(|course| course.collapsed_at(COLLAPSED).map(f64::from)),
        "ended": courses.iter().map(|course| course.ended.clone()).collect::<Vec<_>>(),
        "seconds": each(|course| Some(course.seconds)),
        "steps": points(|point| f64::from(point.step)),
        "scores": points(|point| point.score),
    })
}

#[cfg(test)]
mod tests;
