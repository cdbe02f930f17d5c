//! `bench methods`: each method's error against references, and what it takes to teach the built-in model addition.
//!
//! The runs are those of `runs/first.toml` and its like, each in a separate process, so that its peak is its own. Only
//! the method differs, and evaluations are more frequent, which changes no bit.

use super::errors::{MethodError, dpo_error, kto_error, method_error, pairs_error, reward_model_error};
use super::finish;
use plimsoll_algo::method::{METHODS, Method, MethodSpec, SamplingSpec};
use plimsoll_algo::{policy_loss::PolicyLoss, preference::PreferenceLoss};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{check_output_folder, output_error, write_atomic};
use plimsoll_memory::host::Host;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The score that a run must reach.
const SCORE: f64 = 0.9;
/// The interval of evaluations, in steps.
const EVAL_EVERY: &str = "eval.every=5";

/// A row of the table: a method with the settings of its run.
struct Row {
    name: &'static str,
    /// File name in the folder of run files.
    run_file: &'static str,
    sets: Vec<String>,
    formulas: Formulas,
}

/// The formulas whose error is measured.
#[derive(Clone, Copy)]
enum Formulas {
    /// A row of the method table.
    Sampling(Method),
    /// A row of the method table with another loss.
    WithLoss(Method, PolicyLoss),
    Dpo,
    Kto,
    /// A loss of pairs that TRL has, by its key.
    Pairs(&'static str, PreferenceLoss),
    RewardModel,
}

impl Formulas {
    fn error(self) -> Result<MethodError> {
        match self {
            Formulas::Sampling(method) => method_error(&row(method), row(method).loss),
            Formulas::WithLoss(method, loss) => method_error(&row(method), loss),
            Formulas::Dpo => Ok(dpo_error()),
            Formulas::Kto => Ok(kto_error()),
            Formulas::Pairs(key, loss) => Ok(pairs_error(key, loss)),
            Formulas::RewardModel => Ok(reward_model_error()),
        }
    }
}

fn row(method: Method) -> SamplingSpec {
    method.spec().sampling.expect("a method that samples")
}

const FIRST: &str = "first.toml";
const CLIP_HIGHER: PolicyLoss = PolicyLoss::Ppo { clip_low: 0.2, clip_high: 0.28, dual_clip: None };

/// Methods over pairs without a reference, with the settings whose numbers TRL was asked for.
const WITHOUT_REFERENCE: [(&str, PreferenceLoss); 3] = [
    ("simpo", PreferenceLoss::SimPo { beta: 2.0, gamma: 0.5 }),
    ("cpo", PreferenceLoss::Cpo { beta: 0.1, label_smoothing: 0.0, nll_coef: 1.0 }),
    ("orpo", PreferenceLoss::OrPo { beta: 0.1 }),
];

/// True for methods that sample without a teacher: a teacher is another run's checkpoint.
fn has_row(spec: &MethodSpec) -> bool {
    spec.sampling.is_some() && !spec.needs.teacher
}

/// Returns the rows: the methods that sample, in the order of their table, with DAPO among them, and those over pairs.
fn rows() -> Vec<Row> {
    let run = |name, run_file, formulas| Row { name, run_file, sets: Vec::new(), formulas };
    let sampling = METHODS.iter().filter(|spec| has_row(spec)).map(|spec| {
        let (name, formulas) = (spec.method.name(), Formulas::Sampling(spec.method));
        if spec.needs.critic {
            run(name, "first-ppo.toml", formulas)
        } else {
            Row { sets: vec![format!("method={name}")], ..run(name, FIRST, formulas) }
        }
    });
    let mut rows: Vec<Row> = sampling.collect();
    let dapo = [
        "method=grpo",
        "loss.clip_high=0.28",
        "loss.dynamic_sampling=true",
        "rollout.max_new_tokens=8",
        "loss.overlong_buffer=2",
    ];
    let formulas = Formulas::WithLoss(Method::Grpo, CLIP_HIGHER);
    rows.insert(2, Row { sets: dapo.map(String::from).to_vec(), ..run("dapo", FIRST, formulas) });
    rows.push(run("dpo", "first-dpo.toml", Formulas::Dpo));
    for (name, loss) in WITHOUT_REFERENCE {
        let sets = vec![format!("method={name}")];
        rows.push(Row { sets, ..run(name, "first-pairs.toml", Formulas::Pairs(name, loss)) });
    }
    let larger = ["method=kto", "rollout.prompts_per_step=128", "train.steps=300"];
    rows.push(Row { sets: larger.map(String::from).to_vec(), ..run("kto", "first-dpo.toml", Formulas::Kto) });
    rows.push(run("reward_model", "first-reward-model.toml", Formulas::RewardModel));
    rows
}

/// Makes the table: `runs` is the folder with the run files, `only` restricts the methods, and `methods.json` and
/// `methods.md` are written to `out`, which is checked before the first run.
///
/// Errors: `run-file-missing`, `unknown-method`, `output-unwritable`, `bench-run-failed`, `disk-full`, `write-failed`.
pub fn methods(runs: &Path, only: &[String], out: Option<&Path>) -> Result<Value> {
    let all = rows();
    let is_chosen = |row: &&Row| only.is_empty() || only.iter().any(|name| name == row.name);
    let chosen: Vec<&Row> = all.iter().filter(is_chosen).collect();
    if let Some(name) = only.iter().find(|name| all.iter().all(|row| row.name != **name)) {
        let names = all.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        return Err(Error::usage("unknown-method", format!("`{name}` is not a row of the table"))
            .hint(format!("the rows are {names}")));
    }
    out.map_or(Ok(()), check_output_folder)?;
    chosen.iter().try_for_each(|row| check_run_file(&runs.join(row.run_file)))?;
    let work = std::env::temp_dir().join(format!("plimsoll-methods-{}", std::process::id()));
    let rows: Result<Vec<Value>> = chosen.into_iter().map(|row| measure(row, runs, &work)).collect();
    // The runs' directories are not needed any more, whatever happened.
    let _ = fs::remove_dir_all(&work);
    let mut result = json!({ "bench": "methods", "score": SCORE, "rows": rows? });
    let host = Host::this();
    result["peak_bytes"] = json!(host.rss().peak);
    let result = finish(result, &(plimsoll_devices::host().probe)()?.name, host.threads());
    if let Some(out) = out {
        let text = serde_json::to_string_pretty(&result).expect("plain data") + "\n";
        fs::create_dir_all(out).map_err(|err| output_error(out, &err))?;
        write_atomic(&out.join("methods.json"), text.as_bytes())?;
        write_atomic(&out.join("methods.md"), page(&result).as_bytes())?;
    }
    Ok(result)
}

/// Requires the run file of a row before any row is trained.
fn check_run_file(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        found => {
            let what = found.map_or_else(|err| err.to_string(), |_| "not a file".into());
            Err(Error::usage("run-file-missing", format!("{}: {what}", path.display()))
                .hint("give --runs the folder with first.toml, first-ppo.toml and the others, `runs` of the repository"))
        }
    }
}

