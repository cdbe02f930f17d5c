//! Reads each log of the folders, or each file, by itself, and prints its answer; then how many of them used each
//! sign and each intent. Those of no log come last: what strangers' logs have not used for long belongs in an intent.
//!
//!     cargo run --release -p plimsoll-doctor --example sign_use -- FOLDER|FILE ...
//!
//! Without arguments it reads the examples of the self-test.

use plimsoll_doctor::log::self_test::{examples, sign_uses};
use plimsoll_doctor::log::{Input, Limits, diagnose};
use std::io::Cursor;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut logs: Vec<PathBuf> = Vec::new();
    for path in std::env::args().skip(1).map(PathBuf::from) {
        if path.is_dir() {
            let mut files: Vec<PathBuf> = Vec::new();
            for entry in std::fs::read_dir(&path)? {
                files.push(entry?.path());
            }
            files.sort();
            logs.extend(files.into_iter().filter(|file| file.is_file()));
        } else {
            logs.push(path)
        }
    }
    for log in &logs {
        let found = diagnose(vec![Input::Path(log.clone())], Limits::default())?;
        let answer = found.slug.unwrap_or_else(|| if found.finished { "ended well" } else { "none" }.into());
        let line =
            found.evidence.first().map_or(String::new(), |line| format!("{}: {}", line.line, line.text));
        println!("{}\t{answer}\t{line}", log.display());
    }
    let mut logs: Vec<Input> = logs.into_iter().map(Input::Path).collect();
    if logs.is_empty() {
        logs = examples()
            .map(|example| Input::Stream(example.name.into(), Box::new(Cursor::new(example.text))))
            .collect();
    }
    let read = logs.len();
    let mut uses = sign_uses(logs)?;
    uses.sort_by(|a, b| b.logs.cmp(&a.logs).then(a.class.cmp(&b.class)));
    for sign in &uses {
        println!("{:>5}  {:<28} {}", sign.logs, sign.class, sign.sign);
    }
    let used = uses.iter().filter(|sign| sign.logs > 0).count();
    println!("{used} of {} signs and intents were used by {read} logs", uses.len());
    Ok(())
}
