//! Plan against truth on a card: plans and runs each line of `cards.toml`. What the process held of the card must not
//! exceed the plan, nor be far below it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

const TABLE: &str = include_str!("cards.toml");
/// The plan may exceed the truth by 1 / `SHARE` from `SMALL_BYTES` on, and by `SLACK_BYTES` below that.
const SHARE: u64 = 100;
const SMALL_BYTES: u64 = 1 << 30;
const SLACK_BYTES: u64 = 100 << 20;
/// Steps of a `train` run.
const STEPS: u32 = 2;

/// Measured use of the card by one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub planned: u64,
    pub used: u64,
    /// The card and its driver's kernels, as the program names them.
    pub machine: String,
    /// Duration of the whole command.
    pub seconds: f64,
}

/// Rows by line; a failed line has its error text instead.
pub type Rows = BTreeMap<String, Result<Row, String>>;

impl Row {
    /// Returns how the row breaks the promise; `None` if it holds.
    pub fn fault(&self) -> Option<String> {
        let (planned, used) = (self.planned, self.used);
        let slack = if planned < SMALL_BYTES { SLACK_BYTES } else { planned / SHARE };
        match planned.checked_sub(used) {
            None => Some(format!("{} bytes above the plan", used - planned)),
            Some(above) if above > slack => Some(format!("the plan is {above} bytes above it")),
            Some(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Lines {
    bench: Vec<String>,
    train: Vec<String>,
}

/// Returns every line, and whether it is a `train` run.
fn lines() -> Vec<(String, bool)> {
    let lines: Lines = toml::from_str(TABLE).expect("the table is part of this program");
    let named = |verb: &str, line: &str| (format!("{verb} {line}"), verb == "train");
    let bench = lines.bench.iter().map(|line| named("bench", line));
    bench.chain(lines.train.iter().map(|line| named("train", line))).collect()
}

/// Runs every line that contains `only`. `keep` gets each row at once: time on a card may end before the lines do.
pub fn measure(
    plimsoll: &Path,
    folder: &Path,
    only: &str,
    mut keep: impl FnMut(String, Result<Row, String>) -> Result<(), String>,
) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|err| format!("{}: {err}", folder.display()))?;
    for (index, (line, is_run)) in
        lines().into_iter().enumerate().filter(|(_, (line, _))| line.contains(only))
    {
        let place = folder.join(format!("line-{index:03}"));
        let started = Instant::now();
        let row = make(plimsoll, &place, &line, is_run)
            .map(|row| Row { seconds: started.elapsed().as_secs_f64(), ..row });
        let _ = fs::remove_dir_all(&place);
        match &row {
            Ok(row) => println!("{:>6.1} s  {}  {line}{}", row.seconds, words(row), fault_words(row)),
            Err(why) => println!("  failed  {line}: {why}"),
        }
        keep(line, row)?;
    }
    Ok(())
}

fn words(row: &Row) -> String {
    let share = 100.0 * (row.planned as f64 / row.used.max(1) as f64 - 1.0);
    format!("{:>12} planned  {:>12} used  {share:+.2} %", row.planned, row.used)
}

fn fault_words(row: &Row) -> String {
    row.fault().map_or_else(String::new, |fault| format!("  <- {fault}"))
}

/// Runs one line to its end.
fn make(plimsoll: &Path, place: &Path, line: &str, is_run: bool) -> Result<Row, String> {
    fs::create_dir_all(place).map_err(|err| format!("{}: {err}", place.display()))?;
    let mut command = Command::new(plimsoll);
    // Compiled kernels and notes on the driver stay for the next line, as for a user's next run.
    command.current_dir(place).env("XDG_CACHE_HOME", place.with_file_name("cache"));
    let mut parts = line.split_whitespace().skip(1);
    let (what, shape) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if is_run {
        let write = |name: &str, text: &str| {
            fs::write(place.join(name), text).map_err(|err| format!("{}: {name}: {err}", place.display()))
        };
        write("run.toml", &run_file(what, shape))?;
        write("rows.jsonl", &rows_of_data())?;
        command.args(["train", "run.toml", "--json", "-q"]);
        parts.for_each(|set| {
            command.args(["--set", set]);
        });
    } else {
        command.args(["bench", what, "--model", &format!("random:{shape}"), "--device", "cuda"]);
        command.args(["--repeats", "1", "--json", "-q"]).args(parts);
    }
    let output = command.output().map_err(|err| format!("{}: {err}", plimsoll.display()))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, err.trim()));
    }
    let summary: Value = serde_json::from_str(&out).map_err(|err| format!("{err}: {out}"))?;
    let field = |name: &str| summary[name].as_u64().ok_or_else(|| format!("no {name} in {out}"));
    let machine = summary["machine"].as_str().unwrap_or_default().to_string();
    Ok(Row {
        planned: field("device_planned_bytes")?,
        used: field("device_used_bytes")?,
        machine,
        seconds: 0.0,
    })
}

