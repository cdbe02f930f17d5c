//! `grade --reward KIND FILE`: scores given responses with a reward; scores go to stdout, agreement and disagreements to
//! stderr.

use crate::output::{self, Out};
use plimsoll_base::{Error, Result};
use plimsoll_reward::{Agreement, Disagreement, GraderAgreement, grade_jsonl};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
A line of FILE has `response` and `ground_truth`; `grader` overrides --reward; `correct` is compared with the score,
and each line where they differ is listed with the reason.

Example:
  plimsoll grade --reward math answers.jsonl")]
pub struct Args {
    /// Any kind of a [[reward]] table, such as math, gsm8k, countdown, code or python:FILE.py:FUNCTION.
    #[arg(long, value_name = "KIND")]
    reward: String,
    /// JSON lines; `-` is stdin.
    file: PathBuf,
    /// Print JSON lines on stdout, which is the default.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, quiet: bool) -> Result<ExitCode> {
    let reader: Box<dyn BufRead> = match args.file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(open(&args.file)?)),
    };
    let mut out = BufWriter::new(Out);
    let graded = grade_jsonl(reader, &args.reward, &mut out);
    // Scores before a bad line are valid and are shown.
    let flushed = out.flush();
    let agreement = graded?;
    flushed.map_err(|err| {
        Error::new("io-error", format!("writing the scores: {err}")).hint("check where stdout goes")
    })?;
    output::note(quiet, &words(&agreement));
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<File> {
    let named = |err: &std::io::Error| {
        Error::io("data-missing", path, err).hint("give the path of a JSONL file, or `-` for stdin")
    };
    let file = File::open(path).map_err(|err| named(&err))?;
    match file.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::new("data-missing", format!("{} is a directory", path.display()))
                .hint("give the path of a JSONL file, or `-` for stdin"))
        }
        _ => Ok(file),
    }
}

fn words(agreement: &Agreement) -> String {
    let mut lines = vec![format!("{} graded", agreement.cases)];
    lines.extend(agreement.graders.iter().filter(|entry| entry.labelled > 0).map(grader_words));
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
    let percent = 100.0 * *agreed as f64 / *labelled as f64;
    format!(
        "{grader}: {agreed} of {labelled} agree ({percent:.1} %); {false_accepts} wrong ones accepted, {false_rejects} right ones rejected; {disputed} disputed left out"
    )
}