/// Largest log of a run of a row, which has some hundred steps.
const EVENTS_BYTES_MAX: u64 = 1 << 30;

/// Measures one row: the error of its formulas, and its run.
fn measure(row: &Row, runs: &Path, work: &Path) -> Result<Value> {
    let dir = work.join(row.name);
    let summary = train(row, &runs.join(row.run_file), &dir)?;
    let events = read_small_text(&dir.join("events.jsonl"), EVENTS_BYTES_MAX).unwrap_or_default();
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let reached = events.filter(|event| event["event"] == "eval").find(|event| {
        let pairs = &event["pairs"]["accuracy"];
        let score = if pairs.is_number() { pairs } else { &event["score"] };
        score.as_f64().is_some_and(|score| score >= SCORE)
    });
    let error = row.formulas.error()?;
    // Methods that learn from pairs are judged by pairs.
    let score = |pairs: &str, eval: &str| match &summary[pairs] {
        Value::Object(pairs) => pairs["accuracy"].clone(),
        _ => summary[eval].clone(),
    };
    let of = |key: &str| reached.as_ref().map_or(Value::Null, |event| event[key].clone());
    Ok(json!({
        "method": row.name,
        "run": command_line(row),
        "error": error.largest,
        "against": error.against,
        "score_before": score("pairs_before", "eval_before"),
        "score_after": score("pairs_after", "eval_after"),
        "steps": summary["steps"],
        "steps_to_score": of("step"),
        "seconds_to_score": of("seconds_since_start"),
        "seconds": summary["seconds"],
        "planned_bytes": summary["rss_planned_bytes"],
        "peak_bytes": summary["rss_peak_bytes"],
        "logprob_mismatch_max": summary["logprob_mismatch_max"],
    }))
}

/// Returns the command that a user would type.
fn command_line(row: &Row) -> String {
    let sets = row.sets.iter().map(|set| format!(" --set {set}"));
    format!("plimsoll train runs/{}{}", row.run_file, sets.collect::<String>())
}