/// Returns a method's run file: two steps of bytes on random weights.
fn run_file(method: &str, shape: &str) -> String {
    let samples = !matches!(method, "sft" | "dpo" | "reward_model");
    let rollout = if samples { "group_size = 4\nmax_new_tokens = 48\n" } else { "" };
    let reward = if samples { "[[reward]]\nkind = \"hash\"\n" } else { "" };
    format!(
        "method = \"{method}\"\nmodel = \"random:{shape}\"\n[model_options]\ntokenizer = \"bytes\"\n\
         [data]\nprompts = \"rows.jsonl\"\nchat_template = \"none\"\n[rollout]\nprompts_per_step = 16\n{rollout}{reward}\
         [train]\nsteps = {STEPS}\nlearning_rate = 1e-6\n[run]\ndevice = \"cuda\"\ndir = \"out\"\n"
    )
}

/// Returns rows that every method can learn from.
fn rows_of_data() -> String {
    (0..48)
        .map(|row| {
            let prompt = "What comes after it? ".repeat(1 + row % 4);
            format!(
                "{{\"prompt\": \"{prompt}\", \"completion\": \"{row} and more\", \"ground_truth\": \"{row}\", \
                 \"chosen\": \"{row}, of course\", \"rejected\": \"nothing that is known\"}}\n"
            )
        })
        .collect()
}

/// Reads rows measured earlier; drops lines that the table no longer has.
pub fn earlier(text: &str) -> Rows {
    let mut rows: Rows = serde_json::from_str(text).unwrap_or_default();
    let known: Vec<String> = lines().into_iter().map(|(line, _)| line).collect();
    rows.retain(|line, _| known.contains(line));
    rows
}

/// Counts the rows that failed or broke the promise.
pub fn faults(rows: &Rows) -> usize {
    rows.values().filter(|row| row.as_ref().map_or(true, |row| row.fault().is_some())).count()
}

/// Returns the table in Markdown, in the order of `cards.toml`.
pub fn markdown(rows: &Rows) -> String {
    let made: Vec<&Row> = rows.values().flatten().collect();
    let machines: std::collections::BTreeSet<&str> = made.iter().map(|row| row.machine.as_str()).collect();
    let share = |row: &Row| 100.0 * (row.planned as f64 / row.used as f64 - 1.0);
    let large = made.iter().filter(|row| row.planned >= SMALL_BYTES).map(|row| share(row));
    let mut text = format!(
        "# Plan against truth on a card\n\n`cargo xtask truth --device cuda`: what the process held of the card at its end, context and \
         libraries included, and what its plan says. {}.\n\n| | |\n|---|---|\n| lines of the table | {} |\n| made | {} |\n\
         | used more than planned | {} |\n| plans of 1 GiB and more: the most above the truth | {:.2} % |\n| faults | {} |\n\n\
         | what | planned, MiB | used, MiB | plan above it | s |\n|---|---|---|---|---|\n",
        machines.into_iter().collect::<Vec<_>>().join("; "),
        lines().len(),
        made.len(),
        made.iter().filter(|row| row.used > row.planned).count(),
        large.fold(0.0, f64::max),
        faults(rows),
    );
    for (line, _) in lines() {
        text += &match rows.get(&line) {
            None => format!("| `{line}` | | | not made | |\n"),
            Some(Err(_)) => format!("| `{line}` | | | did not end well | |\n"),
            Some(Ok(row)) => format!(
                "| `{line}` | {:.1} | {:.1} | {:+.2} % | {:.1} |\n",
                row.planned as f64 / (1 << 20) as f64,
                row.used as f64 / (1 << 20) as f64,
                share(row),
                row.seconds
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(planned: u64, used: u64) -> Row {
        Row { planned, used, machine: "a card".into(), seconds: 1.0 }
    }

    #[test]
    fn a_plan_below_the_truth_or_far_above_it_is_a_fault() {
        const GIB: u64 = 1 << 30;
        assert_eq!(row(GIB, GIB).fault(), None);
        assert_eq!(row(8 * GIB, 8 * GIB - (80 << 20)).fault(), None);
        assert_eq!(row(GIB - 1, GIB - 1 - (100 << 20)).fault(), None);
        for (planned, used) in
            [(GIB, GIB + 1), (8 * GIB, 8 * GIB - (90 << 20)), (GIB - 1, GIB - 2 - (100 << 20))]
        {
            assert!(row(planned, used).fault().is_some(), "{planned} {used}");
        }
    }

    #[test]
    fn lines_differ_and_those_that_are_gone_are_left_out() {
        let lines = lines();
        assert!(lines.len() >= 60, "{}", lines.len());
        let names: std::collections::BTreeSet<&String> = lines.iter().map(|(line, _)| line).collect();
        assert_eq!(names.len(), lines.len());
        let first = lines[0].0.clone();
        let old = Rows::from([(first.clone(), Ok(row(1, 2))), ("bench gone".into(), Ok(row(1, 1)))]);
        let mut rows = earlier(&serde_json::to_string(&old).expect("it is data"));
        rows.insert(lines[1].0.clone(), Err("words".into()));
        assert_eq!((rows.len(), faults(&rows)), (2, 2));
        rows.insert(first, Ok(row(2, 2)));
        assert_eq!((rows.len(), faults(&rows)), (2, 1));
        assert!(markdown(&rows).contains("| made | 1 |"), "{}", markdown(&rows));
    }
}
