//! The record of runs of the scripts in `.ci`, oldest first: `bench/results/ci.json`.

use crate::git;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fs, io};

/// Path of the record from the root.
pub const PATH: &str = "bench/results/ci.json";

/// A script of `.ci`, by its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Run,
    Full,
}

/// One run of a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub kind: Kind,
    /// Year, month and day, as `2026-11-28`.
    pub date: String,
    /// Short id of the commit that the script ran on.
    pub commit: String,
    pub machine: String,
    pub steps: Vec<Step>,
    pub total_seconds: u64,
    /// True if the last step failed: steps after it did not run.
    pub ended_early: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub step: String,
    pub seconds: u64,
}

/// Reads the record; a repository without one has no runs.
///
/// Errors: a file that cannot be read, or is not a record.
pub fn read(root: &Path) -> io::Result<Vec<Run>> {
    let text = match fs::read_to_string(root.join(PATH)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|err| io::Error::other(format!("{PATH}: {err}")))?,
    };
    serde_json::from_str(&text).map_err(|err| io::Error::other(format!("{PATH}: {err}")))
}

/// Returns the text of the record, with a line for each value, so that differences are short.
pub fn text(runs: &[Run]) -> String {
    let mut bytes = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut writer = serde_json::Serializer::with_formatter(&mut bytes, format);
    runs.serialize(&mut writer).expect("names, numbers and lists are JSON");
    String::from_utf8(bytes).expect("JSON is UTF-8") + "\n"
}

/// Returns the newest run of a kind.
pub fn last(runs: &[Run], kind: Kind) -> Option<&Run> {
    runs.iter().rev().find(|run| run.kind == kind)
}

/// Returns the commit of the newest run that is of an earlier commit of `HEAD`; `None` where there is none.
pub fn landing(runs: &[Run], root: &Path) -> Option<String> {
    let is_earlier = |run: &&Run| git::commits_since(root, &run.commit).is_some_and(|since| since > 0);
    runs.iter().rev().find(is_earlier).map(|run| run.commit.clone())
}

/// Says how old the last full run is, in one line.
pub fn age(runs: &[Run], root: &Path) -> String {
    let Some(run) = last(runs, Kind::Full) else { return "no full run is on record".into() };
    let Run { date, commit, .. } = run;
    let since = match git::commits_since(root, commit) {
        Some(0) => "this commit".to_string(),
        Some(1) => "1 commit before this one".into(),
        Some(since) => format!("{since} commits before this one"),
        None => "which this history does not have".into(),
    };
    let early = if run.ended_early { "; it ended early" } else { "" };
    format!("the last full run: {date} at {commit}, {since}{early}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::tests::run;
    use crate::git::tests::repository;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("plimsoll-ci-record-{}", std::process::id()));
        fs::create_dir_all(folder.join("bench/results")).expect("the folder can be made");
        assert_eq!(read(&folder).expect("no record"), []);
        let runs = [run(Kind::Run, "a1", &[("format", 1)]), run(Kind::Full, "b2", &[("tests: all", 9)])];
        fs::write(folder.join(PATH), text(&runs)).expect("the record can be written");
        assert_eq!(read(&folder).expect("a record"), runs);
        fs::write(folder.join(PATH), "[{}]").expect("the record can be written");
        assert!(read(&folder).expect_err("no record").to_string().starts_with(PATH));
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn a_landing_is_of_an_earlier_commit() {
        let runs = ["HEAD~2", "HEAD~1", "HEAD", "no-commit"].map(|commit| run(Kind::Run, commit, &[]));
        let root = repository("ci-landing", &[&[("a", "1")], &[("a", "2")], &[("a", "3")]]);
        assert_eq!(landing(&runs, &root).as_deref(), Some("HEAD~1"));
        assert_eq!(landing(&runs[2..], &root), None);
        fs::remove_dir_all(&root).expect("the folder can be removed");
    }

    #[test]
    fn the_age_of_the_last_full_run() {
        let root = &repository("ci-age", &[&[("a", "1")], &[("a", "2")], &[("a", "3")]]);
        assert_eq!(age(&[run(Kind::Run, "a1", &[])], root), "no full run is on record");
        let mut full = run(Kind::Full, "HEAD", &[]);
        assert_eq!(
            age(&[full.clone(), run(Kind::Run, "a1", &[])], root),
            "the last full run: 2026-11-28 at HEAD, this commit"
        );
        for (commit, expect) in
            [("HEAD~1", "1 commit before this one"), ("HEAD~2", "2 commits before this one")]
        {
            full.commit = commit.into();
            assert_eq!(
                age(&[full.clone()], root),
                format!("the last full run: 2026-11-28 at {commit}, {expect}")
            );
        }
        (full.commit, full.ended_early) = ("no-commit".into(), true);
        assert_eq!(
            age(&[full], root),
            "the last full run: 2026-11-28 at no-commit, which this history does not have; it ended early"
        );
        fs::remove_dir_all(root).expect("the folder can be removed");
    }
}
