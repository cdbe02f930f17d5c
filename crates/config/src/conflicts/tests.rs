//! Every row of the table refuses the run file of its example by name, and no other pair of settings is refused without
//! a reason that is named here.

use super::setting::Setting;
use super::*;
use crate::load::{filled, load_text};
use crate::validate;
use plimsoll_base::Error;
use std::collections::BTreeSet;
use std::path::Path;

const BASE: &str = r#"method = "grpo"
model = "builtin:nano"
[data]
prompts = "builtin:addition"
[rollout]
prompts_per_step = 32
group_size = 8
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 60
learning_rate = 1e-4
micro_batch_tokens = "auto"
"#;

/// Errors of no row that pairs of examples run into: their slug, and words of their message.
const OTHERWISE: &[(&str, &str)] = &[
    ("missing-key", "`distill.teacher` is missing"),
    ("missing-key", "`environment.env` is missing"),
    ("missing-key", "`reward` is missing"),
    ("contradictory-keys", "train.mini_batch = 64 does not divide"),
];

/// Threads that look at pairs.
const THREADS: usize = 4;

/// A run file as text, with what is set on top.
struct Example {
    text: String,
    sets: Vec<String>,
}

impl Example {
    /// Returns the small run file with all that `examples` say; none if two of them say different things.
    fn of(examples: &[&[&str]]) -> Option<Example> {
        let mut base: toml::Table = toml::from_str(BASE).expect("TOML");
        let mut sets = BTreeMap::<&str, &str>::new();
        for line in examples.concat() {
            match line.strip_prefix('-').map(|key| key.split_once('.')) {
                Some(Some((section, key))) => {
                    base.get_mut(section).and_then(toml::Value::as_table_mut).and_then(|of| of.remove(key));
                }
                Some(None) => _ = base.remove(&line[1..]),
                None => {
                    let (key, value) = line.split_once('=').expect("key=value");
                    if sets.insert(key, value).is_some_and(|old| old != value) {
                        return None;
                    }
                }
            }
        }
        let text = toml::to_string(&base).expect("TOML");
        Some(Example { text, sets: sets.iter().map(|(key, value)| format!("{key}={value}")).collect() })
    }

    /// Returns the error of a file that no row refuses.
    fn refused_otherwise(&self) -> Option<Error> {
        let (path, none) = (Path::new("x.toml"), std::iter::empty);
        let (run, at) = match filled(self.text.clone(), path, &self.sets, none()) {
            Ok((run, at, _)) => (run, at),
            Err(error) => return Some(error),
        };
        let case = Case { run: &run, at: &at };
        let by_row = |row: &Conflict| row.setting.key_in(&case).and(row.with.key_in(&case)).is_some();
        if rows().any(by_row) { None } else { validate::run_file(&run, &at).err() }
    }

    /// Returns the rows that refuse it, and the error that it is refused with.
    fn load(&self) -> (Vec<&'static Conflict>, Option<Error>) {
        let path = Path::new("x.toml");
        let none = || std::iter::empty();
        let error = load_text(self.text.clone(), path, &self.sets, none()).err();
        let Ok((run, at, _)) = filled(self.text.clone(), path, &self.sets, none()) else {
            return (Vec::new(), error);
        };
        let case = Case { run: &run, at: &at };
        (rows().filter(|row| row.error(&case).is_some()).collect(), error)
    }

    /// True if a setting is so in it.
    fn has(&self, setting: &Setting) -> bool {
        let found = filled(self.text.clone(), Path::new("x.toml"), &self.sets, std::iter::empty());
        found.is_ok_and(|(run, at, _)| setting.key_in(&Case { run: &run, at: &at }).is_some())
    }
}

fn name(row: &Conflict) -> String {
    format!("{} with {}", row.setting.name, row.with.name)
}

