//! `grade --reward KIND FILE`: scores given responses; scores go to stdout, agreement and disagreements to stderr.

use crate::output::{self, Out};
use plimsoll_base::{Error, NamedFile, Result};
use plimsoll_reward::{Agreement, Disagreement, GraderAgreement, Grading, RESPONSE, RewardSpec};
use plimsoll_text::{each_line_of, each_row_of};
use serde_json::{Map, Value};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
A row of FILE has `response` and `ground_truth`, or other columns that flags name; `grader` overrides --reward; `correct`
is compared with the score, and each row where they differ is listed with the reason.

Examples:
  plimsoll grade --reward math answers.jsonl
  plimsoll grade --reward gsm8k --response-column completion --answer-column answer completions.parquet")]
pub struct Args {
    /// Any kind of a [[reward]] table, such as math, gsm8k, countdown, code or python:FILE.py:FUNCTION.
    #[arg(long, value_name = "KIND")]
    reward: String,
    /// The column with the response, a text or messages; TRL's files have `completion`.
    #[arg(long, value_name = "NAME", default_value = RESPONSE)]
    response_column: String,
    /// The column with the answer.
    #[arg(long, value_name = "NAME", default_value = "ground_truth")]
    answer_column: String,
    /// JSON lines or Parquet; `-` is JSON lines from stdin.
    file: PathBuf,
    /// Print JSON lines on stdout, which is the default.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let spec =
        RewardSpec { answer_column: args.answer_column.clone(), ..RewardSpec::of_kind(args.reward.as_str()) };
    let mut grading = Grading::new(spec, &args.response_column)?;
    let mut out = BufWriter::new(Out);
    let mut say =
        |reply: Value| writeln!(out, "{}", output::json_text(&reply)).map_err(|err| unwritten(&err));
    let graded = each_row(&args.file, |line, row| grading.grade(line, row, &mut say));
    // Scores before a bad row are valid and are shown.
    let finished = grading.finish(&mut say);
    let flushed = out.flush();
    graded?;
    flushed.map_err(|err| unwritten(&err))?;
    output::note(quiet, &words(&finished?));
    Ok(ExitCode::SUCCESS)
}

/// Calls `visit` with each row of a file, of stdin or of a pipe, and its number.
fn each_row(path: &Path, visit: impl FnMut(usize, Map<String, Value>) -> Result<()>) -> Result<()> {
    if path.as_os_str() == "-" {
        return each_line_of(Path::new("stdin"), std::io::stdin().lock(), visit);
    }
    let hint = "give the path of a JSONL or Parquet file, or `-` for stdin";
    let missing = |err: std::io::Error| Error::io("data-missing", path, &err).hint(hint);
    let metadata = std::fs::metadata(path).map_err(missing)?;
    match (metadata.is_dir(), metadata.is_file()) {
        (true, _) => Err(Error::new("data-missing", format!("{} is a directory", path.display())).hint(hint)),
        (_, true) => each_row_of(path, visit),
        (_, false) => each_line_of(path, BufReader::new(NamedFile::open(path).map_err(missing)?), visit),
    }
}

fn unwritten(err: &std::io::Error) -> Error {
    Error::new("io-error", format!("writing the scores: {err}")).hint("check where stdout goes")
}

fn words(agreement: &Agreement) -> String {
    let mut lines = vec![format!("{} graded", agreement.cases)];
    lines.extend(
        agreement.graders.iter().filter(|entry| entry.labelled + entry.unscored > 0).map(grader_words),
    );
    lines.extend(agreement.disagreements.iter().map(disagreement_words));
    lines.join("\n")
}

fn disagreement_words(differs: &Disagreement) -> String {
    let Disagreement { line, id, grader, correct, why } = differs;
    let id = id.as_ref().map_or(String::new(), |id| format!(" ({id})"));
    let does = if *correct { "refuses a right answer" } else { "accepts a wrong answer" };
    format!("line {line}{id}: {grader} {does}: {why}")
}

fn grader_words(entry: &GraderAgreement) -> String {
    let GraderAgreement { grader, labelled, agreed, false_accepts, false_rejects, disputed, .. } = entry;
    let percent = 100.0 * *agreed as f64 / (*labelled).max(1) as f64;
    let unscored = match entry.unscored {
        0 => String::new(),
        rows => format!(", {rows} without a score"),
    };
    format!(
        "{grader}: {agreed} of {labelled} agree ({percent:.1} %); {false_accepts} wrong ones accepted, \
         {false_rejects} right ones rejected{unscored}; {disputed} disputed left out"
    )
}