fn train(row: &Row, run_file: &Path, dir: &Path) -> Result<Value> {
    let failed = |what: String| {
        Error::new("bench-run-failed", format!("{}: {what}", command_line(row)))
            .hint("run that command by itself: it says what is wrong")
    };
    let program = std::env::current_exe().map_err(|err| failed(err.to_string()))?;
    let dir = format!("run.dir={}", dir.display());
    let sets = row.sets.iter().map(String::as_str).chain([EVAL_EVERY, &dir]).flat_map(|set| ["--set", set]);
    let output = Command::new(program)
        .arg("train")
        .arg(run_file)
        .args(sets)
        .arg("--json")
        .stdin(Stdio::null())
        .output()
        .map_err(|err| failed(err.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().find(|line| line.starts_with("error[")).unwrap_or("it says nothing");
        return Err(failed(format!("{}: {error}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|err| failed(format!("its summary: {err}")))
}

/// Formats the table as a page.
fn page(result: &Value) -> String {
    let mut text = format!(
        "# Methods\n\n\
         Machine: {}, {} threads. Made by `plimsoll bench methods --out bench/results`: every row is a run of its own process, by\n\
         the command in the last column and `--set {EVAL_EVERY}`, on the built-in model (0.9 M parameters) learning addition. The score is\n\
         the share of held-out sums that it gets right, and of held-out pairs that it ranks right where it learns from pairs.\n\
         Error: the largest |ours - theirs| / (|theirs| + 0.01) over advantages, loss and gradient, against OpenRLHF 0.11.2 (golden)\n\
         or, where that has no numbers, against a twin in f64; 2e-5 is the bound. Seconds count from the start of the process.\n\n\
         | method | error | against | score before | after | steps to {:.0} % | seconds to {:.0} % | seconds in all | planned MiB | peak MiB | run |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        result["machine"].as_str().unwrap_or_default(),
        result["threads"],
        100.0 * SCORE,
        100.0 * SCORE,
    );
    for row in result["rows"].as_array().into_iter().flatten() {
        text += &line(row);
    }
    text
}

fn line(row: &Value) -> String {
    let number = |key: &str, digits: usize| {
        row[key].as_f64().map_or("-".to_string(), |value| format!("{value:.digits$}"))
    };
    let error = row["error"].as_f64().map_or("-".to_string(), |error| format!("{error:.1e}"));
    let mib = |key: &str| {
        row[key].as_u64().map_or("-".to_string(), |bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)))
    };
    format!(
        "| {} | {error} | {} | {} | {} | {} | {} | {} | {} | {} | `{}` |\n",
        row["method"].as_str().unwrap_or_default(),
        row["against"].as_str().unwrap_or("-"),
        number("score_before", 3),
        number("score_after", 3),
        number("steps_to_score", 0),
        number("seconds_to_score", 1),
        number("seconds", 1),
        mib("planned_bytes"),
        mib("peak_bytes"),
        row["run"].as_str().unwrap_or_default(),
    )
}

/// Formats the table for a terminal.
pub fn words(result: &Value) -> String {
    page(result).lines().filter(|line| line.starts_with('|')).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_that_samples_has_a_row() {
        let names: Vec<&str> = rows().iter().map(|row| row.name).collect();
        for spec in METHODS.iter().filter(|spec| has_row(spec)) {
            assert!(names.contains(&spec.method.name()), "{}", spec.method);
        }
        assert_eq!(names[..4], ["grpo", "dr_grpo", "dapo", "rloo"]);
    }

    #[test]
    fn a_row_without_numbers_is_still_a_row() {
        let empty = line(&json!({ "method": "x", "run": "y" }));
        assert_eq!(empty, "| x | - | - | - | - | - | - | - | - | - | `y` |\n");
    }

    #[test]
    fn a_run_file_that_is_not_there_is_named_before_any_run() {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, words) in
            [(folder.path().join("first.toml"), "No such file"), (folder.path().into(), "not a file")]
        {
            let error = check_run_file(&path).expect_err(words);
            assert_eq!(error.slug, "run-file-missing");
            assert!(error.message.contains(words), "{error}");
        }
        let path = folder.path().join("first.toml");
        fs::write(&path, "").expect("a file");
        assert!(check_run_file(&path).is_ok());
    }

    #[test]
    fn the_table_for_a_terminal_is_that_of_the_page() {
        let rows = json!([{ "method": "grpo", "run": "plimsoll train x", "error": 1.25e-7, "planned_bytes": 3 << 19 }]);
        let result = json!({ "machine": "avx2", "threads": 2, "rows": rows });
        let (page, words) = (page(&result), words(&result));
        assert!(page.starts_with("# Methods") && page.contains(&words));
        assert_eq!(words.lines().count(), 3, "{words}");
        assert!(words.contains("| grpo | 1.2e-7 | - |") && words.contains("| 1.5 |"), "{words}");
    }

    #[test]
    fn the_command_of_a_row_has_its_settings() {
        let named = |name| rows().into_iter().find(|row| row.name == name).expect("a row");
        assert_eq!(command_line(&named("dpo")), "plimsoll train runs/first-dpo.toml");
        let kto = command_line(&named("kto"));
        assert!(kto.contains("--set method=kto --set rollout.prompts_per_step=128"), "{kto}");
    }
}