/// Returns what is wrong with a row: its example must be refused by it, and each setting alone by none or by another.
fn fault(row: &'static Conflict) -> Option<String> {
    let both = Example::of(&[row.setting.example, row.with.example])?;
    let (found, error) = both.load();
    let Some(error) = error else { return Some(format!("{}: nothing refuses {:?}", name(row), both.sets)) };
    let is_this = |other: &&Conflict| std::ptr::eq::<Conflict>(*other, row);
    if !found.first().is_some_and(is_this) || error.slug != row.slug || !error.message.contains(row.why) {
        let rows: Vec<String> = found.into_iter().map(name).collect();
        return Some(format!("{}: {:?} is refused by {rows:?}: {error}", name(row), both.sets));
    }
    let mut keys =
        [row.setting.key, row.with.key].into_iter().map(|key| key.split(['*']).next().unwrap_or(key));
    if let Some(key) = keys.find(|key| !error.message.contains(key.trim_end_matches('.'))) {
        return Some(format!("{}: `{key}` is not named: {error}", name(row)));
    }
    if error.hints.is_empty() || error.hints[0].contains('{') && !row.hint.contains("{prompt}") {
        return Some(format!("{}: no hint: {error}", name(row)));
    }
    for (alone, other) in [(&row.setting, &row.with), (&row.with, &row.setting)] {
        let example = Example::of(&[alone.example]).expect("one setting says one thing");
        let (found, _) = example.load();
        if found.iter().any(is_this) && !example.has(other) {
            return Some(format!("{}: refused without {}", name(row), other.name));
        }
    }
    None
}

#[test]
fn each_pair_of_the_table_is_refused_by_its_row() {
    let contradict = |row: &&Conflict| Example::of(&[row.setting.example, row.with.example]).is_none();
    let unsaid: Vec<String> = rows().filter(contradict).map(name).collect();
    assert_eq!(unsaid, [""; 0], "settings whose examples say different things");
    let faults: Vec<String> = rows().filter_map(fault).collect();
    assert!(faults.is_empty(), "{} of {} rows:\n{}", faults.len(), rows().count(), faults.join("\n"));
}

/// Returns what is wrong with two examples together: an error of no row that is not named above.
fn unexplained(one: &'static [&'static str], other: &'static [&'static str]) -> Option<String> {
    let error = Example::of(&[one, other])?.refused_otherwise()?;
    let is_named = |(slug, words): &(&str, &str)| error.slug == *slug && error.message.contains(words);
    (!OTHERWISE.iter().any(is_named)).then(|| format!("{one:?} and {other:?}: {error}"))
}

#[test]
fn what_is_in_no_row_goes_together() {
    let all: BTreeSet<_> = rows().flat_map(|row| [row.setting.example, row.with.example]).collect();
    let all: Vec<_> = all.into_iter().collect();
    let pairs: Vec<_> = all
        .iter()
        .enumerate()
        .flat_map(|(n, one)| all[..=n].iter().map(move |other| (*one, *other)))
        .collect();
    assert!(pairs.len() > 4000, "{} pairs", pairs.len());
    // A pair is a few milliseconds: a fourth of them is tried with each commit, as `every_nth` of the tests of
    // `plimsoll` chooses.
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    let turn: usize = set("PLIMSOLL_TURN").parse().unwrap_or(0);
    let is_tried = |n: &usize| set("PLIMSOLL_FULL") == "1" || n % 4 == turn % 4;
    let pairs: Vec<_> =
        pairs.into_iter().enumerate().filter(|(n, _)| is_tried(n)).map(|(_, pair)| pair).collect();
    let faults: Vec<String> = std::thread::scope(|scope| {
        let parts = pairs.chunks(pairs.len().div_ceil(THREADS));
        let check = |part: &[(&'static [&'static str], &'static [&'static str])]| {
            part.iter().filter_map(|(one, other)| unexplained(one, other)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || check(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    assert!(faults.is_empty(), "{} of {} pairs:\n{}", faults.len(), pairs.len(), faults.join("\n"));
}

#[test]
fn the_page_of_the_docs_is_the_table() {
    let page = include_str!("../../../../docs/details/conflicts.md");
    let table = conflicts_in_markdown();
    assert!(page.ends_with(&table), "write it with `cargo xtask pages`:\n{table}");
}
