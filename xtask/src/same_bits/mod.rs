//! `cargo xtask same-bits OLD NEW`: runs small cases with two binaries and compares what they leave, by SHA-256.
//!
//! It owns the verdict on "behaviour-preserving": plan, weights, samples, events, checkpoints and summaries of each
//! case. It does not compare clocks, rates and memory readings, which `readings.rs` lists with reasons.

pub mod artefacts;
mod cases;
mod play;
mod readings;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use artefacts::{Artefacts, Kind};
use cases::{CASES, Case};

/// Usage, shown when the command line is wrong.
pub const USAGE: &str =
    "cargo xtask same-bits OLD_BINARY NEW_BINARY [--only NAME[,NAME]] [--except TEXT] [--json FILE] [--list]";

#[derive(Default)]
struct Options {
    binaries: Vec<PathBuf>,
    /// Names of cases; all if empty.
    only: Vec<String>,
    /// Leaves out artefacts whose name contains one of these, for an intended change.
    except: Vec<String>,
    json: Option<PathBuf>,
    list: bool,
}

/// A case under both binaries, or why it did not run.
struct Row {
    name: &'static str,
    sides: Result<[Artefacts; 2], String>,
}

/// Runs the command; `None` if the arguments are not its own.
pub fn run(arguments: &[String], root: &Path) -> Option<ExitCode> {
    let options = options(arguments)?;
    if options.list {
        CASES.iter().for_each(|case| println!("{:<20} {}", case.name, case.what));
        return Some(ExitCode::SUCCESS);
    }
    let chosen: Vec<&Case> = CASES
        .iter()
        .filter(|case| options.only.is_empty() || options.only.iter().any(|name| name == case.name))
        .collect();
    if chosen.is_empty() || options.binaries.len() != 2 {
        return None;
    }
    let (started, mut rows) = (Instant::now(), Vec::new());
    println!("{}", header());
    for case in chosen {
        let row = Row { name: case.name, sides: sides(case, &options, root) };
        println!("{}", line(&row));
        rows.push(row);
    }
    eprintln!("same-bits: {} cases in {:.0} s", rows.len(), started.elapsed().as_secs_f64());
    if let Some(path) = &options.json
        && let Err(err) = std::fs::write(path, format!("{:#}\n", digests(&rows)))
    {
        eprintln!("same-bits: {}: {err}", path.display());
        return Some(ExitCode::from(2));
    }
    Some(ExitCode::from(verdict(&rows)))
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options::default();
    let list = |text: &String| text.split(',').map(str::to_string).collect::<Vec<_>>();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--only" => options.only.extend(list(words.next()?)),
            "--except" => options.except.extend(list(words.next()?)),
            "--json" => options.json = Some(PathBuf::from(words.next()?)),
            "--list" => options.list = true,
            flag if flag.starts_with('-') => return None,
            path => options.binaries.push(std::path::absolute(path).ok()?),
        }
    }
    Some(options)
}

/// Plays a case with the old and then the new binary, in the same folder.
fn sides(case: &Case, options: &Options, root: &Path) -> Result<[Artefacts; 2], String> {
    let folder = std::env::temp_dir().join(format!("plimsoll-same-bits-{}", std::process::id()));
    let [old, new] = &options.binaries[..] else { return Err("two binaries are needed".into()) };
    let side = |binary: &Path, name: &str| {
        let result =
            play::play(case, old, binary, &folder, root).map_err(|err| format!("{name} binary: {err}"));
        let _ = std::fs::remove_dir_all(&folder);
        let except = case.except.iter().copied().chain(options.except.iter().map(String::as_str));
        result.map(|artefacts| artefacts.without(except))
    };
    Ok([side(old, "old")?, side(new, "new")?])
}

/// Returns the exit code: 2 if a case did not run, else 1 if one differs, else 0.
fn verdict(rows: &[Row]) -> u8 {
    let differs = |row: &Row| matches!(&row.sides, Ok([old, new]) if old != new);
    match rows {
        _ if rows.iter().any(|row| row.sides.is_err()) => 2,
        _ => u8::from(rows.iter().any(differs)),
    }
}

fn header() -> String {
    Kind::ALL.iter().fold(format!("{:<20}", "case"), |text, kind| format!("{text} | {:<11}", kind.name()))
}

/// Returns the row of the table, with a line for each kind that differs.
fn line(row: &Row) -> String {
    let [old, new] = match &row.sides {
        Ok(sides) => sides,
        Err(why) => return format!("{:<20} | did not run: {why}", row.name),
    };
    let (mut text, mut below) = (format!("{:<20}", row.name), String::new());
    for kind in Kind::ALL {
        let differences = artefacts::differences(old.of(kind), new.of(kind));
        let word = match (old.of(kind).is_empty(), differences.first()) {
            (_, Some(_)) => "DIFFERS",
            (true, None) => "-",
            (false, None) => "=",
        };
        text += &format!(" | {word:<11}");
        if let Some(first) = differences.first() {
            below += &format!("\n    {} ({} differ): {first}", kind.name(), differences.len());
        }
    }
    text + &below
}

/// Returns the digest of each kind of each case under both binaries.
fn digests(rows: &[Row]) -> serde_json::Value {
    let case = |row: &Row| match &row.sides {
        Err(why) => serde_json::json!({ "did_not_run": why }),
        Ok([old, new]) => Kind::ALL
            .iter()
            .map(|&kind| {
                let digests = serde_json::json!({"old": old.digest(kind), "new": new.digest(kind)});
                (kind.name().to_string(), digests)
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
    };
    rows.iter().map(|row| (row.name.to_string(), case(row))).collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artefacts(text: &str) -> Artefacts {
        let mut artefacts = Artefacts::default();
        artefacts.insert(Kind::Weights, "run/model.safetensors", text.to_string());
        artefacts.insert(Kind::Summary, "run/summary.json steps", "4".to_string());
        artefacts
    }

    fn row(old: &str, new: &str) -> Row {
        Row { name: "case", sides: Ok([artefacts(old), artefacts(new)]) }
    }

    #[test]
    fn a_changed_artefact_is_a_difference() {
        assert_eq!(verdict(&[row("a", "a")]), 0);
        assert!(!line(&row("a", "a")).contains("DIFFERS"));
        assert_eq!(verdict(&[row("a", "a"), row("a", "b")]), 1);
        let text = line(&row("a", "b"));
        assert!(
            text.contains("DIFFERS") && text.contains("weights (1 differ): run/model.safetensors"),
            "{text}"
        );
        let failed = Row { name: "f", sides: Err("exit 1".into()) };
        assert_eq!(verdict(&[row("a", "b"), failed]), 2);
        let json = digests(&[row("a", "b")]);
        assert_ne!(json["case"]["weights"]["old"], json["case"]["weights"]["new"]);
        assert_eq!(json["case"]["summary"]["old"], json["case"]["summary"]["new"]);
    }

    #[test]
    fn arguments_are_read_and_others_refused() {
        let read = |words: &[&str]| options(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        let found = read(&["/a", "--only", "x,y", "/b", "--json", "f"]).expect("they are its own");
        assert_eq!(found.binaries, [Path::new("/a"), Path::new("/b")]);
        assert_eq!((found.only, found.json), (vec!["x".into(), "y".into()], Some("f".into())));
        assert!(read(&["--only"]).is_none() && read(&["--other", "a", "b"]).is_none());
    }

    #[test]
    fn cases_have_names_of_their_own() {
        let names: std::collections::BTreeSet<&str> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.len() >= 14);
    }
}
